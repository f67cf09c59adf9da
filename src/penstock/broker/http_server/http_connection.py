"""One HTTP connection: uvicorn's, with limits on everything in a request except its body.

Owns the maximum size of a request's line, headers, chunk sizes and trailers, the number of headers,
the time for a request to arrive, and the time that a client may pause reading its answer. Neither
uvicorn nor its parser limits these: a client could fill the memory with one endless header, or hold
connections open that never send a request or never read an answer. Also owns when the checks of
`host_policy` are applied. Does not own the size of bodies (`publish_admission`, `http.exchange`),
nor state that connections share (`guard`).

The bytes are counted when they are read, so the limit of pipelined heads is exact to one read of
the socket.
"""

from __future__ import annotations

import http
import logging
from typing import TYPE_CHECKING, ClassVar, Final, TypeVarTuple

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.broker.http_server.authentication import PEER_STATE, HttpPeer
from penstock.broker.http_server.body_drain import TOTAL_TIMEOUT_S, BodyDrain
from penstock.broker.http_server.guard import UNFINISHED_BYTES_MAX, HttpGuard
from penstock.broker.http_server.host_policy import HttpRefusal
from penstock.core.errors import InvalidRequest
from penstock.core.printable import to_header
from penstock.core.tls_trust import is_loopback

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from starlette.types import Receive, Scope, Send
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

Ts = TypeVarTuple("Ts")

HEAD_BYTES_MAX: Final = 65_536
HEADERS_MAX: Final = 128
HEAD_TIMEOUT_S: Final = 10.0
PIPELINED_MAX: Final = 512
# Part of an answer that a client must read in each `reading_timeout_s` of the guard.
READ_BYTES_MIN: Final = 16_384
# Part of a body that must arrive in each `body_timeout_s` of the guard if the body takes longer.
# Only uploads are larger: 2 GiB may take longer than a time limit that other bodies need.
BODY_BYTES_MIN: Final = 16 << 20
# Time that a connection has to take the rest of its answer once it is being closed.
_CLOSE_TIMEOUT_S: Final = 10.0
# A body may come in chunks of one byte, each with its size and two line ends.
_CHUNK_OVERHEAD: Final = 16

_TOO_LARGE: Final = HttpRefusal(
    431, "HEAD_TOO_BIG", "head_size", f"the request's head has more than {HEAD_BYTES_MAX} bytes"
)
_TOO_MANY: Final = HttpRefusal(
    431, "HEAD_TOO_BIG", "head_size", f"the request has more than {HEADERS_MAX} headers"
)
_MALFORMED: Final = HttpRefusal(400, "INVALID_REQUEST", "malformed", "the request is not HTTP/1.1")
_HEAD_TOO_SLOW: Final = HttpRefusal(
    408, "REQUEST_TIMEOUT", "head_timeout", "the request's head did not arrive in time"
)
_BODY_TOO_SLOW: Final = HttpRefusal(
    408, "REQUEST_TIMEOUT", "body_timeout", "the request's body did not arrive in time"
)
_IDLE: Final = HttpRefusal(408, "REQUEST_TIMEOUT", "idle", "no request arrived in time")
_NOT_READING: Final = HttpRefusal(
    408, "REQUEST_TIMEOUT", "not_reading", "the client stopped reading its answer"
)
_NEEDS_TLS: Final = HttpRefusal(
    403,
    "TLS_REQUIRED",
    "tls_plain",
    "this port serves other hosts only under TLS: use https:// instead of http://",
)
_BUSY: Final = HttpRefusal(
    503, "TOO_MANY_CONNECTIONS", "connections", "there are too many connections: try again later"
)

# Uvicorn logs each request that it cannot parse; those are counted by the guard.
_UVICORN_LOG: Final = logging.getLogger(f"{__name__}.uvicorn")
_UVICORN_LOG.setLevel(logging.ERROR)


class RequestMeter:
    """The part of a request that is being received, and its size without the body.

    Attributes:
        in_head: Its head has begun and is not complete.
        in_body: Its head is complete, and its body is not.
        overhead_bytes: Size of the head; after it, bytes of the body that are chunk framing.
        body_bytes: Bytes of the body since its deadline was set.
    """

    __slots__ = ("_first_bytes", "body_bytes", "in_body", "in_head", "overhead_bytes")

    def __init__(self) -> None:
        self.in_head = False
        self.in_body = False
        self.overhead_bytes = 0
        self.body_bytes = 0
        self._first_bytes = 0

    def received(self, size_bytes: int) -> None:
        """Add bytes that the parser gets next."""
        self.overhead_bytes += size_bytes
        # A head that begins at the start of a read counts completely; the parser does not report
        # where a later one begins.
        self._first_bytes = 0 if self.in_head or self.in_body else size_bytes

    def head_began(self) -> None:
        """Record that a head begins in the bytes received last."""
        self.in_head = True
        self.overhead_bytes, self._first_bytes = self._first_bytes, 0

    def head_completed(self) -> None:
        """Record that a head is complete: from here on, the overhead of the body counts."""
        self.in_head, self.in_body = False, True
        self.overhead_bytes = self.body_bytes = 0

    def body_received(self, size_bytes: int) -> None:
        """Record bytes of a body; they compensate for the chunk sizes between them."""
        self.body_bytes += size_bytes
        earned = (1 + _CHUNK_OVERHEAD) * size_bytes
        self.overhead_bytes = max(0, self.overhead_bytes - earned)

    def body_completed(self) -> None:
        """Record that a request is complete."""
        self.in_body = False


