"""The server of ListenHTTP: requests come in, wait to be taken, and are answered.

Owns the socket, the bodies until they are taken, and the bounds. Does not own FlowFiles (`listen`).

    arrives  → refused: 401 404 405 413 503       nothing was kept
             → spooled: in memory, past 1 MB on disk, so that a slow sender holds no thread
    waits    → taken by a trigger                 answered when the commit is durable
             → not taken in time, or stopped      503

Invariants: bodies and requests are bounded in number and size; a request that was answered 503
before it was taken is never taken.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Final

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from penstock.broker.httpserver.guard import HttpGuard
from penstock.broker.httpserver.serving import uvicorn_config
from penstock.core.looptasks import keep_running

if TYPE_CHECKING:
    import socket

    from starlette.types import Receive, Scope, Send

    from penstock.broker.httpserver.hosts import HostPolicy

SPOOL_BYTES: Final = 1 << 20
_RETRY_AFTER_S: Final = "1"
_STOP_S: Final = 3
# Bodies may be large and senders slow.
_BODY_TIMEOUT_S: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class ReceivingOptions:
    """What is accepted.

    Attributes:
        path: The only one that is served.
        methods: Those that are.
        token: Must come as a bearer token; empty: none is asked for.
        maximum_bytes: Of a body.
        maximum_requests: That are read or wait at once.
        answer_timeout_s: How long one waits to be taken and committed.
        answer_status: Of what was taken.
    """

    path: str
    methods: frozenset[str]
    token: str = field(repr=False)
    maximum_bytes: int
    maximum_requests: int
    answer_timeout_s: float
    answer_status: int


class ReceivedRequest:
    """A request whose body has come.

    Attributes:
        body: Its bytes, to be read from the beginning.
        attributes: Of the FlowFile for it.
    """

    def __init__(
        self, body: IO[bytes], attributes: Mapping[str, str], answer: Callable[[bool], None]
    ) -> None:
        self.body = body
        self.attributes = attributes
        self._answer = answer

    def answer(self, *, taken: bool) -> None:
        """Answer it, from any thread."""
        self._answer(taken)


class Receiver:
    """An ASGI application that keeps requests for triggers.

    Args:
        options: What is accepted.
        attributes: Makes the attributes of a request.
        has_room: Whether FlowFiles are wanted now; quick, from the loop's thread.
        arrived: Called when there is something to take.
    """

    def __init__(
        self,
        options: ReceivingOptions,
        attributes: Callable[[Request], Mapping[str, str]],
        has_room: Callable[[], bool],
        arrived: Callable[[], None],
    ) -> None:
        self._options = options
        self._attributes = attributes
        self._has_room = has_room
        self._arrived = arrived
        self._requests = 0
        self._closed = False
        # Both ends of a deque may be used by several threads; who popped a request has it.
        self._waiting: deque[ReceivedRequest] = deque()

    def take(self) -> ReceivedRequest | None:
        """Take a request, from any thread; it must be answered."""
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def close(self) -> None:
        """Answer all that wait, and all that come, with 503."""
        self._closed = True
        while (request := self.take()) is not None:
            request.answer(taken=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        answer = self._refusal(request)
        if answer is None:
            self._requests += 1
            try:
                answer = await self._keep(request)
            except ClientDisconnect:
                return
            except OSError as error:
                answer = _busy(f"the body could not be kept: {error.strerror}")
            finally:
                self._requests -= 1
        await answer(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        options = self._options
        if request.scope["path"] != options.path:
            return PlainTextResponse(f"nothing is served here: use {options.path}\n", 404)
        if options.token and not _has_token(request, options.token):
            headers = {"WWW-Authenticate": "Bearer"}
            return PlainTextResponse("a bearer token is needed\n", 401, headers)
        if request.method not in options.methods:
            allowed = ", ".join(sorted(options.methods))
            return PlainTextResponse(f"use {allowed}\n", 405, {"Allow": allowed})
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > options.maximum_bytes:
            return self._too_large()
        if self._closed:
            return _busy("the flow is stopping")
        if self._requests >= options.maximum_requests:
            return _busy(f"{options.maximum_requests} requests wait already")
        if not self._has_room():
            return _busy("the flow behind is full")
        return None

    async def _keep(self, request: Request) -> Response:
        # SpooledTemporaryFile writes to memory first: only what is large goes to another thread.
        with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as body:
            size = 0
            async for piece in request.stream():
                size += len(piece)
                if size > self._options.maximum_bytes:
                    return self._too_large()
                if size > SPOOL_BYTES:
                    await asyncio.to_thread(body.write, piece)
                else:
                    body.write(piece)
            body.seek(0)
            return await self._wait_taken(request, body)

    async def _wait_taken(self, request: Request, body: IO[bytes]) -> Response:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()

        def settle(taken: bool) -> None:
            if not future.done():
                future.set_result(taken)

        received = ReceivedRequest(
            body,
            self._attributes(request),
            lambda taken: _post(loop, settle, taken),
        )
        self._waiting.append(received)
        if self._closed:
            self.close()
        self._arrived()
        if not (await asyncio.wait([future], timeout=self._options.answer_timeout_s))[0]:
            try:
                self._waiting.remove(received)
            except ValueError:
                # A trigger has it: whether it is kept is only known when that ends.
                await future
            else:
                return _busy("the flow did not take it in time")
        if future.result():
            return Response(status_code=self._options.answer_status)
        return _busy("it could not be kept")

    def _too_large(self) -> Response:
        text = (
            f"a body may have {self._options.maximum_bytes:,} bytes at most: send it in pieces, or"
            " raise maximum_size of the processor\n"
        )
        return PlainTextResponse(text, 413, {"Connection": "close"})


class ReceivingServer:
    """Serves a receiver. To be used on its loop, but for `begin_stop`.

    Args:
        receiver: What answers.
        listener: A listening socket; it is closed at the end.
        hosts: Checks the hosts and origins of requests.
        certificate: Path of a PEM file with the certificates; empty: no TLS.
        key: Path of a PEM file with the private key; empty: it is with the certificates.

    Raises:
        OSError: The certificate cannot be used.
    """

    def __init__(
        self,
        receiver: Receiver,
        listener: socket.socket,
        hosts: HostPolicy,
        certificate: str = "",
        key: str = "",
    ) -> None:
        self._listener = listener
        tls: ssl.SSLContext | None = None
        if certificate:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(certificate, key or None)
        guard = HttpGuard(hosts, body_timeout_s=_BODY_TIMEOUT_S)
        self._server = uvicorn.Server(uvicorn_config(receiver, guard, _STOP_S, tls))
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to answer."""
        self._serving = keep_running(
            "http receiver",
            lambda: self._server.serve(sockets=[self._listener]),
            may_return=True,
        )

    def begin_stop(self) -> None:
        """Stop accepting, and let requests that are answered end; from any thread."""
        self._server.should_exit = True

    async def stop(self) -> None:
        """Do so, and wait for it."""
        self.begin_stop()
        if self._serving is not None:
            await asyncio.wait([self._serving])


def _post(loop: asyncio.AbstractEventLoop, settle: Callable[[bool], None], taken: bool) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(settle, taken)


def _has_token(request: Request, token: str) -> bool:
    given = request.headers.get("authorization", "")
    return hmac.compare_digest(given.encode(), f"Bearer {token}".encode())


def _busy(why: str) -> Response:
    return PlainTextResponse(f"{why}: try again later\n", 503, {"Retry-After": _RETRY_AFTER_S})
