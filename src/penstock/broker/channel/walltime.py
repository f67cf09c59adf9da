"""The wall time that a channel goes by, and what becomes of its deadlines when somebody sets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.broker.channel.state.state import ChannelState
    from penstock.core.clock import Clock

_STEP_MS: Final = 1_000  # smaller ones are a clock that is being adjusted


class WallTime:
    """Tells a channel the time.

    Args:
        clock: The clock, which may be set at any time.
        state: Whose deadlines are moved then.

    Attributes:
        last_ms: The wall time that was told last.
    """

    def __init__(self, clock: Clock, state: ChannelState) -> None:
        self._clock = clock
        self._state = state
        self.last_ms, self._last_s = clock.now_ms(), clock.monotonic_s()

    def now_ms(self) -> int:
        """Return the wall time; when somebody has set the clock, deadlines are moved first."""
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic_s()
        step_ms = now_ms - self.last_ms - round((now_s - self._last_s) * 1000)
        if abs(step_ms) >= _STEP_MS:
            # Consumers have the time that they were given. What waits is due no later than was
            # asked for: early does less harm than hours late.
            self._state.in_flight.shift(step_ms)
            self._state.retries.shift(min(step_ms, 0))
        self.last_ms, self._last_s = now_ms, now_s
        return now_ms
