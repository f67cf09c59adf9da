"""A Penstock of real processes, as `penstock up` starts them, for as long as a test needs it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.server_process import ServerProcess


@contextmanager
def serving(folder: Path, variables: Mapping[str, str] | None = None) -> Iterator[ServerProcess]:
    """Serve a data folder; ready when the block begins, stopped at its end."""
    made = ServerProcess(DataFolder(folder), SystemClock(), variables)
    made.start()
    try:
        made.wait_ready()
        yield made
    finally:
        made.stop()


def until(what: str, condition: Callable[[], bool], within_s: float = 120) -> None:
    """Wait for a condition; what is not reachable just now is not there yet.

    Who asks without a pause takes the cores of what is waited for.
    """
    clock, pause = SystemClock(), threading.Condition()
    deadline_s = clock.monotonic_s() + within_s
    while clock.monotonic_s() < deadline_s:
        with contextlib.suppress(PenstockError):
            if condition():
                return
        with pause:
            clock.wait(pause, 0.2)
    pytest.fail(f"{what}: not within {within_s:g} s")
