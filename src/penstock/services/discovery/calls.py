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
    """Runs calls in the order in which they were submitted, and delayed calls when due.

    Its mutex guards the two queues: any thread may submit, and never waits for a call. The number
    of queued calls is bounded by how often nodes appear and disappear.

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
        """Start to run calls, including those submitted before."""
        self._thread.start()

    def stop(self) -> None:
        """Run no further calls; return when the current call has ended."""
        self._thread.expect_end()
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def call(self, call: Call) -> None:
        """Run a call after those submitted before."""
        with self._changed:
            self._calls.append(call)
            self._changed.notify_all()

    def call_later(self, delay_s: float, call: Call) -> None:
        """Run a call after a delay."""
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
            # The documented top-level boundary: an error of one listener must not affect others.
            try:
                call()
            except Exception:
                logger.exception("a listener failed; it will be called for the next change")
