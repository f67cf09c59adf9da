"""Events about the running of a process: metrics and alerts, to whoever listens.

Owns the contract of `emit`: it never blocks and never raises; what cannot be taken is dropped and
counted. It does not own the numbers that Prometheus asks for (`metricstext`).
"""

from __future__ import annotations

import enum
import logging
import math
import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import orjson

from penstock.core.clock import Clock
from penstock.core.errors import InvalidRequest
from penstock.core.intervals import format_time
from penstock.core.metrics import Counter

logger = logging.getLogger(__name__)

EVENTS_WAITING_MAX = 10_000


class Severity(enum.Enum):
    """How bad it is."""

    ANOMALY = "anomaly"
    COMPONENT_FAILURE = "component-failure"
    SERVICE_FAILURE = "service-failure"


@dataclass(frozen=True, slots=True)
class MetricEvent:
    """One measured value.

    Raises:
        InvalidRequest: The value is not finite.
    """

    metric: str
    value: float
    dimensions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise InvalidRequest(f"{self.metric}: {self.value} is not finite")

    def body(self) -> dict[str, object]:
        """Return its fields."""
        return {"feed": "metrics", **self.dimensions, "metric": self.metric, "value": self.value}


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """Something that somebody should look at."""

    description: str
    severity: Severity = Severity.COMPONENT_FAILURE
    data: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, object]:
        """Return its fields."""
        return {
            "feed": "alerts",
            "severity": self.severity.value,
            "description": self.description,
            "data": dict(self.data),
        }


Event = MetricEvent | AlertEvent


class Emitter(Protocol):
    """Takes events."""

    def emit(self, event: Event) -> None:
        """Take an event; never blocks, never raises."""
        ...

    def start(self) -> None:
        """Begin to hand events on."""
        ...

    def stop(self) -> None:
        """Hand on what waits, and end."""
        ...


class NoopEmitter:
    """Drops everything."""

    def emit(self, event: Event) -> None:
        """Drop the event."""

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


class LoggingEmitter:
    """Writes each event as a line of JSON to the log, from a thread of its own.

    Args:
        fixed: Fields of every event, such as service and host.
        clock: Time.
        metrics: Names of the metrics to write; None: all. Alerts are always written.
        capacity: Events that may wait; beyond it the newest is dropped.
    """

    def __init__(
        self,
        fixed: Mapping[str, str],
        clock: Clock,
        metrics: Sequence[str] | None = None,
        capacity: int = EVENTS_WAITING_MAX,
    ) -> None:
        self._fixed = dict(fixed)
        self._clock = clock
        self._metrics = frozenset(metrics) if metrics is not None else None
        # None ends the thread.
        self._waiting: queue.Queue[tuple[int, Event] | None] = queue.Queue(capacity)
        self._thread = threading.Thread(target=self._write_all, name="emitter", daemon=True)
        self.dropped = Counter()

    def emit(self, event: Event) -> None:
        """Take an event; dropped and counted when too many wait."""
        if not self._wanted(event):
            return
        try:
            self._waiting.put_nowait((self._clock.now_ms(), event))
        except queue.Full:
            self.dropped.add()

    def _wanted(self, event: Event) -> bool:
        if self._metrics is None or isinstance(event, AlertEvent):
            return True
        return event.metric in self._metrics

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, and end."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join(5)

    def _write_all(self) -> None:
        while (item := self._waiting.get()) is not None:
            at_ms, event = item
            body = {**self._fixed, "timestamp": format_time(at_ms), **event.body()}
            level = logging.WARNING if isinstance(event, AlertEvent) else logging.INFO
            logger.log(level, "%s", orjson.dumps(body).decode())
