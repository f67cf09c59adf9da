"""Kills: rows of unused segments go, and it is told whose files may go after them.

Invariants: the file of a row that is there is never said to be free; and the id of a killed segment
is never given again, as the deletion of its file may still be under way: but for ids of rewrites,
whose files lie where no other task ever wrote. Should another row still name the file of the killed
one, neither file is said to be free while both rows are there; the janitor finds it later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, delete, or_, select, text

from penstock.core.errors import Unavailable
from penstock.storage.metadata import schema
from penstock.storage.metadata.batches import batches
from penstock.storage.metadata.chunks.reading import chunk_named, of_chunk
from penstock.storage.metadata.rows import OVERWRITE_START, Killed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.intervals import Interval
    from penstock.storage.metadata.rows import SegmentRow

# One statement for both databases, which the drivers run for a batch of rows.
_REMEMBER = text("""
INSERT INTO penstock_killed (datasource, start_ms, end_ms, version, partition_number)
VALUES (:datasource, :start_ms, :end_ms, :version, :partition_number)
ON CONFLICT (datasource, start_ms, end_ms, version) DO UPDATE SET
  partition_number = excluded.partition_number
  WHERE penstock_killed.partition_number < excluded.partition_number
""")

# Made once, as each new place asks for it.
_KILLED = select(schema.killed.c.partition_number).where(*of_chunk(schema.killed))


BACKUP_SERVICE: Final = "backup"
"""Service of the lease that a backup holds while it copies what the metadata names."""


def require_no_backup(connection: Connection, now_ms: int) -> None:
    """Refuse a kill while a backup runs. Take the turn first: a backup takes its lease in one.

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


def kill(connection: Connection, rows: Sequence[SegmentRow]) -> Killed:
    """Delete these rows, all of them unused, and say which files nobody names any more."""
    table = schema.segments
    for batch in batches([row.id for row in rows]):
        connection.execute(delete(table).where(table.c.id.in_(batch)))
    # The numbers of rewrites may come again.
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
    return Killed(tuple(rows), tuple(free.values()))


def highest_killed(
    connection: Connection, datasource: str, interval: Interval, version: str
) -> int:
    """Return the highest number of the killed segments of a chunk, -1 without any."""
    found = connection.execute(_KILLED, chunk_named(datasource, interval, version)).scalar()
    return -1 if found is None else int(found)


def _shared_files(connection: Connection, roots: set[str]) -> set[str]:
    """Return which of these roots, the first rows of files, have a row that is there."""
    table = schema.segments
    found: set[str] = set()
    for batch in batches(sorted(roots)):
        query = select(table.c.id, table.c.upgraded_from).where(
            or_(table.c.id.in_(batch), table.c.upgraded_from.in_(batch))
        )
        found.update(row.upgraded_from or row.id for row in connection.execute(query))
    return found
