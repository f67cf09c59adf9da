"""A broker, and the clients of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from broker_kit import RunningBroker
from certificates_kit import contexts
from clients_kit import CLIENTS, Client

from penstock.broker.options import BrokerOptions
from penstock.broker.protocol.negotiation import NegotiationLimits
from penstock.broker.security.tls import TlsOptions

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
