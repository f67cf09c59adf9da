"""ZooKeeper under TLS and with credentials of one's own, with a real server."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from penstock.core.clock import SystemClock
from penstock.core.errors import Unavailable
from penstock.services.host.tls_authority import TlsAuthority
from penstock.services.membership import zookeeper
from penstock.services.membership.zookeeper import ZooKeeper, ZooKeeperSecurity
from tests.services.zookeeper_server_kit import ZooKeeperServer, running_server


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TlsAuthority:
    made = TlsAuthority(tmp_path_factory.mktemp("authority") / "tls", SystemClock())
    made.create()
    made.issue()
    return made


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, authority: TlsAuthority
) -> Iterator[ZooKeeperServer]:
    folder = tmp_path_factory.mktemp("zookeeper")
    with running_server(folder, authority.folder / "server.pem") as running:
        yield running


def secure(authority: TlsAuthority) -> ZooKeeperSecurity:
    return ZooKeeperSecurity(uses_tls=True, authorities=str(authority.certificate))


def hosts(server: ZooKeeperServer, name: str = "localhost") -> str:
    return f"{name}:{server.secure_port}"


def test_a_client_talks_under_tls(server: ZooKeeperServer, authority: TlsAuthority) -> None:
    client = ZooKeeper(hosts(server), "/tls", security=secure(authority))
    client.start()
    try:
        client.create("/tls/x", b"content")
        assert client.read("/tls/x") == b"content"
    finally:
        client.stop()


# Kazoo leaves the socket of a failed handshake to the garbage collection.
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_false_server_is_refused(
    server: ZooKeeperServer,
    authority: TlsAuthority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zookeeper, "CONNECT_TIMEOUT_S", 1.0)
    other = TlsAuthority(tmp_path / "tls", SystemClock())
    other.create()
    for security, name in (
        (secure(other), "localhost"),
        (secure(authority), "127.0.0.2"),  # not in the certificate
        (ZooKeeperSecurity(), "localhost"),  # no TLS
    ):
        with pytest.raises(Unavailable):
            ZooKeeper(hosts(server, name), "/tls", security=security).start()
    gc.collect()


def test_only_the_own_user_may_read_its_nodes(
    server: ZooKeeperServer, authority: TlsAuthority
) -> None:
    security = dataclasses.replace(secure(authority), auth="penstock:very-secret")
    client = ZooKeeper(hosts(server), "/own", security=security)
    client.start()
    stranger = KazooClient(hosts=server.hosts)
    stranger.start()
    try:
        client.create("/own/x", b"content")
        assert client.read("/own/x") == b"content"
        with pytest.raises(NoAuthError):
            stranger.get("/own/x")
        with pytest.raises(NoAuthError):
            stranger.create("/own/y", b"")
        assert "very-secret" not in repr(security)
    finally:
        stranger.stop()
        stranger.close()
        client.stop()
