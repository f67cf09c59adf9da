"""Pauses between attempts. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.client.options import BackoffOptions

_DOUBLINGS_MAX: Final = 30
_MS: Final = 1_000


def pause_s(options: BackoffOptions, level: int, random: Callable[[], float]) -> float:
    """Return the pause of a level in seconds; 1 is the first level.

    Args:
        options: Limits of the pauses.
        level: Number of failures.
        random: Source of randomness, so that many clients do not reconnect at the same moment.
    """
    full = min(options.max_ms, options.first_ms << min(level - 1, _DOUBLINGS_MAX))
    return full * (1.0 - random() / 2) / _MS


class Backoff:
    """Counts failed attempts: the first retry comes at once, then pauses grow.

    Args:
        options: Limits of the pauses.
        random: Returns numbers in [0, 1).
    """

    def __init__(self, options: BackoffOptions, random: Callable[[], float]) -> None:
        self._options = options
        self._random = random
        self._failures = 0

    def reset(self) -> None:
        """Note a success."""
        self._failures = 0

    def next_s(self) -> float:
        """Note a failure, and return the pause before the next attempt."""
        self._failures += 1
        if self._failures == 1:
            return 0.0
        return pause_s(self._options, self._failures - 1, self._random)
