"""The last sequence number of each producer, kept in the blocks of the messages they are for.

Owns: the table, its bound, and the trailer of a block that carries entries of it. Does not own what
a repeated sequence number means (the broker).

    trailer, at the end of a block whose flag says so
     0  16n  n times: uint64 producer, int64 sequence; the one that published last is last
    16n   4  n
    +4    4  0

Invariants:

- A mark and its messages are in one block: a crash takes both or neither.
- The first block of a log file carries the whole table as it was before it, then its own mark. So
  the last file says everything, unless its first block is damaged or missing; then the file before
  it is read too.
- At most `limit` producers are remembered; forgetting one is counted.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from penstock.storage.blocks import FLAG_PRODUCERS, Found, LogBytes
from penstock.storage.logfiles import OpenLog, log_file_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.storage.filesystem import FileSystem

_ENTRY = struct.Struct("<Qq")
_END = struct.Struct("<I4x")

Mark = tuple[int, int]


class ProducerTable:
    """Producers and their last sequence numbers, the one that published last at the end."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sequences: dict[int, int] = {}
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def last(self, producer: int) -> int | None:
        """Return a producer's last sequence number; None when it is not remembered."""
        return self._sequences.get(producer)

    def put(self, producer: int, sequence: int) -> None:
        """Remember a publish; numbers never go back."""
        self._sequences[producer] = max(sequence, self._sequences.pop(producer, sequence))
        if len(self._sequences) > self._limit:
            del self._sequences[next(iter(self._sequences))]
            self.forgotten += 1

    def trailer(self, mark: Mark | None, *, first: bool) -> bytes:
        """Return the trailer of the next block; nothing when there is nothing to say.

        Args:
            mark: Whose publish the block is.
            first: It is the first block of its log file.
        """
        entries: list[Mark] = list(self._sequences.items()) if first else []
        if mark is not None:
            entries.append(mark)
        if not entries:
            return b""
        return b"".join([*(_ENTRY.pack(*entry) for entry in entries), _END.pack(len(entries))])

    def replay(self, files: Sequence[FileMarks]) -> None:
        """Take what log files say, the oldest first."""
        for file in files:
            for producer, sequence in file.marks.items():
                self.put(producer, sequence)


class FileMarks:
    """What the blocks of one log file say of producers.

    Args:
        base_offset: The file's.
    """

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self.marks: dict[int, int] = {}
        self.complete = False

    def take(self, log: LogBytes, found: Found) -> None:
        """Take a block that verifies; they come in order."""
        header = found.header
        if header.base_offset == self._base_offset:
            self.complete = True
        if not header.flags & FLAG_PRODUCERS:
            return
        end = found.position + header.length - _END.size
        (count,) = _END.unpack_from(log.view, end)
        for producer, sequence in _ENTRY.iter_unpack(log.view[end - count * _ENTRY.size : end]):
            self.marks[producer] = max(sequence, self.marks.pop(producer, sequence))


def read_marks(
    fs: FileSystem, folder: str, bases: Sequence[int], last: FileMarks
) -> list[FileMarks]:
    """Return what the log files say, oldest first, reading no more of them than is needed.

    Args:
        fs: The file system.
        folder: The queue's.
        bases: The base offsets of all log files, ascending.
        last: What the last file says; it was read when it was recovered.

    Raises:
        Unavailable: I/O error.
    """
    files = [last]
    for index in range(len(bases) - 2, -1, -1):
        if files[0].complete:
            break
        files.insert(0, FileMarks(bases[index]))
        with OpenLog(fs, f"{folder}/{log_file_name(bases[index])}") as opened:
            log = opened.map(opened.size())
            for item in opened.blocks(
                log, bases[index], base_offset=bases[index], limit=bases[index + 1]
            ):
                if isinstance(item, Found):
                    files[0].take(log, item)
    return files
