"""Which versions are visible when: the skyline of overshadowing segments of one datasource.

Owns the rule that the larger version wins for the time it covers, once its set is complete. It
knows no segment, only intervals, versions and numbered chunks, so that it can hold anything. It has
no minor versions and no atomic update groups: Penstock replaces whole time chunks.

    complete      all core numbers 0 .. core - 1 are there; numbers behind them were appended
    skyline       disjoint pieces of time, each of the largest version that covers it
    two of them   of complete entries only, and of any entries (`lookup_incomplete_ok`)

Invariants: a skyline depends on what is in the timeline, never on the order it came in; pieces that
touch are of different entries. One owner; no clock, no I/O.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.core.errors import Conflict, InvalidRequest
from penstock.core.intervals import Interval

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Chunk(Generic[T]):
    """One numbered part of an entry. `no_data`: it hides what is older and has no rows."""

    number: int
    core: int
    item: T
    no_data: bool = False


@dataclass(frozen=True, slots=True)
class Piece(Generic[T]):
    """A visible piece of an entry: `interval` lies in the entry's `true_interval`."""

    interval: Interval
    true_interval: Interval
    version: str
    chunks: tuple[Chunk[T], ...]

    @property
    def clipped(self) -> bool:
        """Whether a part of the entry is hidden or was not asked for."""
        return self.interval != self.true_interval


class _Entry(Generic[T]):
    """The chunks of one interval and version."""

    __slots__ = ("_core", "_core_present", "chunks", "interval", "version")

    def __init__(self, interval: Interval, version: str) -> None:
        self.interval = interval
        self.version = version
        self.chunks: dict[int, Chunk[T]] = {}
        self._core = 0
        self._core_present = 0

    def add(self, chunk: Chunk[T]) -> bool:
        present = self.chunks.get(chunk.number)
        if present is not None:
            if present.item != chunk.item:
                raise Conflict(
                    f"chunk {chunk.number} of version {self.version!r} for {self.interval} is "
                    "there already and is another one: give the new one a number of its own"
                )
            return False
        self.chunks[chunk.number] = chunk
        if chunk.core > self._core:
            self._count()
        elif chunk.number < self._core:
            self._core_present += 1
        return True

    def remove(self, number: int) -> Chunk[T] | None:
        chunk = self.chunks.pop(number, None)
        # Sets of streams have no core: they may be long, and need no count.
        if chunk is not None and self._core:
            self._count()
        return chunk

    def _count(self) -> None:
        self._core = max((chunk.core for chunk in self.chunks.values()), default=0)
        self._core_present = sum(1 for number in self.chunks if number < self._core)

    @property
    def complete(self) -> bool:
        return bool(self.chunks) and self._core_present == self._core

    @property
    def no_data(self) -> bool:
        return all(chunk.no_data for chunk in self.chunks.values())

    def in_order(self) -> tuple[Chunk[T], ...]:
        return tuple(self.chunks[number] for number in sorted(self.chunks))


@dataclass(slots=True)
class _Span(Generic[T]):
    """A piece of a skyline."""

    start_ms: int
    end_ms: int
    entry: _Entry[T]


