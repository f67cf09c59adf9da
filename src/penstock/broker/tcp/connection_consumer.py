"""The consumer side of a connection: RDY, deliveries, and commands for messages.

Owns the counters that NSQ keeps of a consumer, and its subscription to a channel. Does not own
bytes on the wire (`tcp_connection`) nor the messages' state (`penstock.broker.channel`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.broker import message_id
from penstock.broker.protocol.frames import error, message_frames

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from penstock.broker.channel.channel import Channel
    from penstock.broker.channel.delivery import Delivery
    from penstock.broker.tcp.output_buffer import OutputBuffer
    from penstock.broker.topics.topic import Topic


class ClientConnection(Protocol):
    """The connection of a consumer."""

    @property
    def output(self) -> OutputBuffer:
        """Queue of data to send."""
        ...

    def close(self) -> None:
        """Close the connection after sending pending output."""
        ...


class ConnectionConsumer:
    """A subscribed connection.

    Args:
        number: The connection's number.
        topic: The topic of its channel.
        channel: Its channel.
        wire: The connection.
        message_timeout_ms: Time-out of its messages.
        sample_rate: Percentage of the messages that it receives; 0: all.
    """

    def __init__(
        self,
        number: int,
        topic: Topic,
        channel: Channel,
        wire: ClientConnection,
        message_timeout_ms: int,
        sample_rate: int,
    ) -> None:
        self.number = number
        self.topic = topic
        self.channel = channel
        self.message_timeout_ms = message_timeout_ms
        self.sample_rate = sample_rate
        self.ready = 0
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self._wire = wire
        self._output = wire.output
        self._output.on_room = self._wake_channel

    @property
    def in_flight(self) -> int:
        """Return how many messages are in flight for the client."""
        return self.channel.state.in_flight.of(self.number)

    @property
    def writable(self) -> bool:
        """Whether the connection accepts more output."""
        return self._output.writable

    def deliver(self, batch: Delivery) -> None:
        """Send messages."""
        self.message_count += len(batch.ids)
        frames = message_frames(batch.messages, batch.ids, batch.attempts, batch.times_ns)
        self._output.send(frames)

    def evict(self) -> None:
        """Close the connection: the channel was deleted."""
        self._wire.close()

    def set_ready(self, count: int) -> None:
        """Set the maximum number of messages in flight."""
        self.ready = count
        self._wake_channel()

    def stop_delivery(self) -> None:
        """Receive no further messages; those in flight can still be answered."""
        self.ready = 0

    def finish(self, ids: npt.NDArray[np.int64]) -> None:
        """Finish messages, and send an error for each that was not in flight for the client."""
        failed = self.channel.finish(self, ids)
        self.finish_count += len(ids) - len(failed)
        if len(failed):
            texts = map(message_id.text, failed.tolist())
            self._output.send(b"".join(_refusal("FIN", text) for text in texts))

    def requeue(self, message: int, delay_ms: int) -> None:
        """Redeliver a message later."""
        if self.channel.requeue(self, message, delay_ms):
            self.requeue_count += 1
        else:
            self.refuse("REQ", message_id.text(message))

    def touch(self, message: int, max_timeout_ms: int) -> None:
        """Extend the time-out of a message."""
        if not self.channel.touch(self, message, max_timeout_ms):
            self.refuse("TOUCH", message_id.text(message))

    def leave(self) -> None:
        """Leave the channel: the connection has ended."""
        self.ready = 0
        self.channel.unsubscribe(self)

    def _wake_channel(self) -> None:
        """Make the channel check again whether the consumer can take more."""
        self.channel.wake(self)

    def refuse(self, command: str, shown: str) -> None:
        """Send an error for a message that is not the client's; the connection continues."""
        self._output.send(_refusal(command, shown))


def _refusal(command: str, shown: str) -> bytes:
    return error(f"E_{command}_FAILED", f"{command} {shown} failed ID not in flight")
