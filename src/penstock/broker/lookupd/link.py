"""One connection to an nsqlookupd.

Owns bytes and timers. Does not own the commands (`registration`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from penstock.core.errors import PenstockError, Unavailable

if TYPE_CHECKING:
    from penstock.broker.lookupd.registration import Registration


class Link(asyncio.Protocol):
    """A connection.

    Args:
        registration: Provides the commands and processes the answers.

    Attributes:
        identified: The other side has accepted this broker's identity.
        ended: Completed with the reason when the connection ends.
    """

    def __init__(self, registration: Registration) -> None:
        self._registration = registration
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.identified = False
        self.ended: asyncio.Future[PenstockError] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to register."""
        # uvloop's transports have asyncio's methods but not its base class.
        self._transport = cast("asyncio.Transport", transport)
        self._registration.opened(self._loop.time())
        self.push()

    def data_received(self, data: bytes) -> None:
        """Process answers, and send further commands."""
        try:
            self._registration.heard(data, self._loop.time())
        except PenstockError as error:
            self._end(error)
        except Exception as error:  # noqa: BLE001 - part of the answers may be lost
            self._end(Unavailable(f"its answer cannot be processed: {error!r}"))
        else:
            self.identified = self.identified or self._registration.identified
            self.push()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the connection."""
        self._end(Unavailable(f"the connection was lost: {exc or 'closed by the other side'}"))

    def push(self) -> None:
        """Send pending commands; if that raises, the link ends, and a new one starts over."""
        if self._transport is None:
            return
        try:
            self._push(self._transport)
        except PenstockError as error:
            self._end(error)
        except Exception as error:  # noqa: BLE001 - the outermost handler of a callback
            self._end(Unavailable(f"the registration cannot be sent: {error!r}"))

    def _push(self, transport: asyncio.Transport) -> None:
        now_s = self._loop.time()
        self._registration.require_answers(now_s)
        output = self._registration.take_output(now_s)
        if output:
            transport.write(output)
        if self._timer is not None:
            self._timer.cancel()
        wait_s = max(0.01, self._registration.next_look_s(now_s))
        self._timer = self._loop.call_later(wait_s, self.push)

    def close(self) -> None:
        """Close the connection."""
        self._end(Unavailable("closed"))

    def _end(self, error: PenstockError) -> None:
        if self._timer is not None:
            self._timer.cancel()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
            self._registration.closed()
        if not self.ended.done():
            self.ended.set_result(error)
