"""Certificates of roles: what they name, when they are renewed, and who refuses the wrong one."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import http.client
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from penstock.broker.broker_client import BrokerClient
from penstock.broker.http_server.guard import HttpGuard
from penstock.broker.security.peers import check_role
from penstock.broker.security.tls import ServerTls
from penstock.core.access.access_control import AccessControl
from penstock.core.access.principal import Principal, PrincipalKind
from penstock.core.clock import SystemClock
from penstock.core.errors import Unauthenticated, Unavailable
from penstock.core.tls_trust import ROLES, TRUST, TrustSettings, client_context, role_in
from penstock.services.api.asgi import application
from penstock.services.cli.entry import run
from penstock.services.host.process import listen
from penstock.services.host.tls_authority import RENEW_DAYS, SERVER_DAYS, TlsAuthority
from penstock.services.host.tls_settings import server_options, server_tls, trust_settings
from penstock.services.http_server import HttpServer, api_error
from penstock.services.json_client import JsonClient
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import PenstockOptions
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import rules_with

DAY_S = 86_400


class Installation:
    """A data folder with an authority."""

    def __init__(self, folder: Path) -> None:
        # Handshakes check the real time.
        self.clock = VirtualClock(SystemClock().now_ms())
        self.options = PenstockOptions(data_dir=folder)
        self.authority = TlsAuthority(folder / "tls", self.clock)
        self.authority.create()
        self.authority.issue(["penstock.example"])

    def file(self, role: str) -> Path:
        return self.authority.folder / f"{role}.pem"

    def tls(self, role: str) -> ServerTls:
        made = server_tls(self.options, self.clock, role)
        assert made is not None
        return made


@pytest.fixture
def made(tmp_path: Path) -> Installation:
    return Installation(tmp_path / "data")


def uris(path: Path) -> list[str]:
    found = x509.load_pem_x509_certificate(path.read_bytes()).extensions
    names = found.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.UniformResourceIdentifier)


@pytest.mark.parametrize("role", ROLES)
def test_the_certificate_of_a_role_names_it_and_the_host(made: Installation, role: str) -> None:
    tls = made.tls(role)
    assert tls.options.certificate == str(made.file(role))
    assert uris(made.file(role)) == [f"penstock://{role}"]
    current = made.authority.current(role)
    assert current is not None
    assert "penstock.example" in current.names
    assert made.file(role).stat().st_mode & 0o777 == 0o600
    assert trust_settings(made.options, role).certificate == str(made.file(role))
    assert uris(made.file("server")) == []


def test_each_role_renews_its_own_before_it_expires(made: Installation) -> None:
    broker, flow = made.tls("broker"), made.tls("flow")
    before = {role: made.file(role).read_bytes() for role in ("broker", "flow", "server")}
    made.clock.advance((SERVER_DAYS - RENEW_DAYS - 1) * DAY_S)
    assert broker._before_look is not None
    broker._before_look()
    assert not broker.refresh()
    made.clock.advance(2 * DAY_S)
    broker._before_look()
    assert broker.refresh()
    assert made.file("broker").read_bytes() != before["broker"]
    assert made.file("server").read_bytes() != before["server"]
    assert made.file("flow").read_bytes() == before["flow"]
    assert not flow.refresh()
    renewed = made.authority.current("broker")
    assert renewed is not None
    assert renewed.expires_ms // 1_000 == made.clock.now_ms() // 1_000 + SERVER_DAYS * DAY_S


def test_a_new_name_of_the_host_reaches_the_roles(made: Installation) -> None:
    tls = made.tls("broker")
    made.authority.issue(["new.example"])
    assert tls._before_look is not None
    tls._before_look()
    current = made.authority.current("broker")
    assert current is not None
    assert {"new.example", "penstock.example"} <= set(current.names)


def test_a_host_of_one_role_needs_its_file_alone(made: Installation, tmp_path: Path) -> None:
    made.authority.issue(roles=ROLES)
    other = tmp_path / "other" / "tls"
    other.mkdir(parents=True)
    for name in ("authority.crt", "flow.pem"):
        (other / name).write_bytes((made.authority.folder / name).read_bytes())
    options = dataclasses.replace(made.options, data_dir=other.parent)
    assert server_options(options, "flow").certificate == str(other / "flow.pem")
    assert server_options(options, "broker").certificate is None
    tls = server_tls(options, made.clock, "flow")
    assert tls is not None
    assert sorted(one.name for one in other.iterdir()) == ["authority.crt", "flow.pem"]


def test_a_host_without_the_key_uses_that_of_the_host(made: Installation) -> None:
    (made.authority.folder / "authority.key").unlink()
    assert made.tls("broker").options.certificate == str(made.file("server"))


def test_init_and_renew_make_all(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for command in ("init", "renew"):
        assert run(["tls", command, "--data-dir", str(folder)]) == 0
        files = {one.name for one in (folder / "tls").iterdir()}
        assert {f"{role}.pem" for role in ROLES} <= files


def control(process: str) -> AccessControl:
    return AccessControl(None, SystemClock(), process=process, shared_token=b"a shared secret")


class Port:
    """A port of a role, on loopback."""

    def __init__(self, made: Installation, role: str, *, asks: bool = False) -> None:
        options = made.options
        if asks:
            options = dataclasses.replace(options, tls_client_auth_policy="require-verify")
        made.tls(role)  # issues it
        self.tls = ServerTls(server_options(options, role), made.clock)
        listener = listen(HostPort("127.0.0.1", 0), "--http")
        self.port: int = listener.getsockname()[1]
        routes = [Route("/stats", lambda _request: PlainTextResponse("{}"))]
        served = application(routes, access=control(role), rules=rules_with(routes))
        guard = HttpGuard(error_body=api_error, max_connections=20)
        self._server = HttpServer(served, listener, guard, tls=self.tls)
        self._server.start()

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def close(self) -> None:
        self._server.stop()


@contextlib.contextmanager
def port(made: Installation, role: str, *, asks: bool = False) -> Iterator[Port]:
    opened = Port(made, role, asks=asks)
    try:
        yield opened
    finally:
        opened.close()


@contextlib.contextmanager
def trusting(made: Installation, role: str = "") -> Iterator[None]:
    before = TRUST.settings
    certificate = str(made.file(role)) if role else None
    TRUST.set(TrustSettings(str(made.authority.certificate), certificate))
    try:
        yield
    finally:
        TRUST.set(before)


def test_open_connections_go_on_with_the_former_certificate(made: Installation) -> None:
    context = client_context(str(made.authority.certificate))
    with port(made, "broker") as served:
        old = http.client.HTTPSConnection("localhost", served.port, context=context)
        old.request("GET", "/stats")
        old.getresponse().read()
        sock = old.sock
        made.authority.issue(roles=["broker"])
        assert served.tls.refresh()
        new = http.client.HTTPSConnection("localhost", served.port, context=context)
        new.connect()
        assert isinstance(sock, ssl.SSLSocket)
        assert isinstance(new.sock, ssl.SSLSocket)
        assert serial(sock) != serial(new.sock)
        assert role_in(new.sock) == "broker"
        old.request("GET", "/stats")
        old.getresponse().read()
        assert old.sock is sock
        old.close()
        new.close()


def serial(connection: ssl.SSLSocket) -> object:
    return (connection.getpeercert() or {})["serialNumber"]


def test_a_client_refuses_a_server_of_another_role(made: Installation) -> None:
    with port(made, "flow") as served, trusting(made):
        refused = r"is refused: it is the certificate of the flow, not of the broker"
        with pytest.raises(Unavailable, match=refused):
            JsonClient(served.url, role="broker").get("/stats")
        with (
            BrokerClient(served.url, role="broker") as broker,
            pytest.raises(Unavailable, match=refused),
        ):
            broker.ping()
        with pytest.raises(ssl.SSLCertVerificationError, match="of the flow, not of the broker"):
            asyncio.run(
                asyncio.wait_for(
                    asyncio.open_connection(
                        "127.0.0.1",
                        served.port,
                        ssl=TRUST.context("broker"),
                        server_hostname="localhost",
                    ),
                    20,
                )
            )
        for role in ("flow", ""):
            status, _, _ = JsonClient(served.url, role=role).exchange("GET", "/stats")
            assert status == 401


def test_a_certificate_without_a_role_serves_as_any(made: Installation) -> None:
    (made.authority.folder / "authority.key").unlink()  # so that the role gets none
    with port(made, "broker") as served, trusting(made):
        status, _, _ = JsonClient(served.url, role="broker").exchange("GET", "/stats")
        assert status == 401


@pytest.mark.parametrize(
    ("process", "role", "expected"),
    [
        ("router", "router", 200),
        ("router", "server", 200),
        ("router", "flow", 401),
        ("flow", "router", 401),
    ],
)
def test_a_server_that_asks_for_certificates_compares_them_with_tokens(
    made: Installation, process: str, role: str, expected: int
) -> None:
    made.authority.issue(roles=["router", "flow"])
    with port(made, "broker", asks=True) as served, trusting(made, role):
        bearer = control(process).key.process_bearer
        status, _, body = JsonClient(served.url, token=bearer, role="broker").exchange(
            "GET", "/stats"
        )
        assert status == expected, body
        if expected == 401:
            assert b"certificate of the client" in body


@pytest.mark.parametrize("role", ["", "broker"])
def test_other_principals_may_show_any_certificate(role: str) -> None:
    check_role(Principal(PrincipalKind.USER, "router"), role)
    check_role(Principal(PrincipalKind.PROCESS, "broker"), role)
    check_role(Principal(PrincipalKind.PROCESS, "caller-of-peon"), role)
    with pytest.raises(Unauthenticated, match="router"):
        check_role(Principal(PrincipalKind.PROCESS, "router"), "broker,router")
