"""Reads of a queue's log files from any process, while its writer appends, rolls and deletes.

Owns: the conversion of a range of offsets to slices of mapped blocks. It never writes, takes no
lock, and keeps no state between calls. Importing it loads only pyarrow and the checksum library.

Invariants:

- Only valid blocks are returned, and no message twice or out of order.
- Bytes after the block that holds ``end - 1`` are not accessed. With an `end` from the writer (its
  ``latest`` or ``durable``), the writer never cuts off the bytes before them.
- The slices are views; they keep their file's mapping alive, even if the file is deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.errors import NotFound
from penstock.storage.disk import OsFileSystem
from penstock.storage.filesystem import FileSystem
from penstock.storage.queue.blocks import FoundBlock, LogBytes, messages_of
from penstock.storage.queue.log_files import (
    OffsetsDeleted,
    OpenLogFile,
    index_of_file,
    list_log_files,
    log_file_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

__all__ = ["MessageSlice", "OffsetsDeleted", "read_range"]


@dataclass(frozen=True, slots=True)
class MessageSlice:
    """Consecutive messages without a gap; a view of a mapped file."""

    base_offset: int
    messages: pa.BinaryArray
    append_time_ms: int


def read_range(
    folder: str,
    start: int,
    end: int,
    *,
    max_block_bytes: int = 64 * 1024 * 1024,
    fs: FileSystem | None = None,
) -> Iterator[MessageSlice]:
    """Yield the existing messages of [start, end); a gap shows as a jump of `base_offset`.

    Args:
        folder: The queue's folder.
        start: The first offset.
        end: The offset after the last; it must come from the writer (see above).
        max_block_bytes: Slices of larger blocks are returned in parts of about this size.
        fs: The file system, for tests.

    Raises:
        OffsetsDeleted: Retention has deleted the offset `start`.
        NotFound: The folder does not exist, or has no log files.
    """
    fs = fs or OsFileSystem()
    if start >= end:
        return
    bases = list_log_files(fs, folder)
    if not bases:
        raise NotFound(f"{folder}: has no log files: check that it is the folder of a queue")
    first = index_of_file(bases, start)
    if first < 0:
        raise _deleted(folder, start, bases[0])
    for index in range(first, len(bases)):
        if bases[index] >= end:
            return
        limit = bases[index + 1] if index + 1 < len(bases) else None
        try:
            opened = OpenLogFile(fs, f"{folder}/{log_file_name(bases[index])}")
        except NotFound:
            left = [base for base in list_log_files(fs, folder) if base > bases[index]]
            raise _deleted(folder, start, left[0] if left else end) from None
        with opened:
            log = opened.map(opened.size())
            for item in opened.blocks(log, start, base_offset=bases[index], limit=limit):
                if not isinstance(item, FoundBlock):
                    continue
                if item.header.base_offset >= end:
                    return
                yield from _slices(log, item, start, end, max_block_bytes)
                start = item.header.end_offset
                if start >= end:
                    return


def _slices(
    log: LogBytes, found: FoundBlock, start: int, end: int, max_bytes: int
) -> Iterator[MessageSlice]:
    header = found.header
    skip = max(start - header.base_offset, 0)
    count = min(end, header.end_offset) - header.base_offset - skip
    messages = messages_of(log, found.position, header)
    if skip or count != header.messages:
        messages = messages.slice(skip, count)
    at_once = count if header.length <= max_bytes else max(1, count * max_bytes // header.length)
    if at_once >= count:
        yield MessageSlice(header.base_offset + skip, messages, header.append_time_ms)
        return
    for at in range(0, count, at_once):
        part = messages.slice(at, at_once)
        yield MessageSlice(header.base_offset + skip + at, part, header.append_time_ms)


def _deleted(folder: str, start: int, earliest: int) -> OffsetsDeleted:
    return OffsetsDeleted(
        f"{folder}: offset {start} was deleted by retention; the earliest left is {earliest}",
        earliest,
    )
