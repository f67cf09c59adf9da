"""Events on their way to an HTTP server: batches that fill, wait, fail and go. Pure.

    event -----------> filling --sealed--> waiting --+--taken--> sent, or failed
    a large event ---> alone ------------> large ----+
                                           failed ------taken--> sent, or failed again

A batch is sealed when the next event would not fit, when it has enough events, when it is old
enough, or when it is asked for. Owns the bounds and the one drop policy: of each of the three
queues (waiting, large, failed) the oldest batch goes when there is no room. Nothing here waits,
knows a clock, or is safe from several threads.

Invariants: every event taken in is in exactly one batch until it is sent or counted as dropped;
no queue holds more than `memory_bytes_max`, or two batches where that is more.
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
    """The bounds.

    Attributes:
        flush_ms: Age at which a batch is sealed.
        flush_count: Events at which it is sealed.
        batch_bytes_max: Its size.
        batches_waiting_max: How many wait in each queue.
        event_bytes_max: A larger event is dropped.
        memory_bytes_max: What batches that wait may take; the two bounds before are lowered to
            keep it, but two batches may wait at least.
    """

    flush_ms: int = 60_000
    flush_count: int = 500
    batch_bytes_max: int = 5 << 20
    batches_waiting_max: int = 50
    event_bytes_max: int = 1_023 << 10
    memory_bytes_max: int = 64 << 20

    @property
    def batch_bytes(self) -> int:
        """The size of a batch that keeps the bound of memory."""
        return min(self.batch_bytes_max, self.memory_bytes_max // 2)

    @property
    def waiting(self) -> int:
        """How many batches wait in a queue within the bound of memory."""
        return max(2, min(self.batches_waiting_max, self.memory_bytes_max // self.batch_bytes))

    @property
    def large_bytes(self) -> int:
        """Above this size an event goes alone."""
        return (self.batch_bytes - _FRAMING_BYTES) // 2


@dataclass(slots=True, eq=False)
class Batch:
    """Events that are sent together.

    Attributes:
        events: Their JSON.
        begun_s: When the first came.
        fill_s: How long it filled.
        is_retry: Whether it failed before.
    """

    begun_s: float
    events: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    fill_s: float = 0.0
    is_retry: bool = False


class Batches:
    """All events that are not sent.

    Attributes:
        dropped: Events that are lost: too many waited, too large, or given up at the end.
        settled: Batches that were sent, failed or dropped, each counted once.
        begun: Batches that were ever sealed.
    """

    def __init__(self, options: BatchOptions) -> None:
        if options.flush_count < 1 or options.batch_bytes < _FRAMING_BYTES + 2:
            raise InvalidRequest("a batch must have room for an event")
        self._options = options
        self._filling: Batch | None = None
        self._waiting: deque[Batch] = deque()
        self._large: deque[Batch] = deque()
        self._failed: deque[Batch] = deque()
        self._retry_is_due = False
        self.dropped = 0
        self.settled = 0
        self.begun = 0
        self.last_fill_s = 0.0

    @property
    def waiting(self) -> int:
        """Batches that wait to be sent for the first time, those of one large event apart."""
        return len(self._waiting)

    @property
    def large(self) -> int:
        """Large events that wait."""
        return len(self._large)

    @property
    def failed(self) -> int:
        """Batches that failed and wait to be tried again."""
        return len(self._failed)

    @property
    def events(self) -> int:
        """All events that are held."""
        held = (*self._waiting, *self._large, *self._failed, *filter(None, [self._filling]))
        return sum(len(batch.events) for batch in held)

    def add(self, event: bytes, now_s: float) -> bool:
        """Take an event in; true when a batch is ready to be sent by that."""
        size = len(event)
        if size > self._options.event_bytes_max:
            self.dropped += 1
            return False
        if size > self._options.large_bytes:
            self._queue(self._large, Batch(now_s, [event], size))
            return True
        batch, sealed = self._filling, False
        if batch is not None and self._is_full_for(batch, size):
            sealed, batch = self.seal(now_s), None
        if batch is None:
            batch = self._filling = Batch(now_s)
        batch.events.append(event)
        batch.size_bytes += size + 1  # the separator
        enough = len(batch.events) >= self._options.flush_count
        return self.seal(now_s) if enough or self._is_old(batch, now_s) else sealed

    def seal(self, now_s: float) -> bool:
        """Have what fills be sent; false if nothing does."""
        batch, self._filling = self._filling, None
        if batch is None:
            return False
        batch.fill_s = self.last_fill_s = max(0.0, now_s - batch.begun_s)
        self._queue(self._waiting, batch)
        return True

    def seal_if_old(self, now_s: float) -> bool:
        """Seal what fills if it is old enough."""
        batch = self._filling
        return batch is not None and self._is_old(batch, now_s) and self.seal(now_s)

    def take(self) -> Batch | None:
        """Return what is to be sent next: fresh batches, and then one that failed; None: a rest."""
        for fresh in (self._large, self._waiting):
            if fresh:
                self._retry_is_due = True
                return fresh.popleft()
        if self._failed and self._retry_is_due:
            self._retry_is_due = False
            return self._failed.popleft()
        self._retry_is_due = True
        return None

    def take_last(self) -> Batch | None:
        """Return what is to be sent once more at the end, the oldest first."""
        for queue in (self._failed, self._large, self._waiting):
            if queue:
                return queue.popleft()
        return None

    def sent(self, batch: Batch) -> None:
        """Note that a batch that was taken is gone."""
        self._settle(batch)

    def fail(self, batch: Batch) -> None:
        """Keep a batch that could not be sent, to be tried again."""
        self._settle(batch)
        batch.is_retry = True
        self._failed.append(batch)
        self._keep_bound(self._failed)

    def give_up(self, batch: Batch) -> None:
        """Drop a batch that was taken."""
        self._settle(batch)
        self.dropped += len(batch.events)

    def _queue(self, queue: deque[Batch], batch: Batch) -> None:
        self.begun += 1
        queue.append(batch)
        self._keep_bound(queue)

    def _keep_bound(self, queue: deque[Batch]) -> None:
        while len(queue) > self._options.waiting:
            oldest = queue.popleft()
            self._settle(oldest)
            self.dropped += len(oldest.events)

    def _settle(self, batch: Batch) -> None:
        self.settled += not batch.is_retry

    def _is_full_for(self, batch: Batch, size: int) -> bool:
        return batch.size_bytes + size + 1 + _FRAMING_BYTES > self._options.batch_bytes

    def _is_old(self, batch: Batch, now_s: float) -> bool:
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
