"""The visible segments of a metadata snapshot, for queries.

Owns the step from rows to visible pieces, and its cache between revisions. It reads neither the
metadata (the owner of the store passes snapshots in) nor files. Invariants:

- a view is immutable and of exactly one revision;
- unchanged parts are not recomputed: datasources with the same rows are skipped; for the others
  only the intervals in which segments were added or removed are recomputed;
- no row is in two pieces of a view: pieces of one datasource overlap in time only if they have the
  same interval and version, and each file of such pieces occurs once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import ETERNITY, Interval
from penstock.core.timeline.chunks import PartitionChunk
from penstock.core.timeline.timeline import Member, Timeline, VisibleEntries
from penstock.segments.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.core.timeline.entries import TimelineEntry
    from penstock.segments.segment_summary import SegmentSummary
    from penstock.storage.metadata import AnnouncedRow, SegmentRow, Snapshot

_Rows: TypeAlias = "list[SegmentRow]"
Known = TypeVar("Known", "Segment", "SegmentSummary")


@dataclass(frozen=True, slots=True)
class VisiblePiece:
    """A segment and its visible interval."""

    segment: Segment
    interval: Interval

    @property
    def clipped(self) -> bool:
        """Whether rows of the segment outside `interval` must be left out."""
        return self.interval != self.segment.interval


@dataclass(frozen=True, slots=True)
class CatalogView:
    """The visible segments at one revision; any thread may read it."""

    revision: int
    visible_timelines: Mapping[str, VisibleEntries[Segment]]
    announced_rows: Mapping[str, tuple[AnnouncedRow, ...]]

    def datasources(self) -> list[str]:
        """Return the names of all datasources with visible segments."""
        return sorted(self.visible_timelines.keys() | self.announced_rows.keys())

    def visible(self, datasource: str, interval: Interval = ETERNITY) -> list[VisiblePiece]:
        """Return the visible pieces in time order, cut to the interval; none if unknown."""
        visible = self.visible_timelines.get(datasource)
        return visible_pieces(visible, interval) if visible else []

    def announced(self, datasource: str) -> tuple[AnnouncedRow, ...]:
        """Return the files that running tasks announce; none if the datasource is unknown."""
        return self.announced_rows.get(datasource, ())


_NOTHING: Final = CatalogView(-1, {}, {})


class Catalog:
    """Holds a timeline for each datasource and updates it from snapshots. One owner."""

    def __init__(self) -> None:
        self._rows: dict[str, _Rows] = {}
        self._segments_revision = -1
        self._timelines: dict[str, Timeline[Segment]] = {}
        self._view = _NOTHING

    def view(self, snapshot: Snapshot) -> CatalogView:
        """Return the view of a snapshot; pass snapshots of one kind, in any order.

        Raises:
            InvalidRequest: A segment's payload cannot be read; the message names it.
            Conflict: Two segments exclude each other.
        """
        if snapshot.revision == self._view.revision:
            return self._view
        try:
            visible_timelines = self._view.visible_timelines
            if snapshot.segments_revision != self._segments_revision:
                visible_timelines = self._move_to(snapshot)
            announced: dict[str, list[AnnouncedRow]] = {}
            for row in snapshot.announced:
                announced.setdefault(row.datasource, []).append(row)
            self._view = CatalogView(
                snapshot.revision,
                visible_timelines,
                {name: tuple(rows) for name, rows in announced.items()},
            )
        except BaseException:
            # Without a view of these rows, the next snapshot must be processed completely.
            self._segments_revision = -1
            self._rows, self._timelines = {}, {}
            self._view = _NOTHING
            raise
        return self._view

    def overshadowed(self) -> list[Segment]:
        """Return the segments of the last snapshot that are completely overshadowed."""
        return [
            chunk.item
            for timeline in self._timelines.values()
            for piece in timeline.find_fully_overshadowed()
            for chunk in piece.chunks
        ]

    def _move_to(self, snapshot: Snapshot) -> dict[str, VisibleEntries[Segment]]:
        rows = _by_datasource(snapshot.segments)
        visible_timelines = dict(self._view.visible_timelines)
        for name in self._rows.keys() | rows.keys():
            if not self._move(name, rows.get(name, [])):
                continue
            visible = self._timelines[name].visible()
            if any(not entry.no_data for entry in visible.entries()):
                visible_timelines[name] = visible
            else:
                visible_timelines.pop(name, None)
            if name not in rows:
                del self._timelines[name]
        self._rows = rows
        self._segments_revision = snapshot.segments_revision
        return visible_timelines

    def _move(self, name: str, rows: _Rows) -> bool:
        """Update the timeline of one datasource to its rows; return whether anything changed."""
        before = self._rows.get(name, [])
        if len(rows) == len(before) and all(map(is_, rows, before)):
            return False
        if not before:
            self._timelines[name] = timeline_of(rows)
            return True
        known, wanted = ({_key(row): row for row in side} for side in _unlike(before, rows))
        removed = [row for key, row in known.items() if key not in wanted]
        added = [row for key, row in wanted.items() if key not in known]
        self._timelines[name].change(
            removed=((row.interval, row.version, row.partition_number) for row in removed),
            added=map(_member, added),
        )
        return bool(removed or added)


def timeline_of(rows: Iterable[SegmentRow]) -> Timeline[Segment]:
    """Return the timeline of one datasource.

    Raises:
        InvalidRequest: A segment's payload cannot be read; the message names it.
        Conflict: Two segments exclude each other.
    """
    return Timeline.of(map(_member, rows))


def visible_pieces(
    visible: VisibleEntries[Segment], interval: Interval = ETERNITY
) -> list[VisiblePiece]:
    """Return the pieces that have rows within an interval, in time order, cut to it."""
    found: list[VisiblePiece] = []
    for start_ms, end_ms, entry in visible.spans(interval):
        part = Interval(max(start_ms, interval.start_ms), min(end_ms, interval.end_ms))
        found.extend(VisiblePiece(segment, part) for segment in with_rows(entry))
    return found


def _by_datasource(rows: Sequence[SegmentRow]) -> dict[str, _Rows]:
    found: dict[str, _Rows] = {}
    for name, group in groupby(rows, attrgetter("datasource")):
        found.setdefault(name, []).extend(group)
    return found


def _unlike(before: _Rows, rows: _Rows) -> tuple[_Rows, _Rows]:
    """Return two lists without the objects that both have at the beginning and at the end."""
    count = min(len(before), len(rows))
    head = bytes(map(is_, before, rows)).find(0)
    head = count if head < 0 else head
    tail = bytes(map(is_, reversed(before[head:]), reversed(rows[head:]))).find(0)
    tail = count - head if tail < 0 else tail
    return before[head : len(before) - tail], rows[head : len(rows) - tail]


def _key(row: SegmentRow) -> tuple[str, int]:
    # A row that was deleted and published again under the same id has another time.
    return row.id, row.used_changed_ms


def _member(row: SegmentRow) -> Member[Segment]:
    try:
        segment = Segment.from_row(row)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"the payload of segment {row.id!r} in the metadata cannot be read ({error}): "
            "mark the segment unused and load its interval again"
        ) from error
    spec = segment.shard_spec
    chunk = PartitionChunk(
        spec.partition_number, spec.core_partitions, segment, segment.is_tombstone, spec.place
    )
    return segment.interval, segment.version, chunk


def with_rows(entry: TimelineEntry[Known]) -> Iterator[Known]:
    """Yield the segments, or outlines, of an entry that have rows, each file once.

    A replacement copies segments that were appended meanwhile: the copy names the same file under
    another id, in another version, and only one of the two is visible. A file that is copied twice
    still counts once.
    """
    taken_over: set[str] = set()
    for chunk in entry.visible:
        if chunk.no_data:
            continue
        origin = chunk.item.upgraded_from
        if origin and origin in taken_over:
            continue
        taken_over.add(origin)
        yield chunk.item
