"""Effects of the commands of NSQ's protocol, with its answers.

Owns the steps of commands, except AUTH (`authorizer`): for a publish the conditions that it waits
for, and its answer. Does not own which command is allowed
(`penstock.broker.protocol.connection_state`), how messages are appended
(`penstock.broker.publisher`), bytes (`tcp_connection`) nor messages' state. A command that takes
longer than an iteration of the loop returns an awaitable; a publish without conditions is stored
and answered at once.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from penstock.broker.protocol import commands as c
from penstock.broker.protocol import frames
from penstock.broker.protocol.connection_state import (
    COMMANDS_BY_NAME,
    CONNECTION_MACHINE,
    EVENTS,
    ClientEffect,
    ClientEvent,
    ClientState,
)
from penstock.broker.protocol.limits import Deflate, Snappy
from penstock.broker.protocol.negotiation import negotiate
from penstock.broker.tcp.connection_consumer import ConnectionConsumer
from penstock.broker.topics.placement import ANYWHERE
from penstock.core.errors import PenstockError
from penstock.core.state_machine import Transition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import pyarrow as pa

    from penstock.broker.broker import Broker
    from penstock.broker.protocol.limits import Codec
    from penstock.broker.protocol.negotiation import NegotiatedSettings, NegotiationLimits
    from penstock.broker.publisher import PublishReceipt
    from penstock.broker.tcp.authorizer import Authorizer
    from penstock.broker.tcp.tcp_connection import Outcome, TcpConnection
    from penstock.broker.topics.topic import Topic
    from penstock.core.access.quota_use import PublishQuota

    Step = Callable[[TcpConnection, c.Command], Outcome]


class CommandHandler:
    """Executes commands.

    Args:
        broker: The broker.
        limits: Limits on the settings that clients negotiate.
        authorizer: Checks their permissions.
    """

    def __init__(self, broker: Broker, limits: NegotiationLimits, authorizer: Authorizer) -> None:
        self._broker = broker
        self._limits = limits
        self._limits_with_auth = replace(limits, auth_required=True)
        self._authorizer = authorizer
        publishing = PublishCommands(broker, authorizer)
        self._effects: dict[ClientEffect, Step] = {
            ClientEffect.NEGOTIATE: self._negotiate,
            ClientEffect.AUTHENTICATE: authorizer.authenticate,
            ClientEffect.SUBSCRIBE: self._subscribe,
            ClientEffect.SET_READY: _set_ready,
            ClientEffect.FINISH: _finish,
            ClientEffect.REQUEUE: _requeue,
            ClientEffect.TOUCH: self._touch,
            ClientEffect.STOP_DELIVERY: _stop_delivery,
            ClientEffect.SEND_CLOSE_WAIT: _send_close_wait,
            ClientEffect.PUBLISH: publishing.publish,
            ClientEffect.MULTI_PUBLISH: publishing.multi_publish,
            ClientEffect.DEFERRED_PUBLISH: publishing.deferred_publish,
        }
        # PUB and FIN are frequent: the table is read in advance where a command has one effect.
        self._direct = {state: self._direct_steps(state) for state in ClientState}

    def carry_out(self, connection: TcpConnection, command: c.Command) -> Outcome:
        """Execute a command; return an event that follows, or an awaitable if it is not done yet.

        Raises:
            CommandRefused: The command is not allowed or failed; the connection ends.
        """
        session = connection.session
        step = self._direct[session.state].get(type(command))
        if step is not None:
            return step(connection, command)
        if isinstance(command, c.Malformed):
            # NSQ checks the state before the parameters.
            if command.name in COMMANDS_BY_NAME:
                session.check(COMMANDS_BY_NAME[command.name])
            raise c.CommandRefused(command.code, command.text)
        if isinstance(command, c.MalformedIdCommand):
            session.check(COMMANDS_BY_NAME[command.name])
            _consumer(connection).refuse(command.name, command.id)
            return None
        outcome: Outcome = None
        for effect in session.apply(EVENTS[type(command)]):
            assert outcome is None, f"{effect}: only the last effect may report an event"
            outcome = self._effects[effect](connection, command)
        return outcome

    def _direct_steps(self, state: ClientState) -> dict[type, Step]:
        """Return the steps of commands that have at most one in a state, and do not change it."""
        found: dict[type, Step] = {}
        for kind, event in EVENTS.items():
            outcome = CONNECTION_MACHINE.outcome(state, event)
            if isinstance(outcome, Transition) and outcome.state is state:
                steps = [self._effects[effect] for effect in outcome.effects]
                if len(steps) <= 1:
                    found[kind] = steps[0] if steps else _do_nothing
        return found

    def _negotiate(self, connection: TcpConnection, command: c.Command) -> ClientEvent:
        assert isinstance(command, c.Identify)
        session = connection.session
        limits = self._limits
        if self._authorizer.needs_auth(session):
            limits = self._limits_with_auth
        negotiated = negotiate(command.body, limits)
        session.agreed_codec = _codec(negotiated)  # created before the answer promises it
        session.negotiated = negotiated
        if negotiated.tls:
            return ClientEvent.TLS_AGREED
        if session.agreed_codec is not None:
            return ClientEvent.COMPRESSION_AGREED
        return ClientEvent.SETTINGS_AGREED

    def _subscribe(self, connection: TcpConnection, command: c.Command) -> Awaitable[ClientEvent]:
        assert isinstance(command, c.Subscribe)
        if not connection.session.negotiated.heartbeat_ms:
            raise c.CommandRefused("E_INVALID", "cannot SUB with heartbeats disabled")
        return self._join(connection, command)

    async def _join(self, connection: TcpConnection, command: c.Subscribe) -> ClientEvent:
        asking = self._authorizer.check(connection, "SUB", command.topic, command.channel)
        if asking is not None:
            await asking
        try:
            topic = await self._broker.publisher.topic(command.topic, ANYWHERE)
            changes = self._broker.channel_changes
            channel = await changes.find_or_create(topic, command.channel)
        except PenstockError as error:
            raise c.CommandRefused("E_SUB_FAILED", f"SUB failed {error}") from error
        most = self._broker.options.max_channel_consumers
        if most and len(channel.subscribers) >= most:
            place = f"{command.topic}:{command.channel}"
            raise c.CommandRefused(
                "E_SUB_FAILED", f"SUB failed consumers for {place} exceeds limit of {most}"
            )
        negotiated = connection.session.negotiated
        connection.consumer = ConnectionConsumer(
            connection.number,
            topic,
            channel,
            connection,
            negotiated.message_timeout_ms,
            negotiated.sample_rate,
        )
        try:
            channel.subscribe(connection.consumer)
        except PenstockError as error:
            raise c.CommandRefused("E_SUB_FAILED", f"SUB failed {error}") from error
        return ClientEvent.SUBSCRIBED

    def _touch(self, connection: TcpConnection, command: c.Command) -> None:
        assert isinstance(command, c.Touch)
        _consumer(connection).touch(command.id, self._limits.max_message_timeout_ms)


def _codec(negotiated: NegotiatedSettings) -> Codec | None:
    if negotiated.snappy:
        return Snappy()
    return Deflate(negotiated.deflate_level) if negotiated.deflate else None


def _do_nothing(_connection: TcpConnection, _command: c.Command) -> None:
    """Carry out no effect."""


def _set_ready(connection: TcpConnection, command: c.Command) -> None:
    assert isinstance(command, c.Ready)
    _consumer(connection).set_ready(command.count)


def _finish(connection: TcpConnection, command: c.Command) -> None:
    assert isinstance(command, c.Finish)
    _consumer(connection).finish(command.ids)


def _requeue(connection: TcpConnection, command: c.Command) -> None:
    assert isinstance(command, c.Requeue)
    _consumer(connection).requeue(command.id, command.delay_ms)


def _stop_delivery(connection: TcpConnection, _command: c.Command) -> None:
    _consumer(connection).stop_delivery()


def _send_close_wait(connection: TcpConnection, _command: c.Command) -> None:
    connection.output.send(frames.CLOSE_WAIT)


def _consumer(connection: TcpConnection) -> ConnectionConsumer:
    assert connection.consumer is not None, "its state is SUBSCRIBED or CLOSING"
    return connection.consumer


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
    """Executes PUB, MPUB and DPUB; each returns an awaitable if it is not done yet.

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

    def _put(
        self, connection: TcpConnection, publish: _Publish, *, is_counted: bool = False
    ) -> Awaitable[None] | None:
        """Publish; `is_counted`: the quota of the publisher has allowed it."""
        asking = self._authorizer.check(connection, publish.name, publish.topic)
        if asking is not None:
            return self._put_when(asking, connection, publish, is_counted=is_counted)
        quota = connection.rights.publish_quota
        if quota is not None and not is_counted and not _is_taken_now(quota, publish):
            return self._put_later(quota, connection, publish)
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
        if publisher.must_wait(topic, requested=connection.session.negotiated.durable):
            return self._answer_when_durable(connection, publish, topic, receipt)
        connection.output.send(publish.answer)
        return None

    async def _put_when(
        self,
        ready: Awaitable[object],
        connection: TcpConnection,
        publish: _Publish,
        *,
        is_counted: bool = True,
    ) -> None:
        await ready
        # The right is checked again: it may have been removed meanwhile.
        waiting = self._put(connection, publish, is_counted=is_counted)
        if waiting is not None:
            await waiting

    def _put_later(
        self, quota: PublishQuota, connection: TcpConnection, publish: _Publish
    ) -> Awaitable[None]:
        """Publish when the quota of the publisher allows it.

        Its answer is late, and commands behind it are not read, so that the client slows down.

        Raises:
            CommandRefused: It would have to wait for too long.
        """
        if publish.name == "PUB" and len(publish.messages) > 1:
            return self._put_each(connection, publish)
        count, origin = len(publish.messages), connection.session.address
        try:
            delay_s = quota.delay_s(count, publish.size_bytes, origin)
        except PenstockError as error:
            raise publish.refused(error) from error
        return self._put_when(asyncio.sleep(delay_s), connection, publish)

    async def _put_each(self, connection: TcpConnection, publish: _Publish) -> None:
        """Publish consecutive PUBs one after the other: each waits only for its own turn."""
        for message in publish.messages:
            assert isinstance(message, bytes), "PUB has its messages as bytes"
            waiting = self._put(connection, _Publish("PUB", publish.topic, [message], len(message)))
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


def _is_taken_now(quota: PublishQuota, publish: _Publish) -> bool:
    return quota.is_taken_now(len(publish.messages), publish.size_bytes)
