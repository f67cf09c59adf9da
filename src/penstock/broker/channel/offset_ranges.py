"""A set of offsets that grows mostly at its lower end: a floor, and ranges above it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class OffsetRangeSet:
    """Set of offsets: all below the floor, and disjoint, nonadjacent ranges above it.

    Args:
        floor: Every offset below it is in the set.
    """

    __slots__ = ("_ends", "_starts", "floor")

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges above the floor."""
        return zip(self._starts, self._ends, strict=True)

    def __contains__(self, offset: int) -> bool:
        if offset < self.floor:
            return True
        index = bisect_right(self._starts, offset) - 1
        return index >= 0 and offset < self._ends[index]

    def covers(self, start: int, end: int) -> bool:
        """Return whether all of the offsets [start, end) are in the set."""
        start = max(start, self.floor)
        return start >= end or self.end_of(start) >= end

    def add(self, start: int, end: int) -> None:
        """Add the offsets [start, end)."""
        if start <= self.floor:
            if end > self.floor:
                self.floor = end
                self._absorb()
            return
        if start >= end:
            return
        starts, ends = self._starts, self._ends
        first = bisect_left(ends, start)  # the first range that reaches `start`
        last = bisect_right(starts, end)  # after the last range that begins at or before `end`
        if first < last:
            start = min(start, starts[first])
            end = max(end, ends[last - 1])
        starts[first:last] = [start]
        ends[first:last] = [end]

    def gaps(self, end: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges from the floor to `end` that are not in the set."""
        position = self.floor
        for start, stop in self:
            if start >= end:
                break
            yield position, start
            position = stop
        if position < end:
            yield position, end

    def end_of(self, offset: int) -> int:
        """Return the end of the range that contains an offset, or the offset if there is none."""
        if offset < self.floor:
            return self.floor
        index = bisect_right(self._starts, offset) - 1
        return max(offset, self._ends[index]) if index >= 0 else offset

    def next_start(self, offset: int, end: int) -> int:
        """Return the start of the first range after an offset, at most `end`."""
        index = bisect_right(self._starts, offset)
        return min(self._starts[index], end) if index < len(self._starts) else end

    def count(self, start: int, end: int) -> int:
        """Count the offsets of [start, end) in the set; `start` must not be below the floor."""
        ends = self._ends
        found = 0
        for index in range(bisect_right(ends, start), len(ends)):
            if self._starts[index] >= end:
                break
            found += min(ends[index], end) - max(self._starts[index], start)
        return found

    def cut(self, end: int) -> bool:
        """Remove offsets at or above `end`; return whether there were any."""
        had_more = self.floor > end or bool(self._ends and self._ends[-1] > end)
        self.floor = min(self.floor, end)
        while self._starts and self._starts[-1] >= end:
            self._starts.pop()
            self._ends.pop()
        if self._ends:
            self._ends[-1] = min(self._ends[-1], end)
        return had_more

    def _absorb(self) -> None:
        count = bisect_right(self._starts, self.floor)
        if count:
            self.floor = max(self.floor, self._ends[count - 1])
            del self._starts[:count], self._ends[:count]
