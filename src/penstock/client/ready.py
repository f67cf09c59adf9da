"""How many messages each connection may have in flight. Pure.

Owns the shares of `max_in_flight`. Invariants: the shares' sum is never above it, none is above its
connection's limit, and with at least as many to share as there are connections, each gets one.
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
        max_in_flight: What is shared.
    """

    def __init__(self, max_in_flight: int) -> None:
        self._max_in_flight = max_in_flight
        self._limits: dict[Key, int] = {}  # in the order in which they take turns

    def resize(self, max_in_flight: int) -> None:
        """Share so much from now on; 0: nothing."""
        self._max_in_flight = max_in_flight

    def join(self, key: Key, limit: int) -> None:
        """Add a connection, with the largest RDY that its server allows."""
        self._limits[key] = limit

    def leave(self, key: Key) -> None:
        """Remove a connection; one that is not there is fine."""
        self._limits.pop(key, None)

    def rotate(self, idle: Collection[Key], *, trial: bool = False) -> bool:
        """Let connections without a share have the turns of those that had nothing to give.

        Args:
            idle: Connections on which nothing came and nothing is in flight.
            trial: There is a share for one connection only.

        Returns:
            Whether the shares are others now.
        """
        turns = list(self._limits)
        having = min(1, self._max_in_flight) if trial else self._max_in_flight
        waiting = max(0, len(turns) - having)
        passing = [key for key in turns[:having] if key in idle][:waiting]
        for key in passing:
            self._limits[key] = self._limits.pop(key)
        return bool(passing)

    def shares(self) -> dict[Key, int]:
        """Return what each connection may have in flight."""
        if len(self._limits) > self._max_in_flight:
            return {key: int(turn < self._max_in_flight) for turn, key in enumerate(self._limits)}
        left, sharing = self._max_in_flight, len(self._limits)
        shares: dict[Key, int] = {}
        # The lowest limits first, so that what they leave goes to the others.
        for key, limit in sorted(self._limits.items(), key=lambda item: item[1]):
            shares[key] = min(limit, left // sharing)
            left -= shares[key]
            sharing -= 1
        return shares

    def trial(self) -> dict[Key, int]:
        """Return shares of one message, for the connection that is first in turn."""
        having = min(1, self._max_in_flight)
        return {key: int(turn < having) for turn, key in enumerate(self._limits)}

    def none(self) -> dict[Key, int]:
        """Return shares of nothing."""
        return dict.fromkeys(self._limits, 0)


class Pace(enum.Enum):
    """How fast messages are asked for."""

    FULL = enum.auto()
    PAUSED = enum.auto()
    TRIAL = enum.auto()


class Slowdown:
    """Slows a consumer down whose handlers fail: a pause, a trial with one message, and so on.

    Each failure makes the next pause longer, each success shorter; full pace comes back when as
    many trials succeeded as failed. What ends during a pause was begun before, and does not count.

    Args:
        options: The bounds of the pauses; None: never slow down.
        random: Gives numbers in [0, 1).
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
        """Note that the pause is over."""
        self.pace = Pace.TRIAL

    def _pause(self, options: BackoffOptions) -> float:
        self.pace = Pace.PAUSED
        return pause_s(options, self._level, self._random)
