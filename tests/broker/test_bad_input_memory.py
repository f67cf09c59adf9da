"""Input without end, bombs and crowds: what the broker's process takes of memory for them."""

from __future__ import annotations

import json
import socket
import struct
import zlib
from collections.abc import Callable, Iterator

import pytest

from penstock.core.compression import Codec, Deflate, Snappy
from tests.broker.bad_input_kit import MEBIBYTE, Bystander
from tests.broker.broker_process_kit import BrokerProcess
from tests.broker.v2_kit import V2, Frame, sized

pytestmark = pytest.mark.system

GIBIBYTE = 1 << 30
PIECE = 1 << 18


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def bystander(process: BrokerProcess) -> Iterator[Bystander]:
    with Bystander(process.tcp_port) as made:
        made.notices_nothing()
        yield made
        made.notices_nothing()


class Bounded:
    """A block that may not take more than so much memory, at any moment."""

    def __init__(self, process: BrokerProcess, mebibytes: int) -> None:
        self._process = process
        self._most = mebibytes * MEBIBYTE

    def __enter__(self) -> None:
        self._before = self._process.forget_peak()

    def __exit__(self, kind: object, *_: object) -> None:
        taken = self._process.resident("VmHWM") - self._before
        print(f"took {taken / MEBIBYTE:.1f} MiB")
        if kind is None:
            assert taken < self._most


def pour(connection: socket.socket, piece: bytes, total: int, between: Callable[[], None]) -> int:
    """Send a piece again and again, until it is enough or the server has had enough."""
    sent = 0
    try:
        while sent < total:
            connection.sendall(piece)
            sent += len(piece)
            if sent % (64 * len(piece)) == 0:
                between()
    except OSError:
        pass
    return sent


@pytest.mark.parametrize("letter", [b"A", b" ", b"\0", b"\xff"])
def test_a_line_without_end_is_dropped_early(
    process: BrokerProcess, bystander: Bystander, letter: bytes
) -> None:
    with Bounded(process, 16), V2(process.tcp_port) as client:
        sent = pour(client.socket, letter * PIECE, GIBIBYTE, bystander.notices_nothing)
        assert sent < 64 * MEBIBYTE


HTTP_WITHOUT_END = {
    "method": b"",
    "path": b"GET /",
    "query": b"POST /pub?topic=t&",
    "header name": b"GET /ping HTTP/1.1\r\n",
    "header value": b"GET /ping HTTP/1.1\r\nX: ",
    "chunk size": (
        b"POST /pub?topic=t HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\n"
    ),
    "chunk extension": (
        b"POST /pub?topic=t HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\n1;x="
    ),
    "chunk": (
        b"POST /mpub?topic=t HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"7fffffff\r\n"
    ),
    "trailer": (
        b"POST /pub?topic=t HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: "
    ),
}


@pytest.mark.parametrize("what", HTTP_WITHOUT_END)
def test_http_without_end_is_dropped_early(
    process: BrokerProcess, bystander: Bystander, what: str
) -> None:
    with (
        Bounded(process, 32),
        socket.create_connection(("127.0.0.1", process.http_port), 30) as connection,
    ):
        connection.sendall(HTTP_WITHOUT_END[what])
        sent = pour(connection, b"a" * PIECE, GIBIBYTE, bystander.notices_nothing)
        assert sent < 64 * MEBIBYTE


def test_a_body_that_is_announced_and_refused_does_not_fill_memory(
    process: BrokerProcess, bystander: Bystander
) -> None:
    for length in (6 * MEBIBYTE, GIBIBYTE, 1 << 62):
        with (
            Bounded(process, 32),
            socket.create_connection(("127.0.0.1", process.http_port), 30) as connection,
        ):
            head = f"POST /mpub?topic=t HTTP/1.1\r\nHost: [::1]\r\nContent-Length: {length}\r\n\r\n"
            connection.sendall(head.encode())
            assert connection.recv(12) == b"HTTP/1.1 413"
            sent = pour(connection, b"a" * PIECE, GIBIBYTE, bystander.notices_nothing)
            assert sent < 128 * MEBIBYTE


CODECS: dict[str, Callable[[], Codec]] = {"deflate": lambda: Deflate(6), "snappy": Snappy}


def compressed(process: BrokerProcess, kind: str) -> V2:
    client = V2(process.tcp_port)
    assert json.loads(client.identify(feature_negotiation=True, **{kind: True}))[kind]
    return client


