"""Construction of a process's emitter, with the sinks that its options name."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from typing import Final

import penstock
from penstock.core.clock import Clock
from penstock.core.durations import parse_duration
from penstock.core.errors import InvalidRequest, Unavailable
from penstock.services.config import Options
from penstock.services.emitter.composing import ComposingSink, SwitchingSink
from penstock.services.emitter.emitter import ServiceEmitter, Sink
from penstock.services.emitter.http_batches import BatchOptions
from penstock.services.emitter.http_sink import Framing, HttpByFeedSink, HttpSink, HttpSinkOptions
from penstock.services.emitter.logsink import LogSink
from penstock.services.emitter.prometheussink import PrometheusSink

_FRAMINGS: Final[Mapping[str, Framing]] = {
    "array": "array",
    "newlines": "newlines",
    "only_events": "only_events",
}


logger = logging.getLogger(__name__)


def service_emitter(
    options: Options,
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


def make_sink(options: Options, clock: Clock) -> Sink:
    """Return the sink of a process's events.

    Raises:
        InvalidRequest: HTTP is configured without a URL.
    """
    made: dict[str, Sink] = {}

    def sinks(names: str, separator: str) -> list[Sink]:
        wanted = [name for name in names.split(separator) if name != "none"]
        for name in wanted:
            if name not in made:
                made[name] = _sink(name, options, clock)
        return [made[name] for name in wanted]

    default = sinks(options.emitters, ",")
    feeds = (one.partition("=") for one in options.emitter_feeds)
    by_feed = {feed: sinks(names, "+") for feed, _, names in feeds}
    return SwitchingSink(by_feed, default) if by_feed else ComposingSink(default)


def _sink(name: str, options: Options, clock: Clock) -> Sink:
    if name == "log":
        level = logging.getLevelNamesMapping()[options.emitter_log_level.upper()]
        return LogSink(clock, level, options.emitter_log_metrics or None)
    if name == "prometheus":
        return PrometheusSink()
    return _http_sink(options, clock)


def _http_sink(options: Options, clock: Clock) -> Sink:
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
