"""Connections to databases of others: a server that takes a connection and says nothing holds up
nobody for longer than its time, nor for longer than who waits wants."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import psycopg
import pytest
from psycopg import OperationalError
from psycopg.pq import PGconn, TransactionStatus

from penstock.core.errors import InvalidRequest, NotFound, Unavailable
from penstock.storage.databases.database_address import DatabaseAddress
from penstock.storage.databases.postgres_reader import opened
from penstock.storage.metadata.backends.bounded_connection import BoundedConnection
from penstock.testing.clock import VirtualClock
from tests.kits.this_host_kit import this_host_listed


@pytest.fixture(autouse=True)
def servers_of_this_host() -> Iterator[None]:
    """Allow servers of tests."""
    with this_host_listed():
        yield


@pytest.fixture
def silent() -> Iterator[DatabaseAddress]:
    """A port that takes connections, on which nobody ever answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield DatabaseAddress("127.0.0.1", listening.getsockname()[1], "shop")


class Stopped(NotFound):
    """The task should end."""


def test_who_stops_does_not_wait_for_a_server_that_says_nothing(silent: DatabaseAddress) -> None:
    looks = []

    def check() -> None:
        looks.append(1)
        if len(looks) == 3:
            raise Stopped("enough")

    clock = VirtualClock()  # on which no time passes
    with pytest.raises(Stopped), opened(silent, "reader", "hush", check, clock):
        pass


def test_a_server_that_says_nothing_has_its_time(silent: DatabaseAddress) -> None:
    clock = VirtualClock()

    def check() -> None:
        clock.advance(silent.connect_timeout_s / 2)

    waits = pytest.raises(Unavailable, match=r"127\.0\.0\.1: connection timeout expired")
    with waits, opened(silent, "reader", "hush", check, clock):
        pass


def test_what_stands_in_the_way_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    gone = DatabaseAddress("127.0.0.1", port, "shop")
    with pytest.raises(Unavailable, match="refused"), opened(gone, "r", "p", lambda: None):
        pass
    unknown = DatabaseAddress("a..b", port, "shop")
    told = pytest.raises(InvalidRequest, match=r"'a\.\.b' is not the name of a host")
    with told, opened(unknown, "r", "p", lambda: None):
        pass


class Unconnected(BoundedConnection):
    """A connection without a server."""

    def __init__(self, pgconn: PGconn) -> None:
        self.pgconn = pgconn

    def __del__(self) -> None:
        """Close nothing."""


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, OperationalError])
def test_a_connection_whose_answer_was_not_read_is_closed(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail(*_given: object) -> None:
        raise error("broken")

    monkeypatch.setattr(psycopg.Connection, "wait", fail)
    ended: list[int] = []
    pgconn = SimpleNamespace(
        transaction_status=TransactionStatus.ACTIVE, finish=lambda: ended.append(1)
    )
    connection = Unconnected(cast("PGconn", pgconn))
    with pytest.raises(error):
        connection.wait(iter(()))  # type: ignore[arg-type]
    assert ended == [1]
