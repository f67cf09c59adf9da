"""Parse commands from a stream of bytes that arrives in arbitrary pieces.

Owns where a command begins and ends, and the buffer of an incomplete one. Does not own the meaning
of a line (`grammar`), nor the magic bytes at the beginning of a connection.

One read may contain tens of thousands of small commands. Parsing and executing all of them would
delay other connections for too long. So one call returns a slice of them, and the caller calls
again for the rest.

Invariants: pure; any division of the bytes gives the same commands, except for the grouping of
runs; a slice is bounded, whatever the input; only input that was not requested yet and one command
are buffered, and the body of a command only after its size was accepted; after `Malformed` nothing
more is parsed.
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
# Maximum cost of a slice in lines, about one millisecond. A body costs more than a line, because
# each may become a block of its own on the disk; several messages in one command cost little more
# than one line.
_SLICE_COST: Final = 128
_BODY_COST: Final = 4
_TOGETHER: Final = RUN_MAX // _SLICE_COST


class CommandParser:
    """Parses one connection's commands.

    Args:
        limits: Limits on the input.
    """

    def __init__(self, limits: ProtocolLimits) -> None:
        self._limits = limits
        self._grammar = Grammar(limits)
        self._data = b""  # received and not parsed
        self._position = 0  # where the unparsed part begins
        self._under_way = bytearray()  # of an incomplete command
        self._wanted = 0  # bytes required before parsing can continue
        self._awaited: Awaited | None = None  # the command whose body is being received
        self._ended = False
        self._cost = 0  # of the slice so far
        # The line of the last PUB, with its line feed: later lines are likely the same.
        self._pub_line = b""
        self._pub_topic = ""

    @property
    def wanted_bytes(self) -> int:
        """Number of bytes that the current command still lacks; 0 if that is unknown."""
        return 0 if self._data else max(0, self._wanted - len(self._under_way))

    @property
    def waiting_bytes(self) -> int:
        """Number of buffered bytes for the next `feed`; 0: all were examined."""
        return len(self._data) - self._position

    @property
    def is_between_commands(self) -> bool:
        """Whether no part of a command is buffered."""
        return not self._data and not self._under_way and self._awaited is None

    def feed(self, data: bytes) -> list[c.Command]:
        """Return a slice of the commands that are complete now, in order.

        Args:
            data: Received bytes; empty, to continue while there are `waiting_bytes`.
        """
        if self._ended:
            return []
        if data == _NOP and self.is_between_commands:
            # The answer to a heartbeat, which arrives alone: idle clients send nothing else.
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
            # The body is not examined while it is incomplete: pieces may be small.
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
        """Parse the command at `start`; return its end, or `start` if it is incomplete."""
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
                # NSQ closes such a connection without an error.
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
        """Add a command; consecutive PUBs of one topic are merged."""
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
