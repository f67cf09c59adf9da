"""Framing: the bytes of a log file's header and of a block, and iteration over them.

Owns: the layout below, encoding without copying payloads, decoding without copying anything, and
finding the next valid block after damage. Does not own: files, names, the handling of losses.

All numbers are little-endian; blocks begin and end at multiples of eight bytes.

    log file header (64 bytes, the same place and checksum in every format number)
     0   8  magic 89 'PNSTLG' 0A
     8   4  format number
    12   4  crc32c of the other 60 bytes
    16   8  base offset: of the first message; also in the file's name
    24   8  creation time, epoch ms
    32   8  max_bytes_per_file at creation (for information; no reader needs it)
    40   4  tag: the identity of this file, repeated in each of its blocks
    44  20  zero

    block
     0   4  magic 9D 'PB' 01
     4   4  crc32c of bytes 0-3, 8-43 and 48-end
     8   4  length of the block, a multiple of 8
    12   4  message count, at least 1
    16   8  base offset: of the first message
    24   8  append time, epoch ms, never lower than in the previous block
    32   4  tag of the file
    36   4  flags: 1 = a trailer has the producers of the messages, see `producers`; 2 = the last 8
            bytes after that are the due time of the messages, epoch ms (codec and keys reserved)
    40   4  0
    44   4  crc32c of bytes 0-3 and 8-43
    48      int32 starts[count + 1], the first 0; zeros to a multiple of 8; payload; zeros to 8;
            the trailer, a multiple of 8 long, which readers of messages may ignore

Invariants:

- The header has its own checksum, so blocks can be skipped, and a damaged body loses only that
  block: its length and its offsets are still known.
- The block's checksum continues from the header's state and leaves out both checksum fields: a CRC
  over data followed by its own CRC would be a constant and protect nothing.
- A block is valid only with the tag of its file and with consecutive offsets; so bytes of a block
  inside a message, or left over on a recycled disk page, are never mistaken for a block.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa

from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Buffer

FORMAT_NUMBER = 1
FILE_HEADER_BYTES = 64
BLOCK_HEADER_BYTES = 48
BLOCK_LIMIT_BYTES = 1 << 30
_ARRAY_LIMIT_BYTES = (1 << 31) - 1
FLAG_PRODUCERS = 1
FLAG_DUE = 2
DUE_BYTES = 8

_FILE_MAGIC = b"\x89PNSTLG\n"
_BLOCK_MAGIC = b"\x9dPB\x01"
_MAGIC_CRC = google_crc32c.value(_BLOCK_MAGIC)
_CHECKED_HEADER = struct.Struct("<IIqqIII")
_NUMBER = struct.Struct("<I")
_START = struct.Struct("<i")
_FEW = 8
_FEW_STARTS = [struct.Struct(f"<{count + 1}i") for count in range(_FEW + 1)]
_DUE = struct.Struct("<q")
_PADDING = (b"", *(bytes(size) for size in range(1, 8)))
_SEARCH_WINDOW_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Messages [start, end) of one stream partition."""

    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Block:
    """A batch of messages as stored on disk; `messages` and `raw` are views of the same bytes.

    `due_ms` is the due time, 0 if they are not deferred; readers of offsets may ignore it.
    """

    base_offset: int
    count: int
    append_time_ms: int
    messages: pa.BinaryArray
    raw: memoryview
    due_ms: int = 0


class FileHeader(NamedTuple):
    """The header of a log file."""

    base_offset: int
    created_ms: int
    max_bytes_per_file: int
    tag: int
    format_number: int = FORMAT_NUMBER


class BlockHeader(NamedTuple):
    """A block's header with a valid checksum."""

    length: int
    messages: int
    base_offset: int
    append_time_ms: int
    tag: int
    crc: int
    header_crc: int
    flags: int = 0

    @property
    def end_offset(self) -> int:
        """Return the offset after the last message."""
        return self.base_offset + self.messages


class LogBytes:
    """The bytes of a log file, as two kinds of view."""

    __slots__ = ("buffer", "size", "view")

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.buffer = pa.py_buffer(view)  # the checksum takes this without a copy, no memoryview
        self.size = len(view)


