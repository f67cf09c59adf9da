"""The two compression formats of a connection: raw deflate, and Snappy's framing format.

Owns the stream formats. Compressed output is flushed each time, so that the other side can read all
of it. Decompressed output is bounded: a small input may expand a thousandfold.

    snappy   chunks of: type (1 byte), length (3 bytes, little-endian), data
             ff stream identifier, 00 compressed, 01 uncompressed, fe padding, 80 to fd skippable;
             00 and 01 begin with the masked crc32c (4 bytes, little-endian) of the original data
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, Protocol

import google_crc32c
import pyarrow as pa

from penstock.core.errors import InvalidRequest

_IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
_COMPRESSED: Final = 0x00
_PLAIN: Final = 0x01
_SKIPPABLE_FROM: Final = 0x80
_STREAM: Final = 0xFF
_CHUNK_BYTES: Final = 65_536
_CRC: Final = struct.Struct("<I")
_UINT32: Final = 0xFFFFFFFF
_MASK_DELTA: Final = 0xA282EAD8


class Codec(Protocol):
    """Both directions of a compressed connection."""

    def compress(self, data: bytes) -> bytes:
        """Return bytes from which the other side gets all of `data`."""
        ...

    def decompress(self, data: bytes, max_bytes: int) -> bytes:
        """Return at most `max_bytes` of decompressed data; call again without data for the rest.

        Raises:
            InvalidRequest: The stream is invalid.
        """
        ...


class Deflate:
    """Raw deflate, without zlib's header.

    Args:
        level: 1 to 9.
    """

    def __init__(self, level: int) -> None:
        self._out = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._in = zlib.decompressobj(-zlib.MAX_WBITS)

    def compress(self, data: bytes) -> bytes:
        """Compress and flush."""
        return self._out.compress(data) + self._out.flush(zlib.Z_SYNC_FLUSH)

    def decompress(self, data: bytes, max_bytes: int) -> bytes:
        """Decompress. Raises as `Codec.decompress`."""
        try:
            found = self._in.decompress(self._in.unconsumed_tail + data, max_bytes)
        except zlib.error as error:
            raise InvalidRequest(f"the deflate stream is broken: {error}") from error
        if self._in.eof and not found:
            raise InvalidRequest("the deflate stream has ended, while its connection has not")
        return found


class Snappy:
    """Snappy's framing format."""

    def __init__(self) -> None:
        self._codec = pa.Codec("snappy")
        self._begun = False
        self._identified = False
        self._buffer = bytearray()
        self._ready = bytearray()

    def compress(self, data: bytes) -> bytes:
        """Compress; the first output begins with the stream's identifier."""
        parts = [] if self._begun else [_IDENTIFIER]
        self._begun = True
        for start in range(0, len(data), _CHUNK_BYTES):
            piece = data[start : start + _CHUNK_BYTES]
            packed = self._codec.compress(piece, asbytes=True)
            kind = _COMPRESSED
            if len(packed) >= len(piece):
                kind, packed = _PLAIN, piece
            head = (kind | (len(packed) + _CRC.size) << 8).to_bytes(4, "little")
            parts += [head, _CRC.pack(_masked_crc(piece)), packed]
        return b"".join(parts)

    def decompress(self, data: bytes, max_bytes: int) -> bytes:
        """Decompress. Raises as `Codec.decompress`."""
        self._buffer += data
        position = 0
        while len(self._ready) < max_bytes and position + 4 <= len(self._buffer):
            head = int.from_bytes(self._buffer[position : position + 4], "little")
            kind, length = head & 0xFF, head >> 8
            # The maximum size that 65,536 bytes may be compressed to, by Snappy's own bound.
            if length > _CRC.size + 32 + _CHUNK_BYTES + _CHUNK_BYTES // 6:
                raise InvalidRequest(f"the snappy stream is broken: a chunk of {length} bytes")
            end = position + 4 + length
            if end > len(self._buffer):
                break
            self._take(kind, bytes(self._buffer[position + 4 : end]))
            position = end
        del self._buffer[:position]
        found = bytes(self._ready[:max_bytes])
        del self._ready[:max_bytes]
        return found

    def _take(self, kind: int, chunk: bytes) -> None:
        if kind == _STREAM:
            if chunk != _IDENTIFIER[4:]:
                raise InvalidRequest("the snappy stream is broken: it has a wrong identifier")
            self._identified = True
        elif not self._identified:
            raise InvalidRequest("the snappy stream is broken: its identifier is missing")
        elif kind in {_COMPRESSED, _PLAIN}:
            self._ready += self._unpacked(kind, chunk)
        elif kind < _SKIPPABLE_FROM:
            raise InvalidRequest(f"the snappy stream is broken: chunk type {kind:#x}")

    def _unpacked(self, kind: int, chunk: bytes) -> bytes:
        if len(chunk) < _CRC.size:
            raise InvalidRequest("the snappy stream is broken: a chunk without a checksum")
        (crc,) = _CRC.unpack_from(chunk)
        piece = chunk[_CRC.size :]
        if kind == _COMPRESSED:
            size = _uncompressed_size(piece)
            try:
                piece = self._codec.decompress(piece, size, asbytes=True)
            except OSError as error:
                raise InvalidRequest(f"the snappy stream is broken: {error}") from error
        if len(piece) > _CHUNK_BYTES or _masked_crc(piece) != crc:
            raise InvalidRequest("the snappy stream is broken: a checksum does not match")
        return piece


def _uncompressed_size(piece: bytes) -> int:
    """Return the size at the beginning of a chunk, a varint."""
    size = 0
    for index, octet in enumerate(piece[:5]):
        size |= (octet & 0x7F) << (7 * index)
        if octet < 0x80:
            if size <= _CHUNK_BYTES:
                return size
            break
    raise InvalidRequest("the snappy stream is broken: a piece of more than 65,536 bytes")


def _masked_crc(data: bytes) -> int:
    crc = int(google_crc32c.value(data))
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _UINT32
