"""Rotation over stream partitions when the time does not suffice for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.core.clock import Clock

_ROUND_S: Final = 10.0


class StreamPartitionRotation:
    """Iterates over stream partitions in rotation, for ten seconds at a time. One thread.

    Args:
        clock: Measures the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next = 0

    def among(self, partitions: Iterable[int]) -> Iterator[int]:
        """Yield stream partitions as long as there is time.

        Those that were not reached come first in the next call.
        """
        until_s = self._clock.monotonic_s() + _ROUND_S
        for partition in sorted(partitions, key=lambda one: (one < self._next, one)):
            if self._clock.monotonic_s() >= until_s:
                self._next = partition
                return
            yield partition
