"""Table of the locks of one datasource and their holders, with an undo log.

Holds the locks by time and by task. Decides nothing. Invariants: a lock without holders is removed;
every change is recorded in the undo log (`wayback`).
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from penstock.core.interval_index import TimeIndex
from penstock.indexing.lockbox.model import HeldLock, LockGranularity, LockType
from penstock.indexing.lockbox.rules import SOCIABLE
from penstock.indexing.lockbox.shelves import Shelves
from penstock.indexing.lockbox.wayback import WayBack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.intervals import Interval
    from penstock.indexing.lockbox.model import LockRequest, TaskLock


_FEW: Final = 32
"""Up to this number, scanning the locks of a task is faster than querying an interval."""


class Posse:
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


class Holdings:
    """The posses of one datasource.

    Attributes:
        active: Number of posses whose lock is not revoked.
        way_back: Undo log of the changes; others may record related changes in it.
    """

    def __init__(self) -> None:
        self.active = 0
        self.way_back = WayBack()
        # Locks on time chunks.
        self._by_type: dict[LockType, TimeIndex[Posse]] = {kind: TimeIndex() for kind in LockType}
        # Locks that any number of groups may hold for one time.
        self._by_group: dict[tuple[LockType, str], TimeIndex[Posse]] = {}
        self._of_segments: Shelves[Posse] = Shelves()
        self._by_task: dict[str, dict[Posse, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_task)

    def overlapping(self, interval: Interval) -> Iterator[Posse]:
        """Yield the posses whose lock overlaps an interval."""
        used = [index for index in self._by_type.values() if index]
        of_times = chain.from_iterable(index.overlapping(interval) for index in used)
        return chain(of_times, self._of_segments.overlapping(interval))

    def replacing(self, interval: Interval) -> Iterator[Posse]:
        """Yield the posses whose REPLACE lock overlaps the interval."""
        return self._by_type[LockType.REPLACE].overlapping(interval)

    def concerning(self, asked: TaskLock | LockRequest) -> Iterator[Posse]:
        """Yield the posses whose lock overlaps a lock or request and may conflict with it.

        Leaves out locks that never conflict with it, of which there may be thousands for one time:
        those of other groups, and those of other segments.
        """
        for kind, index in self._by_type.items():
            if not index:
                continue
            if kind is not asked.type or kind not in SOCIABLE:
                yield from index.overlapping(asked.interval)
            elif (mine := self._by_group.get((kind, asked.group))) is not None:
                yield from mine.overlapping(asked.interval)
        if asked.granularity is LockGranularity.SEGMENT:
            yield from self._of_segments.concerning(asked.interval, asked.partition_number)
        else:
            yield from self._of_segments.overlapping(asked.interval)

    def held_over(self, task_id: str, interval: Interval) -> list[Posse]:
        """Return the posses of a task whose lock overlaps an interval."""
        mine = self._by_task.get(task_id, {})
        if len(mine) <= _FEW:
            return [posse for posse in mine if posse.lock.interval.overlaps(interval)]
        return [posse for posse in self.overlapping(interval) if task_id in posse.tasks]

    def of_task(self, task_id: str) -> list[Posse]:
        """Return the posses of a task, oldest first."""
        return list(self._by_task.get(task_id, ()))

    def every(self) -> Iterator[HeldLock]:
        """Yield each task's locks."""
        for task_id, posses in self._by_task.items():
            for posse in posses:
                yield HeldLock(task_id, posse.lock)

    def posses(self) -> Iterator[Posse]:
        """Yield each posse once."""
        for task_id, posses in self._by_task.items():
            for posse in posses:
                if next(iter(posse.tasks)) == task_id:
                    yield posse

    def join(self, posse: Posse, task_id: str, *, stored: bool = False) -> None:
        """Add a task to a posse, which may be new; `stored` if its row is stored."""
        self._put(posse, task_id)
        self.way_back.note(partial(self._take, posse, task_id))
        self.way_back.note_row(task_id, posse, posse.lock if stored else None, posse.lock)

    def leave(self, posse: Posse, task_id: str) -> None:
        """Remove a task from a posse."""
        self._take(posse, task_id)
        self.way_back.note(partial(self._put, posse, task_id))
        self.way_back.note_row(task_id, posse, posse.lock, None)

    def revoke(self, posse: Posse) -> None:
        """Revoke a lock; its holders keep it, revoked."""
        before = posse.lock
        after = before.revoked_copy()
        self._relock(posse, after)
        self.way_back.note(partial(self._relock, posse, before))
        for task_id in posse.tasks:
            self.way_back.note_row(task_id, posse, before, after)

    def _put(self, posse: Posse, task_id: str) -> None:
        if not posse.tasks:
            for index in self._indexes(posse.lock):
                index.add(posse.lock.interval, posse)
            self.active += not posse.lock.revoked
        posse.tasks[task_id] = None
        self._by_task.setdefault(task_id, {})[posse] = None

    def _take(self, posse: Posse, task_id: str) -> None:
        del posse.tasks[task_id]
        held = self._by_task[task_id]
        del held[posse]
        if not held:
            del self._by_task[task_id]
        if not posse.tasks:
            for index in self._indexes(posse.lock):
                index.remove(posse.lock.interval, posse)
            company = _company(posse.lock)
            if company in self._by_group and not self._by_group[company]:
                del self._by_group[company]
            self.active -= not posse.lock.revoked

    def _indexes(self, lock: TaskLock) -> list[TimeIndex[Posse] | Shelves[Posse]]:
        if lock.granularity is LockGranularity.SEGMENT:
            return [self._of_segments]
        of_type = self._by_type[lock.type]
        if lock.type not in SOCIABLE:
            return [of_type]
        return [of_type, self._by_group.setdefault(_company(lock), TimeIndex())]

    def _relock(self, posse: Posse, lock: TaskLock) -> None:
        self.active += posse.lock.revoked - lock.revoked
        posse.lock = lock


def _company(lock: TaskLock) -> tuple[LockType, str]:
    return lock.type, lock.group
