"""Metrics of a mailbox thread: idle, back-pressured and busy time, and mail latency.

`MailboxMetrics` owns the counters and period timers; only the mailbox thread changes them, any
thread may read them. `LatencyProbe` posts a mail at an interval and observes the time from when
it is due until it runs; it runs on the mailbox thread and does not own the histogram or the
timers.

Invariant: idle, back-pressured and busy time add up to the run time of the loop; the time
inside a mail is busy time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest
from penstock.core.metrics import Histogram

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.core.metrics import HistogramValue, MetricRegistry
    from penstock.mailbox.task_mailbox import TaskMailbox
    from penstock.mailbox.timers import MailboxTimers


class PeriodTimer:
    """Sum of periods of one kind. The mailbox thread starts and stops it; any thread reads it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # One tuple, so that a reader never counts a period twice: (sum so far, start of this one).
        self._mark: tuple[float, float | None] = (0.0, None)

    def start(self) -> None:
        """Begin a period; no effect during one."""
        total_s, since_s = self._mark
        if since_s is None:
            self._mark = (total_s, self._clock.monotonic_s())

    def stop(self) -> None:
        """End the period; no effect outside one."""
        total_s, since_s = self._mark
        if since_s is not None:
            self._mark = (total_s + self._clock.monotonic_s() - since_s, None)

    def total_s(self, now_s: float | None = None) -> float:
        """Return the sum of all periods up to now, the running one included."""
        total_s, since_s = self._mark
        if since_s is None:
            return total_s
        at_s = self._clock.monotonic_s() if now_s is None else now_s
        return total_s + max(0.0, at_s - since_s)


@dataclass(frozen=True, slots=True)
class MailboxStatistics:
    """Values of a mailbox's metrics; times are seconds since its loop first ran."""

    mails_run: int
    mails_dropped: int
    mails_waiting: int
    loop_s: float
    idle_s: float
    back_pressured_s: float
    busy_s: float
    latency: HistogramValue


class MailboxMetrics:
    """The counters and period timers of one mailbox.

    `idle` and `back_pressured` are timers that a default action passes to `suspend_default_action`;
    `mails_run` counts mails run by the loop or by drain, not those run inside a yield.
    """

    def __init__(self, mailbox: TaskMailbox, clock: Clock) -> None:
        self._mailbox = mailbox
        self._clock = clock
        self.idle: Final = PeriodTimer(clock)
        self.back_pressured: Final = PeriodTimer(clock)
        self.loop: Final = PeriodTimer(clock)
        self.latency: Final = Histogram()
        self.mails_run = 0
        self.mails_dropped = 0

    def statistics(self) -> MailboxStatistics:
        """Return the current values."""
        # Read the parts before the total: then a part that grows meanwhile cannot exceed the total.
        now_s = self._clock.monotonic_s()
        idle_s = self.idle.total_s(now_s)
        back_pressured_s = self.back_pressured.total_s(now_s)
        loop_s = max(self.loop.total_s(), idle_s + back_pressured_s)
        return MailboxStatistics(
            mails_run=self.mails_run,
            mails_dropped=self.mails_dropped,
            mails_waiting=self._mailbox.size,
            loop_s=loop_s,
            idle_s=idle_s,
            back_pressured_s=back_pressured_s,
            busy_s=loop_s - idle_s - back_pressured_s,
            latency=self.latency.value,
        )

    def publish(self, registry: MetricRegistry) -> None:
        """Register the metrics, labelled with the mailbox's name."""
        name = self._mailbox.name
        registry.read(
            "counter",
            "penstock_mailbox_mails_total",
            "Mails run by the loop",
            lambda: self.mails_run,
            mailbox=name,
        )
        registry.read(
            "gauge",
            "penstock_mailbox_size",
            "Waiting mails",
            lambda: self._mailbox.size,
            mailbox=name,
        )
        for kind in ("idle", "back_pressured", "busy"):
            registry.read(
                "counter",
                f"penstock_mailbox_{kind}_seconds_total",
                f"Time in which the mailbox thread was {kind.replace('_', '-')}",
                lambda part=f"{kind}_s": float(getattr(self.statistics(), part)),  # type: ignore[misc]
                mailbox=name,
            )


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
            # Measure from the due time and not from the posting: a mail that ran for a second also
            # delayed the posting.
            self._latency.observe(max(0.0, self._clock.monotonic_s() - timer.due_s))
            self._schedule()

        timer = self._timers.schedule_after(self._interval_ms, observe, "latency probe")
