"""Delays between attempts that grow while attempts fail. Pure.

Owns the rule of growth; each user owns its numbers. A part of a delay may be random, so that many
callers of one service do not try again at the same moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_GROWTHS_MAX: Final = 40  # by then even one millisecond has grown beyond every maximum
_MS: Final = 1_000


def delay_after(failures: int, initial: int, maximum: int, factor: int = 2) -> int:
    """Return the delay after a number of failures in a row, 1 or more, in the unit of `initial`.

    For delays that are not times, such as rounds; those that are have a `RetryPolicy`.
    """
    growth: int = factor ** min(failures - 1, _GROWTHS_MAX)
    return min(maximum, initial * growth)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Delay before the next attempt, by the number of failures in a row.

    Attributes:
        initial_ms: Delay after the first failure.
        max_ms: Longest delay.
        factor: Growth of the delay with each further failure.
        jitter: Random part of each delay, from 0 to 1: it is shortened by up to this part.
    """

    initial_ms: int
    max_ms: int
    factor: int = 2
    jitter: float = 0.0

    def delay_ms(self, failures: int) -> int:
        """Return the longest delay after a number of failures in a row, 1 or more."""
        return delay_after(failures, self.initial_ms, self.max_ms, self.factor)

    def random_delay_s(self, failures: int, random: Callable[[], float]) -> float:
        """Return the delay in seconds, shortened at random.

        Args:
            failures: Number of failures in a row, 1 or more.
            random: Returns numbers in [0, 1).
        """
        return self.delay_ms(failures) * (1.0 - self.jitter * random()) / _MS


class Backoff:
    """Counts failures in a row, and returns the delay before the next attempt. One owner.

    Args:
        policy: The delays.
        random: Returns numbers in [0, 1).
        free_retries: Number of retries that come at once, before the delays of the policy.
    """

    def __init__(
        self, policy: RetryPolicy, random: Callable[[], float], *, free_retries: int = 0
    ) -> None:
        self._policy = policy
        self._random = random
        self._free_retries = free_retries
        self._failures = 0

    def reset(self) -> None:
        """Note a success."""
        self._failures = 0

    def next_s(self) -> float:
        """Note a failure, and return the delay before the next attempt, in seconds."""
        self._failures += 1
        failures = self._failures - self._free_retries
        return self._policy.random_delay_s(failures, self._random) if failures > 0 else 0.0
