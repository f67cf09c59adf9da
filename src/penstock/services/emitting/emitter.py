"""The contract of emitting, and the emitter that every process has.

    work --emit(event)--> ServiceEmitter --its thread: accept(record)--> a sink: log, HTTP, several

Owns the contract: `emit` never blocks and never raises. Invalid input or internal trouble costs the
event, which is counted and logged, a line a minute. There is one drop policy for all sinks that
hold events back: **when there is no room, the oldest go** (`bounded`), because the newest tell what
is the matter now.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.core.clock import Clock
from penstock.core.errors import Unavailable
from penstock.core.instants import format_time
from penstock.core.metrics import Counter, Sample
from penstock.core.sparselog import SparseLog
from penstock.core.threads import OnDeath, OwnedThread
from penstock.services.emitting.events import Event

logger = logging.getLogger(__name__)

EVENTS_WAITING_MAX: Final = 10_000
FLUSH_TIMEOUT_S: Final = 5.0


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
    """Where records go. One thread, the emitter's, gives them."""

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


class ServiceEmitter:
    """Completes events with what is known of the process, and gives them to a sink.

    `emit` does no more than append to a bounded deque, which is one step of the interpreter: many
    who emit at once do not wait for each other, as they would for a mutex whose holder was put to
    sleep. Everything else is done by a thread of its own. The condition's mutex is taken by who
    wakes that thread up when it rests, once.

    Args:
        fixed: Fields of every event, such as service and host.
        sink: Where they go.
        clock: Time.
        capacity: Events that may wait for the thread; beyond it the oldest are dropped.
    """

    def __init__(
        self,
        fixed: Mapping[str, object],
        sink: Sink,
        clock: Clock,
        capacity: int = EVENTS_WAITING_MAX,
    ) -> None:
        self._fixed = dict(fixed)
        self._sink = sink
        self._clock = clock
        self._log = SparseLog(logger, clock)
        self._waiting: deque[tuple[int, int, Event]] = deque(maxlen=capacity)
        # Each event has a number: what is missing among those that arrive was dropped.
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._rests = False
        self._stop_asked = False
        self._newest = 0
        self._arrived = 0
        self._taken = Counter()
        self._refused = Counter()
        self._thread = OwnedThread("emitter", self._run, on_death=OnDeath.RESTART)

    @property
    def taken(self) -> int:
        """How many events the sink has taken."""
        return int(self._taken.value)

    @property
    def refused(self) -> int:
        """How many events were wrong, or too much for the sink."""
        return int(self._refused.value)

    @property
    def dropped(self) -> int:
        """How many events were dropped; those that come just now are not in it yet."""
        waiting = [number for number, _, _ in list(self._waiting)]
        newest = max([self._newest, *waiting])
        return max(0, newest - self._arrived - len(waiting))

    def emit(self, event: Event) -> None:
        """Take an event; never blocks, never raises."""
        # The documented top-level boundary: no fault of an event reaches the work.
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
        """Begin to hand events on."""
        self._sink.start()
        self._thread.start()

    def flush(self) -> None:
        """Hand on what was emitted before; blocks.

        Raises:
            Unavailable: The sink could not hand all of it on in time.
        """
        wanted = max([0, *(number for number, _, _ in list(self._waiting))])
        until_s = self._clock.monotonic_s() + FLUSH_TIMEOUT_S
        with self._changed:
            while self._newest < wanted:
                left_s = until_s - self._clock.monotonic_s()
                if left_s <= 0:
                    raise Unavailable("the events before could not be handed on in time")
                self._clock.wait(self._changed, left_s)
        self._sink.flush()

    def stop(self) -> None:
        """Hand on what waits, and end; what is emitted afterwards is dropped.

        Raises:
            Unavailable: Not all could be handed on.
        """
        self._thread.expect_end()
        with self._changed:
            self._stop_asked = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(FLUSH_TIMEOUT_S)
        self._sink.stop()

    def samples(self) -> Iterable[Sample]:
        """Return metrics of the emitter and its sinks."""
        about = "Events that parts of this process emitted, by what became of them at once"
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
                self._log.warning("events come faster than they go: the oldest are dropped")
            with self._changed:
                self._changed.notify_all()  # who flushes
                if self._stop_asked:
                    return
                # First this, then a last look: who appends after the look sees that this rests.
                self._rests = True
                if not self._waiting:
                    self._clock.wait(self._changed, None)
                self._rests = False

    def _hand_on(self, number: int, at_ms: int, event: Event) -> None:
        # A boundary as in `emit`: no fault of a sink ends the thread.
        try:
            head = {"feed": event.feed, "timestamp": format_time(at_ms), **self._fixed}
            # No field of an event hides where it comes from.
            body = {**head, **event.body(), **head}
            self._sink.accept(Record(event.feed, body))
            self._taken.add()
        except Exception as error:  # noqa: BLE001
            self._refuse(error)
        self._arrived += 1
        self._newest = max(self._newest, number)
