"""Lock table of one datasource, with an undo log.

`LockTable` stores the locks by time and by task and decides nothing. A `LockGroup` is one lock with
the tasks of its group that hold it. `SegmentLockIndex` finds locks on single segments by time
chunk and partition number, because thousands of segments of one chunk may be locked and a
request concerns only one of them. `UndoLog` records the changes since the last `commit`; it can
undo them to any `UndoMark` and lists the rows that must be stored for them.

Invariants: a lock without holders is deleted. Every change of the table is recorded in the undo
log. Used by one thread at a time; no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from penstock.core.interval_index import IntervalIndex
from penstock.indexing.lockbox.lock_rules import SHARED_BY_GROUPS
from penstock.indexing.lockbox.task_locks import HeldLock, LockChanges, LockGranularity, LockType

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from penstock.core.intervals import Interval
    from penstock.indexing.lockbox.task_locks import LockRequest, TaskLock


class Locked(Protocol):
    """An object with a lock."""

    lock: TaskLock


P = TypeVar("P", bound=Locked)


@dataclass(slots=True, eq=False)
class _LockedChunk(Generic[P]):
    """The locked segments of one time chunk, by partition number."""

    interval: Interval
    numbers: dict[int | None, dict[P, None]] = field(default_factory=dict)


class SegmentLockIndex(Generic[P]):
    """Hashable holders of locks on segments, indexed by the interval of the lock."""

    def __init__(self) -> None:
        self._at: dict[Interval, _LockedChunk[P]] = {}
        self._by_time: IntervalIndex[_LockedChunk[P]] = IntervalIndex()

    def add(self, interval: Interval, item: P) -> None:
        """Add a holder at its interval."""
        chunk = self._at.get(interval)
        if chunk is None:
            chunk = self._at[interval] = _LockedChunk(interval)
            self._by_time.add(interval, chunk)
        chunk.numbers.setdefault(item.lock.partition_number, {})[item] = None

    def remove(self, interval: Interval, item: P) -> None:
        """Remove an existing holder."""
        chunk, number = self._at[interval], item.lock.partition_number
        del chunk.numbers[number][item]
        if not chunk.numbers[number]:
            del chunk.numbers[number]
        if not chunk.numbers:
            del self._at[interval]
            self._by_time.remove(interval, chunk)

    def overlapping(self, interval: Interval) -> Iterator[P]:
        """Yield the holders whose time chunk overlaps an interval."""
        for chunk in self._by_time.overlapping(interval):
            for holders in chunk.numbers.values():
                yield from holders

    def of_segment(self, interval: Interval, number: int | None) -> Iterator[P]:
        """Yield the holders that matter to a segment: in its own time chunk, those of its number.

        Args:
            interval: Its time chunk.
            number: Its partition number; None if it has no number yet, so that no holder matters.
        """
        if number is None:
            return
        for chunk in self._by_time.overlapping(interval):
            if chunk.interval == interval:
                yield from chunk.numbers.get(number, ())
            else:
                for holders in chunk.numbers.values():
                    yield from holders


class UndoMark(NamedTuple):
    """A position to roll back to, until `commit`."""

    undo: int
    rows: int


class UndoLog:
    """The recorded changes, in order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        # A task, the lock group that it holds, and the row before and after the change.
        self._rows: list[tuple[str, Hashable, TaskLock | None, TaskLock | None]] = []

    def __bool__(self) -> bool:
        return bool(self._undo)

    def note(self, undo: Callable[[], object]) -> None:
        """Record how to undo a change."""
        self._undo.append(undo)

    def note_row(
        self, task_id: str, holds: Hashable, before: TaskLock | None, after: TaskLock | None
    ) -> None:
        """Record the change of a row of a task and its holding; None: the row does not exist."""
        self._rows.append((task_id, holds, before, after))

    def mark(self) -> UndoMark:
        """Return the current position."""
        return UndoMark(len(self._undo), len(self._rows))

    def rollback_to(self, mark: UndoMark) -> None:
        """Undo the changes after a mark."""
        while len(self._undo) > mark.undo:
            self._undo.pop()()
        del self._rows[mark.rows :]

    def rollback(self) -> None:
        """Undo all changes."""
        self.rollback_to(UndoMark(0, 0))

    def changes(self) -> LockChanges:
        """Return the net change of each row since `commit`."""
        if not self._rows:
            return LockChanges()
        net: dict[tuple[str, Hashable], tuple[TaskLock | None, TaskLock | None]] = {}
        for task_id, holds, before, after in self._rows:
            first = net.get((task_id, holds))
            net[task_id, holds] = (before if first is None else first[0], after)
        added, replaced, removed = [], [], []
        for (task_id, _), (before, after) in net.items():
            if after is None:
                if before is not None:
                    removed.append(HeldLock(task_id, before))
            elif before is None:
                added.append(HeldLock(task_id, after))
            elif before != after:
                replaced.append(HeldLock(task_id, after))
        return LockChanges(tuple(added), tuple(replaced), tuple(removed))

    def commit(self) -> None:
        """Keep the changes: they can no longer be undone."""
        self._undo.clear()
        self._rows.clear()


_FEW: Final = 32
"""Up to this number, scanning the locks of a task is faster than querying an interval."""


class LockGroup:
    """One lock and the tasks of its group that hold it.

    Attributes:
        lock: The lock.
        tasks: The holders.
        was_yielded: Whether a task that waited for a worker had to yield to it.
    """

    __slots__ = ("lock", "tasks", "was_yielded")

    def __init__(self, lock: TaskLock, *, was_yielded: bool = False) -> None:
        self.lock = lock
        self.was_yielded = was_yielded
        self.tasks: dict[str, None] = {}


