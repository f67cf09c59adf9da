"""The last sequence number of each producer, stored in the blocks of the messages.

Owns: the table, its limit, and the trailer of a block that carries entries of it. Does not own the
meaning of a repeated sequence number (the broker).

    trailer, at the end of a block whose flag is set, or before the time it is due
     0  16n  n times: uint64 producer, int64 sequence; the most recent publisher is last
    16n   4  n
    +4    2  1: the last entry is the block's own mark; 0: it has none
    +6    2  number of entries, before the block's own, of messages that were not fsynced then

Invariants:

- A mark and its messages are in one block: a crash loses both or neither.
- The first block of a log file carries the whole table as of its start, so that earlier files may
  be deleted. But a power loss may lose blocks of the last two log files, or one of the files, and a
  mark must not outlive its messages. So opening reads the last two files, and more only if a first
  block is damaged. If there is only one file, it trusts the entries that were fsynced at its start.
  If no producer is known, the last file alone shows that.
- At most `limit` producers are remembered; dropped ones are counted.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from penstock.storage.queue.blocks import DUE_BYTES, FLAG_DUE, FLAG_PRODUCERS, FoundBlock, LogBytes
from penstock.storage.queue.log_files import OpenLogFile, log_file_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.storage.filesystem import FileSystem

_ENTRY = struct.Struct("<Qq")
_END = struct.Struct("<IHH")
PRODUCERS_LIMIT = (1 << 16) - 1  # maximum of the trailer's counts

Mark = tuple[int, int]


class ProducerTable:
    """Producers and their last sequence numbers; the most recent publisher is last."""

    __slots__ = ("_limit", "_offsets", "_sequences", "forgotten")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sequences: dict[int, int] = {}
        self._offsets: dict[int, int] = {}
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def last(self, producer: int) -> int | None:
        """Return a producer's last sequence number; None if it is not remembered."""
        return self._sequences.get(producer)

    def entry(self, producer: int) -> Mark | None:
        """Return a producer's last sequence number and its offset, for `put_back`."""
        sequence = self._sequences.get(producer)
        return None if sequence is None else (sequence, self._offsets[producer])

    def put_back(self, producer: int, entry: Mark | None) -> None:
        """Restore a producer's entry to its state before a failed publish."""
        if entry is None:
            self._sequences.pop(producer, None)
            self._offsets.pop(producer, None)
        else:
            self._sequences[producer], self._offsets[producer] = entry

    def put(self, producer: int, sequence: int, offset: int) -> None:
        """Record a publish whose first message has this offset; numbers never decrease."""
        self._offsets[producer] = offset
        self._sequences[producer] = max(sequence, self._sequences.pop(producer, sequence))
        if len(self._sequences) > self._limit:
            oldest = next(iter(self._sequences))
            del self._sequences[oldest], self._offsets[oldest]
            self.forgotten += 1

    def trailer(self, mark: Mark | None, *, first: bool, durable: int) -> bytes:
        """Return the trailer of the next block; empty if it has no entries.

        Args:
            mark: The producer and sequence number of the block.
            first: Whether it is the first block of its log file.
            durable: The offset below which all messages are fsynced.
        """
        entries: list[Mark] = []
        unsure = 0
        if first:
            # Ordered by time of the last publish, the oldest first.
            entries += self._sequences.items()
            unsure = sum(self._offsets[producer] >= durable for producer, _ in entries)
        if mark is not None:
            entries.append(mark)
        if not entries:
            return b""
        end = _END.pack(len(entries), mark is not None, unsure)
        return b"".join([*(_ENTRY.pack(*entry) for entry in entries), end])

    def replay(self, files: Sequence[FileMarks]) -> None:
        """Restore the table from the marks of log files, the oldest first."""
        if files:
            known = files[0].before_durable if len(files) == 1 else files[0].before
            for producer, sequence in known.items():
                self.put(producer, sequence, -1)
        for file in files:
            for producer, (sequence, offset) in file.marks.items():
                self.put(producer, sequence, offset)


class FileMarks:
    """The marks in the blocks of one log file.

    Args:
        base_offset: The base offset of the file.

    Attributes:
        before: The table when the file was started.
        before_durable: The part of it that belonged to fsynced messages then.
        marks: The marks of the file's own blocks: producer to sequence and offset.
        complete: Whether the first block exists, and therefore `before`.
    """

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self.before: dict[int, int] = {}
        self.before_durable: dict[int, int] = {}
        self.marks: dict[int, tuple[int, int]] = {}
        self.complete = False

    def take(self, log: LogBytes, found: FoundBlock) -> None:
        """Add a valid block; call it in the order of blocks."""
        header = found.header
        self.complete = self.complete or header.base_offset == self._base_offset
        if not header.flags & FLAG_PRODUCERS:
            return
        end = found.position + header.length - _END.size
        if header.flags & FLAG_DUE:
            end -= DUE_BYTES
        count, own, unsure = _END.unpack_from(log.view, end)
        entries = list(_ENTRY.iter_unpack(log.view[end - count * _ENTRY.size : end]))
        if own:
            producer, sequence = entries.pop()
            before, _ = self.marks.pop(producer, (sequence, 0))
            self.marks[producer] = (max(sequence, before), header.base_offset)
        self.before.update(entries)
        self.before_durable.update(entries[: len(entries) - unsure])


def read_marks(
    fs: FileSystem, folder: str, bases: Sequence[int], last: FileMarks
) -> list[FileMarks]:
    """Return the marks of the log files, oldest first, without reading more files than needed.

    Args:
        fs: The file system.
        folder: The folder of the queue.
        bases: The base offsets of all log files, ascending.
        last: The marks of the last file, which was read when it was recovered.

    Raises:
        Unavailable: I/O error.
    """
    files = [last]
    for index in range(len(bases) - 2, -1, -1):
        if files[0].complete and (len(files) > 1 or not last.before):
            break
        files.insert(0, FileMarks(bases[index]))
        with OpenLogFile(fs, f"{folder}/{log_file_name(bases[index])}") as opened:
            log = opened.map(opened.size())
            for item in opened.blocks(
                log, bases[index], base_offset=bases[index], limit=bases[index + 1]
            ):
                if isinstance(item, FoundBlock):
                    files[0].take(log, item)
    return files
