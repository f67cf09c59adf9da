"""Timeline: all chunks of one datasource, and which of them are visible.

Owns the entries and applies changes to them: an entry hides older ones once it is complete. It does
not know segments, only intervals, versions and numbered chunks, so that it can hold any item.

    entry           the chunks of one interval and version (`entries`)
    complete        all of its core numbers exist (`chunks`)
    visible spans   disjoint spans of time, each of the largest version that covers it (`visible`)
    two of them     one of complete entries only, one of all entries (`lookup_incomplete_ok`)

Changes are applied in batches, each completely or not at all. Invariants: visibility depends on the
content of the timeline, never on the order of changes; the second visible timeline exists only
while an entry is incomplete, because otherwise both are the same. One owner; no clock, no I/O.
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter, is_, itemgetter
from typing import TYPE_CHECKING, Generic, TypeAlias

import numpy as np

from penstock.core.errors import Conflict, InvalidRequest
from penstock.core.intervals import ETERNITY, Interval
from penstock.core.timeline.chunks import PartitionChunk, T
from penstock.core.timeline.entries import EntryIndex, TimelineEntries, TimelineEntry
from penstock.core.timeline.visible import VisibleTimeline

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from penstock.core.timeline.chunks import RootRange

Member: TypeAlias = "tuple[Interval, str, PartitionChunk[T]]"
"""Interval, version and chunk."""

VisibleEntries: TypeAlias = "VisibleTimeline[TimelineEntry[T]]"

_Key: TypeAlias = "tuple[Interval, str]"


@dataclass(frozen=True, slots=True)
class TimelinePiece(Generic[T]):
    """A visible piece of an entry: `interval` lies in the entry's `true_interval`."""

    interval: Interval
    true_interval: Interval
    version: str
    chunks: tuple[PartitionChunk[T], ...]

    @property
    def clipped(self) -> bool:
        """Whether a part of the entry is hidden or outside the requested interval."""
        return self.interval != self.true_interval


