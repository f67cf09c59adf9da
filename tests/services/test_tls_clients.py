"""Each client of Penstock against servers that are not who they say: nothing is sent to them."""

from __future__ import annotations

import asyncio
import datetime as dt
import io
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
import trustme
from cryptography import x509

from penstock.broker.broker_client import BrokerClient
from penstock.broker.options import BrokerOptions
from penstock.broker.security.tls import ServerTls, TlsOptions
from penstock.broker.server import BrokerServer
from penstock.client import ConnectionOptions, Producer, ProducerOptions
from penstock.core.access.access_control import AccessControl
from penstock.core.async_http_client import AsyncHttpClient
from penstock.core.errors import InvalidRequest, NotReachable, PenstockError, Unavailable
from penstock.core.loop_tasks import LoopThread
from penstock.core.tls_trust import TRUST, TlsTrust, TrustSettings, client_context, is_loopback
from penstock.flow.processors.topics import put_datasource
from penstock.indexing.ports import TaskLocation
from penstock.services.api.asgi import application
from penstock.services.api.process_clients import HttpTaskClient, HttpWorkerClient, WorkerLocator
from penstock.services.cli.command_options import CLI
from penstock.services.cli.entry import run
from penstock.services.emitter import http_sink
from penstock.services.host.process import listen
from penstock.services.http_server import HttpServer
from penstock.services.json_client import JsonClient
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.membership.membership import BrokerFinder
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import PenstockOptions
from penstock.spark.datasource import ask_router
from penstock.spark.topic.source import _read_offsets
from penstock.storage.metadata import LeaseRow

SECRET = "very-secret"
PATIENCE_S = 120
PAST = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)

AUTHORITY, OTHER = trustme.CA(), trustme.CA()
SERVERS = {
    "true": AUTHORITY.issue_cert("localhost", "127.0.0.1"),
    "another authority": OTHER.issue_cert("localhost", "127.0.0.1"),
    "another host": AUTHORITY.issue_cert("other.example"),
    "expired": AUTHORITY.issue_cert(
        "localhost", "127.0.0.1", not_before=PAST, not_after=PAST + dt.timedelta(days=1)
    ),
}
FALSE = [name for name in SERVERS if name != "true"]


class Eavesdropper:
    """A server with a certificate, which keeps what clients send after the handshake."""

    def __init__(self, certificate: trustme.LeafCert) -> None:
        self.heard = b""
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(self._context)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            plain.settimeout(PATIENCE_S)
            try:
                with self._context.wrap_socket(plain, server_side=True) as client:
                    self.heard += client.recv(65_536)
                    client.sendall(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")
            except OSError:
                plain.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Eavesdropper]]:
    made = {name: Eavesdropper(certificate) for name, certificate in SERVERS.items()}
    yield made
    for one in made.values():
        one.close()


@pytest.fixture
def ca(tmp_path: Path) -> str:
    path = tmp_path / "authority.crt"
    AUTHORITY.cert_pem.write_to_path(path)
    return str(path)


@pytest.fixture(autouse=True)
def _trust(ca: str) -> Iterator[None]:
    before = TRUST.settings
    TRUST.set(TrustSettings(ca))
    yield
    TRUST.set(before)


def _of_broker(url: str) -> None:
    with BrokerClient(url, token=SECRET) as client:
        client.publish("t", [b"x"])


def _of_auth_servers(url: str) -> None:
    client = AsyncHttpClient(PATIENCE_S, PATIENCE_S, 1_000)
    asyncio.run(client.get(url, {"secret": SECRET}))


def _of_put_datasource(url: str) -> None:
    found = put_datasource.PutDatasource(datasource="d")
    with put_datasource.overlord_client(url, SECRET, PATIENCE_S) as client:
        found._overlord, found._overlord_url = client, url
        found._topic_of("d")


