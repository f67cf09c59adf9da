"""What a supervisor says to its tasks, and what it hears from them.

On the overlord's mailbox; the peons are called on lanes, one for each task, so that one that does
not answer holds up no other. What they answer is written into their `TaskGroup`. Owns the phases
UNKNOWN, READING and ROLLING and the way to PENDING: asking how tasks stand, agreeing with all
replicas of a group on their end or on the end of their open sequence. Does not own which tasks
there should be, nor when they have read enough.

Tasks that lag behind what their replicas agreed are brought in line; those that cannot be are
ended. Invariants: a task is asked one thing of each kind at a time; an end, once agreed, never
changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import Conflict, InvalidRequest, Unavailable
from penstock.indexing.supervisor.groups import GroupPhase
from penstock.indexing.supervisor.talk.agreements import catch_up
from penstock.indexing.supervisor.talk.rounds import Round, peon_lane

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.core.clock import Clock
    from penstock.core.errors import PenstockError
    from penstock.indexing.errand import Calls
    from penstock.indexing.ports import TaskClient, TaskReport
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.supervisor.groups import Replica, TaskGroup


class Dialogue:
    """The talk of one supervisor with its tasks.

    Args:
        peons: Gives the tasks, waited for as long as the spec says now.
        calls: Runs calls on lanes.
        clock: Time, for deadlines; not the wall clock's, which may jump.
        completion_timeout_ms: How long a group may publish, as the spec says now.
        agreed: Told when a group that was asked to end has agreed on where.
        misfit: Told of a task that cannot be brought in line with its replicas, and why.
        note: Told of errors that somebody should see.
    """

    def __init__(
        self,
        peons: Callable[[], TaskClient],
        calls: Calls,
        clock: Clock,
        *,
        completion_timeout_ms: Callable[[], int],
        agreed: Callable[[], None],
        misfit: Callable[[str, str], None],
        note: Callable[[Exception], None],
    ) -> None:
        self._peons = peons
        self._calls = calls
        self._clock = clock
        self._completion_timeout_ms = completion_timeout_ms
        self._agreed = agreed
        self._misfit = misfit
        self._note = note

    # How they stand

    def ask(self, group: TaskGroup) -> None:
        """Ask the tasks of a group how they stand, those that are not being asked."""
        for replica in group.replicas.values():
            if not replica.asking:
                self._ask(group, replica)

    def _ask(self, group: TaskGroup, replica: Replica) -> None:
        task_id, peons = replica.task.id, self._peons()
        replica.asking = True

        def done(report: TaskReport) -> None:
            replica.asking = False
            self._heard(group, replica, report)

        def failed(_error: PenstockError) -> None:
            replica.asking = False  # It is starting, or being started again by its worker.

        self._calls.call(peon_lane(task_id), lambda: peons.report(task_id), done, failed)

    def _heard(self, group: TaskGroup, replica: Replica, report: TaskReport) -> None:
        before, replica.report = replica.report, report
        replica.heard_s = self._clock.monotonic_s()
        group.learn(report.checkpoints)
        if report.end is not None:
            self.agree(group, report.end)
        elif group.phase is GroupPhase.UNKNOWN:
            group.phase = GroupPhase.READING
        if group.is_pending and (before is None or before.persisted != report.persisted):
            # It still reads, such as one that makes up for another from the start.
            self.allow_more_time(group)

    def agree(self, group: TaskGroup, end: Offsets) -> None:
        """Note the end of a group; from now on it publishes."""
        if not group.is_pending:
            group.phase, group.end = GroupPhase.PENDING, dict(end)
            self.allow_more_time(group)

    def allow_more_time(self, group: TaskGroup) -> None:
        """Let a group that publishes begin its time anew."""
        if group.is_pending:
            group.deadline_s = self._clock.monotonic_s() + self._completion_timeout_ms() / 1000

    def bring_in_line(self, group: TaskGroup) -> None:
        """Tell tasks that lag what their replicas have agreed."""
        if group.phase is GroupPhase.ROLLING:
            return
        for replica in group.replicas.values():
            if group.lags(replica) and not replica.catching_up:
                self._catch_up(group, replica)

    def _catch_up(self, group: TaskGroup, replica: Replica) -> None:
        task_id, peons = replica.task.id, self._peons()
        checkpoints, end = dict(group.checkpoints), group.end
        replica.catching_up = True

        def done(_none: None) -> None:
            replica.catching_up = False
            replica.report = None  # What it said before is out of date.

        def failed(error: PenstockError) -> None:
            replica.catching_up = False
            if isinstance(error, InvalidRequest | Conflict):
                self._misfit(task_id, f"it is not in line with its replicas: {error}")

        self._calls.call(
            peon_lane(task_id), lambda: catch_up(peons, task_id, checkpoints, end), done, failed
        )

    # Agreements

    def roll(self, group: TaskGroup) -> None:
        """Have a group end where its furthest task stands now."""

        def ended(end: Offsets | None, errors: Mapping[str, PenstockError]) -> None:
            if end is None:
                self._read_on(group, errors)
                return
            self.agree(group, end)
            self._end_misfits(errors)
            self._agreed()

        self._begin(group, None, ended)

    def checkpoint(self, group: TaskGroup, start: Offsets) -> None:
        """Close a group's open sequence, if it is the one that began there, and have it go on.

        Another begin means that the notice comes late: that sequence was closed before.
        """
        number = group.newest
        if group.phase not in {GroupPhase.READING, GroupPhase.UNKNOWN}:
            return
        if dict(group.checkpoints[number]) != dict(start):
            return

        def ended(end: Offsets | None, errors: Mapping[str, PenstockError]) -> None:
            self._read_on(group, errors)
            if end is not None:
                group.learn({number + 1: end})
                self._end_misfits(errors)

        self._begin(group, (number, start), ended)

    def _begin(
        self,
        group: TaskGroup,
        closing: tuple[int, Offsets] | None,
        ended: Callable[[Offsets | None, dict[str, PenstockError]], None],
    ) -> None:
        # A task that lags must hear of the earlier ends before this one.
        asked = [r.task.id for r in group.replicas.values() if r.has_worker and not group.lags(r)]
        if asked:
            agreement = Round(self._peons(), self._calls, closing, ended)
            group.phase = GroupPhase.ROLLING
            agreement.start(asked)

    def _read_on(self, group: TaskGroup, errors: Mapping[str, PenstockError]) -> None:
        if group.phase is GroupPhase.ROLLING:  # Its end may have become known meanwhile.
            group.phase = GroupPhase.READING
        for error in errors.values():
            if not isinstance(error, Unavailable):
                self._note(error)

    def _end_misfits(self, errors: Mapping[str, PenstockError]) -> None:
        """End tasks that refused what the others took; those that did not answer are told later."""
        for task_id, error in errors.items():
            if isinstance(error, InvalidRequest | Conflict):
                self._misfit(task_id, f"it refused the end that its replicas agreed on: {error}")
