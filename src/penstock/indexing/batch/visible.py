"""The visible rows of a datasource, as files and the part of time that counts of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.indexing.engine import DataFile
from penstock.segments.catalogue import timeline_of, visible_pieces

if TYPE_CHECKING:
    from penstock.core.intervals import Interval
    from penstock.indexing.batch.ports import AttemptStore
    from penstock.segments.model import Segment
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
    skyline = timeline_of(rows).visible()
    return [
        VisibleSegment(piece.segment, piece.interval)
        for interval in intervals
        for piece in visible_pieces(skyline, interval)
    ]
