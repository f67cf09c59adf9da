"""Trouble that many have at once, or one has again and again: a line at first, then one a minute.

When a disk does not answer or file descriptors run out, each of a hundred thousand queues fails at
each try. A log of that hides what else there is to read, and fills what is left of the disk.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from penstock.core.clock import Clock

_PAUSE_S: Final = 60.0


class Warn(Protocol):
    """Logs a warning, sparsely or not."""

    def __call__(self, text: str, /, *values: object) -> None:
        """Log a line, as `logging.Logger.warning` does."""
        ...


class SparseLog:
    """Logs one kind of trouble for all who have it; from any thread.

    The first line comes at once; those within a minute of the last one are counted, and the next
    one says how many they were. The mutex is held around a few lines: who fails is on any thread,
    and waits for nobody.

    Args:
        logger: Where the lines go, as warnings.
        clock: Tells when the minute is over.
    """

    __slots__ = ("_clock", "_left_out", "_logger", "_mutex", "_next_s")

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger = logger
        self._clock = clock
        self._mutex = threading.Lock()
        self._next_s = clock.monotonic_s()
        self._left_out = 0

    def warning(self, text: str, *values: object) -> None:
        """Log a line, as `logging.Logger.warning` does, or count it."""
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


class SparseLogs:
    """As `SparseLog`, each kind of trouble by itself: each text, as it is without its values.

    These are texts of the program, so they are few. The mutex guards the dictionary of them.

    Args:
        logger: Where the lines go, as warnings.
        clock: Tells when the minute is over.
    """

    __slots__ = ("_clock", "_logger", "_logs", "_mutex")

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger = logger
        self._clock = clock
        self._mutex = threading.Lock()
        self._logs: dict[str, SparseLog] = {}

    def warning(self, text: str, *values: object) -> None:
        """Log a line, as `logging.Logger.warning` does, or count it."""
        with self._mutex:
            log = self._logs.setdefault(text, SparseLog(self._logger, self._clock))
        log.warning(text, *values)
