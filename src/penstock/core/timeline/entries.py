"""Entries of a timeline, one for each interval and version, and their index.

Owns the index of entries by interval. It does not decide visibility. Invariants: an entry never
changes (it is replaced), so that returned entries stay as they were; two entries of one version
never overlap, unless they are of one interval and then the same entry.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import chain, compress
from operator import attrgetter
from typing import TYPE_CHECKING, Generic

import numpy as np

from penstock.core.timeline.chunks import PartitionChunk, RootRange, T, arrange, is_complete
from penstock.core.timeline.visible import splice

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from penstock.core.intervals import Interval
    from penstock.core.timeline.chunks import ArrangedChunks


class TimelineEntry(Generic[T]):
    """The chunks of one interval and version, one or more, in the order of their numbers.

    Raises:
        Conflict: The chunks exclude each other.
    """

    __slots__ = ("_held", "arrangement", "complete", "interval", "version")

    def __init__(
        self, interval: Interval, version: str, chunks: tuple[PartitionChunk[T], ...]
    ) -> None:
        self.interval = interval
        self.version = version
        # Nearly all have one chunk: these are stored without a tuple around it.
        self._held: PartitionChunk[T] | tuple[PartitionChunk[T], ...] = (
            chunks[0] if len(chunks) == 1 else chunks
        )
        # The states of its chunks; None if none overwrites, and then all are visible.
        self.arrangement: ArrangedChunks[T] | None = None
        number, core, _, _, place = chunks[0]
        if len(chunks) == 1 and place is None:
            self.complete = core <= 1 and (core == 0 or number == 0)
        elif any(isinstance(chunk.place, RootRange) for chunk in chunks):
            self.arrangement = arrange(chunks)
            self.complete = self.arrangement.complete
        else:
            self.complete = is_complete(chunks)

    @property
    def chunks(self) -> tuple[PartitionChunk[T], ...]:
        """All of its chunks."""
        held = self._held
        return (held,) if isinstance(held, PartitionChunk) else held

    @property
    def visible(self) -> tuple[PartitionChunk[T], ...]:
        """The chunks that are visible when the entry is."""
        return self.chunks if self.arrangement is None else self.arrangement.visible

    @property
    def no_data(self) -> bool:
        """Whether it has no rows, and only hides older entries."""
        return all(chunk.no_data for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class TimelineEntries(Generic[T]):
    """Many entries in the order of start, end and version, with columns.

    `versions` has a number for each version; a newer version has a larger one.
    """

    entries: list[TimelineEntry[T]]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    versions: NDArray[np.int64]

    @classmethod
    def of(cls, entries: Sequence[TimelineEntry[T]]) -> TimelineEntries[T]:
        """Return the table of a few entries in any order."""
        ordered = sorted(entries, key=lambda entry: (entry.interval, entry.version))
        ranks = {name: rank for rank, name in enumerate(sorted({e.version for e in ordered}))}
        return cls(
            ordered,
            np.array([entry.interval.start_ms for entry in ordered], np.int64),
            np.array([entry.interval.end_ms for entry in ordered], np.int64),
            np.array([ranks[entry.version] for entry in ordered], np.int64),
        )

    def complete(self) -> TimelineEntries[T]:
        """Return the table of those that are complete."""
        which = np.fromiter(map(attrgetter("complete"), self.entries), bool, len(self.entries))
        if which.all():
            return self
        entries = list(compress(self.entries, which))
        return TimelineEntries(entries, self.starts[which], self.ends[which], self.versions[which])

    def clash(self) -> tuple[TimelineEntry[T], TimelineEntry[T]] | None:
        """Return two entries of one version that overlap, None if none do."""
        order = np.lexsort((self.ends, self.starts, self.versions))
        before, after = order[:-1], order[1:]
        # If no neighbours overlap, no entries do.
        clashes = (self.versions[after] == self.versions[before]) & (
            self.starts[after] < self.ends[before]
        )
        if not clashes.any():
            return None
        at = int(np.argmax(clashes))
        return self.entries[int(after[at])], self.entries[int(before[at])]


class EntryIndex(Generic[T]):
    """All entries of a timeline, searchable by overlap.

    They are stored by the length of their interval, which has few values, and by start and version:
    then the entries that overlap an interval are a slice of each.
    """

    __slots__ = ("_lanes",)

    def __init__(self) -> None:
        self._lanes: dict[int, _Lane[T]] = {}

    def __len__(self) -> int:
        return sum(len(lane.entries) for lane in self._lanes.values())

    def __iter__(self) -> Iterator[TimelineEntry[T]]:
        return chain.from_iterable(lane.entries for lane in self._lanes.values())

    def find(self, interval: Interval, version: str) -> TimelineEntry[T] | None:
        """Return the entry of exactly this interval and version."""
        lane = self._lanes.get(interval.length_ms)
        if lane is None:
            return None
        at = bisect_left(lane.starts, interval.start_ms)
        while at < len(lane.starts) and lane.starts[at] == interval.start_ms:
            if lane.entries[at].version == version:
                return lane.entries[at]
            at += 1
        return None

    def overlapping(self, start_ms: int, end_ms: int) -> list[TimelineEntry[T]]:
        """Return the entries that overlap an interval."""
        found: list[TimelineEntry[T]] = []
        for length_ms, lane in self._lanes.items():
            first = bisect_right(lane.starts, start_ms - length_ms)
            found += lane.entries[first : bisect_left(lane.starts, end_ms, first)]
        return found

    def fill(self, table: TimelineEntries[T]) -> None:
        """Fill an empty index."""
        lengths = table.ends - table.starts
        for length_ms in np.unique(lengths).tolist():
            which = lengths == length_ms
            entries = table.entries if which.all() else compress(table.entries, which)
            self._lanes[length_ms] = _Lane(list(entries), array("q", table.starts[which].tobytes()))

    def change(
        self, removed: Iterable[TimelineEntry[T]], added: Iterable[TimelineEntry[T]]
    ) -> None:
        """Remove entries, which must exist, and add others."""
        changes: dict[int, tuple[list[TimelineEntry[T]], list[TimelineEntry[T]]]] = {}
        for side, entries in enumerate((removed, added)):
            for entry in entries:
                changes.setdefault(entry.interval.length_ms, ([], []))[side].append(entry)
        for length_ms, (going, coming) in changes.items():
            lane = self._lanes.setdefault(length_ms, _Lane([], array("q")))
            lane.change(going, coming)
            if not lane.entries:
                del self._lanes[length_ms]


class _Lane(Generic[T]):
    """The entries of one length, by start and version, with their starts."""

    __slots__ = ("entries", "starts")

    def __init__(self, entries: list[TimelineEntry[T]], starts: array[int]) -> None:
        self.entries = entries
        self.starts = starts

    def change(
        self, removed: Iterable[TimelineEntry[T]], added: Iterable[TimelineEntry[T]]
    ) -> None:
        places: dict[int, list[TimelineEntry[T]]] = {}
        for entry in sorted(added, key=_order):
            places.setdefault(self._place(entry), []).append(entry)
        gone = set()
        for entry in removed:
            place = self._place(entry)
            assert self.entries[place] is entry
            gone.add(place)
        edits = [
            (place, place + (place in gone), places.get(place, []))
            for place in sorted(gone.union(places))
        ]
        starts = [
            (low, high, array("q", [entry.interval.start_ms for entry in entries]))
            for low, high, entries in edits
        ]
        splice(self.starts, starts)
        splice(self.entries, edits)

    def _place(self, entry: TimelineEntry[T]) -> int:
        """Return the position of the entry, or where it would be inserted."""
        place = bisect_left(self.starts, entry.interval.start_ms)
        while (
            place < len(self.starts)
            and self.starts[place] == entry.interval.start_ms
            and self.entries[place].version < entry.version
        ):
            place += 1
        return place


def _order(entry: TimelineEntry[T]) -> tuple[int, str]:
    return entry.interval.start_ms, entry.version
