"""Log sink: writes events as lines of JSON to the process's log, from a bounded buffer.

`LogSink` writes on a thread of its own. `DropOldest` is the buffer of all sinks that hold
events back: a queue bounded by count that drops the oldest entries when it is full. Putting
holds a mutex for a few statements that write, send and allocate nothing large, so a caller
never waits for a sink. `dropped_sample` is the metric of the dropped events.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final, Generic, TypeVar

import orjson

from penstock.core.clock import Clock
from penstock.core.errors import InvalidRequest, Unavailable
from penstock.core.metrics import Counter, Sample
from penstock.core.rate_limited_log import RateLimitedLog
from penstock.core.threads import OnDeath, OwnedThread
from penstock.services.emitter.emitter import Record

T = TypeVar("T")


class DropOldest(Generic[T]):
    """A queue between many producers and one consumer.

    Args:
        capacity: Maximum number of items.
        clock: Time.

    Raises:
        InvalidRequest: The capacity is less than 1.
    """

    def __init__(self, capacity: int, clock: Clock) -> None:
        if capacity < 1:
            raise InvalidRequest(f"invalid queue capacity {capacity}: use 1 or more")
        self._capacity = capacity
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: deque[T] = deque()
        self._accepted = 0
        self._removed = 0  # taken or dropped
        self._taken = 0  # and not done
        self._taken_from = 0  # how many were removed before them
        self._closed = False
        self.dropped = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, item: T) -> bool:
        """Add an item; return False if one was dropped: the oldest, or this one after `close`."""
        with self._changed:
            if self._closed:
                self.dropped.add()
                return False
            self._waiting.append(item)
            self._accepted += 1
            if len(self._waiting) <= self._capacity:
                # A waiting consumer is woken for the first item, and takes all items that exist
                # then.
                if len(self._waiting) == 1:
                    self._changed.notify_all()
                return True
            self._waiting.popleft()
            self._removed += 1
            self.dropped.add()
            return False

    def take(self, count: int, timeout_s: float | None = None) -> list[T]:
        """Return up to `count` items, oldest first; wait for the first one up to the time limit."""
        with self._changed:
            if not self._waiting and not self._closed:
                self._clock.wait(self._changed, timeout_s)
            taken = list(islice(self._waiting, count))
            if not self._taken:
                self._taken_from = self._removed
            self._taken += len(taken)
            self._removed += len(taken)
            for _ in taken:
                self._waiting.popleft()
            return taken

    def done(self, count: int) -> None:
        """Report that this many of the taken items are done."""
        with self._changed:
            self._taken -= count
            self._taken_from += count
            self._changed.notify_all()

    def wait_done(self, timeout_s: float) -> bool:
        """Wait until all earlier items are done or dropped; return False after the time limit."""
        until_s = self._clock.monotonic_s() + timeout_s
        with self._changed:
            wanted = self._accepted
            while (self._taken_from if self._taken else self._removed) < wanted:
                left_s = until_s - self._clock.monotonic_s()
                if left_s <= 0:
                    return False
                self._clock.wait(self._changed, left_s)
        return True

    def close(self) -> None:
        """Accept no further items; waiting items can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def is_closed(self) -> bool:
        """Return whether the queue accepts no further items."""
        return self._closed


logger = logging.getLogger(__name__)

RECORDS_WAITING_MAX: Final = 10_000
FLUSH_TIMEOUT_S: Final = 5.0
_RECORDS_AT_ONCE: Final = 500


class LogSink:
    """Writes records to the log.

    Args:
        clock: Time.
        level: Level of the lines; alerts are at least warnings.
        metrics: Names of the metrics to write; None: all. Other events are always written.
        capacity: Maximum number of waiting records; beyond it the oldest are dropped.
    """

    def __init__(
        self,
        clock: Clock,
        level: int = logging.INFO,
        metrics: Collection[str] | None = None,
        capacity: int = RECORDS_WAITING_MAX,
    ) -> None:
        self._level = level
        self._metrics = None if metrics is None else frozenset(metrics)
        self._waiting: DropOldest[Record] = DropOldest(capacity, clock)
        self._log = RateLimitedLog(logger, clock)
        self._thread = OwnedThread("event log", self._write_all, on_death=OnDeath.RESTART)

    @property
    def dropped(self) -> int:
        """Return how many records were dropped."""
        return int(self._waiting.dropped.value)

    def accept(self, record: Record) -> None:
        """Accept a record."""
        metric = record.body.get("metric")
        if self._metrics is not None and metric is not None and metric not in self._metrics:
            return
        if not self._waiting.put(record):
            self._log.warning("the log of events is behind: events are dropped, the oldest first")

    def start(self) -> None:
        """Start to write."""
        self._thread.start()

    def flush(self) -> None:
        """Wait until all accepted records are written."""
        if not self._waiting.wait_done(FLUSH_TIMEOUT_S):
            raise Unavailable(f"the log of events is behind: {len(self._waiting)} wait")

    def stop(self) -> None:
        """Write waiting records, and end."""
        self._thread.expect_end()
        self._waiting.close()
        self._thread.join(FLUSH_TIMEOUT_S)

    def samples(self) -> Iterable[Sample]:
        """Return the number of dropped records."""
        yield dropped_sample("log", self._waiting.dropped.value)

    def _write_all(self) -> None:
        while True:
            closed = self._waiting.is_closed
            records = self._waiting.take(_RECORDS_AT_ONCE)
            if not records and closed:
                return
            written = 0
            try:
                for record in records:
                    self._write(record)
                    written += 1
            finally:
                try:
                    if written < len(records):
                        self._waiting.dropped.add(len(records) - written)
                finally:
                    self._waiting.done(len(records))

    def _write(self, record: Record) -> None:
        alert = record.feed == "alerts"
        level = max(logging.WARNING, self._level) if alert else self._level
        try:
            logger.log(level, "%s", orjson.dumps(record.body).decode())
        except TypeError as error:
            self._log.warning(
                "an event has a value that JSON cannot represent, and is lost: %s", error
            )


def dropped_sample(sink: str, value: float) -> Sample:
    """Return the metric of a sink's dropped events."""
    about = "Events lost because too many waited, or because they could not be delivered"
    return Sample("penstock_emitter_dropped_total", "counter", about, (("sink", sink),), value)
