"""What HTTP clients send by mistake or malice: an answer that says so, or a closed connection.

No answer is an error of the server's own, and other clients notice nothing.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import struct
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

import pytest

from penstock.broker.http.app import BrokerHttpApp
from penstock.broker.options import BrokerOptions
from penstock.broker.topic_names import is_valid_name
from tests.broker.bad_input_kit import Bystander
from tests.broker.broker_kit import RunningBroker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SOUND = {
    "topic": "t",
    "channel": "c",
    "name": "cursor",
    "partition": "0",
    "offset": "0",
    "max_bytes": "100",
    "after": "0:0",
    "timestamp": "0",
    "defer": "0",
    "durable": "0",
    "binary": "0",
    "format": "json",
    "include_clients": "false",
    "partitions": "1",
    "sequence": "1",
    "producer": "p",
    "key": "k",
}
WRONG = [
    "",
    "a/b",
    "../../etc",
    "..",
    "a\0b",
    "n" * 65,
    "é",
    "\U0001f600",
    "-1",
    "18446744073709551616",
    "9223372036854775807",
    "9223372036854775808",
    "9" * 4000,
    "9" * 4500,
    "\u0661",
    "\r\n",
    "#ephemeral",
]
UNREADABLE = [b"%", b"%zz", b"%ff", b"%c3%28", b"a;b", b"\xff", b"\xc3\xa9", b"a&" * 200]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder: Path = tmp_path_factory.mktemp("bad-input")
    with RunningBroker(BrokerOptions(folder=str(folder), http_port=0, tcp_port=0)) as running:
        yield running


@pytest.fixture
def bystander(shared: RunningBroker) -> Iterator[Bystander]:
    with Bystander(shared.server.broker.tcp_port) as made:
        made.notices_nothing()
        yield made
        made.notices_nothing()
        assert all(is_valid_name(topic.name) for topic in shared.server.broker.topics)


def routes(broker: RunningBroker) -> list[tuple[str, str]]:
    table = BrokerHttpApp(broker.server.broker).routes
    return [(method, path) for path in sorted(table) for method in sorted(table[path])]


class Asking:
    """A connection that is kept while the server keeps it."""

    def __init__(self, broker: RunningBroker) -> None:
        self._connection = broker.connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, method: str, target: bytes, body: bytes) -> None:
        """Ask, and judge the answer."""
        self._connection.putrequest(method, target.decode("latin-1"), skip_host=False)
        self._connection.putheader("Content-Length", str(len(body)))
        self._connection.endheaders(body)
        response = self._connection.getresponse()
        answer = response.read()
        shown = (method, target[:100], response.status, answer[:100])
        assert response.status < 500 or response.status == 503, shown
        if response.status >= 400:
            assert set(json.loads(answer)) >= {"message"}, shown


class Pipeline:
    """A connection on which requests are sent without waiting for the answers before."""

    def __init__(self, broker: RunningBroker) -> None:
        self._port = broker.server.http_port

    def ask(self, method: str, targets: Sequence[str], body: bytes) -> None:
        """Ask all, on a new connection where the server closes one, and judge the answers."""
        left = list(targets)
        while left:
            with socket.create_connection(("127.0.0.1", self._port), 30) as connection:
                connection.sendall(
                    b"".join(
                        f"{method} {target} HTTP/1.1\r\nHost: [::1]\r\n"
                        f"Content-Length: {len(body)}\r\n\r\n".encode()
                        + body
                        for target in left
                    )
                )
                count = self._judge(connection, method, left)
            assert count, ("no answer", method, left[0][:100])
            del left[:count]

    def _judge(self, connection: socket.socket, method: str, targets: Sequence[str]) -> int:
        """Judge the answers until the server closes the connection; return their number."""
        data = b""
        for number, target in enumerate(targets):
            while b"\r\n\r\n" not in data:
                if not (piece := _received(connection)):
                    return number
                data += piece
            head, _, data = data.partition(b"\r\n\r\n")
            (length,) = re.findall(rb"(?i)\r\ncontent-length: *(\d+)", head)
            while len(data) < int(length):
                piece = _received(connection)
                assert piece, (method, target[:100], head, data)
                data += piece
            answer, data = data[: int(length)], data[int(length) :]
            status = int(head.split(b" ", 2)[1])
            shown = (method, target[:100], status, answer[:100])
            assert status < 500 or status == 503, shown
            if status >= 400:
                assert set(json.loads(answer)) >= {"message"}, shown
        assert not data
        return len(targets)


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 16)
    except ConnectionResetError:
        return b""  # closed before it had read the requests behind


class Plain(http.client.HTTPConnection):
    """A client that sends any target as it is."""

    def _validate_path(self, _url: str) -> None:
        pass

    def _encode_request(self, request: str) -> bytes:
        return request.encode("latin-1")


def test_every_route_takes_or_refuses_every_wrong_parameter(
    shared: RunningBroker, bystander: Bystander
) -> None:
    wrong = {name: [f"{name}={quote(value, safe='')}" for value in WRONG] for name in SOUND}
    pipeline = Pipeline(shared)
    for method, path in routes(shared):
        asked = {name: f"{name}={quote(value, safe='')}" for name, value in SOUND.items()}
        if path == "/topic/delete":
            asked["topic"] = "topic=none"
        for name in asked:
            pipeline.ask(
                method,
                [f"{path}?{'&'.join({**asked, name: one}.values())}" for one in wrong[name]],
                b"body",
            )
        bystander.notices_nothing()


def test_every_route_refuses_a_query_that_cannot_be_read(
    shared: RunningBroker, bystander: Bystander
) -> None:
    connection = Plain("127.0.0.1", shared.server.http_port, timeout=30)
    with Asking(shared) as asking:
        asking._connection.close()
        asking._connection = connection
        for method, path in routes(shared):
            for query in UNREADABLE:
                asking.ask(method, path.encode() + b"?topic=none&" + query, b"")
        for wrong in (b"//", b"/..", b"/../pub", b"/pub/", b"/%70ub", b"/topic", b"*", b"/\xff"):
            asking.ask("POST", wrong + b"?topic=t", b"x")


HEAD = b"POST /pub?topic=refused HTTP/1.1\r\nHost: [::1]\r\n"

RAW = {
    "nothing but line ends": b"\r\n" * 50,
    "garbage": b"\x00\x01\x02\x03\r\n\r\n",
    "a method alone": b"GET\r\n\r\n",
    "no version": b"GET /ping\r\n\r\n",
    "a version of tomorrow": b"GET /ping HTTP/9.9\r\n\r\n",
    "a method of nobody": b"BREW /ping HTTP/1.1\r\nHost: [::1]\r\n\r\n",
    "a header without a colon": HEAD + b"nonsense\r\n\r\n",
    "a header with NUL": HEAD + b"X: a\0b\r\n\r\n",
    "a name with a space": HEAD + b"X Y: a\r\n\r\n",
    "a folded header": HEAD + b"X: a\r\n b\r\n\r\n",
    "a length below zero": HEAD + b"Content-Length: -1\r\n\r\nx",
    "a length in words": HEAD + b"Content-Length: five\r\n\r\nx",
    "a length beyond 64 bits": HEAD + b"Content-Length: 18446744073709551617\r\n\r\nx",
    "two lengths": HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
    "a list of lengths": HEAD + b"Content-Length: 1, 1\r\n\r\nx",
    "a length and chunks": HEAD
    + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
    "an unknown coding": HEAD + b"Transfer-Encoding: gzip\r\n\r\nx",
    "a chunk of no size": HEAD + b"Transfer-Encoding: chunked\r\n\r\n\r\nx\r\n0\r\n\r\n",
    "a chunk below zero": HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n0\r\n\r\n",
    "a chunk that is longer": HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nxxx\r\n0\r\n\r\n",
    "a chunk beyond 64 bits": HEAD
    + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nx\r\n0\r\n\r\n",
    "too many at once": b"GET /ping HTTP/1.1\r\nHost: [::1]\r\n\r\n" * 20_000,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 300,
    "NSQ's other protocol": b"  V2PUB refused\n" + struct.pack(">i", 1) + b"x",
    "an upgrade": b"GET /ping HTTP/1.1\r\nHost: [::1]\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: x\r\n\r\n",
    "CONNECT": b"CONNECT a:80 HTTP/1.1\r\nHost: [::1]\r\n\r\n",
    "a thousand headers": HEAD + b"X: y\r\n" * 20_000 + b"\r\n",
}


@pytest.mark.parametrize("what", RAW)
def test_a_malformed_request_is_refused(
    shared: RunningBroker, bystander: Bystander, what: str
) -> None:
    answer = exchange(shared, RAW[what])
    if answer:
        version, status = answer.split(b" ")[:2]
        assert version == b"HTTP/1.1"
        assert int(status) < 500
    if what.startswith(("a chunk", "an unknown coding")):
        assert answer.startswith(b"HTTP/1.1 400 "), "the head was complete"
    assert shared.server.broker.topics.find("refused") is None


def exchange(broker: RunningBroker, sent: bytes) -> bytes:
    """Send bytes and no more; return all that is answered."""
    answer = b""
    with socket.create_connection(("127.0.0.1", broker.server.http_port), 30) as connection:
        try:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                answer += piece
        except OSError:
            pass  # it was closed before all was sent, or read
    return answer


BATCH = struct.pack(">iiici", 2, 1, 2, b"a", 1) + b"b"
CUT = {
    "pub": b"POST /pub?topic=cut HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 9\r\n\r\na message",
    "mpub": b"POST /mpub?topic=cut HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 4\r\n\r\na\nb\n",
    "binary": b"POST /mpub?topic=cut&binary=1 HTTP/1.1\r\nHost: [::1]\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(BATCH), BATCH),
    "chunks": b"POST /pub?topic=cut HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n3\r\nyou\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("what", CUT)
def test_a_request_that_is_cut_at_any_byte_is_nothing(
    shared: RunningBroker, bystander: Bystander, what: str
) -> None:
    whole = CUT[what]
    for cut in range(len(whole)):
        answer = exchange(shared, whole[:cut])
        assert not answer.startswith(b"HTTP/1.1 2"), (whole[:cut], answer)
        assert shared.server.broker.topics.find("cut") is None
