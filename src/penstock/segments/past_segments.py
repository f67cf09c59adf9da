"""Visible segments of earlier revisions, and the rows that appeared or went between two.

Owns the step from the rows of `storage.metadata.segment_history` to visible pieces. Visibility is
that of `catalog`. A file counts once: a copy of a segment under another id, which a replacement
made, has the same rows, so it neither adds nor removes them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.intervals import Interval, condensed
from penstock.segments.catalog import VisiblePiece, timeline_of, visible_pieces

if TYPE_CHECKING:
    from penstock.storage.metadata import MetadataStore, SegmentRow


@dataclass(frozen=True, slots=True)
class VisibleChanges:
    """Rows that appeared or went between two revisions of a datasource.

    Attributes:
        after: The earlier revision.
        revision: The later revision.
        added: Pieces of segments that are visible at the later revision only, in time order.
        removed: Pieces that are visible at the earlier one only.
        rows_read: Number of segments around them that were read.
    """

    after: int
    revision: int
    added: Sequence[VisiblePiece]
    removed: Sequence[VisiblePiece]
    rows_read: int


def visible_at(store: MetadataStore, datasource: str, revision: int) -> list[VisiblePiece]:
    """Return the segments of a datasource that were visible at a revision, in time order.

    Files that tasks had announced then are not known any longer, so they are left out.

    Raises:
        InvalidRequest: There is no such revision yet, or a segment's payload cannot be read.
        NotFound: The revision is no longer known.
        Unavailable: The metadata store does not answer.
    """
    return visible_pieces(timeline_of(store.history.at(datasource, revision)).visible())


def changes_between(
    store: MetadataStore, datasource: str, after: int, revision: int
) -> VisibleChanges:
    """Return the rows that appeared or went after one revision until another one.

    A row is in `added` if it is visible at the later revision and not at the earlier one,
    regardless of those in between. Only the times in which segments changed are read.

    Raises:
        InvalidRequest: There is no such revision yet, they are in the wrong order, or a segment's
            payload cannot be read.
        NotFound: The earlier revision is no longer known.
        Unavailable: The metadata store does not answer.
    """
    found = store.history.between(datasource, after, revision)
    before, now = (_pieces_in(rows, found.times) for rows in (found.before, found.after))
    added, removed = _difference(now, before), _difference(before, now)
    return VisibleChanges(after, revision, added, removed, len(found.before) + len(found.after))


def _pieces_in(rows: Sequence[SegmentRow], times: Sequence[Interval]) -> list[VisiblePiece]:
    visible = timeline_of(rows).visible()
    return [piece for time in times for piece in visible_pieces(visible, time)]


def _difference(
    pieces: Iterable[VisiblePiece], others: Iterable[VisiblePiece]
) -> list[VisiblePiece]:
    """Return the parts of pieces that no piece of the same file among the others has."""
    hidden = _times_by_file(others)
    whole: defaultdict[str, list[VisiblePiece]] = defaultdict(list)
    for piece in pieces:
        whole[_file_of(piece)].append(piece)
    found = []
    for name, same in whole.items():
        # Pieces of one file may touch where a change begins.
        for time in condensed(piece.interval for piece in same):
            parts = _without(time, hidden.get(name, ()))
            found += [VisiblePiece(same[-1].segment, part) for part in parts]
    found.sort(key=lambda piece: (piece.interval, piece.segment))
    return found


def _times_by_file(pieces: Iterable[VisiblePiece]) -> Mapping[str, Sequence[Interval]]:
    found: defaultdict[str, list[Interval]] = defaultdict(list)
    for piece in pieces:
        found[_file_of(piece)].append(piece.interval)
    return {name: condensed(times) for name, times in found.items()}


def _file_of(piece: VisiblePiece) -> str:
    """Return a name that all copies of a segment share, as they share its file."""
    return piece.segment.upgraded_from or str(piece.segment.id)


def _without(time: Interval, others: Sequence[Interval]) -> Iterator[Interval]:
    """Yield the parts of an interval outside others, which are disjoint and in order."""
    start_ms = time.start_ms
    for other in others:
        if other.end_ms <= start_ms or other.start_ms >= time.end_ms:
            continue
        if other.start_ms > start_ms:
            yield Interval(start_ms, other.start_ms)
        start_ms = other.end_ms
    if start_ms < time.end_ms:
        yield Interval(start_ms, time.end_ms)
