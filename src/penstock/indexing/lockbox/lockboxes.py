"""The locks of all datasources: one lockbox each, on a lane of its own.

Owns the lanes' inboxes, the transactions, and who is answered when. What is granted is decided by
`lockbox`. Invariants: a box is touched by its lane alone; what waits in a lane is taken together,
in order, with one transaction; nobody is answered before it is stored; when it cannot be stored,
memory is as it was before, but for which tasks are active.

Whatever is raised, every future is answered, and the next request of the datasource is served. A
command that says which tasks are active, or where they are, is never lost: if its round could not
begin, the next round of the datasource does it first. If the undo of a batch fails, or memory ran
out while a batch was computed, memory may differ from the store: the box then refuses all requests
and `on_failure` is called, because only a new term can read the locks again.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeAlias, TypeVar, cast

from penstock.core.errors import (
    Closed,
    Conflict,
    Fenced,
    InvalidRequest,
    PenstockError,
    Unavailable,
)
from penstock.core.intervals import condensed
from penstock.indexing.lockbox.lockbox import Acquire, Add, Lockbox, Place, Release, Remove
from penstock.indexing.lockbox.model import LockType, Refused
from penstock.indexing.lockbox.restoring import restore
from penstock.indexing.lockbox.store import StoredLocks
from penstock.indexing.lockbox.versions import floor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.core.intervals import Interval
    from penstock.indexing.lockbox.coverage import CoveringLocks
    from penstock.indexing.lockbox.lockbox import Answer, Command
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

T = TypeVar("T")

BATCH_COMMANDS_MAX: Final = 1_000
"""Commands that share a transaction."""


class LockLanes(Protocol):
    """Threads for named lanes; work of a lane runs in order. `ThreadLanes` is one."""

    def submit(self, lane: str, work: Callable[[], T]) -> Future[T]:
        """Run work on the lane, after what was submitted there before."""
        ...


def lane_of(datasource: str) -> str:
    """Return the lane of a datasource: what runs there runs between its lock operations."""
    return f"datasource {datasource}"


@dataclass(slots=True)
class _Asked:
    """A command of one caller, who waits for the answer."""

    command: Command
    future: Future[object]


@dataclass(slots=True)
class _Call(Generic[T]):
    """Work of one caller that needs the box as it stands."""

    run: Callable[[Lockbox], T]
    future: Future[T]

    def answer(self, box: Lockbox) -> None:
        """Run it, and tell the caller what came of it."""
        try:
            result = self.run(box)
        except BaseException as error:  # noqa: BLE001 - whoever holds the future hears it
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


_LASTING: Final = (Add, Remove, Place)
"""Commands that are done later if their round cannot begin: nobody may repeat them."""

_Work: TypeAlias = "_Asked | _Call[object]"


@dataclass(slots=True)
class _Place:
    """What a lane owns.

    Attributes:
        box: The locks.
        rows: Their rows in the store.
        inbox: Work for the next round.
        owed: Commands of rounds that could not begin; they come before those in the inbox.
        active_locks: As the last round left them.
        broken: The error after which memory may differ from the store.
        serve: Does a round, on the lane.
        begun: Told of a round that has ended, or could not begin.
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
class _News:
    """What a round has to tell: see `Step`."""

    freed: frozenset[str] = frozenset()
    yielded: tuple[str, ...] = ()


