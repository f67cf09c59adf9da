"""A port with a certificate: TLS and plain HTTP on it, reload of the certificate, slow clients."""

from __future__ import annotations

import contextlib
import http.client
import logging
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from penstock.broker.http_server import http_connection, server, tls_gate
from penstock.broker.http_server.guard import HttpGuard
from penstock.broker.security import tls as tls_module
from penstock.broker.security.tls import LOOK_EVERY_S, Requirement, ServerTls, TlsOptions
from penstock.core.access.access_control import AccessControl
from penstock.core.clock import SystemClock
from penstock.core.tls_trust import client_context
from penstock.services.api.asgi import application
from penstock.services.host.process import listen
from penstock.services.host.tls_authority import TlsAuthority
from penstock.services.http_server import HttpServer, api_error
from penstock.services.options.option_values import HostPort
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import rules_with

NEEDS_CURL = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
NEEDS_OPENSSL = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
HEALTH = b"GET /status/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
PATIENCE_S = 120
KEY = b"-----BEGIN PRIVATE"


class TlsPort:
    """An API port with a certificate of an authority of its own."""

    def __init__(self, folder: Path, max_connections: int = 20) -> None:
        self.authority = TlsAuthority(folder / "tls", SystemClock())
        self.authority.create()
        self.authority.issue(["penstock.example"])
        self.pem = self.authority.folder / "server.pem"
        # Its thread looks at the files only when the test does.
        options = TlsOptions(str(self.pem), required=Requirement.REMOTE)
        self.tls = ServerTls(options, VirtualClock())
        self.guard = HttpGuard(error_body=api_error, max_connections=max_connections)
        listener = listen(HostPort("127.0.0.1", 0), "--http")
        self.port: int = listener.getsockname()[1]
        routes = [Route("/scheme", lambda request: PlainTextResponse(request.url.scheme))]
        app = application(routes, access=AccessControl.open(), rules=rules_with(routes))
        self._server = HttpServer(app, listener, self.guard, tls=self.tls)
        self._server.start()

    @property
    def ca(self) -> str:
        return str(self.authority.certificate)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)

    def secure(self, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
        context = context or client_context(self.ca)
        return context.wrap_socket(self.connect(), server_hostname="localhost")

    def scheme(self, connection: http.client.HTTPConnection) -> str:
        connection.request("GET", "/scheme")
        return connection.getresponse().read().decode()

    def wait_for_refused(self, reason: str, count: int) -> None:
        """The client may notice the end before the server has counted it."""
        until_s = time.monotonic() + PATIENCE_S
        while self.guard.refused[reason] < count and time.monotonic() < until_s:
            time.sleep(0.01)
        assert self.guard.refused[reason] == count

    def close(self) -> None:
        self._server.stop()


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsPort]:
    made = TlsPort(tmp_path_factory.mktemp("port"))
    yield made
    made.close()


def serial(connection: ssl.SSLSocket) -> object:
    found = connection.getpeercert()
    assert found is not None
    return found["serialNumber"]


def rest_of(connection: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65_536):
            found += piece
    return found


def test_one_port_serves_tls_and_plain_http_over_loopback(port: TlsPort) -> None:
    plain = http.client.HTTPConnection("127.0.0.1", port.port, timeout=PATIENCE_S)
    tls = client_context(port.ca)
    secure = http.client.HTTPSConnection("localhost", port.port, timeout=PATIENCE_S, context=tls)
    with contextlib.closing(plain), contextlib.closing(secure):
        for _ in range(2):  # the second request on the same connection
            assert port.scheme(plain) == "http"
            assert port.scheme(secure) == "https"


def test_the_protocol_and_its_version_are_modern(port: TlsPort) -> None:
    context = client_context(port.ca)
    context.set_alpn_protocols(["h2", "http/1.1"])
    with port.secure(context) as client:
        assert client.selected_alpn_protocol() == "http/1.1"
        assert client.version() == "TLSv1.3"
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with port.secure(context) as client:
        cipher = client.cipher()
        assert cipher is not None
        assert cipher[0].startswith("ECDHE-ECDSA-")
        assert "GCM" in cipher[0] or "CHACHA20" in cipher[0]


def test_a_strict_client_accepts_the_certificate(port: TlsPort) -> None:
    """Python is strict from 3.13 on: extensions that RFC 5280 requires must exist."""
    context = client_context(port.ca)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    for name in ("localhost", "penstock.example"):
        with context.wrap_socket(port.connect(), server_hostname=name) as client:
            assert client.version() == "TLSv1.3"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_are_refused(port: TlsPort, version: ssl.TLSVersion) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")  # otherwise the client itself refuses them
    context.minimum_version, context.maximum_version = version, version
    before = port.guard.refused["tls_handshake"]
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        port.secure(context)
    port.wait_for_refused("tls_handshake", before + 1)


@pytest.mark.parametrize("suite", ["AES128-SHA", "ECDHE-ECDSA-AES128-SHA", "AES128-GCM-SHA256"])
def test_suites_without_forward_secrecy_or_authentication_are_refused(
    port: TlsPort, suite: str
) -> None:
    context = client_context(port.ca)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(f"{suite}:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        port.secure(context)


def test_other_hosts_are_refused_in_plain_text_with_the_remedy(
    port: TlsPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "is_loopback", lambda _host: False)
    with port.connect() as client:
        client.sendall(HEALTH)
        answer = rest_of(client)
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"https://" in answer
    with port.secure() as client:
        client.sendall(HEALTH)
        assert rest_of(client).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (b"https://penstock.example:%d", 200),
        (b"https://localhost:%d", 403),  # another host than that of the request
        (b"https://evil.example:%d", 403),
    ],
)
def test_the_origin_of_a_page_may_be_https(port: TlsPort, origin: bytes, status: int) -> None:
    port.guard.policy = type(port.guard.policy)(["penstock.example"])
    head = b"POST /scheme HTTP/1.1\r\nHost: penstock.example:%d\r\nOrigin: " + origin + b"\r\n"
    with port.secure() as client:
        client.sendall(head % (port.port, port.port) + b"Connection: close\r\n\r\n")
        answer = rest_of(client)
    # The route has no POST: 405 shows that the request came through.
    assert (b" 403 " in answer.splitlines()[0]) == (status == 403)