class FoundBlock(NamedTuple):
    """A valid block."""

    position: int
    header: BlockHeader


class BlockDamage(NamedTuple):
    """Bytes [position, end) that are not a block, and the lost messages [first_lost, next_offset).

    `next_offset` is None if their number is unknown, because the damage is the end of the last
    file.
    """

    position: int
    end: int
    first_lost: int
    next_offset: int | None


# -- writing


def as_messages(messages: Sequence[bytes] | pa.BinaryArray) -> pa.BinaryArray:
    """Return a batch as an Arrow array, in one C-level pass if it is not one already.

    Raises:
        InvalidRequest: It holds values other than bytes, or more than 2 GiB.
    """
    array = messages if isinstance(messages, pa.BinaryArray) else _joined(messages)
    if array.null_count:
        raise InvalidRequest(f"a batch holds {array.null_count} nulls: send bytes, b'' for empty")
    return array


def _joined(messages: Sequence[bytes]) -> pa.BinaryArray:
    # `pa.array` would work, but its first call imports pandas: 1 s, and 40 MB, in every writer.
    count = len(messages)
    if count <= _FEW and all(isinstance(one, bytes) for one in messages):
        # The path of a publisher that sends one message at a time, and of a journal, whose blocks
        # have two: it avoids the overhead of numpy.
        ends = list(accumulate(map(len, messages), initial=0))
        if ends[-1] <= _ARRAY_LIMIT_BYTES:
            data = messages[0] if count == 1 else b"".join(messages)
            buffers = [None, pa.py_buffer(_FEW_STARTS[count].pack(*ends)), pa.py_buffer(data)]
            return pa.BinaryArray.from_buffers(pa.binary(), count, buffers, 0)
    starts = np.zeros(len(messages) + 1, np.int64)
    try:
        np.cumsum(np.fromiter(map(len, messages), np.int64, len(messages)), out=starts[1:])
        data = b"".join(messages)
    except TypeError as error:
        raise InvalidRequest(f"a batch of messages must hold bytes only: {error}") from error
    if len(data) != starts[-1]:
        raise InvalidRequest("a batch of messages must hold bytes only, or views of single bytes")
    if len(data) > _ARRAY_LIMIT_BYTES:
        raise InvalidRequest("a batch of messages holds more than 2 GiB: send smaller batches")
    buffers = [None, pa.py_buffer(starts.astype(np.int32)), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(messages), buffers, 0)


def encode_block(
    messages: pa.BinaryArray,
    base_offset: int,
    append_time_ms: int,
    tag: int,
    producers: bytes = b"",
    due_ms: int = 0,
) -> tuple[list[Buffer], int]:
    """Return a block as buffers for one `writev`, and its length. The payload is not copied.

    Args:
        messages: At least one message, without nulls; may be a slice.
        base_offset: The offset of the first one.
        append_time_ms: The wall time, never lower than in the previous block.
        tag: The tag of its file.
        producers: The trailer with the producers of the messages, or nothing.
        due_ms: The due time, epoch ms; 0 if they are not deferred.
    """
    count = len(messages)
    _, starts, data = messages.buffers()
    starts = starts.slice(4 * messages.offset, 4 * (count + 1))
    (first,) = _START.unpack_from(starts, 0)
    (last,) = _START.unpack_from(starts, 4 * count)
    payload = data.slice(first, last - first) if last > first else b""
    if first:
        starts = pa.py_buffer(np.frombuffer(starts, np.int32) - np.int32(first))
    flags = FLAG_PRODUCERS if producers else 0
    trailer = producers
    if due_ms:
        flags |= FLAG_DUE
        trailer += _DUE.pack(due_ms)
    place = (base_offset, append_time_ms, tag, flags)
    return _framed(starts, (payload,), (count, last - first), place, trailer)


def encode_records(
    records: Sequence[bytes], base_offset: int, append_time_ms: int, tag: int
) -> tuple[list[Buffer], int]:
    """Return the same as `encode_block` for records that are not an array.

    A few records are not converted to one, which would take longer than the rest.

    Raises:
        InvalidRequest: They exceed 2 GiB.
    """
    count = len(records)
    ends = list(accumulate(map(len, records), initial=0))
    if count > _FEW or ends[-1] > _ARRAY_LIMIT_BYTES:
        return encode_block(as_messages(records), base_offset, append_time_ms, tag)
    place = (base_offset, append_time_ms, tag, 0)
    return _framed(_FEW_STARTS[count].pack(*ends), records, (count, ends[-1]), place, b"")