class Lockboxes:
    """All task locks of one term of leadership. Any thread may call; futures answer on the lanes.

    Every call is refused with `Unavailable` before `sync`. The mutex guards the inboxes, and what
    lanes leave for readers (refusals, counts); it is held around a few lines.

    Args:
        store: Where locks are kept.
        lanes: Threads; not closed here.
        clock: Whose time becomes versions.
        on_released: Told of a datasource where something may be granted that was refused before,
            and whose locks were in its way, on its lane, after it is stored; also when tasks ended
            and that could not be stored yet. It must neither block nor raise.
        on_yielded: Told, before that and in the same way, of tasks that no worker has and whose
            locks somebody else has by now: they have to ask again.
        on_failure: Called with the error, on any thread, when the locks of a datasource in memory
            may differ from the stored ones, or when one of the other two raised: the term must end.
    """

    def __init__(
        self,
        store: LockStore,
        lanes: LockLanes,
        *,
        clock: Clock,
        on_released: Callable[[str, frozenset[str]], None] = lambda _datasource, _task_ids: None,
        on_yielded: Callable[[Sequence[str]], None] = lambda _task_ids: None,
        on_failure: Callable[[BaseException], None] = lambda _error: None,
    ) -> None:
        self._store = store
        self._lanes = lanes
        self._clock = clock
        self._on_released = on_released
        self._on_yielded = on_yielded
        self._on_failure = on_failure
        self._mutex = threading.Lock()
        self._places: dict[str, _Place] = {}
        self._refusals: dict[str, tuple[Refused, ...]] = {}
        # Of datasources without a box: what was used before, so that no version is given twice, and
        # none that older segments would hide.
        self._version_floors: dict[str, str] = {}
        self._synced = False
        self._closed = False

    def sync(
        self, active: Iterable[LockTask], stored: Iterable[HeldLock] | None = None
    ) -> list[str]:
        """Begin with the locks of the earlier term; blocks for reads and one transaction.

        Args:
            active: Every task that is active.
            stored: The stored locks; None has them read.

        Returns:
            The tasks that must be failed: their group lost a lock. They are not active any more;
            `remove` tells of each what else must be deleted.

        Raises:
            Unavailable: The store does not answer: try again.
            Conflict: It was done before.
        """
        if self._synced:
            raise Conflict("the lockboxes have their locks already: make new ones for a new term")
        # The clock of who led before may have been ahead of this one.
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
        """Refuse further calls with `Closed`; what waits is refused, too."""
        with self._mutex:
            self._closed = True
            waiting = [work for place in self._places.values() for work in place.inbox]
            for place in self._places.values():
                place.inbox = []
        for work in waiting:
            if work.future.set_running_or_notify_cancel():
                work.future.set_exception(_closed())

    def add(self, task: LockTask) -> Future[None]:
        """Let a task ask for locks from now on.

        Raises (in the future):
            Conflict: Another task has this id.
            Unavailable: Something else could not be stored; the task may ask all the same.
        """
        return cast("Future[None]", self._ask(task.datasource, Add(task)))

    def remove(self, task: LockTask) -> Future[Removal]:
        """Release all of a task that ended; it gets no locks any more, even if this fails.

        What could not be stored is done with the next work of the datasource; ask again for the
        answer, which is kept.

        Raises (in the future):
            Unavailable: It could not be stored.
        """
        return cast("Future[Removal]", self._ask(task.datasource, Remove(task.id)))

    def acquire(
        self, requests: Sequence[LockRequest], *, together: bool = False, waits: bool = False
    ) -> Future[list[Outcome]]:
        """Ask for locks of one task, in order; each is granted by itself.

        Args:
            requests: What the task asks for.
            together: All or nothing: if one is not granted, none is, nobody's lock is revoked,
                and each answer is that one's.
            waits: No worker has the task yet. Its locks yield to running tasks, and to those of a
                higher priority that wait, until `place` says that a worker has it.

        Raises:
            InvalidRequest: The requests are of several datasources.

        Raises (in the future):
            LockRevoked: The task is not active any more.
            InvalidRequest: The requests contradict themselves or the task.
            Unavailable: It could not be stored; nothing was changed.
        """
        datasources = {request.datasource for request in requests}
        if len(datasources) > 1:
            raise InvalidRequest(
                f"locks of {', '.join(sorted(datasources))} are asked for at once: a task has one"
                " datasource"
            )
        if not requests:
            nothing: Future[list[Outcome]] = Future()
            nothing.set_result([])
            return nothing
        command = Acquire(tuple(requests), together, waits)
        return cast("Future[list[Outcome]]", self._ask(datasources.pop(), command))

    def room_for(self, requests: Sequence[LockRequest]) -> Future[list[Refused | str]]:
        """Look what new segments would meet, before they have numbers to be locked by.

        Args:
            requests: For locks on segments of one datasource, without numbers.

        Returns:
            Of each the version that it gets where there is none yet, or who is in its way.

        Raises (in the future):
            LockRevoked: The task is not active.
        """
        now_ms = self._clock.now_ms()
        return self._call(
            requests[0].datasource, lambda box: [box.room_for(one, now_ms) for one in requests]
        )

    def place(self, task: LockTask, *, waits: bool) -> Future[None]:
        """Say that a task goes to a worker, or, `waits`, that no worker has it after all."""
        return cast("Future[None]", self._ask(task.datasource, Place(task.id, waits)))

    def release(self, task: LockTask, interval: Interval) -> Future[None]:
        """Release what a task holds of exactly this interval; nothing there is fine.

        Raises (in the future):
            Unavailable: It could not be stored; the task still holds it.
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
            action: What to do, on the lane; it may block for a transaction, but must not wait for
                a future of these lockboxes.
            segments: What it is about to publish.
            intervals: Times that it is about to change.

        Raises (in the future):
            LockRevoked: A lock that covers it was revoked, or the task is not active.
            Conflict: No lock covers it.
        """
        return self._call(
            task.datasource, lambda box: action(box.covering(task.id, segments, intervals))
        )

    def why(self, task_id: str) -> tuple[Refused, ...]:
        """Return what a task was refused at its last try, empty if it waits for nothing."""
        with self._mutex:
            return self._refusals.get(task_id, ())

    def locks(self, datasource: str) -> Future[list[HeldLock]]:
        """Return who holds what of a datasource."""
        return self._call(datasource, lambda box: box.locks())

    def locks_of(self, task: LockTask) -> Future[list[HeldLock]]:
        """Return what a task holds."""
        return self._call(task.datasource, lambda box: box.locks(task.id))

    def locked_intervals(
        self, policies: Sequence[LockPolicy]
    ) -> Future[Mapping[str, list[Interval]]]:
        """Return the times of each datasource that are locked for who asks, disjoint, in order.

        KILL locks hinder nobody; neither do those that who asks would take away, or take its own
        beside. One policy for each datasource.
        """
        return _all_of(
            {
                policy.datasource: self._call(policy.datasource, partial(_locked, policy))
                for policy in policies
            }
        )

    @property
    def active_locks(self) -> int:
        """How many locks are held and not revoked; one that several tasks share counts once."""
        with self._mutex:
            return sum(place.active_locks for place in self._places.values())

    # --- callers' threads

    def _ask(self, datasource: str, command: Command) -> Future[object]:
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
        """Have the lane do a round; if it cannot, refuse what waits for the round."""
        try:
            round_ = self._lanes.submit(lane_of(datasource), place.serve)
        except BaseException as error:
            if isinstance(error, Closed):
                self.close()
            else:
                self._not_begun(datasource, place, error)
                if isinstance(error, PenstockError):
                    return  # The futures raise it.
            raise
        else:
            round_.add_done_callback(place.begun)

    def _begun(self, datasource: str, place: _Place, round_: Future[None]) -> None:
        error = _closed() if round_.cancelled() else round_.exception()
        if error is not None:  # A round that has begun raises nothing.
            self._not_begun(datasource, place, error)

    def _placed(self, box: Lockbox) -> _Place:
        """Return the place of a box, with the calls of its rounds: they are made once."""
        place = _Place(box, StoredLocks(self._store), active_locks=box.active_locks)
        place.serve = partial(self._serve, box.datasource, place)
        place.begun = partial(self._begun, box.datasource, place)
        return place

    def _not_begun(self, datasource: str, place: _Place, error: BaseException) -> None:
        with self._mutex:
            waiting, place.inbox = place.inbox, []
        self._tell(datasource, _News(self._refuse(place, waiting, error)))

    def _refuse(
        self, place: _Place, works: Sequence[_Work], error: BaseException
    ) -> frozenset[str]:
        """Refuse what is not answered yet; return the tasks whose removal is done later."""
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
                f"the locks of {place.box.datasource} could not be asked for: try again ({error!r})"
            )
        for work in left:
            if work.future.running() or work.future.set_running_or_notify_cancel():
                work.future.set_exception(error)
        return frozenset(one.command.task_id for one in lasting if isinstance(one.command, Remove))

    # --- lanes

    def _serve(self, datasource: str, place: _Place) -> None:
        """Do what waits for a datasource, and forget the box if it is empty then."""
        with self._mutex:
            works, place.inbox = place.inbox, []
            if place.owed:
                works = [*place.owed, *works]
                place.owed = []
        news = _News()
        try:
            self._do_all(place, works, news)
        except BaseException as error:  # noqa: BLE001 - those who wait must hear of bugs, too
            news.freed |= self._refuse(place, works, error)
        with self._mutex:
            place.active_locks = place.box.active_locks
            is_idle = place.box.is_empty and not (place.inbox or place.owed or place.broken)
            if is_idle and not place.rows.in_doubt:
                if place.box.version_floor:  # Anybody may ask about any name.
                    self._version_floors[datasource] = place.box.version_floor
                if self._places.get(datasource) is place:
                    del self._places[datasource]
        if news.freed or news.yielded:
            self._tell(datasource, news)

    def _do_all(self, place: _Place, works: Sequence[_Work], news: _News) -> None:
        """Do the work of one round, in order."""
        batch: list[_Asked] = []
        for work in works:
            if not work.future.set_running_or_notify_cancel():
                continue
            if isinstance(work, _Asked):
                batch.append(work)
                if len(batch) < BATCH_COMMANDS_MAX:
                    continue
            self._do(place, batch, news)
            batch = []
            if isinstance(work, _Call):
                if place.broken is not None:
                    raise _must_be_read_again(place)
                work.answer(place.box)
        self._do(place, batch, news)

    def _do(self, place: _Place, batch: Sequence[_Asked], news: _News) -> None:
        """Do commands with one transaction and answer them; note who frees something by it."""
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
        except BaseException as error:  # noqa: BLE001 - those who wait must hear of bugs, too
            if not is_handled and (
                isinstance(error, MemoryError) or not isinstance(error, Exception)
            ):
                # It may have struck between a change and the note of how to undo it.
                self._broke(place, error)
            ended = self._undo(place, commands)
            for asked in batch:
                asked.future.set_exception(_unstored(place.box, error))
            # Who waits for what they held may ask again: that takes it from them, once it can be
            # stored.
            news.freed |= ended
            return
        place.box.accept()
        if step.freed:
            news.freed |= step.freed
        if step.yielded:
            news.yielded += step.yielded
        self._publish(commands, step.answers)
        for asked, answer in zip(batch, step.answers, strict=True):
            if isinstance(answer, PenstockError):
                asked.future.set_exception(answer)
            else:
                asked.future.set_result(answer)

    def _undo(self, place: _Place, commands: Sequence[Command]) -> frozenset[str]:
        """Undo a batch, except that tasks which ended have ended; return these."""
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

    def _tell(self, datasource: str, news: _News) -> None:
        try:
            if news.yielded:
                self._on_yielded(news.yielded)
            if news.freed:
                self._on_released(datasource, news.freed)
        except BaseException as error:  # noqa: BLE001 - the owner ends the term for it
            # Tasks that wait for these locks would wait for ever.
            self._on_failure(error)

    def _publish(self, commands: Sequence[Command], answers: Sequence[Answer]) -> None:
        """Leave what tasks were refused where `why` finds it."""
        with self._mutex:
            for command, answer in zip(commands, answers, strict=True):
                if isinstance(command, Remove):
                    self._refusals.pop(command.task_id, None)
                elif isinstance(command, Acquire) and isinstance(answer, list):
                    task_id = command.requests[0].task_id
                    # Once each: those asked for together all have the same answer.
                    refused = dict.fromkeys(a for a in answer if isinstance(a, Refused))
                    if refused:
                        self._refusals[task_id] = tuple(refused)
                    else:
                        self._refusals.pop(task_id, None)


def _closed() -> Closed:
    return Closed("the lockboxes are closed: the overlord does not lead any more")


def _must_be_read_again(place: _Place) -> Unavailable:
    return Unavailable(
        f"the locks of {place.box.datasource} must be read again after an error"
        f" ({place.broken!r}): ask the overlord again when it has started anew"
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
    """Return a future that has the results of all, or the first error."""
    whole: Future[Mapping[str, T]] = Future()
    whole.set_running_or_notify_cancel()
    left = len(parts)
    mutex = threading.Lock()  # parts answer on several lanes; held for the count alone

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
