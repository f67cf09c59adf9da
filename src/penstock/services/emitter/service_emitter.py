"""Factory of a process's emitter from its options, with the Prometheus sink.

`service_emitter` creates the emitter with the configured sinks, and `stop_emitter` ends it; an
unreachable event server does not make the process fail. `PrometheusSink` keeps a histogram for
each emitted metric, by name and a few labels, and counts alerts; `sqlQuery/time` becomes
`sql_query_time`.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import penstock
from penstock.core.clock import Clock
from penstock.core.durations import parse_duration
from penstock.core.errors import InvalidRequest, Unavailable
from penstock.core.metrics import MetricRegistry, Sample
from penstock.services.emitter.emitter import (
    ComposingSink,
    EventSink,
    Record,
    ServiceEmitter,
    SwitchingSink,
)
from penstock.services.emitter.http_batches import BatchOptions
from penstock.services.emitter.http_sink import Framing, HttpByFeedSink, HttpSink, HttpSinkOptions
from penstock.services.emitter.log_sink import LogSink
from penstock.services.options.table import PenstockOptions

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
            "Events lost because too many waited, or because they could not be delivered",
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


_FRAMINGS: Final[Mapping[str, Framing]] = {
    "array": "array",
    "newlines": "newlines",
    "only_events": "only_events",
}


logger = logging.getLogger(__name__)


def service_emitter(
    options: PenstockOptions,
    clock: Clock,
    service: str,
    dimensions: Mapping[str, object] | None = None,
) -> ServiceEmitter:
    """Return the emitter of a process.

    Args:
        options: The options of the process.
        clock: Time.
        service: Its name, in each event.
        dimensions: Further fields of each event.

    Raises:
        InvalidRequest: As `make_sink`.
    """
    fixed = {"service": service, "host": socket.gethostname(), "version": penstock.__version__}
    return ServiceEmitter({**(dimensions or {}), **fixed}, make_sink(options, clock), clock)


def stop_emitter(emitter: ServiceEmitter) -> None:
    """End an emitter; an unreachable server of events is not an error of the process."""
    try:
        emitter.stop()
    except Unavailable as error:
        logger.warning("the last events are lost: %s", error)


def make_sink(options: PenstockOptions, clock: Clock) -> EventSink:
    """Return the sink of a process's events.

    Raises:
        InvalidRequest: HTTP is configured without a URL.
    """
    made: dict[str, EventSink] = {}

    def sinks(names: str, separator: str) -> list[EventSink]:
        wanted = [name for name in names.split(separator) if name != "none"]
        for name in wanted:
            if name not in made:
                made[name] = _sink(name, options, clock)
        return [made[name] for name in wanted]

    default = sinks(options.emitters, ",")
    feeds = (one.partition("=") for one in options.emitter_feeds)
    by_feed = {feed: sinks(names, "+") for feed, _, names in feeds}
    return SwitchingSink(by_feed, default) if by_feed else ComposingSink(default)


def _sink(name: str, options: PenstockOptions, clock: Clock) -> EventSink:
    if name == "log":
        level = logging.getLevelNamesMapping()[options.emitter_log_level.upper()]
        return LogSink(clock, level, options.emitter_log_metrics or None)
    if name == "prometheus":
        return PrometheusSink()
    return _http_sink(options, clock)


def _http_sink(options: PenstockOptions, clock: Clock) -> EventSink:
    if options.emitter_url is None:
        raise InvalidRequest("the http emitter needs --emitter-url")

    def make(url: str) -> HttpSink:
        return HttpSink(
            HttpSinkOptions(
                url=url,
                batches=BatchOptions(flush_ms=parse_duration(options.emitter_flush)),
                framing=_FRAMINGS[options.emitter_framing],
                compress=options.emitter_gzip == "true",
                credentials=options.emitter_auth,
            ),
            clock,
        )

    if "{feed}" in options.emitter_url:
        return HttpByFeedSink(options.emitter_url, make)
    return make(options.emitter_url)
