"""How much a packed block of an Avro file takes unpacked, found out without unpacking it whole.

The reader of Avro unpacks a block at once, and a few bytes may stand for any number of them. Owns
the bound alone: what the bytes of a block are, and whether they are whole, the reader says.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import pyarrow as pa

BLOCK_BYTES_MAX: Final = 128 * 1024 * 1024
"""A block that unpacks to more is refused; writers make blocks of kilobytes."""

# Two numbers of at most ten bytes each stand before a block.
_HEAD_BYTES: Final = 20


class _Unpacker(Protocol):
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


# No byte of these stands for more bytes: most blocks are small enough to be let through at once.
_RATIOS_MAX: Final[Mapping[str, int]] = {
    "deflate": 1_032,
    "bzip2": 50_000,
    "xz": 10_000,
    "zstandard": 32_768,
    "snappy": 64,
    "lz4": 256,
}
_UNPACKERS: Final[Mapping[str, Callable[[], _Unpacker]]] = {
    "deflate": lambda: zlib.decompressobj(-15),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lzma.LZMADecompressor,
}


def unpacks_to_more(stored: pa.NativeFile, codec: str, bytes_max: int) -> bool:
    """Whether the block that a file stands before is larger than that when it is unpacked.

    The file stands there again afterwards. What is damaged is not larger.
    """
    at = stored.tell()
    try:
        head = stored.read(_HEAD_BYTES)
        _, size_at = _number(head, 0)
        size, data_at = _number(head, size_at)
        if size * _RATIOS_MAX.get(codec, 1) <= bytes_max:
            return False
        if codec not in _RATIOS_MAX:
            return True
        stored.seek(at + data_at)
        return _length(codec, stored.read(size), bytes_max) > bytes_max
    except (EOFError, ValueError, OSError, struct.error, zlib.error, lzma.LZMAError):
        return False  # The reader comes upon that, too.
    finally:
        stored.seek(at)


def _length(codec: str, data: bytes, bytes_max: int) -> int:
    """Return how many bytes these stand for; of very many, that they are more than `bytes_max`."""
    if codec == "snappy":  # The length stands before them, seven bits in a byte.
        length, shift = 0, 0
        for byte in data[:5]:
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        return length
    if codec == "lz4":
        return int.from_bytes(data[:4], "little")
    if codec == "zstandard":
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as plain:
            return len(plain.read(bytes_max + 1))
    return len(_UNPACKERS[codec]().decompress(data, bytes_max + 1))


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number as Avro writes it, and where it ends.

    Raises:
        EOFError: It is cut off.
    """
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + place + 1
    raise EOFError
