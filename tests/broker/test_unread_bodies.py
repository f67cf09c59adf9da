"""An answer that comes before the end of a request's body reaches clients that write first."""

from __future__ import annotations

import asyncio
import http.client
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.broker.http_server.body_drain import BodyDrain
from penstock.services.api.asgi import application
from penstock.services.http_server import HttpServer
from tests.broker.broker_kit import RunningBroker
from tests.harness.access_kit import rules_with, with_token

LIMIT = 1 << 20
# Far more than the socket buffers of both ends hold.
LARGE = 24 << 20


async def _size(request: Request) -> Response:
    return Response(str(len(await request.body())))


async def _ignores_body(_request: Request) -> Response:
    return Response("ignored")


@contextmanager
def api(token: str | None = None) -> Iterator[int]:
    routes = [
        Route("/size", _size, methods=["POST"]),
        Route("/ignore", _ignores_body, methods=["POST"]),
    ]
    server = HttpServer(
        application(
            routes,
            access=with_token(token),
            rules=rules_with(routes),
            body_bytes_max=LIMIT,
        ),
        socket.create_server(("127.0.0.1", 0)),
    )
    server.start()
    try:
        yield server.port
    finally:
        server.stop()


def status(port: int, path: str, body: object, **headers: str) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body)  # type: ignore[arg-type]
    for name, value in headers.items():
        request.add_header(name, value)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        refused.read()
        return refused.code


def pieces(size: int) -> Iterator[bytes]:
    for _ in range(size >> 16):
        yield b"x" * (1 << 16)


@pytest.mark.parametrize("size", [LIMIT + 1, LARGE])
def test_urllib_sees_that_a_body_is_too_large(size: int) -> None:
    with api() as port:
        assert status(port, "/size", b"x" * size) == 413
        assert status(port, "/size", pieces(size + (1 << 16))) == 413
        assert status(port, "/size", b"x" * LIMIT) == 200


def test_urllib_sees_every_answer_that_comes_early() -> None:
    with api(token="right") as port:
        assert status(port, "/size", b"x" * LARGE) == 401
        right = {"Authorization": "Bearer right"}
        assert status(port, "/size", b"x" * LARGE, Origin="http://elsewhere", **right) == 403
        assert status(port, "/nowhere", b"x" * LIMIT, **right) == 404
        assert status(port, "/ignore", b"x" * LIMIT, **right) == 200


def test_a_connection_is_used_again_after_an_early_answer() -> None:
    with api() as port:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for body, expected in ((b"x" * LARGE, 413), (b"x", 200), (b"x" * LARGE, 413), (b"y", 200)):
            client.request("POST", "/size", body)
            answer = client.getresponse()
            answer.read()
            assert answer.status == expected
        client.close()


def test_a_client_that_waits_to_continue_sends_nothing() -> None:
    with api() as port, socket.create_connection(("127.0.0.1", port), 60) as client:
        client.sendall(
            b"POST /size HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\n"
            b"Content-Length: %d\r\n\r\n" % LARGE
        )
        answer = b""
        while piece := client.recv(4096):  # the server closes the connection
            answer += piece
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"connection: close" in answer.lower()


@pytest.mark.parametrize("path", ["/pub?topic=t", "/mpub?topic=t", "/nowhere", "/config/log_level"])
def test_urllib_sees_what_the_broker_refuses(broker: RunningBroker, path: str) -> None:
    expected = {"/nowhere": 404, "/config/log_level": 405}.get(path, 413)
    assert status(broker.server.http_port, path, b"x" * LARGE) == expected


class Slow:
    """A body that never ends: what an application reads, and what is dropped after its answer."""

    def __init__(self) -> None:
        self.sent: list[dict[str, object]] = []

    async def receive(self) -> dict[str, object]:
        await asyncio.sleep(3600)
        raise AssertionError

    async def send(self, message: dict[str, object]) -> None:
        self.sent.append(message)


def test_a_body_that_does_not_come_ends_the_wait() -> None:
    async def answers(scope: object, receive: object, send: Callable[..., object]) -> None:
        await Response("early")(scope, receive, send)  # type: ignore[arg-type]

    client = Slow()
    scope = {"type": "http", "method": "POST", "headers": [(b"transfer-encoding", b"chunked")]}
    dropping = BodyDrain(answers, total_timeout_s=10, idle_timeout_s=0.01)
    asyncio.run(dropping(scope, client.receive, client.send))  # type: ignore[arg-type]
    start, body, last = client.sent
    assert (b"connection", b"close") in start["headers"]  # type: ignore[operator]
    # The client has its whole answer before anything is dropped.
    assert (body["body"], body["more_body"]) == (b"early", True)
    assert last == {"type": "http.response.body", "body": b""}
