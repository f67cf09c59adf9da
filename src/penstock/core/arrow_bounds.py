"""Bounds of Arrow's file and stream format, checked before a record batch is read.

A buffer of a batch may be compressed. Arrow allocates the decompressed length that its first bytes
announce, which can be any number. A batch also announces its number of rows, which may take no
bytes at all. Owns the bounds, which follow from the metadata of each batch. Does not own the
reading of values and the detection of damage, which Arrow does.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple

from penstock.core.errors import InvalidRequest

BATCH_BYTES_MAX: Final = 1 << 30
"""Maximum decompressed size of a record batch, or of the dictionaries of a file."""
ROWS_PER_BYTE_MAX: Final = 100_000
"""Maximum number of rows of a batch for each byte of its file."""

MAGIC: Final = b"ARROW1"
_FIRST_AT: Final = 8
_CONTINUED: Final = b"\xff" * 4
_DICTIONARY: Final = 2
_RECORDS: Final = 3
_METADATA_BYTES_MAX: Final = 64 << 20
# Arrow 0.17 wrote the codec into the metadata of a message, and the reader still looks there.
_VERSION_4: Final = 3
_COMPRESSED_BEFORE_1_0: Final = b"ARROW:experimental_compression"


class _Batch(NamedTuple):
    """Decompressed size and rows that a batch announces, and the start of the next message."""

    size: int
    rows: int
    is_dictionary: bool
    end: int


def check_batches(stored: BinaryIO, shown: str) -> None:
    """Refuse a file or stream with a batch that exceeds the bounds.

    Args:
        stored: The file, read from its beginning; its position afterwards is undefined.
        shown: Name of the file in messages.

    Raises:
        InvalidRequest: It announces too many bytes or rows, or has too much metadata.
    """
    size = stored.seek(0, os.SEEK_END)
    held = 0
    try:
        for batch in _batches(stored, size):
            held += batch.size if batch.is_dictionary else 0
            taken = held + (0 if batch.is_dictionary else batch.size)
            if taken > BATCH_BYTES_MAX:
                raise InvalidRequest(
                    f"{shown}: the record batch that ends at byte {batch.end:,} takes {taken:,}"
                    f" bytes with its dictionaries, more than {BATCH_BYTES_MAX:,}: write fewer rows"
                    " in a batch"
                )
            if batch.rows > ROWS_PER_BYTE_MAX * size:
                raise InvalidRequest(
                    f"{shown}: the record batch that ends at byte {batch.end:,} announces"
                    f" {batch.rows:,} rows, more than {ROWS_PER_BYTE_MAX:,} for each of the"
                    f" {size:,} bytes: check the program that wrote the file"
                )
    except _LongMetadataError as error:
        raise InvalidRequest(
            f"{shown}: the metadata at byte {error.at:,} takes {error.size:,} bytes, more than"
            f" {_METADATA_BYTES_MAX:,}: write fewer columns in a batch, or fewer batches in a file"
        ) from None
    except struct.error:
        return  # The reader reports the damage.


class _LongMetadataError(Exception):
    """Metadata that Arrow would read, but that is too long to be checked here."""

    def __init__(self, at: int, size: int) -> None:
        super().__init__(at, size)
        self.at = at
        self.size = size


def _check_metadata(at: int, length: int, end: int) -> None:
    """Check the announced length of metadata; the reader reports damage.

    Raises:
        struct.error: The file is too short for metadata of this length.
        _LongMetadataError: The metadata is longer than the limit.
    """
    if length <= 0 or at + length > end:
        raise struct.error
    if length > _METADATA_BYTES_MAX:
        raise _LongMetadataError(at, length)


def _batches(stored: BinaryIO, size: int) -> Iterator[_Batch]:
    """Yield a summary of each batch; those of a file in the order of its footer."""
    stored.seek(0)
    if stored.read(len(MAGIC)) == MAGIC:
        for at in _places(stored, size):
            found = _batch_at(stored, at, size)
            if found is not None:
                yield found
        return
    at = 0
    while at < size:
        found = _batch_at(stored, at, size)
        if found is None:
            return
        yield found
        at = found.end


def _places(stored: BinaryIO, size: int) -> list[int]:
    """Return the positions of the batches of a file, those of dictionaries first."""
    stored.seek(max(size - len(MAGIC) - 4, 0))
    [length] = struct.unpack("<i", stored.read(4))
    begin = size - len(MAGIC) - 4 - length
    if begin < _FIRST_AT:
        raise struct.error
    _check_metadata(begin, length, size)
    stored.seek(begin)
    footer = stored.read(length)
    table = _Table.root(footer)
    places = []
    for field in (2, 3):
        first, count = table.vector(field)
        # A block is a position, the length of the metadata, four bytes of padding and a length.
        places += [block[0] for block in _structs(footer, "<qiiq", first, count)]
    return places


def _batch_at(stored: BinaryIO, at: int, size: int) -> _Batch | None:
    """Return the sizes of the batch at a position, or None at the end of a stream.

    Any other message, such as the schema, counts as an empty batch.
    """
    if at < 0:
        raise struct.error
    stored.seek(at)
    head = stored.read(8)
    at += 4
    if head[:4] == _CONTINUED:
        head = head[4:]
        at += 4
    if not head:
        return None
    [length] = struct.unpack_from("<i", head)
    if not length:
        return None
    _check_metadata(at, length, size)
    stored.seek(at)
    message = stored.read(length)
    body_at = at + length
    table = _Table.root(message)
    kind = table.number(1, "<B")
    body = table.number(3, "<q")
    if body < 0:
        raise struct.error
    end = body_at + body
    if kind not in {_RECORDS, _DICTIONARY}:
        return _Batch(0, 0, is_dictionary=False, end=end)
    batch = table.table(2)
    if kind == _DICTIONARY:
        batch = batch.table(1)
    is_compressed = batch.has(3) or (
        table.number(0, "<h") == _VERSION_4 and _COMPRESSED_BEFORE_1_0 in message
    )
    first, count = batch.vector(2)
    buffers = list(_structs(message, "<qq", first, count))
    total = sum(
        _unpacked(stored, body_at + place, length) if is_compressed else length
        for place, length in buffers
        if length > 0
    )
    return _Batch(max(total, body), batch.number(0, "<q"), kind == _DICTIONARY, end)


def _unpacked(stored: BinaryIO, at: int, length: int) -> int:
    """Return the length that a compressed buffer announces; -1 marks an uncompressed one."""
    if at < 0:
        raise struct.error
    stored.seek(at)
    [size] = struct.unpack("<q", stored.read(8))
    return length if size < 0 else int(size)


def _structs(data: bytes, form: str, first: int, count: int) -> Iterator[tuple[int, ...]]:
    size = struct.calcsize(form)
    if first + count * size > len(data):
        raise struct.error
    yield from struct.iter_unpack(form, data[first : first + count * size])


class _Table:
    """A table of FlatBuffers.

    Args:
        data: The bytes that contain it.
        at: Its position.
    """

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        [back] = struct.unpack_from("<i", data, at)
        self._fields_at = at - back
        if self._fields_at < 0:
            raise struct.error
        [self._size] = struct.unpack_from("<H", data, self._fields_at)

    @classmethod
    def root(cls, data: bytes) -> _Table:
        """Return the outermost table."""
        return cls(data, *struct.unpack_from("<I", data))

    def _place(self, field: int) -> int:
        """Return the position of a field; 0: it has its default."""
        at = 4 + 2 * field
        if at + 2 > self._size:
            return 0
        [offset] = struct.unpack_from("<H", self._data, self._fields_at + at)
        return self._at + int(offset) if offset else 0

    def has(self, field: int) -> bool:
        """Return whether a field is present."""
        return self._place(field) != 0

    def number(self, field: int, form: str) -> int:
        """Return a number; 0 if it is absent."""
        place = self._place(field)
        return int(struct.unpack_from(form, self._data, place)[0]) if place else 0

    def table(self, field: int) -> _Table:
        """Return a table within this one."""
        place = self._place(field)
        if not place:
            raise struct.error
        return _Table(self._data, place + self.number(field, "<I"))

    def vector(self, field: int) -> tuple[int, int]:
        """Return the position of a vector and its number of values."""
        place = self._place(field)
        if not place:
            return 0, 0
        begin = place + self.number(field, "<I")
        [count] = struct.unpack_from("<I", self._data, begin)
        return begin + 4, int(count)
