"""A broker, and the clients of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from broker_harness import RunningBroker
from clients import CLIENTS, Client

from penstock.broker.options import BrokerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    """One process of each client for all the scenarios."""
    with Client(request.param) as running:
        yield running


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One broker for all the scenarios that do not restart it: each has a topic of its own."""
    folder: Path = tmp_path_factory.mktemp("conformance")
    with RunningBroker(BrokerOptions(folder=str(folder), http_port=0, tcp_port=0)) as running:
        yield running
