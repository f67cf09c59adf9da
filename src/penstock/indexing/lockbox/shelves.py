"""Index of the locks on single segments by time chunk and partition number.

Thousands of segments of one time chunk may be locked, and a request for one of them concerns only
that one. Scanning all of them for each request would take quadratic time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from penstock.core.interval_index import TimeIndex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.intervals import Interval
    from penstock.indexing.lockbox.model import TaskLock


class Locked(Protocol):
    """An object with a lock."""

    lock: TaskLock


P = TypeVar("P", bound=Locked)


@dataclass(slots=True, eq=False)
class _Shelf(Generic[P]):
    """The locked segments of one time chunk, by partition number."""

    interval: Interval
    numbers: dict[int | None, dict[P, None]] = field(default_factory=dict)


class Shelves(Generic[P]):
    """Hashable holders of locks on segments, indexed by the interval of the lock."""

    def __init__(self) -> None:
        self._at: dict[Interval, _Shelf[P]] = {}
        self._by_time: TimeIndex[_Shelf[P]] = TimeIndex()

    def add(self, interval: Interval, item: P) -> None:
        """Add a holder at its interval."""
        shelf = self._at.get(interval)
        if shelf is None:
            shelf = self._at[interval] = _Shelf(interval)
            self._by_time.add(interval, shelf)
        shelf.numbers.setdefault(item.lock.partition_number, {})[item] = None

    def remove(self, interval: Interval, item: P) -> None:
        """Remove an existing holder."""
        shelf, number = self._at[interval], item.lock.partition_number
        del shelf.numbers[number][item]
        if not shelf.numbers[number]:
            del shelf.numbers[number]
        if not shelf.numbers:
            del self._at[interval]
            self._by_time.remove(interval, shelf)

    def overlapping(self, interval: Interval) -> Iterator[P]:
        """Yield the holders whose time chunk overlaps an interval."""
        for shelf in self._by_time.overlapping(interval):
            for holders in shelf.numbers.values():
                yield from holders

    def concerning(self, interval: Interval, number: int | None) -> Iterator[P]:
        """Yield the holders that matter to a segment: in its own time chunk, those of its number.

        Args:
            interval: Its time chunk.
            number: Its partition number; None if it has none yet, so that no holder matters.
        """
        if number is None:
            return
        for shelf in self._by_time.overlapping(interval):
            if shelf.interval == interval:
                yield from shelf.numbers.get(number, ())
            else:
                for holders in shelf.numbers.values():
                    yield from holders
