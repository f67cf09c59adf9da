"""Latency of mail, measured periodically by a mail of its own.

Owns the schedule of measurements. Does not own the histogram (`metrics`), nor the timers.
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
    """Measures the time from the due time of a mail to its run; on the mailbox thread.

    Args:
        timers: Post its mail.
        clock: The clock of the timers.
        latency: Receives the measurements, in seconds.
        interval_ms: Time between measurements; 0 disables them.

    Attributes:
        started: The probe was started, or is disabled.

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
        """Start measuring; call it once."""
        self.started = True
        self._schedule()

    def _schedule(self) -> None:
        def observe() -> None:
            # From the due time, not from the posting: a mail that held the thread for a second also
            # delayed the posting.
            self._latency.observe(max(0.0, self._clock.monotonic_s() - timer.due_s))
            self._schedule()

        timer = self._timers.schedule_after(self._interval_ms, observe, "latency probe")
