"""Bounds of ORC files: how many rows of a stripe may be read at once; checked before the reading.

A stripe may store a value once, in a dictionary, and its rows may take any number of bytes. The
tail of a file has the number of rows of each stripe, and statistics with the total length of its
texts. Owns the bounds, which are computed from these numbers, and a view of a file with one stripe:
Arrow can read a file in batches, but not a stripe. Does not own reading: the memory limit of the
process handles wrong statistics.

The format is that of https://orc.apache.org/specification/ORCv1: the sections of the tail are
messages of Protocol Buffers, in compressed chunks.
"""

from __future__ import annotations

import contextlib
import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    from typing_extensions import Buffer

STRIPE_BYTES_MAX: Final = 128 << 20
"""Approximate maximum size of the rows of a stripe that is read as a whole."""
VALUE_BYTES_MAX: Final = 512 << 20
"""A stripe in which the average value of a column is larger is refused."""
ROWS_PER_BYTE_MAX: Final = 100_000
"""Maximum number of rows for each byte of a file; a file of equal rows has a few thousand."""
BATCH_ROWS_MAX: Final = 8_192
"""Maximum number of rows that are read at once of a stripe that is not read as a whole."""
TAIL_BYTES_MAX: Final = 256 << 20
"""Maximum size of a section of the tail: some writers store the least and the greatest text."""
FIELDS_MAX: Final = 1_000_000
"""Maximum number of stripes, columns and other fields of the footer."""
# Arrow reads some batches ahead of the one that is processed.
_BATCH_BYTES: Final = 8 << 20
# Values of a batch may be larger than the average of the stripe.
_UNEVEN: Final = 4
# Size in memory of a value of fixed size, or of the offset of any other value.
_VALUE_BYTES: Final = 8
# Assumed size of a text whose length no statistics contain.
_UNKNOWN_BYTES: Final = _BATCH_BYTES // 1_024
_MAGIC: Final = b"ORC"
# Protocol Buffers: kinds of fields.
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
# Fields of the sections.
_PS_FOOTER, _PS_CODEC, _PS_BLOCK, _PS_METADATA = 1, 2, 3, 5
_FOOTER_STRIPES, _FOOTER_TYPES, _FOOTER_ROWS, _FOOTER_STATISTICS = 3, 4, 6, 7
_STRIPE_ROWS: Final = 5
_TYPE_KIND, _TYPE_SUBTYPES, _TYPE_NAMES = 1, 2, 3
_VALUES, _STRING, _BINARY = 1, 4, 8
_TEXT_KINDS: Final = frozenset({7, 8, 16, 17})  # string, binary, varchar, char
_NO_CODEC, _ZLIB, _SNAPPY, _LZ4, _ZSTD = 0, 1, 2, 4, 5
_BLOCK_BYTES: Final = 256 << 10
_BLOCK_BYTES_MAX: Final = 8 << 20
_CHUNK_HEADER_BYTES: Final = 3

_Fields = list[tuple[int, int, "int | bytes"]]


class _UnknownFormError(Exception):
    """A tail that is damaged, or has a codec or a layout that this module does not support."""


class _TooLargeError(Exception):
    """A section of the tail that exceeds `TAIL_BYTES_MAX` or `FIELDS_MAX`."""


class _Stripe(NamedTuple):
    """The entry of a stripe in the footer, and its number of rows."""

    entry: bytes
    rows: int


class _Sizes(NamedTuple):
    """Number of values of a column, and the total length of its texts; None: unknown."""

    values: int
    text: int | None


class _Footer(NamedTuple):
    """The footer of a file, with the postscript, which has the codec.

    Attributes:
        begins_at: Position of the footer; the metadata section ends there.
        metadata_at: Position of the metadata section; the stripes end there.
        postscript: Its fields.
        fields: The fields of the footer.
        stripes: Entries and numbers of rows of the stripes.
        types: The fields of each column's type.
        top_level: Number and name of each top-level column.
        sizes: The sizes of each column in the whole file.
    """

    begins_at: int
    metadata_at: int
    postscript: _Fields
    fields: _Fields
    stripes: list[_Stripe]
    types: list[_Fields]
    top_level: list[tuple[int, str]]
    sizes: list[_Sizes]

    @property
    def codec(self) -> int:
        """Return the codec of the sections of the tail."""
        return _number(self.postscript, _PS_CODEC)


def check_tail(stored: pa.NativeFile, shown: str) -> None:
    """Check the footer of a file, without its metadata section.

    Raises:
        InvalidRequest: As `OrcTail.open`.
    """
    _read_footer(stored, shown)


