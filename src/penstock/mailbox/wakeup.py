"""How a mailbox thread sleeps and is woken.

Owns the choice between two ways that mean the same: a raw lock used as a binary semaphore, which
wakes a thread in a few microseconds, and a condition under a passed-in clock, which lets a virtual
clock end the wait. Invariant: a `set` after the last `wait` returned makes the next `wait` return
at once, and a `wait` may also return for no reason, so callers look again.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.clock import SystemClock

if TYPE_CHECKING:
    from penstock.core.clock import Clock

# Nothing is known to need it: a put announces itself by proof (see `TaskMailbox`). But an exception
# thrown into the putting thread from outside, as Ctrl-C is, may strike between its append and its
# wake-up call, and then it is this look that finds the mail.
_LOOK_AGAIN_S: Final = 1.0


class Wakeup(Protocol):
    """One thread waits, any thread sets."""

    def set(self) -> None:
        """Let the wait that runs now, or else the next one, return."""
        ...

    def wait(self, timeout_s: float | None) -> None:
        """Wait until set, until the time is over, or for no reason less long."""
        ...


class LockWakeup:
    """A raw lock as a binary semaphore: locked means "not set"."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Unlock; setting twice is setting once."""
        with suppress(RuntimeError):
            self._lock.release()

    def wait(self, timeout_s: float | None) -> None:
        """Lock again, which waits for a `set`."""
        limit = _LOOK_AGAIN_S if timeout_s is None else min(timeout_s, _LOOK_AGAIN_S)
        self._lock.acquire(timeout=limit)


class ClockWakeup:
    """A condition whose time is the clock's."""

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
    """Return the fast one under the machine's clock, the other under any other clock."""
    return LockWakeup() if isinstance(clock, SystemClock) else ClockWakeup(clock)
