"""Bounds of Avro object container files, checked before a block is decompressed or decoded.

fastavro decompresses each block as a whole, and a few bytes may expand to any number. It also reads
as many records, and values of an array, as their counts announce: if a value takes no bytes, a
count of ten bytes can announce 2**63 values.

Owns only the bounds: fastavro reports the contents of a block, and whether it is complete.
"""

from __future__ import annotations

import bz2
import itertools
import lzma
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import BinaryIO, Final, Protocol

import pyarrow as pa

from penstock.core.errors import InvalidRequest

BLOCK_BYTES_MAX: Final = 128 * 1024 * 1024
"""A block that decompresses to more is refused; writers create blocks of kilobytes."""
BATCH_BYTES: Final = 4 << 20
"""Approximate encoded size of a list of records, which need up to 70 times as much in Python."""
EMPTY_RECORDS_MAX: Final = 1_000_000
"""Maximum number of records without bytes in a file."""

# A block begins with two numbers of at most ten bytes each.
_HEAD_BYTES: Final = 20


class _Unpacker(Protocol):
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


# Maximum expansion of one byte by codec: most blocks are small enough to pass without
# decompression.
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
    "xz": lambda: lzma.LZMADecompressor(memlimit=BLOCK_BYTES_MAX),
}


class SeekableInput(Protocol):
    """The used methods of an open file."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes."""
        ...

    def tell(self) -> int:
        """Return the position of the next byte."""
        ...

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move to a position, and return it."""
        ...


class AvroBlock(Protocol):
    """The used members of a block of fastavro: its offset, number of records, and their bytes."""

    offset: int
    num_records: int
    bytes_: BinaryIO

    def __iter__(self) -> Iterator[Mapping[str, object]]:
        """Yield the records."""
        ...


class AvroBlocks(Protocol):
    """The used members of fastavro's block reader."""

    codec: str
    writer_schema: object

    def __iter__(self) -> Iterator[AvroBlock]:
        """Yield the blocks, each decompressed."""
        ...


def bounded_blocks(
    stored: SeekableInput, blocks: AvroBlocks, shown: str, bytes_max: int = BLOCK_BYTES_MAX
) -> Iterator[AvroBlock]:
    """Yield the blocks of a file; each is checked before fastavro decompresses it.

    Args:
        stored: The file, which `blocks` reads.
        blocks: The reader.
        shown: Name of the file in messages.
        bytes_max: Maximum size of a decompressed block.

    Raises:
        InvalidRequest: The schema or a block exceeds the bounds.
    """
    place = endless_array(blocks.writer_schema)
    if place is not None:
        raise InvalidRequest(
            f"{shown}: field {place!r} is an array of values that take no bytes, so a few bytes can"
            " announce any number of them: write the number of values, or leave the field out"
        )
    recursive = recursive_field(blocks.writer_schema)
    if recursive is not None:
        raise InvalidRequest(
            f"{shown}: field {recursive!r} is of a type that contains itself, so no column can hold"
            " its values: write the field as JSON text"
        )
    found = iter(blocks)
    without_bytes = is_empty(blocks.writer_schema)
    empty = 0
    while not unpacks_to_more(stored, blocks.codec, bytes_max):
        block = next(found, None)
        if block is None:
            return
        empty += block.num_records if without_bytes else 0
        if empty > EMPTY_RECORDS_MAX:
            raise InvalidRequest(
                f"{shown}: with the block at byte {block.offset} the file announces {empty:,}"
                f" records that take no bytes, more than {EMPTY_RECORDS_MAX:,}: write records with"
                " values"
            )
        yield block
    raise InvalidRequest(
        f"{shown}: the block at byte {stored.tell()} unpacks to more than {bytes_max:,} bytes:"
        " write the file with smaller blocks, such as Avro's default of about 16,000 bytes"
    )


