"""Additional rows of a replace: segments that were appended meanwhile, under its version.

The segments that were appended within the REPLACE lock since it was acquired are not in the task's
output, and its version would hide them: each is listed again, with the same file, in the replaced
interval. The pending segments of appending tasks get copies there, for later appends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Connection, func, or_, select

from penstock.core.interval_index import IntervalIndex
from penstock.storage.metadata import schema
from penstock.storage.metadata.chunk_summaries import by_chunk
from penstock.storage.metadata.publish.segment_rows import (
    copy_of,
    shard_spec,
    with_core_partitions,
)
from penstock.storage.metadata.publish.upgrades import read_upgrades
from penstock.storage.metadata.row_mapper import PENDING, SEGMENTS
from penstock.storage.metadata.rows.pending_segments import PendingRow
from penstock.storage.metadata.segment_deletion import highest_killed
from penstock.storage.metadata.sql_database import in_batches
from penstock.storage.metadata.time_chunks import chunk_named, of_chunk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.core.intervals import Interval
    from penstock.storage.metadata.rows.publish import PublishRequest
    from penstock.storage.metadata.rows.segments import SegmentRow

TWIN_SEQUENCE = "upgraded_to_version__"

# Created once: a replace may write thousands of time chunks, and each needs it.
_HIGHEST = [
    select(func.max(table.c.partition_number)).where(*of_chunk(table))
    for table in (schema.segments, schema.pending)
]


@dataclass(frozen=True, slots=True)
class Replacement:
    """The rows that a publish inserts, and the copies of pending segments that it creates."""

    rows: Sequence[SegmentRow]
    upgraded_rows: Sequence[PendingRow]


class _Target:
    """One replaced interval: the task's segments in it, and the next free number."""

    def __init__(self, rows: Sequence[SegmentRow], highest_known: int) -> None:
        self.interval, self.version = rows[0].interval, rows[0].version
        self.rows = rows
        self.datasource = rows[0].datasource
        numbers = sorted(row.partition_number for row in rows)
        self._next = max(numbers[-1], highest_known) + 1
        # A set with a gap would never be complete, and a tombstone has no set.
        self._closed = self._next == len(numbers) and not any(
            shard_spec(row).get("type") == "tombstone" for row in rows
        )
        self._core = max(row.core_partitions for row in rows)
        self._appended: list[SegmentRow] = []

    def number(self) -> int:
        """Return the next free number."""
        self._next += 1
        return self._next - 1

    def appended(self, row: SegmentRow) -> None:
        """Add a segment that was appended meanwhile."""
        self._appended.append(row)

    def close(self) -> list[SegmentRow]:
        """Return all rows: one core set, if it has no gap, so that they are visible together."""
        if not self._appended:
            return list(self.rows)
        numbers = [self.number() for _ in self._appended]
        core = self._core
        rows = list(self.rows)
        if self._closed:
            core = self._core = numbers[-1] + 1
            rows = [with_core_partitions(row, core) for row in rows]
        copies = [
            copy_of(row, self.interval, self.version, number, core)
            for row, number in zip(self._appended, numbers, strict=True)
        ]
        return [*rows, *copies]

    def upgraded_row(self, place: PendingRow, now_ms: int) -> PendingRow:
        """Return the copy of a pending segment; call it after `close`."""
        return PendingRow(
            datasource=place.datasource,
            interval=self.interval,
            version=self.version,
            partition_number=self.number(),
            core_partitions=self._core,
            sequence_name=f"{TWIN_SEQUENCE}{self.version}",
            created_ms=now_ms,
            previous_id=place.id,
            allocator_id=place.allocator_id,
            upgraded_from=place.id,
        )


class _Targets:
    """The replaced intervals, searchable by time: mostly disjoint, and up to thousands."""

    def __init__(self, targets: Iterable[_Target]) -> None:
        self.all = tuple(sorted(targets, key=_place))
        self._by_time = IntervalIndex[_Target]()
        for target in self.all:
            self._by_time.add(target.interval, target)

    def around(self, interval: Interval) -> _Target | None:
        """Return the first that covers an interval."""
        covering = (t for t in self._by_time.overlapping(interval) if t.interval.covers(interval))
        return min(covering, key=_place, default=None)

    def overlapping(self, interval: Interval) -> Iterator[_Target]:
        """Yield those that overlap an interval."""
        return self._by_time.overlapping(interval)


