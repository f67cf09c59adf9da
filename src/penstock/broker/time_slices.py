"""Cooperative time slices for long work on the event loop."""

from __future__ import annotations

import asyncio


class TimeSlices:
    """Counts steps, and yields to the loop after a number of them.

    Args:
        steps_per_turn: Number of steps that take about 2 ms.
    """

    def __init__(self, steps_per_turn: int) -> None:
        self._steps_per_turn = steps_per_turn
        self._done = 0

    async def step(self, count: int = 1) -> None:
        """Count completed steps, and yield to the loop if the slice is used up."""
        self._done += count
        if self._done >= self._steps_per_turn:
            self._done = 0
            await asyncio.sleep(0)
