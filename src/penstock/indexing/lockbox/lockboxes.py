"""The locks of all datasources: one lockbox each, on a lane of its own.

Owns the inboxes of the lanes, the transactions and the answers; `lockbox` decides what is granted.
Invariants: only its lane uses a lockbox; all work that waits for a lane is done in order, with one
transaction; an answer is given only after the change is stored; if it cannot be stored, memory is
as before, except for which tasks are active.

After any error, every future is answered, and the next request of the datasource is served. A
command that reports which tasks are active, or where they are, is never lost: if its round could
not start, the next round of the datasource executes it first. If the undo of a batch fails, or
memory runs out while a batch is computed, memory may differ from the store. The lockbox then
refuses all requests and calls `on_failure`, because only a new term can read the locks again.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar, cast

from penstock.core.errors import (
    Closed,
    Conflict,
    Fenced,
    InvalidRequest,
    PenstockError,
    Unavailable,
)
from penstock.core.intervals import condensed
from penstock.indexing.lockbox.lockbox import Acquire, Add, Lockbox, PlaceCommand, Release, Remove
from penstock.indexing.lockbox.model import LockRefused, LockType
from penstock.indexing.lockbox.restoring import restore
from penstock.indexing.lockbox.store import StoredLocks
from penstock.indexing.lockbox.versions import floor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.core.intervals import Interval
    from penstock.indexing.lockbox.coverage import CoveringLocks
    from penstock.indexing.lockbox.lockbox import Answer, LockCommand
    from penstock.indexing.lockbox.model import (
        HeldLock,
        LockPolicy,
        LockRequest,
        LockTask,
        Outcome,
        Removal,
        SegmentLike,
    )
    from penstock.indexing.lockbox.store import LockStore
    from penstock.mailbox.lanes import Lanes

T = TypeVar("T")

BATCH_COMMANDS_MAX: Final = 1_000
"""Maximum number of commands that share a transaction."""


def lane_of(datasource: str) -> str:
    """Return the lane of a datasource, which runs other work between its lock operations."""
    return f"datasource {datasource}"


@dataclass(slots=True)
class _Asked:
    """A command of a caller that waits for the answer."""

    command: LockCommand
    future: Future[object]


@dataclass(slots=True)
class _Call(Generic[T]):
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


_LASTING: Final = (Add, Remove, PlaceCommand)
"""Commands that are executed later if their round cannot start: callers do not repeat them."""

_Work: TypeAlias = "_Asked | _Call[object]"


@dataclass(slots=True)
class _Place:
    """State of a lane.

    Attributes:
        box: The locks.
        rows: Their rows in the store.
        inbox: Work for the next round.
        owed: Commands of rounds that could not start; they come before those in the inbox.
        active_locks: Number of active locks after the last round.
        broken: The error after which memory may differ from the store.
        serve: Runs a round, on the lane.
        begun: Called for a round that has ended or could not start.
    """

    box: Lockbox
    rows: StoredLocks
    inbox: list[_Work] = field(default_factory=list)
    owed: list[_Asked] = field(default_factory=list)
    active_locks: int = 0
    broken: BaseException | None = None
    serve: Callable[[], None] = lambda: None
    begun: Callable[[Future[None]], None] = lambda _round: None


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


class Lockboxes:
    """All task locks of one term of leadership. Any thread may call; futures complete on lanes.

    Before `sync`, every call raises `Unavailable`. The mutex guards the inboxes, and the refusals
    and counts that lanes publish to readers. It is held for a few statements only.

    Args:
        store: The store of the locks.
        lanes: Threads; not closed here.
        clock: Time for versions.
        on_change: Called with the event on the lane of the datasource, after the change is stored.
            Must neither block nor raise.
        on_failure: Called with the error, on any thread, when the locks of a datasource in memory
            may differ from the stored ones, or when `on_change` raised: the term must end.
    """

    def __init__(
        self,
        store: LockStore,
        lanes: Lanes,
        *,
        clock: Clock,
        on_change: Callable[[LocksChanged], None] = lambda _change: None,
        on_failure: Callable[[BaseException], None] = lambda _error: None,
    ) -> None:
        self._store = store
        self._lanes = lanes
        self._clock = clock
        self._on_change = on_change
        self._on_failure = on_failure
        self._mutex = threading.Lock()
        self._places: dict[str, _Place] = {}
        self._refusals: dict[str, tuple[LockRefused, ...]] = {}
        # Versions used before by datasources without a lockbox, so that no version is given twice,
        # and none that would be hidden by older segments.
        self._version_floors: dict[str, str] = {}
        self._synced = False
        self._closed = False

    def sync(
        self, active: Iterable[LockTask], stored: Iterable[HeldLock] | None = None
    ) -> list[str]:
        """Start with the locks of the earlier term; blocks for reads and one transaction.

        Args:
            active: All active tasks.
            stored: The stored locks; None: read them.

        Returns:
            The tasks that must fail because their group lost a lock. They are no longer active;
            the answer of `remove` lists what else to delete for each.

        Raises:
            Unavailable: The store does not answer: retry.
            Conflict: It was called before.
        """
        if self._synced:
            raise Conflict("the locks were already read: create new lockboxes for a new term")
        # The clock of an earlier leader may have been ahead of this one.
        newest = self._store.newest_versions()
        floors = {datasource: floor_of(version) for datasource, version in newest.items()}
        restored = restore(active, self._store.every() if stored is None else stored, floors)
        if restored.changes:
            self._store.apply(restored.changes)
        with self._mutex:
            self._places = {
                datasource: self._placed(box) for datasource, box in restored.boxes.items()
            }
            self._version_floors = floors
            self._synced = True
        return restored.failed

    def close(self) -> None:
        """Refuse further calls and all waiting work with `Closed`."""
        with self._mutex:
            self._closed = True
            waiting = [work for place in self._places.values() for work in place.inbox]
            for place in self._places.values():
                place.inbox = []
        for work in waiting:
            if work.future.set_running_or_notify_cancel():
                work.future.set_exception(_closed())

    def add(self, task: LockTask) -> Future[None]:
        """Allow a task to request locks from now on.

        Raises (in the future):
            Conflict: Another task has this id.
            Unavailable: Another change could not be stored; the task may request locks anyway.
        """
        return cast("Future[None]", self._ask(task.datasource, Add(task)))

    def remove(self, task: LockTask) -> Future[Removal]:
        """Release all locks of an ended task, which gets none from now on, even if this fails.

        A removal that could not be stored is repeated with the next work of the datasource. Its
        answer is kept; call again to get it.

        Raises (in the future):
            Unavailable: The removal could not be stored.
        """
        return cast("Future[Removal]", self._ask(task.datasource, Remove(task.id)))

    def acquire(
        self, requests: Sequence[LockRequest], *, together: bool = False, waits: bool = False
    ) -> Future[list[Outcome]]:
        """Request locks of one task, in order; each is granted independently.

        Args:
            requests: The requests.
            together: All or nothing: if one is not granted, none is, no lock is revoked, and each
                outcome is that request's.
            waits: No worker has the task yet. Its locks yield to running tasks, and to waiting ones
                of a higher priority, until `place` reports that a worker has it.

        Raises:
            InvalidRequest: The requests are for several datasources.

        Raises (in the future):
            LockRevoked: The task is no longer active.
            InvalidRequest: The requests contradict each other or the task.
            Unavailable: The change could not be stored; nothing was changed.
        """
        datasources = {request.datasource for request in requests}
        if len(datasources) > 1:
            raise InvalidRequest(
                f"one call requests locks of {', '.join(sorted(datasources))}: a task has one"
                " datasource"
            )
        if not requests:
            nothing: Future[list[Outcome]] = Future()
            nothing.set_result([])
            return nothing
        command = Acquire(tuple(requests), together, waits)
        return cast("Future[list[Outcome]]", self._ask(datasources.pop(), command))

    def room_for(self, requests: Sequence[LockRequest]) -> Future[list[LockRefused | str]]:
        """Check what new segments would conflict with, before they have numbers to lock.

        Args:
            requests: Requests for locks on segments of one datasource, without numbers.

        Returns:
            For each request the version of the segment where none exists, or the refusal.

        Raises (in the future):
            LockRevoked: The task is not active.
        """
        now_ms = self._clock.now_ms()
        return self._call(
            requests[0].datasource, lambda box: [box.room_for(one, now_ms) for one in requests]
        )

    def place(self, task: LockTask, *, waits: bool) -> Future[None]:
        """Report that a task goes to a worker, or, with `waits`, that no worker has it."""
        return cast("Future[None]", self._ask(task.datasource, PlaceCommand(task.id, waits)))

    def release(self, task: LockTask, interval: Interval) -> Future[None]:
        """Release a task's locks on exactly this interval; does nothing if there are none.

        Raises (in the future):
            Unavailable: The release could not be stored; the task still holds the locks.
        """
        return cast("Future[None]", self._ask(task.datasource, Release(task.id, interval)))

    def critical(
        self,
        task: LockTask,
        action: Callable[[CoveringLocks], T],
        *,
        segments: Sequence[SegmentLike] = (),
        intervals: Sequence[Interval] = (),
    ) -> Future[T]:
        """Run an action while no lock of the datasource can change, if the task's locks cover it.

        Args:
            task: The task.
            action: The action, on the lane. It may block for a transaction, but must not wait for
                a future of these lockboxes.
            segments: Segments that the action publishes.
            intervals: Intervals that the action changes.

        Raises (in the future):
            LockRevoked: A covering lock was revoked, or the task is not active.
            Conflict: No lock covers a segment or an interval.
        """
        return self._call(
            task.datasource, lambda box: action(box.covering(task.id, segments, intervals))
        )

    def why(self, task_id: str) -> tuple[LockRefused, ...]:
        """Return the refusals of a task's last requests, empty if it waits for no lock."""
        with self._mutex:
            return self._refusals.get(task_id, ())

    def locks(self, datasource: str) -> Future[list[HeldLock]]:
        """Return the locks of a datasource with their holders."""
        return self._call(datasource, lambda box: box.locks())

    def locks_of(self, task: LockTask) -> Future[list[HeldLock]]:
        """Return the locks of a task."""
        return self._call(task.datasource, lambda box: box.locks(task.id))

    def locked_intervals(
        self, policies: Sequence[LockPolicy]
    ) -> Future[Mapping[str, list[Interval]]]:
        """Return the intervals of each datasource that a policy cannot lock, disjoint, in order.

        Ignores KILL locks, locks that the policy's priority would revoke, and locks that do not
        conflict with its own. One policy for each datasource.
        """
        return _all_of(
            {
                policy.datasource: self._call(policy.datasource, partial(_locked, policy))
                for policy in policies
            }
        )

    @property
    def active_locks(self) -> int:
        """Number of locks that are held and not revoked; one that tasks share counts once."""
        with self._mutex:
            return sum(place.active_locks for place in self._places.values())

    # --- callers' threads

    def _ask(self, datasource: str, command: LockCommand) -> Future[object]:
        future: Future[object] = Future()
        self._enqueue(datasource, _Asked(command, future))
        return future

    def _call(self, datasource: str, run: Callable[[Lockbox], T]) -> Future[T]:
        future: Future[T] = Future()
        self._enqueue(datasource, cast("_Call[object]", _Call(run, future)))
        return future

    def _enqueue(self, datasource: str, work: _Work) -> None:
        with self._mutex:
            if self._closed:
                raise _closed()
            if not self._synced:
                raise Unavailable(
                    "the locks of the earlier term are not read yet: try again in a moment"
                )
            place = self._places.get(datasource)
            if place is None:
                box = Lockbox(datasource, version_floor=self._version_floors.get(datasource, ""))
                self._places[datasource] = place = self._placed(box)
            place.inbox.append(work)
            is_first = len(place.inbox) == 1
        if is_first:
            self._begin(datasource, place)

    def _begin(self, datasource: str, place: _Place) -> None:
        """Submit a round to the lane; if that fails, refuse the work that waits for it."""
        try:
            round_ = self._lanes.submit(lane_of(datasource), place.serve)
        except BaseException as error:
            if isinstance(error, Closed):
                self.close()
            else:
                self._not_begun(datasource, place, error)
                if isinstance(error, PenstockError):
                    return  # The futures raise the error.
            raise
        else:
            round_.add_done_callback(place.begun)

    def _begun(self, datasource: str, place: _Place, round_: Future[None]) -> None:
        error = _closed() if round_.cancelled() else round_.exception()
        if error is not None:  # A round that has started raises nothing.
            self._not_begun(datasource, place, error)

    def _placed(self, box: Lockbox) -> _Place:
        """Return the state of a lane, with the callbacks of its rounds, which are created once."""
        place = _Place(box, StoredLocks(self._store), active_locks=box.active_locks)
        place.serve = partial(self._serve, box.datasource, place)
        place.begun = partial(self._begun, box.datasource, place)
        return place

    def _not_begun(self, datasource: str, place: _Place, error: BaseException) -> None:
        with self._mutex:
            waiting, place.inbox = place.inbox, []
        self._report(LocksChanged(datasource, self._refuse(place, waiting, error)))

    def _refuse(
        self, place: _Place, works: Sequence[_Work], error: BaseException
    ) -> frozenset[str]:
        """Refuse unanswered work; return the tasks whose removal is executed later."""
        left = [work for work in works if not work.future.done()]
        lasting = [
            _Asked(work.command, Future())
            for work in left
            if isinstance(work, _Asked) and isinstance(work.command, _LASTING)
        ]
        with self._mutex:
            place.owed += lasting
        if not isinstance(error, PenstockError):
            error = Unavailable(
                f"the locks of {place.box.datasource} could not be requested: try again ({error!r})"
            )
        for work in left:
            if work.future.running() or work.future.set_running_or_notify_cancel():
                work.future.set_exception(error)
        return frozenset(one.command.task_id for one in lasting if isinstance(one.command, Remove))

    # --- lanes

    def _serve(self, datasource: str, place: _Place) -> None:
        """Run a round of a datasource, and delete the lockbox if it is empty afterwards."""
        with self._mutex:
            works, place.inbox = place.inbox, []
            if place.owed:
                works = [*place.owed, *works]
                place.owed = []
        change = LocksChanged(datasource)
        try:
            self._do_all(place, works, change)
        except BaseException as error:  # noqa: BLE001 - waiting callers must get bugs, too
            change.released |= self._refuse(place, works, error)
        with self._mutex:
            place.active_locks = place.box.active_locks
            is_idle = place.box.is_empty and not (place.inbox or place.owed or place.broken)
            if is_idle and not place.rows.in_doubt:
                if place.box.version_floor:  # Callers may pass any name.
                    self._version_floors[datasource] = place.box.version_floor
                if self._places.get(datasource) is place:
                    del self._places[datasource]
        self._report(change)

    def _do_all(self, place: _Place, works: Sequence[_Work], change: LocksChanged) -> None:
        """Execute the work of one round, in order."""
        batch: list[_Asked] = []
        for work in works:
            if not work.future.set_running_or_notify_cancel():
                continue
            if isinstance(work, _Asked):
                batch.append(work)
                if len(batch) < BATCH_COMMANDS_MAX:
                    continue
            self._do(place, batch, change)
            batch = []
            if isinstance(work, _Call):
                if place.broken is not None:
                    raise _must_be_read_again(place)
                work.answer(place.box)
        self._do(place, batch, change)

    def _do(self, place: _Place, batch: Sequence[_Asked], change: LocksChanged) -> None:
        """Execute commands in one transaction and answer them; collect the notifications."""
        if not batch:
            return
        if place.broken is not None:
            raise _must_be_read_again(place)
        commands = [asked.command for asked in batch]
        now_ms = self._clock.now_ms()
        is_handled = False
        try:
            step = place.box.handle(commands, now_ms)
            is_handled = True
            place.rows.apply(step.changes)
        except BaseException as error:  # noqa: BLE001 - waiting callers must get bugs, too
            if not is_handled and (
                isinstance(error, MemoryError) or not isinstance(error, Exception)
            ):
                # It may have been raised between a change and the record of how to undo it.
                self._broke(place, error)
            ended = self._undo(place, commands)
            for asked in batch:
                asked.future.set_exception(_unstored(place.box, error))
            # Tasks that wait for locks of ended tasks may try again: the next batch releases these
            # locks, once it can be stored.
            change.released |= ended
            return
        place.box.accept()
        if step.freed:
            change.released |= step.freed
        if step.yielded:
            change.yielded += step.yielded
        self._publish(commands, step.answers)
        for asked, answer in zip(batch, step.answers, strict=True):
            if isinstance(answer, PenstockError):
                asked.future.set_exception(answer)
            else:
                asked.future.set_result(answer)

    def _undo(self, place: _Place, commands: Sequence[LockCommand]) -> frozenset[str]:
        """Undo a batch, except that ended tasks stay ended; return these."""
        ended = frozenset(c.task_id for c in commands if isinstance(c, Remove))
        try:
            place.box.undo()
            for task_id in ended:
                place.box.retire(task_id)
        except BaseException as error:
            self._broke(place, error)
            raise
        with self._mutex:
            for task_id in ended:
                self._refusals.pop(task_id, None)
        return ended

    def _broke(self, place: _Place, error: BaseException) -> None:
        if place.broken is None:
            place.broken = error
            self._on_failure(error)

    def _report(self, change: LocksChanged) -> None:
        if not (change.released or change.yielded):
            return
        try:
            self._on_change(change)
        except BaseException as error:  # noqa: BLE001 - the owner ends the term because of it
            # Otherwise tasks that wait for these locks would wait forever.
            self._on_failure(error)

    def _publish(self, commands: Sequence[LockCommand], answers: Sequence[Answer]) -> None:
        """Publish the refusals of tasks for `why`."""
        with self._mutex:
            for command, answer in zip(commands, answers, strict=True):
                if isinstance(command, Remove):
                    self._refusals.pop(command.task_id, None)
                elif isinstance(command, Acquire) and isinstance(answer, list):
                    task_id = command.requests[0].task_id
                    # Once each: requests made together all have the same outcome.
                    refused = dict.fromkeys(a for a in answer if isinstance(a, LockRefused))
                    if refused:
                        self._refusals[task_id] = tuple(refused)
                    else:
                        self._refusals.pop(task_id, None)


