"""Timers whose callbacks arrive as mail.

Owns the heap of timers, which belongs to the mailbox thread; other threads add to it by mail. There
is no timer thread: the mailbox sleeps at most until the next timer and posts it between mails, so a
virtual clock drives timers, too, and a callback never runs concurrently with a mail.
Invariants: due timers are posted in the order of their due time, then of their creation; a
cancelled timer does not run, even if its mail waits already; none fires after `quiesce`. After any
exception, each timer whose scheduling succeeded is still posted when it is due, and no other is.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.errors import Closed, InvalidRequest
from penstock.mailbox.alarm import HAIR_S
from penstock.mailbox.mail import MIN_PRIORITY, Mail, MailOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.mailbox.task_mailbox import TaskMailbox

_PRUNE_AT_LEAST: Final = 64


class Timer:
    """A callback that is due at some time; created by `MailboxTimers`."""

    __slots__ = (
        "_timers",
        "callback",
        "cancelled",
        "description",
        "due_s",
        "fixed_delay",
        "interval_s",
        "priority",
    )

    def __init__(
        self,
        timers: MailboxTimers,
        callback: Callable[[], object],
        due_s: float,
        *,
        interval_s: float,
        fixed_delay: bool,
        description: str,
        priority: int,
    ) -> None:
        self._timers = timers
        self.callback: Final = callback
        self.due_s = due_s
        self.interval_s: Final = interval_s
        self.fixed_delay: Final = fixed_delay
        self.description: Final = description
        self.priority: Final = priority
        self.cancelled = False

    def cancel(self) -> None:
        """Prevent it from running, from any thread; a running callback is not stopped."""
        self.cancelled = True

    def __call__(self) -> None:
        """Run the callback on the mailbox thread; then reschedule a repeated one."""
        if self.cancelled:
            return
        self.callback()
        if self.interval_s and not self.cancelled:
            self._timers.repeat(self)


class _Entry(NamedTuple):
    """A timer in the heap. Its number is unique, so that comparisons never reach the timer.

    A comparison of tuples cannot raise; an exception in a comparison would leave the heap
    unordered.
    """

    due_s: float
    number: int
    timer: Timer


class MailboxTimers:
    """The timers of one mailbox; schedule from any thread.

    `schedule_at` reads the wall clock once, when it is called: setting the clock later does not
    move the timer.
    """

    def __init__(self, mailbox: TaskMailbox, clock: Clock) -> None:
        self._mailbox = mailbox
        self._clock = clock
        self._heap: list[_Entry] = []
        self._next_number = 0
        self._prune_at = _PRUNE_AT_LEAST
        self._quiesced = False

    @property
    def pending(self) -> int:
        """Number of timers that are still to be posted, without cancelled ones."""
        return sum(not entry.timer.cancelled for entry in self._heap)

    def schedule_after(
        self,
        delay_ms: float,
        callback: Callable[[], object],
        description: str = "",
        *,
        priority: int = MIN_PRIORITY,
    ) -> Timer:
        """Run the callback as mail after a delay; at or below 0, as soon as possible.

        After `quiesce`, the returned timer is cancelled and never fires.

        Raises:
            InvalidRequest: The delay is not a finite number.
        """
        return self._add(
            callback, _finite("delay", delay_ms, description), 0, description, priority
        )

    def schedule_at(
        self,
        epoch_ms: int,
        callback: Callable[[], object],
        description: str = "",
        *,
        priority: int = MIN_PRIORITY,
    ) -> Timer:
        """Run the callback as mail at a wall time. Raises and behaves as `schedule_after`."""
        delay_ms = epoch_ms - self._clock.now_ms()
        return self.schedule_after(delay_ms, callback, description, priority=priority)

    def schedule_every(
        self,
        interval_ms: float,
        callback: Callable[[], object],
        description: str = "",
        *,
        first_after_ms: float | None = None,
        priority: int = MIN_PRIORITY,
    ) -> Timer:
        """Run the callback repeatedly, by default first after one interval.

        The rate is fixed: due times are multiples of the interval after the first; those that pass
        while the callback waits or runs are skipped, so at most one mail of the timer waits. A
        callback that raises ends it.

        Raises:
            InvalidRequest: The interval is not a finite number above 0, or the first delay is not a
                finite number.
        """
        _above_zero("interval", interval_ms, description)
        first_ms = interval_ms if first_after_ms is None else first_after_ms
        _finite("first delay", first_ms, description)
        return self._add(callback, first_ms, interval_ms, description, priority)

    def schedule_with_delay(
        self,
        delay_ms: float,
        callback: Callable[[], object],
        description: str = "",
        *,
        first_after_ms: float | None = None,
        priority: int = MIN_PRIORITY,
    ) -> Timer:
        """Run the callback repeatedly, each time one delay after the end of the last run.

        The delay is fixed, the rate is not: after a callback that waited or ran for long, the next
        call still comes one delay later. The first call comes after one delay by default. A
        callback that raises ends it.

        Raises:
            InvalidRequest: The delay is not a finite number above 0, or the first delay is not a
                finite number.
        """
        _above_zero("delay", delay_ms, description)
        first_ms = delay_ms if first_after_ms is None else first_after_ms
        _finite("first delay", first_ms, description)
        return self._add(callback, first_ms, delay_ms, description, priority, fixed_delay=True)

    def repeat(self, timer: Timer) -> None:
        """Schedule the next run of a repeated timer after one run; on the mailbox thread."""
        now_s = self._clock.monotonic_s()
        if timer.fixed_delay:
            timer.due_s = now_s + timer.interval_s
        else:
            late_s = max(0.0, now_s - timer.due_s)
            timer.due_s += (math.floor(late_s / timer.interval_s + HAIR_S) + 1) * timer.interval_s
        self._register(timer)

    def quiesce(self) -> None:
        """Cancel all timers; on the mailbox thread. Mails posted already still run."""
        self._mailbox.alarm.cancel()  # first, because it raises on a wrong thread
        self._quiesced = True
        for entry in self._heap:
            entry.timer.cancel()
        self._heap.clear()

    def _add(
        self,
        callback: Callable[[], object],
        delay_ms: float,
        interval_ms: float,
        description: str,
        priority: int,
        *,
        fixed_delay: bool = False,
    ) -> Timer:
        timer = Timer(
            self,
            callback,
            self._clock.monotonic_s() + max(0.0, delay_ms / 1000),
            interval_s=interval_ms / 1000,
            fixed_delay=fixed_delay,
            description=description or "timer callback",
            priority=priority,
        )
        if self._mailbox.is_mailbox_thread:
            self._register(timer)
            return timer
        register = Mail(
            lambda: self._register(timer),
            description="register timer: %s",
            arguments=(timer.description,),
            options=MailOptions.URGENT,
        )
        try:
            self._mailbox.put(register)
        except Closed:
            timer.cancel()
        return timer

    def _register(self, timer: Timer) -> None:
        if self._quiesced:
            timer.cancel()
            return
        if len(self._heap) >= self._prune_at:
            self._prune()
        number = self._next_number
        self._next_number += 1  # first: after an exception below, no other timer gets this number
        entry = _Entry(timer.due_s, number, timer)
        if not self._heap or entry < self._heap[0]:
            # First: without its alarm, a timer in the heap might never be posted. An alarm without
            # a timer does no harm.
            self._mailbox.alarm.set(timer.due_s, self._ring)
        heapq.heappush(self._heap, entry)

    def _prune(self) -> None:
        """Remove cancelled timers; the next pruning comes when the heap has doubled."""
        left = [entry for entry in self._heap if not entry.timer.cancelled]
        heapq.heapify(left)
        self._heap = left
        self._prune_at = max(_PRUNE_AT_LEAST, 2 * len(self._heap))

    def _ring(self) -> None:
        """Post due timers; the mailbox calls this on its thread."""
        now_s = self._clock.monotonic_s() + HAIR_S
        while self._heap and (self._heap[0].due_s <= now_s or self._heap[0].timer.cancelled):
            entry = heapq.heappop(self._heap)
            if not entry.timer.cancelled:
                try:
                    self._post(entry.timer)
                except BaseException:
                    heapq.heappush(self._heap, entry)  # posted at the next check
                    raise
        self._mailbox.alarm.set(self._heap[0].due_s if self._heap else math.inf, self._ring)

    def _post(self, timer: Timer) -> None:
        try:
            self._mailbox.put(Mail(timer, timer.priority, timer.description))
        except Closed:
            timer.cancel()


def _finite(what: str, value_ms: float, description: str) -> float:
    """Return a time; refuse NaN, which cannot be compared, and infinity."""
    if not math.isfinite(value_ms):
        raise InvalidRequest(f"timer {description!r}: {what} {value_ms} ms must be a finite number")
    return value_ms


def _above_zero(what: str, value_ms: float, description: str) -> None:
    if _finite(what, value_ms, description) <= 0:
        raise InvalidRequest(f"timer {description!r}: {what} {value_ms} ms must be above 0")
