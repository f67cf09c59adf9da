"""The durable queue of one stream partition: a folder of log files with one writer process.

Owns: the next offset, what is durable, and who may write. Does not own: framing (`blocks`),
searching (`logfiles`), which log files there are (`sequence`), recovery, cursors, sync policy,
deleting (`reclaiming`): each is a module of its own.

Invariants:

- An offset is given to one message only. After a crash the offsets of messages that were never
  durable may be given again; below `durable` never.
- `append` is all or nothing: when it raises `Unavailable`, nothing of the batch is visible. The one
  exception: ``durable=True`` whose fsync fails; the batch is written then, just not known durable.
- Nothing is needed to open a queue but its log files. Opening reads the names and the last file.
- At most the last two log files hold bytes that are not fsynced: a full one grows on while the one
  before it is not synced, to twice its size at most. So a queue that was killed starts with
  `durable` at the beginning of the last but one, and what is not synced is bounded.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import Closed, InvalidRequest, NotFound, PenstockError, Unavailable
from penstock.storage.blocks import (
    FILE_HEADER_BYTES,
    Block,
    OffsetRange,
    as_messages,
    encode_block,
)
from penstock.storage.cursors import Cursor, CursorStore
from penstock.storage.filesystem import FileSystem, FolderLock, OsFileSystem
from penstock.storage.logfiles import LogWriter, OffsetsDeleted, log_files_among
from penstock.storage.producers import FileMarks, Mark, ProducerTable, read_marks
from penstock.storage.quarantine import Quarantine
from penstock.storage.queue.reading import QueueExtent, QueueReader
from penstock.storage.queue.reclaiming import Reclaimer, RetentionReport
from penstock.storage.queue.recovery import recover_tail
from penstock.storage.queue.sequence import LogSequence
from penstock.storage.queueoptions import DiskQueueOptions, DiskQueueStatistics
from penstock.storage.syncing import Syncer
from penstock.storage.syncthreads import SyncThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    import pyarrow as pa
    from typing_extensions import Buffer

T = TypeVar("T")

__all__ = [
    "Block",
    "Cursor",
    "DiskQueue",
    "DiskQueueOptions",
    "DiskQueueStatistics",
    "OffsetRange",
    "OffsetsDeleted",
    "RetentionReport",
]

_VERIFY_BYTES = 16 << 20
_OVERFULL = 2  # how many times its size a log file may grow to while it cannot be rolled


class DiskQueue:
    """A queue of messages on disk; every method may be called from any thread.

    `options` may be replaced at any time; when it syncs stays as it was.

    The mutex guards the fields and is held while a batch is written, so batches have one order;
    mail to an owning thread would cost more than the write itself. It is never held while an fsync
    runs or while a reader reads.
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
        self.options = options
        self._fs = fs
        self._clock = clock
        self._lock = lock
        self._mutex = threading.Lock()
        self._reclaim_mutex = threading.Lock()  # one retain() at a time, or another deletion
        self._files = LogSequence(fs, folder)
        self._quarantine = Quarantine(fs, folder)
        self._reader = QueueReader(fs, folder, self._quarantine)
        self._cursors = CursorStore(fs, folder)
        self._producers = ProducerTable(options.max_producers)
        self._closed = False
        self._changed = False  # since it was opened
        self._dropped = 0
        self._next = 0
        self._durable = 0
        self._last_time_ms = 0
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
        queue = cls(folder, options or DiskQueueOptions(), fs, clock, held, threads)
        try:
            queue._recover()
        except PenstockError:
            queue._release()
            raise
        return queue

    # -- opening and closing

    def _recover(self) -> None:
        names = self._names()
        bases = log_files_among(names)
        now_ms = self._clock.now_ms()
        if not bases:
            self._files.create(0, now_ms, self.options.max_bytes_per_file)
        else:
            marks = FileMarks(bases[-1])
            tail = recover_tail(
                self._fs,
                self._folder,
                bases[-1],
                self._quarantine,
                now_ms=now_ms,
                max_bytes_per_file=self.options.max_bytes_per_file,
                on_block=marks.take,
            )
            self._producers.replay(read_marks(self._fs, self._folder, bases, marks))
            self._next, self._last_time_ms = tail.next_offset, tail.last_time_ms
            self._files.adopt(bases, tail.writer)
        self._durable = self._files.unsynced[0].base_offset
        self._cursors.load(names, self._files.earliest, self._next)

    def _names(self) -> list[str]:
        try:
            return self._fs.listdir(self._folder)
        except NotFound:
            self._fs.mkdir(self._folder)
            return []

    def close(self) -> None:
        """Sync, save the cursors, release the folder. Closing twice is fine.

        What was not touched is not synced: it is as durable as whoever wrote it has left it.

        Raises:
            Unavailable: The last sync failed; the queue is closed all the same.
        """
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            touched = self._changed and self._durable < self._next
        try:
            if touched or self._cursors.unsaved:
                self._syncer.request().result()
        finally:
            self._syncer.close()
            if self._own_threads is not None:
                self._own_threads.close()
            with self._reclaim_mutex:  # the next owner must not meet one that still deletes
                self._release()

    def _release(self) -> None:
        self._files.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what there is

    @property
    def earliest(self) -> int:
        """Return the offset of the first message that is kept."""
        with self._mutex:
            return self._files.earliest

    @property
    def latest(self) -> int:
        """Return the offset the next message gets."""
        return self._next

    @property
    def durable(self) -> int:
        """Return the offset below which everything is fsynced."""
        return self._durable

    @property
    def last_append_ms(self) -> int:
        """Return when the last batch was appended, epoch ms."""
        return self._last_time_ms

    @property
    def size_bytes(self) -> int:
        """Return the size of the log files; cheap enough for every append."""
        with self._mutex:
            return self._files.size_bytes

    @property
    def worth_retaining(self) -> bool:
        """Say whether `retain` could have anything to do: cheap enough for very many queues."""
        return len(self._files) > 1 or self._cursors.unsaved

    def statistics(self) -> DiskQueueStatistics:
        """Return a snapshot."""
        with self._mutex:
            return DiskQueueStatistics(
                earliest=self._files.earliest,
                latest=self._next,
                durable=self._durable,
                log_files=len(self._files),
                bytes=self._files.size_bytes,
                unsynced_messages=self._next - self._durable,
                messages_dropped=self._dropped,
                messages_lost=self._quarantine.messages_lost,
                damaged_places=self._quarantine.damaged_places,
                bytes_quarantined=self._quarantine.bytes_quarantined,
                torn_bytes=self._quarantine.torn_bytes,
                cursors=self._cursors.all_positions(),
                cursors_reset=self._cursors.reset,
                syncs=self._syncer.passes,
                sync_failures=self._syncer.failures,
                producers=len(self._producers),
                producers_forgotten=self._producers.forgotten,
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
            Unavailable: Disk full, I/O error, or the disk does not keep up and the caller does
                not wait; nothing of the batch is visible. With `durable`
                the batch may be visible and only its fsync have failed, so that publishing it
                again may double it.
            Closed: The queue was closed.
        """
        batch = as_messages(messages)
        if not len(batch):
            return OffsetRange(self._next, self._next)
        while (written := self._write(batch, producer, due_ms)) is None:
            if not wait:
                raise Unavailable(
                    f"{self._folder}: two full log files wait for an fsync, the disk does not keep "
                    "up: append again later"
                )
            self._syncer.request().result()
        self._syncer.wrote(len(batch))
        if durable and self._durable < written.end:
            self._syncer.request().result()
        return written

    def _write(
        self, batch: pa.BinaryArray, producer: Mark | None, due_ms: int
    ) -> OffsetRange | None:
        """Write one block; None where that has to wait for the fsync of an earlier log file."""
        with self._mutex:
            self._check_open()
            self._files.remove_leftover()
            base, active = self._next, self._files.active
            now_ms = max(self._clock.now_ms(), self._last_time_ms)
            buffers, length = self._encode(batch, (producer, due_ms), active, now_ms)
            size, limit = active.size + length, self.options.max_bytes_per_file
            if size > limit and active.size > FILE_HEADER_BYTES:
                # Only when this file is synced can the next one be rolled.
                self._syncer.hurry()
                if self._files.may_roll:
                    active = self._roll(now_ms)
                    buffers, _ = self._encode(batch, (producer, due_ms), active, now_ms)
                elif size > _OVERFULL * limit:
                    return None
            active.append(buffers)
            self._changed = True
            self._next = base + len(batch)
            self._last_time_ms = now_ms
            if producer is not None:
                self._producers.put(*producer, base)
            return OffsetRange(base, self._next)

    def _encode(
        self,
        batch: pa.BinaryArray,
        said: tuple[Mark | None, int],
        active: LogWriter,
        now_ms: int,
    ) -> tuple[list[Buffer], int]:
        producer, due_ms = said
        first = active.size <= FILE_HEADER_BYTES
        trailer = self._producers.trailer(producer, first=first, durable=self._durable)
        buffers, length = encode_block(batch, self._next, now_ms, active.tag, trailer, due_ms)
        if length > self.options.max_block_bytes:
            raise InvalidRequest(
                f"{self._folder}: a batch that makes a block of {length} bytes is over "
                f"max_block_bytes, {self.options.max_block_bytes}: send smaller batches"
            )
        return buffers, length

    def last_sequence(self, producer: int) -> int | None:
        """Return the last sequence number of a producer; None when it is not remembered."""
        with self._mutex:
            return self._producers.last(producer)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self._folder}: the queue is closed: open it again")

    def _roll(self, now_ms: int) -> LogWriter:
        """Go on in a new log file, which is returned; the mutex is held."""
        self._files.roll(self._next, now_ms, self.options.max_bytes_per_file)
        self._changed = True
        return self._files.active

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
        with self._mutex:
            self._check_open()
        return self._syncer.request()

    def _sync_pass(self) -> int:
        """Make durable what was appended before now. One at a time: the syncer sees to it."""
        with self._mutex:
            writers = self._files.begin_sync()
            target = self._next
            changes = self._files.changes
        for writer in writers:
            writer.sync()
        self._files.sync_names(changes)
        with self._mutex:
            self._durable = max(self._durable, target)
            self._files.end_sync(writers, all_durable=self._durable == self._next)
        self._cursors.save(self._durable)
        return self._durable

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
        return self._while_files_stay(lambda extent: self._reader.read(extent, offset, max_bytes))

    def offset_at(self, time_ms: int) -> int:
        """Return the first offset appended at or after a wall time; `latest` when none was.

        Raises:
            Closed: The queue was closed.
        """
        return self._while_files_stay(lambda extent: self._reader.offset_at(extent, time_ms))

    def _while_files_stay(self, read: Callable[[QueueExtent], T]) -> T:
        """Read; again if retention deleted a file after the extent was taken."""
        while True:
            extent = self._extent()
            try:
                return read(extent)
            except NotFound:
                if self.earliest == extent.bases[0]:
                    raise

    def _extent(self) -> QueueExtent:
        with self._mutex:
            self._check_open()
            return QueueExtent(self._files.bases(), self._files.active.size, self._next)

    def _bounds(self) -> tuple[int, int]:
        return self.earliest, self.latest

    def verify(self) -> DiskQueueStatistics:
        """Read everything, so that the statistics name every loss there is."""
        offset = self.earliest
        while offset < self.latest and (blocks := self.read(offset, _VERIFY_BYTES)):
            offset = blocks[-1].base_offset + blocks[-1].count
        return self.statistics()

    # -- cursors and retention

    def cursor(self, name: str, start: Literal["earliest", "latest"] | int = "earliest") -> Cursor:
        """Return the named cursor, made durably at `start` when there is none.

        Raises:
            InvalidRequest: The name is not legal, or `start` is not an offset of this queue.
            Unavailable: Disk full or I/O error; there is no such cursor then.
        """
        with self._mutex:
            self._check_open()
        earliest, latest = self.earliest, self.latest
        position = (
            {"earliest": earliest, "latest": latest}.get(start) if isinstance(start, str) else start
        )
        if position is None or not 0 <= position <= latest:
            raise InvalidRequest(
                f"cursor {name!r} cannot start at {start!r}: use 'earliest', 'latest' or an offset "
                f"up to {latest}"
            )
        self._cursors.create(name, max(position, earliest), self._durable)
        return Cursor(name, self._cursors, self._bounds)

    def retain(
        self, now_ms: int, *, held: Mapping[str, int] | None = None, consumed: bool = False
    ) -> RetentionReport:
        """Delete log files that lie behind every cursor and outside the window, oldest first.

        The active log file and one that is not synced yet are never deleted.

        Args:
            now_ms: The wall time.
            held: Further positions that hold it back, by the names of whose they are.
            consumed: With no window set, files behind every cursor are outside it.

        Raises:
            Unavailable: I/O error; what was deleted before it stays deleted.
            Closed: The queue was closed.
        """
        with self._reclaim_mutex:
            return self._reclaimer().retain(now_ms, held or {}, consumed=consumed)

    def drop_oldest(self, max_bytes: int) -> int:
        """Delete the oldest log files until the queue is no larger, consumed or not.

        The active log file, and one that is not synced yet, are never deleted: a bound wants log
        files of a small part of it. Cursors that stood in what is gone move to what is left.

        Args:
            max_bytes: The bound.

        Returns:
            How many messages are gone, lost ones included; the statistics count them too.

        Raises:
            Unavailable: I/O error; what was deleted before it stays deleted.
            Closed: The queue was closed.
        """
        with self._reclaim_mutex:
            first = self.earliest
            try:
                self._reclaimer().drop_oldest(max_bytes)
            finally:
                gone = self.earliest - first
                self._dropped += gone
            return gone

    def clear(self) -> None:
        """Delete every message that is there now. Offsets go on; cursors move to the end.

        Raises:
            Unavailable: Disk full or I/O error; what was deleted before it stays deleted.
            Closed: The queue was closed.
        """
        with self._reclaim_mutex:
            self._reclaimer().clear()

    def _reclaimer(self) -> Reclaimer:
        # Made when it is needed: a hundred thousand queues that rest are to take little memory.
        return Reclaimer(
            files=self._files,
            cursors=self._cursors,
            options=self.options,
            mutex=self._mutex,
            check_open=self._check_open,
            roll=self._roll_now,
            sync=lambda: self._syncer.request().result(),
            durable=lambda: self._durable,
            created_ms=self._reader.created_ms,
        )

    def _roll_now(self) -> None:
        self._roll(max(self._clock.now_ms(), self._last_time_ms))


def _no_lock(_folder: str) -> None:
    """Stand in for a lock of the caller's."""
