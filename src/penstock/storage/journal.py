"""A journal: a snapshot of a state, and the records that were appended since.

Owns the files of one folder: each begins with a snapshot, followed by batches of records, one
checksummed block per batch. Does not interpret records. Used by one owner, one call at a time,
except for the fsync that `begin_sync` returns.

Invariants:

- An append is stored completely or not at all, even if the process dies; it survives a power loss
  once it is synced.
- `compact` leaves the old journal or the new one complete at every moment: the new file gets its
  name when it is durable, and the old file is deleted only after that.
- A reader gets the records up to some moment, without a gap. Each block records how much was
  durable when it was written, so a tail torn by a power loss is distinguished from damage. The
  next write cuts off a torn tail. Damage is refused, or the journal is read up to it, as the owner
  chooses; the damaged file is then kept aside.
- An idle journal needs no file descriptor: after a sync it may be parked until the next append.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from penstock.core.errors import CorruptData, NotFound, PenstockError
from penstock.storage.queue.blocks import (
    FILE_HEADER_BYTES,
    BlockDamage,
    FileHeader,
    FoundBlock,
    LogBytes,
    as_messages,
    block_verifies,
    encode_block,
    encode_file_header,
    encode_records,
    messages_of,
    parse_block_header,
    parse_file_header,
    scan_blocks,
)
from penstock.storage.queue.log_files import (
    LogWriter,
    OpenLogFile,
    list_log_files,
    log_file_name,
    make_tag,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.core.clock import Clock
    from penstock.storage.filesystem import FileSystem

_TEMPORARY: Final = ".tmp"
_READ_BYTES: Final = 4 << 20
_DURABLE: Final = struct.Struct("<q")  # the first record of each block: durable size at that time


@dataclass(slots=True)
class JournalDamage:
    """Bytes that could not be read when a journal was opened.

    Attributes:
        torn_bytes: Bytes of unfinished writes at the end, which were not durable.
        lost_bytes: Bytes from the damage on, which were durable. Call `compact` before appending.
    """

    torn_bytes: int = 0
    lost_bytes: int = 0


class FoundRecords(NamedTuple):
    """The records of one block of a file.

    Attributes:
        position: Position of the block in the file, in bytes.
        length: Length of the block in bytes.
        end_offset: Offset of the next block.
        records: The records of the owner, without the snapshot.
    """

    position: int
    length: int
    end_offset: int
    records: list[bytes]


class JournalFile:
    """One file of a journal, read block by block while the journal is appended to it.

    Args:
        fs: The file system.
        path: The file, which may have been renamed.

    Attributes:
        position: Position of the next block, in bytes.
        tag: Tag of the file that is read; None: its header was not read.
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self.tag: int | None = None
        self._expected = 0
        self.position = 0

    def blocks(self) -> Iterator[FoundRecords]:
        """Yield the blocks from the position on. Damage is passed over if a block follows it.

        Raises:
            NotFound: There is no such file.
            Unavailable: I/O error.
        """
        file = self._fs.open_read(self._path)
        try:
            if not self.position:
                header = parse_file_header(file.pread(FILE_HEADER_BYTES, 0), self._path)
                if header is None:
                    return
                self.tag, self._expected = header.tag, header.base_offset
                self.position = FILE_HEADER_BYTES
            at, expected, size = self.position, self._expected, _READ_BYTES
            while content := file.pread(size, at):
                start, log = at, LogBytes(memoryview(content))
                for item in scan_blocks(log, 0, tag=self.tag, expected=expected, limit=None):
                    if isinstance(item, FoundBlock):
                        place, block = start + item.position, item.header
                        at, expected = place + block.length, block.end_offset
                        found = messages_of(log, item.position, block).to_pylist()
                        first = 2 if place == FILE_HEADER_BYTES else 1
                        yield FoundRecords(place, block.length, expected, found[first:])
                if at > start:
                    size = _READ_BYTES
                elif len(content) == size:
                    size *= 2  # a block may be larger than that
                else:
                    return
        finally:
            file.close()

    def read_tag(self) -> int | None:
        """Return the tag of the file that has the path now; None: it has no header.

        Raises:
            NotFound: There is no such file.
            Unavailable: I/O error.
        """
        file = self._fs.open_read(self._path)
        try:
            header = parse_file_header(file.pread(FILE_HEADER_BYTES, 0), self._path)
        finally:
            file.close()
        return None if header is None else header.tag

    def passed(self, found: FoundRecords) -> None:
        """Continue after a block the next time."""
        self.position = found.position + found.length
        self._expected = found.end_offset