class _Skyline(Generic[T]):
    """Disjoint spans in time order, and their starts beside them for the search."""

    __slots__ = ("_spans", "_starts")

    def __init__(self) -> None:
        self._spans: list[_Span[T]] = []
        self._starts: list[int] = []

    def overlapping(self, start_ms: int, end_ms: int) -> list[_Span[T]]:
        if start_ms >= end_ms:
            return []  # an empty interval overlaps nothing
        first, last = self._range(start_ms, end_ms)
        return self._spans[first:last]

    def entries(self) -> Iterator[_Entry[T]]:
        return (span.entry for span in self._spans)

    def insert(self, entry: _Entry[T]) -> None:
        """Lay an entry over the smaller versions and into the gaps of its interval."""
        start_ms, end_ms = entry.interval.start_ms, entry.interval.end_ms
        first, last = self._range(start_ms, end_ms)
        laid: list[_Span[T]] = []
        at = start_ms
        behind: list[_Span[T]] = []
        # Spans that come out empty or backwards here are left out by `_replace`.
        for span in self._spans[first:last]:
            if span.entry.version > entry.version:
                laid += (_Span(at, span.start_ms, entry), span)
                at = span.end_ms
            else:
                laid.append(_Span(span.start_ms, start_ms, span.entry))
                behind = [_Span(end_ms, span.end_ms, span.entry)]
        laid.append(_Span(at, end_ms, entry))
        self._replace(first, last, laid + behind)

    def remove(self, entry: _Entry[T]) -> list[tuple[int, int]]:
        """Take an entry's spans out; return the time that is free now."""
        first, last = self._range(entry.interval.start_ms, entry.interval.end_ms)
        spans = self._spans[first:last]
        freed = [(span.start_ms, span.end_ms) for span in spans if span.entry is entry]
        if freed:
            self._replace(first, last, [span for span in spans if span.entry is not entry])
        return freed

    def _range(self, start_ms: int, end_ms: int) -> tuple[int, int]:
        first = bisect_right(self._starts, start_ms)
        if first and self._spans[first - 1].end_ms > start_ms:
            first -= 1
        return first, max(first, bisect_left(self._starts, end_ms))

    def _replace(self, first: int, last: int, spans: list[_Span[T]]) -> None:
        """Put spans in the place of others, joined with their neighbours of the same entry."""
        low, high = max(first - 1, 0), min(last + 1, len(self._spans))
        joined: list[_Span[T]] = []
        for span in (*self._spans[low:first], *spans, *self._spans[last:high]):
            if span.start_ms >= span.end_ms:
                continue
            before = joined[-1] if joined else None
            if before and before.entry is span.entry and before.end_ms == span.start_ms:
                joined[-1] = _Span(before.start_ms, span.end_ms, span.entry)
            else:
                joined.append(span)
        self._spans[low:high] = joined
        self._starts[low:high] = [span.start_ms for span in joined]


class _Intervals:
    """The true intervals, to be found by what they overlap; by length, of which there are few."""

    __slots__ = ("_starts_by_length",)

    def __init__(self) -> None:
        self._starts_by_length: dict[int, list[int]] = {}

    def add(self, interval: Interval) -> None:
        insort(self._starts_by_length.setdefault(interval.length_ms, []), interval.start_ms)

    def remove(self, interval: Interval) -> None:
        starts = self._starts_by_length[interval.length_ms]
        del starts[bisect_left(starts, interval.start_ms)]
        if not starts:
            del self._starts_by_length[interval.length_ms]

    def overlapping(self, start_ms: int, end_ms: int) -> Iterator[Interval]:
        for length_ms, starts in self._starts_by_length.items():
            first = bisect_right(starts, start_ms - length_ms)
            for start in starts[first : bisect_left(starts, end_ms)]:
                yield Interval(start, start + length_ms)


