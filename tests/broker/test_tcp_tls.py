"""NSQ's protocol and HTTP under TLS: upgrades, who must use it, and clients' certificates."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import socket
import ssl
import struct
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
import trustme

from penstock.broker.http_server import tls_gate
from penstock.broker.options import BrokerOptions
from penstock.broker.security.tls import (
    ClientCertificates,
    Requirement,
    TlsOptions,
    TlsVersion,
    server_context,
)
from penstock.broker.tcp import tcp_connection
from penstock.core.errors import InvalidRequest
from tests.broker.broker_access_kit import Installation
from tests.broker.broker_kit import RunningBroker
from tests.broker.v2_kit import V2, sized

AUTHORITY = trustme.CA()
CERTIFICATE = AUTHORITY.issue_cert("localhost", "127.0.0.1")


@pytest.fixture
def tls(tmp_path: Path) -> TlsOptions:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_bytes(b"".join(blob.bytes() for blob in CERTIFICATE.cert_chain_pems))
    CERTIFICATE.private_key_pem.write_to_path(key)
    AUTHORITY.cert_pem.write_to_path(tmp_path / "ca.pem")
    return TlsOptions(certificate=str(certificate), key=str(key))


@pytest.fixture
def options(options: BrokerOptions, tls: TlsOptions) -> BrokerOptions:
    return dataclasses.replace(options, tcp_port=0, https_port=0, tls=tls)


def trusting(certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    if certificate is not None:
        certificate.configure_cert(context)
    return context


def secured(port: int, context: ssl.SSLContext, **fields: object) -> V2:
    """A client that has changed to TLS."""
    client = V2(port)
    answer = json.loads(client.identify(tls_v1=True, feature_negotiation=True, **fields))
    assert answer["tls_v1"] is True
    client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
    assert client.answer() == b"OK"
    return client


def changed(options: BrokerOptions, **fields: Any) -> BrokerOptions:
    return dataclasses.replace(options, tls=dataclasses.replace(options.tls, **fields))


@pytest.fixture
def port(broker: RunningBroker) -> int:
    return broker.server.broker.tcp_port


def test_a_connection_changes_to_tls_and_goes_on(broker: RunningBroker, port: int) -> None:
    with secured(port, trusting()) as client, V2(port) as plain:
        client.subscribe("t", "c", ready=10)
        plain.publish("t", b"plain")
        assert client.message().body == b"plain"
        plain.publish("t", b"x" * 200_000)
        message = client.message()
        assert message.body == b"x" * 200_000
        client.finish(message.id)
        assert isinstance(client.socket, ssl.SSLSocket)
        assert client.socket.version() == "TLSv1.3"


def test_deflate_inside_tls(port: int) -> None:
    client = V2(port)
    client.identify(tls_v1=True, deflate=True, feature_negotiation=True)
    secure = trusting().wrap_socket(client.socket, server_hostname="localhost")
    client.socket = secure
    assert client.answer() == b"OK"
    unpack = zlib.decompressobj(-zlib.MAX_WBITS)
    pack = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    plain = b""
    while len(plain) < 10:
        plain += unpack.decompress(secure.recv(4096))
    assert plain == struct.pack(">ii", 6, 0) + b"OK"
    secure.sendall(pack.compress(b"PUB t\n" + sized(b"packed")) + pack.flush(zlib.Z_SYNC_FLUSH))
    assert unpack.decompress(secure.recv(4096)) == struct.pack(">ii", 6, 0) + b"OK"
    client.close()


def test_what_was_sent_before_the_handshake_is_not_carried_out(
    broker: RunningBroker, port: int
) -> None:
    identify = json.dumps({"tls_v1": True, "feature_negotiation": True}).encode()
    with V2(port) as client:
        client.send(b"IDENTIFY\n", sized(identify), b"PUB injected\n", sized(b"x"))
        assert json.loads(client.answer())["tls_v1"] is True
        assert client.error().startswith("E_IDENTIFY_FAILED")
        assert client.closed()
    assert broker.server.broker.topics.find("injected") is None


def test_a_handshake_that_fails_ends_the_connection(broker: RunningBroker, port: int) -> None:
    with V2(port) as client:
        client.identify(tls_v1=True, feature_negotiation=True)
        client.send(b"this is no ClientHello" * 20)
        with contextlib.suppress(ConnectionResetError):
            while client.piece():  # TLS's alert may come
                pass
    with V2(port) as left:
        left.publish("t", b"others notice nothing")


def test_without_a_certificate_tls_is_not_offered(options: BrokerOptions) -> None:
    bare = dataclasses.replace(options, tls=TlsOptions(), https_port=None)
    with RunningBroker(bare) as broker, V2(broker.server.broker.tcp_port) as client:
        answer = json.loads(client.identify(tls_v1=True, feature_negotiation=True))
        assert answer["tls_v1"] is False
        client.publish("t", b"plain")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (b"PUB t\n" + sized(b"x"), "PUB"),
        (b"SUB t c\n", "SUB"),
        (b"NOP\n", "NOP"),
        (b"RDY 1\n", "RDY"),
        (b"FIN 0123456789abcdef\n", "FIN"),
        (b"FIN ghijklmnopqrstuv\n", "FIN"),
        (b"AUTH\n" + sized(b"secret"), "AUTH"),
        # NSQ checks TLS before the parameters.
        (b"PUB !\n", "PUB"),
        (b"MPUB t\n" + sized(b"malformed"), "MPUB"),
        (b"SUB t\n", "SUB"),
        (b"FIN short\n", "FIN"),
        (b"RDY x\n", "RDY"),
    ],
)
def test_where_tls_is_required_nothing_else_is_done_before(
    options: BrokerOptions, command: bytes, name: str
) -> None:
    strict = changed(options, required=Requirement.ALL_BUT_HTTP)
    with RunningBroker(strict) as broker:
        with V2(broker.server.broker.tcp_port) as client:
            client.send(command)
            assert client.error() == f"E_INVALID cannot {name} in current state (TLS required)"
            assert client.closed()
        assert broker.ask("GET", "/ping").status == 200
        with secured(broker.server.broker.tcp_port, trusting()) as client:
            client.publish("t", b"x")


def https(broker: RunningBroker, method: str, target: str) -> tuple[int, bytes]:
    asking = http.client.HTTPSConnection(
        "localhost", broker.server.broker.https_port, timeout=30, context=trusting()
    )
    try:
        asking.request(method, target, b"body" if method == "POST" else None)
        response = asking.getresponse()
        return response.status, response.read()
    finally:
        asking.close()


def test_http_under_tls(broker: RunningBroker) -> None:
    assert https(broker, "GET", "/ping") == (200, b"OK")
    assert https(broker, "POST", "/pub?topic=t") == (200, b"OK")
    assert broker.stored("t") == [[b"body"]]


def test_where_tls_is_required_of_all_plain_http_says_so(options: BrokerOptions) -> None:
    with RunningBroker(changed(options, required=Requirement.ALL)) as broker:
        answer = broker.ask("POST", "/pub?topic=t", b"x")
        assert answer.status == 403
        port = broker.server.broker.https_port
        assert json.loads(answer.body) == {"message": "TLS_REQUIRED", "https_port": port}
        assert broker.ask("GET", "/ping").status == 403
        assert broker.server.broker.topics.find("t") is None
        assert https(broker, "GET", "/ping") == (200, b"OK")
    excepted = changed(options, required=Requirement.ALL, plain_loopback=True)
    with RunningBroker(excepted) as broker:
        assert broker.ask("GET", "/ping").status == 200


def refused(port: int, context: ssl.SSLContext) -> bool:
    client = V2(port)
    client.identify(tls_v1=True, feature_negotiation=True)
    try:
        client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
        # With TLS 1.3 the client's side is done before the server has seen the certificate.
        return client.socket.recv(1) == b""
    except (ssl.SSLError, ConnectionError):
        return True
    finally:
        client.close()


def test_clients_show_a_certificate_that_is_verified(
    options: BrokerOptions, tmp_path: Path
) -> None:
    known = AUTHORITY.issue_cert("client.example", common_name="robin")
    stranger = trustme.CA().issue_cert("client.example")
    strict = changed(
        options,
        root_ca=str(tmp_path / "ca.pem"),
        client_certificates=ClientCertificates.REQUIRE_VERIFY,
    )
    with RunningBroker(strict) as broker:
        port = broker.server.broker.tcp_port
        assert refused(port, trusting())
        assert refused(port, trusting(stranger))
        with secured(port, trusting(known)) as client:
            client.publish("t", b"x")
        with V2(port) as plain:
            plain.send(b"NOP\n")
            assert plain.error().startswith("E_INVALID cannot NOP")
        assert broker.ask("GET", "/ping").status == 403


def test_a_certificate_is_a_credential(options: BrokerOptions, tmp_path: Path) -> None:
    strict = changed(
        options,
        root_ca=str(tmp_path / "ca.pem"),
        client_certificates=ClientCertificates.REQUIRE_VERIFY,
    )
    installation = Installation(tmp_path / "access")
    installation.rules('[principals]\n"certificate:robin" = ["publisher"]\n')
    consumer = installation.token("consumer", "consumer").encode()
    robin = trusting(AUTHORITY.issue_cert("client.example", common_name="robin"))
    other = trusting(AUTHORITY.issue_cert("client.example", common_name="robin2"))
    with RunningBroker(strict, access=installation.control) as broker:
        port = broker.server.broker.tcp_port
        with V2(port) as client:  # NSQ's clients go on without a secret
            answer = json.loads(client.identify(tls_v1=True, feature_negotiation=True))
            assert answer["auth_required"] is False
        with secured(port, robin) as client:
            client.publish("t", b"x")
            client.send(b"SUB t c\n")
            assert client.error() == 'E_UNAUTHORIZED AUTH failed for SUB on "t" "c"'
        with secured(port, other) as client:
            client.send(b"PUB t\n", sized(b"x"))
            assert client.error() == 'E_UNAUTHORIZED AUTH failed for PUB on "t" ""'
        with secured(port, robin) as client:  # a secret counts instead of the certificate
            client.publish("t", b"x")
            client.ask(b"AUTH\n", sized(consumer))
            client.send(b"PUB t\n", sized(b"x"))
            assert client.error() == 'E_UNAUTHORIZED AUTH failed for PUB on "t" ""'
        with secured(port, other) as client:
            client.ask(b"AUTH\n", sized(consumer))
            client.subscribe("t", "c")
        for context, status in ((robin, 200), (other, 403)):
            connection = http.client.HTTPSConnection(
                "localhost", broker.server.broker.https_port, context=context, timeout=30
            )
            connection.request("POST", "/pub?topic=t", b"x")
            assert connection.getresponse().status == status
            connection.close()
        installation.rules("# none\n")
        with V2(port) as client:  # no certificate has a role, so they need another credential
            answer = json.loads(client.identify(tls_v1=True, feature_negotiation=True))
            assert answer["auth_required"] is True


def test_connections_with_a_certificate_are_counted_while_it_is_their_credential(
    options: BrokerOptions, tmp_path: Path
) -> None:
    strict = changed(
        options,
        root_ca=str(tmp_path / "ca.pem"),
        client_certificates=ClientCertificates.REQUIRE_VERIFY,
    )
    installation = Installation(tmp_path / "access")
    installation.rules(
        "[roles.one.quotas]\nconnections = 1\n"
        '[principals]\n"certificate:robin" = ["publisher", "one"]\n'
    )
    publisher = installation.token("other", "publisher").encode()
    robin = trusting(AUTHORITY.issue_cert("client.example", common_name="robin"))
    with RunningBroker(strict, access=installation.control) as broker:
        port = broker.server.broker.tcp_port
        with secured(port, robin) as first:
            first.publish("t", b"x")
            first.publish("t", b"x")
            with secured(port, robin) as second:
                second.send(b"PUB t\n", sized(b"x"))
                assert second.error().startswith(
                    "E_AUTH_FAILED AUTH failed certificate:robin has as many connections"
                )
                assert second.closed()
            first.ask(b"AUTH\n", sized(publisher))
            first.publish("t", b"x")
            with secured(port, robin) as third:
                third.publish("t", b"x")


def test_the_oldest_version_that_is_spoken(options: BrokerOptions) -> None:
    context = trusting()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with RunningBroker(changed(options, min_version=TlsVersion.TLS_1_3)) as broker:
        assert refused(broker.server.broker.tcp_port, context)
    with (
        RunningBroker(options) as broker,
        secured(broker.server.broker.tcp_port, context) as client,
    ):
        client.publish("t", b"x")


def test_what_does_not_fit_is_refused_before_a_folder_is_touched(
    options: BrokerOptions, tmp_path: Path
) -> None:
    missing = str(tmp_path / "missing.pem")
    empty = tmp_path / "empty.pem"
    empty.touch()
    wrong = [
        (changed(options, certificate=missing), "missing.pem: No such file"),
        (changed(options, key=missing), "missing.pem: No such file"),
        (changed(options, certificate=str(empty)), "must be a certificate chain and its key"),
        (changed(options, client_certificates=ClientCertificates.REQUIRE), "tls-root-ca"),
        (
            changed(options, client_certificates=ClientCertificates.REQUIRE, root_ca=str(empty)),
            "must contain certificates",
        ),
        (changed(options, certificate=None), "needs a certificate"),
        (
            dataclasses.replace(options, tls=TlsOptions(required=Requirement.ALL)),
            "needs a certificate",
        ),
        (dataclasses.replace(options, tls=TlsOptions()), "needs a certificate"),
    ]
    for given, text in wrong:
        with pytest.raises(InvalidRequest, match=text), RunningBroker(given):
            pass
    assert not Path(options.folder).exists()


def test_a_key_with_a_passphrase_is_refused_without_asking_for_it(
    tls: TlsOptions, tmp_path: Path
) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(CERTIFICATE.private_key_pem.bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"passphrase"),
        )
    )
    with pytest.raises(InvalidRequest, match="without a passphrase"):
        server_context(dataclasses.replace(tls, key=str(locked)))


def test_connections_under_tls_end_with_the_broker(options: BrokerOptions) -> None:
    with RunningBroker(options) as broker:
        client = secured(broker.server.broker.tcp_port, trusting())
        client.subscribe("t", "c")
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        assert client.socket.recv(1) == b""
    client.close()


def test_a_handshake_that_never_comes_hears_no_heartbeats_and_ends(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_connection, "_HANDSHAKE_S", 1.2)
    with V2(port) as silent, V2(port) as other:
        silent.identify(tls_v1=True, feature_negotiation=True, heartbeat_interval=1000)
        other.publish("t", b"x")
        # They would be taken for a part of the handshake.
        assert silent.piece() == b""


# -- required of other hosts only


@pytest.fixture
def remote_only(options: BrokerOptions) -> BrokerOptions:
    return changed(options, required=Requirement.REMOTE)


def test_loopback_may_do_without_tls(remote_only: BrokerOptions) -> None:
    with RunningBroker(remote_only) as broker, V2(broker.server.broker.tcp_port) as client:
        client.publish("t", b"x")
        connection = http.client.HTTPConnection("127.0.0.1", broker.server.http_port, timeout=120)
        with contextlib.closing(connection):
            connection.request("GET", "/info")
            assert connection.getresponse().status == 200


def test_other_hosts_need_tls(remote_only: BrokerOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_connection, "is_loopback", lambda _host: False)
    with RunningBroker(remote_only) as broker:
        port = broker.server.broker.tcp_port
        with V2(port) as client:
            client.send(b"PUB t\n", sized(b"x"))
            assert "TLS required" in client.error()
        assert broker.server.broker.topics.find("t") is None
        with secured(port, trusting()) as client:
            client.publish("t", b"x")


def test_the_plain_port_speaks_tls_too(remote_only: BrokerOptions) -> None:
    with RunningBroker(remote_only) as broker:
        port = broker.server.http_port
        connection = http.client.HTTPSConnection("localhost", port, timeout=120, context=trusting())
        with contextlib.closing(connection):
            connection.request("POST", "/pub?topic=t", b"x")
            assert connection.getresponse().status == 200


def test_without_a_certificate_requiring_it_of_other_hosts_has_no_effect() -> None:
    options = TlsOptions(required=Requirement.REMOTE)
    assert options.requirement is Requirement.NOBODY
    assert server_context(options) is None


def test_a_client_of_nsq_gets_the_new_certificate(
    remote_only: BrokerOptions, tls: TlsOptions, broker: RunningBroker
) -> None:
    """NSQ's clients change to TLS after the connection began."""
    assert tls.certificate is not None
    assert tls.key is not None
    port = broker.server.broker.tcp_port
    server = broker.server._servers
    assert server is not None
    assert server._tls is not None
    server._tls.stop()  # or its thread might look before the test does
    with secured(port, trusting()) as old:
        other = AUTHORITY.issue_cert("localhost", "127.0.0.1")
        chain = b"".join(blob.bytes() for blob in other.cert_chain_pems)
        Path(tls.key).write_bytes(other.private_key_pem.bytes())
        assert not server._tls.refresh()  # the key without its certificate: incomplete
        Path(tls.certificate).write_bytes(chain)
        assert server._tls.refresh()
        with secured(port, trusting()) as new:
            assert peer(new) != peer(old)
        old.publish("t", b"still works")


def peer(client: V2) -> object:
    assert isinstance(client.socket, ssl.SSLSocket)
    found = client.socket.getpeercert()
    assert found is not None
    return found["serialNumber"]


@pytest.mark.parametrize("plain_port", [True, False])
def test_http_handshakes_end_in_time(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, plain_port: bool
) -> None:
    monkeypatch.setattr(tls_gate, "HANDSHAKE_S", 0.2)
    running = broker.server.broker
    port = running.http_port if plain_port else running.https_port
    before = running.guard.refused["tls_handshake"]
    with socket.create_connection(("127.0.0.1", port), 20) as client:
        client.sendall(b"\x16\x03\x01\x02\x00")
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(100) == b""
    until_s = time.monotonic() + 120
    while running.guard.connections and time.monotonic() < until_s:
        time.sleep(0.01)
    assert running.guard.connections == 0
    assert running.guard.refused["tls_handshake"] == before + 1


def test_the_https_port_speaks_no_plain_http(broker: RunningBroker) -> None:
    with socket.create_connection(("127.0.0.1", broker.server.broker.https_port), 20) as client:
        client.sendall(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(100) == b""
    assert broker.server.broker.guard.refused["tls_plain"] == 1
