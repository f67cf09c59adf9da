"""The bounds of an API port: what one client may send, hold open and have logged."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from queue import Queue
from typing import cast

import orjson
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from penstock.broker.http_server import guard, http_connection, server
from penstock.broker.http_server.body_drain import ANNOUNCED_BYTES_MAX
from penstock.broker.http_server.guard import (
    CONNECTIONS_MAX,
    Evictable,
    HttpGuard,
    connections_max,
)
from penstock.broker.http_server.http_connection import BoundedHeadProtocol, Deadline
from penstock.services.api.asgi import application
from penstock.services.host.process import listen
from penstock.services.http_server import HttpServer, api_error, api_guard
from penstock.services.json_client import JsonClient
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import PenstockOptions
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import rules_with, with_token
from tests.kits.raw_http_kit import answer_to

TOKEN = "s"
LARGE = 64 << 20  # more than the socket buffers of both ends hold
POST = b"POST /task HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer s\r\n"
GET = b"GET /status/health HTTP/1.1\r\nHost: localhost\r\n"


class Port:
    """An API port with one route, which notes the bodies that it got."""

    def __init__(self, guard: HttpGuard, body_bytes_max: int = 1 << 20) -> None:
        self.guard = guard
        self.bodies: list[bytes] = []
        self.reading = threading.Event()
        routes = [
            Route("/task", self._take, methods=["POST", "GET"]),
            Route("/large", self._answer_much),
            Route("/blocking", self._answer_on_a_thread),
        ]
        app = application(
            routes,
            access=with_token(TOKEN),
            rules=rules_with(routes),
            body_bytes_max=body_bytes_max,
        )
        listener = listen(HostPort("127.0.0.1", 0), "--http")
        self.port = listener.getsockname()[1]
        self._server = HttpServer(app, listener, guard)
        self._server.start()

    async def _take(self, request: Request) -> PlainTextResponse:
        self.reading.set()
        self.bodies.append(await request.body())
        return PlainTextResponse("taken")

    async def _answer_much(self, _request: Request) -> PlainTextResponse:
        return PlainTextResponse(b"x" * LARGE)

    def _answer_on_a_thread(self, _request: Request) -> PlainTextResponse:
        return PlainTextResponse("answered")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 30)

    def answer_to(self, *pieces: bytes) -> bytes:
        return answer_to(self.port, *pieces)

    def is_served(self) -> bool:
        return self.answer_to(GET + b"Connection: close\r\n\r\n").endswith(b"true")

    def close(self) -> None:
        self._server.stop()


@pytest.fixture
def port() -> Iterator[Port]:
    made = Port(HttpGuard(clock=VirtualClock(), error_body=api_error, max_connections=20))
    yield made
    made.close()


def refused(port: Port) -> dict[str, int]:
    return dict(port.guard.refused)


def test_small_answers_do_not_wait_for_the_client() -> None:
    """Asyncio turns Nagle's algorithm off only for sockets whose protocol is known to be TCP."""
    with (
        listen(HostPort("127.0.0.1", 0), "--http") as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as connection,
    ):
        assert connection.proto == socket.IPPROTO_TCP


@pytest.mark.parametrize("before", [b"GET /task?", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
def test_a_head_without_end_is_cut_off(port: Port, before: bytes) -> None:
    found = port.answer_to(before, *[b"a" * 65_536] * 64)
    # The answer may be lost where the client was still sending.
    assert found == b"" or found.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))
    assert port.is_served()


def test_a_large_head_in_one_piece_is_refused(port: Port) -> None:
    head = GET + b"X: " + b"a" * http_connection.HEAD_BYTES_MAX + b"\r\n\r\n"
    # The answer may be lost where the head came in several reads.
    with port.connect() as client, suppress(ConnectionError):
        client.sendall(head)
        assert client.recv(12) == b"HTTP/1.1 431"
    assert port.is_served()
    assert refused(port) == {"head_size": 1}


