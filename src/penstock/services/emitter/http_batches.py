"""Batches of events for an HTTP server: they fill, wait, fail, and are sent or dropped. Pure.

    event -----------> filling --sealed--> waiting --+--taken--> sent, or failed
    a large event ---> alone ------------> large ----+
                                           failed ------taken--> sent, or failed again

A batch is sealed when the next event would not fit, when it has enough events, when it is old
enough, or on request. Owns the limits and the drop policy: if one of the three queues (waiting,
large, failed) has no room, its oldest batch is dropped. This module never waits, has no clock, and
is not thread-safe.

Invariants: every accepted event is in exactly one batch until it is sent or counted as dropped; no
queue exceeds the larger of `memory_bytes_max` and two batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.core.errors import InvalidRequest

_FRAMING_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Limits of batches.

    Attributes:
        flush_ms: Age at which a batch is sealed.
        flush_count: Number of events at which a batch is sealed.
        batch_bytes_max: Maximum size of a batch.
        batches_waiting_max: Maximum number of batches in each queue.
        event_bytes_max: A larger event is dropped.
        memory_bytes_max: Maximum size of waiting batches; the limits above are lowered to keep it,
            but at least two batches may wait.
    """

    flush_ms: int = 60_000
    flush_count: int = 500
    batch_bytes_max: int = 5 << 20
    batches_waiting_max: int = 50
    event_bytes_max: int = 1_023 << 10
    memory_bytes_max: int = 64 << 20

    @property
    def batch_bytes(self) -> int:
        """Return the size of a batch within the memory limit."""
        return min(self.batch_bytes_max, self.memory_bytes_max // 2)

    @property
    def waiting(self) -> int:
        """Return how many batches may wait in a queue within the memory limit."""
        return max(2, min(self.batches_waiting_max, self.memory_bytes_max // self.batch_bytes))

    @property
    def large_bytes(self) -> int:
        """Return the size above which an event is sent as a batch of its own."""
        return (self.batch_bytes - _FRAMING_BYTES) // 2


@dataclass(slots=True, eq=False)
class EventBatch:
    """Events that are sent together.

    Attributes:
        events: The JSON of each event.
        begun_s: When the first event arrived.
        fill_s: How long the batch was filled.
        is_retry: Whether it failed before.
    """

    begun_s: float
    events: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    fill_s: float = 0.0
    is_retry: bool = False


class EventBatches:
    """All events that are not sent yet.

    Attributes:
        dropped: Lost events: over the limit, too large, or not sent before the end.
        completed: Batches that were sent, failed or dropped, each counted once.
        begun: Number of batches sealed so far.
    """

    def __init__(self, options: BatchOptions) -> None:
        if options.flush_count < 1 or options.batch_bytes < _FRAMING_BYTES + 2:
            raise InvalidRequest("a batch must have room for an event")
        self._options = options
        self._filling: EventBatch | None = None
        self._waiting: deque[EventBatch] = deque()
        self._large: deque[EventBatch] = deque()
        self._failed: deque[EventBatch] = deque()
        self._retry_is_due = False
        self.dropped = 0
        self.completed = 0
        self.begun = 0
        self.last_fill_s = 0.0

    @property
    def waiting(self) -> int:
        """Return how many batches wait for their first attempt, without large events."""
        return len(self._waiting)

    @property
    def large(self) -> int:
        """Return how many large events wait."""
        return len(self._large)

    @property
    def failed(self) -> int:
        """Return how many batches failed and wait for a retry."""
        return len(self._failed)

    @property
    def events(self) -> int:
        """Return how many events are held."""
        held = (*self._waiting, *self._large, *self._failed, *filter(None, [self._filling]))
        return sum(len(batch.events) for batch in held)

    def add(self, event: bytes, now_s: float) -> bool:
        """Add an event; return whether a batch became ready to be sent."""
        size = len(event)
        if size > self._options.event_bytes_max:
            self.dropped += 1
            return False
        if size > self._options.large_bytes:
            self._queue(self._large, EventBatch(now_s, [event], size))
            return True
        batch, sealed = self._filling, False
        if batch is not None and self._is_full_for(batch, size):
            sealed, batch = self.seal(now_s), None
        if batch is None:
            batch = self._filling = EventBatch(now_s)
        batch.events.append(event)
        batch.size_bytes += size + 1  # the separator
        enough = len(batch.events) >= self._options.flush_count
        return self.seal(now_s) if enough or self._is_old(batch, now_s) else sealed

    def seal(self, now_s: float) -> bool:
        """Seal the current batch; return False if there is none."""
        batch = self._filling
        if batch is None:
            return False
        batch.fill_s = self.last_fill_s = max(0.0, now_s - batch.begun_s)
        self._queue(self._waiting, batch)
        return True

    def seal_if_old(self, now_s: float) -> bool:
        """Seal the current batch if it is old enough."""
        batch = self._filling
        return batch is not None and self._is_old(batch, now_s) and self.seal(now_s)

    def take(self) -> EventBatch | None:
        """Return the next batch: new ones before failed ones; None: a pause after failures."""
        for fresh in (self._large, self._waiting):
            if fresh:
                self._retry_is_due = True
                return fresh.popleft()
        if self._failed and self._retry_is_due:
            self._retry_is_due = False
            return self._failed.popleft()
        self._retry_is_due = True
        return None

    def take_last(self) -> EventBatch | None:
        """Return the next batch for the last attempt, oldest first."""
        for queue in (self._failed, self._large, self._waiting):
            if queue:
                return queue.popleft()
        return None

    def sent(self, batch: EventBatch) -> None:
        """Record that a taken batch was sent."""
        self._complete(batch)

    def fail(self, batch: EventBatch) -> None:
        """Keep a batch that could not be sent, for a retry."""
        try:
            self._failed.append(batch)
        except BaseException:
            self.drop(batch)
            raise
        self._complete(batch)
        batch.is_retry = True
        self._keep_bound(self._failed)

    def drop(self, batch: EventBatch) -> None:
        """Count a batch, and its events, as dropped."""
        self._complete(batch)
        self.dropped += len(batch.events)

    def _complete(self, batch: EventBatch) -> None:
        # A batch that is tried again was counted when it failed first.
        self.completed += not batch.is_retry

    def _queue(self, queue: deque[EventBatch], batch: EventBatch) -> None:
        # The append may raise, so it comes first: then nothing changed.
        queue.append(batch)
        self.begun += 1
        if batch is self._filling:
            self._filling = None
        self._keep_bound(queue)

    def _keep_bound(self, queue: deque[EventBatch]) -> None:
        while len(queue) > self._options.waiting:
            self.drop(queue[0])  # first: if it raises, the batch is still queued
            queue.popleft()

    def _is_full_for(self, batch: EventBatch, size: int) -> bool:
        return batch.size_bytes + size + 1 + _FRAMING_BYTES > self._options.batch_bytes

    def _is_old(self, batch: EventBatch, now_s: float) -> bool:
        return (now_s - batch.begun_s) * 1_000 >= self._options.flush_ms


def framed(events: Sequence[bytes], framing: str) -> bytes:
    """Return the body of a request.

    Args:
        events: JSON of each.
        framing: `array` (a JSON array), `newlines` (a line each), `only_events` (one after the
            other).
    """
    if framing == "array":
        return b"[" + b",".join(events) + b"]"
    if framing == "newlines":
        return b"\n".join(events) + b"\n"
    return b"".join(events)
