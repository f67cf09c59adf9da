"""The age of unsynced data: the time since the oldest byte that is not on the disk was appended.

Owns that time for each queue of shared threads, and the alarm: an error in the log, repeated while
data is older than ten times the interval after which it should be synced. Nothing else reports a
disk that hangs, or a sync that was planned but never ran. The owner of the threads shows the same
text in its readiness.

A queue changes its entry when it appends to synced data, and after each pass: messages cost
nothing here.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Closed

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock

_logger = logging.getLogger(__name__)

INTERVALS_MAX: Final = 10
LIMIT_MIN_S: Final = 10.0


class UnsyncedData:
    """Since when each of many owners has unsynced data. Any thread.

    It needs no mutex: each change is one step of a dictionary, and each owner changes its entry
    under its own mutex.

    Args:
        name: For messages.
        clock: Returns the time.
        call_at: Calls back at a monotonic time, on a thread that no fsync blocks.

    Attributes:
        limit_s: Age at which the alarm is raised.
    """

    def __init__(
        self, name: str, clock: Clock, call_at: Callable[[float, Callable[[], None]], None]
    ) -> None:
        self._name = name
        self._clock = clock
        self._call_at = call_at
        self._since_s: dict[object, float] = {}
        self._planned = False
        self.limit_s = LIMIT_MIN_S

    def allow(self, interval_s: float) -> None:
        """Take an owner's interval into account: the longest one applies."""
        self.limit_s = max(self.limit_s, INTERVALS_MAX * interval_s)

    def appended(self, owner: object, since_s: float) -> None:
        """Record that an owner has unsynced data, if it had none."""
        self._since_s.setdefault(owner, since_s)
        if not self._planned:
            self._plan(since_s + self.limit_s)

    def synced(self, owner: object, since_s: float | None) -> None:
        """Record a successful pass, and since when other data is unsynced; None: none is."""
        if since_s is None:
            self._since_s.pop(owner, None)
        else:
            self._since_s[owner] = since_s

    def age_s(self) -> float:
        """Return the age of the oldest unsynced byte; 0 if there is none."""
        since_s = min(tuple(self._since_s.values()), default=None)
        return 0.0 if since_s is None else max(0.0, self._clock.monotonic_s() - since_s)

    def trouble(self) -> str | None:
        """Return an error message if data is too old, else None."""
        age_s = self.age_s()
        if age_s < self.limit_s:
            return None
        return (
            f"{self._name}: data has not been synced for {age_s:.0f} s, and a power loss would lose"
            f" it (the limit is {self.limit_s:.0f} s): check whether the disk responds"
        )

    def _check(self) -> None:
        trouble = self.trouble()
        if trouble is not None:
            _logger.error("%s", trouble)
        self._planned = False  # first: an append from here on plans the next check itself
        oldest_s = min(tuple(self._since_s.values()), default=None)
        if oldest_s is not None:
            # When the oldest would be too old; if it already is, after the same time again.
            begin_s = oldest_s if trouble is None else self._clock.monotonic_s()
            self._plan(begin_s + self.limit_s)

    def _plan(self, at_s: float) -> None:
        # Without memory the next append plans it; closed threads have synced everything.
        with suppress(Closed, MemoryError):
            self._call_at(at_s, self._check)
            self._planned = True
