"""Signals as bytes on a pipe, so that a main thread can wait for them and for other events.

Owns the handlers while entered. A handler of Python runs between two lines of the main thread, and
must not take a mutex; a byte on a pipe is safe. Python writes that byte for every signal that has a
handler. Bytes of signals that other code handles are ignored.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Sequence
from typing import Self

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class SignalPipe:
    """Catches signals while entered; entered by the main thread only."""

    def __init__(self, signals: Sequence[signal.Signals]) -> None:
        self._signals = signals
        self._previous: dict[signal.Signals, object] = {}
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)
        self._previous_wakeup = -1

    def __enter__(self) -> Self:
        self._previous_wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in self._signals:
            # A Python handler must be set for the wake-up byte to be written.
            self._previous[number] = signal.signal(number, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as `signal` gave it
        signal.set_wakeup_fd(self._previous_wakeup)
        os.close(self.reader)
        os.close(self._writer)

    def take(self) -> list[int]:
        """Return the received signals."""
        try:
            received = os.read(self.reader, 4_096)
        except BlockingIOError:
            return []
        return [one for one in received if one in self._signals]

    def wake(self) -> None:
        """Make `wait` return as after a stop signal; thread-safe."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, bytes([signal.SIGTERM]))

    def wait(self) -> None:
        """Wait for a signal."""
        while not self.take():
            select.select([self.reader], [], [])
