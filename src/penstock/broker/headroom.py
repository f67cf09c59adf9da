"""Whether the disk has room for another publish, without asking the disk each time.

Owns the rule that publishes are refused before the disk is full, so that readers, retention and the
metadata can go on. Recovers by itself: a refusal is never older than a quarter of a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock

_FRESH_S: Final = 0.25


class Headroom:
    """Guards a reserve of free disk space.

    Args:
        folder: What is guarded, for messages.
        free_bytes: Says how much is free.
        min_free_bytes: The reserve.
        clock: For the age of a measurement.
    """

    def __init__(
        self, folder: str, free_bytes: Callable[[], int], min_free_bytes: int, clock: Clock
    ) -> None:
        self._folder = folder
        self._free_bytes = free_bytes
        self._min_free_bytes = min_free_bytes
        self._clock = clock
        self._measured_s = float("-inf")
        self._free = 0

    def require(self, size_bytes: int) -> None:
        """Take ``size_bytes`` of what is left above the reserve.

        Raises:
            Unavailable: The disk is nearly full.
        """
        now_s = self._clock.monotonic_s()
        if now_s - self._measured_s >= _FRESH_S:
            self._free = self._free_bytes()
            self._measured_s = now_s
        if self._free - size_bytes < self._min_free_bytes:
            raise Unavailable(
                f"the disk of {self._folder} has {self._free >> 20} MiB left and "
                f"{self._min_free_bytes >> 20} MiB are kept free: delete topics or files there, "
                "shorten the retention, or lower min_free_bytes"
            )
        self._free -= size_bytes
