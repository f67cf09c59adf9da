"""The last sequence number of each producer, stored in the blocks of the messages.

Owns: the table, its limit, and the trailer of a block that carries entries of it. Does not own the
meaning of a repeated sequence number (the broker).

    trailer, at the end of a block whose flag is set, or before the time it is due
     0  16n  n times: uint64 producer, int64 sequence; the most recent publisher is last
             a sequence below 0 is that of -1 minus it, of a producer with an owner, whose upper 16
             bits are those of its owner
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
- At most `limit` producers are remembered; dropped ones are counted. The owner with the most of
  them loses the one that has not published for the longest time. So of n owners that publish,
  none can have fewer than 1/n of the table because of the others.
"""

from __future__ import annotations

import struct
from operator import itemgetter
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
"""A producer and its sequence number, in the form of the trailer."""

_OWNER_SHIFT = 48
_OF_NO_OWNER = -1


def mark_of(owner: int, producer: int, sequence: int) -> Mark:
    """Return the mark of a publish by a producer that belongs to an owner.

    Args:
        owner: Hash of the owner, of which 16 bits count.
        producer: Hash of the producer, of which 48 bits count.
        sequence: The sequence number, from 0.
    """
    name = producer & ((1 << _OWNER_SHIFT) - 1)
    return (owner & 0xFFFF) << _OWNER_SHIFT | name, ~sequence


def sequence_of(mark: Mark) -> int:
    """Return the sequence number of a mark."""
    return max(mark[1], ~mark[1])


class ProducerTable:
    """Producers and their last sequence numbers; the most recent publisher is last."""

    __slots__ = ("_limit", "_offsets", "_owners", "_puts", "_stored", "forgotten")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Sequence numbers in the form of the trailer.
        self._stored: dict[int, int] = {}
        self._offsets: dict[int, int] = {}
        # The producers of each owner, and the number of the put of each; the latest is last.
        self._owners: dict[int, dict[int, int]] = {}
        self._puts = 0
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._stored)

    def last(self, producer: int) -> int | None:
        """Return a producer's last sequence number; None if it is not remembered."""
        stored = self._stored.get(producer)
        return None if stored is None else sequence_of((producer, stored))

    def entry(self, producer: int) -> Mark | None:
        """Return a producer's last sequence number and its offset, for `put_back`."""
        stored = self._stored.get(producer)
        return None if stored is None else (stored, self._offsets[producer])

    def put_back(self, producer: int, entry: Mark | None) -> None:
        """Restore a producer's entry to its state before a failed publish."""
        self._drop(producer)
        if entry is not None:
            self._add(producer, *entry)

    def put(self, producer: int, sequence: int, offset: int) -> None:
        """Record a publish whose first message has this offset; numbers never decrease.

        Args:
            producer: The producer of a mark.
            sequence: The sequence number of the mark.
            offset: The offset.
        """
        before = self._drop(producer)
        self._add(producer, sequence if before is None else _later(sequence, before), offset)
        if len(self._stored) > self._limit:
            self._drop(self._excess())
            self.forgotten += 1

    def _add(self, producer: int, sequence: int, offset: int) -> None:
        self._puts += 1
        self._stored[producer], self._offsets[producer] = sequence, offset
        self._owners.setdefault(_owner_of((producer, sequence)), {})[producer] = self._puts

    def _drop(self, producer: int) -> int | None:
        """Remove a producer; return its sequence number in the form of the trailer."""
        stored = self._stored.pop(producer, None)
        if stored is not None:
            del self._offsets[producer]
            owner = _owner_of((producer, stored))
            of_owner = self._owners[owner]
            del of_owner[producer]
            if not of_owner:
                del self._owners[owner]
        return stored

    def _excess(self) -> int:
        """Return the producer of the owner with the most that has published longest ago."""
        most = max(map(len, self._owners.values()))
        oldest = (next(iter(one.items())) for one in self._owners.values() if len(one) == most)
        return min(oldest, key=itemgetter(1))[0]

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
            entries += self._stored.items()
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
            self.marks[producer] = (_later(sequence, before), header.base_offset)
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


def _owner_of(mark: Mark) -> int:
    return mark[0] >> _OWNER_SHIFT if mark[1] < 0 else _OF_NO_OWNER


def _later(one: int, other: int) -> int:
    """Return the greater of two sequence numbers in the form of the trailer."""
    return one if max(one, ~one) >= max(other, ~other) else other