def _place(target: _Target) -> tuple[Interval, str]:
    return target.interval, target.version


def plan_replace(connection: Connection, request: PublishRequest, now_ms: int) -> Replacement | str:
    """Return the rows of a replace; or why it is refused, if it is finer than appended segments."""
    targets = _targets(connection, request.segments)
    for row in _appended_meanwhile(connection, request.task_id):
        target = targets.around(row.interval)
        if target is None and any(targets.overlapping(row.interval)):
            return _too_fine(request, row.id)
        # Where the task wrote nothing, nothing hides the segment.
        if target is not None and row.version < target.version:
            target.appended(row)
    rows = [row for target in targets.all for row in target.close()]
    upgraded_rows = []
    for place in _places_below(connection, targets):
        target = targets.around(place.interval)
        if target is not None:
            if place.version < target.version:
                upgraded_rows.append(target.upgraded_row(place, now_ms))
        elif place.allocator_id and any(
            place.version < t.version for t in targets.overlapping(place.interval)
        ):
            return _too_fine(request, place.id)
    return Replacement(rows, upgraded_rows)


def _targets(connection: Connection, segments: Iterable[SegmentRow]) -> _Targets:
    return _Targets(
        _Target(rows, _highest_known(connection, rows[0])) for rows in by_chunk(segments).values()
    )


def _highest_known(connection: Connection, place: SegmentRow) -> int:
    """Return the highest number of the interval and version, -1 if there is none."""
    highest = highest_killed(connection, place.datasource, place.interval, place.version)
    asked = chunk_named(place.datasource, place.interval, place.version)
    for query in _HIGHEST:
        found = connection.execute(query, asked).scalar()
        highest = max(highest, -1 if found is None else int(found))
    return highest


def _appended_meanwhile(connection: Connection, task_id: str) -> list[SegmentRow]:
    """Return the segments to list again.

    A segment is listed if any row of its file is used: an earlier replace may have hidden the first
    of them. If a user marked all of them unused, it stays unused.
    """
    named = list(read_upgrades(connection, task_id))
    table = schema.segments
    family = [
        SEGMENTS.record(found)
        for batch in in_batches(named)
        for found in connection.execute(
            select(table).where(or_(table.c.id.in_(batch), table.c.upgraded_from.in_(batch)))
        )
    ]
    in_view = {row.upgraded_from or row.id for row in family if row.used}
    # By its own row; or by that of a copy, if the janitor marked it and a kill deleted it.
    found = {row.upgraded_from: row for row in family} | {row.id: row for row in family}
    rows = (found[name] for name in sorted(named) if name in found)
    return [row for row in rows if (row.upgraded_from or row.id) in in_view]


def _places_below(connection: Connection, targets: _Targets) -> list[PendingRow]:
    """Return the pending segments that overlap the replaced intervals, without copies."""
    if not targets.all:
        return []
    table = schema.pending
    query = (
        select(table)
        .where(
            table.c.datasource == targets.all[0].datasource,
            table.c.start_ms < max(target.interval.end_ms for target in targets.all),
            table.c.end_ms > min(target.interval.start_ms for target in targets.all),
            table.c.upgraded_from == "",
        )
        .order_by(table.c.start_ms, table.c.end_ms, table.c.version, table.c.partition_number)
    )
    places = [PENDING.record(found) for found in connection.execute(query)]
    return [place for place in places if any(targets.overlapping(place.interval))]


def _too_fine(request: PublishRequest, name: str) -> str:
    return (
        f"task {request.task_id!r} replaced only a part of the interval of {name}, which another "
        "task appends meanwhile: a finer granularity than that of a concurrent append is "
        "unsupported, so replace with its segmentGranularity or a coarser one"
    )
