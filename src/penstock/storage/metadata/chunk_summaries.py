"""Chunk summaries: the used segments of one interval and version, summed up. Pure.

Owns the step from rows of segments, or sums over them, to the rules of `penstock.core.timeline`,
for the few decisions about visibility that a transaction makes itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.intervals import Interval
from penstock.core.timeline.chunks import OVERWRITE_START, RootRange, UpdateGroups
from penstock.core.timeline.visible import VisibleTimeline

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penstock.storage.metadata.payloads import JsonObject
    from penstock.storage.metadata.rows.pending_segments import PartitionSpace
    from penstock.storage.metadata.rows.segments import SegmentRow

NONE: Final = -1
"""The highest number if there is none."""


def roots_of(number: int, payload: JsonObject) -> RootRange:
    """Return the root numbers of a segment: its own number, unless it rewrites others."""
    spec = payload.get("shardSpec")
    if number < OVERWRITE_START or not isinstance(spec, Mapping):
        return RootRange.of(number)
    names = ("startRootPartitionId", "endRootPartitionId", "minorVersion", "atomicUpdateGroupSize")
    given = [spec.get(name) for name in names]
    values = [value for value in given if isinstance(value, int)]
    return RootRange(*values) if len(values) == len(names) else RootRange.of(number)


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
        core_there, torn = sum(number < core_partitions for number in numbers), False
        if known:
            roots = (known.get(number, RootRange.of(number)) for number in numbers)
            groups = UpdateGroups.of(Counter(roots))
            core_there, torn = groups.existing_core(core_partitions), bool(groups.partial)
        return cls(
            interval,
            version,
            core_partitions,
            core_there,
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


def not_hidden(chunks: Iterable[ChunkSummary], interval: Interval) -> list[ChunkSummary]:
    """Return the chunks, complete or not, that are not entirely hidden within `interval`.

    They are in the order of versions, the largest first.
    """
    every = sorted(chunks, key=lambda chunk: chunk.version, reverse=True)
    visible = VisibleTimeline.of([chunk for chunk in every if chunk.complete])
    return [chunk for chunk in every if _shows(chunk, interval, visible)]


def _shows(chunk: ChunkSummary, interval: Interval, visible: VisibleTimeline[ChunkSummary]) -> bool:
    """Return whether a chunk has a part within `interval` that no newer chunk hides."""
    part = chunk.interval.intersection(interval)
    if part is None:
        return False
    return not all(
        other is not None and other.version > chunk.version for other in visible.cover(part)
    )


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


def enclosing_interval(rows: Iterable[SegmentRow]) -> Interval:
    """Return the shortest interval around all rows; there must be at least one."""
    intervals = [row.interval for row in rows]
    return Interval(min(i.start_ms for i in intervals), max(i.end_ms for i in intervals))
