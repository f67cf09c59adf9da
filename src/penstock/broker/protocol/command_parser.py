"""Incremental parser of NSQ commands from a byte stream.

Owns command boundaries and the buffered part of an incomplete command. Does not own the meaning
of a command line (`grammar`) or the protocol magic at the start of a connection. `take_fins`
and `take_pubs` are fast paths that parse runs of FIN commands, and of PUB commands to one
topic, in one step. A fast path takes only complete and valid commands; the first other command
ends the run and is parsed as a line. A run has at most `RUN_MAX` commands.

One read may contain tens of thousands of commands, so each call returns a bounded slice of
them, and the caller calls again for the rest.

Invariants: the parser is pure. Any split of the bytes gives the same commands, except for the
grouping into runs. The parser keeps only unparsed input and one incomplete command, and keeps
none of a command before its size is known to be allowed. After `Malformed` it parses nothing.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.broker import message_id
from penstock.broker.protocol import commands as c
from penstock.broker.protocol.grammar import Grammar, PendingCommand

if TYPE_CHECKING:
    import numpy.typing as npt

    from penstock.broker.protocol.limits import ProtocolLimits


RUN_MAX: Final = 2_560  # slightly more than NSQ's largest RDY

_FIN: Final = re.compile(rb"FIN ([0-9a-f]{16})\n")
_FIN_ROW: Final = np.dtype(
    [("head", "<u4"), ("id", np.uint8, (message_id.ID_BYTES,)), ("end", np.uint8)]
)
_FIN_HEAD: Final = int.from_bytes(b"FIN ", "little")
_NEWLINE: Final = 0x0A
# A short run is cheaper one by one. A longer one is parsed in windows that grow with it, so that
# the work is proportional to the run, regardless of the amount of other input after it.
_FEW: Final = 16
_GROWTH: Final = 8
_SIZE: Final = struct.Struct(">i")


def take_fins(data: bytes, start: int) -> tuple[npt.NDArray[np.int64] | None, int]:
    """Return the ids of the FINs at `start`, or None, and their end."""
    first: list[int] = []
    end = start
    while len(first) < _FEW and (match := _FIN.match(data, end)):
        first.append(int(match[1], 16))
        end = match.end()
    if not first:
        return None, start
    ids = np.array(first, np.uint64).view(np.int64)
    if len(first) < _FEW:
        return ids, end
    parts = [ids]
    window = _FEW
    left = RUN_MAX - _FEW
    while len(parts[-1]) == window and left:
        window = min(window * _GROWTH, left)
        parts.append(_window_of_fins(data, end, window))
        left -= len(parts[-1])
        end += len(parts[-1]) * _FIN_ROW.itemsize
    return np.concatenate(parts), end


def _window_of_fins(data: bytes, start: int, most: int) -> npt.NDArray[np.int64]:
    count = min(most, (len(data) - start) // _FIN_ROW.itemsize)
    rows = np.frombuffer(data, _FIN_ROW, count, start) if count else np.empty(0, _FIN_ROW)
    sound = (rows["head"] == _FIN_HEAD) & (rows["end"] == _NEWLINE)
    if not sound.all():
        rows = rows[: int(sound.argmin())]
    return message_id.decode(rows["id"])


def take_pubs(data: bytes, start: int, line: bytes, max_bytes: int) -> tuple[list[bytes], int]:
    """Return the messages of the PUBs at `start`, and their end.

    Args:
        data: The input.
        start: Where to begin.
        line: The line of the PUBs, with its line feed.
        max_bytes: Largest message.
    """
    head = len(line) + _SIZE.size
    length = len(data)
    unpack = _SIZE.unpack_from
    messages: list[bytes] = []
    while len(messages) < RUN_MAX and start + head <= length and data.startswith(line, start):
        size: int = unpack(data, start + head - _SIZE.size)[0]
        end = start + head + size
        if not 0 < size <= max_bytes or end > length:
            break
        messages.append(data[start + head : end])
        start = end
    return messages, start


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
        self._awaited: PendingCommand | None = None  # the command whose body is being received
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
        except c.CommandRefused as refused:
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
                raise c.CommandRefused("E_INVALID", f"command line of more than {longest} bytes")
            return start
        command = self._grammar.read(data[start:newline])
        if isinstance(command, PendingCommand):
            self._awaited = command
            self._wanted = _SIZE.size
            if command.line_topic is not None:
                self._pub_line = data[start : newline + 1]
                self._pub_topic = command.line_topic
        else:
            found.append(command)
        return newline + 1

    def _take_body(
        self, awaited: PendingCommand, data: bytes, start: int, found: list[c.Command]
    ) -> int:
        if len(data) - start < _SIZE.size:
            return start
        size: int = _SIZE.unpack_from(data, start)[0]
        awaited.check_size(size)
        begin = start + _SIZE.size
        end = begin + size
        if end > len(data):
            self._wanted = end - start
            return start
        command = awaited.complete(data[begin:end])  # its error names the command awaited
        self._awaited = None
        self._wanted = 0
        self._cost += _BODY_COST
        self._put(command, found)
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
