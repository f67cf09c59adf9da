"""The skyline: disjoint spans of time, each of the entry with the largest version that covers it.

Owns the construction of a skyline, as a whole and in parts. The caller decides which entries count.
Invariants: spans are in time order and do not overlap; adjacent spans are of different entries; a
skyline depends on its entries, never on the order of changes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Generic

import numpy as np

from penstock.core.intervals import Interval
from penstock.segments.chunks import PartitionChunk, T
from penstock.segments.columns import splice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.segments.entries import TimelineEntries, TimelineEntry


@dataclass(frozen=True, slots=True)
class Piece(Generic[T]):
    """A visible piece of an entry: `interval` lies in the entry's `true_interval`."""

    interval: Interval
    true_interval: Interval
    version: str
    chunks: tuple[PartitionChunk[T], ...]

    @property
    def clipped(self) -> bool:
        """Whether a part of the entry is hidden or outside the requested interval."""
        return self.interval != self.true_interval


class _Spans(Generic[T]):
    """Columns of spans."""

    __slots__ = ("ends", "entries", "starts")

    def __init__(self) -> None:
        self.starts = array("q")
        self.ends = array("q")
        self.entries: list[TimelineEntry[T]] = []

    def append(self, start_ms: int, end_ms: int, entry: TimelineEntry[T]) -> None:
        """Append a span, merged with the last one if it continues that."""
        if self.entries and self.entries[-1] is entry and self.ends[-1] == start_ms:
            self.ends[-1] = end_ms
            return
        self.starts.append(start_ms)
        self.ends.append(end_ms)
        self.entries.append(entry)


