"""The state of one queue's log: its files, the next offset, and the durable offset.

Owns: that state, the mutex around it, and appending. Does not own: the schedule of fsyncs
(`syncing`), waiting for them, the lock on the folder (`diskqueue`), nor the deletion of log files
(`retention`).

Invariants:

- Each offset belongs to one message. After a crash, the offsets of messages that were not durable
  may be assigned again; offsets below `durable` never are.
- A batch is one block: it is written completely, or nothing of it is visible.
- At most the last two log files hold bytes that are not fsynced: while the previous file is not
  synced, a full one keeps growing, up to twice its size.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from penstock.core.errors import Closed, InvalidRequest
from penstock.storage.queue.blocks import FILE_HEADER_BYTES, OffsetRange, encode_block
from penstock.storage.queue.file_sequence import LogSequence
from penstock.storage.queue.log_files import log_files_among
from penstock.storage.queue.producers import FileMarks, Mark, ProducerTable, read_marks
from penstock.storage.queue.reader import QueueExtent
from penstock.storage.queue.recovery import recover_tail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from typing_extensions import Buffer

    from penstock.core.clock import Clock
    from penstock.storage.filesystem import FileSystem
    from penstock.storage.queue.log_files import LogWriter
    from penstock.storage.queue.options import DiskQueueOptions
    from penstock.storage.queue.quarantine import Quarantine

_OVERFULL = 2  # how many times its size a log file may grow to while it cannot be rolled


class QueueLog:
    """The messages of a queue, from its writer's side. Call `recover` first.

    The mutex guards the fields and is held while a batch is written, so that batches have one
    order; mail to an owning thread would cost more than the write itself. It is never held during
    an fsync or while a reader reads.

    Args:
        fs: The file system.
        folder: The folder of the queue.
        options: The options of the queue.
        clock: Returns the time.
        hurry: Called, with the mutex held, when a log file is full but cannot be rolled before the
            previous one is fsynced.

    Attributes:
        options: The options of the queue; may be replaced at any time.
        mutex: For access to `files` and `producers`.
        files: The log files.
        producers: The last sequence number of each producer.
        latest: The offset of the next message.
        durable: All messages below this offset are fsynced.
        last_append_ms: Time of the last append, in epoch milliseconds.
        closed: Whether the queue refuses appends.
    """

    __slots__ = (
        "_changed",
        "_clock",
        "_folder",
        "_fs",
        "_hurry",
        "closed",
        "durable",
        "files",
        "last_append_ms",
        "latest",
        "mutex",
        "options",
        "producers",
    )

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        options: DiskQueueOptions,
        clock: Clock,
        hurry: Callable[[], None],
    ) -> None:
        self._fs = fs
        self._folder = folder
        self._clock = clock
        self._hurry = hurry
        self._changed = False  # since it was opened
        self.options = options
        self.mutex = threading.Lock()
        self.files = LogSequence(fs, folder)
        self.producers = ProducerTable(options.max_producers)
        self.latest = 0
        self.durable = 0
        self.last_append_ms = 0
        self.closed = False

    def recover(self, names: Sequence[str], quarantine: Quarantine) -> None:
        """Restore the log from its folder, or start the first log file there.

        Args:
            names: Names of the files in the folder.
            quarantine: Receives reports of damage.

        Raises:
            InvalidRequest: The folder has a newer format, or is not writable.
            Unavailable: Disk full or I/O error.
        """
        bases = log_files_among(names)
        now_ms = self._clock.now_ms()
        max_bytes_per_file = self.options.max_bytes_per_file
        if not bases:
            self.files.create(0, now_ms, max_bytes_per_file)
        else:
            marks = FileMarks(bases[-1])
            tail = recover_tail(
                self._fs,
                self._folder,
                bases[-1],
                quarantine,
                now_ms=now_ms,
                max_bytes_per_file=max_bytes_per_file,
                on_block=marks.take,
            )
            self.producers.replay(read_marks(self._fs, self._folder, bases, marks))
            self.latest, self.last_append_ms = tail.next_offset, tail.last_time_ms
            self.files.adopt(bases, tail.writer)
        self.durable = self.files.unsynced[0].base_offset

    # -- extent

    @property
    def earliest(self) -> int:
        """Return the offset of the first stored message."""
        with self.mutex:
            return self.files.earliest

    def bounds(self) -> tuple[int, int]:
        """Return the offset of the first stored message, and of the next one."""
        return self.earliest, self.latest

    def extent(self) -> QueueExtent:
        """Return the range that can be read now.

        Raises:
            Closed: The queue was closed.
        """
        with self.mutex:
            self.check_open()
            return QueueExtent(self.files.bases(), self.files.active.size, self.latest)

    def check_open(self) -> None:
        """Check that the queue is open.

        Raises:
            Closed: The queue was closed.
        """
        if self.closed:
            raise Closed(f"{self._folder}: the queue is closed: open it again")

    # -- writing

    def append(
        self, batch: pa.BinaryArray, producer: Mark | None, due_ms: int
    ) -> OffsetRange | None:
        """Write one block; return None if it must wait for the fsync of an earlier log file.

        Raises:
            InvalidRequest: The batch makes too large a block.
            Unavailable: Disk full or I/O error.
            Closed: The queue was closed.
        """
        with self.mutex:
            self.check_open()
            self.files.remove_leftover()
            options = self.options
            base, active = self.latest, self.files.active
            now_ms = max(self._clock.now_ms(), self.last_append_ms)
            said = (producer, due_ms)
            buffers, length = self._encode(batch, said, active, now_ms, options.max_block_bytes)
            size, limit = active.size + length, options.max_bytes_per_file
            if size > limit and active.size > FILE_HEADER_BYTES:
                # The next file can be rolled only after this one is synced.
                self._hurry()
                if self.files.may_roll:
                    self._roll_at(now_ms)
                    active = self.files.active
                    buffers, _ = self._encode(batch, said, active, now_ms, options.max_block_bytes)
                elif size > _OVERFULL * limit:
                    return None
            written = OffsetRange(base, base + len(batch))
            if producer is None:
                active.append(buffers)
            else:
                self._append_of(producer, active, buffers)
            self._changed = True
            self.latest = written.end
            self.last_append_ms = now_ms
            return written

    def _append_of(self, producer: Mark, active: LogWriter, buffers: Sequence[Buffer]) -> None:
        before = self.producers.entry(producer[0])
        try:
            # Do this first: after the block is written, nothing may raise.
            self.producers.put(*producer, self.latest)
            active.append(buffers)
        except BaseException:
            self.producers.put_back(producer[0], before)
            raise

    def roll(self) -> None:
        """Continue in a new log file; the caller holds the mutex.

        Raises:
            Unavailable: Disk full or I/O error; the active log file stays the same.
        """
        self._roll_at(max(self._clock.now_ms(), self.last_append_ms))

    def sync(self) -> int:
        """Make earlier appends durable, and return `durable`; one call at a time.

        Raises:
            Unavailable: I/O error; call it again.
        """
        with self.mutex:
            writers = self.files.begin_sync()
            target = self.latest
            changes = self.files.changes
        for writer in writers:
            writer.sync()
        self.files.sync_names(changes)
        with self.mutex:
            self.durable = max(self.durable, target)
            self.files.end_sync(writers, all_durable=self.durable == self.latest)
        return self.durable

    def end(self) -> bool:
        """Refuse further appends; return whether a sync is still needed.

        Files that this process did not write are as durable as they were. The caller holds the
        mutex.
        """
        self.closed = True
        return self._changed and self.durable < self.latest

    def _roll_at(self, now_ms: int) -> None:
        self.files.roll(self.latest, now_ms, self.options.max_bytes_per_file)
        self._changed = True

    def _encode(
        self,
        batch: pa.BinaryArray,
        said: tuple[Mark | None, int],
        active: LogWriter,
        now_ms: int,
        max_block_bytes: int,
    ) -> tuple[list[Buffer], int]:
        producer, due_ms = said
        first = active.size <= FILE_HEADER_BYTES
        trailer = self.producers.trailer(producer, first=first, durable=self.durable)
        buffers, length = encode_block(batch, self.latest, now_ms, active.tag, trailer, due_ms)
        if length > max_block_bytes:
            raise InvalidRequest(
                f"{self._folder}: a batch of {length} bytes as a block exceeds "
                f"max_block_bytes, {max_block_bytes}: send smaller batches"
            )
        return buffers, length
