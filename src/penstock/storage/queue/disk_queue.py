"""The durable queue of one stream partition: a folder of log files with one writer process.

Owns: the lock of the writer, and the callers that wait for an fsync. Does not own: the log
(`log`), framing (`blocks`), reading (`disk_queue_reader`), `cursors`, sync policy (`group_commit`),
deletion (`log_retention`): each has its own module. Writers and readers use this class; deletion
uses `DiskQueue.retention`, which ends when the queue is closed.

Invariants, in addition to those of the log:

- `append` is all or nothing: if it raises `Unavailable`, nothing of the batch is visible. The one
  exception is ``durable=True`` with a failed fsync: the batch is written, but may not be durable.
- A queue can be opened from its log files alone. Opening reads the names and the last file.
- A queue that was killed starts with `durable` at the start of the last log file but one, so
  unsynced data is limited to the last two files.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Literal, Self

from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import Full, InvalidRequest, NotFound
from penstock.storage.disk import OsFileSystem
from penstock.storage.filesystem import FileSystem, FolderLock
from penstock.storage.queue.blocks import Block, OffsetRange, as_messages
from penstock.storage.queue.cursors import Cursor, CursorStore
from penstock.storage.queue.disk_queue_reader import DiskQueueReader
from penstock.storage.queue.group_commit import Syncer, SyncThreads
from penstock.storage.queue.log import QueueLog
from penstock.storage.queue.log_files import OffsetsDeleted
from penstock.storage.queue.log_retention import Retention, RetentionReport
from penstock.storage.queue.options import DiskQueueOptions, DiskQueueStatistics
from penstock.storage.queue.producers import sequence_of
from penstock.storage.queue.quarantine import Quarantine

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    import pyarrow as pa

    from penstock.storage.queue.producers import Mark

__all__ = [
    "Block",
    "Cursor",
    "DiskQueue",
    "DiskQueueOptions",
    "DiskQueueStatistics",
    "OffsetRange",
    "OffsetsDeleted",
    "Retention",
    "RetentionReport",
]

_logger = logging.getLogger(__name__)

_VERIFY_BYTES = 16 << 20


class DiskQueue:
    """A queue of messages on disk; every method may be called from any thread.

    Attributes:
        retention: Deletes messages of the queue.
    """

    def __init__(
        self,
        folder: str,
        options: DiskQueueOptions,
        fs: FileSystem,
        clock: Clock,
        lock: FolderLock | None,
        threads: SyncThreads | None,
    ) -> None:
        self._folder = folder
        self._fs = fs
        self._lock = lock
        self._own_threads: SyncThreads | None = None
        if threads is None and options.sync_in_background:
            threads = self._own_threads = SyncThreads(clock=clock, most=1, name=f"sync {folder}")
        self._syncer = Syncer(
            self._sync_pass,
            every_messages=options.sync_every_messages,
            interval_ms=options.sync_interval_ms,
            pause_ms=options.sync_pause_ms,
            clock=clock,
            threads=threads if options.sync_in_background else None,
            name=f"sync {folder}",
        )
        self._log = QueueLog(fs, folder, options, clock, self._syncer)
        self._quarantine = Quarantine(fs, folder)
        self._reader = DiskQueueReader(fs, folder, self._quarantine, self._log)
        self._cursors = CursorStore(fs, folder)
        self.retention = Retention(self._log, self._cursors, self._reader, self._syncer)

    @classmethod
    def open(
        cls,
        folder: str,
        options: DiskQueueOptions | None = None,
        *,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        threads: SyncThreads | None = None,
        lock: bool = True,
    ) -> Self:
        """Open the queue in `folder`, or create one there.

        Args:
            folder: Its folder.
            options: How it rolls, syncs and retains log files.
            fs: The file system.
            clock: Returns the time.
            threads: Threads for fsyncs, shared with other queues and closed after them; None:
                threads of its own.
            lock: Lock the folder; False: the caller has locked a parent folder, which saves a file
                descriptor.

        Raises:
            Conflict: Another process, or another owner in this one, has it open.
            InvalidRequest: The folder has a newer format, or is not writable.
            Unavailable: Disk full or I/O error.
        """
        fs, clock = fs or OsFileSystem(), clock or SystemClock()
        lock_of = fs.lock_folder if lock else _no_lock
        try:
            held = lock_of(folder)
        except NotFound:
            fs.mkdir(folder)
            held = lock_of(folder)
        try:
            queue = cls(folder, options or DiskQueueOptions(), fs, clock, held, threads)
        except BaseException:
            if held is not None:
                held.release()
            raise
        try:
            queue._recover()
        except BaseException:
            queue._release()
            raise
        return queue

    # -- opening and closing

    def _recover(self) -> None:
        try:
            names = self._fs.listdir(self._folder)
        except NotFound:
            self._fs.mkdir(self._folder)
            names = []
        self._log.recover(names, self._quarantine)
        self._cursors.load(names, self._log.earliest, self._log.latest)

    def close(self) -> None:
        """Sync, save the cursors, release the folder. Closing twice is allowed.

        Files that this process did not write are not synced.

        Raises:
            Unavailable: The last sync failed; the queue is closed nevertheless.
        """
        with self._log.mutex:
            if self._log.closed:
                return
            touched = self._log.end()
        with ExitStack() as steps:  # each step runs even if another one raises; the last one first
            steps.callback(self._release)
            steps.callback(self.retention.finish)  # the next owner must not meet a running deletion
            steps.callback(self._syncer.close)
            if touched or self._cursors.unsaved:
                self._syncer.request().result()

    def _release(self) -> None:
        with ExitStack() as steps:
            if self._lock is not None:
                steps.callback(self._lock.release)
            steps.callback(self._log.files.close)
            if self._own_threads is not None:
                self._own_threads.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- state

    @property
    def options(self) -> DiskQueueOptions:
        """The current options; may be replaced, but the time of syncs does not change."""
        return self._log.options

    @options.setter
    def options(self, options: DiskQueueOptions) -> None:
        self._log.options = options

    @property
    def earliest(self) -> int:
        """Return the offset of the first stored message."""
        return self._log.earliest

    @property
    def latest(self) -> int:
        """Return the offset of the next message."""
        return self._log.latest

    @property
    def durable(self) -> int:
        """Return the offset below which all messages are fsynced."""
        return self._log.durable

    @property
    def last_append_ms(self) -> int:
        """Return the time of the last append, in epoch ms."""
        return self._log.last_append_ms

    @property
    def size_bytes(self) -> int:
        """Return the size of the log files; cheap enough to call for every append."""
        with self._log.mutex:
            return self._log.files.size_bytes

    def statistics(self) -> DiskQueueStatistics:
        """Return a snapshot."""
        with self._log.mutex:
            return DiskQueueStatistics(
                earliest=self._log.files.earliest,
                latest=self._log.latest,
                durable=self._log.durable,
                log_files=len(self._log.files),
                bytes=self._log.files.size_bytes,
                unsynced_messages=self._log.latest - self._log.durable,
                messages_dropped=self.retention.dropped,
                messages_lost=self._quarantine.messages_lost,
                damaged_places=self._quarantine.damaged_places,
                bytes_quarantined=self._quarantine.bytes_quarantined,
                torn_bytes=self._quarantine.torn_bytes,
                cursors=self._cursors.all_positions(),
                cursors_reset=self._cursors.reset,
                syncs=self._syncer.passes,
                sync_failures=self._syncer.failures,
                producers=len(self._log.producers),
                producers_forgotten=self._log.producers.forgotten,
            )

    # -- writing

    def append(
        self,
        messages: Sequence[bytes] | pa.BinaryArray,
        *,
        durable: bool = False,
        producer: Mark | None = None,
        due_ms: int = 0,
        wait: bool = True,
    ) -> OffsetRange:
        """Append a batch as one block; all or nothing.

        Args:
            messages: The batch. An Arrow array, or a slice of one, is written without a copy.
            durable: Return after an fsync, which all waiting appends share.
            producer: The producer (64 bits) and its sequence number, for `last_sequence`; or the
                result of `mark_of`.
            due_ms: The due time for channels, epoch ms; 0 means at once.
            wait: Wait if two full log files are not fsynced yet; False refuses the batch instead,
                for an event loop that must not block.

        Raises:
            InvalidRequest: The batch holds values other than bytes, or is too large.
            Full: The disk is too slow and the caller does not wait; nothing of the batch is
                visible.
            Unavailable: Disk full or I/O error; nothing of the batch is visible. With `durable`
                the batch may be visible if only its fsync failed, so that publishing it again may
                duplicate it.
            Closed: The queue was closed.
        """
        batch = as_messages(messages)
        if not len(batch):
            return OffsetRange(self._log.latest, self._log.latest)
        while (written := self._log.append(batch, producer, due_ms)) is None:
            if not wait:
                raise Full(
                    f"{self._folder}: two full log files wait for an fsync, the disk does not keep "
                    "up: append again later"
                )
            self._syncer.request().result()
        try:
            self._syncer.wrote(len(batch))
        except Exception:
            # The batch is stored: a caller that got the error would append it again.
            self._syncer.mark_unplanned()
            with suppress(Exception):  # the mark lets the timer plan the sync
                self._syncer.sync_soon()
            _logger.exception("%s: planning the sync of a stored append failed", self._folder)
        if durable and self._log.durable < written.end:
            self._syncer.request().result()
        return written

    def last_append(self, producer: int) -> tuple[int, int] | None:
        """Return the sequence number and the first offset of a producer's last append.

        Returns:
            None if it is not remembered; the offset is -1 after a restart, if only its number was.
        """
        with self._log.mutex:
            found = self._log.producers.entry(producer)
        return None if found is None else (sequence_of((producer, found[0])), found[1])

    def last_sequence(self, producer: int) -> int | None:
        """Return the last sequence number of a producer; None if it is not remembered."""
        with self._log.mutex:
            return self._log.producers.last(producer)

    # -- syncing

    def sync(self) -> int:
        """Fsync now, shared by all waiters; return `durable`.

        Raises:
            Unavailable: The fsync failed; the data stays on disk, and the next sync tries again.
            Closed: The queue was closed.
        """
        return self.request_sync().result()

    def request_sync(self) -> Future[int]:
        """Request an fsync without waiting; the future returns `durable`. For an event loop."""
        with self._log.mutex:
            self._log.check_open()
        return self._syncer.request()

    def _sync_pass(self) -> int:
        """Make earlier appends durable. The syncer runs one pass at a time."""
        durable = self._log.sync()
        self._cursors.save(durable)
        return durable

    # -- reading

    def read(self, offset: int, max_bytes: int) -> list[Block]:
        """Return whole blocks, from the one that holds `offset`, or the next one.

        The first block may begin before `offset`, and a gap between the offsets of blocks is a loss
        that was counted. The blocks are views of mapped files.

        Args:
            offset: The first wanted message.
            max_bytes: Limit for the total size; the first block is returned even if it is larger.

        Raises:
            OffsetsDeleted: Retention has deleted the offset; the error has the earliest.
            InvalidRequest: The offset is beyond the end.
            Closed: The queue was closed.
        """
        return self._reader.read(offset, max_bytes)

    def offset_at(self, time_ms: int) -> int:
        """Return the first offset appended at or after a wall time; `latest` if there is none.

        Raises:
            Closed: The queue was closed.
        """
        return self._reader.offset_at(time_ms)

    def verify(self) -> DiskQueueStatistics:
        """Read everything, so that the statistics include every loss."""
        offset = self.earliest
        while offset < self.latest and (blocks := self.read(offset, _VERIFY_BYTES)):
            offset = blocks[-1].base_offset + blocks[-1].count
        return self.statistics()

    # -- cursors

    def cursor(self, name: str, start: Literal["earliest", "latest"] | int = "earliest") -> Cursor:
        """Return the named cursor; a new one is created durably at `start`.

        Raises:
            InvalidRequest: The name is invalid, or `start` is not an offset of this queue.
            Unavailable: Disk full or I/O error; the cursor was not created.
        """
        with self._log.mutex:
            self._log.check_open()
        earliest, latest = self._log.bounds()
        position = (
            {"earliest": earliest, "latest": latest}.get(start) if isinstance(start, str) else start
        )
        if position is None or not 0 <= position <= latest:
            raise InvalidRequest(
                f"cursor {name!r} cannot start at {start!r}: use 'earliest', 'latest' or an offset "
                f"up to {latest}"
            )
        self._cursors.create(name, max(position, earliest), self._log.durable)
        return Cursor(name, self._cursors, self._log)


def _no_lock(_folder: str) -> None:
    """Replace the lock of the folder if the caller holds one."""
