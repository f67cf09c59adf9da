"""Kills: delete the rows of unused segments, and return those whose files may be deleted then.

Invariants: a file that an existing row names is never reported as free. The id of a killed segment
is never allocated again, because the deletion of its file may still be running; ids of rewrites are
an exception, because their files have unique folders. If a killed row and another killed row name
the same file, the file may not be reported as free; the janitor finds it later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, delete, or_, select, text

from penstock.core.errors import Unavailable
from penstock.core.timeline.chunks import OVERWRITE_START
from penstock.storage.metadata import schema, segment_history
from penstock.storage.metadata.rows.segments import KilledSegments
from penstock.storage.metadata.sql_database import in_batches
from penstock.storage.metadata.time_chunks import chunk_named, of_chunk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.intervals import Interval
    from penstock.storage.metadata.rows.segments import SegmentRow

# One statement for both databases, which the drivers run for a batch of rows.
_REMEMBER = text("""
INSERT INTO penstock_killed (datasource, start_ms, end_ms, version, partition_number)
VALUES (:datasource, :start_ms, :end_ms, :version, :partition_number)
ON CONFLICT (datasource, start_ms, end_ms, version) DO UPDATE SET
  partition_number = excluded.partition_number
  WHERE penstock_killed.partition_number < excluded.partition_number
""")

# Created once, because each allocation uses it.
_KILLED = select(schema.killed.c.partition_number).where(*of_chunk(schema.killed))


BACKUP_SERVICE: Final = "backup"
"""Service of the lease that a backup holds while it copies the files that the metadata names."""


def require_no_backup(connection: Connection, now_ms: int) -> None:
    """Refuse a kill while a backup runs. Take the turn first, because a backup takes its lease so.

    Raises:
        Unavailable: A backup runs; its lease expires if it dies.
    """
    table = schema.leases
    query = select(table.c.expires_ms).where(
        table.c.service == BACKUP_SERVICE, table.c.expires_ms > now_ms
    )
    expires_ms = connection.execute(query.limit(1)).scalar()
    if expires_ms is not None:
        raise Unavailable(
            "segments are not deleted while a backup runs, because it copies the files that the"
            f" metadata named when it began: try again when it has ended, or in"
            f" {(expires_ms - now_ms) // 1000 + 1} s if it has died"
        )


def kill(connection: Connection, rows: Sequence[SegmentRow]) -> KilledSegments:
    """Delete these unused rows, and return which of their files no row names any longer."""
    table = schema.segments
    for batch in in_batches([row.id for row in rows]):
        connection.execute(delete(table).where(table.c.id.in_(batch)))
    segment_history.forget(connection, rows)
    # Numbers of rewrites may be allocated again.
    numbered = [row for row in rows if row.partition_number < OVERWRITE_START]
    if numbered:
        connection.execute(
            _REMEMBER,
            [
                {
                    "datasource": row.datasource,
                    "start_ms": row.interval.start_ms,
                    "end_ms": row.interval.end_ms,
                    "version": row.version,
                    "partition_number": row.partition_number,
                }
                for row in numbered
            ],
        )
    shared = _shared_files(connection, {row.upgraded_from or row.id for row in rows})
    free: dict[str, SegmentRow] = {}
    for row in rows:
        root = row.upgraded_from or row.id
        if root not in shared:
            free.setdefault(root, row)
    return KilledSegments(tuple(rows), tuple(free.values()))


def highest_killed(
    connection: Connection, datasource: str, interval: Interval, version: str
) -> int:
    """Return the highest number of the killed segments of a chunk, -1 if there are none."""
    found = connection.execute(_KILLED, chunk_named(datasource, interval, version)).scalar()
    return -1 if found is None else int(found)


def _shared_files(connection: Connection, roots: set[str]) -> set[str]:
    """Return the roots, the first rows of files, whose file an existing row names."""
    table = schema.segments
    found: set[str] = set()
    for batch in in_batches(sorted(roots)):
        query = select(table.c.id, table.c.upgraded_from).where(
            or_(table.c.id.in_(batch), table.c.upgraded_from.in_(batch))
        )
        found.update(row.upgraded_from or row.id for row in connection.execute(query))
    return found
