"""The visible rows of a datasource, as files and the part of time that counts of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.indexing.engine import DataFile
from penstock.segments.model import Segment
from penstock.segments.shardspec import KeyRange, RootRange
from penstock.segments.timeline import Chunk, Timeline

if TYPE_CHECKING:
    from penstock.core.intervals import Interval
    from penstock.indexing.batch.ports import AttemptStore
    from penstock.storage.metadata import SegmentRow


@dataclass(frozen=True, slots=True)
class VisibleSegment:
    """A segment and the part of its time that no newer version hides, within what was asked."""

    segment: Segment
    interval: Interval

    def to_input(self, store: AttemptStore) -> tuple[DataFile, Interval]:
        """Return it as the engine takes it."""
        segment = self.segment
        file = DataFile(
            store.location(segment.load_spec),
            segment.interval,
            segment.total_rows,
            segment.size,
            segment.interval.start_ms,
            segment.interval.end_ms - 1,
            segment.columns,
        )
        return file, self.interval


def visible_segments(
    rows: Iterable[SegmentRow], intervals: Iterable[Interval]
) -> list[VisibleSegment]:
    """Return what is visible in intervals, in order of time; tombstones are left out.

    Args:
        rows: All used segments that overlap the intervals, so that what hides is known too.
        intervals: They do not overlap.

    Raises:
        InvalidRequest, Conflict: The rows cannot be of one datasource.
    """
    timeline = Timeline.of(
        (segment.interval, segment.version, _chunk(segment))
        for segment in map(Segment.from_row, rows)
    )
    return [found for interval in intervals for found in _within(timeline, interval)]


def _chunk(segment: Segment) -> Chunk[Segment]:
    shard = segment.shard_spec
    place = shard.layout if shard.overwrites or shard.is_chained else None
    assert place is None or isinstance(place, RootRange | KeyRange)
    return Chunk(
        shard.partition_number, shard.core_partitions, segment, segment.is_tombstone, place
    )


def _within(timeline: Timeline[Segment], interval: Interval) -> Iterator[VisibleSegment]:
    for piece in timeline.lookup(interval, skip_no_data=True):
        for chunk in piece.chunks:
            yield VisibleSegment(chunk.item, piece.interval)
