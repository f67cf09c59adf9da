"""What a client is sent, gathered in each turn of the loop.

Owns what waits to leave, whether the client keeps up, and how much memory that takes. Does not own
the codec (`penstock.broker.protocol`) nor what becomes of a client that does not read
(`connection`).

Invariants: bytes leave in the order they were given; after `close` nothing is taken that was not
given before.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.memory.ledger import MemoryLedger
    from penstock.broker.tcp.session import Session

_logger = logging.getLogger(__name__)

_WAITING_BYTES_MAX: Final = 1 << 20  # of deliveries in one turn of the loop
_TOLD_BYTES: Final = 1 << 12  # of one piece that the ledger hears of before it leaves


class Output:
    """The way out of one connection.

    Args:
        session: Knows how the bytes are packed.
        memory: Is told how much waits.

    Attributes:
        closed: The connection ends, when what was given has left.
        on_room: Called when there was no room for deliveries and there is some again.
    """

    __slots__ = (
        "_clogged",
        "_clogged_since_s",
        "_memory",
        "_scheduled",
        "_session",
        "_transport",
        "_waiting",
        "_waiting_bytes",
        "closed",
        "on_room",
    )

    def __init__(self, session: Session, memory: MemoryLedger) -> None:
        self.closed = False
        self.on_room: Callable[[], None] | None = None
        self._session = session
        self._memory = memory
        self._transport: asyncio.Transport | None = None
        self._waiting: list[bytes | memoryview] = []
        self._waiting_bytes = 0
        self._scheduled = False
        self._clogged = False  # what was sent has not left
        self._clogged_since_s = 0.0

    def begin(self, transport: asyncio.Transport) -> None:
        """Send over this transport from now on."""
        # So the connection knows whenever something waits in memory.
        transport.set_write_buffer_limits(high=1, low=0)
        self._transport = transport

    def end(self) -> None:
        """Send nothing any more: the transport is gone."""
        self.closed = True
        self._transport = None
        self._memory.hold(self, 0)

    @property
    def writable(self) -> bool:
        """Say whether what was sent before has left, more or less."""
        return not (self._clogged or self._waiting_bytes >= _WAITING_BYTES_MAX or self.closed)

    @property
    def unread_bytes(self) -> int:
        """Return how much left here and did not leave this host, because the client is slow."""
        if not self._clogged or self._transport is None:
            return 0
        return self._transport.get_write_buffer_size()

    def stuck_s(self, now_s: float) -> float:
        """Return for how long the client has not kept up."""
        return now_s - self._clogged_since_s if self._clogged else 0.0

    def send(self, data: bytes | memoryview) -> None:
        """Send bytes, together with what else is sent in this turn of the loop."""
        if self._transport is None:
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if len(data) >= _TOLD_BYTES:
            # At once: many channels may give out much in one turn, before any of it can leave.
            self._tell_ledger()
        if not self._scheduled:
            asyncio.get_running_loop().call_soon(self.flush)
            self._scheduled = True

    def send_now(self, data: bytes) -> None:
        """Send bytes, and what waits, without another turn of the loop."""
        self._waiting.append(data)
        self.flush()

    def flush(self) -> None:
        """Send now what waits to be sent.

        If that raises, bytes are missing in the middle of the stream: the connection is aborted,
        and its messages come again.
        """
        try:
            self._flush()
        except Exception:
            # The top of a callback, and it ends this connection only.
            _logger.exception("%s: output cannot be sent", self._session.address)
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
        self._tell_ledger()
        if was_full and not self._clogged and self.on_room is not None:
            self.on_room()

    def clog(self) -> None:
        """Take note that the client does not keep up."""
        self._clogged = True
        self._clogged_since_s = asyncio.get_running_loop().time()
        self._tell_ledger()

    def unclog(self) -> None:
        """Take note that it has caught up."""
        self._clogged = False
        self._tell_ledger()
        if self.on_room is not None:
            self.on_room()

    def close(self) -> None:
        """Send what is to be sent, and close."""
        self.closed = True
        try:
            self.flush()
        finally:
            if self._transport is not None:
                self._transport.close()

    def abort(self) -> None:
        """Close, whatever is still to be sent."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def _tell_ledger(self) -> None:
        self._memory.hold(self, self._waiting_bytes + self.unread_bytes)
