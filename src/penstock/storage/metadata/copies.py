"""Copies of all metadata for backups, without the parts that are not valid elsewhere.

A copy is an SQLite file, for a source of SQLite or PostgreSQL, so it can be restored into either.
It shows one instant of the source: all tables are read in one transaction. Invariant: a copy names
no process that ran when it was made. Leases, terms of leadership, locks, announced files and task
roots are left out, and tasks that were active are marked failed; supervisors replace them from the
committed offsets, which are of the same instant.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, Table, func, insert, select, update

from penstock.core.errors import InvalidRequest
from penstock.storage.metadata import schema
from penstock.storage.metadata.backends import sqlite
from penstock.storage.metadata.migrations import migrate
from penstock.storage.metadata.payloads import dump, load
from penstock.storage.metadata.revision import take_turn
from penstock.storage.metadata.sql_database import Database
from penstock.storage.sqlite_urls import sqlite_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import Row

    from penstock.core.clock import Clock
    from penstock.storage.metadata.sql_database import Transactions

_RESTORED: Final = "the metadata was restored from a backup that was made while this task ran: "
INTERRUPTED: Final = f"{_RESTORED}submit it again, unless a supervisor started it"
INTERRUPTED_STREAM: Final = (
    f"{_RESTORED}nothing is lost, because its supervisor starts another task from the same offsets"
)
_STREAM_TASK: Final = "index_penstock"  # only supervisors start it

_ROWS_AT_ONCE: Final = 1_000
# The rows of a lookup may have 16 MiB.
_LOOKUPS_AT_ONCE: Final = 2
_COPIED: Final = (
    schema.tasks,
    schema.supervisors,
    schema.offsets,
    schema.counts,
    schema.segments,
    schema.used_periods,
    schema.oldest_revisions,
    schema.pending,
    schema.killed,
    schema.published,
    schema.publishes,
    schema.publish_ranges,
    schema.audit,
    schema.rules,
    schema.config,
    schema.lookups,
    schema.lookup_contents,
)
# Rows that running processes leave in a database: one that has any is in use, or was.
_LEFT_OUT: Final = frozenset({schema.task_roots, schema.terms, schema.announced})


def write_copy(
    database: Transactions, path: str, clock: Clock
) -> list[tuple[dict[str, object], int]]:
    """Write the metadata of one instant into a new SQLite file.

    Args:
        database: The source.
        path: A file that does not exist.
        clock: For the times of rows that change.

    Returns:
        The load spec and the size of each segment in it, used or unused.

    Raises:
        Unavailable: The database or the disk does not answer.
    """

    def work(connection: Connection) -> list[tuple[dict[str, object], int]]:
        # The work may run again after a conflict.
        for suffix in ("", "-wal", "-shm"):
            Path(path + suffix).unlink(missing_ok=True)
        target = Database(sqlite_url(path), clock)
        try:
            migrate(target)
            target.write(lambda into: _copy(connection, into, clock.now_ms()))
            return target.read(_files)
        finally:
            target.close()

    files = database.read(work)
    sqlite.fold_log_in(path)
    return files


def read_copy(path: str, database: Transactions, clock: Clock) -> None:
    """Write the metadata of a copy into an empty database.

    A database that holds exactly this copy, and that no Penstock has used since, is unchanged: the
    restore that wrote it was interrupted right afterwards.

    Raises:
        InvalidRequest: The database has other metadata, or a Penstock has used it.
        Unavailable: The database does not answer.
    """
    source = Database(sqlite_url(path), clock)

    def work(connection: Connection) -> None:
        take_turn(connection)
        filled = [table for table in (*_COPIED, *_LEFT_OUT) if _has_rows(connection, table)]
        if not filled:
            source.read(lambda c: _copy(c, connection, database.now_ms()))
        elif _LEFT_OUT.intersection(filled) or not source.read(
            lambda c: all(_fingerprint(c, one) == _fingerprint(connection, one) for one in _COPIED)
        ):
            raise InvalidRequest(
                f"the metadata database is not empty: its table {filled[0].name} has rows, which a"
                " restore would mix with those of the backup: name an empty database with"
                " --metadata-url"
            )

    try:
        database.write(work, unlimited=True)
    finally:
        source.close()


def _has_rows(connection: Connection, table: Table) -> bool:
    return bool(connection.execute(select(func.count()).select_from(table)).scalar_one())


def _fingerprint(connection: Connection, table: Table) -> tuple[int, int]:
    """Return the number of rows of a table and a checksum that is independent of their order.

    Databases order text differently. Rows are hashed in the form that `_copy` writes.
    """
    count = total = 0
    for page in _pages(connection, table):
        for row in page:
            text = repr(sorted(_values(table, row, 0).items()))
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            count, total = count + 1, (total + int.from_bytes(digest)) % (1 << 128)
    return count, total


def _copy(source: Connection, target: Connection, now_ms: int) -> None:
    for table in _COPIED:
        for rows in _pages(source, table):
            target.execute(insert(table), [_values(table, row, now_ms) for row in rows])
    revision = source.execute(select(schema.revision)).one()
    values = {"revision": revision.revision, "segments_revision": revision.segments_revision}
    target.execute(update(schema.revision).values(values))


def _files(connection: Connection) -> list[tuple[dict[str, object], int]]:
    found = []
    for page in _pages(connection, schema.segments):
        for row in page:
            payload = load(row.payload)
            spec, size = payload.get("loadSpec"), payload.get("size")
            if isinstance(spec, dict):
                found.append((spec, size if isinstance(size, int) else 0))
    return found


def _pages(connection: Connection, table: Table) -> Iterator[list[Row[tuple[object, ...]]]]:
    """Yield all rows of a table in parts, so that each query is short."""
    query = select(table).order_by(*table.primary_key.columns)
    count = _LOOKUPS_AT_ONCE if table is schema.lookup_contents else _ROWS_AT_ONCE
    result = connection.execute(query.execution_options(yield_per=count))
    for page in result.partitions():
        yield list(page)


def _values(table: Table, row: Row[tuple[object, ...]], now_ms: int) -> Mapping[str, object]:
    values = dict(row._mapping)  # noqa: SLF001 - the public name of a row's mapping
    if table is schema.audit:
        del values["serial"]  # the database generates them, in the same order
    if table is schema.tasks and values["active"]:
        reason = INTERRUPTED_STREAM if values["type"] == _STREAM_TASK else INTERRUPTED
        status = {**load(str(values["status"])), "errorMsg": reason, "endedMs": now_ms}
        values |= {"active": False, "state": "FAILED", "status": dump(status)}
        values["updated_ms"] = now_ms
    return values
