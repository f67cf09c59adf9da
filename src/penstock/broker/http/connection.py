"""One HTTP connection: uvicorn's, with bounds on all of a request that is not its body.

Owns how large a request's line, headers, sizes of chunks and trailers may be and how long its head
may take, which neither uvicorn nor its parser bounds: a client could fill the memory with one
endless header, or hold connections open that never ask anything. Does not own bodies
(``admission``, ``exchange``).

The bytes are counted as they are read, so the bound is kept to within one read of the socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

HEAD_BYTES_MAX: Final = 65_536
HEAD_TIMEOUT_S: Final = 10.0
PIPELINED_MAX: Final = 512
# A body may come in chunks of one byte, each with its size before it and two line ends.
_CHUNK_OVERHEAD: Final = 16

_TOO_LARGE: Final = (b"431 Request Header Fields Too Large", b"HEAD_TOO_BIG")
_MALFORMED: Final = (b"400 Bad Request", b"INVALID_REQUEST")
_TOO_SLOW: Final = (b"408 Request Timeout", b"REQUEST_TIMEOUT")


class BoundedHeadProtocol(HttpToolsProtocol):
    """A connection whose requests have heads of bounded size and age.

    The first head must come within the keep-alive time, as later ones must; once it has begun it
    has `HEAD_TIMEOUT_S`. `PIPELINED_MAX` requests may wait for the answers to those before.
    """

    _in_head = False
    _overhead_bytes = 0  # of the request under way: what is not its body
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._set_deadline(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._end_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came; refuse a head that is too large."""
        was_in_head = self._in_head
        self._overhead_bytes += len(data)
        super().data_received(data)
        if not self._in_head:
            self._end_deadline()
        elif not was_in_head:
            self._set_deadline(HEAD_TIMEOUT_S)
        if self._overhead_bytes > HEAD_BYTES_MAX:
            self._refuse(*_TOO_LARGE)

    def on_message_begin(self) -> None:
        """Note that a head begins.

        Raises:
            InvalidRequest: Too many requests wait for the answers of those before; the parser makes
                an invalid request of it.
        """
        if len(self.pipeline) >= PIPELINED_MAX:
            raise InvalidRequest(
                f"{PIPELINED_MAX} requests wait for answers: read some before asking for more"
            )
        self._in_head = True
        self._overhead_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Note that the head is there."""
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take bytes of a body; they pay for the sizes that stand between them."""
        earned = (1 + _CHUNK_OVERHEAD) * len(body)
        self._overhead_bytes = max(0, self._overhead_bytes - earned)
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, in the broker's words."""
        del msg
        self._refuse(*_MALFORMED)

    def on_response_complete(self) -> None:
        """Answer the next request; read on only when none waits, or each answer brings more."""
        super().on_response_complete()
        if self.pipeline:
            self.flow.pause_reading()

    def _set_deadline(self, seconds: float) -> None:
        self._end_deadline()
        self._deadline = self.loop.call_later(seconds, self._refuse, *_TOO_SLOW)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, status: bytes, code: bytes) -> None:
        self._end_deadline()
        if self.transport.is_closing():
            return
        cycle: RequestResponseCycle | None = self.cycle  # none before the first request
        if cycle is None or cycle.response_complete:
            body = b'{"message":"%s"}' % code
            self.transport.write(
                b"HTTP/1.1 %s\r\ncontent-type: application/json; charset=utf-8\r\n"
                b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (status, len(body), body)
            )
        # Else the answer to an earlier request is under way, and cannot be told from this one.
        self.transport.close()