def pieces_of(
    visible: VisibleEntries[T], interval: Interval, *, skip_no_data: bool = False
) -> list[TimelinePiece[T]]:
    """Return the visible pieces within an interval, in time order, cut to it.

    Args:
        visible: The visible timeline.
        interval: The interval; pieces that only touch it are left out.
        skip_no_data: Leave out entries without rows; they still hide older ones.
    """
    from_ms, to_ms = interval.start_ms, interval.end_ms
    return [
        TimelinePiece(
            # Most pieces are whole entries: these reuse the interval of the entry.
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
        for start_ms, end_ms, entry in visible.spans(interval)
        if not (skip_no_data and entry.no_data)
    ]


class Timeline(Generic[T]):
    """All chunks of one datasource, and which of them are visible."""

    def __init__(self) -> None:
        self._index: EntryIndex[T] = EntryIndex()
        self._complete: VisibleEntries[T] = VisibleTimeline()
        self._any: VisibleEntries[T] | None = None
        self._incomplete_count = 0

    @classmethod
    def of(cls, members: Iterable[Member[T]]) -> Timeline[T]:
        """Return a timeline of many chunks; much faster than adding them one by one.

        Raises:
            InvalidRequest: An interval is empty.
            Conflict: As for `change`.
        """
        made: Timeline[T] = cls()
        with _collector_paused():
            made._fill(_grouped(list(members)))
        return made

    def __len__(self) -> int:
        """Return the number of chunks."""
        return sum(len(entry.chunks) for entry in self._index)

    def __iter__(self) -> Iterator[PartitionChunk[T]]:
        """Return all chunks, visible or not, in no order."""
        return (chunk for entry in self._index for chunk in entry.chunks)

    def add(self, interval: Interval, version: str, chunk: PartitionChunk[T]) -> None:
        """Add one chunk. Raises as `change`."""
        self.change(added=((interval, version, chunk),))

    def remove(self, interval: Interval, version: str, number: int) -> T | None:
        """Remove a chunk and return its item, None if it does not exist."""
        removed = self.change(removed=((interval, version, number),))
        return removed[0] if removed else None

    def change(
        self,
        *,
        added: Iterable[Member[T]] = (),
        removed: Iterable[tuple[Interval, str, int]] = (),
    ) -> list[T]:
        """Remove chunks, then add others, completely or not at all.

        An existing chunk is not added again, and the removal of a missing one is ignored.

        Returns:
            The removed items.

        Raises:
            InvalidRequest: An interval is empty.
            Conflict: Another item has the number, the version has an overlapping interval, or the
                chunks of an entry exclude each other.
        """
        staged: dict[_Key, dict[int, PartitionChunk[T]]] = {}
        old: dict[_Key, TimelineEntry[T] | None] = {}

        def chunks_of(interval: Interval, version: str) -> dict[int, PartitionChunk[T]]:
            key = interval, version
            if key not in staged:
                entry = old[key] = self._index.find(interval, version)
                staged[key] = {chunk.number: chunk for chunk in entry.chunks} if entry else {}
            return staged[key]

        items = []
        for interval, version, number in removed:
            chunk = chunks_of(interval, version).pop(number, None)
            if chunk is not None:
                items.append(chunk.item)
        for interval, version, chunk in added:
            if interval.is_empty:
                raise _empty(interval)
            chunks = chunks_of(interval, version)
            if chunks.setdefault(chunk.number, chunk).item != chunk.item:
                raise _taken(interval, version, chunk.number)
        self._put(staged, old)
        return items

    def lookup(self, interval: Interval, *, skip_no_data: bool = False) -> list[TimelinePiece[T]]:
        """Return the visible pieces of complete entries, in time order, cut to the interval.

        Args:
            interval: The interval; pieces that only touch it are left out.
            skip_no_data: Leave out entries without rows; they still hide older ones.
        """
        return pieces_of(self._complete, interval, skip_no_data=skip_no_data)

    def lookup_incomplete_ok(
        self, interval: Interval, *, skip_no_data: bool = False
    ) -> list[TimelinePiece[T]]:
        """Return the result of `lookup` as if every entry were complete."""
        return pieces_of(self._visible_in_any, interval, skip_no_data=skip_no_data)

    def visible(self) -> VisibleEntries[T]:
        """Return the visible spans as of now; any thread may keep and read the result."""
        return self._complete.copy()

    def find_chunk(self, interval: Interval, version: str, number: int) -> PartitionChunk[T] | None:
        """Return the chunk of this interval, or of one that encloses it; None if there is none."""
        entry = self._index.find(interval, version)
        if entry is None:
            # One version has at most one entry at any instant.
            for candidate in self._index.overlapping(interval.start_ms, interval.end_ms):
                if candidate.version == version and candidate.interval.covers(interval):
                    entry = candidate
        if entry is None:
            return None
        at = bisect_left(entry.chunks, number, key=lambda chunk: chunk.number)
        there = at < len(entry.chunks) and entry.chunks[at].number == number
        return entry.chunks[at] if there else None

    def find_fully_overshadowed(self) -> list[TimelinePiece[T]]:
        """Return the pieces that neither visible timeline shows, by interval and version.

        These are whole entries, and chunks of visible entries that others overwrite.
        """
        shown = set(map(id, self._complete.entries()))
        if self._any is not None:
            shown.update(map(id, self._any.entries()))
        hidden = []
        for entry in self._index:
            if id(entry) not in shown:
                hidden.append((entry, entry.chunks))
            elif (arrangement := entry.arrangement) is not None and arrangement.overshadowed:
                hidden.append((entry, arrangement.overshadowed))
        hidden.sort(key=lambda found: (found[0].interval, found[0].version))
        return [TimelinePiece(e.interval, e.interval, e.version, chunks) for e, chunks in hidden]

    def is_overshadowed(
        self, interval: Interval, version: str, roots: RootRange | None = None
    ) -> bool:
        """Return whether visible entries hide an object in its entire interval.

        Args:
            interval: The interval of the object.
            version: The version of the object; larger ones hide it.
            roots: Its root partition numbers; chunks of the same version may overwrite them.
        """
        return all(
            entry is not None
            and (
                entry.version > version
                or (
                    entry.version == version
                    and roots is not None
                    and any(chunk.roots.overshadows(roots) for chunk in entry.visible)
                )
            )
            for entry in self._complete.cover(interval)
        )

    def find_non_overshadowed(
        self, interval: Interval = ETERNITY, *, incomplete_ok: bool = False
    ) -> list[T]:
        """Return each item that is visible in part of an interval, without duplicates."""
        visible = self._visible_in_any if incomplete_ok else self._complete
        entries = {id(entry): entry for _, _, entry in visible.spans(interval)}
        return [chunk.item for entry in entries.values() for chunk in entry.visible]

    def _fill(self, table: TimelineEntries[T]) -> None:
        _refuse_overlaps(table)
        self._index.fill(table)
        complete = table.complete()
        self._complete.fill(complete.entries, complete.starts, complete.ends)
        self._incomplete_count = len(table.entries) - len(complete.entries)
        if self._incomplete_count:
            self._any = VisibleTimeline()
            self._any.fill(table.entries, table.starts, table.ends)

    @property
    def _visible_in_any(self) -> VisibleEntries[T]:
        return self._complete if self._any is None else self._any

    def _put(
        self,
        staged: dict[_Key, dict[int, PartitionChunk[T]]],
        old: dict[_Key, TimelineEntry[T] | None],
    ) -> None:
        """Replace the old entries by those of the staged chunks."""
        came: list[TimelineEntry[T]] = []
        went: list[TimelineEntry[T]] = []
        for key, chunks in staged.items():
            before = old[key]
            after = tuple(chunks[number] for number in sorted(chunks))
            # Equal items may differ in fields that equality ignores.
            if len(after) == len(before.chunks if before else ()) and (
                not before or all(map(is_, after, before.chunks))
            ):
                continue
            if before:
                went.append(before)
            if after:
                came.append(TimelineEntry(*key, after))
        if not came and not went:
            return
        self._refuse_clashes([entry for entry in came if not old[_key(entry)]], staged)
        incomplete = sum(not entry.complete for entry in came)
        self._incomplete_count += incomplete - sum(not entry.complete for entry in went)
        if self._any is None and self._incomplete_count:
            self._any = self._complete.copy()
        self._index.change(went, came)
        changed = {entry.interval for entry in (*came, *went)}
        self._complete.rebuild(
            [
                (start_ms, end_ms, self._complete_overlapping(start_ms, end_ms))
                for start_ms, end_ms in self._complete.touched(changed)
            ]
        )
        if not self._incomplete_count:
            self._any = None
        elif self._any is not None:
            self._any.rebuild(
                [
                    (start_ms, end_ms, self._index.overlapping(start_ms, end_ms))
                    for start_ms, end_ms in self._any.touched(changed)
                ]
            )

    def _complete_overlapping(self, start_ms: int, end_ms: int) -> list[TimelineEntry[T]]:
        found = self._index.overlapping(start_ms, end_ms)
        return [entry for entry in found if entry.complete] if self._incomplete_count else found

    def _refuse_clashes(
        self, fresh: list[TimelineEntry[T]], staged: dict[_Key, dict[int, PartitionChunk[T]]]
    ) -> None:
        """Refuse an entry whose version has another, overlapping interval."""
        _refuse_overlaps(TimelineEntries.of(fresh))
        for entry in fresh:
            interval, version = entry.interval, entry.version
            for other in self._index.overlapping(interval.start_ms, interval.end_ms):
                stays = staged.get(_key(other)) != {}
                if other.version == version and stays:
                    raise _clash(entry, other)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector while millions of permanent objects are created.

    It would scan all of them many times and free nothing, which takes half of the time.
    """
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


def _key(entry: TimelineEntry[T]) -> _Key:
    return entry.interval, entry.version


def _grouped(members: list[Member[T]]) -> TimelineEntries[T]:
    """Group chunks into entries, by interval and version."""
    members, columns = _in_order(members)
    count = len(members)
    starts, ends, versions = columns
    differs = np.ones(count, bool)
    differs[1:] = (
        (starts[1:] != starts[:-1]) | (ends[1:] != ends[:-1]) | (versions[1:] != versions[:-1])
    )
    begins = np.flatnonzero(differs)
    entries = []
    lows = begins.tolist()
    for low, high in pairwise([*lows, count]):
        interval, version, chunk = members[low]
        if high - low == 1:
            entries.append(TimelineEntry(interval, version, (chunk,)))
            continue
        chunks: dict[int, PartitionChunk[T]] = {}
        for _, _, chunk in members[low:high]:
            if chunks.setdefault(chunk.number, chunk).item != chunk.item:
                raise _taken(interval, version, chunk.number)
        entries.append(TimelineEntry(interval, version, tuple(chunks.values())))
    return TimelineEntries(entries, starts[begins], ends[begins], versions[begins])


def _in_order(members: list[Member[T]]) -> tuple[list[Member[T]], list[NDArray[np.int64]]]:
    """Return chunks by start, end, version and number, and the first three as columns."""
    count = len(members)
    if not count:
        return members, [np.empty(0, np.int64)] * 3
    intervals, versions, chunks = zip(*members, strict=True)
    ranks = {version: rank for rank, version in enumerate(sorted(set(versions)))}
    starts, ends, version_ranks, numbers = (
        np.fromiter(column, np.int64, count)
        for column in (
            map(attrgetter("start_ms"), intervals),
            map(attrgetter("end_ms"), intervals),
            map(ranks.__getitem__, versions),
            map(itemgetter(0), chunks),
        )
    )
    if (starts >= ends).any():
        raise _empty(intervals[int(np.argmax(starts >= ends))])
    order = np.lexsort((numbers, version_ranks, ends, starts))
    # They mostly come from a sorted query.
    if (order[1:] < order[:-1]).any():
        members = list(map(members.__getitem__, order.tolist()))
    return members, [column[order] for column in (starts, ends, version_ranks)]


def _refuse_overlaps(table: TimelineEntries[T]) -> None:
    """Refuse entries of one version that overlap each other."""
    clash = table.clash()
    if clash:
        raise _clash(*clash)


def _clash(entry: TimelineEntry[T], other: TimelineEntry[T]) -> Conflict:
    return Conflict(
        f"version {entry.version!r} for {entry.interval} overlaps its segments for "
        f"{other.interval}: neither can hide the other; use a newer version for one of them"
    )


def _taken(interval: Interval, version: str, number: int) -> Conflict:
    return Conflict(
        f"chunk {number} of version {version!r} for {interval} exists already with another "
        "content: use an unused number for the new one"
    )


def _empty(interval: Interval) -> InvalidRequest:
    return InvalidRequest(f"a segment for {interval} has an empty interval: set a later end")
