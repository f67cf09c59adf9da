"""A stream partition in memory, for topics that do not outlive the broker.

Owns adding and reading messages, and the interface of a stream partition to its topic, on disk or
in memory (`MessageQueue`). Does not own the deletion of messages (`retention`).

Invariants: offsets continue after deletions; everything in memory counts as durable, because
nothing of it outlives the process anyway.
"""

from __future__ import annotations

from bisect import bisect_right
from concurrent.futures import Future
from typing import TYPE_CHECKING, Literal, Protocol

from penstock.broker.memory.batches import Batch, Batches
from penstock.broker.memory.retention import MemoryRetention
from penstock.core.errors import Closed, InvalidRequest
from penstock.storage.queue.blocks import Block, OffsetRange, as_messages, encode_block
from penstock.storage.queue.log_files import OffsetsDeleted
from penstock.storage.queue.options import DiskQueueOptions, DiskQueueStatistics
from penstock.storage.queue.producers import ProducerTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from penstock.core.clock import Clock
    from penstock.storage.queue.cursors import Cursor
    from penstock.storage.queue.producers import Mark
    from penstock.storage.queue.retention import RetentionReport

_BATCH_BYTES = 400  # memory of a batch besides its messages


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
        self._batches = Batches()
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
                batches.add(Batch(start, batch, time_ms, due_ms, size_bytes))
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
            found: list[Batch] = []
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


def _block(batch: Batch) -> Block:
    buffers, _ = encode_block(batch.messages, batch.base, batch.time_ms, 0, b"", batch.due_ms)
    raw = memoryview(b"".join(buffers))
    return Block(batch.base, len(batch.messages), batch.time_ms, batch.messages, raw, batch.due_ms)
