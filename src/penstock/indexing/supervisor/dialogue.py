"""What a supervisor says to its tasks, and what it hears from them.

On the overlord's mailbox; the peons are called on lanes, and what they answer is written into their
`TaskGroup`. Owns the phases UNKNOWN, READING and ROLLING and the way to PENDING: asking how a task
stands, telling it to end where it stands, closing its open sequence. Does not own which tasks there
should be, nor when one has read enough.

Invariants: a task is asked one thing of each kind at a time; an end, once agreed, never changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import Unavailable
from penstock.indexing.supervisor.agreements import checkpoint, finish
from penstock.indexing.supervisor.groups import GroupPhase

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.core.errors import PenstockError
    from penstock.indexing.errand import Calls
    from penstock.indexing.ports import TaskClient, TaskReport
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.supervisor.groups import TaskGroup


class Dialogue:
    """The talk of one supervisor with its tasks.

    Args:
        supervisor_id: Whose it is.
        peons: The tasks.
        calls: Runs calls on lanes.
        clock: Time, for deadlines; not the wall clock's, which may jump.
        completion_timeout_ms: How long a task may publish, as the spec says now.
        agreed: Told when a task that was asked to end has agreed on where.
        note: Told of errors that somebody should see.
    """

    def __init__(
        self,
        supervisor_id: str,
        peons: TaskClient,
        calls: Calls,
        clock: Clock,
        *,
        completion_timeout_ms: Callable[[], int],
        agreed: Callable[[], None],
        note: Callable[[Exception], None],
    ) -> None:
        self._supervisor_id = supervisor_id
        self._peons = peons
        self._calls = calls
        self._clock = clock
        self._completion_timeout_ms = completion_timeout_ms
        self._agreed = agreed
        self._note = note

    def ask(self, group: TaskGroup) -> None:
        """Ask a task how it stands, unless it is being asked."""
        if group.asking:
            return
        group.asking = True
        task_id, peons = group.task.id, self._peons

        def done(report: TaskReport) -> None:
            group.asking = False
            self._heard(group, report)

        def failed(_error: PenstockError) -> None:
            group.asking = False  # It is starting, or being started again by its worker.

        self._calls.call(self._lane(group), lambda: peons.report(task_id), done, failed)

    def roll(self, group: TaskGroup) -> None:
        """Tell a task its end: where it stands now."""
        group.phase = GroupPhase.ROLLING
        task_id, peons = group.task.id, self._peons

        def done(end: Offsets) -> None:
            self.agree(group, end)
            self._agreed()

        def failed(error: PenstockError) -> None:
            self._read_on(group)
            if not isinstance(error, Unavailable):
                self._note(error)

        self._calls.call(self._lane(group), lambda: finish(peons, task_id), done, failed)

    def checkpoint(self, group: TaskGroup, start: Offsets) -> None:
        """Close a task's open sequence, the one that began there, and have it go on."""
        if group.phase not in {GroupPhase.READING, GroupPhase.UNKNOWN}:
            return
        group.phase = GroupPhase.ROLLING
        task_id, peons = group.task.id, self._peons

        def done(_end: Offsets | None) -> None:
            self._read_on(group)

        def failed(error: PenstockError) -> None:
            self._read_on(group)  # The task asks again after a while.
            self._note(error)

        self._calls.call(self._lane(group), lambda: checkpoint(peons, task_id, start), done, failed)

    def agree(self, group: TaskGroup, end: Offsets) -> None:
        """Note the end of a task; from now on it publishes."""
        if not group.is_pending:
            group.phase, group.end = GroupPhase.PENDING, dict(end)
            self.allow_more_time(group)

    def allow_more_time(self, group: TaskGroup) -> None:
        """Let a task that publishes begin its time anew."""
        if group.is_pending:
            group.deadline_s = self._clock.monotonic_s() + self._completion_timeout_ms() / 1000

    def _heard(self, group: TaskGroup, report: TaskReport) -> None:
        before, group.report = group.report, report
        group.heard_s = self._clock.monotonic_s()
        if report.end is not None:
            self.agree(group, report.end)
        elif group.phase is GroupPhase.UNKNOWN:
            group.phase = GroupPhase.READING
        if group.is_pending and (before is None or before.persisted != report.persisted):
            # It still reads, such as one that makes up for another from the start.
            self.allow_more_time(group)

    def _read_on(self, group: TaskGroup) -> None:
        if group.phase is GroupPhase.ROLLING:  # Its end may have become known meanwhile.
            group.phase = GroupPhase.READING

    def _lane(self, group: TaskGroup) -> str:
        return f"peon-{self._supervisor_id}-{group.task.group_id}"
