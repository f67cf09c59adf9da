"""NSQ's V2 protocol on the client's side: commands out, frames in. Pure.

    command   a line, and for some a body: int32 size, bytes
    frame     int32 size of the rest, int32 type (0 response, 1 error, 2 message), data
    message   int64 time of publication in ns, uint16 attempts, 16 bytes id, body

All numbers are big-endian. The frames do not depend on the pieces in which bytes arrive.
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
"""Time of publication in ns, attempts, id, body."""


@dataclass(frozen=True, slots=True)
class ResponseFrame:
    """The answer to a command, or a heartbeat."""

    data: bytes


@dataclass(frozen=True, slots=True)
class ErrorFrame:
    """An error of the server: NSQ's code and text."""

    data: bytes


Frame = ResponseFrame | ErrorFrame | list[RawMessage]
"""Consecutive messages are combined into one list."""


class FrameParser:
    """Parses the bytes of a connection into frames.

    Args:
        max_frame_bytes: Largest frame.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self._wanted = 0

    def feed(self, data: bytes, limit: int | None = None) -> list[Frame]:
        """Return at most `limit` complete frames; feed an empty text to get the rest.

        Raises:
            InvalidRequest: The bytes are not a frame.
        """
        self._buffer += data
        if len(self._buffer) < self._wanted:
            return []
        self._wanted = 0
        # A copy, so that slices do not copy everything after them.
        pending = bytes(self._buffer)
        frames: list[Frame] = []
        position = self._parse(pending, frames, limit)
        del self._buffer[:position]
        return frames

    def take_rest(self) -> bytes:
        """Return and drop the bytes after the returned frames."""
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
                    frames.append(ResponseFrame(body))
                elif kind == _ERROR:
                    frames.append(ErrorFrame(body))
                else:
                    self._refuse(f"a frame of type {kind}")
            position = end
        return position

    def _refuse(self, what: str) -> None:
        raise InvalidRequest(
            f"the server sent {what}, which is not NSQ's V2 protocol: check that this is its TCP "
            f"port, or raise max_frame_bytes ({self._max_frame_bytes})"
        )


def require_name(name: str, what: str) -> str:
    """Check a name of a topic or channel, and return it.

    Raises:
        InvalidRequest: It breaks NSQ's rules.
    """
    if len(name) > _NAME_BYTES_MAX or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name[:_NAME_BYTES_MAX]!r} is not a valid {what} name: use 1 to {_NAME_BYTES_MAX} "
            "of a-z A-Z 0-9 . _ -, and '#ephemeral' at the end to keep it only in memory"
        )
    return name


def identify(body: bytes) -> bytes:
    """Encode an IDENTIFY."""
    return b"".join((b"IDENTIFY\n", _SIZE.pack(len(body)), body))


def authenticate(secret: str) -> bytes:
    """Encode an AUTH with a secret."""
    encoded = secret.encode()
    return b"".join((b"AUTH\n", _SIZE.pack(len(encoded)), encoded))


def publish(topic: str, message: bytes) -> bytes:
    """Encode a PUB."""
    return b"".join((b"PUB ", topic.encode(), b"\n", _SIZE.pack(len(message)), message))


def publish_deferred(topic: str, delay_ms: int, message: bytes) -> bytes:
    """Encode a DPUB."""
    line = f"DPUB {topic} {delay_ms}\n".encode()
    return b"".join((line, _SIZE.pack(len(message)), message))


def publish_many(topic: str, messages: Sequence[bytes]) -> bytes:
    """Encode an MPUB."""
    sizes = list(map(len, messages))
    parts: list[bytes] = [b""] * (2 * len(messages))
    parts[::2] = map(_SIZE.pack, sizes)
    parts[1::2] = messages
    head = _SIZES.pack(batch_body_bytes(sizes), len(messages))
    return b"".join((b"MPUB ", topic.encode(), b"\n", head, *parts))


def batch_body_bytes(sizes: Sequence[int]) -> int:
    """Return the size of the body of a batch of messages with these sizes."""
    return _SIZE.size * (len(sizes) + 1) + sum(sizes)


def subscribe(topic: str, channel: str) -> bytes:
    """Encode a SUB."""
    return f"SUB {topic} {channel}\n".encode()


def ready(count: int) -> bytes:
    """Encode an RDY."""
    return b"RDY %d\n" % count


def finish(message_ids: Sequence[bytes]) -> bytes:
    """Encode a FIN for each of one or more messages."""
    return b"".join((b"FIN ", b"\nFIN ".join(message_ids), b"\n"))


def requeue(message_id: bytes, delay_ms: int) -> bytes:
    """Encode a REQ."""
    return b"REQ %b %d\n" % (message_id, delay_ms)


def touch(message_id: bytes) -> bytes:
    """Encode a TOUCH."""
    return b"TOUCH %b\n" % message_id
