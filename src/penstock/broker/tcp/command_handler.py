"""Effects of the commands of NSQ's protocol, with its answers.

Owns the steps of commands, except those that publish (`publish_commands`) and AUTH
(`authorizer`). Does not own which command is allowed
(`penstock.broker.protocol.connection_state`), bytes (`connection`) nor messages' state. A command
that takes longer than an iteration of the loop returns an awaitable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from penstock.broker.tcp.consumer import ConnectionConsumer
from penstock.broker.tcp.publish_commands import PublishCommands
from penstock.broker.topics.placement import ANYWHERE
from penstock.core.errors import PenstockError
from penstock.core.state_machine import Transition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.broker.broker import Broker
    from penstock.broker.protocol.limits import Codec
    from penstock.broker.protocol.negotiation import NegotiatedSettings, NegotiationLimits
    from penstock.broker.tcp.authorizer import Authorizer
    from penstock.broker.tcp.connection import Outcome, TcpConnection

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
        for effect in session.happened(EVENTS[type(command)]):
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
        negotiated = negotiate(command.body, self._limits)
        session = connection.session
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
            changes = self._broker.changes
            channel = await changes.find_or_create_channel(topic, command.channel)
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
