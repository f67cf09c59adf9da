"""Visible timeline: disjoint spans of time, each of the largest version that covers it.

Owns the rule that larger versions hide smaller ones, and the construction of the spans, as a whole
and in parts. The caller decides which entries count, mostly those that are complete. Invariants:
spans are in time order and do not overlap; adjacent spans are of different entries; the spans
depend on the entries, never on the order of changes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from heapq import heappop, heappush
from itertools import pairwise
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, MutableSequence, Sequence

    from numpy.typing import NDArray

    from penstock.core.intervals import Interval


class Versioned(Protocol):
    """Content of an interval, with a version."""

    @property
    def interval(self) -> Interval:
        """The interval."""

    @property
    def version(self) -> str:
        """The version; larger ones hide this one."""


E = TypeVar("E", bound=Versioned)
C = TypeVar("C")

Edit: TypeAlias = "tuple[int, int, Sequence[C]]"
"""Replace the elements from one index up to, but not including, another by these."""

_MOVES_MAX = 4


class _Spans(Generic[E]):
    """Columns of spans."""

    __slots__ = ("ends", "entries", "starts")

    def __init__(self) -> None:
        self.starts = array("q")
        self.ends = array("q")
        self.entries: list[E] = []

    def append(self, start_ms: int, end_ms: int, entry: E) -> None:
        """Append a span, merged with the last one if it continues that."""
        if self.entries and self.entries[-1] is entry and self.ends[-1] == start_ms:
            self.ends[-1] = end_ms
            return
        self.starts.append(start_ms)
        self.ends.append(end_ms)
        self.entries.append(entry)


class VisibleTimeline(Generic[E]):
    """The visible spans. The owner of a timeline changes it; any thread may read a copy."""

    __slots__ = ("_spans",)

    def __init__(self) -> None:
        self._spans: _Spans[E] = _Spans()

    @classmethod
    def of(cls, entries: Sequence[E]) -> VisibleTimeline[E]:
        """Return the visible spans of a few entries in any order."""
        made: VisibleTimeline[E] = cls()
        made._spans = sweep(entries)
        return made

    def __len__(self) -> int:
        return len(self._spans.entries)

    def entries(self) -> Sequence[E]:
        """Return the entry of each span, in time order; an entry may have several spans."""
        return self._spans.entries

    def copy(self) -> VisibleTimeline[E]:
        """Return an independent copy."""
        made: VisibleTimeline[E] = VisibleTimeline()
        made._spans.starts = self._spans.starts[:]
        made._spans.ends = self._spans.ends[:]
        made._spans.entries = self._spans.entries[:]
        return made

    def spans(self, interval: Interval) -> Iterable[tuple[int, int, E]]:
        """Return start, end and entry of each span that overlaps the interval, not cut to it."""
        if interval.is_empty:
            return ()
        return self.spans_at(*self._range(interval.start_ms, interval.end_ms))

    def spans_at(self, low: int, high: int) -> Iterable[tuple[int, int, E]]:
        """Return start, end and entry of the spans from one index up to, not including, another."""
        spans = self._spans
        return zip(
            spans.starts[low:high], spans.ends[low:high], spans.entries[low:high], strict=True
        )

    def shared_ends(self, other: VisibleTimeline[E]) -> tuple[int, int]:
        """Return how many first spans are those of another timeline, and how many of the last.

        Such spans have the same entries and times. No span is counted twice.
        """
        count = min(len(self), len(other))
        head = self._shared(other, slice(0, count), slice(0, count))
        rest = count - head
        mine, theirs = (slice(size - rest, size) for size in (len(self), len(other)))
        tail = self._shared(other, mine, theirs, is_reversed=True)
        return head, tail

    def _shared(
        self, other: VisibleTimeline[E], mine: slice, theirs: slice, *, is_reversed: bool = False
    ) -> int:
        """Return how many spans of two equally long parts are the same before the first other."""
        ours, others = self._spans, other._spans
        entries = ours.entries[mine]
        same = np.fromiter(map(is_, entries, others.entries[theirs]), bool, len(entries))
        for left, right in ((ours.starts, others.starts), (ours.ends, others.ends)):
            same &= np.array(left[mine], np.int64) == np.array(right[theirs], np.int64)
        if is_reversed:
            same = same[::-1]
        return len(same) if same.all() else int(np.argmin(same))

    def cover(self, interval: Interval) -> Iterator[E | None]:
        """Yield the visible entries of an interval in time order, and None for each gap."""
        at = interval.start_ms
        for start_ms, end_ms, entry in self.spans(interval):
            if start_ms > at:
                yield None
            yield entry
            at = end_ms
        if at < interval.end_ms:
            yield None

    def fill(
        self, entries: Sequence[E], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> None:
        """Fill an empty timeline with entries in the order of their starts.

        Nearly all entries overlap no other one and are their own span. Only overlapping ones need
        a sweep.
        """
        spans = self._spans
        spans.starts = array("q", starts.tobytes())
        spans.ends = array("q", ends.tobytes())
        spans.entries = list(entries)
        if not entries:
            return
        # A cluster begins after the end of all earlier entries.
        begins = np.flatnonzero(starts[1:] >= np.maximum.accumulate(ends)[:-1]) + 1
        lows = np.concatenate(([0], begins))
        highs = np.concatenate((begins, [len(entries)]))
        several = highs - lows > 1
        clusters = zip(lows[several].tolist(), highs[several].tolist(), strict=True)
        self._edit([(low, high, sweep(entries[low:high])) for low, high in clusters])

    def rebuild(self, parts: Sequence[tuple[int, int, Sequence[E]]]) -> None:
        """Recompute the visible spans in some parts of the time, which `touched` returned.

        Args:
            parts: Start and end of each, and all entries that count and overlap it.
        """
        edits = []
        for start_ms, end_ms, entries in parts:
            low, high = self._range(start_ms, end_ms)
            edits.append((low, high, sweep(entries, start_ms, end_ms)))
        self._edit(edits)

    def touched(self, changed: Iterable[Interval]) -> list[tuple[int, int]]:
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

    def _edit(self, edits: Sequence[tuple[int, int, _Spans[E]]]) -> None:
        spans = self._spans
        splice(spans.starts, [(low, high, made.starts) for low, high, made in edits])
        splice(spans.ends, [(low, high, made.ends) for low, high, made in edits])
        splice(spans.entries, [(low, high, made.entries) for low, high, made in edits])


def sweep(
    entries: Sequence[E], start_ms: int | None = None, end_ms: int | None = None
) -> _Spans[E]:
    """Return the visible spans of some entries, within an interval if one is given."""
    made: _Spans[E] = _Spans()
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


def splice(column: MutableSequence[C], edits: Sequence[Edit[C]]) -> None:
    """Apply edits in order of their indexes, which refer to the original column; none overlap.

    A million entries are one array and one list instead of a tree: they take little memory and are
    searched by bisection. Changes cost more: one change moves all elements after it, and many
    changes copy all elements from the first change to the last one, once.
    """
    if len(edits) <= _MOVES_MAX:
        for low, high, elements in reversed(edits):
            column[low:high] = elements
        return
    made = column[:0]
    at = first = edits[0][0]
    for low, high, elements in edits:
        made.extend(column[at:low])
        made.extend(elements)
        at = high
    column[first:at] = made
