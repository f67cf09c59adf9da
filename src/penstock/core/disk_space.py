"""Check of the free disk space that does not query the disk each time.

Owns the rule that input is refused before the disk is full, so that the work that frees space can
continue: readers, retention, the metadata, and flows that process their queues. Does not own how
the free space is measured. It recovers by itself: a refusal is based on a measurement of at most a
quarter of a second ago.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import Dependency, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock

_FRESH_S: Final = 0.25


class DiskSpace:
    """Guards a reserve of free disk space; from any thread.

    A refusal depends on the free space, and not on the size of the write: a check without a size,
    such as a health check, gets the same answer as the next write. So the last accepted write may
    use part of the reserve. Only a write larger than half of the reserve is refused because of its
    size.

    Concurrent writes may be counted as one until the disk is queried again: the reserve is far
    larger than the amount written in between.

    Args:
        folder: The guarded folder, for messages.
        free_bytes: Returns the free space.
        min_free_bytes: The reserve; 0 disables the check.
        clock: For the age of a measurement.
        remedy: Remedy for a full disk, for messages.
    """

    def __init__(
        self,
        folder: str,
        free_bytes: Callable[[], int],
        min_free_bytes: int,
        clock: Clock,
        remedy: str,
    ) -> None:
        self._folder = folder
        self._free_bytes = free_bytes
        self._min_free_bytes = min_free_bytes
        self._clock = clock
        self._remedy = remedy
        self._measured_s = float("-inf")
        self._free = 0

    def require(self, size_bytes: int) -> None:
        """Take ``size_bytes`` of the free space if the reserve is available.

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
                f"{self._min_free_bytes >> 20} MiB are kept free: {self._remedy}",
                dependency=Dependency.DISK,
            )
        self._free = left
