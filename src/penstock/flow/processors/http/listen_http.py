"""ListenHTTP: a processor that receives HTTP requests as FlowFiles.

`ListenHTTP` owns the properties and the commit. `RequestReceiver` is the ASGI application that
holds requests until a trigger takes them, and `ReceivingServer` owns the socket and runs on its own
event loop; only `begin_stop` may be called from other threads.

    arrives  → refused: 401 404 405 413 503       nothing was kept
             → spooled: in memory, past 1 MB on disk, so that a slow sender holds no thread
    waits    → taken by a trigger                 answered when the commit is durable
             → not taken in time, or stopped      503

Invariants: 200 is sent only when the FlowFile survives a power loss; after any other status the
sender may repeat the request. Bodies and requests are bounded in number and size. A request
that was answered 503 before it was taken is never taken. Each request is answered, even if
the answer to another one raises, or the notice of its own answer is lost.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import IO, TYPE_CHECKING, BinaryIO, ClassVar, Final, Protocol, cast

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from penstock.broker.http_server.guard import HttpGuard
from penstock.broker.http_server.host_policy import HostPolicy
from penstock.broker.http_server.server import uvicorn_config
from penstock.broker.security.tls import ServerTls, TlsOptions
from penstock.core.cleanup import CleanupSteps
from penstock.core.errors import InvalidRequest, Unavailable
from penstock.core.loop_stalls import watched_loop
from penstock.core.loop_tasks import LoopThread, keep_running, run_on_thread
from penstock.core.tls_trust import is_reachable
from penstock.flow.flowfile import MIME_TYPE
from penstock.flow.processor import (
    INT,
    PERIOD,
    REGEX,
    SIZE,
    STR,
    InputRequirement,
    Problem,
    ProcessContext,
    Processor,
    ProcessSession,
    Property,
    Relationship,
    list_of,
)
from penstock.flow.processors.topics.service_addresses import SERVICE

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


SPOOL_BYTES: Final = 1 << 20
_RETRY_AFTER_S: Final = "1"
_STOP_S: Final = 3
# Interval of checks for the answer of a trigger whose notice was lost.
_ANSWER_CHECK_S: Final = 1.0
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

    Args:
        answered: Called after the answer, on the thread that gives it.

    Attributes:
        body: The bytes, at the start position.
        attributes: Attributes for its FlowFile.
        taken: The answer: whether its FlowFile is durable; None: there is none yet.
    """

    def __init__(
        self, body: IO[bytes], attributes: Mapping[str, str], answered: Callable[[], None]
    ) -> None:
        self.body = body
        self.attributes = attributes
        self.taken: bool | None = None
        self._answered = answered

    def answer(self, *, taken: bool) -> None:
        """Answer the request; may be called from any thread."""
        self.taken = taken
        self._answered()


def answer_all(requests: Iterable[ReceivedRequest], *, taken: bool) -> None:
    """Answer each request, even if the answer to another one raises."""
    steps = CleanupSteps()
    for request in requests:
        steps.take(request.answer, taken=taken)
    steps.finish()


class RequestSink(Protocol):
    """Destination of received requests; its methods are fast, and called on the loop's thread."""

    def has_room(self) -> bool:
        """Return whether FlowFiles can be accepted now."""
        ...

    def attributes_of(self, request: Request) -> Mapping[str, str]:
        """Return the attributes of a request."""
        ...

    def wake(self) -> None:
        """Handle a new request that can be taken."""
        ...