class OrcTail:
    """Stripes and statistics of a file.

    `open` reads it. The numbers of columns are those of the format: all columns, with nested ones,
    in depth-first order.
    """

    def __init__(self, stored: pa.NativeFile, footer: _Footer, of_stripes: list[bytes]) -> None:
        self._stored = stored
        self._footer = footer
        self._of_stripes = of_stripes

    @classmethod
    def open(cls, stored: pa.NativeFile, shown: str) -> OrcTail | None:
        """Return the tail; None if it cannot be interpreted: Arrow reports damage.

        A metadata section that cannot be interpreted is ignored, because Arrow does not read it.

        Raises:
            InvalidRequest: The footer is too large, or announces too many rows.
        """
        footer = _read_footer(stored, shown)
        if footer is None:
            return None
        of_stripes: list[bytes] = []
        with contextlib.suppress(_TooLargeError, _UnknownFormError):
            metadata = _section(stored, footer.metadata_at, footer.begins_at, footer.postscript)
            of_stripes = [*_messages(metadata, 1)]
        return cls(stored, footer, of_stripes)

    def rows_before(self, stripe: int) -> int:
        """Return the number of rows of all stripes before one."""
        return sum(before.rows for before in self._footer.stripes[:stripe])

    def rows_at_once(self, stripe: int, names: Sequence[str] | None, shown: str) -> int | None:
        """Return how many rows of a stripe may be read at once; None: all.

        Args:
            stripe: Its number.
            names: The columns to read; None: all.
            shown: Name of the file in messages.

        Raises:
            InvalidRequest: A value is too large to be read.
        """
        stripes = self._footer.stripes
        rows = max(stripes[stripe].rows, 1) if stripe < len(stripes) else 1
        known = self._sizes_of(stripe)
        total = 0
        for column, name in self._columns(names):
            sizes = known[column] if column < len(known) else _Sizes(rows, None)
            text = 0
            if _number(self._footer.types[column], _TYPE_KIND) in _TEXT_KINDS:
                text = rows * _UNKNOWN_BYTES if sizes.text is None else sizes.text
            if text > VALUE_BYTES_MAX * max(sizes.values, 1):
                raise InvalidRequest(
                    f"{shown}: the values of column {name!r} in stripe {stripe} take"
                    f" {text // max(sizes.values, 1):,} bytes on average, more than"
                    f" {VALUE_BYTES_MAX:,}: leave the column out, or write smaller values"
                )
            total += max(sizes.values, rows) * _VALUE_BYTES + text
        if total <= STRIPE_BYTES_MAX:
            return None
        return max(1, min(BATCH_ROWS_MAX, _BATCH_BYTES * rows // (_UNEVEN * total)))

    def with_stripe(self, stripe: int) -> io.RawIOBase:
        """Return a view of the file with one of its stripes only."""
        footer = self._footer
        replaced = {_FOOTER_STRIPES, _FOOTER_ROWS}
        fields = [field for field in footer.fields if field[0] not in replaced]
        entry, rows = footer.stripes[stripe]
        fields += [(_FOOTER_STRIPES, _BYTES, entry), (_FOOTER_ROWS, _VARINT, rows)]
        stored = _plain_chunks(_encoded(fields), footer.codec)
        lengths = {_PS_FOOTER: len(stored), _PS_METADATA: 0}
        postscript = _encoded(
            (field, kind, lengths.get(field, value)) for field, kind, value in footer.postscript
        )
        tail = stored + postscript + bytes([len(postscript)])
        return _View(self._stored, footer.metadata_at, tail)

    def _sizes_of(self, stripe: int) -> list[_Sizes]:
        """Return the sizes of the columns of a stripe, or of the file if there are no others."""
        if stripe < len(self._of_stripes):
            # Parsed only when needed, because a file may have very many stripes.
            with contextlib.suppress(_TooLargeError, _UnknownFormError):
                found = [*map(_sizes, _messages(_fields(self._of_stripes[stripe]), 1))]
                if len(found) == len(self._footer.types):
                    return found
        return self._footer.sizes

    def _columns(self, names: Sequence[str] | None) -> Iterator[tuple[int, str]]:
        """Yield the number of each column to read, with nested ones, and its top-level name."""
        found, total = self._footer.top_level, len(self._footer.types)
        ends = [*(begin for begin, _ in found[1:]), total]
        for (begin, name), end in zip(found, ends, strict=False):
            if names is None or name in names:
                yield from ((column, name) for column in range(begin, min(end, total)))


class _View(io.RawIOBase):
    """The beginning of a file, and another end.

    Args:
        stored: The file.
        size: Number of bytes of the beginning.
        tail: The other end.
    """

    def __init__(self, stored: pa.NativeFile, size: int, tail: bytes) -> None:
        super().__init__()
        self._stored = stored
        self._content_bytes = size
        self._tail = tail
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Change the position, and return it."""
        starts = {io.SEEK_CUR: self._at, io.SEEK_END: self._content_bytes + len(self._tail)}
        self._at = starts.get(whence, 0) + offset
        return self._at

    def readinto(self, buffer: Buffer, /) -> int:
        """Read up to as many bytes as the buffer has."""
        target = memoryview(buffer).cast("B")
        # Across the boundary, because Arrow does not ask for the rest of a short read.
        left = max(0, min(len(target), self._content_bytes - self._at))
        data = bytes(self._stored.read_at(left, self._at)) if left else b""
        if len(data) == left:
            at = max(0, self._at - self._content_bytes)
            data += self._tail[at : at + len(target) - left]
        target[: len(data)] = data
        self._at += len(data)
        return len(data)


def _read_footer(stored: pa.NativeFile, shown: str) -> _Footer | None:
    """Return the footer of a file; None if it cannot be interpreted. Raises as `OrcTail.open`."""
    try:
        footer = _parsed_footer(stored)
    except _UnknownFormError:
        return None
    except _TooLargeError:
        raise InvalidRequest(
            f"{shown}: the footer has more than {TAIL_BYTES_MAX:,} bytes, or {FIELDS_MAX:,}"
            " fields: write larger stripes, or fewer columns"
        ) from None
    rows, size = sum(stripe.rows for stripe in footer.stripes), stored.size()
    if rows > ROWS_PER_BYTE_MAX * size:
        raise InvalidRequest(
            f"{shown}: the footer announces {rows:,} rows in {size:,} bytes, more than"
            f" {ROWS_PER_BYTE_MAX:,} for each byte: check the program that wrote the file"
        )
    return footer


def _parsed_footer(stored: pa.NativeFile) -> _Footer:
    """Return the footer of a file.

    Raises:
        _UnknownFormError: The file has none, or it is damaged, or its codec is not supported.
        _TooLargeError: It exceeds `TAIL_BYTES_MAX` or `FIELDS_MAX`.
    """
    size = stored.size()
    length = bytes(stored.read_at(1, size - 1))[0] if size else 0
    postscript_at = size - 1 - length
    if postscript_at < len(_MAGIC):
        raise _UnknownFormError
    postscript = _fields(bytes(stored.read_at(length, postscript_at)))
    if not any(value == _MAGIC for _, _, value in postscript):
        raise _UnknownFormError
    begins_at = postscript_at - _number(postscript, _PS_FOOTER)
    metadata_at = begins_at - _number(postscript, _PS_METADATA)
    if not 0 <= metadata_at <= begins_at:
        raise _UnknownFormError
    fields = _section(stored, begins_at, postscript_at, postscript)
    stripes = [
        _Stripe(entry, _number(_fields(entry), _STRIPE_ROWS))
        for entry in _messages(fields, _FOOTER_STRIPES)
    ]
    types = [_fields(one) for one in _messages(fields, _FOOTER_TYPES)]
    top_level: list[tuple[int, str]] = []
    if types:
        names = (one.decode(errors="replace") for one in _messages(types[0], _TYPE_NAMES))
        top_level = [*zip(_packed_numbers(types[0], _TYPE_SUBTYPES), names, strict=False)]
    sizes = [*map(_sizes, _messages(fields, _FOOTER_STATISTICS))]
    return _Footer(begins_at, metadata_at, postscript, fields, stripes, types, top_level, sizes)


def _sizes(statistics: bytes) -> _Sizes:
    found = _fields(statistics)
    text = None
    for field, sum_field in ((_STRING, 3), (_BINARY, 1)):
        for message in _messages(found, field):
            for number, _, value in _fields(message):
                if number == sum_field and isinstance(value, int):
                    text = max((value >> 1) ^ -(value & 1), 0)
    return _Sizes(_number(found, _VALUES), text)


def _fields(data: bytes) -> _Fields:
    """Return the fields of a message: number, kind and value.

    Raises:
        _UnknownFormError: It is damaged.
        _TooLargeError: It has too many fields.
    """
    found: _Fields = []
    at = 0
    while at < len(data):
        if len(found) == FIELDS_MAX:
            raise _TooLargeError
        key, at = _varint(data, at)
        kind = key & 7
        value: int | bytes
        if kind == _VARINT:
            value, at = _varint(data, at)
        else:
            if kind == _BYTES:
                size, at = _varint(data, at)
            elif kind in {_FIXED_64, _FIXED_32}:
                size = 8 if kind == _FIXED_64 else 4
            else:
                raise _UnknownFormError
            value, at = data[at : at + size], at + size
            if len(value) < size:
                raise _UnknownFormError
        found.append((key >> 3, kind, value))
    return found


def _encoded(fields: Iterable[tuple[int, int, int | bytes]]) -> bytes:
    """Return a message of fields, as `_fields` returns them."""
    parts: list[bytes] = []
    for field, kind, value in fields:
        parts.append(_varint_bytes(field << 3 | kind))
        if isinstance(value, int):
            parts.append(_varint_bytes(value))
            continue
        if kind == _BYTES:
            parts.append(_varint_bytes(len(value)))
        parts.append(value)
    return b"".join(parts)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for byte in data[at : at + 10]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at + shift // 7
    raise _UnknownFormError


def _varint_bytes(value: int) -> bytes:
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _number(fields: _Fields, field: int) -> int:
    """Return a number; 0 if it is absent."""
    return next((v for number, _, v in fields if number == field and isinstance(v, int)), 0)


def _messages(fields: _Fields, field: int) -> Iterator[bytes]:
    return (v for number, _, v in fields if number == field and isinstance(v, bytes))


def _packed_numbers(fields: _Fields, field: int) -> Iterator[int]:
    """Yield repeated numbers, packed or not."""
    for number, _, value in fields:
        if number != field:
            continue
        if isinstance(value, int):
            yield value
            continue
        at = 0
        while at < len(value):
            one, at = _varint(value, at)
            yield one


def _section(stored: pa.NativeFile, at: int, end: int, postscript: _Fields) -> _Fields:
    """Return a section of the tail. Raises as `_unpacked`."""
    if end - at > TAIL_BYTES_MAX:
        raise _TooLargeError
    block_bytes = _number(postscript, _PS_BLOCK) or _BLOCK_BYTES
    data = bytes(stored.read_at(end - at, at))
    return _fields(_unpacked(data, _number(postscript, _PS_CODEC), block_bytes))


def _unpacked(data: bytes, codec: int, block_bytes: int) -> bytes:
    """Return a section, decompressed.

    Raises:
        _UnknownFormError: It is damaged, or the codec is not supported.
        _TooLargeError: It exceeds `TAIL_BYTES_MAX`.
    """
    if codec == _NO_CODEC:
        return data
    parts: list[bytes] = []
    at = size = 0
    while at < len(data):
        head = int.from_bytes(data[at : at + _CHUNK_HEADER_BYTES], "little")
        at += _CHUNK_HEADER_BYTES
        chunk = data[at : at + (head >> 1)]
        at += head >> 1
        parts.append(
            chunk if head & 1 else _chunk(chunk, codec, min(block_bytes, _BLOCK_BYTES_MAX))
        )
        size += len(parts[-1])
        if size > TAIL_BYTES_MAX:
            raise _TooLargeError
    return b"".join(parts)


def _chunk(data: bytes, codec: int, size_max: int) -> bytes:
    try:
        if codec == _ZLIB:
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size_max)
        if codec == _ZSTD:
            with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
                return bytes(stream.read(size_max))
        if codec == _SNAPPY:
            size, _ = _varint(data, 0)
            return bytes(pa.Codec("snappy").decompress(data, min(size, size_max)))
        if codec == _LZ4:
            return _lz4(data, size_max)
    except (zlib.error, pa.ArrowException, OSError):
        raise _UnknownFormError from None
    raise _UnknownFormError


def _lz4(data: bytes, size_max: int) -> bytes:
    """Decompress a block, which does not have its size: search for the smallest that is enough."""
    codec = pa.Codec("lz4_raw")
    least, most = 0, size_max
    found = bytes(codec.decompress(data, most))
    while least < most:
        size = (least + most) // 2
        try:
            found = bytes(codec.decompress(data, size))
        except (pa.ArrowException, OSError):
            least = size + 1
        else:
            most = size
    return found[:most]


def _plain_chunks(data: bytes, codec: int) -> bytes:
    """Return a section as it is stored, in chunks that are not compressed."""
    if codec == _NO_CODEC:
        return data
    parts: list[bytes] = []
    for at in range(0, len(data), _BLOCK_BYTES):
        chunk = data[at : at + _BLOCK_BYTES]
        parts += [(len(chunk) << 1 | 1).to_bytes(_CHUNK_HEADER_BYTES, "little"), chunk]
    return b"".join(parts)
