"""One timer of the event loop, set to the earliest of the times that are asked for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Alarm:
    """Calls back when it is time.

    Args:
        ring: What it calls, on the event loop; who is called sets it again.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def set(self, wanted_ms: int | None, now_ms: int) -> None:
        """Ring at a wall time, or earlier if it was set so before; None: not at all."""
        if wanted_ms is None:
            self.cancel()
            return
        if self._timer is not None and now_ms < self._timer_ms <= wanted_ms:
            return  # the callback sets the next alarm
        delay_s = max(1, wanted_ms - now_ms) / 1000
        # The earlier one stays until there is another, should the loop raise.
        timer = asyncio.get_running_loop().call_later(delay_s, self._on_time)
        self.cancel()
        self._timer, self._timer_ms = timer, wanted_ms

    def cancel(self) -> None:
        """Do not ring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_time(self) -> None:
        self._timer = None
        self._ring()
