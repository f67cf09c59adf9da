"""A journal: a snapshot of some state, and the records of what happened since.

Owns the files of one folder: each begins with a snapshot and goes on with batches of records, one
checksummed block a batch. Does not own what they mean. Used by one owner, one call at a time, but
for the fsync that `begin_sync` gives.

Invariants:

- An append is there whole or not at all, whatever happens to the process; after a power loss it is
  there if it was synced.
- `compact` leaves the old journal or the new one, complete, at every moment: the new one gets its
  name when it is durable, and only then the old one goes.
- What is read is what was appended up to some moment, never with a hole. Each block says what was
  durable when it was written, so that a tail which a power loss left in pieces is told from damage.
  Such a tail is cut off at the next write; damage is refused, or read up to it, as the owner wants,
  and the file is kept aside then.
- A journal that is only kept takes no file descriptor; one that was synced may be parked, and takes
  none until the next append.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from penstock.core.errors import CorruptData, NotFound, PenstockError
from penstock.storage.blocks import (
    FILE_HEADER_BYTES,
    Damage,
    FileHeader,
    LogBytes,
    as_messages,
    encode_block,
    encode_file_header,
    encode_records,
    messages_of,
    scan_blocks,
)
from penstock.storage.logfiles import LogWriter, OpenLog, list_log_files, log_file_name, make_tag

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.clock import Clock
    from penstock.storage.filesystem import FileSystem

_TEMPORARY: Final = ".tmp"
_DURABLE: Final = struct.Struct("<q")  # the first record of each block: what was durable then


@dataclass(slots=True)
class JournalDamage:
    """What could not be read when a journal was opened.

    Attributes:
        torn_bytes: Bytes at the end that were not durable, of unfinished writes.
        lost_bytes: Bytes from damage on, which were durable. `compact` before anything is appended.
    """

    torn_bytes: int = 0
    lost_bytes: int = 0


class Journal:
    """The journal of one folder. Made by `open`.

    Attributes:
        snapshot: What it begins with; empty when it is new.
        records: What was appended since, in order; whoever has read it may clear it.
        damage: What could not be read.
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
        self._old: list[int] = []  # files that go when the newest one's name is durable
        self._leftover: str | None = None  # a new beginning that may be there and does not count
        self._unsynced_name = False

    @classmethod
    def open(cls, folder: str, *, fs: FileSystem, clock: Clock, strict: bool = True) -> Self:
        """Read the journal of a folder, or begin one.

        Args:
            folder: The folder; made when it is missing.
            fs: The file system.
            clock: For the times in the files.
            strict: Refuse damage; otherwise what stands before it is read.

        Raises:
            CorruptData: There is damage, and `strict`.
            InvalidRequest: A file is of a newer format.
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
            # Whoever gave it the name may have died before that was durable.
            journal._unsynced_name = True
            if journal._old:
                journal._sync_name()
        return journal

    @property
    def size_bytes(self) -> int:
        """Return the size of the file that is written."""
        return self._end

    def append(self, records: Sequence[bytes]) -> None:
        """Append a batch of records. They survive the process, a power loss only when synced.

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
        """Say whether something in it is not known to be durable, whoever wrote it."""
        return self._durable < self._next or self._unsynced_name or self._is_uncut

    @property
    def _is_uncut(self) -> bool:
        return self._writer is not None and self._writer.is_uncut

    def sync(self) -> None:
        """Make durable what was appended.

        Raises:
            Unavailable: The fsync failed; sync again later.
        """
        self.begin_sync()()

    def begin_sync(self) -> Callable[[], None]:
        """Return what makes durable what was appended up to now, and raises as `sync`.

        It may run on another thread, beside appends, but not beside another of its kind, nor beside
        `compact`, `park` or `close`.

        Raises:
            Unavailable: The file cannot be opened.
        """
        target = self._next
        if self._leftover is not None:
            self._remove_leftover()
        # Also what was there when it was opened: whoever wrote it may have been killed.
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
        """Let go of the file until it is written again, if all of it is durable."""
        if self._writer is not None:
            self._writer.park()

    def compact(self, snapshot: bytes) -> None:
        """Begin anew with a snapshot, durably.

        Raises:
            Unavailable: Full disk or I/O error. The journal goes on, with the old beginning or with
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
            # A start must not find it behind what comes next, unless all that follows succeeds.
            self._leftover = path
            self._fs.rename(path + _TEMPORARY, path)
        except BaseException:
            with suppress(PenstockError):  # a full disk needs the room
                self._fs.unlink(path + _TEMPORARY)
            self._remove_leftover()
            raise
        old = self._old if self._base is None else [*self._old, self._base]
        damage, following = JournalDamage(), base + len(batch)
        self.close()
        # It is the newest of its folder, so that records belong behind it.
        self._writer, self._leftover, self._old = None, None, old
        self.damage = damage
        self._base, self._tag, self._torn = base, tag, False
        self._next = self._durable = following
        self._end = FILE_HEADER_BYTES + length
        self._unsynced_name = True
        self._sync_name()

    def _remove_leftover(self) -> None:
        """Delete a new beginning whose `compact` raised; it stays to be deleted if this raises."""
        if self._leftover is not None and self._fs.exists(self._leftover):
            self._unsynced_name = True
            self._fs.unlink(self._leftover)
        self._leftover = None

    def close(self) -> None:
        """Let go of the file, without syncing. Closing twice is fine, and so is going on."""
        if self._writer is not None:
            self._writer.close()  # it remembers an fsync that failed

    def _open_writer(self) -> LogWriter:
        if self._writer is None:
            assert self._base is not None
            path = self._path(self._base)
            if self._torn:
                file = self._fs.open_append(path)
                try:
                    file.truncate(self._end)
                    # Or a power loss could bring back what stood behind the next block.
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
        with OpenLog(self._fs, path) as opened:
            log = opened.map(opened.size())
        self._end = min(FILE_HEADER_BYTES, log.size)
        tag = opened.tag
        durable = base
        for item in scan_blocks(log, self._end, tag=tag, expected=base, limit=None):
            if isinstance(item, Damage):
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
        # A file gets its name when its snapshot is durable, so that one is never torn.
        if self._next == base or durable > self._next:
            if strict:
                raise CorruptData(path, self._end, "records are missing: restore a copy")
            self.damage.lost_bytes = max(1, log.size - self._end)
        elif log.size > self._end:
            self.damage.torn_bytes = log.size - self._end
            self._torn = True
        self._tag = tag or 0

    def _durable_behind(self, log: LogBytes, damage: Damage) -> int:
        """Return what the blocks behind a damaged place say was durable when they were written."""
        if damage.next_offset is None:
            return 0
        found = scan_blocks(log, damage.end, tag=None, expected=damage.next_offset, limit=None)
        return max(
            (
                _DURABLE.unpack(messages_of(log, item.position, item.header)[0].as_py())[0]
                for item in found
                if not isinstance(item, Damage)
            ),
            default=0,
        )

    def _sync_name(self) -> None:
        """Make the name of the newest file durable; then the old ones may go."""
        self._fs.fsync_folder(self._folder)
        self._unsynced_name = False
        while self._old:
            with suppress(NotFound):
                self._fs.unlink(self._path(self._old[0]))
            del self._old[0]

    def _path(self, base: int) -> str:
        return f"{self._folder}/{log_file_name(base)}"
