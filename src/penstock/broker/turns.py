"""Long work on the event loop, done a little at a time, so that others are served in between."""

from __future__ import annotations

import asyncio


class Turns:
    """Counts steps, and gives the turn of the loop away after so many.

    Args:
        steps_per_turn: How many take about 2 ms.
    """

    def __init__(self, steps_per_turn: int) -> None:
        self._steps_per_turn = steps_per_turn
        self._done = 0

    async def step(self, count: int = 1) -> None:
        """Note that so many steps were done."""
        self._done += count
        if self._done >= self._steps_per_turn:
            self._done = 0
            await asyncio.sleep(0)
