"""The metadata database of one run: SQLite in memory, on one connection.

Owns the connection and its transactions. Only one thread of a world runs at any moment and no work
is interrupted, so one connection serves all, and reads need no transaction. Statements are
compiled once for all runs, and the real migrations create the tables once, which a run copies.
"""

from __future__ import annotations

import functools
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, TypeVar

from sqlalchemy import Engine, NullPool, create_engine
from sqlalchemy.exc import IntegrityError

from penstock.core.errors import Conflict
from penstock.storage.metadata import MetadataStore
from penstock.storage.sqlite_urls import sqlite_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from penstock.core.clock import Clock

T = TypeVar("T")


class MemoryDatabase:
    """The `Transactions` of a whole world.

    Any error except a duplicate key is a bug, and is raised unchanged.

    Args:
        clock: Time for rows of callers without a clock of their own.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._connection: Final = _engine().connect()
        driver = self._connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        self._driver: Final = driver
        # Transactions are begun and ended here, not by the driver.
        driver.isolation_level = None
        driver.deserialize(_tables())
        # Threads take turns. One that comes back meanwhile has work with other effects.
        self._turn = threading.RLock()
        self._busy = False

    def now_ms(self) -> int:
        """Return the time of rows that are written now."""
        return self._clock.now_ms()

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work`; no other work runs meanwhile."""
        with self._turn:
            assert not self._busy, "work has no effects but on its connection"
            return work(self._connection)

    def write(self, work: Callable[[Connection], T], *, unlimited: bool = False) -> T:
        """Run `work` in one transaction, which is rolled back if it raises.

        Raises:
            Conflict: A row with this key exists.
        """
        del unlimited
        with self._turn:
            assert not self._busy, "work has no effects but on its connection"
            self._busy = True
            self._driver.execute("BEGIN")
            try:
                result = work(self._connection)
            except BaseException as error:
                self._driver.execute("ROLLBACK")
                if isinstance(error, IntegrityError):
                    raise Conflict(f"a row with this key exists ({error.orig})") from error
                raise
            else:
                self._driver.execute("COMMIT")
            finally:
                self._busy = False
            return result

    @property
    def changes(self) -> int:
        """Number of rows that were written; another one if the contents may have changed."""
        return self._driver.total_changes

    def rows(self, query: str, *values: object) -> Sequence[tuple[object, ...]]:
        """Return the rows of an SQL query, without the product's reading code."""
        return self._driver.execute(query, values).fetchall()

    def close(self) -> None:
        """Forget everything."""
        self._connection.close()


@functools.cache
def _engine() -> Engine:
    """Return the engine, which caches compiled statements: each connection is a database."""
    return create_engine(
        "sqlite://",
        poolclass=NullPool,
        connect_args={"check_same_thread": False},
    )


@functools.cache
def _tables() -> bytes:
    """Return a database with the tables and without rows."""
    with TemporaryDirectory(prefix="simulation") as folder:
        path = Path(folder, "metadata.db")
        MetadataStore.open(sqlite_url(path)).close()
        # A copy made of statements is none of the file: that one's journal needs a file, too.
        with closing(sqlite3.connect(path)) as made, closing(sqlite3.connect(":memory:")) as copy:
            copy.executescript("\n".join(made.iterdump()))
            return copy.serialize()
