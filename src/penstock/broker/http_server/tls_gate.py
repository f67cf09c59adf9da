"""First bytes of a connection to an HTTP port under TLS: the handshake, or plain HTTP.

A port with a certificate serves both TLS and plain HTTP, and the first byte decides: a handshake
begins with 22, and no request does (RFC 8446, section 5.1). `TlsGate` owns the connection until
then. The port refuses plain requests from other hosts (`HttpGuard.requires_tls`), or closes the
connection (`accepts_plain`).

The first byte is peeked at, so that the event loop gets a socket from which nothing was read.
uvloop reads from a new transport at once, so the gate duplicates the descriptor and gives the
transport up. The handshake uses the newest certificate.

Invariant: a connection that sends nothing, or does not finish its handshake, is closed at a time
limit, and counts as a connection of the server meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, ClassVar, Final, cast

from penstock.broker.http_server.host_policy import HttpRefusal
from penstock.broker.http_server.http_connection import BoundedHeadProtocol
from penstock.broker.security.tls import HANDSHAKE_S, ServerTls
from penstock.core.loop_tasks import start_job

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    import uvicorn
    from uvicorn.server import ServerState

    from penstock.broker.http_server.guard import HttpGuard

_HANDSHAKE_BYTE: Final = b"\x16"
_SHUTDOWN_S: Final = 5.0

_PLAIN: Final = HttpRefusal(
    400, "TLS_REQUIRED", "tls_plain", "the connection does not begin with a TLS handshake"
)


class HttpAfterGate(BoundedHeadProtocol):
    """A connection after its gate.

    Attributes:
        leave_gate: Ends the gate's part: one of both counts as a connection at any time.
    """

    leave_gate: Callable[[], None]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for the first request."""
        self.leave_gate()
        super().connection_made(transport)


class TlsGate(asyncio.Protocol):
    """A connection before its handshake. uvicorn creates one for each connection.

    Args:
        config: Settings of uvicorn.
        server_state: Its connections.
        app_state: State of the application.
        _loop: The event loop.
    """

    guard: ClassVar[HttpGuard]
    tls: ClassVar[ServerTls]
    inner: ClassVar[type[HttpAfterGate]]
    accepts_plain: ClassVar[bool]

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._inner = self.inner(config, server_state, app_state, _loop)
        self._inner.leave_gate = self._leave
        self._connections = cast("set[object]", server_state.connections)
        self._timeout_s = float(config.timeout_keep_alive)
        self._loop = _loop or asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._continuation: asyncio.Task[None] | None = None
        self._client_text = "unknown"
        self._is_open = False

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first byte."""
        # uvloop's transports have the methods and not the base class.
        stream = cast("asyncio.Transport", transport)
        try:
            self._take(transport)
        finally:
            stream.abort()  # closes its descriptor, not the connection

    def _take(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self._client_text = f"{peer[0]}:{peer[1]}"
        if not self.guard.opened(self):
            self.guard.closed(self)
            return
        self._is_open = True
        self._connections.add(self)
        try:
            descriptor = os.dup(transport.get_extra_info("socket").fileno())
            self._socket = socket.socket(fileno=descriptor)
            self._socket.settimeout(0)
            self._loop.add_reader(descriptor, self._look)
            self._timer = self._loop.call_later(self._timeout_s, self._close)
        except BaseException:
            self._close()
            raise

    # -- called by the server

    def shutdown(self) -> None:
        """Close the connection: the server stops."""
        self._close()

    def evict(self) -> None:
        """Close the connection to make room for a new one."""
        self._close()

    # -- the first byte, and what follows

    def _look(self) -> None:
        """Decide by the first byte, which stays unread."""
        assert self._socket is not None
        try:
            first = self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        is_handshake = first == _HANDSHAKE_BYTE
        if is_handshake or (first and self.accepts_plain):
            self._end_peeking()
            work = self._go_on(self.tls.context if is_handshake else None)
            self._continuation = start_job("TLS handshake", work)
            return
        if first:
            self.guard.refuse(_PLAIN, self._client_text)
        self._close()

    async def _go_on(self, context: ssl.SSLContext | None) -> None:
        """Let HTTP continue on the connection, after a handshake if there is a context."""
        # Until here, `_close` closes it; from here on, the loop's transport owns it.
        connection, self._socket = self._socket, None
        assert connection is not None
        limits = (None, None) if context is None else (HANDSHAKE_S, _SHUTDOWN_S)
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._inner,
                connection,
                ssl=context,
                ssl_handshake_timeout=limits[0],
                ssl_shutdown_timeout=limits[1],
            )
        except OSError as error:  # `ssl.SSLError` is a subclass
            text = f"the TLS handshake failed: {str(error) or type(error).__name__}"
            refusal = HttpRefusal(400, "TLS_REQUIRED", "tls_handshake", text)
            self.guard.refuse(refusal, self._client_text)
            connection.close()
        except BaseException:
            connection.close()
            raise
        finally:
            self._leave()

    def _close(self) -> None:
        self._end_peeking()
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()
        if self._continuation is not None:
            self._continuation.cancel()
        self._leave()

    def _leave(self) -> None:
        """Stop counting as a connection."""
        if self._is_open:
            self._is_open = False
            self._connections.discard(self)
            self.guard.closed(self)

    def _end_peeking(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())


def gated_protocol(
    guard: HttpGuard, tls: ServerTls, *, accepts_plain: bool
) -> type[BoundedHeadProtocol]:
    """Return the protocol class of the connections of a server with a certificate.

    Args:
        guard: Limits of the server.
        tls: Its certificate.
        accepts_plain: Serve plain HTTP, too.
    """

    class GuardedProtocol(HttpAfterGate):
        """The connections of one server after the gate."""

    class GuardedGate(TlsGate):
        """The connections of one server before it."""

    GuardedProtocol.guard = GuardedGate.guard = guard
    GuardedGate.tls = tls
    GuardedGate.inner = GuardedProtocol
    GuardedGate.accepts_plain = accepts_plain
    # uvicorn only calls the class and connects the result to a transport.
    return cast("type[BoundedHeadProtocol]", GuardedGate)
