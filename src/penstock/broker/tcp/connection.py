"""One TCP connection that speaks NSQ's V2 protocol.

Owns the order of things: bytes are decoded, commands carried out one after the other, answers sent
in their order. What takes longer than a turn of the loop (a new topic, an fsync, authentication)
holds up the commands behind it and nobody else. Does not own the codec
(`penstock.broker.protocol`), topics, nor what a consumer has (`consumer`).

Invariants: after a fatal error nothing more is carried out, and the connection closes when the
error has been sent. Input is not read faster than it is carried out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.broker.protocol import commands as c
from penstock.broker.protocol import frames
from penstock.broker.protocol.parser import CommandParser
from penstock.broker.tcp.consumer import Consumer
from penstock.broker.tcp.session import Session
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from typing_extensions import Buffer

    from penstock.broker.tcp.front import TcpFront

_logger = logging.getLogger(__name__)

_MAGIC: Final = b"  V2"
_OUTPUT_HIGH_BYTES: Final = 1 << 20
_PENDING_COMMANDS: Final = 256


class Connection(asyncio.Protocol):
    """A client's connection.

    Args:
        front: The front that accepted it.
        number: Its number.
    """

    def __init__(self, front: TcpFront, number: int) -> None:
        self.number = number
        self.session = Session(front.broker.clock.now_ms())
        self.consumer: Consumer | None = None
        self._front = front
        self._broker = front.broker
        self._transport: asyncio.Transport | None = None
        self._parser = CommandParser(front.limits)
        self._magic = b""
        self._commands: deque[c.Command] = deque()
        self._output: list[Buffer] = []
        self._output_scheduled = False
        self._busy: asyncio.Task[None] | None = None
        self._ending = False
        self.writable = True
        self._stuck_since_s = 0.0
        self._heard_s = 0.0
        self._beat: asyncio.TimerHandle | None = None

    # -- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_OUTPUT_HIGH_BYTES)
        self.session.met(transport)
        self._heard_s = self._loop.time()
        self._front.connected(self)
        self._set_beat()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the channel, and stop."""
        del exc
        self._ending = True
        self._transport = None
        self._commands.clear()
        if self._beat is not None:
            self._beat.cancel()
        if self._busy is not None:
            self._busy.cancel()
        if self.consumer is not None:
            self.consumer.leave()
        self._front.disconnected(self)

    def data_received(self, data: bytes) -> None:
        """Carry out the commands that are complete now."""
        if self._ending:
            return
        if self._magic != _MAGIC:
            data = self._take_magic(data)
            if not data:
                return
        codec = self.session.codec
        if codec is not None:
            try:
                data = codec.decompress(data)
            except PenstockError as error:
                _logger.info("%s: %s", self.session.address, error)
                self.close()
                return
        self._commands.extend(self._parser.feed(data))
        self._carry_out()

    def eof_received(self) -> bool:
        """Close, as NSQ does: what was not answered yet is not."""
        return False

    def pause_writing(self) -> None:
        """Note that the client does not keep up."""
        self.writable = False
        self._stuck_since_s = self._loop.time()

    def resume_writing(self) -> None:
        """Go on."""
        self.writable = True
        if self.consumer is not None:
            self.consumer.channel.schedule()

    # -- sending

    def send(self, data: Buffer) -> None:
        """Send bytes, together with what else is sent in this turn of the loop."""
        self._output.append(data)
        if not self._output_scheduled:
            self._output_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._output_scheduled = False
        output, self._output = self._output, []
        if self._transport is None or not output:
            return
        codec = self.session.codec
        if codec is None:
            self._transport.writelines(output)
        else:
            self._transport.write(codec.compress(b"".join(output)))

    def close(self) -> None:
        """Send what is to be sent, and close."""
        self._ending = True
        self._commands.clear()
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def fail(self, code: str, text: str) -> None:
        """Say what is wrong, and close."""
        self.send(frames.error(code, text))
        self.close()

    # -- carrying out

    def _take_magic(self, data: bytes) -> bytes:
        wanted = len(_MAGIC) - len(self._magic)
        self._magic += data[:wanted]
        if not _MAGIC.startswith(self._magic):
            self.send(frames.raw_error("E_BAD_PROTOCOL"))
            self.close()
            return b""
        return data[wanted:]

    def _carry_out(self) -> None:
        """Carry out commands until one has to wait, or there is none."""
        self._heard_s = self._loop.time()
        while self._commands and self._busy is None and not self._ending:
            command = self._commands.popleft()
            try:
                waiting = self._front.carry_out(self, command)
            except c.Refused as refused:
                self.fail(refused.code, refused.text)
                return
            if waiting is not None:
                self._busy = self._loop.create_task(self._finish(waiting))
        self._pace_input()

    async def _finish(self, waiting: Awaitable[None]) -> None:
        try:
            await waiting
        except c.Refused as refused:
            self._busy = None
            self.fail(refused.code, refused.text)
            return
        except Exception:
            # The top of a task: a bug in one command must not leave its client waiting for ever.
            self._busy = None
            _logger.exception("%s: a command failed", self.session.address)
            self.close()
            return
        self._busy = None
        self._carry_out()

    def _pace_input(self) -> None:
        transport = self._transport
        if transport is None or self._ending:
            return
        if len(self._commands) > _PENDING_COMMANDS:
            if transport.is_reading():
                transport.pause_reading()
        elif not transport.is_reading() and not self.session.upgrading:
            transport.resume_reading()

    # -- heartbeats

    def _set_beat(self) -> None:
        interval_ms = self.session.heartbeat_ms
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None
        if interval_ms:
            self._beat = self._loop.call_later(interval_ms / 1000, self._on_beat)

    def restart_heartbeat(self) -> None:
        """Beat as often as was negotiated."""
        self._set_beat()

    def _on_beat(self) -> None:
        interval_s = self.session.heartbeat_ms / 1000
        now_s = self._loop.time()
        silent = now_s - self._heard_s >= 2 * interval_s - 0.001 and self._busy is None
        stuck = not self.writable and now_s - self._stuck_since_s >= interval_s
        if (silent or stuck) and self._transport is not None:
            self._transport.abort() if stuck else self.close()
            return
        if self._magic == _MAGIC:
            self.send(frames.HEARTBEAT)
        self._set_beat()

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()
