"""How long mail waits, measured by a mail of its own every so often.

Owns when the next measure is made. Does not own the histogram (`metrics`), nor the timers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.core.metrics import Histogram
    from penstock.mailbox.timers import MailboxTimers


class LatencyProbe:
    """Observes the time from when a mail should run to when it does; on the mailbox thread.

    Args:
        timers: Post its mail.
        clock: Theirs.
        latency: Takes what is observed, in seconds.
        interval_ms: From one measure to the next; 0: none is made.

    Attributes:
        started: There is nothing left to start.

    Raises:
        InvalidRequest: The interval is negative, infinite or NaN.
    """

    __slots__ = ("_clock", "_interval_ms", "_latency", "_timers", "started")

    def __init__(
        self, timers: MailboxTimers, clock: Clock, latency: Histogram, interval_ms: int
    ) -> None:
        self._timers = timers
        self._clock = clock
        self._latency = latency
        self._interval_ms = interval_ms
        if not 0 <= interval_ms < math.inf:
            raise InvalidRequest(
                f"latency_probe_interval_ms is {interval_ms}: give milliseconds, or 0 for no probe"
            )
        self.started = interval_ms == 0

    def start(self) -> None:
        """Begin to measure; once."""
        self.started = True
        self._schedule()

    def _schedule(self) -> None:
        def observe() -> None:
            # From when it was due, not from when it was posted: a mail that held the thread for
            # a second also held back the posting.
            self._latency.observe(max(0.0, self._clock.monotonic_s() - timer.due_s))
            self._schedule()

        timer = self._timers.schedule_after(self._interval_ms, observe, "latency probe")