def test_unfinished_heads_are_bounded_together(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "UNFINISHED_BYTES_MAX", 50_000)
    with ExitStack() as held:
        for _ in range(10):
            client = held.enter_context(port.connect())
            client.sendall(GET + b"X: " + b"a" * 9_000)
        while "connections" not in port.guard.refused:
            assert port.is_served()
        while port.guard.unfinished_bytes > 50_000:  # until the refused one is closed
            assert port.is_served()
    while port.guard.unfinished_bytes:
        assert port.is_served()


class NotedGuard(HttpGuard):
    """A guard that notes its first connection, and the end of one."""

    def __init__(self) -> None:
        super().__init__(error_body=api_error)
        self.first: BoundedHeadProtocol | None = None
        self.is_opened = threading.Event()
        self.is_closed = threading.Event()

    def opened(self, connection: Evictable) -> bool:
        self.first = self.first or cast("BoundedHeadProtocol", connection)
        self.is_opened.set()
        return super().opened(connection)

    def closed(self, connection: Evictable) -> None:
        super().closed(connection)
        self.is_closed.set()


@pytest.mark.parametrize("mistake", [b"not HTTP\r\n\r\n", b"GET / HTTP/1.1\r\nX: \0\r\n\r\n", b""])
def test_a_client_that_does_not_read_its_answer_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, mistake: bytes
) -> None:
    monkeypatch.setattr(http_connection, "_CLOSE_TIMEOUT_S", 0.05)
    noted = NotedGuard()
    port = Port(noted)
    try:
        with port.connect() as client:
            client.sendall(POST.replace(b"POST /task", b"GET /large") + b"\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"
            # Not before: the first request might take longer.
            monkeypatch.setattr(http_connection, "HEAD_TIMEOUT_S", 0.05)
            if mistake:
                client.sendall(mistake)
            else:  # the time to ask again is over
                assert noted.first is not None
                noted.first.loop.call_soon_threadsafe(noted.first.timeout_keep_alive_handler)
            assert noted.is_closed.wait(120)
    finally:
        port.close()


def test_a_connection_that_asks_nothing_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "_KEEP_ALIVE_S", 0.05)
    port = Port(HttpGuard(clock=VirtualClock(), error_body=api_error))
    try:
        answer = port.answer_to()
    finally:
        port.close()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert orjson.loads(answer.partition(b"\r\n\r\n")[2])["error"] == "no request arrived in time"
    # This is the normal end of a connection that a client keeps for later.
    assert refused(port) == {}
    assert caplog.records == []


def test_a_connection_that_asks_nothing_more_is_closed() -> None:
    noted = NotedGuard()
    port = Port(noted)
    with closing(port), port.connect() as client:
        assert noted.is_opened.wait(120)
        assert noted.first is not None
        assert 0 < noted.first.timeout_keep_alive <= 120
        noted.first.timeout_keep_alive = 0
        client.sendall(GET + b"\r\n")
        assert client.makefile("rb").read().endswith(b"\r\n\r\ntrue")
        assert noted.is_closed.wait(120)
    assert refused(port) == {}


def test_too_many_headers_are_refused(port: Port) -> None:
    many = b"".join(b"X-%d: a\r\n" % number for number in range(http_connection.HEADERS_MAX))
    assert port.answer_to(GET, many, b"\r\n").startswith(b"HTTP/1.1 431 ")
    assert refused(port) == {"head_size": 1}
    some = b"".join(b"X-%d: a\r\n" % number for number in range(http_connection.HEADERS_MAX - 2))
    assert port.answer_to(GET + some + b"Connection: close\r\n\r\n").endswith(b"true")


def test_a_head_that_does_not_come_is_given_up(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "HEAD_TIMEOUT_S", 0.05)
    found = port.answer_to(b"GET /status/health HTTP/1.1\r\nHo")
    assert found.startswith(b"HTTP/1.1 408 ")
    assert orjson.loads(found.partition(b"\r\n\r\n")[2])["error"]
    assert refused(port) == {"head_timeout": 1}


def test_a_body_that_does_not_come_is_given_up(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "TOTAL_TIMEOUT_S", 0.5)
    port.guard.body_timeout_s = 0.5
    head = b"POST /task HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
    # Without the token the answer comes before the body.
    assert port.answer_to(head + b"\r\nabc").startswith(b"HTTP/1.1 401 ")
    answer = port.answer_to(head + b"Authorization: Bearer s\r\n\r\nabc")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert refused(port) == {"body_timeout": 2}
    assert port.bodies == []


