"""Events as lines of JSON in the log of the process, written by a separate thread."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Final

import orjson

from penstock.core.clock import Clock
from penstock.core.errors import Unavailable
from penstock.core.metrics import Sample
from penstock.core.rate_limited_log import SparseLog
from penstock.core.threads import OnDeath, OwnedThread
from penstock.services.emitter.bounded import DropOldest
from penstock.services.emitter.emitter import Record

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
        self._log = SparseLog(logger, clock)
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
        if self._thread.ident is not None:
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
            try:
                for record in records:
                    self._write(record)
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
    about = "Events dropped because too many waited, oldest first"
    return Sample("penstock_emitter_dropped_total", "counter", about, (("sink", sink),), value)
