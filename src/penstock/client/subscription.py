"""One connection of a consumer: its messages, their answers, its RDY.

Owns the messages in flight on the connection, and combines answers of one loop iteration. Does not
own the processing of messages, which is behind `MessageReceiver`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from penstock.client.errors import error_of
from penstock.client.message import Message
from penstock.client.v2 import v2_protocol
from penstock.client.v2.nsq_connection import NsqConnection, open_connection
from penstock.core.cleanup import CleanupSteps
from penstock.core.errors import Unavailable

if TYPE_CHECKING:
    from penstock.client.options import ConnectionOptions, Environment
    from penstock.client.v2.v2_protocol import Frame
    from penstock.core.errors import PenstockError

_logger = logging.getLogger(__name__)

# Errors after which the connection continues: the message timed out for this client.
_TOO_LATE = (b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED")


class MessageReceiver(Protocol):
    """Receiver of the events of a subscription."""

    def arrived(self, messages: list[Message]) -> None:
        """Process messages."""
        ...

    def answered(self) -> None:
        """Record that answers were sent."""
        ...

    def lost(self, subscription: Subscription) -> None:
        """Handle the end of a connection, with its messages in flight."""
        ...


class Subscription:
    """A connection that is subscribed to a channel.

    Attributes:
        address: Address of the server.
        in_flight: Messages that were received and not answered.
        received_count: Messages that were received.
        too_late_count: Answers that came after a message's time-out.
        proved: It received messages or lasted for a while; set when it ends.
        ended: Completed with the reason when it ends.
        quiet: No further messages arrive, after `start_close` or the end.
    """

    def __init__(self, address: str, receiver: MessageReceiver) -> None:
        self.address = address
        self.in_flight = 0
        self.received_count = 0
        self.too_late_count = 0
        self.proved = False
        self.ended: asyncio.Future[PenstockError] = asyncio.get_running_loop().create_future()
        self.quiet = False
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._connection: NsqConnection | None = None
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
            InvalidRequest: The server refuses permanently.
            Unavailable: The server cannot be reached, or refuses for now.
        """
        connection = await open_connection(self.address, options, self, environment)
        self._connection = connection
        try:
            connection.send(v2_protocol.subscribe(topic, channel))
            await self._subscribed
        except BaseException:
            connection.close()
            raise
        return connection.features.max_ready_count

    def set_ready(self, count: int) -> None:
        """Set the maximum number of messages in flight."""
        if count != self._ready and self._connection is not None and not self._closing:
            self._connection.send(v2_protocol.ready(count))
            self._ready = count

    def start_close(self) -> None:
        """Request no further messages; `quiet` is set once the server sends none."""
        if self._connection is not None and not self._closing:
            self._connection.send(v2_protocol.START_CLOSE)
            self._closing = True

    def close(self) -> bool:
        """Send pending output, and close the connection; return True. Idempotent."""
        if self._connection is not None:
            try:
                self._flush()
            finally:
                self._connection.close()
        return True

    @property
    def is_open(self) -> bool:
        """Whether answers can still be sent."""
        return self._connection is not None

    # -- answers of messages

    def finish(self, message_id: bytes) -> bool:
        """Finish a message."""
        if self._connection is None:
            return False
        if not self._finished:
            self._loop.call_soon(self._flush)
        self._finished.append(message_id)
        self.in_flight -= 1
        return True

    def requeue(self, message_id: bytes, delay_ms: int) -> bool:
        """Requeue a message."""
        if self._connection is None:
            return False
        self._connection.send(v2_protocol.requeue(message_id, delay_ms))
        self.in_flight -= 1
        self._receiver.answered()
        return True

    def touch(self, message_id: bytes) -> bool:
        """Extend the time-out of a message."""
        if self._connection is None:
            return False
        self._connection.send(v2_protocol.touch(message_id))
        return True

    def _flush(self) -> None:
        finished, self._finished = self._finished, []
        if not finished or self._connection is None:
            return
        try:
            self._connection.send(v2_protocol.finish(finished))
            self._receiver.answered()
        except Exception as error:  # noqa: BLE001 - answers are missing, so the connection must end
            text = f"{self.address}: cannot send answers: {error!r}; try again"
            self._connection.abort(Unavailable(text))

    # -- callbacks of the connection

    def received(self, frames: list[Frame]) -> None:
        """Process received frames."""
        for frame in frames:
            if isinstance(frame, list):
                self.in_flight += len(frame)
                self.received_count += len(frame)
                self._receiver.arrived([Message(*raw, self) for raw in frame])
            elif isinstance(frame, v2_protocol.ErrorFrame):
                self._take_error(frame.data)
            elif frame.data == v2_protocol.CLOSE_WAIT:
                self.quiet = True
                self._receiver.answered()
            elif frame.data == v2_protocol.OK and not self._subscribed.done():
                self._subscribed.set_result(None)

    def disconnected(self, reason: PenstockError) -> None:
        """Drop the messages in flight: they will be redelivered."""
        if self._connection is not None:
            self.proved = self.received_count > 0 or self._connection.heartbeat_count > 0
        self._connection = None
        self.quiet = True  # `lost` may raise, and a consumer that stops would wait for this
        self.in_flight = 0
        reason = self._refused or reason
        steps = CleanupSteps()
        if not self._subscribed.done():
            steps.take(self._subscribed.set_exception, reason)
        if not self.ended.done():
            steps.take(self.ended.set_result, reason)
        steps.take(self._receiver.lost, self)
        steps.finish()

    def _take_error(self, text: bytes) -> None:
        if text.startswith(_TOO_LATE):
            self.too_late_count += 1
            _logger.info("%s: an answer came after the time-out: %s", self.address, text.decode())
        else:
            # The server closes the connection after this error.
            self._refused = error_of(text, self.address)
