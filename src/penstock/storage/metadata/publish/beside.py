"""Check that appended segments are still beside the visible ones.

A pending segment is allocated beside the visible segments of that moment, or in an empty interval.
Its version is fixed, but marking segments used or unused takes no locks. If a time chunk becomes
visible again that the allocation did not know, the appended segments would hide it, or be hidden by
it. An append must only add rows, so both are refused here.

An append beside a replace is not refused: the segment is hidden under its own version, and its copy
is visible under that of the replace.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, select

from penstock.core.intervals import Interval, condensed
from penstock.storage.metadata import schema
from penstock.storage.metadata.chunks.chunk import visible_chunks
from penstock.storage.metadata.chunks.reading import used_chunks
from penstock.storage.metadata.rows import PublishOutcome
from penstock.storage.metadata.sql_database import batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.storage.metadata.chunks.chunk import Chunk
    from penstock.storage.metadata.rows import PublishRequest, SegmentRow

_NEXT: Final = (
    "nothing was published, so the task fails: a supervisor starts another one, which reads the"
    " same messages again; a batch task must be submitted again"
)


def refusal_of_places(
    connection: Connection, request: PublishRequest, rows: Sequence[SegmentRow]
) -> PublishOutcome | None:
    """Return why the publish is refused, None if all its pending segments are beside visible ones.

    Args:
        connection: The transaction.
        request: The publish.
        rows: The rows to insert, including copies for the copies of pending segments. Rows without
            a pending segment are ignored: a replace is meant to hide.
    """
    placed = _of_places(connection, request.datasource, rows)
    if not placed:
        return None
    beside = _Beside(connection, request.datasource, [row.interval for row in placed])
    seen: set[str] = set()
    hidden: dict[str, tuple[SegmentRow, Chunk]] = {}
    for row in placed:
        if (clash := beside.clash(row.interval, row.version)) is not None:
            return _refused_clash(request, row, clash)
        others = beside.others(row.interval, row.version)
        if older := [chunk for chunk in others if chunk.version <= row.version]:
            return _refused(request, row, older[0], "they would be hidden by it")
        if others:
            hidden[row.upgraded_from or row.id] = (row, others[0])
        else:
            seen.add(row.upgraded_from or row.id)
    for name, (row, newer) in hidden.items():
        if name not in seen:
            return _refused(request, row, newer, "they would hide it")
    return None


def _of_places(
    connection: Connection, datasource: str, rows: Sequence[SegmentRow]
) -> list[SegmentRow]:
    """Return the rows whose ids are pending segments."""
    table = schema.pending
    starts = sorted({row.interval.start_ms for row in rows})
    places = {
        (Interval(found.start_ms, found.end_ms), found.version, found.partition_number)
        for batch in batches(starts)
        for found in connection.execute(
            select(
                table.c.start_ms, table.c.end_ms, table.c.version, table.c.partition_number
            ).where(table.c.datasource == datasource, table.c.start_ms.in_(batch))
        )
    }
    return [row for row in rows if (row.interval, row.version, row.partition_number) in places]


class _Beside:
    """The visible segments around some intervals, before the publish."""

    def __init__(
        self, connection: Connection, datasource: str, intervals: Iterable[Interval]
    ) -> None:
        found = {
            (chunk.interval, chunk.version): chunk
            for around in condensed(intervals)
            for chunk in used_chunks(connection, datasource, around)
        }
        self._chunks = sorted(found.values(), key=lambda chunk: chunk.interval)
        self._longest_ms = max((chunk.interval.length_ms for chunk in self._chunks), default=0)
        self._others: dict[tuple[Interval, str], list[Chunk]] = {}
        self._clashes: dict[tuple[Interval, str], Chunk | None] = {}

    def others(self, interval: Interval, version: str) -> list[Chunk]:
        """Return the visible chunks within an interval; none if the version's own is among them."""
        key = interval, version
        if key not in self._others:
            visible = visible_chunks(self._overlapping(interval), interval)
            mine = any((chunk.interval, chunk.version) == key for chunk in visible)
            self._others[key] = [] if mine else visible
        return self._others[key]

    def clash(self, interval: Interval, version: str) -> Chunk | None:
        """Return another, hidden chunk of the version that overlaps an interval.

        The rest of a group that lacks members is hidden, but nevertheless in the timeline.
        """
        key = interval, version
        if key not in self._clashes:
            found = (
                chunk
                for chunk in self._overlapping(interval)
                if chunk.version == version and chunk.interval != interval and not chunk.complete
            )
            self._clashes[key] = next(found, None)
        return self._clashes[key]

    def _overlapping(self, interval: Interval) -> list[Chunk]:
        chunks = self._chunks
        first = bisect_right(
            chunks, interval.start_ms - self._longest_ms - 1, key=lambda one: one.interval.start_ms
        )
        last = bisect_left(chunks, interval.end_ms, key=lambda one: one.interval.start_ms)
        return [chunk for chunk in chunks[first:last] if chunk.interval.overlaps(interval)]


def _refused(request: PublishRequest, row: SegmentRow, chunk: Chunk, what: str) -> PublishOutcome:
    return PublishOutcome(
        ok=False,
        reason=(
            f"task {request.task_id!r}: its segment {row.id!r} was allocated while the segments of"
            f" {chunk.interval} with the version {chunk.version!r} were hidden; they are visible"
            f" again, and {what}; {_NEXT}"
        ),
    )


def _refused_clash(request: PublishRequest, row: SegmentRow, chunk: Chunk) -> PublishOutcome:
    return PublishOutcome(
        ok=False,
        reason=(
            f"task {request.task_id!r}: its segment {row.id!r} overlaps the segments of"
            f" {chunk.interval}, which have its version, so the two could not be read together."
            " These lack others of their group, so they are hidden: mark those used, or these"
            f" unused; {_NEXT}"
        ),
    )