class VisibleTimeline(Generic[T]):
    """The visible spans. The owner of a timeline changes it; any thread may read a copy."""

    __slots__ = ("_spans",)

    def __init__(self) -> None:
        self._spans: _Spans[T] = _Spans()

    def __len__(self) -> int:
        return len(self._spans.entries)

    def entries(self) -> Sequence[TimelineEntry[T]]:
        """Return the entry of each span, in time order; an entry may have several spans."""
        return self._spans.entries

    def copy(self) -> VisibleTimeline[T]:
        """Return an independent copy."""
        made: VisibleTimeline[T] = VisibleTimeline()
        made._spans.starts = self._spans.starts[:]
        made._spans.ends = self._spans.ends[:]
        made._spans.entries = self._spans.entries[:]
        return made

    def spans(self, interval: Interval) -> Iterable[tuple[int, int, TimelineEntry[T]]]:
        """Return start, end and entry of each span that overlaps the interval, not cut to it."""
        if interval.is_empty:
            return ()
        low, high = self._range(interval.start_ms, interval.end_ms)
        spans = self._spans
        return zip(
            spans.starts[low:high], spans.ends[low:high], spans.entries[low:high], strict=True
        )

    def pieces(self, interval: Interval, *, skip_no_data: bool = False) -> list[Piece[T]]:
        """Return the visible pieces within an interval, in time order, cut to it.

        Args:
            interval: The interval; pieces that only touch it are left out.
            skip_no_data: Leave out entries without rows; they still hide older ones.
        """
        from_ms, to_ms = interval.start_ms, interval.end_ms
        return [
            Piece(
                # Most are whole: they reuse the interval of the entry.
                entry.interval
                if start_ms >= from_ms
                and end_ms <= to_ms
                and entry.interval.start_ms == start_ms
                and entry.interval.end_ms == end_ms
                else Interval(max(start_ms, from_ms), min(end_ms, to_ms)),
                entry.interval,
                entry.version,
                entry.visible,
            )
            for start_ms, end_ms, entry in self.spans(interval)
            if not (skip_no_data and entry.no_data)
        ]

    def fill(self, table: TimelineEntries[T]) -> None:
        """Fill an empty skyline.

        Nearly all entries overlap no other one and are their own span. Only overlapping ones need
        a sweep.
        """
        spans, entries = self._spans, table.entries
        spans.starts = array("q", table.starts.tobytes())
        spans.ends = array("q", table.ends.tobytes())
        spans.entries = list(entries)
        if not entries:
            return
        # A cluster begins after the end of all earlier entries.
        begins = np.flatnonzero(table.starts[1:] >= np.maximum.accumulate(table.ends)[:-1]) + 1
        lows = np.concatenate(([0], begins))
        highs = np.concatenate((begins, [len(entries)]))
        several = highs - lows > 1
        clusters = zip(lows[several].tolist(), highs[several].tolist(), strict=True)
        self._edit([(low, high, sweep(entries[low:high])) for low, high in clusters])

    def rebuild(
        self, changed: Iterable[Interval], overlapping: Callable[[int, int], list[TimelineEntry[T]]]
    ) -> None:
        """Recompute the visible spans in some intervals.

        Args:
            changed: Intervals in which entries were added or removed.
            overlapping: Returns all entries that count and overlap an interval.
        """
        edits = []
        for start_ms, end_ms in self._touched(changed):
            low, high = self._range(start_ms, end_ms)
            swept = sweep(overlapping(start_ms, end_ms), start_ms, end_ms)
            edits.append((low, high, swept))
        self._edit(edits)

    def _touched(self, changed: Iterable[Interval]) -> list[tuple[int, int]]:
        """Return ordered intervals that enclose the given ones, their spans, and adjacent spans.

        Their ends never cut a span, so the recomputed spans of each can replace the existing ones
        without a merge with their neighbours.
        """
        spans = self._spans
        found: list[tuple[int, int]] = []
        for interval in sorted(changed):
            start_ms, end_ms = interval.start_ms, interval.end_ms
            first = bisect_left(spans.ends, start_ms)
            behind = bisect_right(spans.starts, end_ms)
            if first < behind:
                start_ms = min(start_ms, spans.starts[first])
                end_ms = max(end_ms, spans.ends[behind - 1])
            if found and start_ms <= found[-1][1]:
                found[-1] = min(found[-1][0], start_ms), max(found[-1][1], end_ms)
            else:
                found.append((start_ms, end_ms))
        return found

    def _range(self, start_ms: int, end_ms: int) -> tuple[int, int]:
        """Return the indexes of the spans that overlap an interval."""
        low = bisect_right(self._spans.ends, start_ms)
        return low, max(low, bisect_left(self._spans.starts, end_ms))

    def _edit(self, edits: Sequence[tuple[int, int, _Spans[T]]]) -> None:
        spans = self._spans
        splice(spans.starts, [(low, high, made.starts) for low, high, made in edits])
        splice(spans.ends, [(low, high, made.ends) for low, high, made in edits])
        splice(spans.entries, [(low, high, made.entries) for low, high, made in edits])


def sweep(
    entries: Sequence[TimelineEntry[T]], start_ms: int | None = None, end_ms: int | None = None
) -> _Spans[T]:
    """Return the visible spans of some entries, within an interval if one is given."""
    made: _Spans[T] = _Spans()
    if not entries:
        return made
    interval = entries[0].interval
    if all(entry.interval == interval for entry in entries):
        # The most frequent case: an interval is replaced by itself.
        made.append(
            interval.start_ms if start_ms is None else max(interval.start_ms, start_ms),
            interval.end_ms if end_ms is None else min(interval.end_ms, end_ms),
            max(entries, key=attrgetter("version")),
        )
        return made
    waiting = sorted(entries, key=lambda entry: entry.interval.start_ms)
    ranks = {version: -rank for rank, version in enumerate(sorted({e.version for e in entries}))}
    edges = {edge for entry in entries for edge in (entry.interval.start_ms, entry.interval.end_ms)}
    if start_ms is not None and end_ms is not None:
        edges = {min(max(edge, start_ms), end_ms) for edge in edges}
    times = sorted(edges)
    # The smallest rank is of the largest version; numbers prevent comparisons of entries.
    heap: list[tuple[int, int]] = []
    begun = 0
    for at, until in pairwise(times):
        while begun < len(waiting) and waiting[begun].interval.start_ms <= at:
            heappush(heap, (ranks[waiting[begun].version], begun))
            begun += 1
        while heap and waiting[heap[0][1]].interval.end_ms <= at:
            heappop(heap)
        if heap:
            made.append(at, until, waiting[heap[0][1]])
    return made
