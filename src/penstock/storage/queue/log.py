"""Log of one disk queue: the log files, the next offset and the durable offset.

`QueueLog` owns that state, its mutex and appending. `recover_tail` opens the last log file
after a restart. Does not own when the log is fsynced (`group_commit`), the folder lock
(`disk_queue`) or the deletion of log files (`log_retention`). No index or metadata file exists
that could be missing or outdated.

Invariants:

- An offset is given to one message only. After a crash the offsets of messages that were not
  durable may be given again; offsets below `durable` never are.
- A batch is one block: it is written as a whole, or nothing of it is visible.
- At most the last two log files contain bytes that are not fsynced. A full file grows further
  while the one before it is not synced, up to twice its size.

Recovery rules for the last log file (earlier files are not read when a queue opens; readers
detect their damage):

- Damage that is followed by a valid block stays in place. Its messages are counted, and their
  offsets are not given again.
- So does a complete block with a valid header and a damaged body: its offsets are known.
- The bytes after the last of these are a torn tail. It is kept in a ``.bad`` file unless it is
  all zeros, then truncated, and the truncation is synced.
- A file without a valid block starts again with the base offset in its name. A damaged file
  header alone loses nothing: the name has the base offset, the blocks have the tag.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.errors import Closed, InvalidRequest
from penstock.storage.queue.blocks import (
    FILE_HEADER_BYTES,
    BlockDamage,
    FileHeader,
    FoundBlock,
    LogBytes,
    OffsetRange,
    encode_block,
    encode_file_header,
    scan_blocks,
)
from penstock.storage.queue.file_sequence import LogFileSequence
from penstock.storage.queue.log_files import (
    LogWriter,
    OpenLogFile,
    log_file_name,
    log_files_among,
    make_tag,
)
from penstock.storage.queue.producers import FileMarks, Mark, ProducerTable, read_marks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from typing_extensions import Buffer

    from penstock.core.clock import Clock
    from penstock.storage.filesystem import FileSystem
    from penstock.storage.queue.group_commit import Syncer
    from penstock.storage.queue.options import DiskQueueOptions
    from penstock.storage.queue.quarantine import Quarantine


@dataclass(frozen=True, slots=True)
class RecoveredTail:
    """The last log file, ready for writing."""

    writer: LogWriter
    next_offset: int
    last_time_ms: int


@dataclass(slots=True)
class _Scan:
    """The content of the last file."""

    end: int
    next_offset: int
    last_time_ms: int
    tag: int | None
    torn: BlockDamage | None = None


def recover_tail(
    fs: FileSystem,
    folder: str,
    base_offset: int,
    quarantine: Quarantine,
    *,
    now_ms: int,
    max_bytes_per_file: int,
    on_block: Callable[[LogBytes, FoundBlock], None],
) -> RecoveredTail:
    """Open the last log file for writing, after cutting off an unfinished write of a crash.

    Args:
        fs: The file system.
        folder: The queue's folder.
        base_offset: The base offset of the last log file.
        quarantine: Receives reports of damage and of the torn tail.
        now_ms: The time for a header that must be written again.
        max_bytes_per_file: For the same.
        on_block: Called with each valid block, in order.

    Raises:
        InvalidRequest: The file has a newer format, or is not writable.
        Unavailable: Disk full or I/O error.
    """
    path = f"{folder}/{log_file_name(base_offset)}"
    with OpenLogFile(fs, path) as opened:
        log = opened.map(opened.size())
        scan = _scan(opened, log, base_offset, quarantine, on_block)
    is_new = opened.header is None and scan.end <= FILE_HEADER_BYTES
    if scan.torn is not None:
        quarantine.record_torn_tail(
            base_offset, scan.torn.position, bytes(log.view[scan.torn.position :])
        )
    tag = make_tag(folder, base_offset, now_ms) if scan.tag is None else scan.tag
    header = FileHeader(base_offset, now_ms, max_bytes_per_file, tag)
    if not is_new and scan.torn is None:
        return RecoveredTail(
            LogWriter(fs, path, header, scan.end), scan.next_offset, scan.last_time_ms
        )
    file = fs.open_append(path)
    try:
        if is_new:
            file.truncate(0)
            file.writev([encode_file_header(header)])
        else:
            file.truncate(scan.end)
        file.sync()
    except BaseException:
        file.close()
        raise
    writer = LogWriter(fs, path, header, file.size, file)
    return RecoveredTail(writer, scan.next_offset, scan.last_time_ms)


def _scan(
    opened: OpenLogFile,
    log: LogBytes,
    base_offset: int,
    quarantine: Quarantine,
    on_block: Callable[[LogBytes, FoundBlock], None],
) -> _Scan:
    start = min(FILE_HEADER_BYTES, log.size) if opened.header is None else FILE_HEADER_BYTES
    created_ms = 0 if opened.header is None else opened.header.created_ms
    scan = _Scan(start, base_offset, created_ms, opened.tag)
    for item in scan_blocks(log, start, tag=opened.tag, expected=base_offset, limit=None):
        if isinstance(item, FoundBlock):
            on_block(log, item)
            scan.end = item.position + item.header.length
            scan.next_offset = item.header.end_offset
            scan.last_time_ms = item.header.append_time_ms
            scan.tag = item.header.tag
        elif item.next_offset is None:
            scan.torn = item
        else:
            quarantine.record(base_offset, log, item)
            scan.end = item.end
            scan.next_offset = item.next_offset
    if opened.header is None and scan.end == start and log.size:
        # No block and no header: the whole file is one torn tail.
        scan.torn = BlockDamage(0, log.size, base_offset, None)
    return scan


@dataclass(frozen=True, slots=True)
class QueueExtent:
    """The extent of a queue at one moment.

    Args:
        bases: The base offsets of its log files, ascending; at least one.
        end: The end of the last valid block in the last one.
        latest: The offset of the next message.
    """

    bases: tuple[int, ...]
    end: int
    latest: int

    def limit(self, index: int) -> int | None:
        """Return the base offset of the file after this one; None for the last."""
        return self.bases[index + 1] if index + 1 < len(self.bases) else None


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
        syncer: Requested to sync soon when a log file is full but cannot be rolled, because the
            previous one is not fsynced.

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
        "_syncer",
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
        syncer: Syncer,
    ) -> None:
        self._fs = fs
        self._folder = folder
        self._clock = clock
        self._syncer = syncer
        self._changed = False  # since it was opened
        self.options = options
        self.mutex = threading.Lock()
        self.files = LogFileSequence(fs, folder)
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
                self._syncer.sync_soon()
                if self.files.may_roll:
                    self._roll_at(now_ms)
                    active = self.files.active
                    buffers, _ = self._encode(batch, said, active, now_ms, options.max_block_bytes)
                elif size > _OVERFULL * limit:
                    return None
            written = OffsetRange(base, base + len(batch))
            try:
                if producer is None:
                    active.append(buffers)
                else:
                    self._append_of(producer, active, buffers)
            except BaseException:
                if active.is_uncut:
                    # The pass cuts off the block, which a restart would find.
                    self._syncer.sync_soon()
                raise
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
