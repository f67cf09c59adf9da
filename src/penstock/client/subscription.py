"""One connection's part of a consumer: its messages, their answers, its RDY.

Owns what is in flight on the connection and sends the answers of a moment together. Does not own
what is done with messages, which is behind `Receiver`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from penstock.client.errors import error_of
from penstock.client.message import Message
from penstock.client.v2 import wire
from penstock.client.v2.connection import Connection, open_connection
from penstock.core.steps import Steps

if TYPE_CHECKING:
    from penstock.client.options import ConnectionOptions, Environment
    from penstock.client.v2.wire import Frame
    from penstock.core.errors import PenstockError

_logger = logging.getLogger(__name__)

# Errors after which the connection goes on: the message is not this client's any more.
_TOO_LATE = (b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED")


class Receiver(Protocol):
    """Who takes what comes on a subscription."""

    def arrived(self, messages: list[Message]) -> None:
        """Take messages."""
        ...

    def answered(self) -> None:
        """Take note that answers were sent."""
        ...

    def lost(self, subscription: Subscription) -> None:
        """Take note that a connection is gone, and what was in flight on it."""
        ...


class Subscription:
    """A connection that is subscribed to a channel.

    Attributes:
        address: The server's.
        in_flight: Messages that came and were not answered.
        received_count: Messages that came.
        too_late_count: Answers that the server did not want any more.
        proved: It was of use, or lasted; set when it is over.
        ended: Why it ended, when it did.
        quiet: No more messages come, after `start_close`.
    """

    def __init__(self, address: str, receiver: Receiver) -> None:
        self.address = address
        self.in_flight = 0
        self.received_count = 0
        self.too_late_count = 0
        self.proved = False
        self.ended: asyncio.Future[PenstockError] = asyncio.get_running_loop().create_future()
        self.quiet = False
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._subscribed: asyncio.Future[None] = self._loop.create_future()
        self._finished: list[bytes] = []
        self._ready = 0
        self._refused: PenstockError | None = None
        self._closing = False

    async def open(
        self, topic: str, channel: str, options: ConnectionOptions, environment: Environment
    ) -> int:
        """Connect and subscribe; return the largest RDY that the server allows.

        Raises:
            InvalidRequest: The server refuses for good.
            Unavailable: It cannot be reached, or refuses for now.
        """
        connection = await open_connection(self.address, options, self, environment)
        self._connection = connection
        try:
            connection.send(wire.subscribe(topic, channel))
            await self._subscribed
        except BaseException:
            connection.close()
            raise
        return connection.features.max_ready_count

    def set_ready(self, count: int) -> None:
        """Say how many messages may be in flight."""
        if count != self._ready and self._connection is not None and not self._closing:
            self._connection.send(wire.ready(count))
            self._ready = count

    def start_close(self) -> None:
        """Ask for no more messages; `quiet` says when the server sends none any more."""
        if self._connection is not None and not self._closing:
            self._connection.send(wire.START_CLOSE)
            self._closing = True

    def close(self) -> None:
        """Send what is to be sent, and end the connection."""
        if self._connection is not None:
            try:
                self._flush()
            finally:
                self._connection.close()

    @property
    def is_open(self) -> bool:
        """Return whether answers still go anywhere."""
        return self._connection is not None

    # -- answers of messages

    def finish(self, message_id: bytes) -> bool:
        """Send that a message is done with."""
        if self._connection is None:
            return False
        if not self._finished:
            self._loop.call_soon(self._flush)
        self._finished.append(message_id)
        self.in_flight -= 1
        return True

    def requeue(self, message_id: bytes, delay_ms: int) -> bool:
        """Send that a message shall come again."""
        if self._connection is None:
            return False
        self._connection.send(wire.requeue(message_id, delay_ms))
        self.in_flight -= 1
        self._receiver.answered()
        return True

    def touch(self, message_id: bytes) -> bool:
        """Send that a message needs more time."""
        if self._connection is None:
            return False
        self._connection.send(wire.touch(message_id))
        return True

    def _flush(self) -> None:
        finished, self._finished = self._finished, []
        if finished and self._connection is not None:
            self._connection.send(wire.finish(finished))
            self._receiver.answered()

    # -- what the connection calls

    def received(self, frames: list[Frame]) -> None:
        """Take what came."""
        for frame in frames:
            if isinstance(frame, list):
                self.in_flight += len(frame)
                self.received_count += len(frame)
                self._receiver.arrived([Message(*raw, self) for raw in frame])
            elif isinstance(frame, wire.ErrorFrame):
                self._take_error(frame.data)
            elif frame.data == wire.CLOSE_WAIT:
                self.quiet = True
                self._receiver.answered()
            elif frame.data == wire.OK and not self._subscribed.done():
                self._subscribed.set_result(None)

    def disconnected(self, reason: PenstockError) -> None:
        """Forget what was in flight: it will come again."""
        if self._connection is not None:
            self.proved = self.received_count > 0 or self._connection.heartbeat_count > 0
        self._connection = None
        self.in_flight = 0
        reason = self._refused or reason
        steps = Steps()
        if not self._subscribed.done():
            steps.take(self._subscribed.set_exception, reason)
        if not self.ended.done():
            steps.take(self.ended.set_result, reason)
        steps.take(self._receiver.lost, self)
        steps.finish()

    def _take_error(self, text: bytes) -> None:
        if text.startswith(_TOO_LATE):
            self.too_late_count += 1
            _logger.info("%s: an answer came too late: %s", self.address, text.decode())
        else:
            # The server ends the connection over it.
            self._refused = error_of(text, self.address)