# -- reload


def test_a_new_certificate_is_used_and_old_connections_go_on(port: TlsPort) -> None:
    with port.secure() as old:
        before = serial(old)
        port.authority.issue()
        assert port.tls.refresh()
        assert not port.tls.refresh()  # nothing changed since
        with port.secure() as new:
            assert serial(new) != before
        old.sendall(HEALTH)
        assert rest_of(old).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "damage",
    [
        lambda pem, _other: pem[: len(pem) // 2],
        lambda _pem, _other: b"",
        lambda pem, other: pem.partition(KEY)[0] + KEY + other.partition(KEY)[2],
    ],
    ids=["incomplete", "empty", "key of another certificate"],
)
def test_an_invalid_pair_changes_nothing_and_is_reported_once(
    port: TlsPort, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(damage)
    good = port.pem.read_bytes()
    with port.secure() as client:
        before = serial(client)
    port.authority.issue()
    other = port.pem.read_bytes()
    caplog.set_level(logging.WARNING)
    port.pem.write_bytes(damage(good, other))
    assert not port.tls.refresh()
    assert not port.tls.refresh()
    assert caplog.text.count("are not used") == 1
    assert str(port.pem) in caplog.text
    with port.secure() as client:
        assert serial(client) == before
    port.pem.unlink()
    assert not port.tls.refresh()
    port.pem.write_bytes(good)
    assert port.tls.refresh()


def test_a_thread_looks_at_the_files_every_few_seconds(port: TlsPort) -> None:
    clock = VirtualClock()
    looked: list[float] = []

    def renew() -> None:
        looked.append(clock.monotonic_s())
        port.authority.issue()

    tls = ServerTls(port.tls.options, clock, renew)
    first = tls.context
    tls.start()
    clock.wait_for_waiting(1)
    clock.advance(LOOK_EVERY_S)
    clock.wait_for_waiting(1)
    assert looked == [LOOK_EVERY_S]
    assert tls.context is not first
    tls.stop()
    port.tls.refresh()


# -- slow and hostile clients


def test_a_handshake_that_never_ends_is_cut_off(
    port: TlsPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_gate, "HANDSHAKE_S", 0.2)
    before = port.guard.refused["tls_handshake"]
    with port.connect() as client:
        client.sendall(b"\x16\x03\x01\x02\x00")
        assert rest_of(client) == b""
    port.wait_for_refused("tls_handshake", before + 1)


def test_connections_before_the_handshake_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = TlsPort(tmp_path, max_connections=3)
    try:
        with contextlib.ExitStack() as clients:
            silent = [clients.enter_context(port.connect()) for _ in range(3)]
            # Each further one takes the place of the one that waits longest.
            with port.secure() as client:
                client.sendall(HEALTH)
                assert rest_of(client).startswith(b"HTTP/1.1 200 ")
            assert rest_of(silent[0]) == b""
            assert port.guard.refused["connections"] >= 1
    finally:
        port.close()  # closes connections that wait for their first byte, too
    assert port.guard.connections == 0


def test_a_silent_connection_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_KEEP_ALIVE_S", 0)
    port = TlsPort(tmp_path)
    try:
        with port.connect() as client:
            assert rest_of(client) == b""
    finally:
        port.close()


def test_what_is_neither_tls_nor_http_is_refused(port: TlsPort) -> None:
    with port.connect() as client:
        client.sendall(b"\x80\x2e\x01\x00\x02")  # the hello of SSL 2
        client.shutdown(socket.SHUT_WR)
        answer = rest_of(client)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    with port.connect() as client:
        client.sendall(b"\x16" + b"GET / HTTP/1.1\r\n" * 100)
        assert not rest_of(client).startswith(b"HTTP/")


# -- clients that others wrote


@NEEDS_CURL
def test_curl(port: TlsPort) -> None:
    def curl(*arguments: str) -> subprocess.CompletedProcess[str]:
        words = ["curl", "-sS", "--max-time", "20", "--noproxy", "*", *arguments]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    url = f"https://localhost:{port.port}/scheme"
    assert curl("--cacert", port.ca, url).stdout == "https"
    assert curl(url).returncode == 60  # unknown authority
    resolved = f"other.example:{port.port}:127.0.0.1"
    wrong = curl(
        "--cacert", port.ca, "--resolve", resolved, url.replace("localhost", "other.example")
    )
    assert wrong.returncode == 60
    assert curl(f"http://127.0.0.1:{port.port}/scheme").stdout == "http"


@NEEDS_OPENSSL
def test_a_client_cannot_renegotiate(port: TlsPort) -> None:
    words = ["openssl", "s_client", "-connect", f"127.0.0.1:{port.port}", "-tls1_2"]
    words += ["-CAfile", port.ca, "-servername", "localhost"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as client:
        found, _ = client.communicate(b"R\n", timeout=PATIENCE_S)
    assert b"Verify return code: 0 (ok)" in found
    assert b"RENEGOTIATING" in found
    assert b"no renegotiation" in found or b"error" in found


def test_the_limits_are_those_of_the_module() -> None:
    assert tls_module.HANDSHAKE_S <= 10