def test_a_large_body_may_take_longer_while_it_arrives(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload over a slow line."""
    timers: Queue[Callable[[], object]] = Queue()
    real = http_connection.Deadline.set

    def kept(
        self: Deadline, seconds: float, callback: Callable[..., object], *args: object
    ) -> None:
        if seconds != 7_777:
            real(self, seconds, callback, *args)
            return
        loop = asyncio.get_running_loop()
        timers.put(lambda: loop.call_soon_threadsafe(callback, *args))

    monkeypatch.setattr(http_connection.Deadline, "set", kept)
    monkeypatch.setattr(http_connection, "BODY_BYTES_MIN", 3)
    port.guard.body_timeout_s = 7_777
    with port.connect() as client:
        client.sendall(POST + b"Content-Length: 9\r\n\r\nabc")
        assert port.reading.wait(120)
        timers.get(timeout=120)()
        second = timers.get(timeout=120)
        assert refused(port) == {}, "3 bytes have arrived"
        second()
        assert client.recv(100).startswith(b"HTTP/1.1 408 "), "no byte has arrived"
    assert refused(port) == {"body_timeout": 1}


def test_a_body_that_is_cut_off_is_not_logged_as_a_fault(
    port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    head = POST + b"Content-Length: 9\r\n"
    with port.connect() as client:
        client.sendall(head + b"\r\nabc")
        assert port.reading.wait(120)
    assert port.is_served()
    port.close()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_large_body_without_the_token_is_not_kept(port: Port) -> None:
    length = ANNOUNCED_BYTES_MAX * 4
    head = b"POST /task HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % length
    sent = 0
    with port.connect() as client:
        client.sendall(head)
        assert client.recv(12) == b"HTTP/1.1 401"
        with suppress(OSError):
            while sent < length:
                sent += client.send(b"a" * 65_536)
    assert sent < length
    assert port.is_served()


def test_new_connections_take_the_place_of_idle_ones(port: Port) -> None:
    with ExitStack() as held:
        half_open = [held.enter_context(port.connect()) for _ in range(60)]
        for client in half_open[::2]:
            with suppress(OSError):
                client.sendall(b"GET / HT")
        assert port.is_served()
        assert port.guard.connections <= 20 + 1
        with suppress(ConnectionResetError):
            assert half_open[0].recv(100) == b""  # it was closed to make room
    assert refused(port).keys() == {"connections"}
    assert refused(port)["connections"] >= 40


@pytest.mark.parametrize(
    ("descriptors", "connections"),
    [(64, 32), (1_024, 512), (1 << 20, CONNECTIONS_MAX), (-1, CONNECTIONS_MAX)],
)
def test_connections_follow_the_limit_of_descriptors(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, connections: int
) -> None:
    monkeypatch.setattr(guard.resource, "getrlimit", lambda _: (descriptors, -1))
    assert connections_max() == connections


DESCRIPTORS = 128
LIMITED = f"""
import logging, resource, sys
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from penstock.core.access.access_control import AccessControl
from penstock.core.clock import SystemClock
from penstock.services.api.access_rules import KNOWN, ROUTE_RULES
from penstock.services.api.asgi import application
from penstock.services.host.process import listen
from penstock.services.http_server import HttpServer, api_guard
from penstock.services.options.table import PenstockOptions
from penstock.services.options.option_values import HostPort

async def take(request):
    return PlainTextResponse(await request.body())

logging.basicConfig()
resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS}))
routes = [Route("/task", take, methods=["POST"])]
rules = {{**ROUTE_RULES, ("POST", "/task"): KNOWN}}
app = application(routes, access=AccessControl.open(), rules=rules)
server = HttpServer(
    app, listen(HostPort("127.0.0.1", 0), "--http"), api_guard(PenstockOptions(), SystemClock())
)
server.start()
print(server.port, flush=True)
sys.stdin.read()
server.stop()
"""


def test_a_process_with_few_descriptors_refuses_connections_and_goes_on(tmp_path: Path) -> None:
    log, pipe = tmp_path / "log", subprocess.PIPE
    command = [sys.executable, "-c", LIMITED]
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=stderr, text=True) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        place = ("127.0.0.1", int(process.stdout.readline()))

        def asked(message: bytes) -> bytes:
            with socket.create_connection(place, 30) as client, client.makefile("rb") as file:
                with suppress(OSError):
                    client.sendall(message)
                with suppress(ConnectionError):
                    return file.read()
            return b""

        with ExitStack() as held:
            at_work = []
            for _ in range(DESCRIPTORS // 2):
                client = held.enter_context(socket.create_connection(place, 30))
                client.sendall(POST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
                assert client.recv(12) == b"HTTP/1.1 100"
                at_work.append(client)
            for _ in range(DESCRIPTORS * 2):
                assert asked(b"").startswith(b"HTTP/1.1 503 ")
            assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < DESCRIPTORS
            for client in at_work:
                client.recv(4_096)
                client.sendall(b"abc")
                assert client.recv(4_096).startswith(b"HTTP/1.1 200 ")
        assert asked(GET + b"Connection: close\r\n\r\n").endswith(b"true")
        process.stdin.close()
        assert process.wait(120) == 0
    (line,) = log.read_text().splitlines()
    assert f"there are {DESCRIPTORS // 2} HTTP connections, the limit" in line


def test_connections_at_work_are_not_closed_for_new_ones(port: Port) -> None:
    head = POST + b"Content-Length: 3\r\n"
    with ExitStack() as held:
        working = [held.enter_context(port.connect()) for _ in range(20)]
        for client in working:
            port.reading.clear()
            client.sendall(head + b"\r\n")
            assert port.reading.wait(120)
        answer = port.answer_to()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert orjson.loads(answer.partition(b"\r\n\r\n")[2])["errorCode"] == "unavailable"
        for client in working:
            client.sendall(b"abc")
            assert client.recv(12) == b"HTTP/1.1 200"
    assert port.bodies == [b"abc"] * 20


def test_refusals_are_logged_at_a_bounded_rate(
    port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(50):
        assert port.answer_to(b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")
        port.answer_to(b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
        port.answer_to(GET + b"Upgrade: websocket\r\nConnection: Upgrade, close\r\n\r\n")
    port.close()
    assert refused(port) == {"malformed": 50, "host": 50}
    assert len(caplog.records) <= 2
    samples = {dict(one.labels).get("reason"): one.value for one in port.guard.samples()}
    assert samples["host"] == 50


def test_a_host_in_a_log_is_printable(port: Port, caplog: pytest.LogCaptureFixture) -> None:
    port.answer_to(b"GET / HTTP/1.1\r\nHost: evil\xff\x80{}%s\r\nConnection: close\r\n\r\n")
    port.close()
    assert all(record.getMessage().isprintable() for record in caplog.records)


def test_the_api_refuses_foreign_hosts_and_origins(port: Port) -> None:
    post = b"POST /task HTTP/1.1\r\nAuthorization: Bearer s\r\nContent-Length: 1\r\n"
    post += b"Connection: close\r\n"
    own = b"Host: localhost:%d\r\n" % port.port
    for headers in (
        b"Host: evil.example\r\n",
        own + b"Origin: http://evil.example\r\n",
        own + b"Origin: null\r\n",
        own + b"Origin: http://localhost:1\r\n",
        own + b"Sec-Fetch-Site: cross-site\r\n",
    ):
        answer = port.answer_to(post + headers + b"\r\nx")
        assert answer.startswith(b"HTTP/1.1 403 "), headers
        assert orjson.loads(answer.partition(b"\r\n\r\n")[2])["errorCode"] == "forbidden"
    assert port.bodies == []
    page = own + b"Origin: http://localhost:%d\r\n" % port.port
    assert port.answer_to(post + page + b"\r\nx").startswith(b"HTTP/1.1 200 ")
    assert port.bodies == [b"x"]


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nhost : evil.example\r\n\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT evil.example:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
    ],
)
def test_requests_with_an_unclear_host_are_refused(port: Port, raw: bytes) -> None:
    assert port.answer_to(raw.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))[9:12] in {
        b"400",
        b"403",
        b"404",  # CONNECT: nothing is served there
    }


def test_roles_reach_each_other_by_the_addresses_that_are_told() -> None:
    options = PenstockOptions(http=HostPort("0.0.0.0", 0), allowed_hosts=("penstock.example",))
    port = Port(api_guard(options, VirtualClock()))
    try:
        for host in ("127.0.0.1", "localhost"):
            client = JsonClient(f"http://{host}:{port.port}", token=TOKEN, timeout_s=30)
            assert client.get("/status/health") is True
        for name in (socket.gethostname().encode(), b"penstock.example:80"):
            asked = b"GET /status/health HTTP/1.1\r\nConnection: close\r\nHost: " + name
            assert port.answer_to(asked + b"\r\n\r\n").endswith(b"true")
    finally:
        port.close()


def test_bodies_of_all_requests_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.services.api.asgi.BodyLimit.__init__.__defaults__", (100, 150))
    port = Port(HttpGuard(clock=VirtualClock(), error_body=api_error), body_bytes_max=100)
    head = POST + b"Content-Length: 90\r\nConnection: close\r\n\r\n"
    try:
        with port.connect() as first:
            first.sendall(head + b"a" * 80)
            assert port.reading.wait(120)
            assert port.answer_to(head + b"b" * 90).startswith(b"HTTP/1.1 503 ")
            first.sendall(b"a" * 10)
            assert first.recv(12) == b"HTTP/1.1 200"
        assert port.answer_to(head + b"c" * 90).startswith(b"HTTP/1.1 200 ")
    finally:
        port.close()


def test_a_request_for_which_there_is_no_thread_may_be_tried_again(
    port: Port, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    request = b"GET /blocking HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer s\r\n"
    request += b"Connection: close\r\n\r\n"

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        answer = port.answer_to(request)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"can't start new thread: raise the limit of processes" in answer
    assert caplog.records == []
    assert port.answer_to(request).endswith(b"answered")


def read_to_the_end(client: socket.socket) -> int:
    """Return the number of bytes that came before the connection ended, in any way."""
    total = 0
    with suppress(ConnectionError):
        while found := client.recv(1 << 20):
            total += len(found)
    return total


def test_a_client_that_stops_reading_its_answer_is_cut_off(port: Port) -> None:
    port.guard.reading_timeout_s = 0.1
    with port.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        client.sendall(
            GET.replace(b"/status/health", b"/large") + b"Authorization: Bearer s\r\n\r\n"
        )
        while "not_reading" not in port.guard.refused:
            assert port.is_served()
        # What the kernel holds still comes.
        assert read_to_the_end(client) < LARGE


BAD_CHUNK = b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n"


def test_a_body_that_is_not_http_is_refused_once_and_its_request_is_not_answered_again(
    port: Port,
) -> None:
    answer = port.answer_to(POST + BAD_CHUNK)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert refused(port) == {"malformed": 1}
    with port.connect() as client:
        client.sendall(POST + BAD_CHUNK[: -len(b"zz\r\n")])
        assert port.reading.wait(120)  # the application awaits the rest of the body
        client.sendall(b"zz\r\n")
        with client.makefile("rb") as file:
            answer = file.read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert port.bodies == []
    assert port.is_served()


def test_a_later_body_that_is_not_http_is_not_answered_in_place_of_an_earlier_request(
    port: Port,
) -> None:
    with port.connect() as client:
        client.sendall(POST + b"Content-Length: 1\r\n\r\na")
        assert client.recv(12) == b"HTTP/1.1 200"
        client.sendall(POST + BAD_CHUNK)
        with client.makefile("rb") as file:
            assert b"HTTP/1.1 400 " in file.read()
    large = b"GET /large HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer s\r\n\r\n"
    assert b"HTTP/1.1 400 " not in port.answer_to(large + POST + BAD_CHUNK)
    assert port.is_served()
