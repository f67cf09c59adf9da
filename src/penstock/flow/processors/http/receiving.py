"""Server of ListenHTTP: requests arrive, wait for a trigger, and are answered.

Owns the socket, the bodies until they are taken, and the limits. Does not own FlowFiles (`listen`).

    arrives  → refused: 401 404 405 413 503       nothing was kept
             → spooled: in memory, past 1 MB on disk, so that a slow sender blocks no thread
    waits    → taken by a trigger                 answered when the commit is durable
             → not taken in time, or stopped      503

Invariants: number and size of bodies and requests are limited. A request that was answered with 503
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

from penstock.broker.http_server.guard import HttpGuard
from penstock.broker.http_server.server import uvicorn_config
from penstock.core.looptasks import keep_running

if TYPE_CHECKING:
    import socket

    from starlette.types import Receive, Scope, Send

    from penstock.broker.http_server.host_policy import HostPolicy

SPOOL_BYTES: Final = 1 << 20
_RETRY_AFTER_S: Final = "1"
_STOP_S: Final = 3
# Long, because bodies may be large and senders slow.
_BODY_TIMEOUT_S: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class ReceivingOptions:
    """Options for accepting requests.

    Attributes:
        path: The only served path.
        methods: Accepted methods.
        token: Required bearer token; empty: none.
        maximum_bytes: Maximum size of a body.
        maximum_requests: Maximum number of requests being read or waiting.
        answer_timeout_s: How long a request may wait until it is taken and committed.
        answer_status: Status code for accepted requests.
    """

    path: str
    methods: frozenset[str]
    token: str = field(repr=False)
    maximum_bytes: int
    maximum_requests: int
    answer_timeout_s: float
    answer_status: int


class ReceivedRequest:
    """Request whose body has arrived.

    Attributes:
        body: Its bytes, at the start position.
        attributes: Attributes for its FlowFile.
    """

    def __init__(
        self, body: IO[bytes], attributes: Mapping[str, str], answer: Callable[[bool], None]
    ) -> None:
        self.body = body
        self.attributes = attributes
        self._answer = answer

    def answer(self, *, taken: bool) -> None:
        """Answer the request; may be called from any thread."""
        self._answer(taken)


class Receiver:
    """ASGI application that keeps requests for triggers.

    Args:
        options: Options for accepting requests.
        attributes: Returns the attributes of a request.
        has_room: Returns whether FlowFiles can be accepted now; fast, called on the loop's thread.
        arrived: Called when a request can be taken.
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
        # Both ends of a deque may be used by several threads; the thread that popped a request owns
        # it.
        self._waiting: deque[ReceivedRequest] = deque()

    def take(self) -> ReceivedRequest | None:
        """Take a request, from any thread; the caller must answer it."""
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def close(self) -> None:
        """Answer all waiting and later requests with 503."""
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
                answer = _busy(f"the body could not be stored: {error.strerror}")
            finally:
                self._requests -= 1
        await answer(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        options = self._options
        if request.scope["path"] != options.path:
            return PlainTextResponse(f"not found: use {options.path}\n", 404)
        if options.token and not _has_token(request, options.token):
            headers = {"WWW-Authenticate": "Bearer"}
            return PlainTextResponse("a bearer token is required\n", 401, headers)
        if request.method not in options.methods:
            allowed = ", ".join(sorted(options.methods))
            return PlainTextResponse(f"use {allowed}\n", 405, {"Allow": allowed})
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > options.maximum_bytes:
            return self._too_large()
        if self._closed:
            return _busy("the flow is stopping")
        if self._requests >= options.maximum_requests:
            return _busy(f"{options.maximum_requests} requests are already waiting")
        if not self._has_room():
            return _busy("the outgoing connection of the flow is full")
        return None

    async def _keep(self, request: Request) -> Response:
        # SpooledTemporaryFile first writes to memory: only large bodies need another thread.
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
                # A trigger has taken it: its result is only known when the trigger ends.
                await future
            else:
                return _busy("the flow did not take it in time")
        if future.result():
            return Response(status_code=self._options.answer_status)
        return _busy("the request could not be stored")

    def _too_large(self) -> Response:
        text = (
            f"a body may have at most {self._options.maximum_bytes:,} bytes: split it, or raise "
            "maximum_size of the processor\n"
        )
        return PlainTextResponse(text, 413, {"Connection": "close"})


class ReceivingServer:
    """Serves a receiver. All methods except `begin_stop` must be called on its loop.

    Args:
        receiver: Application that answers.
        listener: Listening socket; closed at the end.
        hosts: Checks the hosts and origins of requests.
        certificate: Path of a PEM file with the certificates; empty: no TLS.
        key: Path of a PEM file with the private key; empty: it is in the certificate file.

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
        """Start to serve."""
        self._serving = keep_running(
            "http receiver",
            lambda: self._server.serve(sockets=[self._listener]),
            may_return=True,
        )

    def begin_stop(self) -> None:
        """Stop accepting, and let running requests finish; may be called from any thread."""
        self._server.should_exit = True

    async def stop(self) -> None:
        """Stop accepting, and wait until running requests have finished."""
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
