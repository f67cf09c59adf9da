"""Event emitter of a process: the `EventSink` protocol, composed sinks and alerts.

    caller --emit(event)--> ServiceEmitter --its thread: accept(record)--> sink: log, HTTP, ...

`ServiceEmitter` adds the data of the process to an event and passes it to a sink on its own
thread. `ComposingSink` passes each record to several sinks, and `SwitchingSink` to those of the
record's feed; a failing sink does not affect the others. `send_alert` logs an alert with its
traceback and emits it.

Invariants: `emit` and `send_alert` never block and never raise. An invalid event or an internal
error loses the event, which is counted, and logged at most once a minute. All sinks that buffer
events have one drop policy: **the oldest events are dropped when the buffer is full**
(`DropOldest` in `log_sink`), because the newest ones describe the present problem.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Protocol

from penstock.core.clock import Clock
from penstock.core.errors import PenstockError, Unavailable
from penstock.core.instants import format_time
from penstock.core.metrics import Counter, Sample
from penstock.core.rate_limited_log import RateLimitedLog
from penstock.core.threads import OnDeath, OwnedThread
from penstock.services.emitter.events import AlertEvent, Event, Severity

logger = logging.getLogger(__name__)

EVENTS_WAITING_MAX: Final = 10_000
FLUSH_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Record:
    """An event with all its fields.

    Attributes:
        feed: The stream of events.
        body: All fields, each a JSON value; never changed.
    """

    feed: str
    body: Mapping[str, object]


class Emitter(Protocol):
    """Takes events."""

    def emit(self, event: Event) -> None:
        """Accept an event; never blocks, never raises."""
        ...


class EventSink(Protocol):
    """Destination of records. Only the emitter's thread calls `accept`."""

    def accept(self, record: Record) -> None:
        """Accept a record; never waits. An exception costs only this record."""
        ...

    def start(self) -> None:
        """Begin to deliver records; records accepted before are kept."""
        ...

    def flush(self) -> None:
        """Deliver the records accepted so far; blocks.

        Raises:
            Unavailable: Not all of them were delivered in time.
        """
        ...

    def stop(self) -> None:
        """Deliver pending records once, and end; records accepted later are dropped.

        Raises:
            Unavailable: Not all of them were delivered.
        """
        ...

    def samples(self) -> Iterable[Sample]:
        """Return metrics of the sink itself."""
        ...


class ServiceEmitter:
    """Adds the fields of the process to events, and passes them to a sink.

    `emit` only appends to a bounded deque, which is one step of the interpreter: concurrent callers
    do not wait for each other, as they would for a mutex whose holder was descheduled. A thread of
    its own does everything else. The condition's mutex is taken only by a caller that wakes the
    resting thread.

    Args:
        fixed: Fields of every event, such as service and host.
        sink: Destination of the records.
        clock: Time.
        capacity: Events that may wait for the thread; beyond it the oldest are dropped.
    """

    def __init__(
        self,
        fixed: Mapping[str, object],
        sink: EventSink,
        clock: Clock,
        capacity: int = EVENTS_WAITING_MAX,
    ) -> None:
        self._fixed = dict(fixed)
        self._sink = sink
        self._clock = clock
        self._log = RateLimitedLog(logger, clock)
        self._waiting: deque[tuple[int, int, Event]] = deque(maxlen=capacity)
        # Events are numbered: a gap in the numbers that arrive is the number of dropped events.
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._rests = False
        self._newest = 0
        self._arrived = 0
        self._taken = Counter()
        self._refused = Counter()
        self._thread = OwnedThread("emitter", self._run, on_death=OnDeath.RESTART)

    @property
    def taken(self) -> int:
        """Return how many events the sink has accepted."""
        return int(self._taken.value)

    @property
    def refused(self) -> int:
        """Return how many events were invalid, or failed in the sink."""
        return int(self._refused.value)

    @property
    def dropped(self) -> int:
        """Return how many events were dropped, without those that are being emitted now."""
        waiting = [number for number, _, _ in list(self._waiting)]
        newest = max([self._newest, *waiting])
        return max(0, newest - self._arrived - len(waiting))

    def emit(self, event: Event) -> None:
        """Accept an event; never blocks, never raises."""
        # The documented top-level boundary: a bad event must not affect the caller.
        try:
            at_ms = event.created_ms
            if at_ms is None:
                at_ms = self._clock.now_ms()
            self._waiting.append((next(self._numbers), at_ms, event))
            if self._rests:
                self._wake()
        except Exception as error:  # noqa: BLE001
            self._refuse(error)

    def start(self) -> None:
        """Begin to deliver events."""
        self._sink.start()
        self._thread.start()

    def flush(self) -> None:
        """Deliver the events emitted so far; blocks.

        Raises:
            Unavailable: The sink could not deliver all of them in time.
        """
        wanted = max([0, *(number for number, _, _ in list(self._waiting))])
        until_s = self._clock.monotonic_s() + FLUSH_TIMEOUT_S
        with self._changed:
            while self._newest < wanted:
                left_s = until_s - self._clock.monotonic_s()
                if left_s <= 0:
                    raise Unavailable("earlier events could not be delivered in time")
                self._clock.wait(self._changed, left_s)
        self._sink.flush()

    def stop(self) -> None:
        """Deliver pending events, and end; events emitted later are dropped.

        Raises:
            Unavailable: Not all could be delivered.
        """
        self._thread.end(self._changed, FLUSH_TIMEOUT_S)
        self._sink.stop()

    def samples(self) -> Iterable[Sample]:
        """Return metrics of the emitter and its sinks."""
        about = "Events that parts of this process emitted, by immediate outcome"
        outcomes = (("taken", self.taken), ("refused", self.refused), ("dropped", self.dropped))
        for outcome, count in outcomes:
            labels = (("outcome", outcome),)
            yield Sample("penstock_emitter_events_total", "counter", about, labels, count)
        yield from self._sink.samples()

    def _wake(self) -> None:
        with self._changed:
            self._rests = False
            self._changed.notify_all()

    def _refuse(self, error: Exception) -> None:
        self._refused.add()
        self._log.warning("an event could not be emitted and is lost: %r", error)

    # The emitter's thread

    def _run(self) -> None:
        while True:
            lost = self.dropped
            while self._waiting:
                self._hand_on(*self._waiting.popleft())
            if self.dropped > lost:
                self._log.warning("events arrive faster than they are sent: the oldest are dropped")
            with self._changed:
                self._changed.notify_all()  # wakes `flush`
                if self._thread.is_end_expected:
                    return
                # Set the flag before the last check: a caller that appends after the check sees
                # that it rests.
                self._rests = True
                if not self._waiting:
                    self._clock.wait(self._changed, None)
                self._rests = False

    def _hand_on(self, number: int, at_ms: int, event: Event) -> None:
        # A boundary as in `emit`: an error of a sink must not end the thread.
        try:
            head = {"feed": event.feed, "timestamp": format_time(at_ms), **self._fixed}
            # Fields of an event cannot replace the fields of its process.
            body = {**head, **event.body(), **head}
            self._sink.accept(Record(event.feed, body))
            self._taken.add()
        except Exception as error:  # noqa: BLE001
            self._refuse(error)
        self._arrived += 1
        self._newest = max(self._newest, number)


