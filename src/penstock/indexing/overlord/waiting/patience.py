"""Measures how long tasks have been refused repeated requests.

A refused task retries after a while. A task that stops asking or ends is not reported, so a pause
longer than any between retries also ends its wait. Any thread: the mutex guards the table and is
held for a few statements only.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.core.clock import Clock

_PAUSE_MAX_S: Final = 60.0
"""Upper bound of the time between two retries of a task."""

_SWEEP_AT: Final = 1_000
"""Number of waits at which those that ended are removed."""


@dataclass(slots=True)
class _Wait:
    """Times of the first and the last refusal of a task."""

    first_s: float
    last_s: float


class Patience:
    """The waits of tasks that are being refused.

    Args:
        clock: Measures the waits.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._waits: dict[str, _Wait] = {}
        self._sweep_at = _SWEEP_AT

    def refused(self, task_id: str) -> int:
        """Record a refusal; return for how long the task has been refused, in ms."""
        now_s = self._clock.monotonic_s()
        with self._mutex:
            if len(self._waits) >= self._sweep_at:
                self._sweep(now_s)
                # Raise the threshold, so that many active waits are not scanned each time.
                self._sweep_at = max(_SWEEP_AT, 2 * len(self._waits))
            wait = self._waits.get(task_id)
            if wait is None or now_s - wait.last_s > _PAUSE_MAX_S:
                wait = self._waits[task_id] = _Wait(now_s, now_s)
            wait.last_s = now_s
            return int((now_s - wait.first_s) * 1000)

    def served(self, task_id: str) -> None:
        """Delete the wait of a task whose request was granted, or failed for good."""
        with self._mutex:
            self._waits.pop(task_id, None)

    def _sweep(self, now_s: float) -> None:
        gone = [i for i, wait in self._waits.items() if now_s - wait.last_s > _PAUSE_MAX_S]
        for task_id in gone:
            del self._waits[task_id]