class RequestReceiver:
    """ASGI application that keeps requests for triggers.

    Args:
        options: Options for accepting requests.
        sink: Destination of the requests.
    """

    def __init__(self, options: ReceivingOptions, sink: RequestSink) -> None:
        self._options = options
        self._sink = sink
        self._requests = 0
        self._closed = False
        # Both ends of a deque may be used by several threads; the thread that popped a request owns
        # it.
        self._waiting: deque[ReceivedRequest] = deque()

    def take(self, into: list[ReceivedRequest]) -> ReceivedRequest | None:
        """Take a request, from any thread.

        Args:
            into: The request is added to this list; the caller must answer all in it.
        """
        try:
            request = self._waiting.popleft()
        except IndexError:
            return None
        try:
            into.append(request)
        except BaseException:
            request.answer(taken=False)
            raise
        return request

    def close(self) -> None:
        """Answer all waiting and later requests with 503."""
        self._closed = True
        requests: list[ReceivedRequest] = []
        try:
            while self.take(requests) is not None:
                pass
        finally:
            answer_all(requests, taken=False)

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
        if not self._sink.has_room():
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
                    await run_on_thread(partial(body.write, piece))
                else:
                    body.write(piece)
            body.seek(0)
            return await self._wait_taken(request, body)

    async def _wait_taken(self, request: Request, body: IO[bytes]) -> Response:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()

        def resolve() -> None:
            if not answered.done():
                answered.set_result(None)

        received = ReceivedRequest(
            body, self._sink.attributes_of(request), lambda: _post(loop, resolve)
        )
        self._waiting.append(received)
        try:
            if self._closed:
                self.close()
            self._sink.wake()
            until_s = loop.time() + self._options.answer_timeout_s
            while received.taken is None:
                left_s = until_s - loop.time()
                if left_s <= 0 and self._forget(received):
                    return _busy("the flow did not take it in time")
                # If a trigger has taken it, its result is only known when the trigger ends.
                wait_s = min(left_s, _ANSWER_CHECK_S) if left_s > 0 else _ANSWER_CHECK_S
                await asyncio.wait([answered], timeout=wait_s)
        except BaseException:
            self._forget(received)  # or a trigger would find its body closed
            raise
        if received.taken:
            return Response(status_code=self._options.answer_status)
        return _busy("the request could not be stored")

    def _forget(self, received: ReceivedRequest) -> bool:
        """Remove a waiting request; False if a trigger has taken it."""
        try:
            self._waiting.remove(received)
        except ValueError:
            return False
        return True

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
        InvalidRequest: The certificate cannot be used.
    """

    def __init__(
        self,
        receiver: RequestReceiver,
        listener: socket.socket,
        hosts: HostPolicy,
        certificate: str = "",
        key: str = "",
    ) -> None:
        self._listener = listener
        options = TlsOptions(certificate=certificate or None, key=key or None)
        self._tls = ServerTls.of(options)
        guard = HttpGuard(hosts, body_timeout_s=_BODY_TIMEOUT_S)
        self._server = uvicorn.Server(uvicorn_config(receiver, guard, _STOP_S, self._tls))
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to serve."""
        if self._tls is not None:
            self._tls.start()
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
        if self._tls is not None:
            await run_on_thread(self._tls.stop)


