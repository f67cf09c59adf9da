"""Fixtures of the storage tests: both databases of the metadata store, and a clock set by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from penstock.storage.metadata import MetadataStore
from penstock.storage.metadata.backends import postgres as postgres_backend
from tests.harness.metadata_kit import create_metadata, share_compiled_statements
from tests.storage.postgres_server_kit import PostgresServer, require_binaries, running_server

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from pathlib import Path

share_compiled_statements()
share_compiled_statements(postgres_backend, PGDialect_psycopg)


class HandClock:
    """A clock that stands still until a test moves it; pauses end at once."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        return condition.wait(0)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with running_server(require_binaries()) as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new, empty database: each test that uses it runs on both kinds.

    With the fixture `store` it has its tables already.
    """
    if request.param == "sqlite":
        if "store" in request.fixturenames:
            create_metadata(tmp_path / "metadata.db")
        return f"sqlite:///{tmp_path}/metadata.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    if "store" in request.fixturenames:
        return server.new_database(lambda url: MetadataStore.open(url, clock=HandClock()).close())
    return server.empty_database()


@pytest.fixture
def store(database_url: str, clock: HandClock) -> Iterator[MetadataStore]:
    with MetadataStore.open(database_url, clock=clock) as opened:
        yield opened
