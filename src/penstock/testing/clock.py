"""Time that passes only when a test advances it.

Owns the virtual clock. It starts at a fixed moment and moves only by `advance`. A thread that waits
on it returns when it is notified or when its deadline is reached. Invariant: time never goes back,
and a wait never ends by real time.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

# 2013-01-01T00:00:00Z: an arbitrary moment that is always the same.
DEFAULT_START_MS: Final = 1_356_998_400_000


class VirtualClock:
    """A `Clock` for tests and simulations; thread-safe.

    Its mutex guards the time and the list of waiters: it must work while mailbox threads sleep.

    Args:
        start_ms: The wall time at the start; monotonic time starts at 0.
    """

    def __init__(self, start_ms: int = DEFAULT_START_MS) -> None:
        self._start_ms = start_ms
        self._changed = threading.Condition()
        self._passed_us = 0
        self._waiters: list[tuple[int | None, threading.Condition]] = []

    def now_ms(self) -> int:
        """Return the virtual wall time."""
        return self._start_ms + self._passed_us // 1_000

    def monotonic_s(self) -> float:
        """Return the virtual seconds since the start."""
        return self._passed_us / 1_000_000

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        """Wait on a held condition; return False when the virtual time is over.

        As with any condition, check it again after True.
        """
        due_us = None if timeout_s is None else self._passed_us + round(timeout_s * 1_000_000)
        if due_us is not None and due_us <= self._passed_us:
            return False
        waiter = (due_us, condition)
        with self._changed:
            self._waiters.append(waiter)
            self._changed.notify_all()
        try:
            # The caller holds the condition until this wait releases it, and `advance` notifies
            # while holding it, so an advance after the line above is never missed.
            condition.wait()
        finally:
            with self._changed:
                self._waiters.remove(waiter)
                self._changed.notify_all()
        return due_us is None or self._passed_us < due_us

    def advance(self, seconds: float = 0.0, *, ms: int = 0) -> None:
        """Advance the time; stop at each deadline on the way, to wake its waiters.

        Raises:
            InvalidRequest: The time is negative.
        """
        target_us = self._passed_us + round(seconds * 1_000_000) + ms * 1_000
        if target_us < self._passed_us:
            raise InvalidRequest(f"a clock does not go back: advance by 0 or more, not {seconds} s")
        while True:
            with self._changed:
                due = [at for at, _ in self._waiters if at is not None]
                stop_us = min((at for at in due if at > self._passed_us), default=target_us)
                self._passed_us = min(stop_us, target_us)
                ready = [
                    condition
                    for at, condition in self._waiters
                    if at is not None and at <= self._passed_us
                ]
            for condition in ready:
                with condition:
                    condition.notify_all()
            if self._passed_us >= target_us:
                return

    def advance_to(self, monotonic_s: float) -> None:
        """Advance to a virtual monotonic time; no effect if it has passed."""
        self.advance(max(0.0, monotonic_s - self.monotonic_s()))

    @property
    def waiting(self) -> int:
        """Return how many threads wait on this clock."""
        with self._changed:
            return self._count()

    def wait_for_waiting(self, count: int, real_timeout_s: float = 60.0) -> None:
        """Wait, in real time, until a number of threads wait on this clock.

        Raises:
            Unavailable: They did not within the time limit.
        """
        self.wait_until(lambda: self._count() >= count, real_timeout_s)

    def wait_until(self, condition: Callable[[], bool], real_timeout_s: float = 60.0) -> None:
        """Wait, in real time, for a condition that changes when threads begin or end waits.

        Raises:
            Unavailable: It did not hold within the time limit.
        """
        with self._changed:
            if not self._changed.wait_for(condition, real_timeout_s):
                raise Unavailable(
                    f"after {real_timeout_s} s, {self._count()} threads wait on the "
                    "virtual clock, which is not what the test expects"
                )

    def _count(self) -> int:
        """Return how many threads wait for a deadline that has not passed, or without one."""
        now_us = self._passed_us
        return sum(at is None or at > now_us for at, _ in self._waiters)