def gathered_records(
    blocks: Iterable[AvroBlock], rows_max: int
) -> Iterator[list[Mapping[str, object]]]:
    """Yield the records in lists of at most `rows_max`, and of about `BATCH_BYTES`.

    Clear a list once its records are no longer needed: the next list takes as much memory.

    Raises:
        ValueError: A block does not contain as many records as it announces.
    """
    held: list[Mapping[str, object]] = []
    held_bytes = 0.0
    for block in blocks:
        size = block.bytes_.seek(0, os.SEEK_END) / max(block.num_records, 1)
        block.bytes_.seek(0)
        records = _records(block)
        step = min(rows_max, int(BATCH_BYTES // size) + 1) if size else rows_max
        while True:
            before = len(held)
            held.extend(itertools.islice(records, min(step, rows_max - before)))
            if len(held) == before:
                break
            held_bytes += size * (len(held) - before)
            if len(held) == rows_max or held_bytes >= BATCH_BYTES:
                yield held
                held, held_bytes = [], 0.0
    if held:
        yield held


def _records(block: AvroBlock) -> Iterator[Mapping[str, object]]:
    """Yield the records of a block. Their number must be as announced, and no byte may be left."""
    if block.num_records < 0:
        raise ValueError(f"a block of {block.num_records} records")
    yield from block
    if block.bytes_.read(1):
        raise ValueError(f"a block has more than its announced {block.num_records} records")


def unpacks_to_more(stored: SeekableInput, codec: str, bytes_max: int) -> bool:
    """Return whether the block at the file's position decompresses to more than a size.

    The position is restored afterwards. Damaged blocks count as not larger.
    """
    at = stored.tell()
    try:
        head = stored.read(_HEAD_BYTES)
        _, size_at = _number(head, 0)
        size, data_at = _number(head, size_at)
        if size * _RATIOS_MAX.get(codec, 1) <= bytes_max:
            return False
        if size > stored.seek(0, os.SEEK_END) - at:
            return False  # fastavro reports a truncated block.
        if codec not in _RATIOS_MAX or size > bytes_max:
            return True
        stored.seek(at + data_at)
        return _length(codec, stored.read(size), bytes_max) > bytes_max
    except (EOFError, ValueError, OSError, struct.error, zlib.error, lzma.LZMAError):
        return False  # fastavro reports the same damage.
    finally:
        stored.seek(at)


def is_empty(schema: object) -> bool:
    """Return whether values of a schema take no bytes, such as null and records of nulls."""
    return _is_empty(schema, _named(schema), ())


def endless_array(schema: object) -> str | None:
    """Return the path of an array whose values take no bytes, such as ``row.tags``, or None.

    The bytes of such an array imply no bound: its count alone determines the number of values.
    """
    return _endless(schema, "", _named(schema))


def recursive_field(schema: object) -> str | None:
    """Return the path of a field whose record contains itself, such as ``node.next``, or None.

    fastavro recurses for each level of such a value, so a small block can exhaust its stack. A type
    is defined before it is used, so a record can contain itself only within its definition.
    """
    left: list[tuple[object, str, frozenset[str], str]] = [(schema, "", frozenset(), "")]
    while left:
        one, namespace, within, place = left.pop()
        if isinstance(one, str):
            if _full_name(one, namespace) in within:
                return place
        elif isinstance(one, list):
            left += [(part, namespace, within, place) for part in one]
        elif isinstance(one, Mapping):
            fields, name = one.get("fields"), one.get("name")
            if isinstance(fields, list) and isinstance(name, str):
                full = _full_name(name, str(one.get("namespace", namespace)))
                inner = full.rpartition(".")[0]
                left += [
                    (
                        *(field.get("type"), inner, within | {full}),
                        f"{place}.{field.get('name')}".lstrip("."),
                    )
                    for field in fields
                ]
            else:
                parts = [one.get(key) for key in ("type", "items", "values")]
                left += [(part, namespace, within, place) for part in parts]
    return None


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _endless(schema: object, place: str, named: Mapping[str, object]) -> str | None:
    parts: list[tuple[object, str]] = []
    if isinstance(schema, list):
        parts = [(one, place) for one in schema]
    elif isinstance(schema, Mapping):
        kind = schema.get("type")
        if kind == "array":
            if _is_empty(schema.get("items"), named, ()):
                return place
            parts = [(schema.get("items"), f"{place}[]")]
        elif kind == "map":
            parts = [(schema.get("values"), f"{place}{{}}")]
        elif isinstance(schema.get("fields"), list):
            parts = [
                (field.get("type"), f"{place}.{field.get('name')}".lstrip("."))
                for field in schema["fields"]
            ]
        else:
            parts = [(kind, place)]
    found = (_endless(part, where, named) for part, where in parts)
    return next((one for one in found if one is not None), None)


def _is_empty(schema: object, named: Mapping[str, object], within: tuple[str, ...]) -> bool:
    if isinstance(schema, str):
        if schema == "null":
            return True
        # A record that contains itself takes no bytes or never ends: fastavro refuses it.
        return (
            schema not in within
            and schema in named
            and _is_empty(named[schema], named, (*within, schema))
        )
    if not isinstance(schema, Mapping):
        return False  # A union: the number of its type is a byte.
    kind = schema.get("type")
    if isinstance(schema.get("fields"), list):
        return all(_is_empty(field.get("type"), named, within) for field in schema["fields"])
    if kind == "fixed":
        return schema.get("size") == 0
    return kind not in {"array", "map"} and _is_empty(kind, named, within)


def _named(schema: object) -> dict[str, object]:
    """Return the named types of a schema."""
    found: dict[str, object] = {}
    left = [schema]
    while left:
        one = left.pop()
        if isinstance(one, list):
            left += one
        elif isinstance(one, Mapping):
            name = one.get("name")
            if isinstance(name, str) and one.get("type") in {"record", "error", "fixed"}:
                found[name] = one
            left += [one.get("items"), one.get("values"), one.get("type")]
            left += [field.get("type") for field in one.get("fields") or ()]
    return found


def _length(codec: str, data: bytes, bytes_max: int) -> int:
    """Return the decompressed size; if very large, any number above `bytes_max`."""
    if codec == "snappy":  # The data begins with the length, seven bits in a byte.
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
    """Return a number in Avro's encoding, and the position of its end.

    Raises:
        EOFError: It is truncated.
    """
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + place + 1
    raise EOFError
