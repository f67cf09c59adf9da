"""The wall time of a channel, and the shift of its deadlines when the clock is set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.broker.channel.state.state import ChannelState
    from penstock.core.clock import Clock

_STEP_MS: Final = 1_000  # smaller steps are gradual adjustments of the clock


class WallTime:
    """Wall clock of a channel.

    Args:
        clock: The clock, which may be set at any time.
        state: State whose deadlines are shifted.

    Attributes:
        last_ms: The wall time that was returned last.
    """

    def __init__(self, clock: Clock, state: ChannelState) -> None:
        self._clock = clock
        self._state = state
        self.last_ms, self._last_s = clock.now_ms(), clock.monotonic_s()

    def now_ms(self) -> int:
        """Return the wall time; shift the deadlines first if the clock was set."""
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic_s()
        step_ms = now_ms - self.last_ms - round((now_s - self._last_s) * 1000)
        if abs(step_ms) >= _STEP_MS:
            # Consumers keep their full time-out. Waiting messages are due no later than requested:
            # an early delivery does less harm than one that is hours late.
            self._state.in_flight.shift(step_ms)
            self._state.retries.shift(min(step_ms, 0))
        self.last_ms, self._last_s = now_ms, now_s
        return now_ms
