"""Number of messages that each connection may have in flight. Pure.

Owns the shares of `max_in_flight`. Invariants: their sum never exceeds it, none exceeds the limit
of its connection, and if there are at least as many messages as connections, each gets one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

from penstock.client.backoff import pause_s
from penstock.client.options import BackoffOptions

Key = TypeVar("Key", bound=Hashable)


class ReadyShares(Generic[Key]):
    """Shares of several connections.

    Args:
        max_in_flight: Total number of messages.
    """

    def __init__(self, max_in_flight: int) -> None:
        self._max_in_flight = max_in_flight
        self._limits: dict[Key, int] = {}  # in the order of their turns

    def resize(self, max_in_flight: int) -> None:
        """Set the total number of messages; 0 pauses all connections."""
        self._max_in_flight = max_in_flight

    def join(self, key: Key, limit: int) -> None:
        """Add a connection, with the largest RDY that its server allows."""
        self._limits[key] = limit

    def leave(self, key: Key) -> None:
        """Remove a connection, if it exists."""
        self._limits.pop(key, None)

    def rotate(self, idle: Collection[Key], *, trial: bool = False) -> bool:
        """Move the turns of idle connections to connections without a share.

        Args:
            idle: Connections without messages received or in flight.
            trial: There is a share for one connection only.

        Returns:
            Whether the shares have changed.
        """
        turns = list(self._limits)
        having = min(1, self._max_in_flight) if trial else self._max_in_flight
        waiting = max(0, len(turns) - having)
        passing = [key for key in turns[:having] if key in idle][:waiting]
        for key in passing:
            self._limits[key] = self._limits.pop(key)
        return bool(passing)

    def shares(self) -> dict[Key, int]:
        """Return how many messages each connection may have in flight."""
        if len(self._limits) > self._max_in_flight:
            return {key: int(turn < self._max_in_flight) for turn, key in enumerate(self._limits)}
        left, sharing = self._max_in_flight, len(self._limits)
        shares: dict[Key, int] = {}
        # The lowest limits first, so that the rest of their shares goes to the others.
        for key, limit in sorted(self._limits.items(), key=lambda item: item[1]):
            shares[key] = min(limit, left // sharing)
            left -= shares[key]
            sharing -= 1
        return shares

    def trial(self) -> dict[Key, int]:
        """Return a share of one message for the connection that is next in turn."""
        having = min(1, self._max_in_flight)
        return {key: int(turn < having) for turn, key in enumerate(self._limits)}

    def none(self) -> dict[Key, int]:
        """Return a share of 0 for each connection."""
        return dict.fromkeys(self._limits, 0)


class Pace(enum.Enum):
    """How fast messages are requested."""

    FULL = enum.auto()
    PAUSED = enum.auto()
    TRIAL = enum.auto()


class Slowdown:
    """Slows down a consumer whose handlers fail: a pause, a trial with one message, and so on.

    Each failure makes the next pause longer, each success shorter; full speed resumes after as
    many successful trials as failures. Outcomes during a pause do not count, because their
    messages were requested before.

    Args:
        options: Limits of the pauses; None: never slow down.
        random: Returns numbers in [0, 1).
    """

    def __init__(self, options: BackoffOptions | None, random: Callable[[], float]) -> None:
        self.pace = Pace.FULL
        self._options = options
        self._random = random
        self._level = 0

    def failed(self) -> float | None:
        """Note that a handler failed; return the pause that begins now, in seconds."""
        if self._options is None or self.pace is Pace.PAUSED:
            return None
        self._level += 1
        return self._pause(self._options)

    def succeeded(self) -> float | None:
        """Note that a handler succeeded; return the pause that begins now, in seconds."""
        if self._options is None or self.pace is not Pace.TRIAL:
            return None
        self._level -= 1
        if self._level:
            return self._pause(self._options)
        self.pace = Pace.FULL
        return None

    def pause_over(self) -> None:
        """Note that the pause has ended."""
        self.pace = Pace.TRIAL

    def _pause(self, options: BackoffOptions) -> float:
        self.pace = Pace.PAUSED
        return pause_s(options, self._level, self._random)
