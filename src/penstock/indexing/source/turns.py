"""Whose turn it is where not all stream partitions can be looked at in the time that there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.core.clock import Clock

_ROUND_S: Final = 10.0


class Turns:
    """Goes round stream partitions, ten seconds at a time. One thread.

    Args:
        clock: Measures them.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next = 0

    def among(self, partitions: Iterable[int]) -> Iterator[int]:
        """Yield the partitions that are looked at now, as long as there is time.

        Those whose turn does not come are the first the next time.
        """
        until_s = self._clock.monotonic_s() + _ROUND_S
        for partition in sorted(partitions, key=lambda one: (one < self._next, one)):
            if self._clock.monotonic_s() >= until_s:
                self._next = partition
                return
            yield partition
