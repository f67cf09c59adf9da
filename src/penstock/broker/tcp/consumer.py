"""A connection's side as a consumer: RDY, deliveries, and what its client says of messages.

Owns the numbers that NSQ keeps of a consumer, and its place in a channel. Does not own bytes on the
wire (`connection`) nor the messages' state (`penstock.broker.channel`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.broker import messageid
from penstock.broker.protocol.frames import error, message_frames

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from penstock.broker.channel.channel import Channel
    from penstock.broker.channel.consumers import Delivery
    from penstock.broker.tcp.output import Output
    from penstock.broker.topics.topic import Topic


class Wire(Protocol):
    """The connection under a consumer."""

    @property
    def output(self) -> Output:
        """Return what takes the bytes that are sent."""
        ...

    def close(self) -> None:
        """End the connection, when what was sent has left."""
        ...


class Consumer:
    """A subscribed connection.

    Args:
        number: The connection's number.
        topic: The topic of its channel.
        channel: Its channel.
        wire: The connection.
        message_timeout_ms: How long its client may take over a message.
        sample_rate: Percent of the messages that it wants; 0: all.
    """

    def __init__(
        self,
        number: int,
        topic: Topic,
        channel: Channel,
        wire: Wire,
        message_timeout_ms: int,
        sample_rate: int,
    ) -> None:
        self.number = number
        self.topic = topic
        self.channel = channel
        self.message_timeout_ms = message_timeout_ms
        self.sample_rate = sample_rate
        self.ready = 0
        self.closing = False
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self._wire = wire
        self._output = wire.output
        self._output.on_room = self._look

    @property
    def in_flight(self) -> int:
        """Return how many messages the client has."""
        return self.channel.state.in_flight.of(self.number)

    @property
    def writable(self) -> bool:
        """Say whether the connection takes more."""
        return self._output.writable

    def deliver(self, batch: Delivery) -> None:
        """Send messages."""
        self.message_count += len(batch.ids)
        frames = message_frames(batch.messages, batch.ids, batch.attempts, batch.times_ns)
        self._output.send(frames)

    def evict(self) -> None:
        """Close the connection: the channel is gone."""
        self._wire.close()

    def set_ready(self, count: int) -> None:
        """Take so many messages at once from now on; nothing while closing."""
        if not self.closing:
            self.ready = count
            self._look()

    def start_close(self) -> None:
        """Take no more messages; those in flight may still be answered."""
        self.closing = True
        self.ready = 0

    def finish(self, ids: npt.NDArray[np.int64]) -> None:
        """Be done with messages, and say which were not the client's."""
        failed = self.channel.finish(self, ids)
        self.finish_count += len(ids) - len(failed)
        if len(failed):
            texts = map(messageid.text, failed.tolist())
            self._output.send(b"".join(_refusal("FIN", text) for text in texts))

    def requeue(self, message: int, delay_ms: int) -> None:
        """Let a message come again."""
        if self.channel.requeue(self, message, delay_ms):
            self.requeue_count += 1
        else:
            self.refuse("REQ", messageid.text(message))

    def touch(self, message: int, max_timeout_ms: int) -> None:
        """Take more time over a message."""
        if not self.channel.touch(self, message, max_timeout_ms):
            self.refuse("TOUCH", messageid.text(message))

    def leave(self) -> None:
        """Leave the channel: the connection is gone."""
        self.ready = 0
        self.channel.unsubscribe(self)

    def _look(self) -> None:
        """Let the channel look again: there is room for more."""
        self.channel.wake(self)

    def refuse(self, command: str, shown: str) -> None:
        """Say that a message is not the client's; the connection goes on."""
        self._output.send(_refusal(command, shown))


def _refusal(command: str, shown: str) -> bytes:
    return error(f"E_{command}_FAILED", f"{command} {shown} failed ID not in flight")
