"""The visible rows of a datasource, as files with their visible intervals.

Also computes the basis of a publish that replaces these rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.intervals import condensed
from penstock.indexing.actions import SegmentListUsed
from penstock.indexing.engine import DataFile
from penstock.segments.catalog import timeline_of, visible_pieces
from penstock.storage.metadata import PublishBasis

if TYPE_CHECKING:
    from penstock.core.intervals import Interval
    from penstock.indexing.batch.batch_ports import AttemptStore
    from penstock.indexing.batch.retrying_caller import RetryingCaller
    from penstock.segments.segment import Segment
    from penstock.storage.metadata import SegmentRow


@dataclass(frozen=True, slots=True)
class VisibleSegment:
    """A segment and the part of its interval that is visible, within the requested one."""

    segment: Segment
    interval: Interval

    def to_input(self, store: AttemptStore) -> tuple[DataFile, Interval]:
        """Return it in the form that the engine takes."""
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


class SegmentListing:
    """Lists the used segments of datasources. On the thread of one task.

    Args:
        retries: Sends actions to the overlord.
    """

    def __init__(self, retries: RetryingCaller) -> None:
        self._retries = retries

    def rows(
        self, datasource: str, intervals: Iterable[Interval], *, replacing: bool
    ) -> tuple[tuple[SegmentRow, ...], tuple[Interval, ...]]:
        """Return the existing segments, and the intervals, condensed.

        `replacing` excludes those that the publish keeps.
        """
        wanted = tuple(condensed(intervals))
        action = SegmentListUsed(datasource, wanted, replacing)
        return self._retries.perform("listing segments", action), wanted

    def visible(self, datasource: str, intervals: Iterable[Interval]) -> list[VisibleSegment]:
        """Return the visible segments in intervals."""
        return visible_segments(*self.rows(datasource, intervals, replacing=False))


def visible_segments(
    rows: Iterable[SegmentRow], intervals: Iterable[Interval]
) -> list[VisibleSegment]:
    """Return the visible segments in intervals, in order of time; tombstones are left out.

    Args:
        rows: All used segments that overlap the intervals, including those that hide others.
        intervals: They do not overlap.

    Raises:
        InvalidRequest, Conflict: The rows cannot be of one datasource.
    """
    visible = timeline_of(rows).visible()
    return [
        VisibleSegment(piece.segment, piece.interval)
        for interval in intervals
        for piece in visible_pieces(visible, interval)
    ]


def basis_of(rows: Iterable[SegmentRow], intervals: Iterable[Interval]) -> PublishBasis:
    """Return the basis of a task that reads the rows and replaces the intervals.

    Args:
        rows: All used segments that overlap the intervals, and others.
        intervals: The replaced intervals.
    """
    within = condensed(intervals)
    listed = [row for row in rows if touches(row.interval, within)]
    hidden = {
        str(chunk.item.id)
        for piece in timeline_of(listed).find_fully_overshadowed()
        for chunk in piece.chunks
    }
    shown = frozenset(row.id for row in listed) - hidden
    return PublishBasis(tuple(within), shown, frozenset(hidden))


def touches(interval: Interval, others: Sequence[Interval]) -> bool:
    """Return whether an interval overlaps one of others, which are condensed."""
    at = bisect_right(others, interval.start_ms, key=lambda one: one.end_ms)
    return at < len(others) and others[at].overlaps(interval)


def joined(one: PublishBasis, other: PublishBasis) -> PublishBasis:
    """Return the basis of a task that has listed segments twice."""
    shown = {*one.shown, *other.shown}
    return PublishBasis(
        tuple(condensed([*one.intervals, *other.intervals])),
        frozenset(shown),
        frozenset({*one.hidden, *other.hidden} - shown),
    )