class LockTable:
    """The lock groups of one datasource.

    Attributes:
        active: Number of lock groups whose lock is not revoked.
        undo_log: Undo log of the changes; others may record related changes in it.
    """

    def __init__(self) -> None:
        self.active = 0
        self.undo_log = UndoLog()
        # Locks on time chunks.
        self._by_type: dict[LockType, IntervalIndex[LockGroup]] = {
            kind: IntervalIndex() for kind in LockType
        }
        # Locks that any number of groups may hold for one time.
        self._by_group: dict[tuple[LockType, str], IntervalIndex[LockGroup]] = {}
        self._of_segments: SegmentLockIndex[LockGroup] = SegmentLockIndex()
        self._by_task: dict[str, dict[LockGroup, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_task)

    def overlapping(self, interval: Interval) -> Iterator[LockGroup]:
        """Yield the lock groups whose lock overlaps an interval."""
        used = [index for index in self._by_type.values() if index]
        of_times = chain.from_iterable(index.overlapping(interval) for index in used)
        return chain(of_times, self._of_segments.overlapping(interval))

    def overlapping_replace_locks(self, interval: Interval) -> Iterator[LockGroup]:
        """Yield the lock groups whose REPLACE lock overlaps the interval."""
        return self._by_type[LockType.REPLACE].overlapping(interval)

    def conflict_candidates(self, wanted: TaskLock | LockRequest) -> Iterator[LockGroup]:
        """Yield the lock groups whose lock overlaps a lock or request and may conflict with it.

        Leaves out locks that never conflict with it, of which there may be thousands for one time:
        those of other groups, and those of other segments.
        """
        for kind, index in self._by_type.items():
            if not index:
                continue
            if kind is not wanted.type or kind not in SHARED_BY_GROUPS:
                yield from index.overlapping(wanted.interval)
            elif (mine := self._by_group.get((kind, wanted.group))) is not None:
                yield from mine.overlapping(wanted.interval)
        if wanted.granularity is LockGranularity.SEGMENT:
            yield from self._of_segments.of_segment(wanted.interval, wanted.partition_number)
        else:
            yield from self._of_segments.overlapping(wanted.interval)

    def held_over(self, task_id: str, interval: Interval) -> list[LockGroup]:
        """Return the lock groups of a task whose lock overlaps an interval."""
        mine = self._by_task.get(task_id, {})
        if len(mine) <= _FEW:
            return [group for group in mine if group.lock.interval.overlaps(interval)]
        return [group for group in self.overlapping(interval) if task_id in group.tasks]

    def of_task(self, task_id: str) -> list[LockGroup]:
        """Return the lock groups of a task, oldest first."""
        return list(self._by_task.get(task_id, ()))

    def every(self) -> Iterator[HeldLock]:
        """Yield each task's locks."""
        for task_id, groups in self._by_task.items():
            for group in groups:
                yield HeldLock(task_id, group.lock)

    def groups(self) -> Iterator[LockGroup]:
        """Yield each lock group once."""
        for task_id, groups in self._by_task.items():
            for group in groups:
                if next(iter(group.tasks)) == task_id:
                    yield group

    def join(self, group: LockGroup, task_id: str, *, stored: bool = False) -> None:
        """Add a task to a lock group, which may be new; `stored` if its row is stored."""
        self._put(group, task_id)
        self.undo_log.note(partial(self._take, group, task_id))
        self.undo_log.note_row(task_id, group, group.lock if stored else None, group.lock)

    def leave(self, group: LockGroup, task_id: str) -> None:
        """Remove a task from a lock group."""
        self._take(group, task_id)
        self.undo_log.note(partial(self._put, group, task_id))
        self.undo_log.note_row(task_id, group, group.lock, None)

    def revoke(self, group: LockGroup) -> None:
        """Revoke a lock; its holders keep it, revoked."""
        before = group.lock
        after = before.revoked_copy()
        self._relock(group, after)
        self.undo_log.note(partial(self._relock, group, before))
        for task_id in group.tasks:
            self.undo_log.note_row(task_id, group, before, after)

    def _put(self, group: LockGroup, task_id: str) -> None:
        if not group.tasks:
            for index in self._indexes(group.lock):
                index.add(group.lock.interval, group)
            self.active += not group.lock.revoked
        group.tasks[task_id] = None
        self._by_task.setdefault(task_id, {})[group] = None

    def _take(self, group: LockGroup, task_id: str) -> None:
        del group.tasks[task_id]
        held = self._by_task[task_id]
        del held[group]
        if not held:
            del self._by_task[task_id]
        if not group.tasks:
            for index in self._indexes(group.lock):
                index.remove(group.lock.interval, group)
            key = _type_and_group(group.lock)
            if key in self._by_group and not self._by_group[key]:
                del self._by_group[key]
            self.active -= not group.lock.revoked

    def _indexes(
        self, lock: TaskLock
    ) -> list[IntervalIndex[LockGroup] | SegmentLockIndex[LockGroup]]:
        if lock.granularity is LockGranularity.SEGMENT:
            return [self._of_segments]
        of_type = self._by_type[lock.type]
        if lock.type not in SHARED_BY_GROUPS:
            return [of_type]
        return [of_type, self._by_group.setdefault(_type_and_group(lock), IntervalIndex())]

    def _relock(self, group: LockGroup, lock: TaskLock) -> None:
        self.active += group.lock.revoked - lock.revoked
        group.lock = lock


def _type_and_group(lock: TaskLock) -> tuple[LockType, str]:
    return lock.type, lock.group
