"""Task locks, stored for the next leader.

The lockbox owns their meaning; this module stores rows. Invariant: the changes of one call are
stored completely or not at all. A row is identified by fields that never change, so that a call may
be repeated. Segments that were appended under a REPLACE lock were recorded for its holder. The
record is deleted when the holder acquires another lock on that interval, because its input then
contains them. It is kept when the lock is released: a holder that does not learn of the release
continues as the holder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, bindparam, delete, func, select, text

from penstock.storage.metadata import schema
from penstock.storage.metadata.publish.upgrades import forget_older_upgrades
from penstock.storage.metadata.row_mapper import LOCKS
from penstock.storage.metadata.rows.tasks import LockRow
from penstock.storage.metadata.sql_database import in_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.storage.metadata.sql_database import Transactions

_TIMES = "____-__-__T__:__:__.___Z"

# One statement for both databases, which the drivers run for a batch of rows.
_PUT = text("""
INSERT INTO penstock_task_locks (task_id, datasource, granularity, type, start_ms, end_ms, version,
  partition_number, group_id, priority, revoked, created_ms)
VALUES (:task_id, :datasource, :granularity, :type, :start_ms, :end_ms, :version,
  :partition_number, :group_id, :priority, :revoked, :created_ms)
ON CONFLICT (task_id, datasource, granularity, type, start_ms, end_ms, version, partition_number)
DO UPDATE SET group_id = excluded.group_id, priority = excluded.priority,
  revoked = excluded.revoked
""")


class StoredTaskLocks:
    """The table of task locks."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def apply(
        self,
        added: Sequence[LockRow] = (),
        replaced: Sequence[LockRow] = (),
        removed: Sequence[LockRow] = (),
    ) -> None:
        """Apply many changes in one transaction: first `removed`, then the others.

        Args:
            added: New rows. An existing one is overwritten.
            replaced: Rows with new values, such as revoked or of another priority.
            removed: Rows to delete; missing ones are ignored.
        """
        put = [*replaced, *added]
        if not (put or removed):
            return
        self._database.write(lambda c: self._apply(c, put, removed))

    def every(self) -> dict[str, list[LockRow]]:
        """Return all locks by datasource, each list by version and then by task."""
        table = schema.task_locks
        query = select(table).order_by(
            table.c.datasource, table.c.version, table.c.task_id, table.c.start_ms
        )
        found: dict[str, list[LockRow]] = {}
        for row in self._database.read(lambda c: c.execute(query).all()):
            found.setdefault(row.datasource, []).append(LOCKS.record(row))
        return found

    def newest_versions(self) -> dict[str, str]:
        """Return the largest version that is a time, for each datasource that has any.

        It includes the versions of all segments, used or not, of pending segments, and of locks.
        Versions in other forms are user-defined and not comparable.
        """
        found: dict[str, str] = {}

        def work(connection: Connection) -> None:
            for table in (schema.segments, schema.pending, schema.task_locks):
                query = (
                    select(table.c.datasource, func.max(table.c.version))
                    .where(table.c.version.like(_TIMES))
                    .group_by(table.c.datasource)
                )
                for datasource, version in connection.execute(query):
                    found[datasource] = max(version, found.get(datasource, ""))

        self._database.read(work)
        return found

    def _apply(
        self, connection: Connection, put: Sequence[LockRow], removed: Sequence[LockRow]
    ) -> None:
        table = schema.task_locks
        if removed:
            mine = [column == bindparam(f"b_{column.name}") for column in table.primary_key]
            keys = [
                {f"b_{column.name}": values[column.name] for column in table.primary_key}
                for values in map(LOCKS.values, removed)
            ]
            connection.execute(delete(table).where(*mine), keys)
        if put:
            forget_older_upgrades(
                connection,
                [
                    (row.task_id, row.interval, row.version)
                    for row in put
                    if row.type == "REPLACE" and row.version is not None
                ],
            )
            now_ms = self._database.now_ms()
            rows = [LOCKS.values(row) for row in put]
            for values in rows:
                values["created_ms"] = values["created_ms"] or now_ms
            connection.execute(_PUT, rows)


def forget_locks(connection: Connection, task_ids: Sequence[str]) -> int:
    """Delete all locks of these tasks; return the number of rows."""
    table = schema.task_locks
    return sum(
        connection.execute(delete(table).where(table.c.task_id.in_(batch))).rowcount
        for batch in in_batches(task_ids)
    )
