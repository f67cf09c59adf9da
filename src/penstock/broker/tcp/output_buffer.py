"""Output to a client, gathered in each iteration of the loop.

Owns pending output, whether the client reads fast enough, and the memory that this takes. Carries
out the effects of events that end the connection (`penstock.broker.protocol.connection_state`).
Does not own the codec (`penstock.broker.protocol`) nor the handling of a client that does not read
(`tcp_connection`).

Invariants: bytes are sent in order; after `close` no further output is accepted.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from penstock.broker.protocol.connection_state import ClientEffect, ClientEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.memory.memory_budget import MemoryBudget
    from penstock.broker.tcp.client_session import ClientSession

_logger = logging.getLogger(__name__)

_WAITING_BYTES_MAX: Final = 1 << 20  # of deliveries in one iteration of the loop
_TOLD_BYTES: Final = 1 << 12  # pieces of this size are added to the memory budget at once


class OutputBuffer:
    """Output side of one connection.

    Args:
        session: Has the compression; is notified when the connection ends.
        memory: Memory budget to which pending output is added.

    Attributes:
        on_room: Called when deliveries are possible again after they were not.
    """

    __slots__ = (
        "_memory",
        "_paused",
        "_paused_since_s",
        "_scheduled",
        "_session",
        "_transport",
        "_waiting",
        "_waiting_bytes",
        "on_room",
    )

    def __init__(self, session: ClientSession, memory: MemoryBudget) -> None:
        self.on_room: Callable[[], None] | None = None
        self._session = session
        self._memory = memory
        self._transport: asyncio.Transport | None = None
        self._waiting: list[bytes | memoryview] = []
        self._waiting_bytes = 0
        self._scheduled = False
        self._paused = False  # the transport has unsent output
        self._paused_since_s = 0.0

    def begin(self, transport: asyncio.Transport) -> None:
        """Send over this transport from now on."""
        # With these limits, the connection is notified of any output buffered in memory.
        transport.set_write_buffer_limits(high=1, low=0)
        self._transport = transport

    def end(self) -> None:
        """Stop sending: the transport is closed."""
        self._end(ClientEvent.LOST)

    @property
    def writable(self) -> bool:
        """Whether most of the earlier output has been sent."""
        if self._paused or self._waiting_bytes >= _WAITING_BYTES_MAX:
            return False
        return not self._session.closed

    @property
    def unread_bytes(self) -> int:
        """Number of bytes in the transport's buffer, because the client reads slowly."""
        if not self._paused or self._transport is None:
            return 0
        return self._transport.get_write_buffer_size()

    def stuck_s(self, now_s: float) -> float:
        """Return for how long the client has been reading too slowly."""
        return now_s - self._paused_since_s if self._paused else 0.0

    def send(self, data: bytes | memoryview) -> None:
        """Send bytes, together with other output of this iteration of the loop."""
        if self._transport is None:
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if len(data) >= _TOLD_BYTES:
            # At once: many channels may deliver much in one iteration, before any of it is sent.
            self._report_held()
        if not self._scheduled:
            asyncio.get_running_loop().call_soon(self.flush)
            self._scheduled = True

    def send_now(self, data: bytes) -> None:
        """Send bytes and pending output without waiting for the next iteration of the loop."""
        self._waiting.append(data)
        self.flush()

    def flush(self) -> None:
        """Send pending output now.

        If that raises, bytes are missing in the middle of the stream: the connection is aborted,
        and its messages are redelivered.
        """
        try:
            self._flush()
        except Exception:
            # The outermost handler of a callback; it ends only this connection.
            _logger.exception("%s: cannot send output", self._session.address)
            self.abort()

    def _flush(self) -> None:
        self._scheduled = False
        waiting, self._waiting = self._waiting, []
        was_full, self._waiting_bytes = self._waiting_bytes >= _WAITING_BYTES_MAX, 0
        if self._transport is None or not waiting:
            return
        codec = self._session.codec
        if codec is not None:
            self._transport.write(codec.compress(b"".join(waiting)))
        elif len(waiting) == 1:
            self._transport.write(waiting[0])
        else:
            self._transport.writelines(waiting)
        self._report_held()
        if was_full and not self._paused and self.on_room is not None:
            self.on_room()

    def pause(self) -> None:
        """Record that the client reads too slowly."""
        self._paused = True
        self._paused_since_s = asyncio.get_running_loop().time()
        self._report_held()

    def resume(self) -> None:
        """Record that the client has caught up."""
        self._paused = False
        self._report_held()
        if self.on_room is not None:
            self.on_room()

    def close(self) -> None:
        """Send pending output, and close."""
        self._end(ClientEvent.CLOSE)

    def abort(self) -> None:
        """Close without sending pending output."""
        self._end(ClientEvent.ABORT)

    def _end(self, event: ClientEvent) -> None:
        for effect in self._session.apply(event):
            match effect:
                case ClientEffect.CLOSE_AFTER_OUTPUT:
                    try:
                        self.flush()
                    finally:
                        if self._transport is not None:
                            self._close_transport(self._transport)
                case ClientEffect.ABORT_TRANSPORT:
                    if self._transport is not None:
                        self._transport.abort()
                case ClientEffect.DROP_OUTPUT:
                    self._transport = None
                    self._waiting, self._waiting_bytes = [], 0
                    self._memory.hold(self, 0)
                case _:
                    raise AssertionError(f"{effect} is not an effect of an end")

    @staticmethod
    def _close_transport(transport: asyncio.Transport) -> None:
        """Close a transport; abort it if that raises, because who asked may not ask again."""
        try:
            transport.close()
        except BaseException:
            transport.abort()
            raise

    def _report_held(self) -> None:
        self._memory.hold(self, self._waiting_bytes + self.unread_bytes)
