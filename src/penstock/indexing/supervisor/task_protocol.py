"""Protocol between a supervisor and its tasks: status, checkpoints and agreed end offsets.

Owns the phases UNKNOWN, READING and ROLLING and the transition to PENDING: it asks tasks for
their status, and agrees with all replicas of a group on the end of the tasks or of their open
sequence. Results are written into the `TaskGroup`. Does not own which tasks should exist or
when they have read enough (`reconciler`).

In an agreement all replicas of a group are paused and report their offsets; the end is the
furthest one of each stream partition, and is sent to all. It is valid once one task has
accepted it: tasks that did not respond are informed later, and a task that refuses it has read
past it. Tasks behind an agreement are brought in line, or ended if that is impossible.

Threading: state belongs to the overlord's mailbox. Calls to peons block and run on lanes, one
for each task, so a task that does not respond delays no other one longer than its call.
Invariants: a task has one call of each kind in progress at a time. Each call can be repeated
after a lost response and finds what was agreed. An agreed end never changes. No task that
responds is left paused after an agreement, whatever its result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.core.errors import Conflict, InvalidRequest, Unavailable
from penstock.indexing.ports import TaskPhase
from penstock.indexing.supervisor.task_groups import GroupPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.core.clock import Clock
    from penstock.core.errors import PenstockError
    from penstock.indexing.errand import Calls
    from penstock.indexing.ports import TaskClient, TaskReport
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.supervisor.task_groups import Replica, TaskGroup


@dataclass(frozen=True, slots=True)
class Stand:
    """Position of a paused task.

    Attributes:
        current: Offsets up to which it has read.
        end: Its end, if already agreed; then it is not paused.
        next_start: Start of the sequence after the one to close, if that is already closed.
    """

    current: Offsets
    end: Offsets | None = None
    next_start: Offsets | None = None


def stand(peons: TaskClient, task_id: str, closing: int | None = None) -> Stand:
    """Pause a task and return its position.

    Args:
        peons: Client of the tasks.
        task_id: The task.
        closing: The number of the sequence to close; None to end the task.

    Raises:
        Unavailable: The peon does not answer.
        Conflict: The peon reports that an end is agreed, but not which one.
    """
    try:
        current = peons.pause(task_id)
    except Conflict:
        known = peons.report(task_id).end
        if known is None:
            raise
        return Stand(known, end=known)
    if closing is None:
        return Stand(current)
    return Stand(current, next_start=peons.report(task_id).checkpoints.get(closing + 1))


def catch_up(
    peons: TaskClient, task_id: str, checkpoints: Mapping[int, Offsets], end: Offsets | None
) -> None:
    """Send a task the checkpoints that its replicas have agreed, then the end.

    Raises:
        Unavailable: The peon does not answer.
        InvalidRequest: The task has read past them, or agreed on something else.
    """
    report = peons.report(task_id)
    for number, start in report.checkpoints.items():
        if number in checkpoints and dict(checkpoints[number]) != dict(start):
            raise InvalidRequest(
                f"its sequence {number} begins at {dict(start)}, that of its replicas at"
                f" {dict(checkpoints[number])}"
            )
    if report.end is not None:
        return
    newest = max(report.checkpoints, default=-1)
    missing = sorted(number for number in checkpoints if number > newest)
    if missing and missing[0] != newest + 1:
        raise InvalidRequest(f"the end of its sequence {newest} is no longer known")
    for number in missing:
        peons.pause(task_id)
        peons.set_end_offsets(task_id, checkpoints[number], finish=False)
    if end is not None:
        peons.pause(task_id)
        peons.set_end_offsets(task_id, end, finish=True)


T = TypeVar("T")


def peon_lane(task_id: str) -> str:
    """Return the lane on which a task's peon is called."""
    return f"peon-{task_id}"


