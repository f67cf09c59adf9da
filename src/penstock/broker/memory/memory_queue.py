"""Stream partition in memory, for topics that do not outlive the broker.

`MemoryQueue` appends and reads messages. `MemoryBatches` holds the batches, their size and the
mutex around both. `MemoryRetention` deletes batches and counts deleted messages that a channel
may still have needed. `admitted` limits a new batch to the free memory of the topic; the newest
messages are dropped, as in NSQ. The protocols `MessageQueue` and `MessageRetention` describe a
stream partition on disk or in memory. Does not own the memory limit of the whole broker
(`memory_budget`) or which messages channels still need (the topic).

Invariants: offsets ascend, have gaps where batches were deleted, and are never reused. Appended
messages count as durable at once. Messages are appended on the event loop and read on any
thread; every call of `MemoryBatches` requires its mutex; `MemoryRetention` may be called on any
thread, except `trim`, which belongs to the event loop.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

import pyarrow as pa

from penstock.core.errors import Closed, InvalidRequest
from penstock.storage.queue.blocks import Block, OffsetRange, as_messages, encode_block
from penstock.storage.queue.log_files import OffsetsDeleted
from penstock.storage.queue.log_retention import RetentionReport
from penstock.storage.queue.options import DiskQueueOptions, DiskQueueStatistics
from penstock.storage.queue.producers import ProducerTable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.broker.memory.memory_budget import MemoryBudget
    from penstock.core.clock import Clock
    from penstock.storage.queue.cursors import Cursor
    from penstock.storage.queue.producers import Mark


class MemoryBatch(NamedTuple):
    """Messages that were appended together; the first one has the offset `base`."""

    base: int
    messages: pa.BinaryArray
    time_ms: int
    due_ms: int
    size_bytes: int

    @property
    def end(self) -> int:
        """Return the offset after the last message."""
        return self.base + len(self.messages)


class MemoryBatches:
    """Batches of one queue. Callers of its methods must hold the mutex.

    It is held for the duration of a list operation: readers on other threads must not see a part
    of one.

    Attributes:
        mutex: Guards the other attributes.
        kept: The batches, oldest first; the list is appended to or replaced, but never shortened,
            so that it may be iterated without the mutex where no thread appends meanwhile. An
            append that raises removes its own batch.
        latest: The offset that the next message gets.
        size_bytes: Total size of the batches.
    """

    __slots__ = ("kept", "latest", "mutex", "size_bytes")

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.kept: list[MemoryBatch] = []
        self.latest = 0
        self.size_bytes = 0

    @property
    def earliest(self) -> int:
        """Return the offset of the first kept message."""
        return self.kept[0].base if self.kept else self.latest

    def add(self, batch: MemoryBatch) -> None:
        """Append a batch."""
        self.kept.append(batch)
        self.size_bytes += batch.size_bytes
        self.latest += len(batch.messages)

    def take_back(self, base: int) -> None:
        """Remove the newest batch, if it begins at this offset."""
        if self.kept and self.kept[-1].base == base:
            self.size_bytes -= self.kept.pop().size_bytes
            self.latest = base

    def keep(self, batches: list[MemoryBatch]) -> None:
        """Keep only these batches."""
        self.kept = batches
        self.size_bytes = sum(batch.size_bytes for batch in batches)


_TRIM_BYTES = 262_144
_TRIM_PAUSE_S = 0.1


class MemoryRetention:
    """Deletes batches of one queue; on any thread, except `trim`, which needs the event loop.

    Args:
        batches: Batches of the queue.
        clock: For the pauses of `trim`.

    Attributes:
        trim_above_bytes: Size of the queue above which trimming is worthwhile.
        dropped: Number of messages that a channel still needed and that were deleted or not
            appended.
    """

    def __init__(self, batches: MemoryBatches, clock: Clock) -> None:
        self.trim_above_bytes = _TRIM_BYTES
        self.dropped = 0
        self._batches = batches
        self._clock = clock
        self._trim_again_s = 0.0

    @property
    def has_work(self) -> bool:
        """Always false: the topic trims its queue when messages are appended."""
        return False

    def retain(
        self,
        now_ms: int,  # noqa: ARG002 - the signature of the disk's retention
        *,
        held: Mapping[str, int] | None = None,  # noqa: ARG002 - as above
        consumed: bool = False,  # noqa: ARG002 - as above
    ) -> RetentionReport:
        """Do nothing: the topic trims its queue when messages are appended."""
        with self._batches.mutex:
            return RetentionReport(0, self._batches.earliest, None)

    def drop_oldest(self, max_bytes: int) -> int:
        """Delete the oldest messages down to a size; return the number of deleted messages."""
        dropped = 0
        with self._batches.mutex:
            size_bytes, kept = self._batches.size_bytes, self._batches.kept
            count = 0
            while count < len(kept) and size_bytes > max_bytes:
                size_bytes -= kept[count].size_bytes
                dropped += len(kept[count].messages)
                count += 1
            self._batches.keep(kept[count:])
            self.dropped += dropped
        return dropped

    def clear(self) -> None:
        """Delete every message. Offsets continue."""
        with self._batches.mutex:
            self._batches.keep([])

    def trim(self, is_wanted: Callable[[int, int], bool]) -> None:
        """Delete unneeded batches, at any position."""
        now_s = self._clock.monotonic_s()
        if now_s < self._trim_again_s:
            return
        batches = self._batches
        before = batches.size_bytes
        # Without the mutex, because `is_wanted` may read the queue. Batches that another thread
        # deletes meanwhile must not reappear.
        unwanted = {b.base for b in batches.kept if not is_wanted(b.base, b.end)}
        with batches.mutex:
            batches.keep([batch for batch in batches.kept if batch.base not in unwanted])
        self.trim_above_bytes = max(_TRIM_BYTES, 2 * batches.size_bytes)
        if batches.size_bytes > before // 2:
            # If consumers make no progress, each publish would check all batches.
            self._trim_again_s = now_s + _TRIM_PAUSE_S

    def count_dropped(self, count: int) -> None:
        """Count messages that were not appended."""
        with self._batches.mutex:
            self.dropped += count


_BATCH_BYTES = 400  # memory of a batch in addition to its messages


class MessageRetention(Protocol):
    """Deletion of messages of a stream partition: a `Retention` or a `MemoryRetention`."""

    @property
    def has_work(self) -> bool:
        """Whether `retain` may have work to do."""
        ...

    def retain(
        self, now_ms: int, *, held: Mapping[str, int] | None = None, consumed: bool = False
    ) -> RetentionReport:
        """Delete messages that every reader has passed."""
        ...

    def drop_oldest(self, max_bytes: int) -> int:
        """Delete the oldest messages down to a size; return the number of deleted messages."""
        ...

    def clear(self) -> None:
        """Delete every current message."""
        ...


class MessageQueue(Protocol):
    """A stream partition as seen by its topic: a `DiskQueue` or a `MemoryQueue`.

    Attributes:
        options: Its options.
    """

    options: DiskQueueOptions

    @property
    def retention(self) -> MessageRetention:
        """The part that deletes its messages."""
        ...

    @property
    def earliest(self) -> int:
        """Return the offset of the first kept message."""
        ...

    @property
    def latest(self) -> int:
        """Return the offset that the next message gets."""
        ...

    @property
    def durable(self) -> int:
        """Return the offset below which all messages are durable."""
        ...

    @property
    def last_append_ms(self) -> int:
        """Return when the last batch was appended, epoch ms."""
        ...

    @property
    def size_bytes(self) -> int:
        """Return its size in bytes."""
        ...

    def statistics(self) -> DiskQueueStatistics:
        """Return a snapshot."""
        ...

    def append(
        self,
        messages: Sequence[bytes] | pa.BinaryArray,
        *,
        producer: Mark | None = None,
        due_ms: int = 0,
        wait: bool = True,
    ) -> OffsetRange:
        """Append a batch as one block."""
        ...

    def last_sequence(self, producer: int) -> int | None:
        """Return the last sequence number of a producer; None if it is not remembered."""
        ...

    def request_sync(self) -> Future[int]:
        """Request an fsync without waiting; the result of the future is `durable`."""
        ...

    def read(self, offset: int, max_bytes: int) -> list[Block]:
        """Return whole blocks, starting with the one that contains the offset."""
        ...

    def offset_at(self, time_ms: int) -> int:
        """Return the first offset appended at or after a wall time."""
        ...

    def cursor(self, name: str, start: Literal["earliest", "latest"] | int = "earliest") -> Cursor:
        """Return the named cursor, created if it does not exist."""
        ...

    def close(self) -> None:
        """Close all files and release all memory."""
        ...


class MemoryQueue:
    """A queue of messages in memory; appended to on the event loop, read on any thread.

    Attributes:
        options: Its options.
        retention: Deletes its messages.
    """

    def __init__(self, options: DiskQueueOptions, clock: Clock) -> None:
        self.options = options
        self._clock = clock
        self._batches = MemoryBatches()
        self.retention = MemoryRetention(self._batches, clock)
        self._last_time_ms = 0
        self._producers = ProducerTable(options.max_producers)
        self._closed = False

    @property
    def earliest(self) -> int:
        """Return the offset of the first kept message."""
        with self._batches.mutex:
            return self._batches.earliest

    @property
    def latest(self) -> int:
        """Return the offset that the next message gets."""
        return self._batches.latest

    @property
    def durable(self) -> int:
        """Return the end."""
        return self._batches.latest

    @property
    def last_append_ms(self) -> int:
        """Return when the last batch was appended, epoch ms."""
        return self._last_time_ms

    @property
    def size_bytes(self) -> int:
        """Return its approximate size in bytes."""
        return self._batches.size_bytes

    def statistics(self) -> DiskQueueStatistics:
        """Return a snapshot."""
        return DiskQueueStatistics(
            earliest=self.earliest,
            latest=self.latest,
            durable=self.latest,
            log_files=0,
            bytes=self.size_bytes,
            unsynced_messages=0,
            messages_dropped=self.retention.dropped,
            messages_lost=0,
            damaged_places=0,
            bytes_quarantined=0,
            torn_bytes=0,
            cursors={},
            cursors_reset=0,
            syncs=0,
            sync_failures=0,
            producers=len(self._producers),
            producers_forgotten=self._producers.forgotten,
        )

    def append(
        self,
        messages: Sequence[bytes] | pa.BinaryArray,
        *,
        producer: Mark | None = None,
        due_ms: int = 0,
        wait: bool = True,  # noqa: ARG002 - an append in memory never waits
    ) -> OffsetRange:
        """Append a batch.

        Raises:
            Closed: The queue was closed.
        """
        batch, batches = as_messages(messages), self._batches
        with batches.mutex:
            self._check_open()
            start = batches.latest
            if len(batch):
                time_ms = self._last_time_ms = max(self._clock.now_ms(), self._last_time_ms)
                size_bytes = batch.nbytes + _BATCH_BYTES
                batches.add(MemoryBatch(start, batch, time_ms, due_ms, size_bytes))
            try:
                if producer is not None:
                    self._producers.put(*producer, start)
                return OffsetRange(start, batches.latest)
            except BaseException:
                batches.take_back(start)
                raise

    def last_sequence(self, producer: int) -> int | None:
        """Return the last sequence number of a producer; None if it is not remembered."""
        return self._producers.last(producer)

    def request_sync(self) -> Future[int]:
        """Return a completed future: data in memory cannot become more durable."""
        done: Future[int] = Future()
        done.set_result(self.latest)
        return done

    def read(self, offset: int, max_bytes: int) -> list[Block]:
        """Return whole blocks, starting with the one that contains the offset or follows it.

        Raises:
            OffsetsDeleted: The offset was deleted; the error contains the earliest.
            InvalidRequest: The offset is beyond the end.
            Closed: The queue was closed.
        """
        batches = self._batches
        with batches.mutex:
            self._check_open()
            latest, earliest, kept = batches.latest, batches.earliest, batches.kept
            if offset > latest:
                raise InvalidRequest(f"offset {offset} is beyond the end, {latest}")
            if offset < earliest:
                raise OffsetsDeleted(
                    f"offset {offset} was deleted; the earliest is {earliest}", earliest
                )
            index = max(0, bisect_right(kept, offset, key=lambda batch: batch.base) - 1)
            if index < len(kept) and kept[index].end <= offset:
                index += 1
            found: list[MemoryBatch] = []
            for batch in kept[index:]:
                if found and batch.size_bytes > max_bytes:
                    break
                found.append(batch)
                max_bytes -= batch.size_bytes
        return [_block(batch) for batch in found]

    def offset_at(self, time_ms: int) -> int:
        """Return the first offset appended at or after a wall time; `latest` if there is none."""
        with self._batches.mutex:
            for batch in self._batches.kept:
                if batch.time_ms >= time_ms:
                    return batch.base
            return self._batches.latest

    def cursor(self, name: str, start: Literal["earliest", "latest"] | int = "earliest") -> Cursor:
        """Refuse: a topic in memory has no cursors.

        Raises:
            InvalidRequest: Always.
        """
        raise InvalidRequest(
            f"cursor {name!r} cannot be set to {start}: the topic exists only in memory",
            place="topic",
        )

    def close(self) -> None:
        """Release all memory. Idempotent."""
        self.retention.clear()
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the queue is closed: its topic was deleted")


def _block(batch: MemoryBatch) -> Block:
    buffers, _ = encode_block(batch.messages, batch.base, batch.time_ms, 0, b"", batch.due_ms)
    raw = memoryview(b"".join(buffers))
    return Block(batch.base, len(batch.messages), batch.time_ms, batch.messages, raw, batch.due_ms)


_PARTITION_BYTES: Final = 33_554_432


def admitted(
    queue: MemoryQueue,
    batch: pa.BinaryArray,
    budget: MemoryBudget,
    most_messages: int | None,
    is_wanted: Callable[[int, int], bool],
) -> pa.BinaryArray:
    """Return the part of a batch that fits, and reserve its memory.

    The newest messages are dropped, as in NSQ.

    Args:
        queue: The queue of the batch; it deletes unneeded messages and counts dropped ones.
        batch: The messages.
        budget: Memory budget of all topics.
        most_messages: Maximum number of messages; None: limited only by bytes.
        is_wanted: Returns whether a reader still needs messages from one offset up to another.
    """
    spare = budget.limit_bytes // 2 - budget.held_bytes
    most = min(_PARTITION_BYTES, queue.size_bytes + spare) - batch.nbytes
    if queue.size_bytes > min(queue.retention.trim_above_bytes, most):
        queue.retention.trim(is_wanted)
    count = len(batch)
    if queue.size_bytes > most:
        count = 0
    elif most_messages is not None:
        count = min(count, max(0, most_messages))
    if count < len(batch):
        queue.retention.count_dropped(len(batch) - count)
        # A copy; otherwise the dropped messages would stay in memory.
        batch = pa.concat_arrays([batch[:count]])
    budget.hold(queue, queue.size_bytes + batch.nbytes)
    return batch
