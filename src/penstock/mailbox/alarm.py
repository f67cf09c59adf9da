"""The one alarm of a mailbox: what its thread is to do at some time, between mails.

A mailbox thread so keeps its own timers: it needs no timer thread, and a virtual clock moves them.
Owns when it is due. Does not own what is done then (`timers`), nor the sleep (`taskmailbox`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock

# Float arithmetic on deadlines may miss by a hair; a timer is due that much early.
HAIR_S: Final = 1e-6
_NEVER_S: Final = math.inf


class Alarm:
    """Rings once the clock is there, when it is looked at; on the mailbox thread.

    Args:
        clock: Tells the time.
        check_thread: Raises `WrongThread` on any thread but the mailbox's.

    Attributes:
        at_s: When it is due on the monotonic clock; infinite if none is set. From any thread.
    """

    __slots__ = ("_check_thread", "_clock", "_ring", "at_s")

    def __init__(self, clock: Clock, check_thread: Callable[[], None]) -> None:
        self._clock = clock
        self._check_thread = check_thread
        self._ring: Callable[[], None] | None = None
        self.at_s = _NEVER_S

    def set(self, at_s: float, ring: Callable[[], None]) -> None:
        """Call `ring` once the monotonic time is there, instead of what was set before.

        Raises:
            WrongThread: The caller is not the mailbox thread.
        """
        self._check_thread()
        self.at_s = at_s
        self._ring = ring

    def cancel(self) -> None:
        """Set none.

        Raises:
            WrongThread: The caller is not the mailbox thread.
        """
        self._check_thread()
        self.at_s = _NEVER_S

    def left_s(self) -> float | None:
        """Return how long it is until it is due; None if none is set."""
        if self.at_s == _NEVER_S:
            return None
        return max(0.0, self.at_s - self._clock.monotonic_s())

    def ring_if_due(self) -> None:
        """Ring if it is time; whoever is called sets the next one."""
        if (
            self.at_s != _NEVER_S
            and self._ring is not None
            and self._clock.monotonic_s() >= self.at_s - HAIR_S
        ):
            self._ring()
