"""A broker for a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.broker.options import BrokerOptions
from tests.broker.broker_kit import RunningBroker
from tests.broker.v2_kit import V2
from tests.kits.ports_kit import kept_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def options(tmp_path: Path) -> BrokerOptions:
    return BrokerOptions(folder=str(tmp_path / "topics"), http_port=0)


@pytest.fixture
def broker(options: BrokerOptions) -> Iterator[RunningBroker]:
    with RunningBroker(options) as running:
        yield running


@pytest.fixture
def connect(broker: RunningBroker) -> Iterator[Callable[[], V2]]:
    """Make connections to the broker's TCP server, which are closed after the test."""
    made: list[V2] = []

    def connection() -> V2:
        made.append(V2(broker.server.broker.tcp_port))
        return made[-1]

    yield connection
    for one in made:
        one.close()


@pytest.fixture
def client(connect: Callable[[], V2]) -> V2:
    """A connection to the broker's TCP server."""
    return connect()


@pytest.fixture
def port_of_restarts() -> Iterator[int]:
    """A port that no other process takes while a killed broker is down."""
    with kept_port() as port:
        yield port
