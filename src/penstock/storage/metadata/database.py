"""Connections and transactions: how both databases are made to behave alike.

Owns the engine, the start and the retry of transactions, and the translation of what the drivers
raise. It knows no table. On SQLite: WAL, an fsync at each commit, and write transactions that take
the write lock when they begin, so none fails half way for a lock. On PostgreSQL: read committed for
writes, whose authors take a row lock first where order matters; one frozen view for reads.

Invariant: `read` and `write` run their work in one transaction each, and may run it again from the
start after a clash; so work has no effects but on its connection.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from penstock.core.errors import (
    Closed,
    Conflict,
    CorruptData,
    InvalidRequest,
    PenstockError,
    Unavailable,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock

T = TypeVar("T")

BUSY_TIMEOUT_MS = 10_000
TRIES = 3
FIRST_PAUSE_S = 0.02
# No transaction of ours takes near as long; mailboxes wait for some of them.
STATEMENT_TIMEOUT_MS = 60_000
NETWORK_TIMEOUT_MS = 30_000
_CONNECTIONS = 5

_SQLITE_MAGIC = b"SQLite format 3\0"
_SQLITE_CLASH = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
# Serialization failure, deadlock, lock not available: the same transaction may go through now.
_POSTGRES_CLASH = {"40001", "40P01", "55P03"}


class Database:
    """One database, its connections and its transactions. Any thread may call.

    Args:
        url: An SQLAlchemy URL of SQLite (a file) or PostgreSQL.
        clock: Time for rows and for the pauses between tries.
        busy_timeout_ms: How long one try waits for other writers.
    """

    def __init__(self, url: str, clock: Clock, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> None:
        parsed = _checked_url(url)
        self.name = (
            parsed.database or ""
            if parsed.get_backend_name() == "sqlite"
            else parsed.render_as_string(hide_password=True)
        )
        self._clock = clock
        if parsed.get_backend_name() == "sqlite":
            _refuse_other_file(self.name)
        self._closed = False
        self._pause = threading.Condition()  # only ever waited on, for a pause that a clock ends
        self._engine = (
            _sqlite_engine(parsed, busy_timeout_ms)
            if parsed.get_backend_name() == "sqlite"
            else _postgres_engine(parsed, busy_timeout_ms)
        )
        self._errors = _errors_of(self._engine)

    def now_ms(self) -> int:
        """Return the time that rows of this moment get."""
        return self._clock.now_ms()

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one read transaction: all its queries see the same instant.

        Raises:
            Closed: After `close`.
            Unavailable: The database does not answer.
            CorruptData: The database file is damaged.
        """
        return self._run(work, write=False)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one write transaction; what it raises takes all of it back.

        Raises:
            Closed: After `close`.
            Conflict: A row is there already.
            Unavailable: The database does not answer, is full, or stayed busy. If the connection to
                a server broke while it committed, the transaction may be there.
            CorruptData: The database file is damaged.
        """
        return self._run(work, write=True)

    def close(self) -> None:
        """Close the connections that nobody uses now, and refuse new work."""
        self._closed = True
        self._engine.dispose()

    def _run(self, work: Callable[[Connection], T], *, write: bool) -> T:
        pause_s = FIRST_PAUSE_S
        for attempt in range(1, TRIES + 1):
            if self._closed:
                raise Closed(f"the metadata store {self.name} was closed: open it again")
            try:
                return self._once(work, write=write)
            except self._errors as error:
                if attempt == TRIES or not _is_clash(error):
                    raise _translated(error, self.name) from error
            with self._pause:
                self._clock.wait(self._pause, pause_s)
            pause_s *= 2
        raise AssertionError("the last try returns or raises")

    def _once(self, work: Callable[[Connection], T], *, write: bool) -> T:
        with self._engine.connect() as connection:
            if write:
                connection.execution_options(penstock_write=True)
            elif connection.dialect.name == "postgresql":
                connection.execution_options(
                    isolation_level="REPEATABLE READ", postgresql_readonly=True
                )
            with connection.begin():
                return work(connection)


def _checked_url(url: str) -> URL:
    mend = "use sqlite:////absolute/path.db or postgresql+psycopg://user:secret@host:5432/database"
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
        if backend == "postgresql":
            return parsed.set(drivername="postgresql+psycopg")
        if backend == "sqlite" and parsed.database and ":memory:" not in parsed.database:
            return parsed
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise InvalidRequest(f"not a database URL: {mend}", place="metadata_url") from error
    raise InvalidRequest(
        f"no database that Penstock can use ({backend}): {mend}", place="metadata_url"
    )


def _refuse_other_file(path: str) -> None:
    """Refuse what SQLite would take for an empty file because it is short, and overwrite."""
    try:
        with Path(path).open("rb") as file:
            begin = file.read(len(_SQLITE_MAGIC))
    except OSError:
        return  # missing or not readable: opening it says what is wrong
    if begin and begin != _SQLITE_MAGIC:
        raise _no_database(path)


def _sqlite_engine(url: URL, busy_timeout_ms: int) -> Engine:
    engine = create_engine(
        url,
        pool_size=_CONNECTIONS,
        max_overflow=-1,
        pool_use_lifo=True,
        connect_args={"timeout": busy_timeout_ms / 1000, "check_same_thread": False},
    )

    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        # The driver must not start transactions by itself: `begin` below says which kind.
        connection.isolation_level = None
        # FULL: the log is on the disk before a commit returns, so a power loss takes nothing back.
        connection.execute("PRAGMA synchronous=FULL")
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            connection.execute("PRAGMA journal_mode=WAL")

    def begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("penstock_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", begin)
    return engine


def _postgres_engine(url: URL, busy_timeout_ms: int) -> Engine:
    # A client that hangs while it holds the row lock must not stop the others for good; nor may a
    # statement that takes for ever, or a server that went away without a word.
    limits = (
        f"-c lock_timeout={busy_timeout_ms} -c statement_timeout={STATEMENT_TIMEOUT_MS}"
        " -c idle_in_transaction_session_timeout=60000"
    )
    return create_engine(
        url,
        pool_size=_CONNECTIONS,
        max_overflow=20,
        pool_use_lifo=True,
        pool_pre_ping=True,
        connect_args={
            "connect_timeout": 10,
            "options": limits,
            "tcp_user_timeout": NETWORK_TIMEOUT_MS,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 4,
        },
    )


def _errors_of(engine: Engine) -> tuple[type[Exception], ...]:
    """Return what SQLAlchemy raises, and what the driver raises past it.

    Asked of the engine, so that a process on SQLite need not hold psycopg's 6 MB.
    """
    driver: type[Exception] = engine.dialect.loaded_dbapi.Error
    return (SQLAlchemyError, driver)


def _sqlstate(error: BaseException) -> str:
    """Return PostgreSQL's five-character code, if the error has one."""
    return str(getattr(error, "sqlstate", None) or "")


