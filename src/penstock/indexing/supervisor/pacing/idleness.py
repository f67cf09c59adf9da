"""Whether a stream has been quiet for so long that its supervisor needs no tasks. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.indexing.sequences import Offsets


class Idleness:
    """How long nothing has come to one stream."""

    def __init__(self) -> None:
        self._latest: dict[int, int] | None = None
        self._since_s = 0.0

    def is_idle(self, latest: Offsets, lag: int, limit_ms: int | None, now_s: float) -> bool:
        """Note the ends of a stream; return whether they have been the same for long enough.

        Args:
            latest: The end of each stream partition.
            lag: How many messages are not read yet, over all; with any the stream is not idle.
            limit_ms: How long is long enough; None: it never is.
            now_s: The time.
        """
        if self._latest != dict(latest) or lag:
            self._latest, self._since_s = dict(latest), now_s
        return limit_ms is not None and (now_s - self._since_s) * 1000 >= limit_ms
