"""Index of items by time interval.

Intervals of similar length are in one sorted list, so that a look-up is a binary search in each of
a few lists, for any mixture of lengths.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.intervals import Interval

T = TypeVar("T")


class IntervalIndex(Generic[T]):
    """Hashable items, each at a nonempty interval; several may be at the same one."""

    def __init__(self) -> None:
        # By k: intervals of 2^(k-1) to 2^k - 1 ms, sorted by start.
        self._by_length: dict[int, list[tuple[int, int]]] = {}
        self._items: dict[tuple[int, int], dict[T, None]] = {}

    def __len__(self) -> int:
        """Number of different intervals."""
        return len(self._items)

    def add(self, interval: Interval, item: T) -> None:
        """Add an item at an interval."""
        place = (interval.start_ms, interval.end_ms)
        items = self._items.get(place)
        if items is None:
            self._items[place] = items = {}
            insort(self._by_length.setdefault(interval.length_ms.bit_length(), []), place)
        items[item] = None

    def remove(self, interval: Interval, item: T) -> None:
        """Remove an existing item at an interval."""
        place = (interval.start_ms, interval.end_ms)
        items = self._items[place]
        del items[item]
        if not items:
            del self._items[place]
            length = interval.length_ms.bit_length()
            places = self._by_length[length]
            del places[bisect_left(places, place)]
            if not places:
                del self._by_length[length]

    def overlapping(self, interval: Interval) -> Iterator[T]:
        """Yield the items whose interval overlaps, by length and then by time."""
        start, end = interval.start_ms, interval.end_ms
        for length, places in self._by_length.items():
            # Intervals of this list that begin earlier end before the given one.
            first = bisect_left(places, (start - (1 << length) + 1,))
            for place in places[first : bisect_left(places, (end,))]:
                if place[1] > start:
                    yield from self._items[place]
