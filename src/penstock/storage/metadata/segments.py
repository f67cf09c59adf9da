"""Segments by id: used and unused, and the places that are allocated but not published.

Rows go in through a publish only. Unused rows are kept until `delete_unused`, which the caller does
after their files are gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, delete, select, update

from penstock.storage.metadata import schema
from penstock.storage.metadata.batches import batches
from penstock.storage.metadata.places import pending_row
from penstock.storage.metadata.snapshots import raise_revision, segment_row, take_turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.intervals import Interval
    from penstock.storage.metadata.database import Transactions
    from penstock.storage.metadata.rows import PendingRow, SegmentRow


class Segments:
    """The segments and pending tables."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def by_ids(self, ids: Iterable[str]) -> list[SegmentRow]:
        """Return the rows that exist of these ids, used or not, in no order."""
        wanted = list(ids)
        table = schema.segments
        return self._database.read(
            lambda c: [
                segment_row(row)
                for batch in batches(wanted)
                for row in c.execute(select(table).where(table.c.id.in_(batch)))
            ]
        )

    def mark_unused(self, ids: Iterable[str]) -> int:
        """Take segments out of view; return how many were used until now."""
        wanted = list(ids)
        return self._database.write(lambda c: self._mark(c, wanted, used=False))

    def mark_used(self, ids: Iterable[str]) -> int:
        """Bring segments back that were marked unused; return how many were unused until now.

        Their files must still be there, and none of them should be overshadowed.
        """
        wanted = list(ids)
        return self._database.write(lambda c: self._mark(c, wanted, used=True))

    def mark_overshadowed_unused(self, overshadowed: Iterable[str], at_revision: int) -> int:
        """Mark segments unused that a reader found overshadowed in the snapshot of `at_revision`.

        Returns:
            How many were marked; 0 if segments changed since, for then what overshadowed them may
            itself be gone. Look again at a new snapshot.
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
        limit: int = 1000,
    ) -> list[SegmentRow]:
        """Return segments that became unused before a time, the longest unused first.

        Args:
            changed_before_ms: Leaves those alone that queries may still be reading.
            datasource: Only of this one.
            interval: Only those that lie within it.
            limit: At most so many.
        """
        table = schema.segments
        query = select(table).where(~table.c.used, table.c.used_changed_ms < changed_before_ms)
        if datasource is not None:
            query = query.where(table.c.datasource == datasource)
        if interval is not None:
            query = query.where(
                table.c.start_ms >= interval.start_ms, table.c.end_ms <= interval.end_ms
            )
        query = query.order_by(table.c.used_changed_ms, table.c.id).limit(limit)
        return self._database.read(lambda c: [segment_row(row) for row in c.execute(query)])

    def delete_unused(self, ids: Iterable[str]) -> int:
        """Forget unused segments, whose files are gone; return how many. Used ones stay."""
        wanted = list(ids)
        table = schema.segments
        return self._database.write(
            lambda c: sum(
                c.execute(delete(table).where(table.c.id.in_(batch), ~table.c.used)).rowcount
                for batch in batches(wanted)
            )
        )

    def every(self) -> list[SegmentRow]:
        """Return every row, used or not: what deep storage must hold files for."""
        return self._database.read(
            lambda c: [segment_row(row) for row in c.execute(select(schema.segments))]
        )

    def pending(self, datasource: str) -> list[PendingRow]:
        """Return the allocated places of a datasource that are not published."""
        table = schema.pending
        query = select(table).where(table.c.datasource == datasource)
        query = query.order_by(table.c.start_ms, table.c.version, table.c.partition_number)
        return self._database.read(lambda c: [pending_row(row) for row in c.execute(query)])

    def delete_pending(self, datasource: str | None = None, *, created_before_ms: int) -> int:
        """Free the places of sequences that will never publish, of one datasource or of all.

        Returns:
            How many were freed.
        """
        table = schema.pending
        condition = table.c.created_ms < created_before_ms
        if datasource is not None:
            condition &= table.c.datasource == datasource

        def work(connection: Connection) -> int:
            take_turn(connection)
            return connection.execute(delete(table).where(condition)).rowcount

        return self._database.write(work)

    def _mark(self, connection: Connection, ids: Sequence[str], *, used: bool) -> int:
        take_turn(connection)
        table = schema.segments
        changed = sum(
            connection.execute(
                update(table)
                .where(table.c.id.in_(batch), table.c.used.is_(not used))
                .values(used=used, used_changed_ms=self._database.now_ms())
            ).rowcount
            for batch in batches(ids)
        )
        if changed:
            raise_revision(connection, segments=True)
        return changed
