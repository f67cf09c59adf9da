"""Events as metrics for Prometheus: counts and sums, by name and a few labels."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from penstock.core.metrics import MetricRegistry, Sample
from penstock.services.emitter.emitter import Record

# Labels create time series, so only dimensions with few values become labels.
LABELS: Final = ("type", "status", "success", "severity", "taskType", "taskStatus")
SERIES_MAX: Final = 1_000
# From the duration of a query to that of a task, in milliseconds.
BOUNDS: Final = (
    *(1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1_000.0, 5_000.0, 10_000.0),
    *(60_000.0, 600_000.0, 3_600_000.0),
)


class PrometheusSink:
    """Keeps a histogram for each emitted metric, and counts alerts.

    Args:
        labels: Dimensions that become labels.
        series_max: Maximum number of combinations of name and labels; others are counted as lost.
    """

    def __init__(self, labels: Collection[str] = LABELS, series_max: int = SERIES_MAX) -> None:
        self._labels = frozenset(labels)
        self._series_max = series_max
        self._series: set[tuple[str, ...]] = set()
        self._registry = MetricRegistry()
        self._lost = self._registry.counter(
            "penstock_emitter_dropped_total",
            "Events dropped because too many waited, oldest first",
            sink="prometheus",
        )

    def accept(self, record: Record) -> None:
        """Count a record."""
        body = record.body
        labels = {
            snake_case(name): str(body[name]) for name in sorted(self._labels) if name in body
        }
        metric = body.get("metric")
        if record.feed == "alerts":
            name = "penstock_alerts_total"
        elif isinstance(metric, str):
            name = f"penstock_event_{snake_case(metric)}"
        else:
            return
        series = (name, *(part for pair in labels.items() for part in pair))
        if series not in self._series:
            if len(self._series) >= self._series_max:
                self._lost.add()
                return
            self._series.add(series)
        value = body.get("value")
        if record.feed == "alerts":
            self._registry.counter(name, "Alerts by severity", **labels).add()
        elif isinstance(value, int | float):
            about = f"Values of the metric {metric}"
            self._registry.histogram(name, about, BOUNDS, **labels).observe(value)

    def start(self) -> None:
        """Do nothing, because metrics are updated at once."""

    def flush(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def samples(self) -> Iterable[Sample]:
        """Return the metrics."""
        return self._registry.snapshot()


def snake_case(name: str) -> str:
    """Return a name in Prometheus' form: `sqlQuery/time` becomes `sql_query_time`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_") or "unnamed"
