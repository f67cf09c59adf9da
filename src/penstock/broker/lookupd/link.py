"""One connection to an nsqlookupd.

Owns bytes and timers. Does not own what is said (`registration`).
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
        registration: What is said.

    Attributes:
        identified: The other side knows this broker, or did.
        ended: Done when it is gone, with what ended it.
    """

    def __init__(self, registration: Registration) -> None:
        self._registration = registration
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.identified = False
        self.ended: asyncio.Future[PenstockError] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to tell."""
        # uvloop's transports have the methods and not the base class.
        self._transport = cast("asyncio.Transport", transport)
        self._registration.opened(self._loop.time())
        self.push()

    def data_received(self, data: bytes) -> None:
        """Take answers, and tell more."""
        try:
            self._registration.heard(data, self._loop.time())
        except PenstockError as error:
            self._end(error)
        except Exception as error:  # noqa: BLE001 - a part of the answers may be lost
            self._end(Unavailable(f"its answer cannot be taken: {error!r}"))
        else:
            self.identified = self.identified or self._registration.identified
            self.push()

    def connection_lost(self, exc: Exception | None) -> None:
        """Say that it is gone."""
        self._end(Unavailable(f"the connection was lost: {exc or 'closed by the other side'}"))

    def push(self) -> None:
        """Send what is to be sent now; if that raises, the link ends, and a new one begins anew."""
        if self._transport is None:
            return
        try:
            self._push(self._transport)
        except PenstockError as error:
            self._end(error)
        except Exception as error:  # noqa: BLE001 - the top of a callback
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
        """End it."""
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
