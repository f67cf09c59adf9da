"""A run: one trigger of a component, or several, with one commit at the end or one after each.

Owns the rules for how long a run goes on, and the news that it was given up. Does not own the
session: whoever implements `Schedulable.trigger` commits once `goes_on` has said no, and begins
another while `repeats` says yes.

Invariants: a run is given up once, by the scheduler's thread; it is asked by the one thread that it
runs on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.flow.scheduling.schedulable import Schedulable

# A processor that feeds itself had better commit early: what it waits for may be in its own loop.
_LOOP_SHARE: Final = 25
# Where nothing takes time, as on a test's clock, a run ends all the same.
_REPEATED_MAX: Final = 100


class TimedRun:
    """A `Run` with a duration; `goes_on` answers by the rules of NiFi.

    Args:
        component: Asked whether it has more to do, and room.
        clock: Says how long the run takes.
        duration_ms: For how long it may go on.
        is_wanted: Says whether the component is still to run; asked from the run's thread.
        repeat_ms: For how long further commits may begin; 0: there is one.
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
        """Count the duration from now on."""
        self._started_s = self._clock.monotonic_s()

    def goes_on(self, *, yielded: bool = False, loop_is_full: bool = False) -> bool:
        """Say whether another trigger follows before the commit."""
        if yielded or not self.duration_ms or self.is_terminated or not self._is_wanted():
            return False
        elapsed_ms = (self._clock.monotonic_s() - self._started_s) * 1000
        if elapsed_ms > self.duration_ms:
            return False
        if loop_is_full and elapsed_ms > self.duration_ms / _LOOP_SHARE:
            return False
        return self._has_more()

    def repeats(self, *, yielded: bool = False) -> bool:
        """Say whether another trigger follows after a commit, in a session of its own."""
        if yielded or self._repeated >= _REPEATED_MAX or self.is_terminated:
            return False
        elapsed_ms = (self._clock.monotonic_s() - self._started_s) * 1000
        if elapsed_ms >= self._repeat_ms or not self._is_wanted():
            return False
        self._repeated += 1
        return self._has_more()

    def _has_more(self) -> bool:
        return self._component.has_work(self._clock.now_ms()) and self._component.is_open()
