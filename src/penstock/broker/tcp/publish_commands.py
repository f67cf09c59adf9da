"""The commands that publish: PUB, MPUB and DPUB.

Owns the conditions that a publish waits for, and its answer. Does not own how messages are appended
(`penstock.broker.publisher`). A publish without conditions is stored and answered at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.broker.protocol import commands as c
from penstock.broker.protocol import frames
from penstock.broker.topics.placement import ANYWHERE
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    import pyarrow as pa

    from penstock.broker.broker import Broker
    from penstock.broker.publisher import PublishReceipt
    from penstock.broker.tcp.authorizer import Authorizer
    from penstock.broker.tcp.connection import TcpConnection
    from penstock.broker.topics.topic import Topic


class _Publish(msgspec.Struct, frozen=True):
    """A publish: the command's name, topic, messages, size, and the answer after success.

    A msgspec struct, because every command creates one: a named tuple takes three times as long.
    """

    name: str
    topic: str
    messages: Sequence[bytes] | pa.BinaryArray
    size_bytes: int
    answer: bytes = frames.OK
    due_ms: int = 0

    def refused(self, error: PenstockError) -> c.CommandRefused:
        """Convert an error to the answer for the client."""
        return c.CommandRefused(f"E_{self.name}_FAILED", f"{self.name} failed {error}")


class PublishCommands:
    """Executes the commands; each returns an awaitable if it is not done yet.

    Args:
        broker: The broker.
        authorizer: Checks the permissions of clients.
    """

    def __init__(self, broker: Broker, authorizer: Authorizer) -> None:
        self._broker = broker
        self._authorizer = authorizer

    def publish(self, connection: TcpConnection, command: c.Command) -> Awaitable[None] | None:
        """Execute one or more consecutive PUBs. All commands raise `CommandRefused`."""
        assert isinstance(command, c.Publish)
        messages = command.messages
        size = sum(map(len, messages))
        answer = frames.OK * len(messages)
        return self._put(connection, _Publish("PUB", command.topic, messages, size, answer))

    def multi_publish(
        self, connection: TcpConnection, command: c.Command
    ) -> Awaitable[None] | None:
        """Execute MPUB."""
        assert isinstance(command, c.MultiPublish)
        publish = _Publish("MPUB", command.topic, command.messages, command.size_bytes)
        return self._put(connection, publish)

    def deferred_publish(
        self, connection: TcpConnection, command: c.Command
    ) -> Awaitable[None] | None:
        """Execute DPUB."""
        assert isinstance(command, c.DeferredPublish)
        due_ms = self._broker.clock.now_ms() + command.delay_ms if command.delay_ms else 0
        message = command.message
        publish = _Publish("DPUB", command.topic, [message], len(message), due_ms=due_ms)
        return self._put(connection, publish)

    def _put(self, connection: TcpConnection, publish: _Publish) -> Awaitable[None] | None:
        asking = self._authorizer.check(connection, publish.name, publish.topic)
        if asking is not None:
            return self._put_when(asking, connection, publish)
        topic = self._broker.topics.find(publish.topic)
        if topic is None:
            return self._put_when(self._make_topic(publish), connection, publish)
        publisher = self._broker.publisher
        room = publisher.when_room(topic, publish.size_bytes)
        if room is not None:
            return self._put_when(room, connection, publish)
        messages = publish.messages
        try:
            receipt = publisher.append_batch(
                topic, messages, publish.size_bytes, ANYWHERE, due_ms=publish.due_ms
            )
        except PenstockError as error:
            raise publish.refused(error) from error
        connection.session.count_published(publish.topic, len(messages))
        if publisher.must_wait(topic, asked=connection.session.negotiated.durable):
            return self._answer_when_durable(connection, publish, topic, receipt)
        connection.output.send(publish.answer)
        return None

    async def _put_when(
        self, ready: Awaitable[object], connection: TcpConnection, publish: _Publish
    ) -> None:
        await ready
        waiting = self._put(connection, publish)
        if waiting is not None:
            await waiting

    async def _make_topic(self, publish: _Publish) -> None:
        try:
            await self._broker.publisher.topic(publish.topic, ANYWHERE)
        except PenstockError as error:
            raise publish.refused(error) from error

    async def _answer_when_durable(
        self, connection: TcpConnection, publish: _Publish, topic: Topic, receipt: PublishReceipt
    ) -> None:
        try:
            await self._broker.publisher.make_durable(topic, receipt)
        except PenstockError as error:
            raise publish.refused(error) from error
        connection.output.send(publish.answer)
