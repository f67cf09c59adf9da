"""The bytes of NSQ's V2 protocol as a client has them: commands out, frames in. Pure.

    command   a line, and for some a body: int32 size, bytes
    frame     int32 size of what follows, int32 type (0 response, 1 error, 2 message), data
    message   int64 time of publishing in ns, uint16 attempts, 16 bytes id, body

All numbers are big endian. Whatever the pieces in which bytes arrive, the frames are the same.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

MAGIC: Final = b"  V2"
NOP: Final = b"NOP\n"
START_CLOSE: Final = b"CLS\n"
OK: Final = b"OK"
HEARTBEAT: Final = b"_heartbeat_"
CLOSE_WAIT: Final = b"CLOSE_WAIT"

_NAME: Final = re.compile(r"[.a-zA-Z0-9_-]+(?:#ephemeral)?", re.ASCII)
_NAME_BYTES_MAX: Final = 64
_SIZE: Final = struct.Struct(">I")
_SIZES: Final = struct.Struct(">II")
_HEAD: Final = struct.Struct(">ii")
_MESSAGE_HEAD: Final = struct.Struct(">qH16s")
_RESPONSE: Final = 0
_ERROR: Final = 1
_MESSAGE: Final = 2
_TYPE_BYTES: Final = 4
_BODY_AT: Final = _HEAD.size + _MESSAGE_HEAD.size

RawMessage = tuple[int, int, bytes, bytes]
"""Time of publishing in ns, attempts, id, body."""


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to a command, or a heartbeat."""

    data: bytes


@dataclass(frozen=True, slots=True)
class ErrorFrame:
    """The server's refusal: NSQ's code, and words."""

    data: bytes


Frame = Response | ErrorFrame | list[RawMessage]
"""Messages that follow one another come together."""


class FrameParser:
    """Turns the bytes of a connection into frames.

    Args:
        max_frame_bytes: Largest frame.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self._wanted = 0

    def feed(self, data: bytes, limit: int | None = None) -> list[Frame]:
        """Return the frames that are complete now, `limit` at most; feed nothing for the rest.

        Raises:
            InvalidRequest: What came is no frame.
        """
        self._buffer += data
        if len(self._buffer) < self._wanted:
            return []
        self._wanted = 0
        # Bytes are cut from it without copying all that follows.
        pending = bytes(self._buffer)
        frames: list[Frame] = []
        position = self._parse(pending, frames, limit)
        del self._buffer[:position]
        return frames

    def take_rest(self) -> bytes:
        """Return what came behind the frames that were returned, and forget it."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        self._wanted = 0
        return rest

    def _parse(self, data: bytes, frames: list[Frame], limit: int | None) -> int:
        position, length = 0, len(data)
        unpack, unpack_message = _HEAD.unpack_from, _MESSAGE_HEAD.unpack_from
        messages: list[RawMessage] | None = None
        while position + _HEAD.size <= length and (limit is None or len(frames) < limit):
            size, kind = unpack(data, position)
            if not _TYPE_BYTES <= size <= self._max_frame_bytes:
                self._refuse(f"a frame of {size} bytes")
            end = position + _TYPE_BYTES + size
            if end > length:
                self._wanted = end - position
                break
            if kind == _MESSAGE:
                if end - position < _BODY_AT:
                    self._refuse(f"a message of {size} bytes")
                time_ns, attempts, message_id = unpack_message(data, position + _HEAD.size)
                raw = (time_ns, attempts, message_id, data[position + _BODY_AT : end])
                if messages is None:
                    messages = []
                    frames.append(messages)
                messages.append(raw)
            else:
                messages = None
                body = data[position + _HEAD.size : end]
                if kind == _RESPONSE:
                    frames.append(Response(body))
                elif kind == _ERROR:
                    frames.append(ErrorFrame(body))
                else:
                    self._refuse(f"a frame of type {kind}")
            position = end
        return position

    def _refuse(self, what: str) -> None:
        raise InvalidRequest(
            f"the server sent {what}, which is not NSQ's V2 protocol: is this its TCP port, or is "
            f"max_frame_bytes ({self._max_frame_bytes}) too small?"
        )


def require_name(name: str, what: str) -> str:
    """Return a name of a topic or channel.

    Raises:
        InvalidRequest: It breaks NSQ's rules.
    """
    if len(name) > _NAME_BYTES_MAX or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name[:_NAME_BYTES_MAX]!r} is no name of a {what}: use 1 to {_NAME_BYTES_MAX} of the "
            "characters a-z A-Z 0-9 . _ -, with '#ephemeral' at the end if it lives in memory only"
        )
    return name


def identify(body: bytes) -> bytes:
    """Say what the client is and wants."""
    return b"".join((b"IDENTIFY\n", _SIZE.pack(len(body)), body))


def authenticate(secret: str) -> bytes:
    """Say the secret."""
    encoded = secret.encode()
    return b"".join((b"AUTH\n", _SIZE.pack(len(encoded)), encoded))


def publish(topic: str, message: bytes) -> bytes:
    """Publish a message."""
    return b"".join((b"PUB ", topic.encode(), b"\n", _SIZE.pack(len(message)), message))


def publish_deferred(topic: str, delay_ms: int, message: bytes) -> bytes:
    """Publish a message that is due later."""
    line = f"DPUB {topic} {delay_ms}\n".encode()
    return b"".join((line, _SIZE.pack(len(message)), message))


def publish_many(topic: str, messages: Sequence[bytes]) -> bytes:
    """Publish a batch."""
    sizes = list(map(len, messages))
    parts: list[bytes] = [b""] * (2 * len(messages))
    parts[::2] = map(_SIZE.pack, sizes)
    parts[1::2] = messages
    head = _SIZES.pack(batch_body_bytes(sizes), len(messages))
    return b"".join((b"MPUB ", topic.encode(), b"\n", head, *parts))


def batch_body_bytes(sizes: Sequence[int]) -> int:
    """Return the size of the body that a batch of messages of these sizes has."""
    return _SIZE.size * (len(sizes) + 1) + sum(sizes)


def subscribe(topic: str, channel: str) -> bytes:
    """Subscribe to a channel."""
    return f"SUB {topic} {channel}\n".encode()


def ready(count: int) -> bytes:
    """Say how many messages may be in flight."""
    return b"RDY %d\n" % count


def finish(message_ids: Sequence[bytes]) -> bytes:
    """Say that messages, at least one, are done with."""
    return b"".join((b"FIN ", b"\nFIN ".join(message_ids), b"\n"))


def requeue(message_id: bytes, delay_ms: int) -> bytes:
    """Say that a message shall come again."""
    return b"REQ %b %d\n" % (message_id, delay_ms)


def touch(message_id: bytes) -> bytes:
    """Say that a message needs more time."""
    return b"TOUCH %b\n" % message_id
