"""The locks of one datasource: a state machine that takes batches of commands.

Owns who holds what, who may ask, and the answers. It does no I/O and has no clock: the caller
stores `Step.changes` and then calls `accept`, or `undo` if they could not be stored. Invariants:
two locks that do not go together (`rules`) are never held at once by two groups, or by one at
different intervals; only active tasks are given locks; a command that fails changes nothing, and
neither does a request that is not granted; the locks of a task that no worker has are in no running
task's way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.core.errors import Conflict, InvalidRequest, LockRevoked, PenstockError
from penstock.indexing.lockbox.coverage import CoveringLocks, require_covered
from penstock.indexing.lockbox.holdings import Holdings, Posse
from penstock.indexing.lockbox.model import (
    Granted,
    HeldLock,
    LockChanges,
    LockGranularity,
    LockType,
    Refusal,
    Refused,
    Removal,
    Revoked,
    TaskLock,
)
from penstock.indexing.lockbox.rules import coexist, concerns, reusable, supersedes
from penstock.indexing.lockbox.versions import next_version, raised_floor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.core.intervals import Interval
    from penstock.indexing.lockbox.model import LockRequest, LockTask, Outcome, SegmentLike

REFUSALS_MAX: Final = 8
"""Locks that a refusal names; it counts the others."""


@dataclass(frozen=True, slots=True)
class Add:
    """A task becomes active."""

    task: LockTask


@dataclass(frozen=True, slots=True)
class Remove:
    """A task is not active any more. The answer is a `Removal`."""

    task_id: str


@dataclass(frozen=True, slots=True)
class Acquire:
    """A task asks for locks. The answer is a list of outcomes.

    Attributes:
        requests: What it asks for.
        together: For all or none.
        waits: Whether no worker has the task: what it gets yields, until `Place` says otherwise or
            the task asks for itself.
    """

    requests: tuple[LockRequest, ...]
    together: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """A task is with a worker from now on; or, `waits`, with none any more."""

    task_id: str
    waits: bool


@dataclass(frozen=True, slots=True)
class Release:
    """A task gives back what it holds of exactly this interval."""

    task_id: str
    interval: Interval


Command: TypeAlias = Add | Remove | Acquire | Place | Release
Answer: TypeAlias = "list[Outcome] | Removal | PenstockError | None"


@dataclass(frozen=True, slots=True)
class Step:
    """What came of a batch of commands.

    Attributes:
        answers: One for each command; an error where the command was refused as a whole.
        changes: What must be stored.
        frees: Whether something may be granted now that was refused before.
        yielded: Tasks that no worker has and that lost all of their locks to others: they have to
            ask again.
    """

    answers: tuple[Answer, ...]
    changes: LockChanges
    frees: bool
    yielded: tuple[str, ...] = ()


class Lockbox:
    """Who holds which locks of one datasource. One thread at a time.

    Args:
        datasource: The datasource.
        version_floor: Versions that the box chooses are greater than this one.
    """

    def __init__(self, datasource: str, *, version_floor: str = "") -> None:
        self.datasource = datasource
        self.version_floor = version_floor
        self._holdings = Holdings()
        self._tasks: dict[str, LockTask] = {}
        self._allocators: dict[str, dict[str, None]] = {}
        # Tasks whose removal could not be stored, and what it will have meant.
        self._ended: dict[str, Removal] = {}
        # Tasks that no worker has. Never taken back: that a transaction failed does not change it.
        self._waiting: set[str] = set()
        self._yielded: list[str] = []
        self._frees = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be lost with the box."""
        return not (self._tasks or self._ended or self._holdings)

    @property
    def active_locks(self) -> int:
        """How many locks are held and not revoked."""
        return self._holdings.active

    def handle(self, commands: Sequence[Command], now_ms: int) -> Step:
        """Do commands in order; `accept` or `undo` must follow.

        Args:
            commands: What is asked.
            now_ms: The time, for versions.
        """
        assert not any(self._holdings.mark()), "the last step was neither accepted nor undone"
        self._frees = False
        self._yielded.clear()
        for task_id in self._ended:
            self._leave_all(task_id)
        answers = tuple(self._answer(command, now_ms) for command in commands)
        return Step(answers, self._holdings.changes(), self._frees, tuple(self._yielded))

    def accept(self) -> None:
        """Keep what the last `handle` did."""
        self._holdings.settle()

    def undo(self) -> None:
        """Be as before the last `handle`."""
        self._holdings.back_to((0, 0))

    def retire(self, task_id: str) -> None:
        """Give a task nothing any more, though its removal could not be stored.

        What it holds goes with the next `handle`.
        """
        if task_id in self._tasks:
            self._ended[task_id] = self._deactivate(task_id)

    def adopt(self, task: LockTask, lock: TaskLock) -> str:
        """Take over a stored lock of an active task as it is; return what forbids it, or ""."""
        # Later locks must have greater versions than all that were ever given.
        self.version_floor = raised_floor(self.version_floor, lock.version)
        if (lock.group, lock.datasource, lock.priority) != (
            task.group,
            task.datasource,
            task.priority,
        ):
            return f"it is not of group {task.group!r}, {task.datasource}, {task.priority}"
        found = list(self._holdings.overlapping(lock.interval))
        same = next((posse for posse in found if posse.lock == lock), None)
        if same is not None and lock.type is LockType.REPLACE:
            return f"{', '.join(same.tasks)} holds it, and a REPLACE lock has one task"
        if same is None and not lock.revoked:
            for posse in found:
                if not _both(posse.lock, lock):
                    return f"{', '.join(posse.tasks)} holds an {posse.lock}"
        self._holdings.join(same or Posse(lock), task.id, stored=True)
        return ""

    def covering(
        self, task_id: str, segments: Sequence[SegmentLike], intervals: Sequence[Interval]
    ) -> CoveringLocks:
        """Return the locks for a critical section of a task.

        Raises:
            LockRevoked: A lock that covers it was revoked, or the task is not active.
            Conflict: No lock covers it.
        """
        self._active(task_id)
        require_covered(self._holdings, task_id, segments=segments, intervals=intervals)
        return CoveringLocks(task_id, self._holdings)

    def locks(self, task_id: str | None = None) -> list[HeldLock]:
        """Return who holds what, or what one task holds."""
        if task_id is None:
            return list(self._holdings.every())
        return [HeldLock(task_id, posse.lock) for posse in self._holdings.of_task(task_id)]

    def posse_locks(self) -> Iterator[TaskLock]:
        """Yield every lock once, however many tasks hold it."""
        return (posse.lock for posse in self._holdings.posses())

    def _answer(self, command: Command, now_ms: int) -> Answer:
        mark = self._holdings.mark()
        try:
            match command:
                case Acquire(requests, together, waits):
                    return self._acquire(requests, now_ms, together=together, waits=waits)
                case Place(task_id, waits):
                    if task_id in self._tasks:
                        self._place(task_id, waits=waits)
                case Release(task_id, interval):
                    self._release(task_id, interval)
                case Add(task):
                    self._add(task)
                case Remove(task_id):
                    return self._remove(task_id)
        except PenstockError as error:
            self._holdings.back_to(mark)
            return error
        return None

    # --- tasks

    def _add(self, task: LockTask) -> None:
        if task.datasource != self.datasource:
            raise InvalidRequest(
                f"task {task.id!r} is of datasource {task.datasource!r}, not {self.datasource!r}"
            )
        if task.id in self._ended:
            raise Conflict(f"task {task.id!r} has ended: use another id")
        known = self._tasks.get(task.id)
        if known is None:
            self._activate(task)
            self._holdings.note(partial(self._deactivate, task.id))
        elif known != task:
            raise Conflict(f"another task {task.id!r} is active: use another id")

    def _remove(self, task_id: str) -> Removal:
        task = self._tasks.get(task_id)
        if task is not None:
            removal = self._deactivate(task_id)
            self._holdings.note(partial(self._activate, task))
            self._leave_all(task_id)
            return removal
        if task_id not in self._ended:
            return Removal(task_id)
        removal = self._ended.pop(task_id)
        self._holdings.note(partial(self._ended.__setitem__, task_id, removal))
        return removal

    def _activate(self, task: LockTask) -> None:
        self._tasks[task.id] = task
        if task.allocator_id:
            self._allocators.setdefault(task.allocator_id, {})[task.id] = None

    def _place(self, task_id: str, *, waits: bool) -> None:
        if waits:
            self._waiting.add(task_id)
        else:
            self._waiting.discard(task_id)

    def _deactivate(self, task_id: str) -> Removal:
        task = self._tasks.pop(task_id)
        self._waiting.discard(task_id)
        last_of = None
        sharers = self._allocators.get(task.allocator_id)
        if sharers is not None:
            del sharers[task_id]
            if not sharers:
                del self._allocators[task.allocator_id]
                last_of = task.allocator_id
        replaces = any(
            posse.lock.type is LockType.REPLACE for posse in self._holdings.of_task(task_id)
        )
        return Removal(task_id, replaces, last_of)

    def _active(self, task_id: str) -> LockTask:
        task = self._tasks.get(task_id)
        if task is None:
            raise LockRevoked(
                f"task {task_id!r} is not active in {self.datasource}: it has ended or was never"
                " added; abandon it"
            )
        return task

    # --- locks

    def _release(self, task_id: str, interval: Interval) -> None:
        for posse in list(self._holdings.overlapping(interval)):
            if posse.lock.interval == interval and task_id in posse.tasks:
                self._leave(posse, task_id)

    def _leave_all(self, task_id: str) -> None:
        for posse in self._holdings.of_task(task_id):
            self._leave(posse, task_id)

    def _leave(self, posse: Posse, task_id: str) -> None:
        self._holdings.leave(posse, task_id)
        if not posse.tasks:
            self._frees = True
            self.version_floor = raised_floor(self.version_floor, posse.lock.version)

    def _acquire(
        self, requests: tuple[LockRequest, ...], now_ms: int, *, together: bool, waits: bool
    ) -> list[Outcome]:
        mark = self._holdings.mark()
        frees = self._frees
        outcomes: list[Outcome] = []
        for request in requests:
            self._check(request, requests[0])
            self._place(request.task_id, waits=waits)
            outcome = self._create_or_find(request, now_ms)
            if together and not isinstance(outcome, Granted):
                self._holdings.back_to(mark)
                self._frees = frees
                return [outcome] * len(requests)
            outcomes.append(outcome)
        return outcomes

    def _check(self, request: LockRequest, first: LockRequest) -> None:
        """Refuse a request that is not one of its task."""
        task = self._active(request.task_id)
        if request.task_id != first.task_id:
            raise InvalidRequest(
                f"locks of tasks {first.task_id!r} and {request.task_id!r} are asked for at once:"
                " ask for each task's by themselves"
            )
        asked = (request.group, request.datasource, request.priority)
        if asked != (task.group, self.datasource, task.priority):
            raise InvalidRequest(
                f"task {task.id!r} is of group {task.group!r}, datasource {self.datasource!r} and"
                f" priority {task.priority}, but asks as one of {asked}: ask as what it is"
            )
        if request.type is LockType.KILL and not task.embedded_killer:
            raise InvalidRequest(
                f"task {task.id!r} asks for a KILL lock, which is for the overlord's own deletion"
                " of unused segments alone: use EXCLUSIVE"
            )
        if request.granularity is LockGranularity.SEGMENT and (
            request.partition_number is None or request.version is None
        ):
            raise InvalidRequest(
                f"task {task.id!r} asks for a lock on a segment without its version and partition"
                " number: allocate the segment first"
            )

    def _create_or_find(self, request: LockRequest, now_ms: int) -> Outcome:
        found = [
            p for p in self._holdings.overlapping(request.interval) if concerns(p.lock, request)
        ]
        mine = _best([p for p in found if reusable(p.lock, request)], request.task_id)
        if mine is not None:
            outcome = self._reuse(mine, request)
            if outcome is not None:
                return outcome
        # A revoked lock stands in nobody's way.
        hindering = [
            posse
            for posse in found
            if not posse.lock.revoked
            and (
                posse is mine
                or not coexist(request.type, request.interval, posse.lock.type, posse.lock.interval)
            )
        ]
        yielding = [posse for posse in hindering if self._yields(posse, request)]
        firm = [posse for posse in hindering if posse not in yielding] if yielding else hindering
        if all(self._revocable(posse, request) for posse in firm):
            for posse in firm:
                self._revoke(posse)
        elif not all(_same_claim(posse.lock, request) for posse in firm):
            return _refused(request, firm)
        for task_id in dict.fromkeys(task_id for posse in yielding for task_id in posse.tasks):
            self._yield(task_id)
        posse = Posse(self._new_lock(request, now_ms), was_yielded=bool(yielding))
        self._holdings.join(posse, request.task_id)
        self._drop_superseded(posse, request.task_id)
        return Granted(posse.lock, fresh=True)

    def _reuse(self, posse: Posse, request: LockRequest) -> Outcome | None:
        """Go on with a lock of the request's group; None: it has to give way to the request."""
        if posse.lock.revoked:
            return Revoked(posse.lock)
        if request.task_id in posse.tasks:
            return Granted(posse.lock, fresh=False)
        if posse.lock.type is LockType.REPLACE:
            # What an append leaves for its replacer must have one addressee.
            return None if self._yields(posse, request) else _refused(request, [posse])
        if posse.lock.priority != request.priority:
            raise Conflict(
                f"task {request.task_id!r} has priority {request.priority}, but its group holds"
                f" the {posse.lock}: give all tasks of a group the same priority"
            )
        self._holdings.join(posse, request.task_id)
        self._drop_superseded(posse, request.task_id)
        return Granted(posse.lock, fresh=True)

    def _yields(self, posse: Posse, request: LockRequest) -> bool:
        """Tell whether all who hold a lock wait for a worker and have to wait for the request, too.

        A running task holds the very slot that they may wait for: it could wait for ever. Of those
        that wait, a lower priority yields to a higher one; there is nothing yet to be abandoned.
        """
        return self._waiting.issuperset(posse.tasks) and (
            request.task_id not in self._waiting or posse.lock.priority < request.priority
        )

    def _revocable(self, posse: Posse, request: LockRequest) -> bool:
        """Tell whether a request's priority takes a lock away.

        Who had to give way does not come back for it before it has a worker, or the running task
        would have got the lock in vain.
        """
        took_turns = posse.was_yielded and request.task_id in self._waiting
        return posse.lock.priority < request.priority and not took_turns

    def _yield(self, task_id: str) -> None:
        """Take all locks from a task that waits: it has to ask for all of them together again."""
        self._leave_all(task_id)
        self._yielded.append(task_id)
        self._holdings.note(partial(self._yielded.remove, task_id))

    def _new_lock(self, request: LockRequest, now_ms: int) -> TaskLock:
        version = request.version
        if version is None:
            version = next_version(request.type, now_ms, self.version_floor)
        return TaskLock(
            granularity=request.granularity,
            type=request.type,
            group=request.group,
            datasource=self.datasource,
            interval=request.interval,
            version=version,
            priority=request.priority,
            partition_number=request.partition_number,
            created_ms=now_ms,
        )

    def _revoke(self, posse: Posse) -> None:
        self._holdings.revoke(posse)
        self._frees = True
        self.version_floor = raised_floor(self.version_floor, posse.lock.version)

    def _drop_superseded(self, larger: Posse, task_id: str) -> None:
        """Give back smaller APPEND locks: of two that fit, a later request would have to choose."""
        if larger.lock.type is LockType.APPEND:
            for posse in list(self._holdings.overlapping(larger.lock.interval)):
                if task_id in posse.tasks and supersedes(larger.lock, posse.lock):
                    self._leave(posse, task_id)