def _post(loop: asyncio.AbstractEventLoop, resolve: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(resolve)


def _has_token(request: Request, token: str) -> bool:
    given = request.headers.get("authorization", "")
    return hmac.compare_digest(given.encode(), f"Bearer {token}".encode())


def _busy(why: str) -> Response:
    return PlainTextResponse(f"{why}: try again later\n", 503, {"Retry-After": _RETRY_AFTER_S})


_START_S: Final = 10.0
_STOP_WAIT_S: Final = 10.0
_BATCH: Final = 100
_METHODS: Final = frozenset({"POST", "PUT", "PATCH"})


def _check_path(path: str) -> None:
    if not path.startswith("/") or "?" in path or "#" in path:
        raise InvalidRequest(f"{path!r} is not a path of a URL: write one such as /events")


def _check_port(port: int) -> None:
    if not 0 <= port <= 65_535:
        raise InvalidRequest(f"{port} is not a valid port: write 1 to 65535, or 0 for any free one")


def _check_count(count: int) -> None:
    if not 0 < count <= 100_000:
        raise InvalidRequest(f"{count:,} requests at once: use 1 to 100,000")


class ListenHTTP(Processor):
    """Serves HTTP on its own port: the body of each request becomes the content of a FlowFile.

    A request is answered when the FlowFile is durable. It is answered with 503, and discarded, if
    the outgoing connection is full, too many requests wait, or the flow stops; with 413 if the body
    is too large. Requests that arrive at about the same time share one commit.
    """

    input = InputRequirement.FORBIDDEN
    tags = ("http", "listen", "rest", "webhook", "source")
    writes_attributes: ClassVar[Mapping[str, str]] = {
        "http.method": "Method of the request.",
        "http.path": "Path of the request, without the query.",
        "http.query": "Query string after the question mark.",
        "http.remote.host": "Address of the sender.",
        "http.header.*": "Headers that match `header_attributes`, in lower case.",
        "mime.type": "Header Content-Type, if it is sent.",
    }

    success = Relationship("One FlowFile for each request.")

    host = Property(
        STR,
        default="127.0.0.1",
        about="Address to listen on; 0.0.0.0: all addresses, which needs certificate and token.",
    )
    allowed_hosts = Property(
        list_of(STR),
        default="",
        about="Further hosts that requests may name in `Host`, besides loopback names, `host` "
        "and the address that the sender connected to; *.example.com: all its subdomains.",
        validator=HostPolicy,
    )
    port = Property(INT, required=True, about="Port; 0: any.", validator=_check_port)
    path = Property(STR, default="/", about="Only this path is served.", validator=_check_path)
    methods = Property(
        list_of(STR), default="POST,PUT", about="Accepted methods, from POST, PUT and PATCH."
    )
    token = Property(STR, default="", sensitive=True, about="Required bearer token.")
    maximum_size = Property(SIZE, default="100 MB", about="Maximum size of a body.")
    maximum_requests = Property(
        INT,
        default=200,
        about="Maximum number of requests being read or waiting.",
        validator=_check_count,
    )
    answer_timeout = Property(
        PERIOD, default="30 sec", about="How long a request may wait for the flow to take it."
    )
    answer_status = Property(
        INT, default=200, about="Status code for accepted requests, such as 202."
    )
    header_attributes = Property(
        REGEX,
        default="(?!)",
        about="Regular expression for names of headers, in lower case, that become attributes.",
    )
    certificate = Property(STR, default="", about="PEM file with certificates: enables TLS.")
    certificate_key = Property(
        STR, default="", about="PEM file with the private key, if it is separate."
    )

    _loop: LoopThread
    _receiver: RequestReceiver
    _server: ReceivingServer
    bound_port: int = 0

    def check(self) -> Iterator[Problem]:
        """Yield errors of the properties."""
        if not self.methods or not set(self.methods) <= _METHODS:
            yield Problem("methods", "write one or more of POST, PUT and PATCH")
        if not 200 <= self.answer_status <= 299:
            yield Problem("answer_status", "is for accepted requests: write 200 to 299")

    def on_scheduled(self, context: ProcessContext) -> None:
        """Start to listen.

        Raises:
            Unavailable: The port is in use.
            InvalidRequest: The address or the certificate is invalid, or other hosts reach the
                address and TLS or a token is missing.
        """
        self._require_protection()
        listener = _listen(self.host, self.port)
        self._receiver = RequestReceiver(self._options(), _ProcessorSink(self, context))
        self.bound_port = listener.getsockname()[1]
        name = f"{context.name} listens"
        self._loop = LoopThread(name, watched_loop(name))
        self._loop.start()
        started = False
        try:
            self._server = ReceivingServer(
                *(self._receiver, listener),
                HostPolicy.of_addresses([self.host], self.allowed_hosts),
                *(self.certificate, self.certificate_key),
            )
            self._loop.run(self._server.start(), _START_S)
            started = True
        except InvalidRequest as error:  # narrow: of the certificate
            raise InvalidRequest(f"certificate {self.certificate!r}: {error}") from None
        finally:
            if not started:
                self._loop.stop()
                listener.close()

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:  # noqa: ARG002 - of every processor
        """Take waiting requests."""
        requests: list[ReceivedRequest] = []
        committed = False
        try:
            while len(requests) < _BATCH and (request := self._receiver.take(requests)) is not None:
                flowfile = session.create(attributes=request.attributes)
                session.import_from(flowfile, cast("BinaryIO", request.body))
                session.transfer(flowfile, self.success)
            if requests:
                session.commit(durable=True)
            committed = True
        finally:
            answer_all(requests, taken=committed)

    def on_unscheduled(self, context: ProcessContext) -> None:  # noqa: ARG002 - of every processor
        """Answer all waiting requests, and close the port; running triggers still answer theirs.

        This is not done in `on_stopped`, which is not called if the processor is terminated.
        """
        try:
            self._receiver.close()
        finally:
            self._server.begin_stop()

    def on_stopped(self, context: ProcessContext) -> None:  # noqa: ARG002 - of every processor
        """Wait for the last answers."""
        try:
            self._receiver.close()
            self._loop.run(self._server.stop(), _STOP_WAIT_S)
        finally:
            self._loop.stop()

    def _require_protection(self) -> None:
        """Refuse an address that other hosts reach without TLS and a token, as the server does."""
        lacks = [name for name in ("certificate", "token") if not getattr(self, name)]
        if lacks and not SERVICE.addresses().insecure and is_reachable(self.host):
            raise InvalidRequest(
                f"other hosts can reach {self.host}, and each of them may send FlowFiles: set"
                f" {' and '.join(lacks)}, or listen on 127.0.0.1, or start Penstock with"
                " --insecure",
                place="host",
            )

    def _options(self) -> ReceivingOptions:
        return ReceivingOptions(
            path=self.path,
            methods=frozenset(self.methods),
            token=self.token,
            maximum_bytes=self.maximum_size,
            maximum_requests=self.maximum_requests,
            answer_timeout_s=self.answer_timeout / 1000,
            answer_status=self.answer_status,
        )


class _ProcessorSink:
    """The processor as the destination of requests."""

    def __init__(self, processor: ListenHTTP, context: ProcessContext) -> None:
        self._context = context
        self._success = processor.success
        self._header_attributes = processor.header_attributes

    def has_room(self) -> bool:
        """Return whether the outgoing connections have room."""
        return self._context.is_available(self._success)

    def wake(self) -> None:
        """Request a trigger."""
        self._context.wake()

    def attributes_of(self, request: Request) -> Mapping[str, str]:
        """Return the attributes of the FlowFile of a request."""
        attributes = {
            "http.method": request.method,
            "http.path": request.scope["path"],
            "http.query": request.scope["query_string"].decode("latin-1"),
            "http.remote.host": request.client.host if request.client else "",
        }
        if kind := request.headers.get("content-type"):
            attributes[MIME_TYPE] = kind
        for name, value in request.headers.items():
            if self._header_attributes.fullmatch(name) and name != "authorization":
                attributes[f"http.header.{name}"] = value
        return attributes


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {host}:{port}: {error.strerror or error}; use another port, or "
            "stop the process that uses it"
        ) from None
