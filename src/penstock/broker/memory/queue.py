"""A stream partition in memory, for topics that are not to outlive the broker.

Owns adding and reading messages, and what a topic may expect of a stream partition, on disk or here
(`MessageQueue`). Does not own what goes of them (`retention`).

Invariants: offsets go on, whatever goes; everything there is counts as durable, as nothing of it
outlives the process anyway.
"""

from __future__ import annotations

from bisect import bisect_right
from concurrent.futures import Future
from typing import TYPE_CHECKING, Literal, Protocol

from penstock.broker.memory.batches import Batch, Batches
from penstock.broker.memory.retention import MemoryRetention
from penstock.core.errors import Closed, InvalidRequest
from penstock.storage.blocks import Block, OffsetRange, as_messages, encode_block
from penstock.storage.logfiles import OffsetsDeleted
from penstock.storage.producers import ProducerTable
from penstock.storage.queueoptions import DiskQueueOptions, DiskQueueStatistics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from penstock.core.clock import Clock
    from penstock.storage.cursors import Cursor
    from penstock.storage.producers import Mark
    from penstock.storage.queue.retention import RetentionReport

_BATCH_BYTES = 400  # what a batch takes beside its messages


class MessageRetention(Protocol):
    """What deletes of a stream partition: a `Retention` or a `MemoryRetention`."""

    @property
    def has_work(self) -> bool:
        """Say whether `retain` could have anything to do."""
        ...

    def retain(
        self, now_ms: int, *, held: Mapping[str, int] | None = None, consumed: bool = False
    ) -> RetentionReport:
        """Delete what everybody has passed."""
        ...

    def drop_oldest(self, max_bytes: int) -> int:
        """Delete the oldest until it is no larger; returns how many messages are gone."""
        ...

    def clear(self) -> None:
        """Delete every message that is there now."""
        ...


class MessageQueue(Protocol):
    """A stream partition, as its topic sees it: a `DiskQueue` or a `MemoryQueue`.

    Attributes:
        options: What it was told.
    """

    options: DiskQueueOptions

    @property
    def retention(self) -> MessageRetention:
        """Return what deletes of it."""
        ...

    @property
    def earliest(self) -> int:
        """Return the offset of the first message that is kept."""
        ...

    @property
    def latest(self) -> int:
        """Return the offset that the next message gets."""
        ...

    @property
    def durable(self) -> int:
        """Return the offset below which nothing is lost that could be kept."""
        ...

    @property
    def last_append_ms(self) -> int:
        """Return when the last batch was appended, epoch ms."""
        ...

    @property
    def size_bytes(self) -> int:
        """Return what it takes."""
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
        """Return the last sequence number of a producer; None when it is not remembered."""
        ...

    def request_sync(self) -> Future[int]:
        """Ask for an fsync without waiting; the future gives `durable`."""
        ...

    def read(self, offset: int, max_bytes: int) -> list[Block]:
        """Return whole blocks from the one that holds the offset on."""
        ...

    def offset_at(self, time_ms: int) -> int:
        """Return the first offset appended at or after a wall time."""
        ...

    def cursor(self, name: str, start: Literal["earliest", "latest"] | int = "earliest") -> Cursor:
        """Return the named cursor, made when there is none."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class MemoryQueue:
    """A queue of messages in memory; appended to on the event loop, read on any thread.

    Attributes:
        options: What it was told.
        retention: What goes of it.
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
        """Return the offset of the first message that is kept."""
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
        """Return what it takes, more or less."""
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
        wait: bool = True,  # noqa: ARG002 - there is nothing to wait for
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
        """Return the last sequence number of a producer; None when it is not remembered."""
        return self._producers.last(producer)

    def request_sync(self) -> Future[int]:
        """Return at once: what is in memory is as durable as it gets."""
        done: Future[int] = Future()
        done.set_result(self.latest)
        return done

    def read(self, offset: int, max_bytes: int) -> list[Block]:
        """Return whole blocks from the one that holds the offset on, or the first one behind it.

        Raises:
            OffsetsDeleted: The offset is gone; the error has the earliest.
            InvalidRequest: It is beyond the end.
            Closed: The queue was closed.
        """
        batches = self._batches
        with batches.mutex:
            self._check_open()
            latest, earliest, kept = batches.latest, batches.earliest, batches.kept
            if offset > latest:
                raise InvalidRequest(f"offset {offset} is beyond the end, {latest}")
            if offset < earliest:
                raise OffsetsDeleted(f"offset {offset} is gone; {earliest} is left", earliest)
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
        """Return the first offset appended at or after a wall time; `latest` when none was."""
        with self._batches.mutex:
            for batch in self._batches.kept:
                if batch.time_ms >= time_ms:
                    return batch.base
            return self._batches.latest

    def cursor(self, name: str, start: Literal["earliest", "latest"] | int = "earliest") -> Cursor:
        """Refuse: what is in memory is not held back.

        Raises:
            InvalidRequest: Always.
        """
        raise InvalidRequest(
            f"cursor {name!r} cannot be set to {start}: the topic lives in memory only",
            place="topic",
        )

    def close(self) -> None:
        """Let go of everything. Closing twice is fine."""
        self.retention.clear()
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the queue is closed: its topic was deleted")


def _block(batch: Batch) -> Block:
    buffers, _ = encode_block(batch.messages, batch.base, batch.time_ms, 0, b"", batch.due_ms)
    raw = memoryview(b"".join(buffers))
    return Block(batch.base, len(batch.messages), batch.time_ms, batch.messages, raw, batch.due_ms)