class Round:
    """An agreement on the end of tasks, or of their open sequence.

    Args:
        peons: Client of the tasks.
        calls: Runs calls on lanes.
        closing: The number and the start of the open sequence; None to end the tasks.
        ended: Called with the agreed end, if any, and the errors of tasks that did not accept it.
    """

    def __init__(
        self,
        peons: TaskClient,
        calls: Calls,
        closing: tuple[int, Offsets] | None,
        ended: Callable[[Offsets | None, dict[str, PenstockError]], None],
    ) -> None:
        self._peons = peons
        self._calls = calls
        self._closing = closing
        self._ended = ended
        self._stands: dict[str, Stand] = {}
        self._errors: dict[str, PenstockError] = {}
        self._took: set[str] = set()

    def start(self, task_ids: Iterable[str]) -> None:
        """Pause the tasks, and continue when all have answered or failed."""
        number = None if self._closing is None else self._closing[0]
        self._each(
            task_ids,
            lambda task_id: stand(self._peons, task_id, number),
            self._stands.__setitem__,
            self._decide,
        )

    def _decide(self) -> None:
        end = self._furthest()
        if end is None:
            for task_id in (*self._stands, *self._errors):
                self._resume(task_id)
            self._ended(None, self._errors)
            return
        self._each(
            self._stands,
            lambda task_id: self._tell(task_id, end),
            lambda task_id, _none: self._took.add(task_id),
            lambda: self._finish(end),
        )

    def _furthest(self) -> dict[int, int] | None:
        """Return an end that a task reports, else the furthest position; None for no agreement."""
        stands = self._stands.values()
        ends = [dict(one.end) for one in stands if one.end is not None]
        if self._closing is None:
            if ends:
                return ends[0]
        else:
            if ends:
                return None  # The task itself ends, and with it the sequence.
            known = [dict(one.next_start) for one in stands if one.next_start is not None]
            if known:
                return known[0]
        end: dict[int, int] = {}
        for one in stands:
            for p, offset in one.current.items():
                end[p] = max(offset, end.get(p, 0))
        if self._closing is not None and end == dict(self._closing[1]):
            return None  # The sequence is still empty.
        return end or None

    def _tell(self, task_id: str, end: Offsets) -> None:
        finish = self._closing is None
        one = self._stands[task_id]
        known = one.end if finish else one.next_start
        if known is None or dict(known) != dict(end):
            self._peons.set_end_offsets(task_id, end, finish=finish)
        else:
            self._peons.resume(task_id)

    def _finish(self, end: Offsets) -> None:
        for task_id in self._stands.keys() - self._took:
            self._resume(task_id)
        self._ended(end if self._took else None, self._errors)

    def _resume(self, task_id: str) -> None:
        # If this call is lost, the pause ends by itself.
        self._calls.call(
            peon_lane(task_id),
            lambda: self._peons.resume(task_id),
            lambda _none: None,
            lambda _error: None,
        )

    def _each(
        self,
        task_ids: Iterable[str],
        work: Callable[[str], T],
        done: Callable[[str, T], None],
        then: Callable[[], None],
    ) -> None:
        """Do some work for each task, on its lane; then call `then`."""
        waiting = set(task_ids)

        def settle(task_id: str) -> None:
            waiting.discard(task_id)
            if not waiting:
                then()

        def succeeded(task_id: str, result: T) -> None:
            done(task_id, result)
            settle(task_id)

        def failed(task_id: str, error: PenstockError) -> None:
            self._errors[task_id] = error
            settle(task_id)

        for task_id in tuple(waiting):
            self._calls.call(
                peon_lane(task_id),
                partial(work, task_id),
                partial(succeeded, task_id),
                partial(failed, task_id),
            )


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
        is_left = before is None and report.phase is TaskPhase.PAUSED
        if is_left and group.phase is not GroupPhase.ROLLING:
            # The overlord that had paused it ended before its tasks agreed.
            self._resume(replica.task.id)
        if report.end is not None:
            self.agree(group, report.end)
        elif group.phase is GroupPhase.UNKNOWN:
            group.phase = GroupPhase.READING
        if group.is_pending and (before is None or before.persisted != report.persisted):
            # It still reads, for example a replacement that has its end from the start.
            self.allow_more_time(group)

    def _resume(self, task_id: str) -> None:
        peons = self._peons()
        # If this call is lost, the pause ends by itself.
        self._calls.call(
            peon_lane(task_id),
            lambda: peons.resume(task_id),
            lambda _none: None,
            lambda _error: None,
        )

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
