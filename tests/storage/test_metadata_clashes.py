"""Transactions that clash with others are run again from their start, and leave one outcome."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg.errors
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from penstock.core.clock import SystemClock
from penstock.core.errors import Unavailable
from penstock.storage.metadata.sql_database import TRIES, Database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database(database_url, SystemClock())
    opened.write(lambda c: c.execute(text("CREATE TABLE account (id INT PRIMARY KEY, n INT)")))
    yield opened
    opened.close()


def _busy() -> Exception:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return error


# What each database says of a transaction that may go through the next time.
CLASHES: dict[str, Callable[[], Exception]] = {
    "sqlite: busy": _busy,
    "postgresql: serialization failure": psycopg.errors.SerializationFailure,
    "postgresql: deadlock": psycopg.errors.DeadlockDetected,
    "postgresql: row lock not available": psycopg.errors.LockNotAvailable,
}


class Clashing:
    """Work that inserts a row, and then clashes the first times."""

    def __init__(self, error: Callable[[], Exception], times: int) -> None:
        self._error = error
        self._times = times
        self.runs = 0

    def __call__(self, connection: Connection) -> str:
        self.runs += 1
        connection.execute(text("INSERT INTO account VALUES (1, 0)"))
        if self.runs <= self._times:
            error = self._error()
            raise OperationalError("INSERT", {}, error)
        return "done"


def rows(database: Database) -> list[tuple[int, int]]:
    found = database.read(lambda c: c.execute(text("SELECT id, n FROM account ORDER BY id")).all())
    return [(row.id, row.n) for row in found]


@pytest.mark.parametrize("clash", CLASHES)
def test_work_that_clashes_twice_runs_three_times_and_leaves_one_row(database, clash) -> None:
    work = Clashing(CLASHES[clash], TRIES - 1)
    assert database.write(work) == "done"
    assert work.runs == TRIES
    assert rows(database) == [(1, 0)]


@pytest.mark.parametrize("clash", CLASHES)
def test_work_that_clashes_every_time_is_given_up_and_leaves_nothing(database, clash) -> None:
    work = Clashing(CLASHES[clash], TRIES)
    with pytest.raises(Unavailable):
        database.write(work)
    assert work.runs == TRIES
    assert rows(database) == []


@pytest.mark.postgres
@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_two_writers_that_block_each_other_both_come_through(database: Database) -> None:
    """Each locks a row and then wants the other's: PostgreSQL ends one, which runs again."""
    database.write(lambda c: c.execute(text("INSERT INTO account VALUES (1, 0), (2, 0)")))
    both_hold_one = threading.Barrier(2)
    one_is_through = threading.Event()
    runs = {1: 0, 2: 0}

    def writer(mine: int) -> None:
        def work(connection: Connection) -> None:
            runs[mine] += 1
            if runs[mine] > 1:
                one_is_through.wait(120)
            add = text("UPDATE account SET n = n + 1 WHERE id = :id")
            connection.execute(add, {"id": mine})
            if runs[mine] == 1:
                both_hold_one.wait(120)
            connection.execute(add, {"id": 3 - mine})

        database.write(work)
        one_is_through.set()

    with ThreadPoolExecutor(2) as threads:
        for one in [threads.submit(writer, 1), threads.submit(writer, 2)]:
            one.result(120)
    assert sorted(runs.values()) == [1, 2], "one was ended and ran again"
    assert rows(database) == [(1, 2), (2, 2)]
