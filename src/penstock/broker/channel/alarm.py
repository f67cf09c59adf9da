"""One timer of the event loop, set to the earliest of the requested times."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Alarm:
    """Calls a function when it is due.

    Args:
        ring: The function, called on the event loop; it sets the alarm again.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def set(self, wanted_ms: int | None, now_ms: int) -> None:
        """Ring at a wall time, or earlier if an earlier time was set; None: not at all."""
        if wanted_ms is None:
            self.cancel()
            return
        if self._timer is not None and now_ms < self._timer_ms <= wanted_ms:
            return  # the callback sets the next alarm
        delay_s = max(1, wanted_ms - now_ms) / 1000
        # The earlier timer stays until the new one exists, in case the loop raises.
        timer = asyncio.get_running_loop().call_later(delay_s, self._on_time)
        self.cancel()
        self._timer, self._timer_ms = timer, wanted_ms

    def cancel(self) -> None:
        """Cancel the alarm."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_time(self) -> None:
        self._timer = None
        self._ring()