CLIENTS: dict[str, Callable[[str], object]] = {
    "json": lambda url: JsonClient(url, token=SECRET).get("/status"),
    "broker": _of_broker,
    "auth servers": _of_auth_servers,
    "data source": lambda url: ask_router(url, "d", SECRET),
    "data source of topics": lambda url: _read_offsets(
        {"url": url, "topic": "t", "token": SECRET, "tlsCa": TRUST.settings.authorities or ""}
    ),
    "emitter": lambda url: http_sink.post(url, SECRET.encode(), {}, PATIENCE_S),
    "PutDatasource": _of_put_datasource,
}


@pytest.mark.parametrize("server", FALSE)
@pytest.mark.parametrize("client", CLIENTS)
def test_no_client_sends_anything_to_a_false_server(
    servers: dict[str, Eavesdropper], client: str, server: str
) -> None:
    with pytest.raises((PenstockError, OSError)) as error:
        CLIENTS[client](servers[server].url)
    assert SECRET not in str(error.value)
    assert servers[server].heard == b""


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_sends_to_the_true_server(
    servers: dict[str, Eavesdropper], client: str
) -> None:
    """So the refusals above are of the certificates."""
    servers["true"].heard = b""
    with suppress(PenstockError, OSError):  # it answers 503
        CLIENTS[client](servers["true"].url)
    assert b"HTTP/1.1" in servers["true"].heard


@pytest.mark.parametrize(
    ("server", "remedy"),
    [
        ("another authority", r"authority.crt did not sign.*--tls-ca"),
        ("another host", r"for other hosts.*penstock tls renew --host NAME"),
        ("expired", r"expired.*penstock tls renew"),
    ],
)
def test_errors_have_the_remedy(servers: dict[str, Eavesdropper], server: str, remedy: str) -> None:
    for client in ("json", "broker"):
        with pytest.raises(NotReachable, match=remedy):
            CLIENTS[client](servers[server].url)


