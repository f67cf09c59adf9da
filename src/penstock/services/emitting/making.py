"""The sinks that the options of a process name."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from penstock.core.clock import Clock
from penstock.core.durations import parse_duration
from penstock.core.errors import InvalidRequest
from penstock.services.config import Options
from penstock.services.emitting.batches import BatchOptions
from penstock.services.emitting.composing import ComposingSink
from penstock.services.emitting.emitter import Sink
from penstock.services.emitting.httpsink import Framing, HttpByFeedSink, HttpSink, HttpSinkOptions
from penstock.services.emitting.logsink import LogSink
from penstock.services.emitting.prometheussink import PrometheusSink

_FRAMINGS: Final[Mapping[str, Framing]] = {
    "array": "array",
    "newlines": "newlines",
    "only_events": "only_events",
}


def make_sink(options: Options, clock: Clock) -> Sink:
    """Return what the events of a process are given to.

    Raises:
        InvalidRequest: Events are to go over HTTP, and no URL says where to.
    """
    sinks: list[Sink] = []
    for name in options.emitters.split(","):
        if name == "log":
            level = logging.getLevelNamesMapping()[options.emitter_log_level.upper()]
            sinks.append(LogSink(clock, level, options.emitter_log_metrics or None))
        elif name == "prometheus":
            sinks.append(PrometheusSink())
        elif name == "http":
            sinks.append(_http_sink(options, clock))
    return ComposingSink(sinks)


def _http_sink(options: Options, clock: Clock) -> Sink:
    if options.emitter_url is None:
        raise InvalidRequest("events go over HTTP, so --emitter-url must say where to")

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
