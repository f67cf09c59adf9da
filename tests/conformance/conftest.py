"""A broker, a Penstock, and the clients of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.broker.options import BrokerOptions
from penstock.broker.protocol.negotiation import NegotiationLimits
from penstock.broker.security.tls import TlsOptions
from tests.broker.broker_access_kit import Installation
from tests.broker.broker_kit import RunningBroker
from tests.client.certificates_kit import contexts
from tests.conformance.analysts_kit import ROWS, TABLE, World, ingestion
from tests.conformance.clients_kit import CLIENTS, Client
from tests.system.serving_kit import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.testing.server import LocalPenstock


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


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(tmp_path_factory.mktemp("access"))


@pytest.fixture(scope="module")
def secrets(installation: Installation) -> dict[str, str]:
    """Secrets of clients that may do everything with topics, and one that may only publish."""
    installation.user("alice", "correct horse", "operator")
    return {
        "token": installation.token("ci", "operator"),
        "user and password": "alice:correct horse",
        "publisher": installation.token("publisher", "publisher"),
    }


@pytest.fixture(scope="module")
def guarded(
    installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    """A broker that lets in nobody without a credential."""
    options = BrokerOptions(folder=str(tmp_path_factory.mktemp("guarded")), http_port=0, tcp_port=0)
    with RunningBroker(options, access=installation.control) as running:
        yield running


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a certificate for 127.0.0.1 that signs itself; its key stands beside it."""
    folder: Path = tmp_path_factory.mktemp("certificate")
    contexts(folder)
    return folder / "certificate.pem"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, certificate: Path) -> Iterator[RunningBroker]:
    """A broker with a certificate, that gives a client one second for a message."""
    options = BrokerOptions(
        folder=str(tmp_path_factory.mktemp("strict")),
        http_port=0,
        tcp_port=0,
        tls=TlsOptions(str(certificate), str(certificate.with_name("key.pem"))),
        clients=NegotiationLimits(message_timeout_ms=1000),
    )
    with RunningBroker(options) as running:
        yield running


@pytest.fixture(scope="session")
def analysts(shared_penstock: LocalPenstock, flight_address: str) -> World:
    """A Penstock with the rows that the tools of analysts query."""
    shared_penstock.run_task(ingestion(TABLE, *ROWS))
    return World(shared_penstock, flight_address)


@pytest.fixture(scope="session")
def plain_penstock(
    tmp_path_factory: pytest.TempPathFactory, shared_spark: str
) -> Iterator[LocalPenstock]:
    """A Penstock in a folder whose name the commands of the manual can hold as it is."""
    folder = tmp_path_factory.mktemp("plain")
    with serving(folder / "data", {"PENSTOCK_SPARK_CONNECT": shared_spark}) as made:
        yield made