@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize("packed", [b"A", b"NOP\n", b"FIN 0123456789abcdef\n"])
def test_a_bomb_takes_no_memory_and_nobody_elses_turn(
    process: BrokerProcess, bystander: Bystander, kind: str, packed: bytes
) -> None:
    with compressed(process, kind) as client, Bounded(process, 48):
        bomb = CODECS[kind]().compress(packed * (16 * MEBIBYTE // len(packed)))
        client.try_send(bomb)
        # While it goes off, others are served.
        for _ in range(10):
            bystander.notices_nothing()


@pytest.mark.parametrize("kind", CODECS)
def test_large_bodies_that_come_small_are_taken_or_refused_within_bounds(
    process: BrokerProcess, bystander: Bystander, kind: str
) -> None:
    codec = CODECS[kind]()
    command = b"PUB zeros\n" + sized(bytes(MEBIBYTE))
    with Bounded(process, 64), compressed(process, kind) as client:
        client.send(codec.compress(command * 15))
        client.send(codec.compress(b"PUB zeros\n" + struct.pack(">i", 2 * MEBIBYTE)))
        bystander.notices_nothing()
        reply = read_to_the_end(client, CODECS[kind]())
    ok = struct.pack(">ii", 6, 0) + b"OK"
    assert reply.startswith(ok * 16)
    assert reply.endswith(b"E_BAD_MESSAGE PUB message too big 2097152 > 1048576")


def read_to_the_end(client: V2, codec: Codec) -> bytes:
    data = b""
    try:
        while piece := client.piece():
            data += codec.decompress(piece, GIBIBYTE)
    except ConnectionResetError:
        pass
    return data


SPOILT = {
    "deflate": [
        b"\xff" * 100,
        b"",
        zlib.compress(b"NOP\n"),
        zlib.compress(b"NOP\n" * 1000, wbits=-15),  # a stream that ends
        b"\x07" + b"\0" * 1000,
    ],
    "snappy": [
        b"\xff" * 100,
        b"\0\0\0\0" * 100,
        b"\xff\x06\0\0sNaPpX",
        b"\xff\x06\0\0sNaPpY" + b"\0\xff\xff\xff" + b"x" * 100,
        b"\xff\x06\0\0sNaPpY" + b"\0\x0a\0\0" + b"crc!" + b"\xff\xff\xff\xff\x0f" + b"x",
        b"\xff\x06\0\0sNaPpY" + b"\x02\x04\0\0" + b"abcd",
        b"\xff\x06\0\0sNaPpY" + b"\x01\x02\0\0" + b"ab",
        b"\xff\x06\0\0sNaPpY" + b"\x01\x08\0\0" + b"crc!NOP\n",
    ],
}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_spoilt_stream_ends_its_connection(
    process: BrokerProcess, bystander: Bystander, kind: str
) -> None:
    with Bounded(process, 16):
        for spoilt in SPOILT[kind]:
            with compressed(process, kind) as client:
                client.try_send(spoilt)
                client.try_send(b"NOP\n" * 100)
                client.end()
                data = read_to_the_end(client, CODECS[kind]())
                assert b"heartbeat" not in data
        bystander.notices_nothing()


def test_a_thousand_that_say_nothing_cost_little(
    process: BrokerProcess, bystander: Bystander
) -> None:
    crowd = [(process.tcp_port, b""), (process.tcp_port, b"  V2"), (process.http_port, b"")]
    with Bounded(process, 24):
        silent = [
            (socket.create_connection(("127.0.0.1", port), 30), first)
            for port, first in crowd * 340
        ]
        for connection, first in silent:
            connection.sendall(first)
        bystander.notices_nothing()
        assert alive(process)
        for connection, _ in silent:
            connection.close()


def alive(process: BrokerProcess) -> bool:
    with socket.create_connection(("127.0.0.1", process.http_port), 30) as connection:
        connection.sendall(b"GET /ping HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\n\r\n")
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    return answer.endswith(b"OK")


@pytest.mark.parametrize("asked", [b"FIN 0123456789abcdef\n", b"PUB unread\n\0\0\0\1x"])
def test_answers_that_nobody_reads_do_not_fill_memory(
    process: BrokerProcess, bystander: Bystander, asked: bytes
) -> None:
    with Bounded(process, 64), V2(process.tcp_port) as client:
        client.subscribe("unread", "c", ready=0)
        client.socket.settimeout(0.5)
        sent = pour(client.socket, asked * 12_000, GIBIBYTE, bystander.notices_nothing)
        assert sent < 64 * MEBIBYTE


@pytest.mark.parametrize("kind", CODECS)
def test_packed_commands_whose_answers_nobody_reads_do_not_fill_memory(
    process: BrokerProcess, bystander: Bystander, kind: str
) -> None:
    with compressed(process, kind) as client, Bounded(process, 64):
        client.send(
            CODECS[kind]().compress(b"SUB unread c\n" + b"FIN 0123456789abcdef\n" * 500_000)
        )
        for _ in range(100):
            bystander.notices_nothing()


def test_http_answers_that_nobody_reads_do_not_fill_memory(
    process: BrokerProcess, bystander: Bystander
) -> None:
    with (
        Bounded(process, 64),
        socket.create_connection(("127.0.0.1", process.http_port), 0.5) as connection,
    ):
        request = b"GET /stats?format=json HTTP/1.1\r\nHost: [::1]\r\n\r\n"
        sent = pour(connection, request * 400, GIBIBYTE, bystander.notices_nothing)
        assert sent < 64 * MEBIBYTE


def test_any_number_of_requests_may_be_asked_and_answered(process: BrokerProcess) -> None:
    with socket.create_connection(("127.0.0.1", process.http_port), 30) as connection:
        for _ in range(4):
            connection.sendall(b"GET /ping HTTP/1.1\r\nHost: [::1]\r\n\r\n" * 300)
            answers = b""
            while answers.count(b"HTTP/1.1 200") < 300 or not answers.endswith(b"OK"):
                answers += connection.recv(65536)


def test_messages_that_nobody_reads_wait_on_disk(
    process: BrokerProcess, bystander: Bystander
) -> None:
    with Bounded(process, 64), V2(process.tcp_port) as producer, V2(process.tcp_port) as lazy:
        lazy.subscribe("lazy", "c", ready=2500)
        for _ in range(200):
            producer.publish("lazy", bytes(MEBIBYTE // 2))
        bystander.notices_nothing()
        assert lazy.frame() != Frame(0, b"OK")