def read_block(content: bytes, path: str) -> list[bytes]:
    """Return the records of a block.

    Raises:
        CorruptData: It is not a valid block.
    """
    log = LogBytes(memoryview(content))
    header = parse_block_header(content)
    if header is None or not block_verifies(log, 0, header):
        raise CorruptData(path, 0, "a block is damaged: restore a copy")
    records: list[bytes] = messages_of(log, 0, header).to_pylist()
    return records[1:]


class Journal:
    """The journal of one folder. Created by `open`.

    Attributes:
        snapshot: The snapshot at the start; empty for a new journal.
        records: The records appended since, in order; the owner may clear it after reading.
        damage: Bytes that could not be read.
    """

    def __init__(self, folder: str, fs: FileSystem, clock: Clock) -> None:
        self.snapshot = b""
        self.records: list[bytes] = []
        self.damage = JournalDamage()
        self._folder = folder
        self._fs = fs
        self._clock = clock
        self._base: int | None = None
        self._tag = 0
        self._next = 0
        self._end = 0
        self._torn = False
        self._writer: LogWriter | None = None
        self._durable = 0
        self._old: list[int] = []  # files to delete once the newest file's name is durable
        self._leftover: str | None = None  # file of a failed `compact`, which must be ignored
        self._unsynced_name = False

    @classmethod
    def open(cls, folder: str, *, fs: FileSystem, clock: Clock, strict: bool = True) -> Self:
        """Read the journal of a folder, or start a new one.

        Args:
            folder: The folder; created if missing.
            fs: The file system.
            clock: For the times in the files.
            strict: Refuse damage; otherwise the records before it are read.

        Raises:
            CorruptData: There is damage, and `strict` is set.
            InvalidRequest: A file has a newer format.
            Unavailable: I/O error.
        """
        fs.mkdir(folder)
        journal = cls(folder, fs, clock)
        for name in fs.listdir(folder):
            if name.endswith(_TEMPORARY):
                fs.unlink(f"{folder}/{name}")
        bases = list_log_files(fs, folder)
        if bases:
            journal._read(bases[-1], strict=strict)
            journal._old = bases[:-1]
            # The process that renamed it may have died before the name was durable.
            journal._unsynced_name = True
            if journal._old:
                journal._sync_name()
        return journal

    @property
    def size_bytes(self) -> int:
        """Return the size of the current file."""
        return self._end

    @property
    def path(self) -> str:
        """Return the path of the current file; a new journal gets one by `compact`."""
        assert self._base is not None
        return self._path(self._base)

    def append(self, records: Sequence[bytes]) -> None:
        """Append a batch of records. They survive a crash; a power loss only after a sync.

        Raises:
            Unavailable: Full disk or I/O error; nothing was appended.
        """
        if self._base is None:
            self.compact(b"")
        assert not self.damage.lost_bytes, "compact first: nothing is written behind damage"
        if self._leftover is not None:
            self._remove_leftover()
        writer = self._open_writer()
        batch = [_DURABLE.pack(self._durable), *records]
        buffers, length = encode_records(batch, self._next, self._clock.now_ms(), self._tag)
        writer.append(buffers)
        self._next += len(batch)
        self._end += length

    @property
    def unsynced(self) -> bool:
        """Return whether the journal holds bytes that are not known to be durable."""
        return self._durable < self._next or self._unsynced_name or self._is_uncut

    @property
    def _is_uncut(self) -> bool:
        return self._writer is not None and self._writer.is_uncut

    def sync(self) -> None:
        """Make all appended records durable.

        Raises:
            Unavailable: The fsync failed; sync again later.
        """
        self.begin_sync()()

    def begin_sync(self) -> Callable[[], None]:
        """Return a function that makes the records appended so far durable, and raises as `sync`.

        It may run on another thread and concurrently with appends, but not concurrently with
        another such function, `compact`, `park` or `close`.

        Raises:
            Unavailable: The file cannot be opened.
        """
        target = self._next
        if self._leftover is not None:
            self._remove_leftover()
        # Includes bytes from before the journal was opened: their writer may have been killed.
        writer = self._open_writer() if self._durable < target or self._is_uncut else None
        if writer is not None:
            writer.prepare_sync()

        def finish_sync() -> None:
            if writer is not None:
                writer.sync()
                self._durable = max(self._durable, target)
            if self._unsynced_name:
                self._sync_name()

        return finish_sync

    def park(self) -> None:
        """Close the file until the next write, if all of it is durable."""
        if self._writer is not None:
            self._writer.park()

    def compact(self, snapshot: bytes) -> None:
        """Start a new file with a snapshot, durably.

        Raises:
            Unavailable: Full disk or I/O error. The journal continues, with the old file or with
                the new one, which is not durable yet.
        """
        if self._leftover is not None:
            self._remove_leftover()
        if self.damage.lost_bytes and self._base is not None:
            damaged = self._path(self._base)
            self._fs.write_atomically(f"{damaged}.bad", self._fs.read_bytes(damaged))
        now_ms = self._clock.now_ms()
        base = self._next if self._base is None else max(self._next, self._base + 1)
        path = self._path(base)
        tag = make_tag(self._folder, base, now_ms)
        batch = as_messages([_DURABLE.pack(base), snapshot])
        buffers, length = encode_block(batch, base, now_ms, tag)
        file = self._fs.create(path + _TEMPORARY, replace=True)
        try:
            try:
                file.writev([encode_file_header(FileHeader(base, now_ms, 0, tag)), *buffers])
                file.sync()
            finally:
                file.close()
            # A later start must not find this file before the steps below succeed.
            self._leftover = path
            self._fs.rename(path + _TEMPORARY, path)
        except BaseException:
            with suppress(PenstockError):  # a full disk needs the space
                self._fs.unlink(path + _TEMPORARY)
            self._remove_leftover()
            raise
        old = self._old if self._base is None else [*self._old, self._base]
        damage, following = JournalDamage(), base + len(batch)
        self.close()
        # It is the newest file of its folder, so records are appended to it.
        self._writer, self._leftover, self._old = None, None, old
        self.damage = damage
        self._base, self._tag, self._torn = base, tag, False
        self._next = self._durable = following
        self._end = FILE_HEADER_BYTES + length
        self._unsynced_name = True
        self._sync_name()

    def _remove_leftover(self) -> None:
        """Delete the new file of a failed `compact`; raises again if it cannot be deleted."""
        if self._leftover is not None and self._fs.exists(self._leftover):
            self._unsynced_name = True
            self._fs.unlink(self._leftover)
        self._leftover = None

    def close(self) -> None:
        """Close the file without syncing. Closing twice is allowed, and so is using it again."""
        if self._writer is not None:
            self._writer.close()  # it records a failed fsync

    def _open_writer(self) -> LogWriter:
        if self._writer is None:
            assert self._base is not None
            path = self._path(self._base)
            if self._torn:
                file = self._fs.open_append(path)
                try:
                    file.truncate(self._end)
                    # Otherwise a power loss could restore the bytes after the next block.
                    file.sync()
                finally:
                    file.close()
                self._torn = False
            header = FileHeader(self._base, 0, 0, self._tag)
            self._writer = LogWriter(self._fs, path, header, self._end)
        return self._writer

    def _read(self, base: int, *, strict: bool) -> None:
        path = self._path(base)
        self._base = self._next = base
        with OpenLogFile(self._fs, path) as opened:
            log = opened.map(opened.size())
        self._end = min(FILE_HEADER_BYTES, log.size)
        tag = opened.tag
        durable = base
        for item in scan_blocks(log, self._end, tag=tag, expected=base, limit=None):
            if isinstance(item, BlockDamage):
                durable = max(durable, self._durable_behind(log, item))
                break
            found = messages_of(log, item.position, item.header).to_pylist()
            (durable,) = _DURABLE.unpack(found[0])
            if item.header.base_offset == base:
                self.snapshot, found = found[1], found[1:]
            self.records += found[1:]
            self._next = item.header.end_offset
            self._end = item.position + item.header.length
            tag = item.header.tag
        self._durable = min(durable, self._next)
        # A file gets its name when its snapshot is durable, so a snapshot is never torn.
        if self._next == base or durable > self._next:
            if strict:
                raise CorruptData(path, self._end, "records are missing: restore a copy")
            self.damage.lost_bytes = max(1, log.size - self._end)
        elif log.size > self._end:
            self.damage.torn_bytes = log.size - self._end
            self._torn = True
        self._tag = tag or 0

    def _durable_behind(self, log: LogBytes, damage: BlockDamage) -> int:
        """Return the durable size that the blocks after a damaged position recorded."""
        if damage.next_offset is None:
            return 0
        found = scan_blocks(log, damage.end, tag=None, expected=damage.next_offset, limit=None)
        return max(
            (
                _DURABLE.unpack(messages_of(log, item.position, item.header)[0].as_py())[0]
                for item in found
                if not isinstance(item, BlockDamage)
            ),
            default=0,
        )

    def _sync_name(self) -> None:
        """Make the name of the newest file durable; then the old files may be deleted."""
        self._fs.fsync_folder(self._folder)
        self._unsynced_name = False
        while self._old:
            with suppress(NotFound):
                self._fs.unlink(self._path(self._old[0]))
            del self._old[0]

    def _path(self, base: int) -> str:
        return f"{self._folder}/{log_file_name(base)}"
