"""One TCP connection that speaks NSQ's V2 protocol.

Owns the order of things: commands are carried out one after the other, and more is read when there
is room for it. What takes longer than a turn of the loop (a new topic, an fsync, authentication)
holds up the commands behind it and nobody else. Does not own what came and waits (`intake`), what
is to leave (`output`), what commands do (`handler`), nor what a consumer has (`consumer`).

Invariants: after a fatal error nothing more is carried out, and the connection closes when the
error has been sent. Input is not read faster than it is carried out. In one turn of the loop a
client gets one slice of its commands carried out (`penstock.broker.protocol.parser`), however many
it sent: then others have their turn.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING, Final, Protocol, cast

from penstock.broker.protocol import commands as c
from penstock.broker.protocol import frames
from penstock.broker.tcp.bodyroom import BodyRoom
from penstock.broker.tcp.consumer import Consumer
from penstock.broker.tcp.intake import Intake
from penstock.broker.tcp.output import Output
from penstock.broker.tcp.session import Session
from penstock.core.errors import PenstockError
from penstock.core.looptasks import start_job
from penstock.core.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from penstock.broker.broker import Broker
    from penstock.broker.protocol.limits import ProtocolLimits
    from penstock.broker.tcp.heartbeats import Heartbeats

_logger = logging.getLogger(__name__)

_UNREAD_BYTES_MAX: Final = 1 << 22  # of answers
_HANDSHAKE_S: Final = 5.0
_FAREWELL_S: Final = 2.0  # for a client under TLS to have the rest, and say goodbye


class Handler(Protocol):
    """Carries out commands."""

    def carry_out(self, connection: Connection, command: c.Command) -> Awaitable[None] | None:
        """Carry out a command, or return what is left of it, to be awaited.

        Raises:
            Refused: It cannot be; the connection ends.
        """
        ...


class Front(Protocol):
    """Who accepted a connection.

    Attributes:
        broker: The broker.
        limits: What clients may send.
        heartbeats: When connections beat.
    """

    broker: Broker
    limits: ProtocolLimits
    heartbeats: Heartbeats

    @property
    def handler(self) -> Handler:
        """Return what carries out commands."""
        ...

    def connected(self, connection: Connection) -> None:
        """Take note of a connection."""
        ...

    def disconnected(self, connection: Connection) -> None:
        """Forget a connection."""
        ...


class Connection(asyncio.Protocol):
    """A client's connection.

    When the client sends no more it closes, as in NSQ: what was not answered yet is not.

    Args:
        front: Who accepted it.
        number: Its number.

    Attributes:
        session: What is known of it.
        output: What it is sent.
        consumer: Its place in a channel, once it has one.
    """

    def __init__(self, front: Front, number: int) -> None:
        broker = front.broker
        self.number = number
        self.session = Session(broker.clock.now_ms())
        self.output = Output(self.session, broker.memory)
        self.consumer: Consumer | None = None
        self.beat_slot = 0
        self._front = front
        self._transport: asyncio.Transport | None = None
        self._intake = Intake(front.limits, self.session, broker.memory)
        self._body_room = BodyRoom(broker.budget, broker.options.body_timeout_ms)
        self._busy: asyncio.Task[None] | None = None
        self._going_on = False  # the loop comes back, with others in between
        self._heard_s = 0.0

    # -- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        # uvloop's transports have the methods and not the base class.
        self._transport = cast("asyncio.Transport", transport)
        try:
            self.output.begin(self._transport)
            self.session.met(transport)
            self._heard_s = asyncio.get_running_loop().time()
            self._front.connected(self)
            self.restart_heartbeat()
        except BaseException:
            self._transport.abort()  # else it would serve a connection that nobody knows
            raise

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the channel, and stop."""
        del exc
        self._transport = None
        steps = Steps()
        steps.take(self.output.end)
        steps.take(self._intake.end)
        steps.take(self._body_room.close)
        steps.take(self._front.heartbeats.forget, self)
        if self._busy is not None:
            steps.take(self._busy.cancel)
        steps.take(self._front.disconnected, self)
        steps.finish()

    def data_received(self, data: bytes) -> None:
        """Carry out the commands that are complete now."""
        if not self.output.closed:
            self._take(data)

    def pause_writing(self) -> None:
        """Note that the client does not keep up."""
        self.output.clog()

    def resume_writing(self) -> None:
        """Go on."""
        self.output.unclog()
        self._pace_input()
        self._go_on_later()

    # -- what came

    def _take(self, data: bytes) -> None:
        """Carry out a slice of what came."""
        try:
            self._take_slice(data)
        except c.Refused as refused:
            self.fail(refused.code, refused.text)
        except PenstockError as error:
            _logger.info("%s: %s", self.session.address, error)
            self.close()
        except Exception:
            # The top, whoever called: of what came a part may be lost.
            _logger.exception("%s: input cannot be taken", self.session.address)
            self.output.abort()

    def _take_slice(self, data: bytes) -> None:
        is_another = self._intake.take(data)
        if is_another:
            # A command counts as life and not its bytes, else who sends slowly is never too slow.
            self._heard_s = asyncio.get_running_loop().time()
        self._carry_out()
        wanted = 0 if self.output.closed else self._intake.wanted_bytes
        if self._body_room.watch(self, wanted, is_another=is_another):
            self._pace_input()
        self._go_on_later()

    def read_body(self) -> None:
        """Read a large body, which has its room now."""
        self._heard_s = asyncio.get_running_loop().time()  # it could not send before
        self._pace_input()
        self._go_on_later()

    def _go_on_later(self) -> None:
        """Go on with what came, or with reading, when others had their turn."""
        if self._intake.waits_for_turn and not self._going_on:
            asyncio.get_running_loop().call_soon(self._go_on)
            self._going_on = True

    def _go_on(self) -> None:
        self._going_on = False
        self._intake.begin_turn()
        if self.output.closed or self._is_full:
            return  # who makes room calls again
        if self._intake.holds_more:
            self._take(b"")
        else:
            self._pace_input()

    @property
    def _is_full(self) -> bool:
        """Say whether what the client sent has to wait: for its turn, for room, for its answers.

        Deliveries stop before so many answers wait to be read. A client may not be able to read
        while it sends: who only finishes messages gets no answers, and is never held up.
        """
        if self._intake.is_full or self._body_room.is_awaited:
            return True
        return self.output.unread_bytes > _UNREAD_BYTES_MAX

    def _pace_input(self) -> None:
        transport = self._transport
        if transport is None or self.output.closed:
            return
        if self._is_full or self._intake.waits_for_turn:
            if transport.is_reading():
                transport.pause_reading()
        elif not transport.is_reading() and not self.session.upgrading:
            transport.resume_reading()

    # -- carrying out

    def _carry_out(self) -> None:
        """Carry out commands until one has to wait, or there is none."""
        commands = self._intake.commands
        while commands and self._busy is None and not self.output.closed:
            command = commands.popleft()
            try:
                waiting = self._front.handler.carry_out(self, command)
                if waiting is not None:
                    self._busy = start_job("command", self._finish(waiting))
            except c.Refused as refused:
                self.fail(refused.code, refused.text)
                return
            except Exception:
                # The top, whoever called: a bug must not leave its client waiting for ever.
                _logger.exception("%s: a command failed", self.session.address)
                self.close()
                return
        self._intake.tell_ledger()
        self._pace_input()

    async def _finish(self, waiting: Awaitable[None]) -> None:
        try:
            await waiting
        except c.Refused as refused:
            self._busy = None
            self.fail(refused.code, refused.text)
            return
        except Exception:
            # The top of a task, as in `_carry_out`.
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
            # The top of a task, as above.
            _logger.exception("%s: a command failed", self.session.address)
            self.output.abort()

    # -- the end, and TLS

    def close(self) -> None:
        """Send what is to be sent, and close."""
        self._intake.commands.clear()
        self.output.close()

    def fail(self, code: str, text: str) -> None:
        """Say what is wrong, and close."""
        try:
            self.output.send(frames.error(code, self._front.broker.for_clients(text)))
        finally:
            self.close()

    async def start_tls(self, context: ssl.SSLContext) -> None:
        """Go on under TLS.

        Raises:
            Refused: The handshake failed.
        """
        self.output.flush()
        if not self._intake.is_empty:
            # Or what somebody put in on the way would be carried out as if the client had sent it.
            raise c.Refused("E_IDENTIFY_FAILED", "IDENTIFY failed commands before the handshake")
        plain = self._transport
        if plain is None:
            raise c.Refused("E_IDENTIFY_FAILED", "IDENTIFY failed the connection is gone")
        self.session.upgrading = True
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
        except BaseException as error:
            self._transport = None
            self.output.end()  # nothing plain after what may be half a handshake
            plain.abort()
            if isinstance(error, OSError):  # those of ssl are of this kind, too
                raise c.Refused("E_IDENTIFY_FAILED", f"IDENTIFY failed {error}") from error
            raise
        finally:
            self.session.upgrading = False

    # -- heartbeats

    def restart_heartbeat(self) -> None:
        """Beat as often as was negotiated."""
        interval_ms = self.session.negotiated.heartbeat_ms
        if interval_ms:
            self._front.heartbeats.plan(self, interval_ms / 1000)
        else:
            self._front.heartbeats.forget(self)

    def beat(self, now_s: float) -> None:
        """Send a heartbeat; end the connection whose other side does nothing any more."""
        try:
            self._beat(now_s)
        except BaseException:
            self.output.abort()  # it has no next beat that would end it
            raise

    def _beat(self, now_s: float) -> None:
        interval_s = self.session.negotiated.heartbeat_ms / 1000
        waits = self._busy is not None or self._body_room.is_awaited
        silent = now_s - self._heard_s >= 2 * interval_s - 0.001 and not waits
        if self.output.stuck_s(now_s) >= interval_s:
            self.output.abort()
        elif silent:
            self.close()
        else:
            if self._intake.greeted and not self.session.upgrading:
                self.output.send_now(frames.HEARTBEAT)
            self.restart_heartbeat()