def _driver_error(error: BaseException) -> BaseException:
    return error.orig if isinstance(error, DBAPIError) and error.orig else error


def _is_clash(error: BaseException) -> bool:
    cause = _driver_error(error)
    if isinstance(cause, sqlite3.Error):
        return _sqlite_code(cause) in _SQLITE_CLASH
    return _sqlstate(cause) in _POSTGRES_CLASH


def _sqlite_code(error: sqlite3.Error) -> int:
    # The low byte is the code, the rest is detail.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _translated(error: BaseException, name: str) -> PenstockError:
    cause = _driver_error(error)
    text = str(cause).strip().split("\n", 1)[0]
    if isinstance(error, IntegrityError):
        return Conflict(f"{name}: a row of this key is there already ({text})")
    if isinstance(cause, sqlite3.Error):
        return _translated_sqlite(cause, name, text)
    if isinstance(error, PoolTimeout):
        return Unavailable(f"{name}: all connections are in use: try again later")
    if hasattr(cause, "sqlstate"):
        return _translated_postgres(_sqlstate(cause), name, text)
    # Anything else is SQLAlchemy's complaint about a statement of ours: a bug, shown as it is.
    raise error


def _translated_sqlite(error: sqlite3.Error, name: str, text: str) -> PenstockError:
    code = _sqlite_code(error)
    if code == sqlite3.SQLITE_NOTADB:
        return _no_database(name)
    if code == sqlite3.SQLITE_CORRUPT:
        return CorruptData(name, 0, f"{text}; restore the file from a backup")
    if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}:
        return InvalidRequest(f"{name} cannot be written ({text}): {_folder_mend(name)}")
    if code == sqlite3.SQLITE_CANTOPEN:
        return InvalidRequest(f"{name} cannot be opened ({text}): {_folder_mend(name)}")
    if code == sqlite3.SQLITE_FULL:
        return Unavailable(f"{name}: the disk is full: make room and try again")
    if code in _SQLITE_CLASH:
        return Unavailable(f"{name}: another process keeps it busy: try again later")
    return Unavailable(f"{name}: {text}: see to the disk and try again")


def _no_database(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name} is not an SQLite database: name another file for the metadata, or restore it "
        "from a backup"
    )


def _folder_mend(name: str) -> str:
    folder = Path(name).absolute().parent
    if not folder.is_dir():
        return f"make the folder {folder}"
    if Path(name).is_dir():
        return "it is a folder; name a file in it"
    return f"give this user the right to write the folder {folder} and the file"


def _translated_postgres(state: str, name: str, text: str) -> PenstockError:
    if state.startswith("28") or "authentication" in text or "does not exist" in text:
        return InvalidRequest(f"{name}: {text}: mend user, secret or database in the URL")
    if state == "53100":
        return Unavailable(f"{name}: the database server's disk is full: make room and try again")
    if state == "25006":
        return InvalidRequest(f"{name} is read-only ({text}): name the server that takes writes")
    return Unavailable(f"{name}: {text}: see to the database server and try again")
