"""The locks of one datasource: a state machine that executes batches of commands.

Executes batches and undoes them; `roster` tracks the active tasks, `granting` decides requests.
Does no I/O and has no clock: the caller stores `Step.changes` and then calls `accept`, or `undo` if
they could not be stored. Invariants: a command that fails changes nothing; only active tasks have
locks, except for tasks whose end could not be stored, until the next batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.core.errors import PenstockError
from penstock.indexing.lockbox.active_tasks import Roster
from penstock.indexing.lockbox.coverage import CoveringLocks, require_covered
from penstock.indexing.lockbox.granting import Granting
from penstock.indexing.lockbox.model import HeldLock, LockChanges, LockType, Removal
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
    """A task is no longer active. The answer is a `Removal`."""

    task_id: str


@dataclass(frozen=True, slots=True)
class Acquire:
    """A task requests locks. The answer is a list of outcomes.

    Attributes:
        requests: The requests.
        together: Whether to grant all or none.
        waits: Whether no worker has the task. Its locks then yield to others, until `Place` says
            that a worker has it or the task itself requests locks.
    """

    requests: tuple[LockRequest, ...]
    together: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """A task is placed at a worker from now on, or, with `waits`, at none."""

    task_id: str
    waits: bool


@dataclass(frozen=True, slots=True)
class Release:
    """A task releases its locks on exactly this interval."""

    task_id: str
    interval: Interval


Command: TypeAlias = Add | Remove | Acquire | Place | Release
Answer: TypeAlias = "list[Outcome] | Removal | PenstockError | None"


@dataclass(frozen=True, slots=True)
class Step:
    """Result of a batch of commands.

    Attributes:
        answers: One for each command; an error if the command was refused as a whole.
        changes: The changes to store.
        freed: Tasks that released or lost a lock, so that requests that were refused before may be
            granted now.
        yielded: Tasks that no worker has and that lost all of their locks to others: they must
            request them again.
    """

    answers: tuple[Answer, ...]
    changes: LockChanges
    freed: frozenset[str]
    yielded: tuple[str, ...] = ()


class Lockbox:
    """The locks of one datasource. One thread at a time.

    Args:
        datasource: The datasource.
        version_floor: Versions that the lockbox chooses are greater than this one.
    """

    def __init__(self, datasource: str, *, version_floor: str = "") -> None:
        self.datasource: Final = datasource
        self._roster = Roster(datasource)
        self._granting = Granting(datasource, self._roster, version_floor)
        self._holdings = self._granting.holdings
        self._way_back = self._holdings.way_back

    @property
    def version_floor(self) -> str:
        """Lower bound, exclusive, of the versions that the lockbox chooses."""
        return self._granting.version_floor

    @property
    def is_empty(self) -> bool:
        """Whether the lockbox has no state that must be kept."""
        return not (self._roster or self._holdings)

    @property
    def active_locks(self) -> int:
        """Number of locks that are held and not revoked."""
        return self._holdings.active

    def handle(self, commands: Sequence[Command], now_ms: int) -> Step:
        """Execute commands in order; the caller must then call `accept` or `undo`.

        Args:
            commands: The commands.
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
        """Keep the changes of the last `handle`."""
        self._way_back.settle()

    def undo(self) -> None:
        """Undo the last `handle`, except that added tasks stay active."""
        self._way_back.back()

    def retire(self, task_id: str) -> None:
        """Stop granting locks to a task whose removal could not be stored.

        The next `handle` releases its locks.
        """
        if self._roster.find(task_id) is not None:
            self._roster.keep_ended(self._dismiss(task_id))

    def adopt(self, task: LockTask, lock: TaskLock) -> str:
        """Take over a stored lock of an active task unchanged; return a conflict, or ""."""
        return self._granting.adopt(task, lock)

    def covering(
        self, task_id: str, segments: Sequence[SegmentLike], intervals: Sequence[Interval]
    ) -> CoveringLocks:
        """Return the locks for a critical section of a task.

        Raises:
            LockRevoked: A covering lock was revoked, or the task is not active.
            Conflict: No lock covers a segment or an interval.
        """
        self._roster.require(task_id)
        require_covered(self._holdings, task_id, segments=segments, intervals=intervals)
        return CoveringLocks(task_id, self._holdings)

    def room_for(self, request: LockRequest, now_ms: int) -> Refused | str:
        """Return the version of a new segment where none exists, or the conflicting locks.

        Args:
            request: A request for a lock on a segment without a number.
            now_ms: The time.

        Raises:
            LockRevoked: The task is not active.
        """
        self._roster.require(request.task_id)
        refused = self._granting.refusal_of_new(request)
        return refused or next_version(request.type, now_ms, self.version_floor)

    def locks(self, task_id: str | None = None) -> list[HeldLock]:
        """Return all locks with their holders, or those of one task."""
        if task_id is None:
            return list(self._holdings.every())
        return [HeldLock(task_id, posse.lock) for posse in self._holdings.of_task(task_id)]

    def posse_locks(self) -> Iterator[TaskLock]:
        """Yield each lock once, regardless of its number of holders."""
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
                    # Never undone: a task is not a row, and it is not added again.
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
