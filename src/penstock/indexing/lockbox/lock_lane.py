"""The lane of one datasource's locks: rounds of waiting work, transactions and answers.

`LockLane` owns the inbox of a datasource and its rounds; `lockbox` decides what is granted.
`LockState` has what the lanes of all datasources share. Invariants: only its lane uses a lockbox;
all work that waits for a lane is done in order, with one transaction; an answer is given only after
the change is stored; if it cannot be stored, memory is as before, except for which tasks are
active.

After any error, every future is answered, and the next request of the datasource is served. A
command that reports which tasks are active, or where they are, is never lost: if its round could
not start, the next round of the datasource executes it first. If the undo of a batch fails, or
memory runs out while a batch is computed, memory may differ from the store. The lane then refuses
all requests and calls `on_failure`, because only a new term can read the locks again.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from penstock.core.errors import Closed, Fenced, PenstockError, Unavailable
from penstock.core.intervals import condensed
from penstock.indexing.lockbox.lockbox import AcquireLocks, AddTask, PlaceTask, RemoveTask
from penstock.indexing.lockbox.model import LockRefused, LockType
from penstock.indexing.lockbox.store import StoredLocks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.clock import Clock
    from penstock.core.intervals import Interval
    from penstock.indexing.lockbox.coverage import CoveringLocks
    from penstock.indexing.lockbox.lockbox import CommandAnswer, Lockbox, LockCommand
    from penstock.indexing.lockbox.model import LockPolicy, LockRequest, SegmentLike
    from penstock.indexing.lockbox.store import LockStore
    from penstock.mailbox.lanes import Lanes

T = TypeVar("T")

BATCH_COMMANDS_MAX: Final = 1_000
"""Maximum number of commands that share a transaction."""


def lane_of(datasource: str) -> str:
    """Return the lane of a datasource, which runs other work between its lock operations."""
    return f"datasource {datasource}"


@dataclass(slots=True)
class Asked:
    """A command of a caller that waits for the answer."""

    command: LockCommand
    future: Future[object]


@dataclass(slots=True)
class Call(Generic[T]):
    """Work of a caller on the current state of the lockbox."""

    run: Callable[[Lockbox], T]
    future: Future[T]

    def answer(self, box: Lockbox) -> None:
        """Run the work and complete its future."""
        try:
            result = self.run(box)
        except BaseException as error:  # noqa: BLE001 - the future reports it
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


_LASTING: Final = (AddTask, RemoveTask, PlaceTask)
"""Commands that are executed later if their round cannot start: callers do not repeat them."""

LockWork: TypeAlias = "Asked | Call[object]"


@dataclass(slots=True)
class LocksChanged:
    """Event: other tasks than the requesting one lost locks, or may now get some.

    Attributes:
        datasource: The datasource of the locks.
        released: Tasks whose locks refused requests that may be granted now; also those that ended
            and whose removal could not be stored.
        yielded: Tasks that no worker has and that lost their locks to others: they must request
            them again, before refused requests are repeated.
    """

    datasource: str
    released: frozenset[str] = frozenset()
    yielded: tuple[str, ...] = ()


def ignore(_event: object) -> None:
    """Ignore an event."""


class LockState:
    """State that the lanes of a term share. Any thread.

    The mutex guards everything below, and the inboxes of the lanes. It is held for a few statements
    only.

    Args:
        store: The store of the locks.
        threads: Threads of the lanes; not closed here.
        clock: Time for versions.
        on_change: Called with the event on the lane of the datasource, after the change is stored.
            Must neither block nor raise.
        on_failure: Called with the error, on any thread, when the locks of a datasource in memory
            may differ from the stored ones, or when `on_change` raised: the term must end.

    Attributes:
        lanes: The lanes of the datasources that have a lockbox.
        refusals: The refusals of the last requests of each task that waits for locks.
        version_floors: Versions used before by datasources without a lockbox, so that no version is
            given twice, and none that would be hidden by older segments.
        is_closed: Whether further work is refused.
    """

    def __init__(
        self,
        store: LockStore,
        threads: Lanes,
        clock: Clock,
        on_change: Callable[[LocksChanged], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.store: Final = store
        self.threads: Final = threads
        self.clock: Final = clock
        self.on_change: Final = on_change
        self.on_failure: Final = on_failure
        self.mutex: Final = threading.Lock()
        self.lanes: dict[str, LockLane] = {}
        self.refusals: Final[dict[str, tuple[LockRefused, ...]]] = {}
        self.version_floors: dict[str, str] = {}
        self.is_closed = False

    def close(self) -> None:
        """Refuse further calls and all waiting work with `Closed`."""
        with self.mutex:
            self.is_closed = True
            waiting = [work for lane in self.lanes.values() for work in lane.inbox]
            for lane in self.lanes.values():
                lane.inbox = []
        for work in waiting:
            if work.future.set_running_or_notify_cancel():
                work.future.set_exception(closed())


class LockLane:
    """The locks of one datasource, and the work that waits for them.

    Args:
        box: The locks. Only the lane uses them.
        state: The state that the lanes share.

    Attributes:
        box: The locks.
        inbox: Work for the next round; guarded by the mutex of the state.
        active_locks: Number of active locks after the last round.
    """

    def __init__(self, box: Lockbox, state: LockState) -> None:
        self.box: Final = box
        self.inbox: list[LockWork] = []
        self.active_locks = box.active_locks
        self._state = state
        self._rows = StoredLocks(state.store)
        self._owed: list[Asked] = []  # Commands of rounds that could not start; they come first.
        self._broken: BaseException | None = None  # Memory may differ from the store since then.

    # --- callers' threads

    def begin(self) -> None:
        """Submit a round; if that fails, refuse the work that waits for it."""
        try:
            round_ = self._state.threads.submit(lane_of(self.box.datasource), self._serve)
        except BaseException as error:
            if isinstance(error, Closed):
                self._state.close()
            else:
                self.refuse_waiting(error)
                if isinstance(error, PenstockError):
                    return  # The futures raise the error.
            raise
        else:
            round_.add_done_callback(self._begun)

    def _begun(self, round_: Future[None]) -> None:
        error = closed() if round_.cancelled() else round_.exception()
        if error is not None:  # It could not start, or `_serve` has ended the term.
            self.refuse_waiting(error)

    def refuse_waiting(self, error: BaseException) -> None:
        """Refuse the work that waits for a round, because it cannot begin."""
        with self._state.mutex:
            waiting, self.inbox = self.inbox, []
        self._report(LocksChanged(self.box.datasource, self._refuse(waiting, error)))

    def _refuse(self, works: Sequence[LockWork], error: BaseException) -> frozenset[str]:
        """Refuse unanswered work; return the tasks whose removal is executed later."""
        left = [work for work in works if not work.future.done()]
        lasting = [
            Asked(work.command, Future())
            for work in left
            if isinstance(work, Asked) and isinstance(work.command, _LASTING)
        ]
        with self._state.mutex:
            self._owed += lasting
        if not isinstance(error, PenstockError):
            error = Unavailable(
                f"the locks of {self.box.datasource} could not be requested: try again ({error!r})"
            )
        for work in left:
            if work.future.running() or work.future.set_running_or_notify_cancel():
                work.future.set_exception(error)
        return frozenset(
            one.command.task_id for one in lasting if isinstance(one.command, RemoveTask)
        )

    # --- the lane

    def _serve(self) -> None:
        """Run a round of the datasource; an error that it did not expect ends the term."""
        try:
            self._run_round()
        except BaseException as error:
            self._broke(error)
            raise

    def _run_round(self) -> None:
        """Execute the work that waits, and delete the lockbox if it is empty afterwards."""
        state, datasource = self._state, self.box.datasource
        change = LocksChanged(datasource)
        with state.mutex:
            works = [*self._owed, *self.inbox]
            self._owed, self.inbox = [], []
        try:
            self._do_all(works, change)
        except BaseException as error:  # noqa: BLE001 - waiting callers must get bugs, too
            change.released |= self._refuse(works, error)
        with state.mutex:
            self.active_locks = self.box.active_locks
            is_idle = self.box.is_empty and not (self.inbox or self._owed or self._broken)
            if is_idle and not self._rows.in_doubt:
                if self.box.version_floor:  # Callers may pass any name.
                    state.version_floors[datasource] = self.box.version_floor
                if state.lanes.get(datasource) is self:
                    del state.lanes[datasource]
        self._report(change)

    def _do_all(self, works: Sequence[LockWork], change: LocksChanged) -> None:
        """Execute the work of one round, in order."""
        batch: list[Asked] = []
        for work in works:
            if not work.future.set_running_or_notify_cancel():
                continue
            if isinstance(work, Asked):
                batch.append(work)
                if len(batch) < BATCH_COMMANDS_MAX:
                    continue
            self._do(batch, change)
            batch = []
            if isinstance(work, Call):
                if self._broken is not None:
                    raise self._must_be_read_again()
                work.answer(self.box)
        self._do(batch, change)

    def _do(self, batch: Sequence[Asked], change: LocksChanged) -> None:
        """Execute commands in one transaction and answer them; collect the notifications."""
        if not batch:
            return
        if self._broken is not None:
            raise self._must_be_read_again()
        commands = [asked.command for asked in batch]
        now_ms = self._state.clock.now_ms()
        is_handled = False
        try:
            result = self.box.handle(commands, now_ms)
            is_handled = True
            self._rows.apply(result.changes)
        except BaseException as error:  # noqa: BLE001 - waiting callers must get bugs, too
            if not is_handled and (
                isinstance(error, MemoryError) or not isinstance(error, Exception)
            ):
                # It may have been raised between a change and the record of how to undo it.
                self._broke(error)
            ended = self._undo(commands)
            for asked in batch:
                asked.future.set_exception(_unstored(self.box, error))
            # Tasks that wait for locks of ended tasks may try again: the next batch releases these
            # locks, once it can be stored.
            change.released |= ended
            return
        try:
            self.box.accept()
            if result.released:
                change.released |= result.released
            if result.yielded:
                change.yielded += result.yielded
            self._publish(commands, result.answers)
            for asked, answer in zip(batch, result.answers, strict=True):
                if isinstance(answer, PenstockError):
                    asked.future.set_exception(answer)
                else:
                    asked.future.set_result(answer)
        except BaseException as error:
            self._broke(error)  # The batch is stored, so it must not be undone.
            raise

    def _undo(self, commands: Sequence[LockCommand]) -> frozenset[str]:
        """Undo a batch, except that ended tasks stay ended; return these."""
        ended = frozenset(c.task_id for c in commands if isinstance(c, RemoveTask))
        try:
            self.box.undo()
            for task_id in ended:
                self.box.retire(task_id)
        except BaseException as error:
            self._broke(error)
            raise
        with self._state.mutex:
            for task_id in ended:
                self._state.refusals.pop(task_id, None)
        return ended

    def _broke(self, error: BaseException) -> None:
        if self._broken is None:
            self._broken = error
            self._state.on_failure(error)

    def _report(self, change: LocksChanged) -> None:
        if not (change.released or change.yielded):
            return
        try:
            self._state.on_change(change)
        except BaseException as error:  # noqa: BLE001 - the owner ends the term because of it
            # Otherwise tasks that wait for these locks would wait forever.
            self._state.on_failure(error)

    def _publish(self, commands: Sequence[LockCommand], answers: Sequence[CommandAnswer]) -> None:
        """Publish the refusals of tasks for `why`."""
        with self._state.mutex:
            for command, answer in zip(commands, answers, strict=True):
                if isinstance(command, RemoveTask):
                    self._state.refusals.pop(command.task_id, None)
                elif isinstance(command, AcquireLocks) and isinstance(answer, list):
                    task_id = command.requests[0].task_id
                    # Once each: requests made together all have the same outcome.
                    refused = dict.fromkeys(a for a in answer if isinstance(a, LockRefused))
                    if refused:
                        self._state.refusals[task_id] = tuple(refused)
                    else:
                        self._state.refusals.pop(task_id, None)

    def _must_be_read_again(self) -> Unavailable:
        return Unavailable(
            f"the locks of {self.box.datasource} must be read again after an error"
            f" ({self._broken!r}): retry after the overlord has restarted"
        )


# Work of callers, on the lane


def run_covered(
    action: Callable[[CoveringLocks], T],
    task_id: str,
    segments: Sequence[SegmentLike],
    intervals: Sequence[Interval],
    box: Lockbox,
) -> T:
    """Run an action if the locks of a task cover segments and intervals.

    Raises:
        LockRevoked: A covering lock was revoked, or the task is not active.
        Conflict: No lock covers a segment or an interval.
    """
    return action(box.covering(task_id, segments, intervals))


def find_room(
    requests: Sequence[LockRequest], now_ms: int, box: Lockbox
) -> list[LockRefused | str]:
    """Check what new segments would conflict with."""
    return [box.room_for(one, now_ms) for one in requests]


def locked_intervals(policy: LockPolicy, box: Lockbox) -> list[Interval]:
    """Return the intervals that a policy cannot lock, disjoint, in order."""
    return condensed(
        lock.interval
        for lock in box.group_locks()
        if not lock.revoked
        and lock.type is not LockType.KILL
        and lock.priority >= policy.priority
        and not (policy.concurrent and lock.type is LockType.APPEND)
    )


# Errors


def closed() -> Closed:
    """Return the error of calls after the end of the term."""
    return Closed("the lockboxes are closed: the overlord no longer leads")


def _unstored(box: Lockbox, error: BaseException) -> BaseException:
    if isinstance(error, Unavailable) and not isinstance(error, Fenced):
        return Unavailable(
            f"the locks of {box.datasource} could not be stored, and none was changed: try again"
            f" ({error})"
        )
    return error
