"""Who holds which locks of one datasource, with a way back.

Owns the memory of a lockbox: locks by time and by task. It decides nothing. Invariants: a lock that
nobody holds is not there; whatever is changed is told to the way back (`wayback`).
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from penstock.core.timeindex import TimeIndex
from penstock.indexing.lockbox.model import HeldLock, LockGranularity, LockType
from penstock.indexing.lockbox.rules import SOCIABLE
from penstock.indexing.lockbox.shelves import Shelves
from penstock.indexing.lockbox.wayback import WayBack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.intervals import Interval
    from penstock.indexing.lockbox.model import LockRequest, TaskLock


_FEW: Final = 32
"""So many locks of a task are looked through sooner than all those of a time."""


class Posse:
    """One lock and the tasks of its group that hold it.

    Attributes:
        lock: The lock.
        tasks: Who holds it.
        was_yielded: Whether a task that waited for a worker had to give way to it.
    """

    __slots__ = ("lock", "tasks", "was_yielded")

    def __init__(self, lock: TaskLock, *, was_yielded: bool = False) -> None:
        self.lock = lock
        self.was_yielded = was_yielded
        self.tasks: dict[str, None] = {}


class Holdings:
    """The posses of one datasource.

    Attributes:
        active: How many of them have a lock that was not revoked.
        way_back: From what was changed; others may tell it what they changed beside.
    """

    def __init__(self) -> None:
        self.active = 0
        self.way_back = WayBack()
        # Those of time chunks.
        self._by_type: dict[LockType, TimeIndex[Posse]] = {kind: TimeIndex() for kind in LockType}
        # Those that any number of groups may hold for one time.
        self._by_group: dict[tuple[LockType, str], TimeIndex[Posse]] = {}
        self._of_segments: Shelves[Posse] = Shelves()
        self._by_task: dict[str, dict[Posse, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_task)

    def overlapping(self, interval: Interval) -> Iterator[Posse]:
        """Yield the posses whose lock overlaps the interval."""
        used = [index for index in self._by_type.values() if index]
        of_times = chain.from_iterable(index.overlapping(interval) for index in used)
        return chain(of_times, self._of_segments.overlapping(interval))

    def replacing(self, interval: Interval) -> Iterator[Posse]:
        """Yield the posses whose REPLACE lock overlaps the interval."""
        return self._by_type[LockType.REPLACE].overlapping(interval)

    def concerning(self, asked: TaskLock | LockRequest) -> Iterator[Posse]:
        """Yield the posses that matter to a lock: those that overlap it.

        Left out are locks that always go together with it, of which there may be thousands for one
        time: those of other groups, and those of other segments.
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
        """Return the posses that a task is in whose lock overlaps the interval."""
        mine = self._by_task.get(task_id, {})
        if len(mine) <= _FEW:
            return [posse for posse in mine if posse.lock.interval.overlaps(interval)]
        return [posse for posse in self.overlapping(interval) if task_id in posse.tasks]

    def of_task(self, task_id: str) -> list[Posse]:
        """Return the posses that a task is in, the oldest first."""
        return list(self._by_task.get(task_id, ()))

    def every(self) -> Iterator[HeldLock]:
        """Yield who holds what."""
        for task_id, posses in self._by_task.items():
            for posse in posses:
                yield HeldLock(task_id, posse.lock)

    def posses(self) -> Iterator[Posse]:
        """Yield every posse once."""
        for task_id, posses in self._by_task.items():
            for posse in posses:
                if next(iter(posse.tasks)) == task_id:
                    yield posse

    def join(self, posse: Posse, task_id: str, *, stored: bool = False) -> None:
        """Let a task hold a posse's lock, a new posse's too; `stored` if its row is there."""
        self._put(posse, task_id)
        self.way_back.note(partial(self._take, posse, task_id))
        self.way_back.note_row(task_id, posse, posse.lock if stored else None, posse.lock)

    def leave(self, posse: Posse, task_id: str) -> None:
        """Let a task hold a posse's lock no more."""
        self._take(posse, task_id)
        self.way_back.note(partial(self._put, posse, task_id))
        self.way_back.note_row(task_id, posse, posse.lock, None)

    def revoke(self, posse: Posse) -> None:
        """Take the lock away from all who hold it; they go on finding it, revoked."""
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
