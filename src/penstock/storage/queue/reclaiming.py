"""Deleting log files of a queue: what is consumed and old, the oldest, or all.

Owns: which log files may go (`choose_deletable`, a pure decision) and the steps in which they go
(`Reclaimer`). Does not own the sequence of log files (`sequence`) nor when it is looked at.

Invariants:

- Log files are deleted oldest first, each deletion synced before the next.
- The active log file, and one that is not synced yet, are never deleted.
- Appends and reads go on beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.errors import PenstockError
from penstock.storage.blocks import FILE_HEADER_BYTES
from penstock.storage.logfiles import index_of_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.storage.cursors import CursorStore
    from penstock.storage.queue.log import QueueLog
    from penstock.storage.queueoptions import DiskQueueOptions


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What one call of `retain` deleted, and the cursor that holds back the next file, if any."""

    files_deleted: int
    earliest: int
    held_back_by: str | None


@dataclass(frozen=True, slots=True)
class RetentionChoice:
    """How many of the oldest files may go, and the cursor that keeps the next one."""

    files: int
    held_back_by: str | None


def choose_deletable(
    files: Sequence[tuple[int, int, int]],
    total_bytes: int,
    cursors: Mapping[str, int],
    *,
    retention_ms: int | None,
    retention_bytes: int | None,
    now_ms: int,
    newest_ms: Callable[[int], int],
) -> RetentionChoice:
    """Say how many of the oldest log files may be deleted.

    Args:
        files: (base offset, end offset, bytes), oldest first; only files that are full and synced.
        total_bytes: The size of the whole queue.
        cursors: Name and position of each.
        retention_ms: Files whose newest message is at least this old are outside; None: none is.
        retention_bytes: Files that make the queue larger than this are outside; None: none is.
        now_ms: The wall time.
        newest_ms: Gives the time of a file's newest message, by its index in `files`; asked only
            when it matters.
    """
    slowest = min(cursors, key=lambda name: cursors[name], default=None)
    for index, (_, end, size) in enumerate(files):
        too_large = retention_bytes is not None and total_bytes - size >= retention_bytes
        too_old = retention_ms is not None and now_ms - newest_ms(index) >= retention_ms
        if not (too_large or too_old):
            return RetentionChoice(index, None)
        if slowest is not None and cursors[slowest] < end:
            return RetentionChoice(index, slowest)
        total_bytes -= size
    return RetentionChoice(len(files), None)


@dataclass(frozen=True, slots=True)
class Reclaimer:
    """Deletes log files of one queue. Slow; one at a time, which its maker sees to.

    Attributes:
        log: What is written; its mutex guards the log files.
        cursors: Its cursors.
        options: Its window, and the size of a log file.
        sync: Makes all that was appended durable, and returns up to where.
        created_ms: Gives the time at which a log file was made, by its base offset.
    """

    log: QueueLog
    cursors: CursorStore
    options: DiskQueueOptions
    sync: Callable[[], int]
    created_ms: Callable[[int], int]

    def retain(self, now_ms: int, held: Mapping[str, int], *, consumed: bool) -> RetentionReport:
        """Delete what lies behind every cursor and outside the window; see `DiskQueue.retain`."""
        self._roll_overfull()
        with self.log.mutex:
            self.log.check_open()
            files = self.log.files.files()
            total = self.log.files.size_bytes
            bases = [base for base, _ in files]
            full = index_of_file(bases, self.log.files.unsynced[0].base_offset)
        sizes = [size for _, size in files]
        self.cursors.save(self.log.durable)
        options = self.options
        no_window = options.retention_ms is None and options.retention_bytes is None
        choice = choose_deletable(
            list(zip(bases[:full], bases[1 : full + 1], sizes[:full], strict=True)),
            total,
            self.cursors.all_positions() | dict(held),
            retention_ms=0 if consumed and no_window else options.retention_ms,
            retention_bytes=options.retention_bytes,
            now_ms=now_ms,
            # A file is made when the one before is full, so that one's messages are older.
            newest_ms=lambda index: self.created_ms(bases[index + 1]),
        )
        self._delete(bases[: choice.files])
        return RetentionReport(choice.files, bases[choice.files], choice.held_back_by)

    def drop_oldest(self, max_bytes: int) -> None:
        """Delete the oldest log files, consumed or not; see `DiskQueue.drop_oldest`."""
        self._roll_overfull()
        with self.log.mutex:
            self.log.check_open()
            excess = self.log.files.size_bytes - max_bytes
            if excess <= 0:
                return
            bases: list[int] = []
            for base, size in self.log.files.files():
                if excess <= 0 or base == self.log.files.unsynced[0].base_offset:
                    break
                bases.append(base)
                excess -= size
        try:
            self._delete(bases)
        finally:
            with self.log.mutex:
                earliest = self.log.files.earliest
            self.cursors.move_all_up(earliest)

    def clear(self) -> None:
        """Delete every message that is there now; see `DiskQueue.clear`."""
        while True:
            with self.log.mutex:
                self.log.check_open()
                self.log.files.remove_leftover()
                fresh = self.log.files.active.size <= FILE_HEADER_BYTES
                if not fresh and self.log.files.may_roll:
                    self.log.roll(self.options)
                    fresh = True
                end = self.log.files.active.base_offset
            # Makes the new log file durable before the old ones go.
            self.sync()
            if fresh:
                break
        self.cursors.move_all_up(end)
        self.cursors.save(self.log.durable)
        with self.log.mutex:
            bases = [base for base in self.log.files.bases() if base < end]
        self._delete(bases)

    def _roll_overfull(self) -> None:
        """Roll a log file that is larger than it may be by now, so that it can go."""
        with self.log.mutex:
            self.log.check_open()
            files = self.log.files
            if files.active.size <= self.options.max_bytes_per_file or not files.may_roll:
                return
            files.remove_leftover()
            self.log.roll(self.options)
        self.sync()

    def _delete(self, bases: Sequence[int]) -> None:
        for base in bases:
            with self.log.mutex:
                self.log.check_open()
                size = self.log.files.take_out(base)
            try:
                self.log.files.unlink(base)
            except PenstockError:
                with self.log.mutex:
                    self.log.files.put_back(base, size)
                raise
            self.log.files.sync_folder()