def test_the_command_line_takes_an_authority(
    servers: dict[str, Eavesdropper],
    ca: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    CLI.__init__()  # type: ignore[misc]
    monkeypatch.setenv("PENSTOCK_TOKEN", SECRET)
    monkeypatch.chdir(tmp_path)
    words = ["status", "--url", servers["another authority"].url]
    for more in ([], ["--tls-ca", ca]):
        assert run([*words, *more]) == 3
        assert "did not sign" in capsys.readouterr().err
    assert servers["another authority"].heard == b""
    servers["true"].heard = b""
    assert run(["status", "--url", servers["true"].url, "--tls-ca", ca]) != 0
    assert SECRET.encode() in servers["true"].heard
    assert run(["status", "--url", servers["true"].url, "--tls-ca", str(tmp_path / "no")]) == 2
    assert "tls-ca: " in capsys.readouterr().err


def test_a_login_takes_an_authority(
    servers: dict[str, Eavesdropper],
    ca: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    CLI.__init__()  # type: ignore[misc]
    TRUST.set(TrustSettings())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{SECRET}\n"))
    servers["true"].heard = b""
    assert run(["login", servers["true"].url, "--tls-ca", ca]) != 0
    assert SECRET.encode() in servers["true"].heard


# -- NSQ's protocol


@pytest.mark.parametrize("server", ["another authority", "another host", "expired"])
def test_nsq_clients_refuse_a_false_broker(tmp_path: Path, server: str) -> None:
    files = {"chain.pem": b"".join(one.bytes() for one in SERVERS[server].cert_chain_pems)}
    files["key.pem"] = SERVERS[server].private_key_pem.bytes()
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    tls = TlsOptions(str(tmp_path / "chain.pem"), str(tmp_path / "key.pem"))
    broker = BrokerServer(
        BrokerOptions(folder=str(tmp_path / "topics"), http_port=0, tcp_port=0, tls=tls)
    )
    loop = LoopThread("broker", asyncio.new_event_loop())
    loop.start()
    loop.run(broker.start())
    try:
        connection = ConnectionOptions(tls=TRUST.context(), auth_secret=SECRET)

        async def publish() -> None:
            address = f"127.0.0.1:{broker.broker.tcp_port}"
            async with Producer(address, options=ProducerOptions(connection=connection)) as one:
                await one.publish("t", b"x")

        with pytest.raises((InvalidRequest, Unavailable), match=r"certificate"):
            asyncio.run(publish())
        assert broker.broker.topics.find("t") is None
    finally:
        loop.run(broker.stop())
        loop.stop()


# -- a certificate of the client


def test_a_process_shows_its_own_certificate(ca: str, tmp_path: Path) -> None:
    from penstock.broker.security.tls import ClientCertificates

    both = AUTHORITY.issue_cert("localhost", "127.0.0.1")
    pem = tmp_path / "server.pem"
    both.private_key_and_cert_chain_pem.write_to_path(pem)
    policy = ClientCertificates.REQUIRE_VERIFY
    tls = ServerTls(TlsOptions(str(pem), root_ca=ca, client_certificates=policy))
    listener = listen(HostPort("127.0.0.1", 0), "--http")
    server = HttpServer(application([], access=AccessControl.open()), listener, tls=tls)
    server.start()
    url = f"https://127.0.0.1:{server.port}"
    try:
        with pytest.raises(NotReachable):
            JsonClient(url).get("/status/health")
        TRUST.set(TrustSettings(ca, str(pem)))
        assert JsonClient(url).get("/status/health") is True
    finally:
        server.stop()


def test_clients_between_processes_reach_other_hosts_under_tls() -> None:
    other, place = HostPort("10.0.0.1", 5), TaskLocation("10.0.0.1", 5)
    broker = BrokerFinder(PenstockOptions(broker_http=other), LeaseDirectory(NoLeases()))
    urls = {
        HttpWorkerClient("w", other)._client.base_url,
        WorkerLocator(other)._worker.base_url,
        WorkerLocator(HostPort("127.0.0.1", 1), other).broker_url(),
        HttpTaskClient(lambda _task: place)._client("t").base_url,
        broker.http().url,
    }
    assert urls == {"https://10.0.0.1:5"}


class NoLeases:
    def list(self, service: str | None = None) -> list[LeaseRow]:
        return []


# -- the settings


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *(("127.0.0.1", True), ("127.3.2.1", True), ("::1", True), ("[::1]", True)),
        *(("localhost", True), ("LOCALHOST.", True), ("::ffff:127.0.0.1", True)),
        *(("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("", False)),
        *(("localhost.evil.example", False), ("127.0.0.1.nip.io", False), ("2130706433", False)),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
    trust = TlsTrust()
    assert trust.scheme(host) == ("http" if expected else "https")
    trust.set(TrustSettings(uses_tls=False))
    assert trust.scheme(host) == "http"


def test_the_context_follows_the_file(tmp_path: Path, ca: str) -> None:
    trust = TlsTrust(TrustSettings(ca))
    context = trust.context()
    assert trust.context() is context
    assert names_in(context) == {AUTHORITY.cert_pem.bytes()}
    Path(ca).unlink()
    OTHER.cert_pem.write_to_path(ca)
    assert names_in(trust.context()) == {OTHER.cert_pem.bytes()}


def names_in(context: ssl.SSLContext) -> set[bytes]:
    from cryptography.hazmat.primitives.serialization import Encoding

    found = context.get_ca_certs(binary_form=True)
    return {x509.load_der_x509_certificate(one).public_bytes(Encoding.PEM) for one in found}


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_a_file_without_authorities_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=r"^tls-ca: .*ca\.pem"):
        client_context(str(path))
    with pytest.raises(InvalidRequest, match=r"^tls-cert: .*ca\.pem"):
        client_context(None, str(path))


def test_certificates_are_always_verified(ca: str) -> None:
    for context in (TRUST.context(), TRUST.context_of_others(), client_context(ca)):
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    with closing(socket.socket()) as plain, pytest.raises(ValueError, match=r"server_hostname"):
        TRUST.context().wrap_socket(plain)


@pytest.mark.parametrize("command", ["login", "status"])
def test_the_help_names_the_option_of_the_authority(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--help"]) == 0
    assert "--tls-ca" in capsys.readouterr().out
