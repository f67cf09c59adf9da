"""How long tasks have been refused what they ask for again and again.

A task that is refused asks again in a while. Nobody tells when it gives up or ends, so a pause that
no task makes ends its wait, too. Any thread: the mutex guards the table, and is held around a few
lines.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.core.clock import Clock

_PAUSE_MAX_S: Final = 60.0
"""Tasks ask again much sooner than this."""

_SWEEP_AT: Final = 1_000
"""Waits that are remembered before those that ended are looked for."""


@dataclass(slots=True)
class _Wait:
    """When a task was refused first and last."""

    first_s: float
    last_s: float


class Patience:
    """Who waits since when.

    Args:
        clock: Measures the waits.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._waits: dict[str, _Wait] = {}
        self._sweep_at = _SWEEP_AT

    def refused(self, task_id: str) -> int:
        """Note that a task is refused once more; return for how long it has been, in ms."""
        now_s = self._clock.monotonic_s()
        with self._mutex:
            if len(self._waits) >= self._sweep_at:
                self._sweep(now_s)
                # Not again for each of many that do wait.
                self._sweep_at = max(_SWEEP_AT, 2 * len(self._waits))
            wait = self._waits.get(task_id)
            if wait is None or now_s - wait.last_s > _PAUSE_MAX_S:
                wait = self._waits[task_id] = _Wait(now_s, now_s)
            wait.last_s = now_s
            return int((now_s - wait.first_s) * 1000)

    def served(self, task_id: str) -> None:
        """Forget a task that got what it asked for, or was told to give up."""
        with self._mutex:
            self._waits.pop(task_id, None)

    def _sweep(self, now_s: float) -> None:
        gone = [i for i, wait in self._waits.items() if now_s - wait.last_s > _PAUSE_MAX_S]
        for task_id in gone:
            del self._waits[task_id]
