"""The unix socket of NSQ's protocol, and what clients may negotiate."""

from __future__ import annotations

import dataclasses
import json
import socket
import stat
from pathlib import Path

import pytest

from penstock.broker.options import BrokerOptions
from penstock.broker.protocol.negotiation import NegotiationLimits
from penstock.broker.tcp import listeners
from penstock.broker.tcp.listeners import bind_listener, bind_unix_listener
from penstock.core.errors import InvalidRequest, Unavailable
from tests.broker.broker_kit import RunningBroker
from tests.broker.v2_kit import V2, sized
from tests.kits.port_faults_kit import check_at_each_call


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "nsq.sock"


@pytest.fixture
def options(options: BrokerOptions, path: Path) -> BrokerOptions:
    return dataclasses.replace(options, tcp_port=0, tcp_socket=str(path))


class UnixV2(V2):
    """A client over a unix socket."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(str(path))
        self.socket.sendall(b"  V2")


def test_both_sockets_serve_the_same_topics(broker: RunningBroker, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with UnixV2(path) as here, V2(broker.server.broker.tcp_port) as there:
        here.subscribe("t", "c")
        there.publish("t", b"x")
        assert here.message().body == b"x"


def test_the_file_goes_with_the_broker_and_comes_with_the_next(
    options: BrokerOptions, path: Path
) -> None:
    for _ in range(2):
        with RunningBroker(options), UnixV2(path) as client:
            client.publish("t", b"x")
        assert not path.exists()


def test_a_unix_socket_alone(options: BrokerOptions, path: Path) -> None:
    alone = dataclasses.replace(options, tcp_port=None, tcp_socket_mode=0o660)
    with RunningBroker(alone) as broker, UnixV2(path) as client:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        client.publish("t", b"x")
        assert broker.server.broker.tcp_port == -1


def test_what_a_broker_that_died_left_is_removed(options: BrokerOptions, path: Path) -> None:
    bind_unix_listener(str(path), 0o600).close()
    assert path.is_socket()
    with RunningBroker(options), UnixV2(path) as client:
        client.publish("t", b"x")


def test_a_socket_that_is_in_use_and_other_files_are_left_alone(
    options: BrokerOptions, path: Path
) -> None:
    with (
        bind_unix_listener(str(path), 0o600) as used,
        pytest.raises(Unavailable, match="in use"),
        RunningBroker(options),
    ):
        pass
    assert used.fileno() == -1
    path.unlink()
    path.write_text("precious")
    with pytest.raises(InvalidRequest, match="not a socket"), RunningBroker(options):
        pass
    assert path.read_text() == "precious"
    with pytest.raises(InvalidRequest, match="107 bytes"):
        bind_unix_listener(str(path.with_name("x" * 108)), 0o600)


def test_a_channel_takes_so_many_consumers(options: BrokerOptions) -> None:
    with RunningBroker(dataclasses.replace(options, max_channel_consumers=2)) as broker:
        port = broker.server.broker.tcp_port
        with V2(port) as first, V2(port) as second, V2(port) as third, V2(port) as other:
            first.subscribe("t", "c")
            second.subscribe("t", "c")
            third.send(b"SUB t c\n")
            text = "E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 2"
            assert third.error() == text
            assert third.closed()
            other.subscribe("t", "d")


def test_what_clients_may_negotiate_is_the_servers_to_say(options: BrokerOptions) -> None:
    clients = NegotiationLimits(
        deflate=False,
        snappy=False,
        max_ready_count=7,
        message_timeout_ms=5_000,
        max_message_timeout_ms=9_000,
        max_heartbeat_ms=2_000,
        max_output_buffer_bytes=128,
    )
    with RunningBroker(dataclasses.replace(options, clients=clients)) as broker:
        port = broker.server.broker.tcp_port
        with V2(port) as client:
            answer = json.loads(client.identify(feature_negotiation=True, deflate=True))
            assert answer["max_rdy_count"] == 7
            assert answer["msg_timeout"] == 5_000
            assert answer["max_msg_timeout"] == 9_000
            assert answer["deflate"] is False
            client.subscribe("t", "c", ready=7)
            client.ready(8)
            assert client.error() == "E_INVALID RDY count 8 out of range 0-7"
        for field, value in [
            ("heartbeat_interval", 2_001),
            ("msg_timeout", 9_001),
            ("output_buffer_size", 129),
        ]:
            with V2(port) as client:
                client.send(b"IDENTIFY\n", sized(json.dumps({field: value}).encode()))
                assert client.error().startswith("E_BAD_BODY IDENTIFY")


@pytest.mark.parametrize("timeout_ms", [-1, 0, 30_000])
def test_a_message_never_waits_longer_than_the_output_timeout(
    options: BrokerOptions, timeout_ms: int
) -> None:
    with RunningBroker(options) as broker, V2(broker.server.broker.tcp_port) as client:
        client.identify(output_buffer_timeout=timeout_ms, output_buffer_size=65_536)
        client.subscribe("t", "c", ready=100)
        client.publish("t", b"x")
        client.socket.settimeout(20)  # far below the 30 s that this client would wait
        assert client.message().body == b"x"


def test_a_listener_that_cannot_be_bound_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind_and_close() -> None:
        listener = bind_listener("127.0.0.1", 0)
        listener._target.close()  # type: ignore[attr-defined]

    ports, results = ("socket",), {"socket"}
    assert check_at_each_call(monkeypatch, listeners, bind_and_close, ports=ports, results=results)


def test_a_unix_listener_that_cannot_be_bound_leaves_neither_descriptor_nor_file(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    def bind_and_close() -> None:
        listener = bind_unix_listener(str(path), 0o600)
        listener._target.close()  # type: ignore[attr-defined]
        path.unlink()

    def check() -> None:
        assert not path.exists()

    met = check_at_each_call(
        *(monkeypatch, listeners, bind_and_close),
        ports=("os", "socket"),
        results={"socket"},
        check=check,
    )
    assert met
