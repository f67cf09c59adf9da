"""Connections and transactions of the metadata store, with the same behaviour on each database.

`Database` owns the start and retry of transactions and the maximum wait of a caller.
`GuardedDatabase` begins each write transaction with a check that may refuse it. `in_batches`
divides long lists into parts that one statement accepts. Does not own tables or the engines and
the meaning of their errors (`backends`). On SQLite, a write transaction takes the write lock
when it begins. On PostgreSQL, writes use read committed, and take a row lock first where order
matters; reads use one snapshot.

Invariants: `read` and `write` run their work in one transaction each, and may run it again from
the start after a conflict, so the work has no effects outside its connection. After a server
did not respond, calls fail at once for a short time, so that callers such as a mailbox do not
block. Any thread may call.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from sqlalchemy import URL, Connection, Engine, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from penstock.core.backoff import RetryPolicy
from penstock.core.clock import pause
from penstock.core.errors import (
    Closed,
    Conflict,
    InvalidRequest,
    MetadataUnavailable,
    PenstockError,
)
from penstock.storage.metadata.backends import postgres, sqlite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.core.clock import Clock


T = TypeVar("T")

BUSY_TIMEOUT_MS = 10_000
TRIES = 3
PAUSES: Final = RetryPolicy(20, 1_000)
# How long calls fail at once after a server did not answer.
REST_S = 10.0


class Transactions(Protocol):
    """The part of `Database` that tables use; see there."""

    def now_ms(self) -> int:
        """Return the current time for rows."""
        ...

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one read transaction."""
        ...

    def write(self, work: Callable[[Connection], T], *, unlimited: bool = False) -> T:
        """Run `work` in one write transaction."""
        ...

    def close(self) -> None:
        """Refuse new work, if this object owns the connections."""
        ...


class GuardedDatabase:
    """The same database, with a check at the start of every write transaction.

    Args:
        database: The owner of the connections, which also closes them.
        check: Raises if the write must be refused.
    """

    def __init__(self, database: Transactions, check: Callable[[Connection], None]) -> None:
        self._database = database
        self._check = check

    def now_ms(self) -> int:
        """Return the current time for rows."""
        return self._database.now_ms()

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one read transaction, unchecked. Raises as `Database.read`."""
        return self._database.read(work)

    def write(self, work: Callable[[Connection], T], *, unlimited: bool = False) -> T:
        """Check, then run `work`, in one write transaction. Raises as `Database.write`."""

        def checked(connection: Connection) -> T:
            self._check(connection)
            return work(connection)

        return self._database.write(checked, unlimited=unlimited)

    def close(self) -> None:
        """Do nothing: `Database` owns the connections."""


class Database:
    """One database, its connections and its transactions. Any thread may call.

    Args:
        url: An SQLAlchemy URL of SQLite (a file) or PostgreSQL.
        clock: Time for rows and for the pauses between attempts.
        busy_timeout_ms: How long one attempt waits for other writers.
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
            sqlite.refuse_other_file(self.name)
            sqlite.create_private(self.name)
        self._closed = False
        self._rest_until_s = clock.monotonic_s()  # replaced in one step, by any thread
        self._engine = (
            sqlite.make_engine(parsed, busy_timeout_ms)
            if parsed.get_backend_name() == "sqlite"
            else postgres.make_engine(parsed, busy_timeout_ms)
        )
        self._errors = _errors_of(self._engine)

    def now_ms(self) -> int:
        """Return the current time for rows."""
        return self._clock.now_ms()

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one read transaction: all its queries see the same instant.

        Raises:
            Closed: After `close`.
            Unavailable: The database does not answer.
            CorruptData: The database file is damaged.
        """
        return self._run(work, write=False)

    def write(self, work: Callable[[Connection], T], *, unlimited: bool = False) -> T:
        """Run `work` in one write transaction; an exception from it undoes all of it.

        Args:
            work: Runs the statements on the connection.
            unlimited: Whether to run statements without a time limit. Not for a mailbox.

        Raises:
            Closed: After `close`.
            Conflict: A row exists already.
            Unavailable: The database does not answer, is full, or stayed busy. If the connection to
                a server broke during the commit, the transaction may be committed.
            CorruptData: The database file is damaged.
        """
        return self._run(postgres.without_time_limit(work) if unlimited else work, write=True)

    def close(self) -> None:
        """Close the unused connections, and refuse new work."""
        self._closed = True
        self._engine.dispose()

    def _run(self, work: Callable[[Connection], T], *, write: bool) -> T:
        for attempt in range(1, TRIES + 1):
            if self._closed:
                raise Closed(f"the metadata store {self.name} was closed: open it again")
            if self._clock.monotonic_s() < self._rest_until_s:
                raise MetadataUnavailable(
                    f"{self.name}: the database server did not answer a moment ago, and the next"
                    f" attempt is in {REST_S:.0f} s: check the server, then try again"
                )
            try:
                return self._once(work, write=write)
            except OverflowError as error:
                # SQLite's driver raises it outside its own class of errors.
                if "SQLite" not in str(error):
                    raise
                raise InvalidRequest(
                    "the database cannot store or search for a number of more than 64 bits: use a"
                    " smaller one"
                ) from error
            except self._errors as error:  # narrow: records that the server does not answer
                if postgres.is_silence(_driver_error(error)):
                    self._rest_until_s = self._clock.monotonic_s() + REST_S
                if attempt == TRIES or not _is_clash(error):
                    raise _translated(error, self.name) from error
            pause(self._clock, PAUSES.delay_ms(attempt) / 1_000)
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
    remedy = (
        "use sqlite:////absolute/path.db or postgresql+psycopg://user:secret@host:5432/database"
    )
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
        if backend == "postgresql":
            return parsed.set(drivername="postgresql+psycopg")
        if backend == "sqlite" and parsed.database and ":memory:" not in parsed.database:
            return parsed
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise InvalidRequest(f"invalid database URL: {remedy}", place="metadata_url") from error
    raise InvalidRequest(f"unsupported database {backend}: {remedy}", place="metadata_url")


def _errors_of(engine: Engine) -> tuple[type[Exception], ...]:
    """Return the errors that SQLAlchemy raises, and those that the driver raises past it.

    Taken from the engine, so that a process on SQLite does not import psycopg, which takes 6 MB.
    """
    driver: type[Exception] = engine.dialect.loaded_dbapi.Error
    return (SQLAlchemyError, driver)


def _driver_error(error: BaseException) -> BaseException:
    return error.orig if isinstance(error, DBAPIError) and error.orig else error


def _is_clash(error: BaseException) -> bool:
    cause = _driver_error(error)
    if isinstance(cause, sqlite3.Error):
        return sqlite.is_clash(cause)
    return postgres.is_clash(cause)


def _translated(error: BaseException, name: str) -> PenstockError:
    cause = _driver_error(error)
    text = str(cause).strip().split("\n", 1)[0]
    if isinstance(error, IntegrityError):
        return Conflict(f"{name}: a row with this key exists already ({text})")
    if isinstance(error, PoolTimeout):
        return MetadataUnavailable(f"{name}: all connections are in use: try again later")
    if isinstance(cause, sqlite3.Error):
        meant = sqlite.translated(cause, name, text)
    else:
        meant = postgres.translated(cause, name, text)
    if meant is None:
        # An error in a statement of Penstock: a bug, shown unchanged.
        raise error
    return meant


ITEMS_PER_STATEMENT = 500


def in_batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Return the pieces in order."""
    for start in range(0, len(items), ITEMS_PER_STATEMENT):
        yield items[start : start + ITEMS_PER_STATEMENT]
