"""Sleep and wake-up of a mailbox thread.

Owns the choice between two equivalent implementations: a raw lock used as a binary semaphore, which
wakes a thread in a few microseconds, and a condition under a passed-in clock, so that a virtual
clock can end the wait. Invariant: a `set` after the last `wait` returned makes the next `wait`
return at once; a `wait` may also return spuriously, so callers check again.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.clock import SystemClock

if TYPE_CHECKING:
    from penstock.core.clock import Clock

# A safety net: a put wakes the owner, as proved in `TaskMailbox`. But an asynchronous exception in
# the putting thread, such as Ctrl-C, may come between its append and its wake-up call, and then the
# periodic check finds the mail.
_LOOK_AGAIN_S: Final = 1.0


class Wakeup(Protocol):
    """One thread waits, any thread sets."""

    def set(self) -> None:
        """Let the current wait, or otherwise the next one, return."""
        ...

    def wait(self, timeout_s: float | None) -> None:
        """Wait until set or until the time-out; may return early."""
        ...


class LockWakeup:
    """A raw lock as a binary semaphore: locked means "not set"."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Unlock; no effect if it is set already."""
        with suppress(RuntimeError):
            self._lock.release()

    def wait(self, timeout_s: float | None) -> None:
        """Lock again, which waits for a `set`."""
        limit = _LOOK_AGAIN_S if timeout_s is None else min(timeout_s, _LOOK_AGAIN_S)
        self._lock.acquire(timeout=limit)


class ClockWakeup:
    """A condition whose time is that of a clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._condition = threading.Condition()
        self._is_set = False

    def set(self) -> None:
        """Notify the waiting thread."""
        with self._condition:
            self._is_set = True
            self._condition.notify()

    def wait(self, timeout_s: float | None) -> None:
        """Wait under the clock."""
        with self._condition:
            if not self._is_set:
                self._clock.wait(self._condition, timeout_s)
            self._is_set = False


def wakeup_for(clock: Clock) -> Wakeup:
    """Return the fast implementation for the machine's clock, the other for any other clock."""
    return LockWakeup() if isinstance(clock, SystemClock) else ClockWakeup(clock)
