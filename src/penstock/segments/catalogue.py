"""From a metadata snapshot to the segments that a query reads.

Owns the step from rows to visible pieces, and what is kept from one revision to the next. It does
not read the metadata (whoever owns the store hands snapshots in), nor files. Invariants: a view is
immutable and of exactly one revision; what did not change is not worked out again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import ETERNITY, Interval
from penstock.segments.model import Segment
from penstock.segments.timeline import Chunk, Timeline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.storage.metadata import AnnouncedRow, SegmentRow, Snapshot


@dataclass(frozen=True, slots=True)
class VisiblePiece:
    """A segment, and the time of it that counts."""

    segment: Segment
    interval: Interval

    @property
    def clipped(self) -> bool:
        """Whether rows of the segment outside `interval` must be left out."""
        return self.interval != self.segment.interval


@dataclass(frozen=True, slots=True)
class CatalogueView:
    """What is visible at one revision; may be read by any thread."""

    revision: int
    pieces: Mapping[str, tuple[VisiblePiece, ...]]
    announced_rows: Mapping[str, tuple[AnnouncedRow, ...]]

    def datasources(self) -> list[str]:
        """Return the names of all datasources that have something visible."""
        return sorted(self.pieces.keys() | self.announced_rows.keys())

    def visible(self, datasource: str, interval: Interval | None = None) -> list[VisiblePiece]:
        """Return the visible pieces in time order, cut to the interval; none if it is unknown."""
        pieces = self.pieces.get(datasource, ())
        if interval is None:
            return list(pieces)
        # Pieces of two sets never overlap and those of one set are alike: ends are sorted too.
        first = bisect_right(pieces, interval.start_ms, key=lambda piece: piece.interval.end_ms)
        last = bisect_left(pieces, interval.end_ms, key=lambda piece: piece.interval.start_ms)
        cut = ((piece, piece.interval.intersection(interval)) for piece in pieces[first:last])
        return [VisiblePiece(piece.segment, part) for piece, part in cut if part is not None]

    def announced(self, datasource: str) -> tuple[AnnouncedRow, ...]:
        """Return the files that running tasks show; none if the datasource is unknown."""
        return self.announced_rows.get(datasource, ())


class Catalogue:
    """Keeps a timeline for each datasource and moves it from snapshot to snapshot. One owner."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], SegmentRow] = {}
        self._segments_revision = -1
        self._timelines: dict[str, Timeline[Segment]] = {}
        self._view = CatalogueView(-1, {}, {})

    def view(self, snapshot: Snapshot) -> CatalogueView:
        """Return what is visible in a snapshot; take snapshots of one kind, in any order.

        Raises:
            InvalidRequest: A segment's payload cannot be read; the message names it.
            Conflict: Two segments exclude each other.
        """
        if snapshot.revision == self._view.revision:
            return self._view
        pieces = self._view.pieces
        if snapshot.segments_revision != self._segments_revision:
            try:
                pieces = self._move_to(snapshot)
            except BaseException:
                # Half way is nowhere: the next snapshot starts from nothing.
                self._rows, self._timelines, self._segments_revision = {}, {}, -1
                self._view = CatalogueView(-1, {}, {})
                raise
        announced: dict[str, list[AnnouncedRow]] = {}
        for row in snapshot.announced:
            announced.setdefault(row.datasource, []).append(row)
        self._view = CatalogueView(
            snapshot.revision, pieces, {name: tuple(rows) for name, rows in announced.items()}
        )
        return self._view

    def overshadowed(self) -> list[Segment]:
        """Return the segments of the last snapshot that nothing shows any more."""
        return [
            chunk.item
            for timeline in self._timelines.values()
            for piece in timeline.find_fully_overshadowed()
            for chunk in piece.chunks
        ]

    def _move_to(self, snapshot: Snapshot) -> dict[str, tuple[VisiblePiece, ...]]:
        # A row that was deleted and published again under the same id has another time.
        rows = {(row.id, row.used_changed_ms): row for row in snapshot.segments}
        removed = [row for key, row in self._rows.items() if key not in rows]
        added = [row for key, row in rows.items() if key not in self._rows]
        # Removed ones first: what takes their place may overlap them with the same version.
        for row in removed:
            self._timelines[row.datasource].remove(row.interval, row.version, row.partition_number)
        for row in added:
            timeline = self._timelines.setdefault(row.datasource, Timeline())
            timeline.add(row.interval, row.version, _chunk(row))
        self._rows = rows
        self._segments_revision = snapshot.segments_revision
        pieces = dict(self._view.pieces)
        for datasource in {row.datasource for row in (*removed, *added)}:
            found = _visible(self._timelines[datasource])
            if found:
                pieces[datasource] = found
            else:
                pieces.pop(datasource, None)
        return pieces


def _chunk(row: SegmentRow) -> Chunk[Segment]:
    try:
        segment = Segment.from_row(row)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"the payload of segment {row.id!r} in the metadata cannot be read ({error}): "
            "mark the segment unused and load its time again"
        ) from error
    return Chunk(row.partition_number, row.core_partitions, segment, segment.is_tombstone)


def _visible(timeline: Timeline[Segment]) -> tuple[VisiblePiece, ...]:
    return tuple(
        VisiblePiece(chunk.item, piece.interval)
        for piece in timeline.lookup(ETERNITY, skip_no_data=True)
        for chunk in piece.chunks
    )
