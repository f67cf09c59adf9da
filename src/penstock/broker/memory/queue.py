"""A stream partition in memory, for topics that are not to outlive the broker.

Owns the batches and their offsets, and what a topic may expect of a stream partition, on disk or
here (`MessageQueue`). Does not own how much may be kept: the topic knows who still wants what.

Invariants: offsets go on, whatever goes; everything there is counts as durable, as nothing of it
outlives the process anyway.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from concurrent.futures import Future
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from penstock.core.errors import Closed, InvalidRequest
from penstock.storage.blocks import Block, OffsetRange, as_messages, encode_block
from penstock.storage.logfiles import OffsetsDeleted
from penstock.storage.producers import ProducerTable
from penstock.storage.queue.reclaiming import RetentionReport
from penstock.storage.queueoptions import DiskQueueOptions, DiskQueueStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from penstock.core.clock import Clock
    from penstock.storage.cursors import Cursor
    from penstock.storage.producers import Mark

_BATCH_BYTES = 400  # what a batch takes beside its messages
_TRIM_BYTES = 262_144
_TRIM_PAUSE_S = 0.1


class MessageQueue(Protocol):
    """A stream partition, as its topic sees it: a `DiskQueue` or a `MemoryQueue`.

    Attributes:
        options: What it was told.
    """

    options: DiskQueueOptions

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

    @property
    def worth_retaining(self) -> bool:
        """Say whether `retain` could have anything to do."""
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

    def close(self) -> None:
        """Let go of everything."""
        ...


class _Batch(NamedTuple):
    base: int
    messages: pa.BinaryArray
    time_ms: int
    due_ms: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.base + len(self.messages)


class MemoryQueue:
    """A queue of messages in memory; appended to on the event loop, read on any thread.

    The mutex is held for the length of a list operation: readers beside the loop must not see half
    of one.
    """

    def __init__(self, options: DiskQueueOptions, clock: Clock) -> None:
        self.options = options
        self.trim_above_bytes = _TRIM_BYTES
        self._clock = clock
        self._trim_again_s = 0.0
        self._mutex = threading.Lock()
        self._batches: list[_Batch] = []
        self._next = 0
        self._size_bytes = 0
        self._dropped = 0
        self._last_time_ms = 0
        self._producers = ProducerTable(options.max_producers)
        self._closed = False

    @property
    def earliest(self) -> int:
        """Return the offset of the first message that is kept."""
        with self._mutex:
            return self._batches[0].base if self._batches else self._next

    @property
    def latest(self) -> int:
        """Return the offset that the next message gets."""
        return self._next

    @property
    def durable(self) -> int:
        """Return the end."""
        return self._next

    @property
    def last_append_ms(self) -> int:
        """Return when the last batch was appended, epoch ms."""
        return self._last_time_ms

    @property
    def size_bytes(self) -> int:
        """Return what it takes, more or less."""
        return self._size_bytes

    @property
    def worth_retaining(self) -> bool:
        """Say that there is nothing to look for: its topic lets messages go."""
        return False

    def statistics(self) -> DiskQueueStatistics:
        """Return a snapshot."""
        return DiskQueueStatistics(
            earliest=self.earliest,
            latest=self._next,
            durable=self._next,
            log_files=0,
            bytes=self._size_bytes,
            unsynced_messages=0,
            messages_dropped=self._dropped,
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
        batch = as_messages(messages)
        start = self._next
        with self._mutex:
            self._check_open()
            if len(batch):
                self._last_time_ms = max(self._clock.now_ms(), self._last_time_ms)
                size_bytes = batch.nbytes + _BATCH_BYTES
                self._batches.append(_Batch(start, batch, self._last_time_ms, due_ms, size_bytes))
                self._size_bytes += size_bytes
                self._next += len(batch)
            if producer is not None:
                self._producers.put(*producer, start)
        return OffsetRange(start, self._next)

    def count_dropped(self, count: int) -> None:
        """Take note of messages that were not even appended."""
        self._dropped += count

    def trim(self, is_wanted: Callable[[int, int], bool]) -> None:
        """Let go of batches that nobody wants any more, wherever they stand."""
        now_s = self._clock.monotonic_s()
        if now_s < self._trim_again_s:
            return
        before = self._size_bytes
        # Whoever is asked may look at the queue. Only the thread that trims changes the batches.
        kept = [batch for batch in self._batches if is_wanted(batch.base, batch.end)]
        with self._mutex:
            self._batches = kept
            self._size_bytes = sum(batch.size_bytes for batch in kept)
        self.trim_above_bytes = max(_TRIM_BYTES, 2 * self._size_bytes)
        if self._size_bytes > before // 2:
            # Where consumers stand still, each publish would look through all.
            self._trim_again_s = now_s + _TRIM_PAUSE_S

    def last_sequence(self, producer: int) -> int | None:
        """Return the last sequence number of a producer; None when it is not remembered."""
        return self._producers.last(producer)

    def request_sync(self) -> Future[int]:
        """Return at once: what is in memory is as durable as it gets."""
        done: Future[int] = Future()
        done.set_result(self._next)
        return done

    def read(self, offset: int, max_bytes: int) -> list[Block]:
        """Return whole blocks from the one that holds the offset on, or the first one behind it.

        Raises:
            OffsetsDeleted: The offset is gone; the error has the earliest.
            InvalidRequest: It is beyond the end.
            Closed: The queue was closed.
        """
        with self._mutex:
            self._check_open()
            if offset > self._next:
                raise InvalidRequest(f"offset {offset} is beyond the end, {self._next}")
            earliest = self._batches[0].base if self._batches else self._next
            if offset < earliest:
                raise OffsetsDeleted(f"offset {offset} is gone; {earliest} is left", earliest)
            index = max(0, bisect_right(self._batches, offset, key=lambda batch: batch.base) - 1)
            if index < len(self._batches) and self._batches[index].end <= offset:
                index += 1
            found: list[_Batch] = []
            for batch in self._batches[index:]:
                if found and batch.size_bytes > max_bytes:
                    break
                found.append(batch)
                max_bytes -= batch.size_bytes
        return [_block(batch) for batch in found]

    def offset_at(self, time_ms: int) -> int:
        """Return the first offset appended at or after a wall time; `latest` when none was."""
        with self._mutex:
            for batch in self._batches:
                if batch.time_ms >= time_ms:
                    return batch.base
            return self._next

    def cursor(self, name: str, start: Literal["earliest", "latest"] | int = "earliest") -> Cursor:
        """Refuse: what is in memory is not held back.

        Raises:
            InvalidRequest: Always.
        """
        raise InvalidRequest(
            f"cursor {name!r} cannot be set to {start}: the topic lives in memory only",
            place="topic",
        )

    def retain(
        self,
        now_ms: int,  # noqa: ARG002 - its topic lets messages go
        *,
        held: Mapping[str, int] | None = None,  # noqa: ARG002
        consumed: bool = False,  # noqa: ARG002
    ) -> RetentionReport:
        """Do nothing: its topic lets messages go."""
        return RetentionReport(0, self.earliest, None)

    def drop_oldest(self, max_bytes: int) -> int:
        """Let go of the oldest until it is no larger; returns how many messages are gone."""
        dropped = 0
        with self._mutex:
            count = 0
            while count < len(self._batches) and self._size_bytes > max_bytes:
                batch = self._batches[count]
                self._size_bytes -= batch.size_bytes
                dropped += len(batch.messages)
                count += 1
            del self._batches[:count]
        self._dropped += dropped
        return dropped

    def clear(self) -> None:
        """Let go of every message. Offsets go on."""
        with self._mutex:
            self._batches, self._size_bytes = [], 0

    def close(self) -> None:
        """Let go of everything. Closing twice is fine."""
        self.clear()
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the queue is closed: its topic was deleted")


def _block(batch: _Batch) -> Block:
    buffers, _ = encode_block(batch.messages, batch.base, batch.time_ms, 0, b"", batch.due_ms)
    raw = memoryview(b"".join(buffers))
    return Block(batch.base, len(batch.messages), batch.time_ms, batch.messages, raw, batch.due_ms)