def _best(posses: list[Posse], task_id: str) -> Posse | None:
    """Return the posse that a request goes on with.

    One that the task is in comes first, so that it learns of a revocation; then one that is held;
    then the largest, which the group's next requests fit into, too; then the earliest.
    """
    if len(posses) < 2:
        return posses[0] if posses else None

    def merit(posse: Posse) -> tuple[bool, bool, int, int]:
        interval = posse.lock.interval
        is_mine = task_id in posse.tasks
        return is_mine, not posse.lock.revoked, interval.length_ms, -interval.start_ms

    return max(posses, key=merit)


def _same_claim(lock: TaskLock, request: LockRequest) -> bool:
    """Tell whether a group only changes the type or granularity of what it holds."""
    return lock.group == request.group and lock.interval == request.interval


def _both(one: TaskLock, other: TaskLock) -> bool:
    """Tell whether two stored locks whose intervals overlap can be held at once."""
    if one.revoked or (one.group == other.group and one.interval == other.interval):
        return True
    if one.granularity is other.granularity is LockGranularity.SEGMENT and (
        one.interval == other.interval and one.partition_number != other.partition_number
    ):
        return True
    return coexist(one.type, one.interval, other.type, other.interval)


def _refused(request: LockRequest, posses: list[Posse]) -> Refused:
    # Those that can never be taken away come first; of them, those held longest.
    posses = sorted(posses, key=lambda p: (-p.lock.priority, p.lock.created_ms))
    return Refused(
        request,
        tuple(
            Refusal(
                task_ids=tuple(posse.tasks),
                group=posse.lock.group,
                type=posse.lock.type,
                interval=posse.lock.interval,
                priority=posse.lock.priority,
                since_ms=posse.lock.created_ms,
            )
            for posse in posses[:REFUSALS_MAX]
        ),
        more=max(0, len(posses) - REFUSALS_MAX),
    )
