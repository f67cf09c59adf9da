"""Records of a channel's journal: a few bytes each, with their encoding.

A record is a letter and little-endian numbers; a snapshot is a sequence of records after one byte
for the format. Records of one blob are applied in order.

    S partition offset        seek to this offset, and drop the state of the partition
    N partition offset        everything below was delivered, or is covered by another record
    R id due_ms attempts      waits until then
    F partition start end     finished
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import CorruptData, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMAT: Final = 1

_SEEK: Final = struct.Struct("<Hq")
_NEXT: Final = struct.Struct("<Hq")
_RETRY: Final = struct.Struct("<qqH")
_DONE: Final = struct.Struct("<Hqq")


class ReplayTarget(Protocol):
    """State to which records are applied."""

    def on_seek(self, partition: int, offset: int) -> None:
        """Seek to an offset."""
        ...

    def on_next(self, partition: int, offset: int) -> None:
        """Set the offset below which everything was delivered."""
        ...

    def on_retry(self, number: int, due_ms: int, attempts: int) -> None:
        """Let a message wait."""
        ...

    def on_done(self, partition: int, start: int, end: int) -> None:
        """Finish messages."""
        ...


def seek(partition: int, offset: int) -> bytes:
    """Return an S record."""
    return b"S" + _SEEK.pack(partition, offset)


def next_(partition: int, offset: int) -> bytes:
    """Return an N record."""
    return b"N" + _NEXT.pack(partition, offset)


def retry(number: int, due_ms: int, attempts: int) -> bytes:
    """Return an R record."""
    return b"R" + _RETRY.pack(number, due_ms, attempts)


def done(partition: int, start: int, end: int) -> bytes:
    """Return an F record."""
    return b"F" + _DONE.pack(partition, start, end)


def snapshot(parts: Iterable[bytes]) -> bytes:
    """Return a snapshot of the records."""
    return bytes([FORMAT]) + b"".join(parts)


def replay_snapshot(blob: bytes, into: ReplayTarget) -> None:
    """Apply a snapshot.

    Raises:
        InvalidRequest: It has a newer format.
        CorruptData: It is not a snapshot.
    """
    if blob and blob[0] > FORMAT:
        raise InvalidRequest(
            f"a channel's journal has format {blob[0]}, but this release reads up to {FORMAT}: use "
            "the release that wrote it, or a newer one"
        )
    replay(blob[1:], into)


def replay(blob: bytes, into: ReplayTarget) -> None:
    """Apply records in their order.

    Raises:
        CorruptData: They are not records; those before the position were applied.
    """
    position = 0
    try:
        while position < len(blob):
            kind = blob[position : position + 1]
            position += 1
            if kind == b"F":
                into.on_done(*_DONE.unpack_from(blob, position))
                position += _DONE.size
            elif kind == b"N":
                into.on_next(*_NEXT.unpack_from(blob, position))
                position += _NEXT.size
            elif kind == b"R":
                into.on_retry(*_RETRY.unpack_from(blob, position))
                position += _RETRY.size
            elif kind == b"S":
                into.on_seek(*_SEEK.unpack_from(blob, position))
                position += _SEEK.size
            else:
                raise CorruptData("a channel's journal", position, f"record type {kind!r}")
    except struct.error as error:
        raise CorruptData("a channel's journal", position, "a truncated record") from error
