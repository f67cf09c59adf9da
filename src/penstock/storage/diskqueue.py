"""The durable queue of one stream partition: a folder of log files with one writer process.

Owns: who may write, and who waits for an fsync. Does not own: what is written (`queue.log`),
framing (`blocks`), reading (`queue.reading`), cursors, sync policy (`syncing`), deleting
(`queue.retention`): each is a module of its own. Who writes and who reads have one face here; who
deletes has `DiskQueue.retention`, which ends when the queue is closed.

Invariants, beside those of the log:

- `append` is all or nothing: when it raises `Unavailable`, nothing of the batch is visible. The one
  exception: ``durable=True`` whose fsync fails; the batch is written then, just not known durable.
- Nothing is needed to open a queue but its log files. Opening reads the names and the last file.
- A queue that was killed starts with `durable` at the beginning of the last log file but one, and
  what is not synced is bounded by the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import Full, InvalidRequest, NotFound
from penstock.storage.blocks import Block, OffsetRange, as_messages
from penstock.storage.cursors import Cursor, CursorStore
from penstock.storage.filesystem import FileSystem, FolderLock, OsFileSystem
from penstock.storage.logfiles import OffsetsDeleted
from penstock.storage.quarantine import Quarantine
from penstock.storage.queue.log import QueueLog
from penstock.storage.queue.reading import QueueReader
from penstock.storage.queue.retention import Retention, RetentionReport
from penstock.storage.queueoptions import DiskQueueOptions, DiskQueueStatistics
from penstock.storage.syncing import Syncer
from penstock.storage.syncthreads import SyncThreads

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    import pyarrow as pa

    from penstock.storage.producers import Mark

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

_VERIFY_BYTES = 16 << 20


class DiskQueue:
    """A queue of messages on disk; every method may be called from any thread.

    Attributes:
        retention: What deletes of it.
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
        self._log = QueueLog(fs, folder, options, clock, self._syncer.hurry)
        self._quarantine = Quarantine(fs, folder)
        self._reader = QueueReader(fs, folder, self._quarantine, self._log.extent)
        self._cursors = CursorStore(fs, folder)
        self.retention = Retention(self._log, self._cursors, self._reader, self.sync)

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
        """Open the queue in `folder`, or make one there.

        Args:
            folder: Its folder.
            options: How it rolls, syncs and keeps.
            fs: The file system.
            clock: Tells the time.
            threads: Those that fsync, shared with other queues and closed after them; None: some
                of its own.
            lock: Lock the folder; False: the caller has locked one above it, which spares a file
                descriptor.

        Raises:
            Conflict: Another process, or another owner in this one, has it open.
            InvalidRequest: The folder has a newer format, or may not be written.
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
        """Sync, save the cursors, release the folder. Closing twice is fine.

        What was not touched is not synced: it is as durable as whoever wrote it has left it.

        Raises:
            Unavailable: The last sync failed; the queue is closed all the same.
        """
        with self._log.mutex:
            if self._log.closed:
                return
            touched = self._log.end()
        try:
            if touched or self._cursors.unsaved:
                self._syncer.request().result()
        finally:
            self._syncer.close()
            self.retention.finish()  # the next owner must not meet one that still deletes
            self._release()

    def _release(self) -> None:
        if self._own_threads is not None:
            self._own_threads.close()
        self._log.files.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what there is

    @property
    def options(self) -> DiskQueueOptions:
        """Return how it rolls, syncs and keeps; may be replaced, but when it syncs stays."""
        return self._log.options

    @options.setter
    def options(self, options: DiskQueueOptions) -> None:
        self._log.options = options

    @property
    def earliest(self) -> int:
        """Return the offset of the first message that is kept."""
        return self._log.earliest

    @property
    def latest(self) -> int:
        """Return the offset the next message gets."""
        return self._log.latest

    @property
    def durable(self) -> int:
        """Return the offset below which everything is fsynced."""
        return self._log.durable

    @property
    def last_append_ms(self) -> int:
        """Return when the last batch was appended, epoch ms."""
        return self._log.last_append_ms

    @property
    def size_bytes(self) -> int:
        """Return the size of the log files; cheap enough for every append."""
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
            producer: Whose batch it is (64 bits) and its sequence number, for `last_sequence`.
            due_ms: When they are due, epoch ms, for channels; 0: at once.
            wait: Where two full log files are not fsynced yet, wait for it; False refuses the
                batch, for an event loop that has others to serve.

        Raises:
            InvalidRequest: The batch holds something else than bytes, or is too large.
            Full: The disk does not keep up and the caller does not wait; nothing of the batch
                is visible.
            Unavailable: Disk full or I/O error; nothing of the batch is visible. With `durable`
                the batch may be visible and only its fsync have failed, so that publishing it
                again may double it.
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
        self._syncer.wrote(len(batch))
        if durable and self._log.durable < written.end:
            self._syncer.request().result()
        return written

    def last_sequence(self, producer: int) -> int | None:
        """Return the last sequence number of a producer; None when it is not remembered."""
        with self._log.mutex:
            return self._log.producers.last(producer)

    # -- syncing

    def sync(self) -> int:
        """Fsync now, shared by all waiters; return `durable`.

        Raises:
            Unavailable: The fsync failed; what is on disk stays, and the next sync tries again.
            Closed: The queue was closed.
        """
        return self.request_sync().result()

    def request_sync(self) -> Future[int]:
        """Ask for an fsync without waiting; the future gives `durable`. For an event loop."""
        with self._log.mutex:
            self._log.check_open()
        return self._syncer.request()

    def _sync_pass(self) -> int:
        """Make durable what was appended before now. One at a time: the syncer sees to it."""
        durable = self._log.sync()
        self._cursors.save(durable)
        return durable

    # -- reading

    def read(self, offset: int, max_bytes: int) -> list[Block]:
        """Return whole blocks from the one that holds `offset` on, or the first one behind it.

        The first block may begin before `offset`, and a jump of offsets between blocks is a loss
        that was counted. The blocks are views of mapped files.

        Args:
            offset: The first wanted message.
            max_bytes: Stop before the blocks are larger together; the first one comes always.

        Raises:
            OffsetsDeleted: Retention has deleted the offset; the error has the earliest.
            InvalidRequest: The offset is beyond the end.
            Closed: The queue was closed.
        """
        return self._reader.read(offset, max_bytes)

    def offset_at(self, time_ms: int) -> int:
        """Return the first offset appended at or after a wall time; `latest` when none was.

        Raises:
            Closed: The queue was closed.
        """
        return self._reader.offset_at(time_ms)

    def verify(self) -> DiskQueueStatistics:
        """Read everything, so that the statistics name every loss there is."""
        offset = self.earliest
        while offset < self.latest and (blocks := self.read(offset, _VERIFY_BYTES)):
            offset = blocks[-1].base_offset + blocks[-1].count
        return self.statistics()

    # -- cursors

    def cursor(self, name: str, start: Literal["earliest", "latest"] | int = "earliest") -> Cursor:
        """Return the named cursor, made durably at `start` when there is none.

        Raises:
            InvalidRequest: The name is not legal, or `start` is not an offset of this queue.
            Unavailable: Disk full or I/O error; there is no such cursor then.
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
        return Cursor(name, self._cursors, self._log.bounds)


def _no_lock(_folder: str) -> None:
    """Stand in for a lock of the caller's."""
