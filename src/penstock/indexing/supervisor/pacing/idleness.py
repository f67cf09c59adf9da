"""Detects that a stream has been quiet for so long that its supervisor needs no tasks. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.indexing.sequences import Offsets


class Idleness:
    """Measures for how long no message has come to one stream."""

    def __init__(self) -> None:
        self._latest: dict[int, int] | None = None
        self._since_s = 0.0

    def is_idle(self, latest: Offsets, lag: int, limit_ms: int | None, now_s: float) -> bool:
        """Record the ends of a stream; return whether they have not changed for `limit_ms`.

        Args:
            latest: The end of each stream partition.
            lag: Total number of unread messages; the stream is not idle if there are any.
            limit_ms: Minimum time without messages; None: the stream is never idle.
            now_s: The time.
        """
        if self._latest != dict(latest) or lag:
            self._latest, self._since_s = dict(latest), now_s
        return limit_ms is not None and (now_s - self._since_s) * 1000 >= limit_ms
