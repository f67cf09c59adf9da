"""Clocks, which are passed in: the one module that reads the machine's clocks."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Interface to time. The virtual clock is in ``penstock.testing``."""

    def now_ms(self) -> int:
        """Return the wall time in milliseconds since 1970-01-01T00:00:00Z."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds that never decrease, from an arbitrary start."""
        ...

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        """Wait on a held condition; return False if the time-out came first."""
        ...


def pause(clock: Clock, seconds: float) -> None:
    """Wait until a clock has advanced by a duration; nothing else ends the wait."""
    condition = threading.Condition()
    with condition:
        clock.wait(condition, seconds)


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        """Return the wall time in epoch milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        """Wait on a held condition; return False if the time-out came first."""
        return condition.wait(timeout_s)
