"""Stalls of event loops: the watchdog of every loop of a process.

A loop serves many connections on one thread. While one callback runs, no other connection is
served, so the length of such a stall is the first thing to check when answers are late.

Owns the measurements. Two kinds of loops are measured in two ways:

- A loop of asyncio is built around a selector that records when it returns and when it is called
  again. That is exact, and costs nothing while the loop is idle.
- The iterations of uvloop cannot be observed. A timer measures how late it fires, so a measured
  stall is too short by up to one interval of the timer.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
import weakref
from typing import TYPE_CHECKING, Final

from penstock.core.metrics import Sample

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG_STALL_MS: Final = 50.0
"""Stalls longer than this are counted."""

_TICK_S: Final = 0.02


class LoopStalls:
    """The stalls of one event loop. Its thread writes them, any thread reads them.

    Args:
        loop: The loop's name in metrics.

    Attributes:
        max_ms: The longest stall.
        over_50_ms: Number of stalls longer than 50 ms.
    """

    def __init__(self, loop: str) -> None:
        self.loop: Final = loop
        self.max_ms = 0.0
        self.over_50_ms = 0
        with _adding:
            _watched.add(self)

    def record(self, stall_ms: float) -> None:
        """Record one iteration of the loop; on its thread."""
        self.max_ms = max(self.max_ms, stall_ms)
        if stall_ms > LONG_STALL_MS:
            self.over_50_ms += 1

    def to_json(self) -> dict[str, float]:
        """Return the numbers for `/stats`."""
        return {"max": round(self.max_ms, 3), "over_50": self.over_50_ms}


# Process-wide, because metrics cover the loops of the whole process. The mutex is held while the
# set is changed or copied; no thread owns the set, so mail cannot replace the mutex.
_adding: Final = threading.Lock()
_watched: Final[weakref.WeakSet[LoopStalls]] = weakref.WeakSet()


def loop_stalls() -> dict[str, LoopStalls]:
    """Return the stalls of this process's loops by name; if two share a name, the worse ones."""
    by_name: dict[str, LoopStalls] = {}
    with _adding:
        watched = tuple(_watched)
    for stalls in sorted(watched, key=lambda one: one.max_ms):
        by_name[stalls.loop] = stalls
    return by_name


def stall_samples(role: str) -> Iterator[Sample]:
    """Yield the metrics of this process's loops."""
    for name, stalls in sorted(loop_stalls().items()):
        yield from samples_of(role, name, stalls.max_ms, stalls.over_50_ms)


def samples_of(role: str, loop: str, max_ms: float, over_50_ms: float) -> Iterator[Sample]:
    """Yield the metrics of one loop."""
    labels = (("loop", loop), ("role", role))
    yield Sample(
        "penstock_loop_stall_ms_max", "gauge", "Longest stall of an event loop", labels, max_ms
    )
    yield Sample(
        "penstock_loop_stall_ms_over_50_total",
        "counter",
        "Stalls of an event loop that lasted more than 50 ms",
        labels,
        float(over_50_ms),
    )


class _TimedSelector(selectors.DefaultSelector):
    """Measures the time from its return to its next call: one iteration of the loop."""

    def __init__(self, stalls: LoopStalls) -> None:
        super().__init__()
        self._stalls = stalls
        self._returned_s: float | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._returned_s is not None:
            self._stalls.record(1000 * (time.monotonic() - self._returned_s))
        try:
            return super().select(timeout)
        finally:
            self._returned_s = time.monotonic()


def watched_loop(name: str) -> asyncio.AbstractEventLoop:
    """Return a new asyncio loop whose stalls are measured."""
    return asyncio.SelectorEventLoop(_TimedSelector(LoopStalls(name)))


class LoopTicker:
    """Measures the stalls of any loop by a timer that fires late.

    Args:
        stalls: Receives the measurements.
        loop: A loop of any kind.
    """

    def __init__(self, stalls: LoopStalls, loop: asyncio.AbstractEventLoop) -> None:
        self._stalls = stalls
        self._loop = loop
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start measuring; on the loop."""
        self._due_s = time.monotonic() + _TICK_S
        self._timer = self._loop.call_later(_TICK_S, self._tick)

    def stop(self) -> None:
        """Stop measuring; on the loop. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._stalls.record(1000 * max(0.0, time.monotonic() - self._due_s))
        self.start()
