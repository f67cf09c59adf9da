"""Commands out of a stream of bytes, whatever its pieces.

Owns where a command begins and ends, and what is kept of one that is not all there. Does not own
what a line means (`grammar`), nor the magic that a connection begins with.

A read may hold tens of thousands of small commands, and to parse and carry out so many takes far
longer than others should wait. So one call gives a slice of them, and the caller comes back for the
rest.

Invariants: pure; any way to cut the bytes gives the same commands, but for how runs are grouped;
a slice is bounded, whatever came; nothing is kept beyond what was not asked for yet and one
command, and of that nothing before its size is known to be allowed; after `Malformed` nothing more
is parsed.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from penstock.broker.protocol import commands as c
from penstock.broker.protocol.grammar import Awaited, Grammar
from penstock.broker.protocol.runs import RUN_MAX, take_fins, take_pubs

if TYPE_CHECKING:
    from penstock.broker.protocol.limits import ProtocolLimits

_SIZE: Final = struct.Struct(">i")
_NOP: Final = b"NOP\n"
# What one slice may cost, in lines; as many cost a millisecond, more or less. A body costs more
# than a line, since each may be a block of its own on the disk; of what comes together many do not
# cost more than a line alone.
_SLICE_COST: Final = 128
_BODY_COST: Final = 4
_TOGETHER: Final = RUN_MAX // _SLICE_COST


class CommandParser:
    """Parses one connection's commands.

    Args:
        limits: The bounds.
    """

    def __init__(self, limits: ProtocolLimits) -> None:
        self._limits = limits
        self._grammar = Grammar(limits)
        self._data = b""  # what came and was not parsed
        self._position = 0  # where that begins
        self._under_way = bytearray()  # of a command that is not all there
        self._wanted = 0  # bytes that must be there before parsing can go on
        self._awaited: Awaited | None = None  # whose body is under way
        self._ended = False
        self._cost = 0  # of the slice so far
        # The last PUB's line, with its end: those that follow are likely the same.
        self._pub_line = b""
        self._pub_topic = ""

    @property
    def wanted_bytes(self) -> int:
        """Return what the command under way still lacks; 0 when that is not known."""
        return 0 if self._data else max(0, self._wanted - len(self._under_way))

    @property
    def waiting_bytes(self) -> int:
        """Return how much came that the next `feed` goes on with; 0: all was looked at."""
        return len(self._data) - self._position

    @property
    def is_between_commands(self) -> bool:
        """Say whether nothing of a command is there."""
        return not self._data and not self._under_way and self._awaited is None

    def feed(self, data: bytes) -> list[c.Command]:
        """Return a slice of the commands that are complete now, in order.

        Args:
            data: What came; nothing, to go on while there are `waiting_bytes`.
        """
        if self._ended:
            return []
        if data == _NOP and self.is_between_commands:
            # The answer to a heartbeat, which comes alone: what idle clients send is nothing else.
            return [c.Nop()]
        self._take_in(data)
        found: list[c.Command] = []
        if self._data:
            self._parse_slice(found)
        return found

    def _take_in(self, data: bytes) -> None:
        if self._data:
            if data:
                self._data = self._data[self._position :] + data
                self._position = 0
        elif self._under_way or len(data) < self._wanted:
            self._under_way += data
            # Without looking at the body under way while it lacks something: pieces may be small.
            if len(self._under_way) >= self._wanted:
                self._data = bytes(self._under_way)
                self._under_way = bytearray()
        else:
            self._data = data

    def _parse_slice(self, found: list[c.Command]) -> None:
        data, position = self._data, self._position
        self._cost = 0
        try:
            while self._cost < _SLICE_COST and position < len(data):
                end = self._step(data, position, found)
                if end == position:
                    self._under_way = bytearray(data[position:])
                    position = len(data)
                    break
                position = end
        except c.Refused as refused:
            name = refused.name if self._awaited is None else self._awaited.name
            found.append(c.Malformed(refused.code, refused.text, name))
            self._ended = True
            self._wanted = 0
            self._awaited = None
            position = len(data)
        if position == len(data):
            data, position = b"", 0
        self._data, self._position = data, position

    def _step(self, data: bytes, start: int, found: list[c.Command]) -> int:
        """Parse what stands at `start`; return where it ends, `start` if it is not all there."""
        self._cost += 1
        if self._awaited is not None:
            return self._take_body(self._awaited, data, start, found)
        if data.startswith(b"FIN ", start):
            ids, end = take_fins(data, start)
            if ids is not None:
                self._cost += len(ids) // _TOGETHER
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
        self._cost += _BODY_COST
        self._put(awaited.complete(data[begin:end]), found)
        return end

    def _put(self, command: c.Command, found: list[c.Command]) -> None:
        """Add a command; PUBs of a topic that follow one another are one."""
        if isinstance(command, c.Publish | c.MultiPublish):
            self._cost += len(command.messages) // _TOGETHER
        last = found[-1] if found else None
        if (
            isinstance(command, c.Publish)
            and isinstance(last, c.Publish)
            and last.topic == command.topic
        ):
            last.messages.extend(command.messages)
        else:
            found.append(command)
