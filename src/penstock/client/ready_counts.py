"""Distribution of RDY counts over the connections of one consumer.

`ReadyShares` divides `max_in_flight` among the connections, and `Slowdown` slows down a
consumer whose handlers fail: a pause, a trial with one message, and so on. Both are pure.
`ClientPace` sends the RDY commands: it owns when a connection receives a new count. Does not
own which connections exist (`connections`).

Invariants: the sum of the shares never exceeds `max_in_flight`, and no share exceeds the limit
of its connection. If `max_in_flight` is at least the number of connections, each of them gets
at least one.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Collection, Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.client.options import BackoffOptions

if TYPE_CHECKING:
    from penstock.client.options import ConsumerOptions, Environment
    from penstock.client.subscription import Subscription


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


class ReadyDistribution(enum.Enum):
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
        self.pace = ReadyDistribution.FULL
        self._options = options
        self._random = random
        self._level = 0

    def failed(self) -> float | None:
        """Record that a handler failed; return the pause that begins now, in seconds."""
        if self._options is None or self.pace is ReadyDistribution.PAUSED:
            return None
        self._level += 1
        return self._pause(self._options)

    def succeeded(self) -> float | None:
        """Record that a handler succeeded; return the pause that begins now, in seconds."""
        if self._options is None or self.pace is not ReadyDistribution.TRIAL:
            return None
        self._level -= 1
        if self._level:
            return self._pause(self._options)
        self.pace = ReadyDistribution.FULL
        return None

    def pause_over(self) -> None:
        """Record that the pause has ended."""
        self.pace = ReadyDistribution.TRIAL

    def _pause(self, options: BackoffOptions) -> float:
        self.pace = ReadyDistribution.PAUSED
        return options.policy.random_delay_s(self._level, self._random)


_logger = logging.getLogger(__name__)


class ClientPace:
    """The RDY of the connections of one consumer.

    Args:
        max_in_flight: Limit over all connections.
        options: Options of the consumer.
        environment: Sources of randomness and delays.
    """

    def __init__(
        self, max_in_flight: int, options: ConsumerOptions, environment: Environment
    ) -> None:
        self._options = options
        self._environment = environment
        self._shares: ReadyShares[Subscription] = ReadyShares(max_in_flight)
        self._slowdown = Slowdown(options.slow_down, environment.random)
        self._seen: dict[Subscription, int] = {}  # received messages at the last rotation

    def join(self, subscription: Subscription, limit: int) -> None:
        """Give a connection a share, limited by its server."""
        self._seen[subscription] = 0
        self._shares.join(subscription, limit)
        self._apply()

    def leave(self, subscription: Subscription) -> None:
        """Distribute the share of a connection to the others."""
        del self._seen[subscription]
        self._shares.leave(subscription)
        self._apply()

    def resize(self, max_in_flight: int) -> None:
        """Set the maximum number of messages in flight."""
        self._shares.resize(max_in_flight)
        self._apply()

    def note_outcome(self, succeeded: bool) -> float | None:
        """Slow down after failures, and speed up after successes.

        Returns:
            The seconds of a pause that begins now; `end_pause` ends it.
        """
        before = self._slowdown.pace
        pause_s = self._slowdown.succeeded() if succeeded else self._slowdown.failed()
        if self._slowdown.pace is not before:
            self._apply()
        return pause_s

    async def end_pause(self, pause_s: float) -> None:
        """Continue with one message after a pause."""
        await self._environment.sleep(pause_s)
        self._slowdown.pause_over()
        self._apply()

    async def take_turns(self) -> None:
        """Move shares of idle connections to connections without one, until cancelled."""
        while True:
            await self._environment.sleep(self._options.rotate_s)
            try:
                self._take_turn()
            except Exception:
                # The outermost handler of a task: the next rotation must follow.
                _logger.exception("cannot change the shares of the connections")

    def _take_turn(self) -> None:
        idle = {s for s, seen in self._seen.items() if s.received_count == seen}
        idle = {subscription for subscription in idle if not subscription.in_flight}
        self._seen = {s: s.received_count for s in self._seen}
        trial = self._slowdown.pace is ReadyDistribution.TRIAL
        if self._slowdown.pace is not ReadyDistribution.PAUSED and self._shares.rotate(
            idle, trial=trial
        ):
            self._apply()

    def _apply(self) -> None:
        pace = self._slowdown.pace
        if pace is ReadyDistribution.FULL:
            shares = self._shares.shares()
        elif pace is ReadyDistribution.TRIAL:
            shares = self._shares.trial()
        else:
            shares = self._shares.none()
        # Reductions first, so that the sum never exceeds the limit.
        for subscription, share in sorted(shares.items(), key=lambda item: item[1]):
            subscription.set_ready(share)
