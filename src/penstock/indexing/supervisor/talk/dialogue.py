"""Communication of a supervisor with its tasks.

On the overlord's mailbox; the peons are called on lanes, one for each task, so that one that does
not answer delays no other. Their answers are stored in their `TaskGroup`. Owns the phases UNKNOWN,
READING and ROLLING and the transition to PENDING: requests reports, and agrees with all replicas of
a group on their end or on the end of their open sequence. Does not determine which tasks should
exist, nor when they have read enough.

Tasks that lag behind what their replicas agreed are brought in line; if that fails, they are ended.
Invariants: at most one request of each kind is running for a task; an end, once agreed, never
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
    """Communication of one supervisor with its tasks.

    Args:
        peons: Returns a client of the tasks, with the timeout of the current spec.
        calls: Runs calls on lanes.
        clock: Monotonic time for deadlines, because the wall clock may jump.
        completion_timeout_ms: Returns how long a group may publish, from the current spec.
        agreed: Called when a group that was asked to end has agreed on its end.
        misfit: Called with a task that contradicts its replicas, and the reason.
        note: Called with errors to record.
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

    # Reports

    def ask(self, group: TaskGroup) -> None:
        """Request reports from the tasks of a group, unless a request is running."""
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
            replica.asking = False  # The task is starting, or its worker restarts it.

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
            # It still reads, for example a replacement that has its end from the start.
            self.allow_more_time(group)

    def agree(self, group: TaskGroup, end: Offsets) -> None:
        """Set the end of a group; from now on it publishes."""
        if not group.is_pending:
            group.phase, group.end = GroupPhase.PENDING, dict(end)
            self.allow_more_time(group)

    def allow_more_time(self, group: TaskGroup) -> None:
        """Restart the deadline of a group that publishes."""
        if group.is_pending:
            group.deadline_s = self._clock.monotonic_s() + self._completion_timeout_ms() / 1000

    def bring_in_line(self, group: TaskGroup) -> None:
        """Send lagging tasks what their replicas have agreed."""
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
            replica.report = None  # The last report is out of date.

        def failed(error: PenstockError) -> None:
            replica.catching_up = False
            if isinstance(error, InvalidRequest | Conflict):
                self._misfit(task_id, f"it is not in line with its replicas: {error}")

        self._calls.call(
            peon_lane(task_id), lambda: catch_up(peons, task_id, checkpoints, end), done, failed
        )

    # Agreements

    def roll(self, group: TaskGroup) -> None:
        """End a group at the current position of its furthest task."""

        def ended(end: Offsets | None, errors: Mapping[str, PenstockError]) -> None:
            if end is None:
                self._read_on(group, errors)
                return
            self.agree(group, end)
            self._end_misfits(errors)
            self._agreed()

        self._begin(group, None, ended)

    def checkpoint(self, group: TaskGroup, start: Offsets) -> None:
        """Close a group's open sequence, if it started at `start`, and let the group continue.

        Another start means that the notification is late: that sequence was closed before.
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
        # A lagging task must receive the earlier ends before this one.
        asked = [r.task.id for r in group.replicas.values() if r.has_worker and not group.lags(r)]
        if asked:
            agreement = Round(self._peons(), self._calls, closing, ended)
            group.phase = GroupPhase.ROLLING
            agreement.start(asked)

    def _read_on(self, group: TaskGroup, errors: Mapping[str, PenstockError]) -> None:
        if group.phase is GroupPhase.ROLLING:  # A report may have set its end meanwhile.
            group.phase = GroupPhase.READING
        for error in errors.values():
            if not isinstance(error, Unavailable):
                self._note(error)

    def _end_misfits(self, errors: Mapping[str, PenstockError]) -> None:
        """End tasks that refused the agreed end; those that did not answer receive it later."""
        for task_id, error in errors.items():
            if isinstance(error, InvalidRequest | Conflict):
                self._misfit(task_id, f"it refused the end that its replicas agreed on: {error}")