class Deadline:
    """One timer; setting it replaces its earlier time."""

    __slots__ = ("_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Call back after a time."""
        self.cancel()
        self._timer = self._loop.call_later(seconds, callback, *args)

    def cancel(self) -> None:
        """Call nothing back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class BoundedHeadProtocol(HttpToolsProtocol):
    """A connection whose requests have heads of limited size and age.

    The first head must begin within the keep-alive time, as later ones must; then it must be
    complete within `HEAD_TIMEOUT_S`, and the body after it within the guard's time, or
    `BODY_BYTES_MIN` of it in each such time. The rest of a body whose request was already answered
    has `TOTAL_TIMEOUT_S` of ``unread``. Up to `PIPELINED_MAX` requests may wait for others.
    """

    guard: ClassVar[HttpGuard]

    _request: RequestMeter
    _deadline: Deadline
    _reading_check: Deadline  # while an answer waits for its client
    _unfinished_bytes = 0  # of the current request, as counted by the guard
    _lost = False
    _refused: HttpRefusal | None = None  # why the current head is refused

    # uvicorn narrows the type of this argument, so the base type is not possible.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for the first request."""
        self._request = RequestMeter()
        self._deadline, self._reading_check = Deadline(self.loop), Deadline(self.loop)
        super().connection_made(transport)
        # Uvicorn copies the state of the application into the scope of each request.
        self.app_state = {**self.app_state, PEER_STATE: HttpPeer(transport)}
        self.logger = _UVICORN_LOG
        if self.guard.opened(self):
            self._set_deadline(self.timeout_keep_alive, _IDLE)
        else:
            self._answer_and_close(_BUSY)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        self._lost = True
        self._deadline.cancel()
        self._reading_check.cancel()
        self.guard.unfinished_bytes -= self._unfinished_bytes
        self._unfinished_bytes = 0
        self.guard.closed(self)
        self.app_state[PEER_STATE].closed()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; refuse a head that is too large."""
        request = self._request
        was_in_head, was_in_body = request.in_head, request.in_body
        request.received(len(data))
        super().data_received(data)
        # While a connection is being closed, the deadline of `_close` applies.
        if not self.transport.is_closing():
            self._follow(was_in_head=was_in_head, was_in_body=was_in_body)
        if request.overhead_bytes > HEAD_BYTES_MAX:
            self._refuse(_TOO_LARGE)
        self._count_unfinished()

    def pause_writing(self) -> None:
        """Pause the answer until the client has read more."""
        super().pause_writing()
        self._begin_reading_check()

    def resume_writing(self) -> None:
        """Resume the answer."""
        super().resume_writing()
        self._reading_check.cancel()

    def evict(self) -> None:
        """Close this connection to make room for a new one."""
        self._close()

    def on_message_begin(self) -> None:
        """Record that a head begins.

        Raises:
            InvalidRequest: Too many requests wait for earlier answers; the parser converts it to an
                invalid request.
        """
        if len(self.pipeline) >= PIPELINED_MAX:
            raise InvalidRequest(
                f"{PIPELINED_MAX} requests wait for answers: read some before sending more"
            )
        self._request.head_began()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header.

        Raises:
            InvalidRequest: There are too many; the parser converts it to an invalid request.
        """
        # Called for trailers, too: a request may not have more of them than of headers.
        if len(self.headers) >= HEADERS_MAX:
            self._refused = _TOO_MANY
            raise InvalidRequest(_TOO_MANY.detail)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check the hosts of a request, and start answering it."""
        self._request.head_completed()
        self.guard.works(self)
        refusal = self._refusal()
        if refusal is None:
            super().on_headers_complete()
            return
        self.guard.refuse(refusal, self._client_text())
        application = self.app
        self.app = BodyDrain(_Refused(refusal, self.guard.error_body(refusal)))
        try:
            super().on_headers_complete()
        finally:
            self.app = application

    def on_body(self, body: bytes) -> None:
        """Process bytes of a body."""
        self._request.body_received(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Record that a request is complete."""
        self._request.body_completed()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse input that is not HTTP, in the format of the server."""
        del msg
        refusal, self._refused = self._refused or _MALFORMED, None
        self._refuse(refusal)

    def on_response_complete(self) -> None:
        """Answer the next request; resume reading only if none waits, to bound the pipeline."""
        super().on_response_complete()
        if self._lost:
            return
        if self.transport.is_closing():
            self._close()
        elif self.pipeline:
            self.flow.pause_reading()
        else:
            self.guard.waits(self)
            if self._request.in_body:
                self._set_deadline(TOTAL_TIMEOUT_S, _BODY_TOO_SLOW)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection on which no further request arrived."""
        if not self.transport.is_closing():
            self._close()

    def _follow(self, *, was_in_head: bool, was_in_body: bool) -> None:
        """Set the deadline of the part of a request that is being read."""
        if self._request.in_head:
            if not was_in_head:
                self._set_deadline(HEAD_TIMEOUT_S, _HEAD_TOO_SLOW)
        elif not self._request.in_body:
            self._deadline.cancel()
        elif not was_in_body or was_in_head:
            self._set_deadline(self.guard.body_timeout_s, _BODY_TOO_SLOW)

    def _refusal(self) -> HttpRefusal | None:
        if len(self.url) + sum(len(n) + len(v) for n, v in self.headers) > HEAD_BYTES_MAX:
            return _TOO_LARGE
        if self.guard.requires_tls and self.scheme == "http" and not self._is_loopback():
            return _NEEDS_TLS
        local_host = self.server[0] if self.server else ""
        method, version = self.parser.get_method(), self.parser.get_http_version()
        return self.guard.policy.refusal(method, self.url, version, self.headers, local_host)

    def _is_loopback(self) -> bool:
        return self.client is not None and is_loopback(self.client[0])

    def _count_unfinished(self) -> None:
        counts = self._request.in_head and not self.transport.is_closing()
        held = self._request.overhead_bytes if counts else 0
        self.guard.unfinished_bytes += held - self._unfinished_bytes
        self._unfinished_bytes = held
        if held and self.guard.unfinished_bytes > UNFINISHED_BYTES_MAX:
            self._refuse(_BUSY)

    def _set_deadline(self, seconds: float, refusal: HttpRefusal) -> None:
        self._deadline.set(seconds, self._time_out, seconds, refusal)

    def _time_out(self, seconds: float, refusal: HttpRefusal) -> None:
        # A paused client is waiting for this server.
        if self.flow.read_paused or (refusal is _BODY_TOO_SLOW and self._is_body_steady()):
            self._request.body_bytes = 0
            self._set_deadline(seconds, refusal)
        else:
            self._refuse(refusal)

    def _is_body_steady(self) -> bool:
        """Return whether a large body arrives for a request that is not answered yet."""
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        is_open = cycle is not None and not cycle.response_complete
        return is_open and self._request.body_bytes >= BODY_BYTES_MIN

    def _begin_reading_check(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._reading_check.set(self.guard.reading_timeout_s, self._check_reading, unread)

    def _check_reading(self, unread: int) -> None:
        """Abort the connection if its client has read almost nothing since the last check."""
        if unread - self.transport.get_write_buffer_size() >= READ_BYTES_MIN:
            self._begin_reading_check()
            return
        self._reading_check.cancel()
        self.guard.refuse(_NOT_READING, self._client_text())
        self._deadline.cancel()
        self.transport.abort()

    def _client_text(self) -> str:
        return f"{self.client[0]}:{self.client[1]}" if self.client else "unknown"

    def _refuse(self, refusal: HttpRefusal) -> None:
        self._deadline.cancel()
        if self.transport.is_closing():
            return
        if refusal is not _IDLE:  # the end of an idle connection is normal
            self.guard.refuse(refusal, self._client_text())
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        if cycle is None:
            self._answer_and_close(refusal)
        elif self._request.in_body and cycle.scope is self.scope:
            if cycle.response_started or self.pipeline:
                self._close()  # this answer would become part of another one
                return
            # As at the end of a connection: the application must not answer this request again.
            cycle.disconnected = True
            cycle.message_event.set()
            self._answer_and_close(refusal)
        elif cycle.response_complete:
            self._answer_and_close(refusal)
        else:
            # An earlier answer is being sent: clients would read this one as part of it.
            self._close()

    def _answer_and_close(self, refusal: HttpRefusal) -> None:
        body = self.guard.error_body(refusal)
        phrase = http.HTTPStatus(refusal.status).phrase.encode()
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json; charset=utf-8\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%s"
            % (refusal.status, phrase, len(body), body)
        )
        self._close()

    def _close(self) -> None:
        self.transport.close()
        # A client that does not read its answer must not hold the file descriptor.
        self._deadline.set(_CLOSE_TIMEOUT_S, self.transport.abort)


class _Refused:
    """The ASGI application that answers a refused request.

    Args:
        refusal: Why it is refused.
        body: The body of the answer, JSON.
    """

    def __init__(self, refusal: HttpRefusal, body: bytes) -> None:
        self._refusal = refusal
        self._body = body

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer without reading the body."""
        headers = [
            (b"content-type", b"application/json; charset=utf-8"),
            (b"content-length", b"%d" % len(self._body)),
            (b"x-penstock-detail", to_header(self._refusal.detail)),
        ]
        start = {"type": "http.response.start", "status": self._refusal.status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": self._body})


def bounded_protocol(guard: HttpGuard) -> type[BoundedHeadProtocol]:
    """Return the protocol class of a server's connections, which share a guard."""

    class GuardedProtocol(BoundedHeadProtocol):
        """The connections of one server."""

    GuardedProtocol.guard = guard
    return GuardedProtocol
