"""Deletion of log files of a queue: consumed and old ones, the oldest, or all.

Owns: the choice of log files (`choose_deletable`, a pure decision) and the steps of the deletion
(`Retention`). Does not own the sequence of log files (`file_sequence`), nor the schedule.

Invariants:

- Log files are deleted oldest first, each deletion synced before the next.
- The active log file, and one that is not synced yet, are never deleted.
- Appends and reads continue during a deletion; deletions run one after another.
- Closing the queue waits for the running deletion, and no other starts after that.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.storage.queue.blocks import FILE_HEADER_BYTES
from penstock.storage.queue.log_files import index_of_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.storage.queue.cursors import CursorStore
    from penstock.storage.queue.disk_queue_reader import DiskQueueReader
    from penstock.storage.queue.group_commit import Syncer
    from penstock.storage.queue.log import QueueLog


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """The result of a call of `retain`, with the cursor that holds back the next file, if any."""

    files_deleted: int
    earliest: int
    held_back_by: str | None


@dataclass(frozen=True, slots=True)
class RetentionChoice:
    """The number of oldest files to delete, and the cursor that holds back the next one."""

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
    """Return how many of the oldest log files may be deleted.

    Args:
        files: (base offset, end offset, bytes), oldest first; only files that are full and synced.
        total_bytes: The size of the whole queue.
        cursors: Name and position of each.
        retention_ms: Files whose newest message is at least this old may go; None: no age limit.
        retention_bytes: Files that make the queue larger than this may go; None: no size limit.
        now_ms: The wall time.
        newest_ms: Returns the time of a file's newest message, by its index in `files`; called only
            if needed.
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


class Retention:
    """Deletes log files of one queue; slow. Every method may be called from any thread.

    A mutex is held during a whole deletion, which waits for fsyncs: deletions run one at a time,
    and only other deletions wait, never appends or reads. Each step checks that the queue is still
    open, so that nothing is deleted after a close that has waited with `finish`.

    Args:
        log: The log; its mutex guards the log files, and its options have the limits.
        cursors: They hold log files back, except for `drop_oldest` and `clear`, which move them.
        reader: Returns the creation time of a log file.
        syncer: Makes all appends durable.

    Attributes:
        dropped: Number of messages that `drop_oldest` has deleted, including lost ones.
    """

    __slots__ = ("_cursors", "_log", "_mutex", "_reader", "_syncer", "dropped")

    def __init__(
        self, log: QueueLog, cursors: CursorStore, reader: DiskQueueReader, syncer: Syncer
    ) -> None:
        self._log = log
        self._cursors = cursors
        self._reader = reader
        self._syncer = syncer
        self._mutex = threading.Lock()
        self.dropped = 0

    @property
    def has_work(self) -> bool:
        """Return whether `retain` might delete files: cheap enough for very many queues."""
        return len(self._log.files) > 1 or self._cursors.unsaved

    def retain(
        self, now_ms: int, *, held: Mapping[str, int] | None = None, consumed: bool = False
    ) -> RetentionReport:
        """Delete log files that are behind every cursor and outside the limits, oldest first.

        Args:
            now_ms: The wall time.
            held: Further positions that hold files back, by name.
            consumed: Without limits, delete all files behind every cursor.

        Raises:
            Unavailable: I/O error; earlier deletions are kept.
            Closed: The queue was closed.
        """
        with self._mutex:
            self._roll_overfull()
            with self._log.mutex:
                self._log.check_open()
                files = self._log.files.files()
                total = self._log.files.size_bytes
                bases = [base for base, _ in files]
                full = index_of_file(bases, self._log.files.unsynced[0].base_offset)
            sizes = [size for _, size in files]
            self._cursors.save(self._log.durable)
            options = self._log.options
            no_window = options.retention_ms is None and options.retention_bytes is None
            choice = choose_deletable(
                list(zip(bases[:full], bases[1 : full + 1], sizes[:full], strict=True)),
                total,
                self._cursors.all_positions() | dict(held or {}),
                retention_ms=0 if consumed and no_window else options.retention_ms,
                retention_bytes=options.retention_bytes,
                now_ms=now_ms,
                # A file is created when the previous one is full, so that one's messages are older.
                newest_ms=lambda index: self._reader.created_ms(bases[index + 1]),
            )
            self._delete(bases[: choice.files])
            return RetentionReport(choice.files, bases[choice.files], choice.held_back_by)

    def drop_oldest(self, max_bytes: int) -> int:
        """Delete the oldest log files until the queue is within a limit, consumed or not.

        Log files should be much smaller than the limit, because the active one is kept. Cursors in
        deleted files move to the first remaining message.

        Args:
            max_bytes: The limit.

        Returns:
            Number of deleted messages, including lost ones; the statistics count them too.

        Raises:
            Unavailable: I/O error; earlier deletions are kept.
            Closed: The queue was closed.
        """
        with self._mutex:
            self._roll_overfull()
            # An earlier call may have raised between a deletion and this step.
            self._cursors.move_all_up(self._log.earliest)
            with self._log.mutex:
                self._log.check_open()
                first = self._log.files.earliest
                excess = self._log.files.size_bytes - max_bytes
                if excess <= 0:
                    return 0
                bases: list[int] = []
                for base, size in self._log.files.files():
                    if excess <= 0 or base == self._log.files.unsynced[0].base_offset:
                        break
                    bases.append(base)
                    excess -= size
            try:
                self._delete(bases)
            finally:
                earliest = self._log.earliest
                self._cursors.move_all_up(earliest)
                self.dropped += earliest - first
            return earliest - first

    def clear(self) -> None:
        """Delete every current message. Offsets continue; cursors move to the end.

        Raises:
            Unavailable: Disk full or I/O error; earlier deletions are kept.
            Closed: The queue was closed.
        """
        with self._mutex:
            while True:
                with self._log.mutex:
                    self._log.check_open()
                    self._log.files.remove_leftover()
                    fresh = self._log.files.active.size <= FILE_HEADER_BYTES
                    if not fresh and self._log.files.may_roll:
                        self._log.roll()
                        fresh = True
                    end = self._log.files.active.base_offset
                # Makes the new log file durable before the old ones are deleted.
                self._sync()
                if fresh:
                    break
            self._cursors.move_all_up(end)
            self._cursors.save(self._log.durable)
            with self._log.mutex:
                bases = [base for base in self._log.files.bases() if base < end]
            self._delete(bases)

    def finish(self) -> None:
        """Wait for the running deletion. The log must be closed before, so that none starts."""
        with self._mutex:
            pass

    def _roll_overfull(self) -> None:
        """Roll a log file that exceeds its maximum size, so that it can be deleted."""
        with self._log.mutex:
            self._log.check_open()
            files = self._log.files
            if files.active.size <= self._log.options.max_bytes_per_file or not files.may_roll:
                return
            files.remove_leftover()
            self._log.roll()
        self._sync()

    def _sync(self) -> None:
        with self._log.mutex:
            self._log.check_open()
        self._syncer.request().result()

    def _delete(self, bases: Sequence[int]) -> None:
        files = self._log.files
        for base in bases:
            # Otherwise a power loss could restore an older file, with a gap behind it.
            files.sync_deletions()
            with self._log.mutex:
                self._log.check_open()
                size = files.take_out(base)
            try:
                files.unlink(base)
            except BaseException:
                is_left = True
                try:
                    is_left = files.exists(base)  # the deletion may have taken effect
                finally:
                    if is_left:
                        with self._log.mutex:
                            files.put_back(base, size)
                raise
            files.sync_deletions()
