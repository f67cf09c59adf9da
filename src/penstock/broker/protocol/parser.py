"""Commands out of a stream of bytes, whatever its pieces.

Owns where a command begins and ends, and what is kept of one that is not all there. Does not own
what a line means (`grammar`), nor the magic that a connection begins with.

Invariants: pure; any way to cut the bytes gives the same commands, but for how runs are grouped;
nothing is kept beyond one command, and of that nothing before its size is known to be allowed;
after `Malformed` nothing more is parsed.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from penstock.broker.protocol import commands as c
from penstock.broker.protocol.grammar import Awaited, Grammar
from penstock.broker.protocol.runs import take_fins, take_pubs

if TYPE_CHECKING:
    from penstock.broker.protocol.limits import ProtocolLimits

_SIZE: Final = struct.Struct(">i")
_NOP: Final = b"NOP\n"


class CommandParser:
    """Parses one connection's commands.

    Args:
        limits: The bounds.
    """

    def __init__(self, limits: ProtocolLimits) -> None:
        self._limits = limits
        self._grammar = Grammar(limits)
        self._buffer = bytearray()
        self._wanted = 0  # bytes that must be there before parsing can go on
        self._awaited: Awaited | None = None  # whose body is under way
        self._ended = False
        # The last PUB's line, with its end: those that follow are likely the same.
        self._pub_line = b""
        self._pub_topic = ""

    @property
    def wanted_bytes(self) -> int:
        """Return what the command under way still lacks; 0 when that is not known."""
        return max(0, self._wanted - len(self._buffer))

    @property
    def is_between_commands(self) -> bool:
        """Say whether nothing of a command is there."""
        return not self._buffer and self._awaited is None

    def feed(self, data: bytes) -> list[c.Command]:
        """Return the commands that are complete now, in order."""
        found: list[c.Command] = []
        if self._ended:
            return found
        if data == _NOP and not self._buffer and self._awaited is None:
            # The answer to a heartbeat, which comes alone: what idle clients send is nothing else.
            return [c.Nop()]
        if self._buffer or len(data) < self._wanted:
            self._buffer += data
            if len(self._buffer) < self._wanted:
                return found  # without looking at the body under way: its pieces may be small
            data = bytes(self._buffer)
        position = 0
        try:
            while (end := self._step(data, position, found)) > position:
                position = end
        except c.Refused as refused:
            name = refused.name if self._awaited is None else self._awaited.name
            found.append(c.Malformed(refused.code, refused.text, name))
            self._ended = True
            self._wanted = 0
            self._awaited = None
            self._buffer = bytearray()
            return found
        self._buffer = bytearray(data[position:])
        return found

    def _step(self, data: bytes, start: int, found: list[c.Command]) -> int:
        """Parse what stands at `start`; return where it ends, `start` if it is not all there."""
        if self._awaited is not None:
            return self._take_body(self._awaited, data, start, found)
        if data.startswith(b"FIN ", start):
            ids, end = take_fins(data, start)
            if ids is not None:
                found.append(c.Finish(ids))
                return end
        elif self._pub_line and data.startswith(self._pub_line, start):
            limit = self._limits.max_message_bytes
            messages, end = take_pubs(data, start, self._pub_line, limit)
            if messages:
                self._put(c.Publish(self._pub_topic, messages), found)
                return end
        return self._take_line(data, start, found)

    def _take_line(self, data: bytes, start: int, found: list[c.Command]) -> int:
        longest = self._limits.max_line_bytes
        newline = data.find(b"\n", start, start + longest)
        if newline < 0:
            if len(data) - start >= longest:
                # NSQ drops such a connection without a word.
                raise c.Refused("E_INVALID", f"command line of more than {longest} bytes")
            return start
        command = self._grammar.read(data[start:newline])
        if isinstance(command, Awaited):
            self._awaited = command
            self._wanted = _SIZE.size
            if command.line_topic is not None:
                self._pub_line = data[start : newline + 1]
                self._pub_topic = command.line_topic
        else:
            found.append(command)
        return newline + 1

    def _take_body(self, awaited: Awaited, data: bytes, start: int, found: list[c.Command]) -> int:
        if len(data) - start < _SIZE.size:
            return start
        size: int = _SIZE.unpack_from(data, start)[0]
        awaited.check_size(size)
        begin = start + _SIZE.size
        end = begin + size
        if end > len(data):
            self._wanted = end - start
            return start
        self._awaited = None
        self._wanted = 0
        self._put(awaited.complete(data[begin:end]), found)
        return end

    def _put(self, command: c.Command, found: list[c.Command]) -> None:
        """Add a command; PUBs of a topic that follow one another are one."""
        last = found[-1] if found else None
        if (
            isinstance(command, c.Publish)
            and isinstance(last, c.Publish)
            and last.topic == command.topic
        ):
            last.messages.extend(command.messages)
        else:
            found.append(command)
