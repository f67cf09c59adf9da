"""Whether the disk has room for more, without asking the disk each time.

Owns the rule that what comes in is refused before the disk is full, so that what takes away can go
on: readers, retention, the metadata, a flow that works off what it has. Does not own who is asked
how much is free. Recovers by itself: a refusal is never older than a quarter of a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import Dependency, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock

_FRESH_S: Final = 0.25


class Headroom:
    """Guards a reserve of free disk space; from any thread.

    Whether something is refused depends on what is free, and not on its size: a question without a
    size, such as a health check, gets the answer that the next write gets. So the reserve is begun
    by what comes last; only something larger than half of it is refused for its size.

    Threads that take at the same moment may be counted as one until the disk is asked again: the
    reserve is far more than is written in between.

    Args:
        folder: What is guarded, for messages.
        free_bytes: Says how much is free.
        min_free_bytes: The reserve; 0: there is none, and the disk is not asked.
        clock: For the age of a measurement.
        mend: What to do about a full disk, for messages.
    """

    def __init__(
        self,
        folder: str,
        free_bytes: Callable[[], int],
        min_free_bytes: int,
        clock: Clock,
        mend: str,
    ) -> None:
        self._folder = folder
        self._free_bytes = free_bytes
        self._min_free_bytes = min_free_bytes
        self._clock = clock
        self._mend = mend
        self._measured_s = float("-inf")
        self._free = 0

    def require(self, size_bytes: int) -> None:
        """Take ``size_bytes`` of what is left, while the reserve is whole.

        Raises:
            Unavailable: The disk is nearly full.
        """
        if not self._min_free_bytes:
            return
        now_s = self._clock.monotonic_s()
        if now_s - self._measured_s >= _FRESH_S:
            self._free = self._free_bytes()
            self._measured_s = now_s
        left = self._free - size_bytes
        if self._free < self._min_free_bytes or left < self._min_free_bytes // 2:
            wanted = f" for {size_bytes >> 20} MiB" if size_bytes >> 20 else ""
            raise Unavailable(
                f"the disk of {self._folder} has {self._free >> 20} MiB left{wanted}, and "
                f"{self._min_free_bytes >> 20} MiB are kept free: {self._mend}",
                dependency=Dependency.DISK,
            )
        self._free = left
