"""Run of a component: one or several triggers, with one commit at the end or one after each.

Owns the rules for the duration of a run, and the flag that it was abandoned. Does not own the
session: the implementation of `Schedulable.trigger` commits once `goes_on` returned False, and
begins another session while `repeats` returns True.

Invariants: a run is abandoned once, by the scheduler's thread. Only the thread of the run calls its
other methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.flow.scheduling.schedulable import Schedulable

# A processor that feeds itself must commit early: its input may be in its own loop.
_LOOP_SHARE: Final = 25
# Bound for clocks that do not advance, as in tests.
_REPEATED_MAX: Final = 100


class TimedRun:
    """`Run` with a duration; `goes_on` follows NiFi's rules.

    Args:
        component: Component whose work and room are checked.
        clock: Measures the duration.
        duration_ms: Maximum duration.
        is_wanted: Returns whether the component should still run; called on the run's thread.
        repeat_ms: How long further commits may begin; 0: only one commit.
    """

    __slots__ = (
        "_clock",
        "_component",
        "_is_wanted",
        "_repeat_ms",
        "_repeated",
        "_started_s",
        "duration_ms",
        "is_terminated",
    )

    def __init__(
        self,
        component: Schedulable,
        clock: Clock,
        duration_ms: int,
        is_wanted: Callable[[], bool],
        repeat_ms: int = 0,
    ) -> None:
        self._component = component
        self._clock = clock
        self._is_wanted = is_wanted
        self._started_s = clock.monotonic_s()
        self._repeat_ms = repeat_ms
        self._repeated = 0
        self.duration_ms: int = duration_ms
        self.is_terminated = False

    def begin(self) -> None:
        """Start measuring the duration."""
        self._started_s = self._clock.monotonic_s()

    def goes_on(self, *, yielded: bool = False, loop_is_full: bool = False) -> bool:
        """Return whether another trigger follows before the commit."""
        if yielded or not self.duration_ms or self.is_terminated or not self._is_wanted():
            return False
        elapsed_ms = (self._clock.monotonic_s() - self._started_s) * 1000
        if elapsed_ms > self.duration_ms:
            return False
        if loop_is_full and elapsed_ms > self.duration_ms / _LOOP_SHARE:
            return False
        return self._has_more()

    def repeats(self, *, yielded: bool = False) -> bool:
        """Return whether another trigger follows after a commit, in a new session."""
        if yielded or self._repeated >= _REPEATED_MAX or self.is_terminated:
            return False
        elapsed_ms = (self._clock.monotonic_s() - self._started_s) * 1000
        if elapsed_ms >= self._repeat_ms or not self._is_wanted():
            return False
        self._repeated += 1
        return self._has_more()

    def _has_more(self) -> bool:
        return self._component.has_work(self._clock.now_ms()) and self._component.is_open()
