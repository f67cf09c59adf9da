"""Protocol between a supervisor and its tasks: status, checkpoints and agreed end offsets.

`TaskProtocol` takes the events of all task groups and carries out their effects. It requests the
status of tasks, and agrees with all replicas of a group on the end of the tasks or of their open
sequence. Does not own which tasks should exist or when they have read enough (`reconciler`).

In an agreement all replicas of a group are paused and report their offsets; the end is the
furthest one of each stream partition, and is sent to all. It is valid once one task has
accepted it: tasks that did not respond are informed later, and a task that refuses it has read
past it. Tasks behind an agreement are brought up to it, or ended if that is impossible.

Threading: state belongs to the overlord's mailbox. Calls to peons block, so each task has a lane
for its calls: a task that does not respond does not delay calls to others. Invariants: a task has
one call of each kind in progress at a time. Each call can be repeated after a lost response and
finds what was agreed. An agreed end never changes. No task that responds is left paused after an
agreement, even after a failed one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.core.errors import Conflict, InvalidRequest, Unavailable
from penstock.indexing.ports import TaskPhase, TaskState
from penstock.indexing.supervisor.task_groups import GroupEffect, GroupEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.core.errors import PenstockError
    from penstock.indexing.ports import TaskClient, TaskReport
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.supervisor.supervisor_state import SupervisorState
    from penstock.indexing.supervisor.task_groups import Replica, TaskGroup
    from penstock.mailbox.background_calls import CallDispatcher


@dataclass(frozen=True, slots=True)
class PausedPosition:
    """Position of a paused task.

    Attributes:
        current: Offsets up to which it has read.
        end: Its end, if already agreed; then it is not paused.
        next_start: Start of the sequence after the one to close, if that is already closed.
    """

    current: Offsets
    end: Offsets | None = None
    next_start: Offsets | None = None


def pause_task(peons: TaskClient, task_id: str, closing: int | None = None) -> PausedPosition:
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
        return PausedPosition(known, end=known)
    if closing is None:
        return PausedPosition(current)
    return PausedPosition(current, next_start=peons.report(task_id).checkpoints.get(closing + 1))


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


class Agreement:
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
        calls: CallDispatcher,
        closing: tuple[int, Offsets] | None,
        ended: Callable[[Offsets | None, dict[str, PenstockError]], None],
    ) -> None:
        self._peons = peons
        self._calls = calls
        self._closing = closing
        self._ended = ended
        self._positions: dict[str, PausedPosition] = {}
        self._errors: dict[str, PenstockError] = {}
        self._accepted: set[str] = set()

    def start(self, task_ids: Iterable[str]) -> None:
        """Pause the tasks, and continue when all have answered or failed."""
        number = None if self._closing is None else self._closing[0]
        self._each(
            task_ids,
            lambda task_id: pause_task(self._peons, task_id, number),
            self._positions.__setitem__,
            self._decide,
        )

    def _decide(self) -> None:
        end = self._furthest()
        if end is None:
            for task_id in (*self._positions, *self._errors):
                self._resume(task_id)
            self._ended(None, self._errors)
            return
        self._each(
            self._positions,
            lambda task_id: self._send_end(task_id, end),
            lambda task_id, _none: self._accepted.add(task_id),
            lambda: self._finish(end),
        )

    def _furthest(self) -> dict[int, int] | None:
        """Return an end reported by a task, or the furthest position; None for no agreement."""
        positions = self._positions.values()
        ends = [dict(one.end) for one in positions if one.end is not None]
        if self._closing is None:
            if ends:
                return ends[0]
        else:
            if ends:
                return None  # The task itself ends, and with it the sequence.
            known = [dict(one.next_start) for one in positions if one.next_start is not None]
            if known:
                return known[0]
        end: dict[int, int] = {}
        for one in positions:
            for p, offset in one.current.items():
                end[p] = max(offset, end.get(p, 0))
        if self._closing is not None and end == dict(self._closing[1]):
            return None  # The sequence is still empty.
        return end or None

    def _send_end(self, task_id: str, end: Offsets) -> None:
        finish = self._closing is None
        one = self._positions[task_id]
        known = one.end if finish else one.next_start
        if known is None or dict(known) != dict(end):
            self._peons.set_end_offsets(task_id, end, finish=finish)
        else:
            self._peons.resume(task_id)

    def _finish(self, end: Offsets) -> None:
        for task_id in self._positions.keys() - self._accepted:
            self._resume(task_id)
        self._ended(end if self._accepted else None, self._errors)

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

        def task_done(task_id: str) -> None:
            waiting.discard(task_id)
            if not waiting:
                then()

        def succeeded(task_id: str, result: T) -> None:
            done(task_id, result)
            task_done(task_id)

        def failed(task_id: str, error: PenstockError) -> None:
            self._errors[task_id] = error
            task_done(task_id)

        for task_id in tuple(waiting):
            self._calls.call(
                peon_lane(task_id),
                partial(work, task_id),
                partial(succeeded, task_id),
                partial(failed, task_id),
            )


@dataclass(frozen=True, slots=True)
class EventFacts:
    """Facts of an event that its effects need.

    Attributes:
        end: The end of the tasks, or of their open sequence.
        number: The number of the sequence that begins there.
        errors: Errors of tasks in an agreement.
        task_id: The task of the event.
        agreement: The agreement to start.
    """

    end: Offsets = field(default_factory=dict)
    number: int = 0
    errors: Mapping[str, PenstockError] = field(default_factory=dict)
    task_id: str = ""
    agreement: Agreement | None = None


_NO_FACTS = EventFacts()


class TaskProtocol:
    """Communication of one supervisor with its tasks.

    Args:
        state: The supervisor.
        calls: Runs calls on lanes.
    """

    def __init__(self, state: SupervisorState, calls: CallDispatcher) -> None:
        self._state = state
        self._calls = calls

    def report(self, group: TaskGroup, event: GroupEvent, facts: EventFacts = _NO_FACTS) -> None:
        """Report an event of a group, and carry out its effects in order.

        Raises:
            Unavailable: The metadata store did not answer when a task had to end.
        """
        for effect in group.on(event):
            self._carry_out(effect, group, facts)

    def _carry_out(self, effect: GroupEffect, group: TaskGroup, facts: EventFacts) -> None:
        state, clock = self._state, self._state.ports.clock
        match effect:
            case GroupEffect.SET_END:
                group.end = dict(facts.end)
            case GroupEffect.ADD_CHECKPOINT:
                group.learn({facts.number: facts.end})
            case GroupEffect.SET_DEADLINE:
                # Monotonic, because the wall clock may jump.
                group.deadline_s = clock.monotonic_s() + state.spec.io.completion_timeout / 1000
            case GroupEffect.RESTART_DURATION:
                group.since_ms = clock.now_ms()
            case GroupEffect.RESUME_TASK:
                self._resume(facts.task_id)
            case GroupEffect.CATCH_UP:
                self._catch_up_lagging(group)
            case GroupEffect.AGREE_ON_END | GroupEffect.AGREE_ON_CHECKPOINT:
                assert facts.agreement is not None, f"no agreement for {effect}"
                facts.agreement.start(self._askable(group))
            case GroupEffect.END_REFUSING_TASKS:
                self._end_refusing_tasks(facts.errors)
            case GroupEffect.NOTE_ERRORS:
                self._note_errors(facts.errors)
            case GroupEffect.RECONCILE:
                state.request_round()
            case _:
                self._end_tasks(effect, group, facts)

    def _end_tasks(self, effect: GroupEffect, group: TaskGroup, facts: EventFacts) -> None:
        """Carry out an effect that ends tasks of the group itself."""
        state = self._state
        match effect:
            case GroupEffect.END_SPARE_TASKS:
                reason = "its replicas ended before it had a worker"
                for task_id in group.waiting_tasks:
                    state.end_task(task_id, reason, TaskState.SUCCESS)
            case GroupEffect.END_OVERDUE_TASKS:
                seconds = state.spec.io.completion_timeout // 1000
                reason = f"it has not published within completionTimeout ({seconds} s)"
                for task_id in tuple(group.replicas):
                    state.ports.queue.shutdown(task_id, reason)
            case GroupEffect.END_UNNEEDED_TASKS:
                state.end_group(group, "the supervisor stopped before it began")
            case GroupEffect.END_REPLICAS:
                reason = f"its replica {facts.task_id} has published all"
                try:
                    state.end_group(group, reason, TaskState.SUCCESS)
                except Unavailable as error:
                    state.note(error)  # The tasks detect it themselves.
            case _:
                raise AssertionError(f"nothing carries out {effect}")

    # Reports

    def request_reports(self, group: TaskGroup) -> None:
        """Request reports from the tasks of a group, unless a request is running."""
        for replica in group.replicas.values():
            if not replica.report_requested:
                self._request_report(group, replica)

    def _peons(self) -> TaskClient:
        return self._state.ports.peons.within(self._state.spec.tuning.http_timeout)

    def _request_report(self, group: TaskGroup, replica: Replica) -> None:
        task_id, peons = replica.task.id, self._peons()
        replica.report_requested = True

        def done(report: TaskReport) -> None:
            replica.report_requested = False
            self._apply_report(group, replica, report)

        def failed(_error: PenstockError) -> None:
            replica.report_requested = False  # The task is starting, or its worker restarts it.

        self._calls.call(peon_lane(task_id), lambda: peons.report(task_id), done, failed)

    def _apply_report(self, group: TaskGroup, replica: Replica, report: TaskReport) -> None:
        before, replica.report = replica.report, report
        replica.heard_s = self._state.ports.clock.monotonic_s()
        group.learn(report.checkpoints)
        if before is None and report.phase is TaskPhase.PAUSED:
            facts = EventFacts(task_id=replica.task.id)
            self.report(group, GroupEvent.FOUND_PAUSED, facts)
        if report.end is not None:
            self.report(group, GroupEvent.END_KNOWN, EventFacts(report.end))
        else:
            self.report(group, GroupEvent.REPORTED)
        if before is None or before.persisted != report.persisted:
            # It may still read, for example a replacement that has its end from the start.
            self.report(group, GroupEvent.PROGRESSED)

    def _resume(self, task_id: str) -> None:
        peons = self._peons()
        # If this call is lost, the pause ends by itself.
        self._calls.call(
            peon_lane(task_id),
            lambda: peons.resume(task_id),
            lambda _none: None,
            lambda _error: None,
        )

    # Tasks behind their replicas

    def align_replicas(self, group: TaskGroup) -> None:
        """Send lagging tasks the checkpoints of their replicas, unless these are agreeing."""
        if any(group.lags(replica) for replica in group.replicas.values()):
            self.report(group, GroupEvent.LAGGING)

    def _catch_up_lagging(self, group: TaskGroup) -> None:
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
                self._end_misfit(task_id, f"it contradicts its replicas: {error}")

        self._calls.call(
            peon_lane(task_id), lambda: catch_up(peons, task_id, checkpoints, end), done, failed
        )

    # Agreements

    def roll(self, group: TaskGroup) -> None:
        """End a group at the current position of its furthest task."""
        if self._askable(group):
            self.report(
                group, GroupEvent.END_WANTED, EventFacts(agreement=self._agreement(group, None))
            )

    def checkpoint(self, group: TaskGroup, start: Offsets) -> None:
        """Close a group's open sequence, if it started at `start`, and let the group continue.

        Another start means that the notification is late: that sequence was closed before.
        """
        number = group.newest
        if dict(group.checkpoints[number]) == dict(start) and self._askable(group):
            agreement = self._agreement(group, (number, start))
            self.report(group, GroupEvent.CHECKPOINT_WANTED, EventFacts(agreement=agreement))

    def _askable(self, group: TaskGroup) -> list[str]:
        # A lagging task must receive the earlier ends before this one.
        return [r.task.id for r in group.replicas.values() if r.has_worker and not group.lags(r)]

    def _agreement(self, group: TaskGroup, closing: tuple[int, Offsets] | None) -> Agreement:
        if closing is None:
            number = 0
            agreed, not_agreed = GroupEvent.END_AGREED, GroupEvent.END_NOT_AGREED
        else:
            number = closing[0] + 1
            agreed, not_agreed = GroupEvent.CHECKPOINT_AGREED, GroupEvent.CHECKPOINT_NOT_AGREED

        def ended(end: Offsets | None, errors: Mapping[str, PenstockError]) -> None:
            event = not_agreed if end is None else agreed
            self.report(group, event, EventFacts(end or {}, number, errors))

        return Agreement(self._peons(), self._calls, closing, ended)

    def _note_errors(self, errors: Mapping[str, PenstockError]) -> None:
        for error in errors.values():
            if not isinstance(error, Unavailable):
                self._state.note(error)

    def _end_refusing_tasks(self, errors: Mapping[str, PenstockError]) -> None:
        """End tasks that refused the agreed end; those that did not answer receive it later."""
        for task_id, error in errors.items():
            if isinstance(error, InvalidRequest | Conflict):
                reason = f"it refused the end that its replicas agreed on: {error}"
                self._end_misfit(task_id, reason)

    def _end_misfit(self, task_id: str, reason: str) -> None:
        """End a task that contradicts its replicas; another one replaces it."""
        try:
            self._state.ports.queue.shutdown(task_id, reason)
        except Unavailable as error:
            self._state.note(error)  # The next round detects the contradiction again.
