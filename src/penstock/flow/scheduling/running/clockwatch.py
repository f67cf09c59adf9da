"""Detection of a wall clock that was set, or of a machine that was suspended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.mailbox.timers import MailboxTimers

# Interval of the check, and tolerated difference of the wall clock.
_EVERY_MS: Final = 10_000
_SLACK_MS: Final = 500


class ClockWatch:
    """Compares the wall clock with the monotonic clock at an interval.

    Args:
        timers: Timers of a mailbox, on whose thread the check runs.
        clock: Clock of the mailbox.
        was_set: Called when their difference changed.
    """

    def __init__(self, timers: MailboxTimers, clock: Clock, was_set: Callable[[], None]) -> None:
        self._clock = clock
        self._was_set = was_set
        self._ahead_ms = self._ahead_now_ms()
        self._timer = timers.schedule_every(
            _EVERY_MS, self._look, "check whether the wall clock was set"
        )

    def cancel(self) -> None:
        """Stop checking."""
        self._timer.cancel()

    def _ahead_now_ms(self) -> float:
        return self._clock.now_ms() - self._clock.monotonic_s() * 1000

    def _look(self) -> None:
        ahead_ms = self._ahead_now_ms()
        if abs(ahead_ms - self._ahead_ms) >= _SLACK_MS:
            self._ahead_ms = ahead_ms
            self._was_set()
