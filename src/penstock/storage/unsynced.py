"""The age of unsynced data: the time since the oldest byte that is not on the disk was appended.

Owns that time for each queue of shared threads, and the alarm: an error in the log, repeated while
data is older than ten times the interval after which it should be synced. Nothing else reports a
disk that hangs, or a sync that was planned but never ran. The owner of the threads shows the same
text in its readiness. Does not own the timer of the checks (`storage.queue.group_commit`).

A queue changes its entry when it appends to synced data, and after each pass: messages cost
nothing here.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
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

    Attributes:
        limit_s: Age at which the alarm is raised.
        check_planned: A call of `check` is planned; the owner of the timer sets it.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._since_s: dict[object, float] = {}
        self.check_planned = False
        self.limit_s = LIMIT_MIN_S

    def allow(self, interval_s: float) -> None:
        """Take an owner's interval into account: the longest one applies."""
        self.limit_s = max(self.limit_s, INTERVALS_MAX * interval_s)

    def appended(self, owner: object, since_s: float) -> float | None:
        """Record that an owner has unsynced data, if it had none.

        Returns:
            The monotonic time at which to call `check`; None: that is planned.
        """
        self._since_s.setdefault(owner, since_s)
        return None if self.check_planned else since_s + self.limit_s

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

    def check(self) -> float | None:
        """Log an error if data is too old; return when to check again, None: all is synced."""
        trouble = self.trouble()
        if trouble is not None:
            _logger.error("%s", trouble)
        self.check_planned = False  # first: an append from here on plans the next check itself
        oldest_s = min(tuple(self._since_s.values()), default=None)
        if oldest_s is None:
            return None
        # When the oldest would be too old; if it already is, after the same time again.
        begin_s = oldest_s if trouble is None else self._clock.monotonic_s()
        return begin_s + self.limit_s
