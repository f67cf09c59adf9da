"""TCP connection that speaks the NSQ V2 protocol.

Owns the order of execution: commands run one after the other, and input is read only while the
input buffer has room. A command that takes longer than one event-loop iteration (a new topic, an
fsync, authentication) delays only the commands behind it. Does not own the received bytes
(`input_buffer`), the bytes to send (`output_buffer`), the commands (`command_handler`), a
subscription (`connection_consumer`) or the memory of large bodies (`publish_admission`).

The state of the connection is in its session. Commands and their consequences are events of
`penstock.broker.protocol.connection_state`; the effects of those that are neither commands nor ends
are carried out here.

Invariants: after a fatal error no command runs, and the connection closes when the error has
been sent. Input is not read faster than it is processed. In each event-loop iteration a client
gets at most one slice of commands (`penstock.broker.protocol.command_parser`). Used on the broker's
event loop only.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, TypeAlias, cast

from penstock.broker.protocol import commands as c
from penstock.broker.protocol import frames
from penstock.broker.protocol.connection_state import ClientEffect, ClientEvent, ClientState
from penstock.broker.publish_admission import LARGE_BODY_BYTES, BodyMemory
from penstock.broker.security.rights import ConnectionRights
from penstock.broker.security.tls import Requirement
from penstock.broker.tcp.client_session import ClientSession
from penstock.broker.tcp.connection_consumer import ConnectionConsumer
from penstock.broker.tcp.input_buffer import InputBuffer
from penstock.broker.tcp.output_buffer import OutputBuffer
from penstock.core.cleanup import CleanupSteps
from penstock.core.errors import PenstockError
from penstock.core.loop_tasks import start_job
from penstock.core.tls_trust import is_loopback

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.broker.broker import Broker
    from penstock.broker.protocol.limits import ProtocolLimits
    from penstock.broker.security.tls import ServerTls
    from penstock.broker.tcp.heartbeats import Heartbeats


_logger = logging.getLogger(__name__)

# Members of an `Enum` are looked up slowly.
_CLOSED: Final = ClientState.CLOSED
_HEARTBEAT_DUE: Final = ClientEvent.HEARTBEAT_DUE
_UPGRADING: Final = ClientState.UPGRADING
_UNREAD_BYTES_MAX: Final = 1 << 22  # of answers
_HANDSHAKE_S: Final = 5.0
_FAREWELL_S: Final = 2.0  # for a client under TLS to read the rest and to close its side


# An event that follows from a command or from an effect, or an awaitable if it is not done yet.
Outcome: TypeAlias = "Awaitable[ClientEvent | None] | ClientEvent | None"
_EffectStep: TypeAlias = "Callable[[TcpConnection], Awaitable[ClientEvent] | None]"


class CommandPort(Protocol):
    """Executes commands."""

    def carry_out(self, connection: TcpConnection, command: c.Command) -> Outcome:
        """Execute a command; return an event that follows, or an awaitable if it is not done yet.

        Raises:
            CommandRefused: The command is invalid or failed; the connection ends.
        """
        ...


class ServerContext(Protocol):
    """The server that accepted a connection.

    Attributes:
        broker: The broker.
        limits: Limits on the input of clients.
        heartbeats: Schedule of the heartbeats of connections.
        tls: TLS of the server, if it has a certificate.
    """

    broker: Broker
    limits: ProtocolLimits
    heartbeats: Heartbeats
    tls: ServerTls | None

    @property
    def handler(self) -> CommandPort:
        """Return the handler that executes commands."""
        ...

    def connected(self, connection: TcpConnection) -> None:
        """Register a connection."""
        ...

    def knows(self, connection: TcpConnection) -> bool:
        """Return whether the client of a connection has a principal or permissions."""
        ...

    def disconnected(self, connection: TcpConnection) -> None:
        """Remove a connection."""
        ...


class TcpConnection(asyncio.Protocol):
    """A client's connection.

    When the client closes its side, the connection closes without pending answers, as in NSQ.

    Args:
        server: The server that accepted it.
        number: Its number.

    Attributes:
        session: State of the connection, address, negotiated settings, TLS, principal.
        rights: The rights that the client was found to have.
        output: Queue of data to send.
        consumer: Its consumer of a channel, after SUB.
    """

    def __init__(self, server: ServerContext, number: int) -> None:
        broker = server.broker
        self.number = number
        # `connection_made` relaxes it for loopback.
        needs_tls = broker.options.tls.requirement is not Requirement.NOBODY
        state = ClientState.TLS_REQUIRED if needs_tls else ClientState.NEW
        self.session = ClientSession(broker.clock.now_ms(), state)
        self.rights = ConnectionRights(broker.access, broker.clock, messages_of=self._messages_of)
        self.output = OutputBuffer(self.session, broker.memory)
        self.consumer: ConnectionConsumer | None = None
        self.heartbeat_slot = 0
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._intake = InputBuffer(server.limits, self.session, broker.memory)
        self._body_memory = BodyMemory(broker.budget, broker.options.body_timeout_ms)
        self._busy: asyncio.Task[None] | None = None
        self._going_on = False  # `_go_on` is scheduled; other connections get their turn first
        self._heard_s = 0.0

    def _messages_of(self, use: tuple[object, str]) -> int:
        """Return how many messages the client published to a topic, or received."""
        topic, channel = use
        if channel:
            return 0 if self.consumer is None else self.consumer.message_count
        return self.session.published.get(str(topic), 0)

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read and write."""
        # uvloop's transports have the methods and not the base class.
        self._transport = cast("asyncio.Transport", transport)
        try:
            self.output.begin(self._transport)
            self.session.record_peer(transport)
            self.rights.origin = self.session.address
            if self._server.broker.options.tls.requirement is Requirement.REMOTE:
                peer = transport.get_extra_info("peername")
                # A client of the Unix socket has no address.
                if not isinstance(peer, tuple) or is_loopback(peer[0]):
                    self.session.state = ClientState.NEW
            self._heard_s = asyncio.get_running_loop().time()
            self._server.connected(self)
            self._restart_heartbeat()
        except BaseException:
            self._transport.abort()  # otherwise it would serve an unregistered connection
            raise

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the channel, and stop."""
        del exc
        self._transport = None
        steps = CleanupSteps()
        steps.take(self.output.end)
        steps.take(self._intake.end)
        steps.take(self._body_memory.close)
        steps.take(self._server.heartbeats.forget, self)
        if self._busy is not None:
            steps.take(self._busy.cancel)
        steps.take(self._server.disconnected, self)
        steps.finish()

    def data_received(self, data: bytes) -> None:
        """Execute the commands that are complete now."""
        if self.session.state is not _CLOSED:
            self._take(data)

    def pause_writing(self) -> None:
        """Record that the client reads too slowly."""
        self.output.pause()

    def resume_writing(self) -> None:
        """Resume sending and reading."""
        self.output.resume()
        self._pace_input()
        self._go_on_later()

    # -- input

    def _take(self, data: bytes) -> None:
        """Execute a slice of the received commands."""
        try:
            self._take_slice(data)
        except c.CommandRefused as refused:
            self.fail(refused.code, refused.text)
        except PenstockError as error:
            _logger.info("%s: %s", self.session.address, error)
            self.close()
        except Exception:
            # The outermost handler: a part of the input may be lost, so the connection ends.
            _logger.exception("%s: input cannot be taken", self.session.address)
            self.output.abort()

    def _take_slice(self, data: bytes) -> None:
        is_another = self._intake.take(data)
        if is_another:
            # Only complete commands show that a client is alive; single bytes of a slow one do not.
            self._heard_s = asyncio.get_running_loop().time()
        self._carry_out()
        wanted = 0 if self.session.state is _CLOSED else self._intake.wanted_bytes
        if wanted > LARGE_BODY_BYTES and self._busy is None and not self._server.knows(self):
            # Otherwise clients without a credential could hold the memory of all publishers.
            raise c.CommandRefused("E_AUTH_FIRST", "AUTH required before a large body")
        if self._body_memory.watch(self, wanted, is_another=is_another):
            self._pace_input()
        self._go_on_later()

    def read_body(self) -> None:
        """Read a large body, for which memory was reserved."""
        self._heard_s = asyncio.get_running_loop().time()  # it could not send before
        self._pace_input()
        self._go_on_later()

    def _go_on_later(self) -> None:
        """Schedule the rest of the input after other connections had their turn."""
        if self._intake.waits_for_turn and not self._going_on:
            asyncio.get_running_loop().call_soon(self._go_on)
            self._going_on = True

    def _go_on(self) -> None:
        self._going_on = False
        self._intake.begin_turn()
        if self.session.state is _CLOSED or self._is_full:
            return  # freed memory or read answers call this again
        if self._intake.holds_more:
            self._take(b"")
        else:
            self._pace_input()

    @property
    def _is_full(self) -> bool:
        """Whether input has to wait: for a turn, for memory or for answers to be read.

        Deliveries stop before this many unread answers accumulate. A client may not be able to read
        while it sends: a client that only finishes messages gets no answers and never waits.
        """
        if self._intake.is_full or self._body_memory.is_awaited:
            return True
        return self.output.unread_bytes > _UNREAD_BYTES_MAX

    def _pace_input(self) -> None:
        transport = self._transport
        if transport is None or self.session.state is _CLOSED:
            return
        if self._is_full or self._intake.waits_for_turn:
            if transport.is_reading():
                transport.pause_reading()
        elif not transport.is_reading() and self.session.state is not _UPGRADING:
            transport.resume_reading()

    # -- executing commands

    def _carry_out(self) -> None:
        """Execute commands until one has to wait or none is left."""
        commands = self._intake.commands
        while commands and self._busy is None and self.session.state is not _CLOSED:
            command = commands.popleft()
            try:
                outcome = self._server.handler.carry_out(self, command)
                if outcome is None:
                    continue
                if isinstance(outcome, ClientEvent):
                    outcome = self._react(outcome)
                if outcome is not None:
                    self._busy = start_job("command", self._finish(outcome))
            except c.CommandRefused as refused:
                self.fail(refused.code, refused.text)
                return
            except Exception:
                # The outermost handler: a bug must not leave the client waiting forever.
                _logger.exception("%s: a command failed", self.session.address)
                self.close()
                return
        self._intake.report_held()
        self._pace_input()

    def _react(self, event: ClientEvent) -> Awaitable[ClientEvent] | None:
        """Carry out the effects of an event; return an awaitable if the last is not done yet."""
        outcome = None
        for effect in self.session.apply(event):
            assert outcome is None, f"{event}: only the last effect may take time"
            outcome = self._effects[effect](self)
        return outcome

    async def _finish(self, outcome: Awaitable[ClientEvent | None] | None) -> None:
        try:
            while outcome is not None:
                event = await outcome
                outcome = None if event is None else self._react(event)
        except c.CommandRefused as refused:
            self._busy = None
            self.fail(refused.code, refused.text)
            return
        except Exception:
            # The outermost handler of a task, as in `_carry_out`.
            self._busy = None
            _logger.exception("%s: a command failed", self.session.address)
            self.close()
            return
        self._busy = None
        try:
            self._heard_s = asyncio.get_running_loop().time()  # it may have waited for its answer
            self._carry_out()
            self._go_on_later()
        except Exception:
            # The outermost handler of a task, as above.
            _logger.exception("%s: a command failed", self.session.address)
            self.output.abort()

    # -- the end

    def close(self) -> None:
        """Send the pending output, and close."""
        self._intake.commands.clear()
        self.output.close()

    def fail(self, code: str, text: str) -> None:
        """Send an error, and close."""
        try:
            self.output.send(frames.error(code, self._server.broker.for_clients(text)))
        finally:
            self.close()

    # -- effects

    def _send_heartbeat_now(self) -> None:
        if self._intake.greeted:
            self.output.send_now(frames.HEARTBEAT)

    def _send_settings(self) -> None:
        answer = self.session.negotiated.answer
        self.output.send(frames.OK if answer is None else frames.response(answer))

    def _start_compression(self) -> None:
        self.output.flush()
        self.session.codec = self.session.agreed_codec

    def _send_ok(self) -> None:
        self.output.send(frames.OK)

    async def _start_tls(self) -> ClientEvent:
        """Switch to TLS.

        Raises:
            CommandRefused: The handshake failed.
        """
        assert self._server.tls is not None
        context = self._server.tls.context
        self.output.flush()
        if not self._intake.is_empty:
            # Commands that an attacker injected before the handshake must not be executed.
            raise c.CommandRefused(
                "E_IDENTIFY_FAILED", "IDENTIFY failed commands before the handshake"
            )
        plain = self._transport
        if plain is None:
            raise c.CommandRefused("E_IDENTIFY_FAILED", "IDENTIFY failed the connection is gone")
        try:
            secure = await asyncio.get_running_loop().start_tls(
                plain,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=_HANDSHAKE_S,
                ssl_shutdown_timeout=_FAREWELL_S,
            )
            assert secure is not None
            self._transport = secure
            self.output.begin(secure)
            self.session.encrypted(secure)
            self.rights.forget()
        except BaseException as error:
            self._transport = None
            self.output.end()  # send nothing unencrypted after part of a handshake
            plain.abort()
            if isinstance(error, OSError):  # `ssl.SSLError` is a subclass
                raise c.CommandRefused("E_IDENTIFY_FAILED", f"IDENTIFY failed {error}") from error
            raise
        if self.session.agreed_codec is None:
            return ClientEvent.TLS_STARTED
        return ClientEvent.TLS_STARTED_FIRST

    # -- heartbeats

    def _restart_heartbeat(self) -> None:
        """Schedule heartbeats at the negotiated interval."""
        interval_ms = self.session.negotiated.heartbeat_ms
        if interval_ms:
            self._server.heartbeats.plan(self, interval_ms / 1000)
        else:
            self._server.heartbeats.forget(self)

    def send_heartbeat(self, now_s: float) -> None:
        """Send a heartbeat, or end the connection if the client is silent or does not read."""
        try:
            self._send_heartbeat(now_s)
        except BaseException:
            self.output.abort()  # no later heartbeat would end it
            raise

    def _send_heartbeat(self, now_s: float) -> None:
        interval_s = self.session.negotiated.heartbeat_ms / 1000
        waits = self._busy is not None or self._body_memory.is_awaited
        silent = now_s - self._heard_s >= 2 * interval_s - 0.001 and not waits
        if self.output.stuck_s(now_s) >= interval_s:
            self.output.abort()
        elif silent:
            self.close()
        else:
            self._react(_HEARTBEAT_DUE)

    # How it carries out the effects of events that are neither commands nor ends.
    _effects: ClassVar[dict[ClientEffect, _EffectStep]] = {
        ClientEffect.RESTART_HEARTBEAT: _restart_heartbeat,
        ClientEffect.SEND_HEARTBEAT: _send_heartbeat_now,
        ClientEffect.SEND_SETTINGS: _send_settings,
        ClientEffect.START_TLS: _start_tls,
        ClientEffect.START_COMPRESSION: _start_compression,
        ClientEffect.SEND_OK: _send_ok,
    }
