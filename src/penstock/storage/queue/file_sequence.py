"""The sequence of log files of one queue: their sizes, and which are not synced yet.

Owns: creating a log file, rolling to the next one, and the list of unsynced files. Does not own:
the messages (`log`), writing and searching a file (`log_files`), nor the choice of files to
delete (`log_retention`).

Invariants:

- Files are ordered by their base offsets; the last one is active: it grows.
- Only the last file, or the last two, are unsynced.
- The file of a failed roll is deleted, durably, before its offsets are written elsewhere.

Not thread-safe: the queue's mutex guards it, unless a method states otherwise.
"""

from __future__ import annotations

import posixpath
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from penstock.core.errors import NotFound
from penstock.storage.queue.blocks import FileHeader
from penstock.storage.queue.log_files import LogWriter, log_file_name, make_tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.storage.filesystem import FileSystem


class LogFileSequence:
    """The log files of a folder. Call `create` or `adopt` first.

    Attributes:
        full_bytes: The size of all log files except the active one.
        unsynced: The writers of the unsynced files, the active one last.
        changes: Counts created files, for `sync_names`.
    """

    __slots__ = (
        "_changes_synced",
        "_folder",
        "_fs",
        "_has_unsynced_deletion",
        "_leftover",
        "_sizes",
        "changes",
        "full_bytes",
        "unsynced",
    )

    def __init__(self, fs: FileSystem, folder: str) -> None:
        self._fs = fs
        self._folder = folder
        self._sizes: dict[int, int] = {}  # base offset -> bytes, in order; the last one grows
        self.full_bytes = 0
        self.unsynced: list[LogWriter] = []
        # The process that created the files, or the folder, may have died before it synced them.
        self.changes = 1
        self._changes_synced = 0
        self._leftover: int | None = None
        self._has_unsynced_deletion = False

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def active(self) -> LogWriter:
        """Return the log file that grows."""
        return self.unsynced[-1]

    @property
    def may_roll(self) -> bool:
        """Return whether the file before the active one is synced."""
        return len(self.unsynced) == 1

    @property
    def earliest(self) -> int:
        """Return the offset of the first message."""
        return next(iter(self._sizes))

    @property
    def size_bytes(self) -> int:
        """Return the size of all log files."""
        return self.full_bytes + self.active.size

    def files(self) -> list[tuple[int, int]]:
        """Return base offset and bytes of each, oldest first; the active one's initial size."""
        return list(self._sizes.items())

    def bases(self) -> tuple[int, ...]:
        """Return the base offset of each, oldest first."""
        return tuple(self._sizes)

    # -- creating

    def create(self, base: int, now_ms: int, max_bytes: int) -> None:
        """Create a log file and make it the active one.

        Args:
            base: The offset of its first message.
            now_ms: The wall time.
            max_bytes: Its maximum size, for its header.

        Raises:
            Unavailable: Disk full or I/O error.
        """
        tag = make_tag(self._folder, base, now_ms)
        writer = LogWriter.create(self._fs, self._folder, FileHeader(base, now_ms, max_bytes, tag))
        try:
            sizes, full_bytes = dict(self._sizes), self.full_bytes
            if self.unsynced:
                old = self.active
                sizes[old.base_offset] = old.size
                full_bytes += old.size
            sizes[base] = writer.size
            self.unsynced.append(writer)
        except BaseException:
            writer.close()
            raise
        self._sizes, self.full_bytes = sizes, full_bytes

    def adopt(self, bases: Sequence[int], active: LogWriter) -> None:
        """Take over the existing log files, of which the last one was recovered."""
        self.unsynced = [active]
        for base in bases[:-1]:
            self._sizes[base] = self._fs.stat(self.path(base)).size
        self.full_bytes = sum(self._sizes.values())
        self._sizes[bases[-1]] = active.size
        if len(bases) > 1:
            # It is never read through this writer: it only has to be synced.
            base = bases[-2]
            header = FileHeader(base, 0, 0, tag=0)
            self.unsynced.insert(0, LogWriter(self._fs, self.path(base), header, self._sizes[base]))

    def roll(self, base: int, now_ms: int, max_bytes: int) -> None:
        """Continue in a new log file; the arguments are those of `create`.

        Raises:
            Unavailable: Disk full or I/O error; the active log file stays the same.
        """
        self._leftover = base
        self.create(base, now_ms, max_bytes)
        self._leftover = None
        self.changes += 1

    def remove_leftover(self) -> None:
        """Delete the file of a failed roll, durably, before its offsets are written elsewhere.

        If a power loss restored it, its name would mark the end of the previous file.

        Raises:
            Unavailable: I/O error.
        """
        if self._leftover is None:
            return
        path = self.path(self._leftover)
        if self._fs.exists(path):
            self._fs.unlink(path)
        self._fs.fsync_folder(self._folder)
        self._leftover = None

    # -- syncing

    def begin_sync(self) -> list[LogWriter]:
        """Return the writers to fsync, ready for it."""
        for writer in self.unsynced:
            writer.prepare_sync()
        return list(self.unsynced)

    def sync_names(self, changes: int) -> None:
        """Make the names of the files created up to `changes` durable; without the mutex.

        Raises:
            Unavailable: I/O error.
        """
        if changes == self._changes_synced:
            return
        self._fs.fsync_folder(self._folder)
        if not self._changes_synced:
            self._fs.fsync_folder(posixpath.dirname(self._folder))
        self._changes_synced = changes

    def end_sync(self, synced: Sequence[LogWriter], *, all_durable: bool) -> None:
        """Record that log files were fsynced."""
        while self.unsynced[0] in synced[:-1]:
            self.unsynced.pop(0).close()
        if all_durable:
            self.active.park()

    def close(self) -> None:
        """Close the files, each one even if closing another one raises."""
        with ExitStack() as steps:
            for writer in self.unsynced:
                steps.callback(writer.close)

    # -- deleting

    def take_out(self, base: int) -> int:
        """Remove a log file from the sequence; return its size in bytes."""
        size = self._sizes.pop(base)
        self.full_bytes -= size
        return size

    def put_back(self, base: int, size: int) -> None:
        """Return a log file to the sequence that could not be deleted."""
        self._sizes = {base: size, **self._sizes}
        self.full_bytes += size

    def unlink(self, base: int) -> None:
        """Delete the file of a log file that was taken out; without the mutex.

        Deleting a large file takes long, and appends must not wait for it.

        Raises:
            Unavailable: It could not be deleted.
        """
        self._has_unsynced_deletion = True
        with suppress(NotFound):  # another process deleted it
            self._fs.unlink(self.path(base))

    def exists(self, base: int) -> bool:
        """Return whether the file of a log file exists; without the mutex."""
        return self._fs.exists(self.path(base))

    def sync_deletions(self) -> None:
        """Make deletions durable, if some are not yet; without the mutex.

        Raises:
            Unavailable: I/O error.
        """
        if self._has_unsynced_deletion:
            self._fs.fsync_folder(self._folder)
            self._has_unsynced_deletion = False

    def path(self, base: int) -> str:
        """Return the path of a log file."""
        return f"{self._folder}/{log_file_name(base)}"
