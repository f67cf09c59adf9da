"""The single alarm of a mailbox: a call on its thread at some time, between mails.

With it, a mailbox thread runs its own timers: it needs no timer thread, and a virtual clock drives
them. Owns the due time. Does not own the call (`timers`), nor the sleep (`task_mailbox`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock

# Tolerance for rounding errors in deadlines: a timer is due this much earlier.
HAIR_S: Final = 1e-6
_NEVER_S: Final = math.inf


class Alarm:
    """Calls a function at the first check after its due time; on the mailbox thread.

    Args:
        clock: The clock.
        check_thread: Raises `WrongThread` on any thread other than the mailbox's.

    Attributes:
        at_s: Due time on the monotonic clock; infinite if none is set. From any thread.
    """

    __slots__ = ("_check_thread", "_clock", "_ring", "at_s")

    def __init__(self, clock: Clock, check_thread: Callable[[], None]) -> None:
        self._clock = clock
        self._check_thread = check_thread
        self._ring: Callable[[], None] | None = None
        self.at_s = _NEVER_S

    def set(self, at_s: float, ring: Callable[[], None]) -> None:
        """Call `ring` once the monotonic time is reached; replaces an earlier setting.

        Raises:
            WrongThread: The caller is not the mailbox thread.
        """
        self._check_thread()
        self.at_s = at_s
        self._ring = ring

    def cancel(self) -> None:
        """Cancel the alarm.

        Raises:
            WrongThread: The caller is not the mailbox thread.
        """
        self._check_thread()
        self.at_s = _NEVER_S

    def left_s(self) -> float | None:
        """Return the time until it is due; None if none is set."""
        if self.at_s == _NEVER_S:
            return None
        return max(0.0, self.at_s - self._clock.monotonic_s())

    def ring_if_due(self) -> None:
        """Ring if it is due; the called function sets the next alarm."""
        if (
            self.at_s != _NEVER_S
            and self._ring is not None
            and self._clock.monotonic_s() >= self.at_s - HAIR_S
        ):
            self._ring()
