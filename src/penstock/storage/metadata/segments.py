"""Segments by id, interval and version: used, unused and pending ones.

Only a publish inserts rows. Only used segments can be visible; marking changes that, and never
makes segments visible that newer ones hide. Unused rows are kept until `kill`.
Invariant: a file that an existing row names is never reported as free.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from sqlalchemy import ColumnElement, Connection, bindparam, delete, select, true, tuple_, update

from penstock.core.interval_index import IntervalIndex
from penstock.core.intervals import ETERNITY, Interval, condensed
from penstock.storage.metadata import schema, segment_history
from penstock.storage.metadata.allocation import pending_intervals
from penstock.storage.metadata.chunk_summaries import visible_chunks
from penstock.storage.metadata.publish.upgrades import read_upgrades
from penstock.storage.metadata.revision import raise_revision, read_revision, take_turn
from penstock.storage.metadata.row_mapper import PENDING, SEGMENTS
from penstock.storage.metadata.rows.pending_segments import OccupiedChunks
from penstock.storage.metadata.segment_deletion import kill, require_no_backup
from penstock.storage.metadata.sql_database import in_batches
from penstock.storage.metadata.time_chunks import overlapping, shown_if_used, used_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.storage.metadata.rows.pending_segments import PendingRow
    from penstock.storage.metadata.rows.segments import KilledSegments, SegmentRow
    from penstock.storage.metadata.sql_database import Transactions

_UNUSED_LISTED: Final = 1_000


class Segments:
    """The segments and pending tables."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def by_ids(self, ids: Iterable[str]) -> list[SegmentRow]:
        """Return the existing rows of these ids, used or not, in no order."""
        wanted = list(ids)
        return self._database.read(lambda c: _by_ids(c, wanted))

    def used(
        self,
        datasource: str,
        interval: Interval | None = None,
        *,
        replaced_by: str | None = None,
    ) -> list[SegmentRow]:
        """Return the used segments that overlap an interval, ordered by time and version.

        Overshadowed ones are included. No other rows are read, however many there are.

        Args:
            datasource: The datasource.
            interval: The interval; None means the whole datasource.
            replaced_by: A replacing task that reads its input: segments that were appended since it
                acquired its lock are left out, because its commit lists them again by itself.
        """
        table = schema.segments

        def work(connection: Connection) -> list[SegmentRow]:
            conditions = [table.c.used, table.c.datasource == datasource]
            if interval is not None:
                conditions += overlapping(connection, datasource, interval)
            query = (
                select(table)
                .where(*conditions)
                .order_by(
                    table.c.start_ms, table.c.end_ms, table.c.version, table.c.partition_number
                )
            )
            rows = [SEGMENTS.record(row) for row in connection.execute(query)]
            if replaced_by is None:
                return rows
            since = read_upgrades(connection, replaced_by)
            return [row for row in rows if row.id not in since and row.upgraded_from not in since]

        return self._database.read(work)

    def newest(self, datasource: str) -> SegmentRow | None:
        """Return the used segment that begins last, of several the one with the highest version."""
        table = schema.segments
        order = (table.c.start_ms, table.c.end_ms, table.c.version, table.c.partition_number)
        query = (
            select(table)
            .where(table.c.used, table.c.datasource == datasource)
            .order_by(*(column.desc() for column in order))
            .limit(1)
        )
        found = self._database.read(lambda c: c.execute(query).first())
        return None if found is None else SEGMENTS.record(found)

    def mark_unused_at(self, chunks: Iterable[tuple[str, Interval]]) -> int:
        """Mark the segments with exactly these intervals unused; return how many were used."""
        wanted = [
            {"b_datasource": name, "b_start_ms": interval.start_ms, "b_end_ms": interval.end_ms}
            for name, interval in chunks
        ]
        table = schema.segments
        mine = [
            column == bindparam(f"b_{column.name}")
            for column in (table.c.datasource, table.c.start_ms, table.c.end_ms)
        ]

        def work(connection: Connection) -> int:
            take_turn(connection)
            return self._turn(connection, [table.c.used, *mine], each=wanted, used=False)

        return self._database.write(work) if wanted else 0

    def mark_unused(self, ids: Iterable[str]) -> int:
        """Mark segments unused; return how many were used until now."""
        wanted = list(ids)

        def work(connection: Connection) -> int:
            take_turn(connection)
            return self._mark(connection, wanted, used=False)

        return self._database.write(work)

    def mark_unused_within(
        self,
        datasource: str,
        interval: Interval | None = None,
        *,
        versions: Sequence[str] | None = None,
    ) -> int:
        """Mark the segments within an interval, or all, unused; return how many were used.

        Args:
            datasource: The datasource.
            interval: A segment that only overlaps it is not changed.
            versions: Only segments of these versions.
        """
        conditions = _within(datasource, interval, versions)

        def work(connection: Connection) -> int:
            take_turn(connection)
            return self._turn(connection, [schema.segments.c.used, *conditions], used=False)

        return self._database.write(work)

    def mark_used(self, ids: Iterable[str]) -> int:
        """Mark unused segments used again; return how many were unused until now.

        Segments that newer ones hide are not changed, nor are those of time chunks that overlap
        others of their version, because the datasource could not be read with both. The files must
        still exist.
        """
        wanted = list(ids)

        def work(connection: Connection) -> int:
            take_turn(connection)
            rows = [row for row in _by_ids(connection, wanted) if not row.used]
            return self._mark(connection, shown_if_used(connection, rows), used=True)

        return self._database.write(work)

    def mark_used_within(
        self,
        datasource: str,
        interval: Interval | None = None,
        *,
        versions: Sequence[str] | None = None,
    ) -> int:
        """Mark the segments within an interval, or all, used, with the exceptions of `mark_used`.

        Args:
            datasource: The datasource.
            interval: A segment that only overlaps it is not changed.
            versions: Only segments of these versions.

        Returns:
            How many were unused until now.
        """
        table = schema.segments
        conditions = [~table.c.used, *_within(datasource, interval, versions)]

        def work(connection: Connection) -> int:
            take_turn(connection)
            query = select(table).where(*conditions)
            rows = [SEGMENTS.record(row) for row in connection.execute(query)]
            return self._mark(connection, shown_if_used(connection, rows), used=True)

        return self._database.write(work)

    def mark_overshadowed_unused(self, overshadowed: Iterable[str], at_revision: int) -> int:
        """Mark segments unused that a reader found overshadowed in the snapshot of `at_revision`.

        Returns:
            The number of marked segments; 0 if segments changed since, because the segments that
            overshadowed them may have been removed. Check again with a new snapshot.
        """
        wanted = list(overshadowed)

        def work(connection: Connection) -> int:
            take_turn(connection)
            row = schema.revision
            changed = connection.execute(select(row.c.segments_revision)).scalar_one()
            if changed > at_revision:
                return 0
            return self._mark(connection, wanted, used=False)

        return self._database.write(work)

    def unused(
        self,
        *,
        changed_before_ms: int,
        datasource: str | None = None,
        interval: Interval | None = None,
        versions: Sequence[str] | None = None,
        after: SegmentRow | None = None,
        changed_until: int | None = None,
        limit: int | None = None,
    ) -> list[SegmentRow]:
        """Return segments that became unused before a time, the longest unused first.

        Args:
            changed_before_ms: Excludes segments that queries may still be reading.
            datasource: Only segments of this datasource.
            interval: Only segments within it.
            versions: Only segments of these versions.
            after: Only segments that follow this one, which may not exist any longer.
            changed_until: Only segments that became unused at this revision or before.
            limit: Maximum number; None means 1,000.
        """
        table = schema.segments
        place = tuple_(table.c.used_changed_ms, table.c.id)
        query = (
            select(table)
            .where(~table.c.used, table.c.used_changed_ms < changed_before_ms)
            .where(*([] if after is None else [place > (after.used_changed_ms, after.id)]))
            .where(*([] if changed_until is None else [table.c.changed_revision <= changed_until]))
            .where(*_within(datasource, interval, versions))
            .order_by(table.c.used_changed_ms, table.c.id)
            .limit(_UNUSED_LISTED if limit is None else limit)
        )
        return self._database.read(lambda c: [SEGMENTS.record(row) for row in c.execute(query)])

    def kill(
        self,
        ids: Iterable[str],
        *,
        changed_before_ms: int | None = None,
        changed_until: Callable[[str], int] | None = None,
    ) -> KilledSegments:
        """Delete the rows of unused segments, and return the files to delete. Used ones are kept.

        Rows are deleted before files, so no row ever names a missing file. If the deletion of a
        file is interrupted, it is an orphan, which the janitor finds.

        Args:
            ids: The segments.
            changed_before_ms: Also keeps those that became unused at this time or later, because
                they were used again since they were found.
            changed_until: Returns a revision for a datasource; also keeps those that became unused
                after it.

        Raises:
            Unavailable: A backup is running.
        """
        wanted = list(ids)

        def work(connection: Connection) -> KilledSegments:
            take_turn(connection)
            require_no_backup(connection, self._database.now_ms())
            rows = [
                row
                for row in _by_ids(connection, wanted)
                if not row.used
                and (changed_before_ms is None or row.used_changed_ms < changed_before_ms)
            ]
            if changed_until is not None:
                revisions = _changed_revisions(connection, [row.id for row in rows])
                rows = [row for row in rows if revisions[row.id] <= changed_until(row.datasource)]
            return kill(connection, rows)

        return self._database.write(work)

    def every(self) -> list[SegmentRow]:
        """Return every row, used or not."""
        return self._database.read(
            lambda c: [SEGMENTS.record(row) for row in c.execute(select(schema.segments))]
        )

    def pending(self, datasource: str, interval: Interval | None = None) -> list[PendingRow]:
        """Return the pending segments, all or those of an interval."""
        table = schema.pending
        query = select(table).where(table.c.datasource == datasource)
        if interval is not None:
            query = query.where(
                table.c.start_ms < interval.end_ms, table.c.end_ms > interval.start_ms
            )
        query = query.order_by(table.c.start_ms, table.c.version, table.c.partition_number)
        return self._database.read(lambda c: [PENDING.record(row) for row in c.execute(query)])

    def occupied(self, datasource: str, intervals: Sequence[Interval]) -> list[OccupiedChunks]:
        """Return the existing time chunks of each interval, without reading rows of segments."""
        arounds = condensed(intervals)
        starts = [around.start_ms for around in arounds]

        def work(connection: Connection) -> list[OccupiedChunks]:
            known = [
                (
                    _Chunks(chunk.interval for chunk in visible_chunks(chunks, around)),
                    _Chunks(pending_intervals(connection, datasource, around)),
                )
                for around in arounds
                for chunks in [used_chunks(connection, datasource, around)]
            ]
            return [
                OccupiedChunks(visible.overlapping(interval), pending.overlapping(interval))
                for interval in intervals
                for visible, pending in [known[bisect_right(starts, interval.start_ms) - 1]]
            ]

        return self._database.read(work)

    def delete_pending(
        self,
        datasource: str | None = None,
        *,
        created_before_ms: int | None = None,
        created_from_ms: int | None = None,
        interval: Interval | None = None,
        allocator_id: str | None = None,
    ) -> int:
        """Delete the pending segments of sequences that will never publish.

        Args:
            datasource: The datasource; None means all.
            created_before_ms: Only those created before this time.
            created_from_ms: Only those created at this time or later.
            interval: Only those within it.
            allocator_id: Only those of this allocator, including their copies.

        Returns:
            The number of deleted ones.
        """
        table = schema.pending
        condition: ColumnElement[bool] = true()
        if created_before_ms is not None:
            condition &= table.c.created_ms < created_before_ms
        if created_from_ms is not None:
            condition &= table.c.created_ms >= created_from_ms
        if datasource is not None:
            condition &= table.c.datasource == datasource
        if interval is not None:
            condition &= table.c.start_ms >= interval.start_ms
            condition &= table.c.end_ms <= interval.end_ms
        if allocator_id is not None:
            condition &= table.c.allocator_id == allocator_id

        def work(connection: Connection) -> int:
            take_turn(connection)
            return connection.execute(delete(table).where(condition)).rowcount

        return self._database.write(work)

    def _mark(self, connection: Connection, ids: Sequence[str], *, used: bool) -> int:
        table = schema.segments
        return self._turn(
            connection,
            *([table.c.id.in_(batch), table.c.used.is_(not used)] for batch in in_batches(ids)),
            used=used,
        )

    def _turn(
        self,
        connection: Connection,
        *which: Sequence[ColumnElement[bool]],
        each: Sequence[Mapping[str, object]] | None = None,
        used: bool,
    ) -> int:
        """Change the segments that match any conditions; return how many.

        Args:
            connection: The connection of a transaction that has taken the turn.
            which: Conditions of rows that must change; no row matches two of them.
            each: Values of the parameters in the conditions.
            used: Whether the rows become used.
        """
        new_revision = read_revision(connection)[0] + 1
        values = {
            "used": used,
            "used_changed_ms": self._database.now_ms(),
            "changed_revision": new_revision,
        }
        changed = 0
        for conditions in which:
            if not used:
                segment_history.end_periods(connection, conditions, new_revision, each)
            change = update(schema.segments).where(*conditions).values(values)
            changed += connection.execute(change, each).rowcount
        if changed:
            raise_revision(connection, segments=True)
        return changed


