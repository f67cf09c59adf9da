"""The thread on which all listeners are called, one call after the other."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.core.threads import OnDeath, OwnedThread

if TYPE_CHECKING:
    from penstock.core.clock import Clock

logger = logging.getLogger(__name__)

Call = Callable[[], None]


class CallThread:
    """Makes calls in the order they were asked for, and some when their time has come.

    Its mutex guards the two queues: who asks is on any thread, and never waits for a call.
    What waits is bounded by how often nodes come and go.

    Args:
        clock: Time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._calls: deque[Call] = deque()
        self._later: list[tuple[float, int, Call]] = []
        self._numbers = itertools.count()
        self._stopped = False
        self._thread = OwnedThread("discovery calls", self._run, on_death=OnDeath.RESTART)

    def start(self) -> None:
        """Begin to call; what was asked for before is not lost."""
        self._thread.start()

    def stop(self) -> None:
        """Call nobody any more; returns when the call that runs has ended."""
        self._thread.expect_end()
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def call(self, call: Call) -> None:
        """Make a call after those that were asked for before."""
        with self._changed:
            self._calls.append(call)
            self._changed.notify_all()

    def call_later(self, delay_s: float, call: Call) -> None:
        """Make a call when some time has passed."""
        with self._changed:
            at_s = self._clock.monotonic_s() + delay_s
            heapq.heappush(self._later, (at_s, next(self._numbers), call))
            self._changed.notify_all()

    def _next(self) -> Call | None:
        with self._changed:
            while not self._stopped:
                if self._calls:
                    return self._calls.popleft()
                wait_s = None
                if self._later:
                    wait_s = self._later[0][0] - self._clock.monotonic_s()
                    if wait_s <= 0:
                        return heapq.heappop(self._later)[2]
                self._clock.wait(self._changed, wait_s)
        return None

    def _run(self) -> None:
        while (call := self._next()) is not None:
            # The documented top-level boundary: one listener's fault is not the others'.
            try:
                call()
            except Exception:
                logger.exception("a listener failed; it hears of the next change as well")
