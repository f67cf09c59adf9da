"""RDY of each connection of a consumer: shares, rotation, and slowing down.

Owns when the RDY of a connection changes. Does not own the calculation of shares (`ready`), nor
the set of connections (`fleet`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.client.ready import Pace, ReadyShares, Slowdown

if TYPE_CHECKING:
    from penstock.client.options import ConsumerOptions, Environment
    from penstock.client.subscription import Subscription


_logger = logging.getLogger(__name__)


class Pacing:
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
        """Move shares of idle connections to connections without one, for ever."""
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
        trial = self._slowdown.pace is Pace.TRIAL
        if self._slowdown.pace is not Pace.PAUSED and self._shares.rotate(idle, trial=trial):
            self._apply()

    def _apply(self) -> None:
        pace = self._slowdown.pace
        if pace is Pace.FULL:
            shares = self._shares.shares()
        elif pace is Pace.TRIAL:
            shares = self._shares.trial()
        else:
            shares = self._shares.none()
        # Reductions first, so that the sum never exceeds the limit.
        for subscription, share in sorted(shares.items(), key=lambda item: item[1]):
            subscription.set_ready(share)