def _changed_revisions(connection: Connection, ids: Sequence[str]) -> dict[str, int]:
    """Return the revision at which each segment was inserted, or last marked."""
    table = schema.segments
    found: dict[str, int] = {}
    for batch in in_batches(ids):
        query = select(table.c.id, table.c.changed_revision).where(table.c.id.in_(batch))
        found.update((row.id, row.changed_revision) for row in connection.execute(query))
    return found


class _Chunks:
    """Time chunks in a given order, searchable by interval."""

    def __init__(self, intervals: Iterable[Interval]) -> None:
        self._all = tuple(dict.fromkeys(intervals))
        self._ranks = IntervalIndex[int]()
        for rank, interval in enumerate(self._all):
            self._ranks.add(interval, rank)

    def overlapping(self, interval: Interval) -> tuple[Interval, ...]:
        """Return those that overlap an interval, in that order."""
        return tuple(self._all[rank] for rank in sorted(self._ranks.overlapping(interval)))


def _by_ids(connection: Connection, ids: Sequence[str]) -> list[SegmentRow]:
    """Return the rows of ids, each once, even if its id is repeated."""
    table = schema.segments
    return [
        SEGMENTS.record(row)
        for batch in in_batches(list(dict.fromkeys(ids)))
        for row in connection.execute(select(table).where(table.c.id.in_(batch)))
    ]


def _within(
    datasource: str | None, interval: Interval | None, versions: Sequence[str] | None
) -> list[ColumnElement[bool]]:
    table = schema.segments
    conditions: list[ColumnElement[bool]] = []
    if datasource is not None:
        conditions.append(table.c.datasource == datasource)
    if interval is not None and interval != ETERNITY:
        conditions += [table.c.start_ms >= interval.start_ms, table.c.end_ms <= interval.end_ms]
    if versions is not None:
        conditions.append(table.c.version.in_(versions))
    return conditions
