"""SQLite: one file, WAL, an fsync at each commit.

Write transactions take the write lock when they begin, so none fails partway for lack of a lock.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, create_engine, event

from penstock.core.errors import CorruptData, InvalidRequest, MetadataUnavailable, PenstockError

_CONNECTIONS = 5
_MAGIC = b"SQLite format 3\0"
# Locked by another process; changed during a statement; interrupted.
_CLASH = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_SCHEMA,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_INTERRUPT,
}


def refuse_other_file(path: str) -> None:
    """Refuse a short file that SQLite would treat as an empty database and overwrite.

    Raises:
        InvalidRequest: The file is not a database of SQLite.
    """
    try:
        with Path(path).open("rb") as file:
            begin = file.read(len(_MAGIC))
    except OSError:
        return  # missing or not readable: opening it reports the error
    if begin and begin != _MAGIC:
        raise _no_database(path)


def create_private(path: str) -> None:
    """Create a missing database for this user alone; SQLite gives its log the same permissions.

    One that exists is not opened: closing it again would drop SQLite's locks on it.
    """
    if not path.startswith("/"):  # in memory, or a URI
        return
    with suppress(OSError):  # it exists, or opening it reports the error
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def make_engine(url: URL, busy_timeout_ms: int) -> Engine:
    """Return an engine whose connections behave as the module describes."""
    engine = create_engine(
        url,
        pool_size=_CONNECTIONS,
        max_overflow=-1,
        pool_use_lifo=True,
        connect_args={"timeout": busy_timeout_ms / 1000, "check_same_thread": False},
    )

    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        # The driver must not start transactions by itself: `begin` below selects their kind.
        connection.isolation_level = None
        # FULL: the log is on the disk before a commit returns, so a power loss undoes nothing.
        connection.execute("PRAGMA synchronous=FULL")
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            connection.execute("PRAGMA journal_mode=WAL")

    def begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("penstock_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", begin)
    return engine


def fold_log_in(path: str) -> None:
    """Make a database without connections one durable file, without a log.

    Raises:
        Unavailable: The disk is full or fails.
    """
    try:
        connection = sqlite3.connect(path)
        try:
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("PRAGMA journal_mode=DELETE")
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise MetadataUnavailable(
            f"{path} cannot be completed: {error}: free space and retry"
        ) from error


def erase_old_content(path: str) -> None:
    """Rewrite a database that nothing else uses, so that no page has content of deleted rows.

    Raises:
        Unavailable: The disk is full or fails, or another process uses the database.
    """
    try:
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("VACUUM")
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise MetadataUnavailable(
            f"{path} cannot be rewritten: {error}: free space and retry"
        ) from error
    if busy:
        raise MetadataUnavailable(f"{path}: another process keeps it busy: try again later")


def is_clash(error: sqlite3.Error) -> bool:
    """Return whether the same transaction may succeed now."""
    return _code(error) in _CLASH


def translated(error: sqlite3.Error, name: str, text: str) -> PenstockError | None:
    """Return the error of Penstock for an error; None if an internal statement is wrong."""
    code = _code(error)
    if code == sqlite3.SQLITE_NOTADB:
        return _no_database(name)
    if code == sqlite3.SQLITE_CORRUPT:
        return CorruptData(name, 0, f"{text}; restore the file from a backup")
    if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}:
        return InvalidRequest(f"{name} cannot be written ({text}): {_folder_remedy(name)}")
    if code == sqlite3.SQLITE_CANTOPEN:
        return InvalidRequest(f"{name} cannot be opened ({text}): {_folder_remedy(name)}")
    if code == sqlite3.SQLITE_FULL:
        return MetadataUnavailable(f"{name}: the disk is full: free space and try again")
    if code in _CLASH:
        return MetadataUnavailable(f"{name}: another process keeps it busy: try again later")
    if code == sqlite3.SQLITE_IOERR:
        return MetadataUnavailable(f"{name}: {text}: check the disk and try again")
    if code == sqlite3.SQLITE_NOMEM:
        return MetadataUnavailable(f"{name}: {text}: the host is short of memory, try again later")
    if code in {sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH}:
        return InvalidRequest(f"the database cannot store or search for such a value: {text}")
    if text.startswith(("no such table", "no such column")):
        return InvalidRequest(
            f"{name} has lost a part of its tables ({text}): restore it from a backup"
        )
    return None


def _code(error: sqlite3.Error) -> int:
    # The low byte is the code, the rest is detail.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _no_database(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name} is not an SQLite database: use another file for the metadata, or restore it "
        "from a backup"
    )


def _folder_remedy(name: str) -> str:
    folder = Path(name).absolute().parent
    with suppress(PermissionError):  # a parent folder may not be accessible
        if not folder.is_dir():
            return f"create the folder {folder}"
        if Path(name).is_dir():
            return "it is a folder; name a file in it"
    return f"allow this user to write the folder {folder} and the file"
