"""The lanes of the datasources' locks: rounds of waiting work, transactions and answers.

`LockLanes` owns the lanes of a term and the work that waits for each. A `LockLane` executes the
rounds of one datasource; `lockbox` decides what is granted. `LastRefusals` has what callers may
read without waiting for a round. Invariants: only its lane uses a lockbox; all work that waits for
a lane is done in order, with one transaction; an answer is given only after the change is stored;
if it cannot be stored, memory is as before, except for which tasks are active.

After any error, every future is answered, and the next request of the datasource is served. A
command that reports which tasks are active, or where they are, is never lost: if its round could
not start, the next round of the datasource executes it first. If the undo of a batch fails, or
memory runs out while a batch is computed, memory may differ from the store. The lane then refuses
all requests and reports the failure, because only a new term can read the locks again.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar, cast

from penstock.core.errors import Closed, Fenced, PenstockError, Unavailable
from penstock.core.intervals import condensed
from penstock.indexing.lockbox.lock_store import StoredLocks
from penstock.indexing.lockbox.lockbox import (
    AcquireLocks,
    AddTask,
    Lockbox,
    PlaceTask,
    RemoveTask,
)
from penstock.indexing.lockbox.task_locks import LockRefused, LockType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.core.intervals import Interval
    from penstock.indexing.lockbox.coverage import SectionLocks
    from penstock.indexing.lockbox.lock_store import LockStore
    from penstock.indexing.lockbox.lockbox import CommandAnswer, LockBatchResult, LockCommand
    from penstock.indexing.lockbox.task_locks import LockPolicy, LockRequest, SegmentLike
    from penstock.mailbox.event_mail import EventReceiver
    from penstock.mailbox.lanes import Lanes

T = TypeVar("T")

BATCH_COMMANDS_MAX: Final = 1_000
"""Maximum number of commands that share a transaction."""


def lane_of(datasource: str) -> str:
    """Return the lane of a datasource, which runs other work between its lock operations."""
    return f"datasource {datasource}"


@dataclass(slots=True)
class LocksChanged:
    """Event: other tasks than the requesting one lost locks, or may now get some.

    Attributes:
        datasource: The datasource of the locks.
        released: Tasks whose locks refused requests that may be granted now, including tasks that
            ended and whose removal could not be stored.
        yielded: Tasks that no worker has and that lost their locks to others: they must request
            them again, before refused requests are repeated.
    """

    datasource: str
    released: frozenset[str] = frozenset()
    yielded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LanePorts:
    """The store, threads, clock and receiver of the events of the lanes of a term.

    Attributes:
        store: The store of the locks.
        threads: Threads of the lanes; not closed here.
        clock: Time for versions.
        changes: Receives the changes after they are stored. Fails when the locks of a datasource in
            memory may differ from the stored ones, or when a change could not be put: the term
            must end, and the next one reads the locks again.
    """

    store: LockStore
    threads: Lanes
    clock: Clock
    changes: EventReceiver[LocksChanged]


class LockLanes:
    """The lanes of a term and the work that waits for them. Any thread may call.

    A datasource has a lane while its lockbox has state, or work waits for it. Before `open`, calls
    raise `Unavailable`.

    Args:
        ports: The ports of the lanes.

    Attributes:
        refusals: The last refusals of all datasources.
    """

    def __init__(self, ports: LanePorts) -> None:
        self.refusals: Final = LastRefusals()
        self._ports = ports
        # Guards everything below, because any thread may add work while a lane takes it. It is held
        # for a few statements only.
        self._mutex = threading.Lock()
        self._entries: dict[str, _LaneEntry] = {}
        # Lower bounds of the versions of datasources without a lockbox, so that no version is used
        # twice, and no version is lower than that of existing segments.
        self._version_floors: dict[str, str] = {}
        self._is_open = False
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """Whether `open` was called."""
        return self._is_open

    @property
    def active_locks(self) -> int:
        """Number of active locks of all datasources, each after its last round."""
        with self._mutex:
            return sum(entry.active_locks for entry in self._entries.values())

    def open(self, boxes: Mapping[str, Lockbox], version_floors: Mapping[str, str]) -> None:
        """Accept work from now on.

        Args:
            boxes: The restored lockboxes by datasource.
            version_floors: Exclusive lower bounds of the versions of new locks, by datasource.
        """
        with self._mutex:
            self._entries = {datasource: self._entry(box) for datasource, box in boxes.items()}
            self._version_floors = dict(version_floors)
            self._is_open = True

    def close(self) -> None:
        """Refuse further calls and all waiting work with `Closed`."""
        with self._mutex:
            self._is_closed = True
            waiting = [work for entry in self._entries.values() for work in entry.waiting]
            for entry in self._entries.values():
                entry.waiting = []
        for work in waiting:
            if work.future.set_running_or_notify_cancel():
                work.future.set_exception(_closed())

    # --- work of callers

    def execute(self, datasource: str, command: LockCommand) -> Future[object]:
        """Execute a command in the next round of a datasource; the future gets the answer."""
        future: Future[object] = Future()
        self._enqueue(datasource, _WaitingCommand(command, future))
        return future

    def call(self, datasource: str, run: Callable[[Lockbox], T]) -> Future[T]:
        """Call a function with the lockbox of a datasource in its next round."""
        future: Future[T] = Future()
        self._enqueue(datasource, cast("_WaitingCall[object]", _WaitingCall(run, future)))
        return future

    def _enqueue(self, datasource: str, work: _LockWork) -> None:
        with self._mutex:
            if self._is_closed:
                raise _closed()
            if not self._is_open:
                raise Unavailable(
                    "the locks of the earlier term are not read yet: try again in a moment"
                )
            entry = self._entries.get(datasource)
            if entry is None:
                floor = self._version_floors.get(datasource, "")
                entry = self._entry(Lockbox(datasource, version_floor=floor))
                self._entries[datasource] = entry
            entry.waiting.append(work)
            is_first = len(entry.waiting) == 1
        if is_first:
            try:
                entry.lane.begin()
            except BaseException as error:
                # Otherwise all later work would wait for the round that did not begin.
                entry.lane.refuse_waiting(error)
                raise

    def _entry(self, box: Lockbox) -> _LaneEntry:
        return _LaneEntry(LockLane(box, self._ports, self), box.active_locks)

    # --- rounds of a lane

    def take(self, lane: LockLane) -> list[_LockWork]:
        """Take the work for a round: first the postponed commands, then the work that waits."""
        with self._mutex:
            entry = self._find(lane)
            if entry is None:
                return []
            works = [*entry.postponed, *entry.waiting]
            entry.postponed, entry.waiting = [], []
            return works

    def postpone_waiting(
        self, lane: LockLane
    ) -> tuple[Sequence[_LockWork], Sequence[_WaitingCommand]]:
        """Take the work that waits for a round that cannot begin; return it to be refused.

        The second result has the commands that callers do not repeat, because the next round
        executes them. They are postponed in the same step, because otherwise a round could end in
        between and find no work.
        """
        with self._mutex:
            entry = self._find(lane)
            if entry is None:
                return [], []
            waiting, later = entry.waiting, _never_lost(entry.waiting)
            postponed: list[_WaitingCommand] = [*entry.postponed, *later]
            nothing: list[_LockWork] = []
            entry.postponed, entry.waiting = postponed, nothing
            return waiting, later

    def postpone(self, lane: LockLane, commands: Sequence[_WaitingCommand]) -> None:
        """Keep commands of a round that could not start: the next round executes them first."""
        with self._mutex:
            entry = self._find(lane)
            if entry is not None:
                entry.postponed += commands

    def finish(self, lane: LockLane, *, must_stay: bool) -> None:
        """End a round; delete the lane if its lockbox is empty and no work waits for it.

        Args:
            lane: The lane, on its thread.
            must_stay: Whether the lane has state of its own, so that it is not deleted.
        """
        box = lane.box
        with self._mutex:
            entry = self._find(lane)
            if entry is None:
                return
            entry.active_locks = box.active_locks
            if box.is_empty and not (entry.waiting or entry.postponed or must_stay):
                if box.version_floor:  # Callers may pass any name.
                    self._version_floors[box.datasource] = box.version_floor
                del self._entries[box.datasource]

    def _find(self, lane: LockLane) -> _LaneEntry | None:
        """Return the entry of a lane; None if the lane was deleted, but had one more round."""
        entry = self._entries.get(lane.box.datasource)
        return entry if entry is not None and entry.lane is lane else None


@dataclass(slots=True)
class _WaitingCommand:
    """A command of a caller that waits for the answer."""

    command: LockCommand
    future: Future[object]


@dataclass(slots=True)
class _WaitingCall(Generic[T]):
    """A function of a caller that reads the current state of the lockbox."""

    run: Callable[[Lockbox], T]
    future: Future[T]

    def answer(self, box: Lockbox) -> None:
        """Run the function and complete its future."""
        try:
            result = self.run(box)
        except BaseException as error:  # noqa: BLE001 - the future reports it
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


_LockWork: TypeAlias = "_WaitingCommand | _WaitingCall[object]"


@dataclass(slots=True, eq=False)
class _LaneEntry:
    """A lane and its work. Only `LockLanes` reads or changes it, under the mutex.

    Attributes:
        lane: The lane.
        active_locks: Number of active locks after the last round.
        waiting: Work for the next round.
        postponed: Commands of rounds that could not start.
    """

    lane: LockLane
    active_locks: int
    waiting: list[_LockWork] = field(default_factory=list)
    postponed: list[_WaitingCommand] = field(default_factory=list)


class LastRefusals:
    """The refusals of the last requests of each task that waits for locks. Any thread."""

    def __init__(self) -> None:
        # Any thread reads the refusals that the lanes publish. Held for a few statements only.
        self._mutex = threading.Lock()
        self._by_task: dict[str, tuple[LockRefused, ...]] = {}

    def of(self, task_id: str) -> tuple[LockRefused, ...]:
        """Return the refusals of a task's last requests, empty if it waits for no lock."""
        with self._mutex:
            return self._by_task.get(task_id, ())

    def all(self) -> dict[str, tuple[LockRefused, ...]]:
        """Return a copy of the refusals of all tasks that wait for locks, by task."""
        with self._mutex:
            return self._by_task.copy()

    def publish(self, commands: Sequence[LockCommand], answers: Sequence[CommandAnswer]) -> None:
        """Replace the refusals of the tasks of a batch."""
        with self._mutex:
            for command, answer in zip(commands, answers, strict=True):
                if isinstance(command, RemoveTask):
                    self._by_task.pop(command.task_id, None)
                elif isinstance(command, AcquireLocks) and isinstance(answer, list):
                    task_id = command.requests[0].task_id
                    # Requests made together all have the same outcome, so each is published once.
                    refused = dict.fromkeys(a for a in answer if isinstance(a, LockRefused))
                    if refused:
                        self._by_task[task_id] = tuple(refused)
                    else:
                        self._by_task.pop(task_id, None)

    def delete(self, task_ids: Iterable[str]) -> None:
        """Delete the refusals of tasks that ended."""
        with self._mutex:
            for task_id in task_ids:
                self._by_task.pop(task_id, None)


