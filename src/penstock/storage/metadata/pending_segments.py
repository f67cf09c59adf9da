"""Rows of the pending table: allocated segments that are not published yet.

Owns reading and writing them; `allocation` and `commits` decide about them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, Row, func, insert, select

from penstock.core.intervals import Interval
from penstock.storage.metadata import schema
from penstock.storage.metadata.rows import PendingRow

if TYPE_CHECKING:
    from collections.abc import Sequence


def pending_row(found: Row[tuple[object, ...]]) -> PendingRow:
    """Return the record of a row of the pending table."""
    return PendingRow(
        datasource=found.datasource,
        interval=Interval(found.start_ms, found.end_ms),
        version=found.version,
        partition_number=found.partition_number,
        core_partitions=found.core_partitions,
        sequence_name=found.sequence_name,
        created_ms=found.created_ms,
        previous_id=found.previous_id,
        allocator_id=found.allocator_id,
        upgraded_from=found.upgraded_from,
    )


def pending_intervals(
    connection: Connection, datasource: str, interval: Interval
) -> list[Interval]:
    """Return the time chunks of pending segments that overlap an interval, newest version first."""
    table = schema.pending
    query = (
        select(table.c.start_ms, table.c.end_ms)
        .where(
            table.c.datasource == datasource,
            table.c.start_ms < interval.end_ms,
            table.c.end_ms > interval.start_ms,
        )
        .group_by(table.c.start_ms, table.c.end_ms)
        .order_by(func.max(table.c.version).desc(), table.c.start_ms, table.c.end_ms)
    )
    return [Interval(row.start_ms, row.end_ms) for row in connection.execute(query)]


def insert_pending(connection: Connection, rows: Sequence[PendingRow]) -> None:
    """Insert new pending segments in one batch."""
    if not rows:
        return
    connection.execute(
        insert(schema.pending),
        [
            {
                "datasource": row.datasource,
                "start_ms": row.interval.start_ms,
                "end_ms": row.interval.end_ms,
                "version": row.version,
                "partition_number": row.partition_number,
                "core_partitions": row.core_partitions,
                "sequence_name": row.sequence_name,
                "created_ms": row.created_ms,
                "previous_id": row.previous_id,
                "allocator_id": row.allocator_id,
                "upgraded_from": row.upgraded_from,
            }
            for row in rows
        ],
    )
