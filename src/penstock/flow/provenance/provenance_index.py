"""Index of one file of the spool: which commits concern a FlowFile, or a message of a topic.

    provenance/<number>.index    index of a file that is complete

Owns the tables, how they are built block by block, and their file. It is derived data: without the
file it is built again. Does not own the spool (`repository.commit_spool`), nor the form of the
blocks (`storage.journal`).

Invariant: an index covers a prefix of the blocks of its file. The file is known by the tag of its
header: another one may get its name.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from penstock.core.errors import NotFound, PenstockError
from penstock.flow.repository.commit_note import CommitNote
from penstock.flow.repository.commit_spool import SPOOL_SUFFIX, spool_path
from penstock.storage.journal import FoundRecords, JournalFile

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy.typing as npt

    from penstock.storage.filesystem import FileSystem

INDEX_SUFFIX: Final = ".index"
_FORMAT: Final = 3
_logger = logging.getLogger(__name__)


class _IdOnly(msgspec.Struct, frozen=True, array_like=True):
    """FlowFile of which only the id is decoded."""

    id: int


class _IndexedCommit(msgspec.Struct, frozen=True, array_like=True):
    """Fields of `CommitRecord` that the index needs, at their places."""

    number: int
    durable: int
    puts: dict[str, list[_IdOnly]] = {}
    removes: list[int] = []
    rows: msgspec.Raw = msgspec.Raw()
    written: msgspec.Raw = msgspec.Raw()
    swapped: msgspec.Raw = msgspec.Raw()
    states: msgspec.Raw = msgspec.Raw()
    notes: list[CommitNote] = []


_decode: Final = msgspec.msgpack.Decoder(_IndexedCommit).decode


class CommitPlace(NamedTuple):
    """Place of an encoded commit.

    Attributes:
        first: File, by the number of its first commit.
        position: Position of its block in the file, in bytes.
        length: Length of the block in bytes.
    """

    first: int
    position: int
    length: int


class _NewRows:
    """Rows of the tables for the commits that one call adds; the first has this index."""

    __slots__ = ("counts", "first", "ids", "lengths", "messages", "numbers", "positions")

    def __init__(self, first: int) -> None:
        self.first = first
        self.numbers: list[int] = []
        self.positions: list[int] = []
        self.lengths: list[int] = []
        self.ids: list[int] = []
        self.counts: list[int] = []
        self.messages: list[int] = []


class _StoredIndex(msgspec.Struct, frozen=True, array_like=True):
    format_number: int
    size: int
    last: int
    tag: int | None
    end: int
    topics: list[tuple[str, int]]
    numbers: bytes
    positions: bytes
    lengths: bytes
    ids: bytes
    id_records: bytes
    keys: bytes
    starts: bytes
    ends: bytes
    message_records: bytes


class SpoolFileIndex:
    """Index of one file, which grows with it.

    Args:
        fs: The file system.
        folder: Folder of the spool.
        first: Number of the file's first commit.

    Attributes:
        end: Position up to which the file is indexed, in bytes.
        last: Number of the last commit that the file may have; 0: the file is not complete.
    """

    def __init__(self, fs: FileSystem, folder: str, first: int) -> None:
        self._fs = fs
        self._folder = folder
        self.first = first
        self.end = 0
        self._numbers: list[npt.NDArray[np.int64]] = []
        self._positions: list[npt.NDArray[np.int64]] = []
        self._lengths: list[npt.NDArray[np.int64]] = []
        self._ids: list[npt.NDArray[np.int64]] = []
        self._id_records: list[npt.NDArray[np.int64]] = []
        self._topics: dict[tuple[str, int], int] = {}
        self._messages: list[npt.NDArray[np.int64]] = []  # rows of key, start, end, record
        self._count = 0
        self._is_sorted = False
        self._is_bounded = False  # the file has commits after the last one
        self._file = JournalFile(fs, self.path)
        self.last = 0

    @property
    def path(self) -> str:
        """Return the path of the spool's file."""
        return spool_path(self._folder, self.first)

    def is_of_other_file(self) -> bool:
        """Return whether the name was given to another file than the one that is indexed.

        Raises:
            NotFound: The file was deleted.
            Unavailable: I/O error.
        """
        tag = self._file.tag
        return (tag is not None or self.last > 0) and self._file.read_tag() != tag

    def advance(self, last: int, withdrawn: Collection[int] = ()) -> bool:
        """Index the commits that were added; return whether there were any.

        Args:
            last: Number of the last commit to index: those after it are not durable, or not of
                this file.
            withdrawn: Commits that were undone.

        Raises:
            NotFound: The file was deleted.
        """
        rows = _NewRows(self._count)
        self._is_bounded = False
        try:
            for found in self._file.blocks():
                commits = [_decode(record) for record in found.records]
                if any(one.number > last for one in commits):
                    self._is_bounded = True
                    break
                if found.position > self._file.position:
                    self._report(self._file.position, found.position)
                for commit in commits:
                    if commit.notes and commit.number not in withdrawn:
                        self._add(commit, found, rows)
                self._file.passed(found)
                self.end = self._file.position
        finally:
            self._extend(rows)
        return bool(rows.numbers)

    def numbers(self) -> npt.NDArray[np.int64]:
        """Return the numbers of the commits, ascending."""
        return _joined(self._numbers)

    def place(self, record: int) -> CommitPlace:
        """Return the place of a commit, by its index in the file."""
        positions, lengths = _joined(self._positions), _joined(self._lengths)
        return CommitPlace(self.first, int(positions[record]), int(lengths[record]))

    def of_flowfile(self, flowfile: int) -> list[int]:
        """Return the commits that concern a FlowFile, by their indexes in the file."""
        if not self._is_sorted:
            ids, records = _joined(self._ids), _joined(self._id_records)
            order = np.argsort(ids, kind="stable")
            self._ids[:], self._id_records[:] = [ids[order]], [records[order]]
            self._is_sorted = True
        ids, records = _joined(self._ids), _joined(self._id_records)
        low, high = np.searchsorted(ids, [flowfile, flowfile + 1])
        found: list[int] = np.unique(records[low:high]).tolist()
        return found

    def of_message(self, topic: str, partition: int, offset: int) -> list[int]:
        """Return the commits that received or sent a message, by their indexes in the file."""
        key = self._topics.get((topic, partition))
        if key is None:
            return []
        table = _joined(self._messages).reshape(-1, 4)
        hits = (table[:, 0] == key) & (table[:, 1] <= offset) & (offset < table[:, 2])
        found: list[int] = np.unique(table[hits, 3]).tolist()
        return found

    def save(self, last: int) -> None:
        """Store the index of a complete file; a failure costs time at the next start.

        Reports damage at the end of the file, unless it is after commits that are not of the file.

        Args:
            last: Number of the last commit that the file may have.
        """
        size = self.end
        with suppress(NotFound):
            size = self._fs.stat(self.path).size
            if self.end < size and not self._is_bounded:
                self._report(self.end, size)
        table = _joined(self._messages).reshape(-1, 4)
        self.of_flowfile(-1)
        self.last = last
        stored = _StoredIndex(
            *(_FORMAT, size, last, self._file.tag, self.end),
            list(self._topics),
            *(
                _joined(one).tobytes()
                for one in (
                    *(self._numbers, self._positions, self._lengths),
                    *(self._ids, self._id_records),
                )
            ),
            *(np.ascontiguousarray(table[:, column]).tobytes() for column in range(4)),
        )
        try:
            self._fs.write_atomically(self._index_path, msgspec.msgpack.encode(stored))
        except PenstockError:
            return

    def load(self, last: int) -> bool:
        """Load a stored index; return whether there is a valid one of this file.

        Args:
            last: Number of the last commit that the file may have.
        """
        try:
            content = self._fs.read_bytes(self._index_path)
            stored = msgspec.msgpack.decode(content, type=_StoredIndex)
            known = stored.format_number, stored.last, stored.size, stored.tag
            size = self._fs.stat(self.path).size
            if known != (_FORMAT, last, size, self._file.read_tag()):
                return False
        except (NotFound, msgspec.MsgspecError):
            return False
        arrays = [
            np.frombuffer(one, np.int64)
            for one in (stored.numbers, stored.positions, stored.lengths)
        ]
        self._numbers, self._positions, self._lengths = ([one] for one in arrays)
        self._ids = [np.frombuffer(stored.ids, np.int64)]
        self._id_records = [np.frombuffer(stored.id_records, np.int64)]
        columns = (stored.keys, stored.starts, stored.ends, stored.message_records)
        table = np.stack([np.frombuffer(one, np.int64) for one in columns], axis=1)
        self._messages = [table.ravel()]
        self._topics = {topic: key for key, topic in enumerate(stored.topics)}
        self._count, self.end, self._is_sorted = len(arrays[0]), stored.end, True
        self._file.tag, self.last = stored.tag, last
        return True

    def _add(self, commit: _IndexedCommit, found: FoundRecords, rows: _NewRows) -> None:
        before, record = len(rows.ids), rows.first + len(rows.numbers)
        for put in commit.puts.values():
            rows.ids += [one.id for one in put]
        rows.ids += commit.removes
        for note in commit.notes:
            self._note(note, record, rows.ids, rows.messages)
        rows.numbers.append(commit.number)
        rows.positions.append(found.position)
        rows.lengths.append(found.length)
        rows.counts.append(len(rows.ids) - before)

    def _report(self, position: int, end: int) -> None:
        _logger.warning(
            "%s: the frame at position %d is damaged: the commits from there to %d are missing from"
            " provenance",
            *(self.path, position, end),
        )

    def _extend(self, rows: _NewRows) -> None:
        if not rows.numbers:
            return
        places = np.arange(rows.first, rows.first + len(rows.numbers), dtype=np.int64)
        self._id_records.append(np.repeat(places, rows.counts))
        for known, new in (
            *((self._numbers, rows.numbers), (self._positions, rows.positions)),
            *((self._lengths, rows.lengths), (self._ids, rows.ids)),
            (self._messages, rows.messages),
        ):
            known.append(np.array(new, np.int64))
        self._count += len(rows.numbers)
        self._is_sorted = False

    def _note(self, note: CommitNote, record: int, ids: list[int], messages: list[int]) -> None:
        ids += note.downloads
        if note.replay:
            ids += [parent for parent, _ in note.links]  # it is in no queue
        for transfer in note.transfers:
            if transfer.offset >= 0:
                key = self._topics.setdefault(
                    (transfer.topic, transfer.partition), len(self._topics)
                )
                count = sum(transfer.counts) if transfer.counts else len(transfer.ids)
                messages += (key, transfer.offset, transfer.offset + count, record)

    @property
    def _index_path(self) -> str:
        return self.path.removesuffix(SPOOL_SUFFIX) + INDEX_SUFFIX


def _joined(parts: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Return the parts as one array, and keep them joined."""
    if len(parts) != 1:
        parts[:] = [np.concatenate(parts) if parts else np.zeros(0, np.int64)]
    return parts[0]
