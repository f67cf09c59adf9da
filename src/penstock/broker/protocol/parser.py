"""Commands out of a stream of bytes, whatever its pieces.

Owns the grammar of NSQ's V2 protocol and its bounds: a size is refused before its body comes. Does
not own what is allowed when (`penstock.broker.tcp`), nor the magic that begins a connection.

Runs of the same command are taken together: FINs, 21 bytes each, in one step for all that came at
once, and PUBs of one topic into one batch.

Invariants: pure; any way to cut the bytes gives the same commands, but for how runs are grouped;
nothing is kept beyond one command; after `Malformed` nothing more is parsed.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.broker import messageid
from penstock.broker.messages import MalformedBody, parse_binary_prefix
from penstock.broker.names import is_valid_name
from penstock.broker.protocol import commands as c

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.protocol.limits import ProtocolLimits

_INT32: Final = struct.Struct(">i")
_FIN: Final = b"FIN "
_FIN_BYTES: Final = len(_FIN) + messageid.ID_BYTES + 1
_FIN_HEAD: Final = int.from_bytes(_FIN, "little")
_FIN_ROW: Final = np.dtype(
    [("head", "<u4"), ("id", np.uint8, (messageid.ID_BYTES,)), ("end", np.uint8)]
)
_NEWLINE: Final = 0x0A
_DIGITS_MAX: Final = 18  # what NSQ's numbers of 64 bits hold for sure


class CommandParser:
    """Parses one connection's commands.

    Args:
        limits: The bounds.
    """

    def __init__(self, limits: ProtocolLimits) -> None:
        self._limits = limits
        self._buffer = bytearray()
        self._wanted = 0  # bytes that must be there before parsing can go on
        self._scanned = 0  # bytes of the line under way that hold no newline
        self._ended = False
        self._body = b""
        self._pub_line = b""  # the line of the last PUB; those that follow are likely the same
        self._pub_topic = ""
        self._with_body: dict[bytes, Callable[[list[bytes]], c.Command]] = {
            b"PUB": self._pub,
            b"MPUB": self._mpub,
            b"DPUB": self._dpub,
            b"IDENTIFY": self._identify,
            b"AUTH": self._auth,
        }
        self._without_body: dict[bytes, Callable[[list[bytes]], c.Command]] = {
            b"FIN": self._fin,
            b"RDY": self._rdy,
            b"REQ": self._req,
            b"TOUCH": self._touch,
            b"SUB": self._sub,
            b"NOP": lambda _: c.Nop(),
            b"CLS": lambda _: c.StartClose(),
        }

    @property
    def wanted_bytes(self) -> int:
        """Return what the command under way still lacks; 0 when that is not known."""
        return max(0, self._wanted - len(self._buffer))

    def feed(self, data: bytes) -> list[c.Command]:
        """Return the commands that are complete now, in order."""
        found: list[c.Command] = []
        if self._ended:
            return found
        self._buffer += data
        if len(self._buffer) < self._wanted:
            return found
        # Bytes are cut from it without copying all that follows.
        pending = bytes(self._buffer)
        position = 0
        try:
            while position < len(pending):
                end = self._next(pending, position, found)
                if end == position:
                    break
                position = end
        except c.Refused as refused:
            self._ended = True
            self._buffer.clear()
            found.append(c.Malformed(refused.code, refused.text))
            return found
        self._buffer = bytearray(pending[position:]) if position else self._buffer
        return found

    # -- one command

    def _next(self, data: bytes, start: int, found: list[c.Command]) -> int:
        """Parse the command at `start`; return where it ends, or `start` if it is not all there."""
        self._wanted = 0
        if data.startswith(_FIN, start):
            end = self._take_fins(data, start, found)
            if end > start:
                return end
        elif self._pub_line and data.startswith(self._pub_line, start):
            end = self._take_pubs(data, start, found)
            if end > start:
                return end
        newline = data.find(b"\n", start + self._scanned)
        if newline < 0 or newline - start > self._limits.max_line_bytes:
            if len(data) - start > self._limits.max_line_bytes:
                raise c.Refused("E_INVALID", "command line too long")
            self._scanned = len(data) - start
            return start
        # A body that is not all there is waited for without looking for the newline again.
        self._scanned = 0
        line = data[start:newline]
        parts = (line[:-1] if line.endswith(b"\r") else line).split(b" ")
        with_body = self._with_body.get(parts[0])
        if with_body is None:
            self._put(self._plain(parts), found)
            return newline + 1
        return self._take_body(data, start, newline + 1, parts, with_body, found)

    def _plain(self, parts: list[bytes]) -> c.Command:
        parse = self._without_body.get(parts[0])
        if parse is None:
            raise c.Refused("E_INVALID", f"invalid command {_shown(parts[0])}")
        return parse(parts)

    def _take_body(
        self,
        data: bytes,
        start: int,
        at: int,
        parts: list[bytes],
        parse: Callable[[list[bytes]], c.Command],
        found: list[c.Command],
    ) -> int:
        self._check_line(parts)
        if len(data) < at + 4:
            self._wanted = at + 4 - start
            return start
        size: int = _INT32.unpack_from(data, at)[0]
        self._check_size(parts[0], size)
        end = at + 4 + size
        if len(data) < end:
            self._wanted = end - start
            return start
        self._body = data[at + 4 : end]
        self._put(parse(parts), found)
        if parts[0] == b"PUB":
            self._pub_line, self._pub_topic = data[start:at], parts[1].decode("latin-1")
        return end

    def _put(self, command: c.Command, found: list[c.Command]) -> None:
        if found:
            last = found[-1]
            if (
                isinstance(command, c.Publish)
                and isinstance(last, c.Publish)
                and last.topic == command.topic
            ):
                last.messages.extend(command.messages)
                return
        found.append(command)

    def _take_fins(self, data: bytes, start: int, found: list[c.Command]) -> int:
        count = (len(data) - start) // _FIN_BYTES
        if not count:
            return start
        rows = np.frombuffer(data, _FIN_ROW, count, start)
        good = (rows["head"] == _FIN_HEAD) & (rows["end"] == _NEWLINE)
        if not good.all():
            count = int(good.argmin())
            if not count:
                return start
            rows = rows[:count]
        digits = rows["id"]
        if (digits == _NEWLINE).any():
            return start  # a shorter line: let it be parsed, and refused, one by one
        found.append(c.Finish(messageid.decode(digits)))
        return start + count * _FIN_BYTES

    def _take_pubs(self, data: bytes, start: int, found: list[c.Command]) -> int:
        line, limit = self._pub_line, self._limits.max_message_bytes
        head = len(line) + 4
        length = len(data)
        unpack = _INT32.unpack_from
        messages: list[bytes] = []
        while start + head <= length and data.startswith(line, start):
            size: int = unpack(data, start + head - 4)[0]
            end = start + head + size
            if not 0 < size <= limit or end > length:
                break
            messages.append(data[start + head : end])
            start = end
        if messages:
            self._put(c.Publish(self._pub_topic, messages), found)
        return start

    # -- what may be wrong before a body comes

    def _check_line(self, parts: list[bytes]) -> None:
        name = parts[0].decode()
        if name in {"IDENTIFY", "AUTH"}:
            if len(parts) != 1 and name == "AUTH":
                raise c.Refused("E_INVALID", "AUTH invalid number of parameters")
            return
        needed = 3 if name == "DPUB" else 2
        if len(parts) < needed:
            raise c.Refused("E_INVALID", f"{name} insufficient number of parameters")
        topic = parts[1].decode("latin-1")
        if not is_valid_name(topic):
            repeated = "E_BAD_TOPIC " if name == "MPUB" else ""
            shown = f'{repeated}{name} topic name "{_shown(parts[1])}" is not valid'
            raise c.Refused("E_BAD_TOPIC", shown)
        if name == "DPUB":
            limit = self._limits.max_requeue_ms
            delay = self._number(parts[2], f"DPUB could not parse timeout {_shown(parts[2])}")
            if delay > limit:
                text = f"DPUB timeout {delay} out of range 0-{limit}"
                raise c.Refused("E_INVALID", text)

    def _check_size(self, command: bytes, size: int) -> None:
        name = command.decode()
        if name in {"PUB", "DPUB"}:
            if size <= 0:
                raise c.Refused("E_BAD_MESSAGE", f"{name} invalid message body size {size}")
            if size > self._limits.max_message_bytes:
                text = f"{name} message too big {size} > {self._limits.max_message_bytes}"
                raise c.Refused("E_BAD_MESSAGE", text)
            return
        if size <= 0:
            raise c.Refused("E_BAD_BODY", f"{name} invalid body size {size}")
        if size > self._limits.max_body_bytes:
            text = f"{name} body too big {size} > {self._limits.max_body_bytes}"
            raise c.Refused("E_BAD_BODY", text)

    # -- the commands

    def _pub(self, parts: list[bytes]) -> c.Command:
        return c.Publish(parts[1].decode("latin-1"), [self._body])

    def _dpub(self, parts: list[bytes]) -> c.Command:
        return c.DeferredPublish(parts[1].decode("latin-1"), int(parts[2]), self._body)

    def _mpub(self, parts: list[bytes]) -> c.Command:
        limits = self._limits
        try:
            messages, used = parse_binary_prefix(
                self._body, limits.max_message_bytes, limits.max_body_bytes
            )
        except MalformedBody as error:
            raise c.Refused(f"E_{error.code}", f"MPUB {error.nsq_text}") from error
        payload = used - 4 * (len(messages) + 1)
        return c.MultiPublish(parts[1].decode("latin-1"), messages, payload)

    def _identify(self, _parts: list[bytes]) -> c.Command:
        return c.Identify(self._body)

    def _auth(self, _parts: list[bytes]) -> c.Command:
        return c.Authenticate(self._body)

    def _sub(self, parts: list[bytes]) -> c.Command:
        if len(parts) < 3:
            raise c.Refused("E_INVALID", "SUB insufficient number of parameters")
        topic, channel = parts[1].decode("latin-1"), parts[2].decode("latin-1")
        if not is_valid_name(topic):
            text = f'SUB topic name "{_shown(parts[1])}" is not valid'
            raise c.Refused("E_BAD_TOPIC", text)
        if not is_valid_name(channel):
            text = f'SUB channel name "{_shown(parts[2])}" is not valid'
            raise c.Refused("E_BAD_CHANNEL", text)
        return c.Subscribe(topic, channel)

    def _rdy(self, parts: list[bytes]) -> c.Command:
        count = 1
        if len(parts) > 1:
            count = self._number(parts[1], f"RDY could not parse count {_shown(parts[1])}")
        limit = self._limits.max_ready_count
        if count > limit:
            raise c.Refused("E_INVALID", f"RDY count {count} out of range 0-{limit}")
        return c.Ready(count)

    def _fin(self, parts: list[bytes]) -> c.Command:
        if len(parts) < 2:
            raise c.Refused("E_INVALID", "FIN insufficient number of params")
        return c.Finish(np.array([_id(parts[1])], np.int64))

    def _req(self, parts: list[bytes]) -> c.Command:
        if len(parts) < 3:
            raise c.Refused("E_INVALID", "REQ insufficient number of params")
        number = _id(parts[1])
        delay = self._number(parts[2], f"REQ could not parse timeout {_shown(parts[2])}")
        return c.Requeue(number, min(delay, self._limits.max_requeue_ms))

    def _touch(self, parts: list[bytes]) -> c.Command:
        if len(parts) < 2:
            raise c.Refused("E_INVALID", "TOUCH insufficient number of params")
        return c.Touch(_id(parts[1]))

    @staticmethod
    def _number(raw: bytes, text: str) -> int:
        if not raw.isdigit() or len(raw) > _DIGITS_MAX:
            raise c.Refused("E_INVALID", text)
        return int(raw)


def _id(raw: bytes) -> int:
    if len(raw) != messageid.ID_BYTES:
        raise c.Refused("E_INVALID", "invalid message ID")
    return messageid.parse(raw)


def _shown(raw: bytes) -> str:
    """Return what a client sent, short and harmless enough for an answer and a log."""
    return raw[:64].decode("ascii", "backslashreplace")
