"""The locks of one datasource: a state machine that takes batches of commands.

Owns the batch, with the way back from it; who may ask is `roster`'s, what a request gets
`granting`'s. It does no I/O and has no clock: the caller stores `Step.changes` and then calls
`accept`, or `undo` if they could not be stored. Invariants: a command that fails changes nothing;
only active tasks have locks, but for those whose end could not be stored, until the next batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.core.errors import PenstockError
from penstock.indexing.lockbox.coverage import CoveringLocks, require_covered
from penstock.indexing.lockbox.granting import Granting
from penstock.indexing.lockbox.model import HeldLock, LockChanges, LockType, Removal
from penstock.indexing.lockbox.roster import Roster
from penstock.indexing.lockbox.versions import next_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.core.intervals import Interval
    from penstock.indexing.lockbox.model import (
        LockRequest,
        LockTask,
        Outcome,
        Refused,
        SegmentLike,
        TaskLock,
    )


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
        freed: Tasks that gave back or lost a lock, so that something may be granted now that was
            refused before.
        yielded: Tasks that no worker has and that lost all of their locks to others: they have to
            ask again.
    """

    answers: tuple[Answer, ...]
    changes: LockChanges
    freed: frozenset[str]
    yielded: tuple[str, ...] = ()


class Lockbox:
    """Who holds which locks of one datasource. One thread at a time.

    Args:
        datasource: The datasource.
        version_floor: Versions that the box chooses are greater than this one.
    """

    def __init__(self, datasource: str, *, version_floor: str = "") -> None:
        self.datasource: Final = datasource
        self._roster = Roster(datasource)
        self._granting = Granting(datasource, self._roster, version_floor)
        self._holdings = self._granting.holdings
        self._way_back = self._holdings.way_back

    @property
    def version_floor(self) -> str:
        """Versions that the box chooses are greater than this one."""
        return self._granting.version_floor

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be lost with the box."""
        return not (self._roster or self._holdings)

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
        assert not self._way_back, "the last step was neither accepted nor undone"
        granting = self._granting
        granting.begin()
        for task_id in self._roster.ended:
            granting.leave_all(task_id)
        answers = tuple(self._answer(command, now_ms) for command in commands)
        freed, yielded = frozenset(granting.freed), tuple(granting.yielded)
        return Step(answers, self._way_back.changes(), freed, yielded)

    def accept(self) -> None:
        """Keep what the last `handle` did."""
        self._way_back.settle()

    def undo(self) -> None:
        """Be as before the last `handle`, but that tasks which became active are."""
        self._way_back.back()

    def retire(self, task_id: str) -> None:
        """Give a task nothing any more, though its removal could not be stored.

        What it holds goes with the next `handle`.
        """
        if self._roster.find(task_id) is not None:
            self._roster.keep_ended(self._dismiss(task_id))

    def adopt(self, task: LockTask, lock: TaskLock) -> str:
        """Take over a stored lock of an active task as it is; return what forbids it, or ""."""
        return self._granting.adopt(task, lock)

    def covering(
        self, task_id: str, segments: Sequence[SegmentLike], intervals: Sequence[Interval]
    ) -> CoveringLocks:
        """Return the locks for a critical section of a task.

        Raises:
            LockRevoked: A lock that covers it was revoked, or the task is not active.
            Conflict: No lock covers it.
        """
        self._roster.require(task_id)
        require_covered(self._holdings, task_id, segments=segments, intervals=intervals)
        return CoveringLocks(task_id, self._holdings)

    def room_for(self, request: LockRequest, now_ms: int) -> Refused | str:
        """Return the version of a new segment where there is none yet, or who is in its way.

        Args:
            request: For a lock on a segment that has no number yet.
            now_ms: The time.

        Raises:
            LockRevoked: The task is not active.
        """
        self._roster.require(request.task_id)
        refused = self._granting.refusal_of_new(request)
        return refused or next_version(request.type, now_ms, self.version_floor)

    def locks(self, task_id: str | None = None) -> list[HeldLock]:
        """Return who holds what, or what one task holds."""
        if task_id is None:
            return list(self._holdings.every())
        return [HeldLock(task_id, posse.lock) for posse in self._holdings.of_task(task_id)]

    def posse_locks(self) -> Iterator[TaskLock]:
        """Yield every lock once, however many tasks hold it."""
        return (posse.lock for posse in self._holdings.posses())

    def _answer(self, command: Command, now_ms: int) -> Answer:
        mark = self._way_back.mark()
        try:
            match command:
                case Acquire(requests, together, waits):
                    return self._granting.acquire(requests, now_ms, together=together, waits=waits)
                case Place(task_id, waits):
                    self._roster.place(task_id, waits=waits)
                case Release(task_id, interval):
                    self._granting.release(task_id, interval)
                case Add(task):
                    # Never taken back: it is no row, and nobody tells of the task again.
                    if self._roster.is_new(task):
                        self._roster.enter(task)
                case Remove(task_id):
                    return self._remove(task_id)
        except PenstockError as error:
            self._way_back.back_to(mark)
            return error
        return None

    def _remove(self, task_id: str) -> Removal:
        task = self._roster.find(task_id)
        if task is not None:
            removal = self._dismiss(task_id)
            self._way_back.note(partial(self._roster.enter, task))
            self._granting.leave_all(task_id)
            return removal
        ended = self._roster.take_ended(task_id)
        if ended is None:
            return Removal(task_id)
        self._way_back.note(partial(self._roster.keep_ended, ended))
        return ended

    def _dismiss(self, task_id: str) -> Removal:
        held = self._holdings.of_task(task_id)
        replaces = any(posse.lock.type is LockType.REPLACE for posse in held)
        return Removal(task_id, replaces, self._roster.leave(task_id))
