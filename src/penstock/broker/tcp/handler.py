"""Execution of commands: NSQ's rules about when each is allowed, and its answers.

Owns the steps of commands, except those that publish (`publishing`). Does not own bytes
(`connection`) nor messages' state. A command that takes longer than an iteration of the loop
returns an awaitable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.protocol import commands as c
from penstock.broker.protocol import frames
from penstock.broker.protocol.limits import Deflate, Snappy
from penstock.broker.protocol.negotiation import negotiate
from penstock.broker.security.tls import Requirement
from penstock.broker.tcp.consumer import ConnectionConsumer
from penstock.broker.tcp.publish_commands import PublishCommands
from penstock.broker.topics.placement import ANYWHERE
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

    from penstock.broker.broker import Broker
    from penstock.broker.protocol.limits import Codec
    from penstock.broker.protocol.negotiation import Negotiated, NegotiationLimits
    from penstock.broker.tcp.authorizer import Authorizer
    from penstock.broker.tcp.connection import TcpConnection

_NAMES: Final[dict[type, str]] = {
    c.Publish: "PUB",
    c.MultiPublish: "MPUB",
    c.DeferredPublish: "DPUB",
    c.Finish: "FIN",
    c.Requeue: "REQ",
    c.Touch: "TOUCH",
    c.Ready: "RDY",
    c.Subscribe: "SUB",
    c.Authenticate: "AUTH",
    c.StartClose: "CLS",
    c.Nop: "NOP",
}

_OF_CONSUMERS: Final = frozenset({"RDY", "FIN", "REQ", "TOUCH", "CLS"})
_OF_NO_CONSUMER: Final = frozenset({"SUB", "IDENTIFY", "AUTH"})


class CommandHandler:
    """Executes commands.

    Args:
        broker: The broker.
        limits: Limits on the settings that clients negotiate.
        gate: Checks their permissions.
        tls: TLS context of the server, if it has a certificate.
    """

    def __init__(
        self,
        broker: Broker,
        limits: NegotiationLimits,
        gate: Authorizer,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._broker = broker
        self._limits = limits
        self._gate = gate
        self._tls = tls
        self._needs_tls = broker.options.tls.requirement is not Requirement.NOBODY
        publishing = PublishCommands(broker, gate)
        self._table: dict[type, Callable[[TcpConnection, c.Command], Awaitable[None] | None]] = {
            c.Publish: publishing.publish,
            c.MultiPublish: publishing.multi_publish,
            c.DeferredPublish: publishing.deferred_publish,
            c.Finish: self._finish,
            c.Requeue: self._requeue,
            c.Touch: self._touch,
            c.Stray: self._stray,
            c.Ready: self._ready,
            c.Subscribe: self._subscribe,
            c.Identify: self._identify,
            c.Authenticate: self._authenticate,
            c.StartClose: self._start_close,
            c.Malformed: self._malformed,
        }

    def carry_out(self, connection: TcpConnection, command: c.Command) -> Awaitable[None] | None:
        """Execute a command; return an awaitable if it is not done yet.

        Raises:
            Refused: The command is not allowed or failed; the connection ends.
        """
        if self._needs_tls and not connection.session.tls:
            _require_plain(command)
        handle = self._table.get(type(command))
        return None if handle is None else handle(connection, command)

    # -- consuming

    def _subscribe(self, connection: TcpConnection, command: c.Command) -> Awaitable[None]:
        assert isinstance(command, c.Subscribe)
        if connection.consumer is not None:
            raise c.CommandRefused("E_INVALID", "cannot SUB in current state")
        if not connection.session.negotiated.heartbeat_ms:
            raise c.CommandRefused("E_INVALID", "cannot SUB with heartbeats disabled")
        return self._join(connection, command)

    async def _join(self, connection: TcpConnection, command: c.Subscribe) -> None:
        asking = self._gate.check(connection, "SUB", command.topic, command.channel)
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
        connection.output.send(frames.OK)

    def _ready(self, connection: TcpConnection, command: c.Command) -> None:
        assert isinstance(command, c.Ready)
        _consumer(connection, "RDY").set_ready(command.count)

    def _finish(self, connection: TcpConnection, command: c.Command) -> None:
        assert isinstance(command, c.Finish)
        _consumer(connection, "FIN").finish(command.ids)

    def _requeue(self, connection: TcpConnection, command: c.Command) -> None:
        assert isinstance(command, c.Requeue)
        _consumer(connection, "REQ").requeue(command.id, command.delay_ms)

    def _touch(self, connection: TcpConnection, command: c.Command) -> None:
        assert isinstance(command, c.Touch)
        _consumer(connection, "TOUCH").touch(command.id, self._limits.max_message_timeout_ms)

    def _stray(self, connection: TcpConnection, command: c.Command) -> None:
        assert isinstance(command, c.Stray)
        _consumer(connection, command.name).refuse(command.name, command.id)

    def _start_close(self, connection: TcpConnection, _command: c.Command) -> None:
        consumer = _consumer(connection, "CLS")
        if consumer.closing:
            raise c.CommandRefused("E_INVALID", "cannot CLS in current state")
        consumer.start_close()
        connection.output.send(frames.CLOSE_WAIT)

    # -- the connection itself

    def _identify(self, connection: TcpConnection, command: c.Command) -> Awaitable[None] | None:
        assert isinstance(command, c.Identify)
        session = connection.session
        # A second one is refused: by then the upgrades of the connection are done.
        if connection.consumer is not None or session.identified:
            raise c.CommandRefused("E_INVALID", "cannot IDENTIFY in current state")
        negotiated = negotiate(command.body, self._limits)
        codec = _codec(negotiated)  # created before the answer promises it
        session.negotiated = negotiated
        session.identified = True
        connection.restart_heartbeat()
        if negotiated.answer is None:
            connection.output.send(frames.OK)
            return None
        connection.output.send(frames.response(negotiated.answer))
        if negotiated.tls or codec is not None:
            return self._upgrade(connection, codec)
        return None

    async def _upgrade(self, connection: TcpConnection, codec: Codec | None) -> None:
        """Change to TLS, then to compression; each begins with its own OK."""
        session = connection.session
        if session.negotiated.tls:
            assert self._tls is not None
            await connection.start_tls(self._tls)
            connection.output.send(frames.OK)
        if codec is not None:
            connection.output.flush()
            session.codec = codec
            connection.output.send(frames.OK)

    def _authenticate(
        self, connection: TcpConnection, command: c.Command
    ) -> Awaitable[None] | None:
        assert isinstance(command, c.Authenticate)
        return self._gate.authenticate(connection, command.secret)

    def _malformed(self, connection: TcpConnection, command: c.Command) -> None:
        assert isinstance(command, c.Malformed)
        # NSQ checks the state before the parameters.
        misplaced = _OF_NO_CONSUMER if connection.consumer is not None else _OF_CONSUMERS
        is_second = command.name == "IDENTIFY" and connection.session.identified
        if is_second or command.name in misplaced:
            raise c.CommandRefused("E_INVALID", f"cannot {command.name} in current state")
        raise c.CommandRefused(command.code, command.text)


def _codec(negotiated: Negotiated) -> Codec | None:
    if negotiated.snappy:
        return Snappy()
    return Deflate(negotiated.deflate_level) if negotiated.deflate else None


def _require_plain(command: c.Command) -> None:
    """Raise if a command is not allowed before TLS."""
    name = command.name if isinstance(command, c.Stray) else _NAMES.get(type(command))
    if name is not None:
        raise c.CommandRefused("E_INVALID", f"cannot {name} in current state (TLS required)")


def _consumer(connection: TcpConnection, name: str) -> ConnectionConsumer:
    if connection.consumer is None:
        raise c.CommandRefused("E_INVALID", f"cannot {name} in current state")
    return connection.consumer