def _framed(
    starts: bytes | pa.Buffer,
    payloads: Sequence[bytes | pa.Buffer],
    sizes: tuple[int, int],
    place: tuple[int, int, int, int],
    trailer: bytes,
) -> tuple[list[Buffer], int]:
    """Add header, checksums and padding to the parts of a block."""
    count, payload_bytes = sizes
    gap = _PADDING[-4 * (count + 1) % 8]
    padding = _PADDING[-payload_bytes % 8]
    length = BLOCK_HEADER_BYTES + 4 * (count + 1) + len(gap) + payload_bytes + len(padding)
    length += len(trailer)
    checked = _CHECKED_HEADER.pack(length, count, *place, 0)
    header_crc = google_crc32c.extend(_MAGIC_CRC, checked)
    crc = google_crc32c.extend(header_crc, starts)
    if gap:
        crc = google_crc32c.extend(crc, gap)
    for payload in payloads:
        crc = google_crc32c.extend(crc, payload)
    if padding:
        crc = google_crc32c.extend(crc, padding)
    if trailer:
        crc = google_crc32c.extend(crc, trailer)
    head = b"".join((_BLOCK_MAGIC, _NUMBER.pack(crc), checked, _NUMBER.pack(header_crc)))
    parts = (head, starts, gap, *payloads, padding, trailer)
    return [part for part in parts if len(part)], length


def encode_file_header(header: FileHeader) -> bytes:
    """Return the 64 bytes at the start of a log file."""
    after = struct.pack(
        "<qqqI20x", header.base_offset, header.created_ms, header.max_bytes_per_file, header.tag
    )
    before = _FILE_MAGIC + _NUMBER.pack(header.format_number)
    return before + _NUMBER.pack(google_crc32c.value(before + after)) + after


# -- reading


def parse_file_header(raw: bytes, path: str) -> FileHeader | None:
    """Return a log file's header, or None if it is truncated, zeroed or damaged.

    Raises:
        InvalidRequest: It is valid, but of a newer format.
    """
    if len(raw) < FILE_HEADER_BYTES or not raw.startswith(_FILE_MAGIC):
        return None
    format_number, crc, base, created, max_bytes, tag = struct.unpack_from("<IIqqqI", raw, 8)
    if google_crc32c.value(raw[:12] + raw[16:FILE_HEADER_BYTES]) != crc:
        return None
    if format_number > FORMAT_NUMBER:
        raise InvalidRequest(
            f"{path}: has format number {format_number}, but this release reads up to "
            f"{FORMAT_NUMBER}: use the newer Penstock that wrote it"
        )
    return FileHeader(base, created, max_bytes, tag, format_number)


def parse_block_header(raw: bytes | memoryview) -> BlockHeader | None:
    """Return the header in the first 48 bytes, or None if they are not a header."""
    raw = bytes(raw[:BLOCK_HEADER_BYTES])
    if len(raw) < BLOCK_HEADER_BYTES or not raw.startswith(_BLOCK_MAGIC):
        return None
    (crc,) = _NUMBER.unpack_from(raw, 4)
    (header_crc,) = _NUMBER.unpack_from(raw, 44)
    if google_crc32c.extend(_MAGIC_CRC, raw[8:44]) != header_crc:
        return None
    length, count, base, time_ms, tag, flags, _ = _CHECKED_HEADER.unpack_from(raw, 8)
    return BlockHeader(length, count, base, time_ms, tag, crc, header_crc, flags)


def block_verifies(log: LogBytes, position: int, header: BlockHeader) -> bool:
    """Return whether the block is complete and its checksum matches."""
    if position + header.length > log.size:
        return False
    body = log.buffer.slice(position + BLOCK_HEADER_BYTES, header.length - BLOCK_HEADER_BYTES)
    return bool(google_crc32c.extend(header.header_crc, body) == header.crc)


