"""Visibility among the used segments of a datasource, as transactions see it. Pure.

A *chunk* is the used segments of one interval and version, summed up. Owns the visibility of
chunks, for the few decisions that a transaction makes itself; the timeline of `penstock.segments`
has the same rule in general, and a test compares the two.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.intervals import Interval
from penstock.storage.metadata.rows import OVERWRITE_START, RootRange

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penstock.storage.metadata.rows import JsonObject, PartitionSpace, SegmentRow

NONE: Final = -1
"""The highest number if there is none."""


def roots_of(number: int, payload: JsonObject) -> RootRange:
    """Return the root numbers of a segment: its own number, unless it rewrites others."""
    spec = payload.get("shardSpec")
    if number < OVERWRITE_START or not isinstance(spec, Mapping):
        return RootRange(number, number + 1)
    names = ("startRootPartitionId", "endRootPartitionId", "minorVersion", "atomicUpdateGroupSize")
    given = [spec.get(name) for name in names]
    values = [value for value in given if isinstance(value, int)]
    return RootRange(*values) if len(values) == len(names) else RootRange(number, number + 1)


@dataclass(frozen=True, slots=True)
class ChunkSummary:
    """The used segments of one interval and version, summed up.

    Attributes:
        interval: Their interval.
        version: Their version.
        core_partitions: Number of core partitions, from 0 on; negative if unknown.
        core_there: Number of those that exist, or were rewritten by a full group.
        highest_root: The highest number of an ordinary segment, -1 if there is none.
        highest_overwrite: The highest number of a segment that rewrites others, -1 if there is
            none.
        torn: Whether a group that rewrites others lacks members, and no full group covers its root
            numbers.
    """

    interval: Interval
    version: str
    core_partitions: int
    core_there: int
    highest_root: int = NONE
    highest_overwrite: int = NONE
    torn: bool = False

    @classmethod
    def of(
        cls,
        interval: Interval,
        version: str,
        numbers: Collection[int],
        core_partitions: int,
        rewrites: Mapping[int, RootRange] | None = None,
    ) -> ChunkSummary:
        """Return the chunk of segments with these numbers.

        Args:
            interval: Their interval.
            version: Their version.
            numbers: Their numbers.
            core_partitions: Number of core partitions.
            rewrites: The root numbers of those that rewrite others.
        """
        known = rewrites or {}
        root = [number for number in numbers if number < OVERWRITE_START]
        roots = [known.get(number, RootRange(number, number + 1)) for number in numbers]
        there, torn = _standing(roots, core_partitions) if known else (None, False)
        return cls(
            interval,
            version,
            core_partitions,
            core_there=sum(n < core_partitions for n in numbers) if there is None else there,
            highest_root=max(root, default=NONE),
            highest_overwrite=max(set(numbers) - set(root), default=NONE),
            torn=torn,
        )

    @property
    def complete(self) -> bool:
        """Whether all core partitions exist; only then does the chunk hide others."""
        return self.core_there >= self.core_partitions and not self.torn

    def joined(self, other: ChunkSummary) -> ChunkSummary:
        """Return the chunk with other segments of its interval and version; none may rewrite."""
        return ChunkSummary(
            self.interval,
            self.version,
            max(self.core_partitions, other.core_partitions),
            self.core_there + other.core_there,
            max(self.highest_root, other.highest_root),
            max(self.highest_overwrite, other.highest_overwrite),
        )

    def highest(self, space: PartitionSpace) -> int:
        """Return the highest number in a space, -1 if there is none."""
        return self.highest_root if space == "root" else self.highest_overwrite


def _standing(members: Iterable[RootRange], core_partitions: int) -> tuple[int, bool]:
    """Return the number of core numbers that full groups cover, and whether a group is torn."""
    counts = Counter(members)
    full = [group for group, count in counts.items() if count == group.group_size]
    newer = [group for group in full if group.minor_version]
    seen = [group for group in full if not any(other.overshadows(group) for other in newer)]
    there: set[int] = set()
    for group in seen:
        there.update(range(group.start, min(group.end, core_partitions)))
    waiting = [
        group
        for group, count in counts.items()
        if count != group.group_size and not any(other.overshadows(group) for other in newer)
    ]
    # As in the timeline: beside a full or newer group, one that lacks members is hidden.
    torn = any(
        not any(group.overlaps(other) for other in seen)
        and not any(
            other.minor_version > group.minor_version for other in waiting if other.overlaps(group)
        )
        for group in waiting
    )
    return len(there), torn


class CoveredIntervals:
    """The covered times within one interval."""

    def __init__(self, interval: Interval) -> None:
        self._within = interval
        # Disjoint, ordered and not adjacent: so a covered time lies in one of them.
        self._starts: list[int] = []
        self._ends: list[int] = []

    def is_open(self, interval: Interval) -> bool:
        """Whether a part of an interval is not covered."""
        part = interval.intersection(self._within)
        if part is None or part.is_empty:
            return False
        at = bisect_right(self._starts, part.start_ms) - 1
        return at < 0 or self._ends[at] < part.end_ms

    def cover(self, interval: Interval) -> None:
        """Cover the part of an interval that lies within."""
        part = interval.intersection(self._within)
        if part is None or part.is_empty:
            return
        first = bisect_left(self._ends, part.start_ms)
        last = bisect_right(self._starts, part.end_ms)
        start_ms, end_ms = part.start_ms, part.end_ms
        if first < last:
            start_ms = min(start_ms, self._starts[first])
            end_ms = max(end_ms, self._ends[last - 1])
        self._starts[first:last] = [start_ms]
        self._ends[first:last] = [end_ms]


def not_hidden(chunks: Iterable[ChunkSummary], interval: Interval) -> list[ChunkSummary]:
    """Return the chunks, complete or not, that are not entirely hidden within `interval`."""
    skyline = CoveredIntervals(interval)
    found = []
    for chunk in sorted(chunks, key=lambda chunk: chunk.version, reverse=True):
        if skyline.is_open(chunk.interval):
            found.append(chunk)
            if chunk.complete:
                skyline.cover(chunk.interval)
    return found


def visible_chunks(chunks: Iterable[ChunkSummary], interval: Interval) -> list[ChunkSummary]:
    """Return the complete chunks that are not entirely hidden within `interval`."""
    return [chunk for chunk in not_hidden(chunks, interval) if chunk.complete]


def by_chunk(rows: Iterable[SegmentRow]) -> dict[tuple[Interval, str], list[SegmentRow]]:
    """Return rows of one datasource by interval and version."""
    groups: dict[tuple[Interval, str], list[SegmentRow]] = {}
    for row in rows:
        groups.setdefault((row.interval, row.version), []).append(row)
    return groups


def chunks_of(rows: Iterable[SegmentRow]) -> dict[tuple[Interval, str], ChunkSummary]:
    """Return the chunks of rows of one datasource, by interval and version."""
    return {
        (interval, version): ChunkSummary.of(
            interval,
            version,
            [row.partition_number for row in members],
            max(row.core_partitions for row in members),
            {
                row.partition_number: roots_of(row.partition_number, row.payload)
                for row in members
                if row.partition_number >= OVERWRITE_START
            },
        )
        for (interval, version), members in by_chunk(rows).items()
    }


def hull(rows: Iterable[SegmentRow]) -> Interval:
    """Return the shortest interval around all rows; there must be at least one."""
    intervals = [row.interval for row in rows]
    return Interval(min(i.start_ms for i in intervals), max(i.end_ms for i in intervals))
