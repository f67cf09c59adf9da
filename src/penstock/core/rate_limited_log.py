"""Rate-limited log of frequent warnings: one line at first, then one per minute.

If a disk does not respond or file descriptors run out, each of a hundred thousand queues fails at
each attempt. A log of every failure hides other lines, and fills the rest of the disk.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from penstock.core.clock import Clock

_PAUSE_S: Final = 60.0


class Warn(Protocol):
    """Logs a warning, rate-limited or not."""

    def __call__(self, text: str, /, *values: object) -> None:
        """Log a line, as `logging.Logger.warning` does."""
        ...


class RateLimit:
    """Admits the first of equal events, then one per minute; from any thread.

    The mutex is held only briefly: callers are on any thread and must not wait.

    Args:
        clock: For the minute.
    """

    __slots__ = ("_clock", "_left_out", "_mutex", "_next_s")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._next_s = clock.monotonic_s()
        self._left_out = 0

    def admit(self) -> int | None:
        """Return how many events were left out since the last one; None: leave this one out."""
        with self._mutex:
            now_s = self._clock.monotonic_s()
            if now_s < self._next_s:
                self._left_out += 1
                return None
            self._next_s = now_s + _PAUSE_S
            left_out, self._left_out = self._left_out, 0
            return left_out


def with_left_out(
    text: str, values: tuple[object, ...], left_out: int
) -> tuple[str, tuple[object, ...]]:
    """Return the text and the values of a line with the number of those that were left out."""
    if not left_out:
        return text, values
    return f"{text} (and %d more like it before)", (*values, left_out)


class RateLimitedLog:
    """Logs one kind of warning for all callers; from any thread.

    The first line is logged at once; those within a minute of the last one are counted, and the
    next line has their number.

    Args:
        logger: Logger of the warnings.
        clock: For the minute.
    """

    __slots__ = ("_limit", "_logger")

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger = logger
        self._limit = RateLimit(clock)

    def warning(self, text: str, *values: object) -> None:
        """Log a line, as `logging.Logger.warning` does, or only count it."""
        left_out = self._limit.admit()
        if left_out is not None:
            text, values = with_left_out(text, values, left_out)
            self._logger.warning(text, *values)


class RateLimitedLogs:
    """A `RateLimitedLog` for each text, which is compared without its values.

    The texts are constants of the program, so they are few. The mutex guards their dictionary.

    Args:
        logger: Logger of the warnings.
        clock: For the minute.
    """

    __slots__ = ("_clock", "_logger", "_logs", "_mutex")

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger = logger
        self._clock = clock
        self._mutex = threading.Lock()
        self._logs: dict[str, RateLimitedLog] = {}

    def warning(self, text: str, *values: object) -> None:
        """Log a line, as `logging.Logger.warning` does, or only count it."""
        with self._mutex:
            log = self._logs.setdefault(text, RateLimitedLog(self._logger, self._clock))
        log.warning(text, *values)