def messages_of(log: LogBytes, position: int, header: BlockHeader) -> pa.BinaryArray:
    """Return the messages of a verified block as a view of its bytes."""
    starts_bytes = 4 * (header.messages + 1)
    starts = log.buffer.slice(position + BLOCK_HEADER_BYTES, starts_bytes)
    payload_at = BLOCK_HEADER_BYTES + (starts_bytes + 7) // 8 * 8
    payload = log.buffer.slice(position + payload_at, header.length - payload_at)
    return pa.BinaryArray.from_buffers(pa.binary(), header.messages, [None, starts, payload], 0)


def block_of(log: LogBytes, position: int, header: BlockHeader) -> Block:
    """Return a verified block as views of its bytes."""
    return Block(
        header.base_offset,
        header.messages,
        header.append_time_ms,
        messages_of(log, position, header),
        log.view[position : position + header.length],
        due_of(log, position, header),
    )


def due_of(log: LogBytes, position: int, header: BlockHeader) -> int:
    """Return the due time of the messages of a verified block, epoch ms; 0 if not deferred."""
    if not header.flags & FLAG_DUE:
        return 0
    (due_ms,) = _DUE.unpack_from(log.view, position + header.length - DUE_BYTES)
    return int(due_ms)


def scan_blocks(
    log: LogBytes, position: int, *, tag: int | None, expected: int, limit: int | None
) -> Iterator[FoundBlock | BlockDamage]:
    """Iterate over the blocks from `position` to the end, and the damage between them.

    Args:
        log: The bytes of the file.
        position: The start of a block, or the end of the header.
        tag: The file's tag; None takes that of the first valid block.
        expected: The offset that the first block should have.
        limit: The base offset of the next file, if there is one.

    Yields:
        Valid blocks in order, and the damage between them.
    """
    while position < log.size:
        header = parse_block_header(log.view[position : position + BLOCK_HEADER_BYTES])
        if header is None or not _fits(header, tag, expected, limit):
            found = find_block(log, position + 8, tag=tag, expected=expected, limit=limit)
            if found is None:
                break
            yield BlockDamage(position, found.position, expected, found.header.base_offset)
            position, header = found
        elif position + header.length > log.size:
            break  # the header's checksum matches, so no block can follow it
        elif not block_verifies(log, position, header):
            yield BlockDamage(position, position + header.length, expected, header.end_offset)
            position, expected = position + header.length, header.end_offset
            continue
        elif header.base_offset != expected:
            yield BlockDamage(position, position, expected, header.base_offset)
        yield FoundBlock(position, header)
        position, expected, tag = position + header.length, header.end_offset, header.tag
    if position < log.size or (limit is not None and expected < limit):
        yield BlockDamage(position, log.size, expected, limit)


def find_block(
    log: LogBytes, position: int, *, tag: int | None, expected: int, limit: int | None
) -> FoundBlock | None:
    """Return the next valid block at or after `position`."""
    start = (position + 7) // 8 * 8
    while start < log.size:
        window = bytes(log.view[start : start + _SEARCH_WINDOW_BYTES])
        for index in magic_positions(window):
            at = start + index
            header = parse_block_header(log.view[at : at + BLOCK_HEADER_BYTES])
            if (
                header is not None
                and _fits(header, tag, expected, limit)
                and block_verifies(log, at, header)
            ):
                return FoundBlock(at, header)
        start += _SEARCH_WINDOW_BYTES
    return None


def magic_positions(window: bytes) -> Iterator[int]:
    """Yield the aligned positions in a window where a block may begin."""
    index = window.find(_BLOCK_MAGIC)
    while index >= 0:
        if index % 8 == 0:
            yield index
        index = window.find(_BLOCK_MAGIC, index + 1)


def _fits(header: BlockHeader, tag: int | None, expected: int, limit: int | None) -> bool:
    return (
        header.length % 8 == 0
        and header.messages > 0
        and header.length >= BLOCK_HEADER_BYTES + 4 * (header.messages + 1)
        and header.base_offset >= expected
        and (tag is None or header.tag == tag)
        and (limit is None or header.end_offset <= limit)
    )