_QUIET = frozenset({Severity.ANOMALY, Severity.DEPRECATED})


def send_alert(
    emitter: Emitter,
    logger: logging.Logger,
    description: str,
    severity: Severity = Severity.COMPONENT_FAILURE,
    *,
    data: Mapping[str, str] | None = None,
    error: BaseException | None = None,
) -> None:
    """Log an alert with the trace of its error, and emit it; never blocks, never raises.

    Args:
        emitter: The emitter.
        logger: Logger of the part that detected it.
        description: Description of the problem.
        severity: Its severity.
        data: Details that help to find the cause.
        error: The exception.
    """
    level = logging.WARNING if severity in _QUIET else logging.ERROR
    logger.log(level, "%s", description, exc_info=error)
    event = (
        AlertEvent(description, severity, data or {})
        if error is None
        else AlertEvent.of_error(description, error, severity, data)
    )
    emitter.emit(event)


class ComposingSink:
    """Passes each record to all of its sinks, even if one fails."""

    def __init__(self, sinks: Sequence[EventSink]) -> None:
        self._sinks = tuple(sinks)

    def accept(self, record: Record) -> None:
        """Pass a record to all sinks; raise the last failure."""
        failure: Exception | None = None
        for sink in self._sinks:
            # A boundary like `ServiceEmitter.emit`, which counts and logs this exception.
            try:
                sink.accept(record)
            except Exception as error:  # noqa: BLE001
                failure = error
        if failure is not None:
            raise failure

    def start(self) -> None:
        """Start all."""
        for sink in self._sinks:
            sink.start()

    def flush(self) -> None:
        """Flush all; raises Unavailable, after all were flushed, if any failed."""
        try_all("flushed", [sink.flush for sink in self._sinks])

    def stop(self) -> None:
        """Stop all; raises Unavailable, after all were stopped, if any failed."""
        try_all("stopped", [sink.stop for sink in self._sinks])

    def samples(self) -> Iterable[Sample]:
        """Return the metrics of all sinks."""
        return chain.from_iterable(sink.samples() for sink in self._sinks)


class SwitchingSink:
    """Passes each record to the sinks of its feed, as `ComposingSink` does.

    Args:
        by_feed: The sinks of feeds; records of a feed with an empty list are dropped.
        otherwise: The sinks of all other feeds.
    """

    def __init__(
        self, by_feed: Mapping[str, Sequence[EventSink]], otherwise: Sequence[EventSink]
    ) -> None:
        self._by_feed = {feed: ComposingSink(sinks) for feed, sinks in by_feed.items()}
        self._otherwise = ComposingSink(otherwise)
        # One sink may serve several feeds, but is started and stopped once.
        every = chain(otherwise, *by_feed.values())
        self._all = ComposingSink(list({id(sink): sink for sink in every}.values()))

    def accept(self, record: Record) -> None:
        """Pass a record to the sinks of its feed; raise the last failure."""
        self._by_feed.get(record.feed, self._otherwise).accept(record)

    def start(self) -> None:
        """Start all."""
        self._all.start()

    def flush(self) -> None:
        """Flush all; raises Unavailable, after all were flushed, if any failed."""
        self._all.flush()

    def stop(self) -> None:
        """Stop all; raises Unavailable, after all were stopped, if any failed."""
        self._all.stop()

    def samples(self) -> Iterable[Sample]:
        """Return the metrics of all sinks."""
        return self._all.samples()


def try_all(what: str, calls: Sequence[Callable[[], None]]) -> None:
    """Make all calls.

    Raises:
        Unavailable: Some failed; the message lists all failures.
    """
    failures: list[str] = []
    for call in calls:
        try:
            call()
        except (PenstockError, OSError) as error:
            failures.append(str(error))
    if failures:
        raise Unavailable(f"not all sinks of events were {what}: {'; '.join(failures)}")
