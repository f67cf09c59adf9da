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


class RateLimitedLog:
    """Logs one kind of warning for all callers; from any thread.

    The first line is logged at once; those within a minute of the last one are counted, and the
    next line has their number. The mutex is held only briefly: callers are on any thread and must
    not wait.

    Args:
        logger: Logger of the warnings.
        clock: For the minute.
    """

    __slots__ = ("_clock", "_left_out", "_logger", "_mutex", "_next_s")

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger = logger
        self._clock = clock
        self._mutex = threading.Lock()
        self._next_s = clock.monotonic_s()
        self._left_out = 0

    def warning(self, text: str, *values: object) -> None:
        """Log a line, as `logging.Logger.warning` does, or only count it."""
        with self._mutex:
            now_s = self._clock.monotonic_s()
            if now_s < self._next_s:
                self._left_out += 1
                return
            self._next_s = now_s + _PAUSE_S
            left_out, self._left_out = self._left_out, 0
        if left_out:
            text, values = f"{text} (and %d more like it before)", (*values, left_out)
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
