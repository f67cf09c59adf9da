"""One TCP connection that speaks NSQ's V2 protocol.

Owns the order of things: bytes are decoded, commands carried out one after the other, answers sent
in their order. What takes longer than a turn of the loop (a new topic, an fsync, authentication)
holds up the commands behind it and nobody else. Does not own the codec
(`penstock.broker.protocol`), topics, nor what a consumer has (`consumer`).

Invariants: after a fatal error nothing more is carried out, and the connection closes when the
error has been sent. Input is not read faster than it is carried out. In one turn of the loop a
client gets one slice of its commands carried out (`penstock.broker.protocol.parser`), however many
it sent: then others have their turn.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol, cast

from penstock.broker.protocol import commands as c
from penstock.broker.protocol import frames
from penstock.broker.protocol.parser import CommandParser
from penstock.broker.tcp.consumer import Consumer
from penstock.broker.tcp.session import Session
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from penstock.broker.broker import Broker
    from penstock.broker.protocol.limits import ProtocolLimits
    from penstock.broker.tcp.heartbeats import Heartbeats

_logger = logging.getLogger(__name__)

_MAGIC: Final = b"  V2"
_OUTPUT_BYTES_MAX: Final = 1 << 20  # of deliveries in one turn of the loop
_PENDING_BYTES_MAX: Final = 1 << 22
_TOLD_BYTES: Final = 1 << 12  # of one piece of output that the ledger hears of before it leaves
_ANSWERS_BYTES_MAX: Final = 1 << 22
_PENDING_COMMANDS: Final = 64  # while one of them takes its time
# Who sends that much at once has had its turn: the loop would read from it again and again.
_TURN_BYTES: Final = 1 << 17
_HANDSHAKE_S: Final = 5.0
_FAREWELL_S: Final = 2.0  # for a client under TLS to have the rest, and say goodbye
_PIECE_BYTES: Final = 1 << 16
_LARGE_BODY_BYTES: Final = 1 << 16  # smaller ones are bounded by the number of connections


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

    Args:
        front: Who accepted it.
        number: Its number.
    """

    def __init__(self, front: Front, number: int) -> None:
        self.number = number
        self.session = Session(front.broker.clock.now_ms())
        self.consumer: Consumer | None = None
        self._front = front
        self._broker = front.broker
        self._transport: asyncio.Transport | None = None
        self._parser = CommandParser(front.limits)
        self._magic = b""
        self._commands: deque[c.Command] = deque()
        self._output: list[bytes | memoryview] = []
        self._output_scheduled = False
        self._busy: asyncio.Task[None] | None = None
        self._ending = False
        self._output_bytes = 0
        self._pending_bytes = 0  # what the commands that wait came in
        self._clogged = False  # what was sent has not left
        self._stuck_since_s = 0.0
        self._heard_s = 0.0
        self.beat_slot = 0
        self._room: asyncio.Task[None] | None = None
        self._has_room = True
        self._packed = False  # of what came some is packed still
        self._had_turn = False  # others come first now
        self._going_on = False  # the loop comes back, with others in between

    # -- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        # uvloop's transports have the methods and not the base class.
        self._transport = cast("asyncio.Transport", transport)
        # So the connection knows whenever something waits in memory.
        self._transport.set_write_buffer_limits(high=1, low=0)
        self.session.met(transport)
        self._heard_s = self._loop.time()
        self._front.connected(self)
        self.restart_heartbeat()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the channel, and stop."""
        del exc
        self._ending = True
        self._transport = None
        self._commands.clear()
        self._front.heartbeats.forget(self)
        self._broker.memory.hold(self, 0)
        if self._busy is not None:
            self._busy.cancel()
        if self._room is not None:
            self._room.cancel()
        self._front.disconnected(self)

    def data_received(self, data: bytes) -> None:
        """Carry out the commands that are complete now."""
        if self._ending:
            return
        if self._magic != _MAGIC:
            data = self._take_magic(data)
            if not data:
                return
        if len(data) >= _TURN_BYTES:
            self._had_turn = True
        self._take(data)

    def _take(self, data: bytes) -> None:
        """Parse and carry out; of what is compressed one piece, for a little may hold very much."""
        codec = self.session.codec
        if codec is None:
            self._parse(data)
            return
        try:
            piece = codec.decompress(data, _PIECE_BYTES)
        except PenstockError as error:
            _logger.info("%s: %s", self.session.address, error)
            self.close()
            return
        self._packed = len(piece) == _PIECE_BYTES
        self._parse(piece)

    @property
    def _waits_for_turn(self) -> bool:
        """Say whether others come first, before more is looked at or read."""
        return self._had_turn or self._packed or self._parser.waiting_bytes > 0

    def _go_on_later(self) -> None:
        """Go on with what came, or with reading, when others had their turn."""
        if self._waits_for_turn and not self._going_on:
            self._going_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._going_on = self._had_turn = False
        if self._ending or self._is_full:
            return  # who makes room calls again
        if self._parser.waiting_bytes:
            self._parse(b"")
        elif self._packed:
            self._take(b"")
        else:
            self._pace_input()

    def _parse(self, data: bytes) -> None:
        found = self._parser.feed(data)
        if found:
            # A command counts as life and not its bytes, else who sends slowly is never too slow.
            self._heard_s = self._loop.time()
            self._commands.extend(found)
        self._pending_bytes += len(data)
        self._carry_out()
        if self._commands:
            self._tell_ledger()
        self._watch_body(is_another=bool(found))
        self._go_on_later()

    def _watch_body(self, *, is_another: bool) -> None:
        """Let a large body that is under way have its room, and no longer than it is under way."""
        wanted = self._parser.wanted_bytes
        if self._room is not None and (is_another or not wanted):
            # Room and time are of one body: of those that come without a pause each has its own.
            self._room.cancel()
            self._room = None
            self._has_room = True
            self._pace_input()
        if self._room is None and wanted > _LARGE_BODY_BYTES and not self._ending:
            self._has_room = False
            self._room = self._loop.create_task(self._hold_room(wanted))
            self._pace_input()

    async def _hold_room(self, size: int) -> None:
        """Hold room for the body that is under way, until it is there; it is not read before."""
        try:
            async with self._broker.budget.reserve(size):
                self._has_room = True
                self._heard_s = self._loop.time()  # it could not send before
                self._pace_input()
                self._go_on_later()
                timeout_ms = self._broker.options.body_timeout_ms
                await asyncio.sleep(timeout_ms / 1000)
            self.fail("E_BAD_BODY", f"body did not arrive within {timeout_ms} ms")
        except PenstockError as error:
            self.fail("E_PUB_FAILED", f"PUB failed {error}")

    def eof_received(self) -> bool:
        """Close, as NSQ does: what was not answered yet is not."""
        return False

    def pause_writing(self) -> None:
        """Note that the client does not keep up."""
        self._clogged = True
        self._stuck_since_s = self._loop.time()
        self._tell_ledger()

    def resume_writing(self) -> None:
        """Go on."""
        self._clogged = False
        self._tell_ledger()
        self._pace_input()
        self._go_on_later()
        if self.consumer is not None:
            self.consumer.channel.wake(self.consumer)

    # -- sending

    @property
    def writable(self) -> bool:
        """Say whether what was sent before has left, more or less."""
        waits = self._clogged or self._output_bytes >= _OUTPUT_BYTES_MAX
        return not (waits or self._ending)

    def send(self, data: bytes | memoryview) -> None:
        """Send bytes, together with what else is sent in this turn of the loop."""
        if self._transport is None:
            return
        self._output.append(data)
        self._output_bytes += len(data)
        if len(data) >= _TOLD_BYTES:
            # At once: many channels may give out much in one turn, before any of it can leave.
            self._tell_ledger()
        if not self._output_scheduled:
            self._output_scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send now what waits to be sent."""
        self._output_scheduled = False
        output, self._output = self._output, []
        was_full, self._output_bytes = self._output_bytes >= _OUTPUT_BYTES_MAX, 0
        if self._transport is None or not output:
            return
        codec = self.session.codec
        if codec is None:
            if len(output) == 1:
                self._transport.write(output[0])
            else:
                self._transport.writelines(output)
        else:
            self._transport.write(codec.compress(b"".join(output)))
        self._tell_ledger()
        if was_full and not self._clogged and self.consumer is not None:
            self.consumer.channel.wake(self.consumer)

    def _tell_ledger(self) -> None:
        """Tell how much is held for this client."""
        held = self._pending_bytes + self._output_bytes
        if self._clogged and self._transport is not None:
            held += self._transport.get_write_buffer_size()
        self._broker.memory.hold(self, held)

    def close(self) -> None:
        """Send what is to be sent, and close."""
        self._ending = True
        self._commands.clear()
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close, whatever is still to be sent."""
        self._ending = True
        if self._transport is not None:
            self._transport.abort()

    def fail(self, code: str, text: str) -> None:
        """Say what is wrong, and close."""
        self.send(frames.error(code, text))
        self.close()

    async def start_tls(self, context: ssl.SSLContext) -> None:
        """Go on under TLS.

        Raises:
            Refused: The handshake failed.
        """
        self.flush()
        if self._commands or not self._parser.is_between_commands:
            # Or what somebody put in on the way would be carried out as if the client had sent it.
            raise c.Refused("E_IDENTIFY_FAILED", "IDENTIFY failed commands before the handshake")
        plain = self._transport
        if plain is None:
            raise c.Refused("E_IDENTIFY_FAILED", "IDENTIFY failed the connection is gone")
        self.session.upgrading = True
        try:
            secure = await self._loop.start_tls(
                plain,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=_HANDSHAKE_S,
                ssl_shutdown_timeout=_FAREWELL_S,
            )
        except OSError as error:  # those of ssl are of this kind, too
            self._transport = None  # nothing plain after what may be half a handshake
            plain.abort()
            raise c.Refused("E_IDENTIFY_FAILED", f"IDENTIFY failed {error}") from error
        finally:
            self.session.upgrading = False
        assert secure is not None
        self._transport = secure
        secure.set_write_buffer_limits(high=1, low=0)
        self.session.encrypted(secure)

    # -- carrying out

    def _take_magic(self, data: bytes) -> bytes:
        wanted = len(_MAGIC) - len(self._magic)
        self._magic += data[:wanted]
        if not _MAGIC.startswith(self._magic):
            self.send(frames.error("E_BAD_PROTOCOL"))
            self.close()
            return b""
        return data[wanted:]

    def _carry_out(self) -> None:
        """Carry out commands until one has to wait, or there is none."""
        while self._commands and self._busy is None and not self._ending:
            command = self._commands.popleft()
            try:
                waiting = self._front.handler.carry_out(self, command)
            except c.Refused as refused:
                self.fail(refused.code, refused.text)
                return
            except Exception:
                # The top, whoever called: a bug must not leave its client waiting for ever.
                _logger.exception("%s: a command failed", self.session.address)
                self.close()
                return
            if waiting is not None:
                self._busy = self._loop.create_task(self._finish(waiting))
        unparsed = self._parser.waiting_bytes
        if self._pending_bytes > unparsed and not self._commands:
            self._pending_bytes = unparsed
            self._tell_ledger()
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
        self._heard_s = self._loop.time()  # it may have waited for its answer
        self._carry_out()
        self._go_on_later()

    @property
    def _is_full(self) -> bool:
        """Say whether what the client sent has to wait: for its turn, for room, for its answers.

        Deliveries stop before so many answers wait to be read. A client may not be able to read
        while it sends: who only finishes messages gets no answers, and is never held up.
        """
        if len(self._commands) > _PENDING_COMMANDS or not self._has_room:
            return True
        too_much = self._pending_bytes > _PENDING_BYTES_MAX or self._broker.memory.is_full
        if self._commands and too_much:
            return True
        if not self._clogged or self._transport is None:
            return False
        return self._transport.get_write_buffer_size() > _ANSWERS_BYTES_MAX

    def _pace_input(self) -> None:
        transport = self._transport
        if transport is None or self._ending:
            return
        if self._is_full or self._waits_for_turn:
            if transport.is_reading():
                transport.pause_reading()
        elif not transport.is_reading() and not self.session.upgrading:
            transport.resume_reading()

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
        interval_s = self.session.negotiated.heartbeat_ms / 1000
        waits = self._busy is not None or not self._has_room
        silent = now_s - self._heard_s >= 2 * interval_s - 0.001 and not waits
        stuck = self._clogged and now_s - self._stuck_since_s >= interval_s
        if stuck:
            self.abort()
        elif silent:
            self.close()
        else:
            if self._magic == _MAGIC and not self.session.upgrading:
                self._output.append(frames.HEARTBEAT)
                self.flush()
            self.restart_heartbeat()

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()
