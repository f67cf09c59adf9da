"""What is written of one queue: the log files, the next offset, and what of it is durable.

Owns: that state, the mutex around it, and appending to it. Does not own: when it is fsynced
(`syncing`), who waits for that, who holds the folder (`diskqueue`), nor which log files may go
(`retention`).

Invariants:

- An offset is given to one message only. After a crash the offsets of messages that were never
  durable may be given again; below `durable` never.
- A batch is one block: it is written whole, or nothing of it is visible.
- At most the last two log files hold bytes that are not fsynced: a full one grows on while the one
  before it is not synced, to twice its size at most.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from penstock.core.errors import Closed, InvalidRequest
from penstock.storage.blocks import FILE_HEADER_BYTES, OffsetRange, encode_block
from penstock.storage.logfiles import log_files_among
from penstock.storage.producers import FileMarks, Mark, ProducerTable, read_marks
from penstock.storage.queue.reading import QueueExtent
from penstock.storage.queue.recovery import recover_tail
from penstock.storage.queue.sequence import LogSequence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from typing_extensions import Buffer

    from penstock.core.clock import Clock
    from penstock.storage.filesystem import FileSystem
    from penstock.storage.logfiles import LogWriter
    from penstock.storage.quarantine import Quarantine
    from penstock.storage.queueoptions import DiskQueueOptions

_OVERFULL = 2  # how many times its size a log file may grow to while it cannot be rolled


class QueueLog:
    """The messages of a queue, as its writer knows them. `recover` comes first.

    The mutex guards the fields and is held while a batch is written, so batches have one order;
    mail to an owning thread would cost more than the write itself. It is never held while an fsync
    runs or while a reader reads.

    Args:
        fs: The file system.
        folder: The queue's.
        options: What the queue was told.
        clock: Tells the time.
        hurry: Called, with the mutex held, when a log file is full and cannot be rolled before the
            one before it is fsynced.

    Attributes:
        options: What the queue was told; may be replaced at any time.
        mutex: For those who look at `files` or `producers`.
        files: The log files.
        producers: The last sequence number of each producer.
        latest: The offset the next message gets.
        durable: The offset below which everything is fsynced.
        last_append_ms: When the last batch was appended, epoch ms.
        closed: Nothing is appended any more.
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
        """Take over what is in the folder, or begin the first log file there.

        Args:
            names: Of the files in the folder.
            quarantine: Told of damage.

        Raises:
            InvalidRequest: The folder has a newer format, or may not be written.
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

    # -- what there is

    @property
    def earliest(self) -> int:
        """Return the offset of the first message that is kept."""
        with self.mutex:
            return self.files.earliest

    def bounds(self) -> tuple[int, int]:
        """Return the offset of the first message that is kept, and of the next one."""
        return self.earliest, self.latest

    def extent(self) -> QueueExtent:
        """Return what may be read now.

        Raises:
            Closed: The queue was closed.
        """
        with self.mutex:
            self.check_open()
            return QueueExtent(self.files.bases(), self.files.active.size, self.latest)

    def check_open(self) -> None:
        """Do nothing but raise.

        Raises:
            Closed: The queue was closed.
        """
        if self.closed:
            raise Closed(f"{self._folder}: the queue is closed: open it again")

    # -- writing

    def append(
        self, batch: pa.BinaryArray, producer: Mark | None, due_ms: int
    ) -> OffsetRange | None:
        """Write one block; None where that has to wait for the fsync of an earlier log file.

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
                # Only when this file is synced can the next one be rolled.
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
            # First: once the block is written, nothing may raise.
            self.producers.put(*producer, self.latest)
            active.append(buffers)
        except BaseException:
            self.producers.put_back(producer[0], before)
            raise

    def roll(self) -> None:
        """Go on in a new log file; the mutex is held.

        Raises:
            Unavailable: Disk full or I/O error; the active log file stays the same.
        """
        self._roll_at(max(self._clock.now_ms(), self.last_append_ms))

    def sync(self) -> int:
        """Make durable what was appended before now, and return `durable`; one call at a time.

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
        """Let nothing be appended any more; say whether a sync has something to do.

        What was not touched is as durable as whoever wrote it has left it. The mutex is held.
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
                f"{self._folder}: a batch that makes a block of {length} bytes is over "
                f"max_block_bytes, {max_block_bytes}: send smaller batches"
            )
        return buffers, length