def _closed() -> Closed:
    return Closed("the lockboxes are closed: the overlord no longer leads")


def _must_be_read_again(place: _Place) -> Unavailable:
    return Unavailable(
        f"the locks of {place.box.datasource} must be read again after an error"
        f" ({place.broken!r}): retry after the overlord has restarted"
    )


def _unstored(box: Lockbox, error: BaseException) -> BaseException:
    if isinstance(error, Unavailable) and not isinstance(error, Fenced):
        return Unavailable(
            f"the locks of {box.datasource} could not be stored, and none was changed: try again"
            f" ({error})"
        )
    return error


def _locked(policy: LockPolicy, box: Lockbox) -> list[Interval]:
    return condensed(
        lock.interval
        for lock in box.posse_locks()
        if not lock.revoked
        and lock.type is not LockType.KILL
        and lock.priority >= policy.priority
        and not (policy.concurrent and lock.type is LockType.APPEND)
    )


def _all_of(parts: Mapping[str, Future[T]]) -> Future[Mapping[str, T]]:
    """Return a future with the results of all parts, or the first error."""
    whole: Future[Mapping[str, T]] = Future()
    whole.set_running_or_notify_cancel()
    left = len(parts)
    mutex = threading.Lock()  # Parts complete on several lanes; held for the count only.

    def done(_part: Future[T]) -> None:
        nonlocal left
        with mutex:
            left -= 1
            if left:
                return
        failed = [error for part in parts.values() if (error := part.exception())]
        if failed:
            whole.set_exception(failed[0])
        else:
            whole.set_result({name: part.result() for name, part in parts.items()})

    if not parts:
        whole.set_result({})
    for part in parts.values():
        part.add_done_callback(done)
    return whole