class Timeline(Generic[T]):
    """Everything known of one datasource, and what of it is visible."""

    def __init__(self) -> None:
        self._entries: dict[Interval, dict[str, _Entry[T]]] = {}
        self._intervals = _Intervals()
        self._complete: _Skyline[T] = _Skyline()
        self._any: _Skyline[T] = _Skyline()

    def add(self, interval: Interval, version: str, chunk: Chunk[T]) -> None:
        """Put a chunk in; one that is there already is ignored.

        Raises:
            InvalidRequest: The interval is empty.
            Conflict: Another item has the number, or the version has an overlapping interval.
        """
        if interval.is_empty:
            raise InvalidRequest(f"a segment for {interval} could hold nothing: give it some time")
        versions = self._entries.get(interval, {})
        entry = versions.get(version)
        if entry is None:
            self._refuse_overlap(interval, version)
            entry = _Entry(interval, version)
            if not versions:
                self._intervals.add(interval)
            self._entries.setdefault(interval, versions)[version] = entry
        was_complete = entry.complete
        if not entry.add(chunk):
            return
        if len(entry.chunks) == 1:
            self._any.insert(entry)
        if entry.complete and not was_complete:
            self._complete.insert(entry)
        elif was_complete and not entry.complete:
            self._leave(self._complete, entry)

    def remove(self, interval: Interval, version: str, number: int) -> T | None:
        """Take a chunk out and return its item, None if it is not there."""
        entry = self._entries.get(interval, {}).get(version)
        if entry is None:
            return None
        was_complete = entry.complete
        chunk = entry.remove(number)
        if chunk is None:
            return None
        if not entry.chunks:
            del self._entries[interval][version]
            if not self._entries[interval]:
                del self._entries[interval]
                self._intervals.remove(interval)
            self._leave(self._any, entry)
        if was_complete and not entry.complete:
            self._leave(self._complete, entry)
        elif entry.complete and not was_complete:
            self._complete.insert(entry)
        return chunk.item

    def lookup(self, interval: Interval, *, skip_no_data: bool = False) -> list[Piece[T]]:
        """Return the visible pieces of complete entries, in time order, cut to the interval.

        Args:
            interval: What is asked for; pieces that only touch it are not in the answer.
            skip_no_data: Leave out entries without rows; they still hide what is older.
        """
        return self._pieces(self._complete, interval, skip_no_data=skip_no_data)

    def lookup_incomplete_ok(
        self, interval: Interval, *, skip_no_data: bool = False
    ) -> list[Piece[T]]:
        """Return what `lookup` would if every entry counted as complete."""
        return self._pieces(self._any, interval, skip_no_data=skip_no_data)

    def find_fully_overshadowed(self) -> list[Piece[T]]:
        """Return the entries of which neither skyline shows anything, each as a whole."""
        shown = {id(entry) for line in (self._complete, self._any) for entry in line.entries()}
        hidden = (
            entry
            for versions in self._entries.values()
            for entry in versions.values()
            if id(entry) not in shown
        )
        return [
            Piece(entry.interval, entry.interval, entry.version, entry.in_order())
            for entry in sorted(hidden, key=lambda entry: (entry.interval, entry.version))
        ]

    def is_overshadowed(self, interval: Interval, version: str) -> bool:
        """Tell whether complete entries of larger versions cover the interval without a gap."""
        at = interval.start_ms
        for span in self._complete.overlapping(interval.start_ms, interval.end_ms):
            if span.start_ms > at or span.entry.version <= version:
                return False
            at = span.end_ms
        return at >= interval.end_ms

    def _refuse_overlap(self, interval: Interval, version: str) -> None:
        for other in self._intervals.overlapping(interval.start_ms, interval.end_ms):
            if other != interval and version in self._entries[other]:
                raise Conflict(
                    f"version {version!r} for {interval} overlaps its segments for {other}: "
                    "neither can hide the other; give one a newer version"
                )

    def _leave(self, skyline: _Skyline[T], entry: _Entry[T]) -> None:
        """Take an entry out of a skyline and let what it hid come up again."""
        complete_only = skyline is self._complete
        for start_ms, end_ms in skyline.remove(entry):
            for interval in self._intervals.overlapping(start_ms, end_ms):
                candidates = [
                    candidate
                    for candidate in self._entries[interval].values()
                    if candidate is not entry and (candidate.complete or not complete_only)
                ]
                if candidates:
                    skyline.insert(max(candidates, key=lambda candidate: candidate.version))

    def _pieces(
        self, skyline: _Skyline[T], interval: Interval, *, skip_no_data: bool
    ) -> list[Piece[T]]:
        return [
            Piece(
                Interval(max(span.start_ms, interval.start_ms), min(span.end_ms, interval.end_ms)),
                span.entry.interval,
                span.entry.version,
                span.entry.in_order(),
            )
            for span in skyline.overlapping(interval.start_ms, interval.end_ms)
            if not (skip_no_data and span.entry.no_data)
        ]