_NEVER_LOST: Final = (AddTask, RemoveTask, PlaceTask)
"""Commands that are executed later if their round cannot start: callers do not repeat them."""


def _never_lost(works: Iterable[_LockWork]) -> list[_WaitingCommand]:
    """Return the commands to execute later if this work is refused; no caller waits for them."""
    return [
        _WaitingCommand(work.command, Future())
        for work in works
        if isinstance(work, _WaitingCommand)
        and isinstance(work.command, _NEVER_LOST)
        and not work.future.done()
    ]


def _removed(commands: Iterable[_WaitingCommand]) -> frozenset[str]:
    """Return the tasks that commands remove."""
    found = (one.command for one in commands)
    return frozenset(command.task_id for command in found if isinstance(command, RemoveTask))


class LockLane:
    """The locks of one datasource, and the rounds that execute its work.

    Args:
        box: The locks. Only the lane uses them.
        ports: The ports of the lanes.
        lanes: Has the work that waits for the lane.

    Attributes:
        box: The locks.
    """

    def __init__(self, box: Lockbox, ports: LanePorts, lanes: LockLanes) -> None:
        self.box: Final = box
        self._ports = ports
        self._lanes = lanes
        self._rows = StoredLocks(ports.store)
        self._broken: BaseException | None = None  # Memory may differ from the store since then.

    # --- callers' threads

    def begin(self) -> None:
        """Submit a round; if that fails, refuse the work that waits for it."""
        try:
            round_ = self._ports.threads.submit(lane_of(self.box.datasource), self._serve)
        except BaseException as error:
            if isinstance(error, Closed):
                self._lanes.close()
            else:
                self.refuse_waiting(error)
                if isinstance(error, PenstockError):
                    return  # The futures raise the error.
            raise
        else:
            round_.add_done_callback(self._begun)

    def _begun(self, round_: Future[None]) -> None:
        error = _closed() if round_.cancelled() else round_.exception()
        if error is not None:  # It could not start, or `_serve` has ended the term.
            self.refuse_waiting(error)

    def refuse_waiting(self, error: BaseException) -> None:
        """Refuse the work that waits for a round, because it cannot begin."""
        waiting, later = self._lanes.postpone_waiting(self)
        self._refuse(waiting, error)
        self._notify(LocksChanged(self.box.datasource, _removed(later)))

    def _refuse(self, works: Sequence[_LockWork], error: BaseException) -> None:
        """Fail the futures that have no answer."""
        if not isinstance(error, PenstockError):
            error = Unavailable(
                f"the locks of {self.box.datasource} could not be requested: try again ({error!r})"
            )
        for work in works:
            future = work.future
            if not future.done() and (future.running() or future.set_running_or_notify_cancel()):
                future.set_exception(error)

    # --- the lane

    def _serve(self) -> None:
        """Run a round of the datasource; an error that it did not expect ends the term."""
        try:
            self._run_round()
        except BaseException as error:
            self._fail(error)
            raise

    def _run_round(self) -> None:
        """Execute the work that waits, then report the change to the owner of the term."""
        change = LocksChanged(self.box.datasource)
        works = self._lanes.take(self)
        try:
            self._do_all(works, change)
        except BaseException as error:  # noqa: BLE001 - waiting callers must get bugs, too
            later = _never_lost(works)
            self._lanes.postpone(self, later)
            self._refuse(works, error)
            change.released |= _removed(later)
        self._lanes.finish(self, must_stay=self._broken is not None or self._rows.in_doubt)
        self._notify(change)

    def _do_all(self, works: Sequence[_LockWork], change: LocksChanged) -> None:
        """Execute the work of one round, in order."""
        batch: list[_WaitingCommand] = []
        for work in works:
            if not work.future.set_running_or_notify_cancel():
                continue
            if isinstance(work, _WaitingCommand):
                batch.append(work)
                if len(batch) < BATCH_COMMANDS_MAX:
                    continue
            self._do(batch, change)
            batch = []
            if isinstance(work, _WaitingCall):
                self._require_intact()
                work.answer(self.box)
        self._do(batch, change)

    def _do(self, batch: Sequence[_WaitingCommand], change: LocksChanged) -> None:
        """Execute commands in one transaction and answer them; add the changes for other tasks."""
        if not batch:
            return
        self._require_intact()
        commands = [work.command for work in batch]
        now_ms = self._ports.clock.now_ms()
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
                self._fail(error)
            ended = self._undo(commands)
            for work in batch:
                work.future.set_exception(_unstored(self.box, error))
            # Tasks that wait for locks of ended tasks may try again: the next batch releases these
            # locks, once it can be stored.
            change.released |= ended
            return
        try:
            self.box.accept()
            change.released |= result.released
            change.yielded += result.yielded
            self._lanes.refusals.publish(commands, result.answers)
            _answer(batch, result)
        except BaseException as error:
            self._fail(error)  # The batch is stored, so it must not be undone.
            raise

    def _undo(self, commands: Sequence[LockCommand]) -> frozenset[str]:
        """Undo a batch, except that ended tasks stay ended; return these."""
        ended = frozenset(c.task_id for c in commands if isinstance(c, RemoveTask))
        try:
            self.box.undo()
            for task_id in ended:
                self.box.retire(task_id)
        except BaseException as error:
            self._fail(error)
            raise
        self._lanes.refusals.delete(ended)
        return ended

    def _notify(self, change: LocksChanged) -> None:
        if not (change.released or change.yielded):
            return
        try:
            self._ports.changes.put(change)
        except BaseException as error:  # noqa: BLE001 - the owner ends the term because of it
            # Otherwise tasks that wait for these locks would wait forever.
            self._ports.changes.fail(error)

    def _fail(self, error: BaseException) -> None:
        """Refuse all work from now on, because memory may differ from the store."""
        if self._broken is None:
            self._broken = error
            self._ports.changes.fail(error)

    def _require_intact(self) -> None:
        if self._broken is not None:
            raise Unavailable(
                f"the locks of {self.box.datasource} must be read again after an error"
                f" ({self._broken!r}): retry after the overlord has restarted"
            )


def _answer(batch: Sequence[_WaitingCommand], result: LockBatchResult) -> None:
    for work, answer in zip(batch, result.answers, strict=True):
        if isinstance(answer, PenstockError):
            work.future.set_exception(answer)
        else:
            work.future.set_result(answer)


# Functions of callers, on the lane


def run_covered(
    action: Callable[[SectionLocks], T],
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
    return action(box.section_locks(task_id, segments, intervals))


def find_room(
    requests: Sequence[LockRequest], now_ms: int, box: Lockbox
) -> list[LockRefused | str]:
    """Check which locks new segments would conflict with."""
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


def _closed() -> Closed:
    return Closed("the lockboxes are closed: the overlord no longer leads")


def _unstored(box: Lockbox, error: BaseException) -> BaseException:
    if isinstance(error, Unavailable) and not isinstance(error, Fenced):
        return Unavailable(
            f"the locks of {box.datasource} could not be stored, and none was changed: try again"
            f" ({error})"
        )
    return error
