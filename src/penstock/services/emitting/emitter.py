"""The contract of emitting, and the emitter that every process has.

    work --emit(event)--> ServiceEmitter --accept(record)--> a sink: log, HTTP, Prometheus, several

Owns the contract: `emit` never blocks and never raises. Invalid input or internal trouble costs the
event, which is counted and logged, a line a minute. There is one drop policy for all sinks that
hold events back: **when there is no room, the oldest go** (`bounded`), because the newest tell what
is the matter now.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from penstock.core.clock import Clock
from penstock.core.instants import format_time
from penstock.core.metrics import Counter, Sample
from penstock.core.sparselog import SparseLog
from penstock.services.emitting.events import Event

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Record:
    """An event with everything that is told of it.

    Attributes:
        feed: The stream of events.
        body: All fields, JSON values each; nobody changes it.
    """

    feed: str
    body: Mapping[str, object]


class Emitter(Protocol):
    """Takes events."""

    def emit(self, event: Event) -> None:
        """Take an event; never blocks, never raises."""
        ...


class Sink(Protocol):
    """Where records go."""

    def accept(self, record: Record) -> None:
        """Take a record; never waits. What it raises costs this record alone."""
        ...

    def start(self) -> None:
        """Begin to hand records on; those that were accepted before are not lost."""
        ...

    def flush(self) -> None:
        """Hand on what was accepted before; blocks.

        Raises:
            Unavailable: Not all of it was handed on in time.
        """
        ...

    def stop(self) -> None:
        """Hand on what waits, once, and end; what is accepted afterwards is dropped.

        Raises:
            Unavailable: Not all of it was handed on.
        """
        ...

    def samples(self) -> Iterable[Sample]:
        """Return metrics of the sink itself."""
        ...


class NoopEmitter:
    """Drops everything."""

    def emit(self, event: Event) -> None:
        """Drop the event."""


class ServiceEmitter:
    """Completes events with what is known of the process, and gives them to a sink.

    Args:
        fixed: Fields of every event, such as service and host.
        sink: Where they go.
        clock: Time.
    """

    def __init__(self, fixed: Mapping[str, object], sink: Sink, clock: Clock) -> None:
        self._fixed = dict(fixed)
        self._sink = sink
        self._clock = clock
        self._log = SparseLog(logger, clock)
        self.emitted = Counter()
        self.refused = Counter()

    def emit(self, event: Event) -> None:
        """Take an event; never blocks, never raises."""
        # The documented top-level boundary: no fault of an event or a sink reaches the work.
        try:
            at_ms = event.created_ms
            body = {
                "feed": event.feed,
                "timestamp": format_time(self._clock.now_ms() if at_ms is None else at_ms),
                **self._fixed,
                **event.body(),
            }
            self._sink.accept(Record(event.feed, body))
            self.emitted.add()
        except Exception as error:  # noqa: BLE001
            self.refused.add()
            self._log.warning("an event could not be emitted and is lost: %r", error)

    def start(self) -> None:
        """Begin to hand events on."""
        self._sink.start()

    def flush(self) -> None:
        """Hand on what was emitted before. Raises Unavailable if that did not work in time."""
        self._sink.flush()

    def stop(self) -> None:
        """Hand on what waits, and end. Raises Unavailable if not all could be handed on."""
        self._sink.stop()

    def samples(self) -> Iterable[Sample]:
        """Return metrics of the emitter and its sinks."""
        about = "Events that parts of this process emitted, by what became of them at once"
        for outcome, counter in (("taken", self.emitted), ("refused", self.refused)):
            labels = (("outcome", outcome),)
            yield Sample("penstock_emitter_events_total", "counter", about, labels, counter.value)
        yield from self._sink.samples()
