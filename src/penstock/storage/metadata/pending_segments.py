"""Rows of the pending table: allocated segments that are not published yet.

Owns reading and writing them; `allocation` and `publish` decide about them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, func, insert, select

from penstock.core.intervals import Interval
from penstock.storage.metadata import schema
from penstock.storage.metadata.row_mapper import PENDING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.storage.metadata.rows.pending import PendingRow


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
    connection.execute(insert(schema.pending), [PENDING.values(row) for row in rows])
