"""A whole Penstock for a test of this project, with the options of the test run."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError
from penstock.testing.server import LocalPenstock


@contextmanager
def serving(folder: Path, variables: Mapping[str, str] | None = None) -> Iterator[LocalPenstock]:
    """Serve a data folder; ready when the block begins, stopped at its end."""
    ours = {name: value for name, value in os.environ.items() if name.startswith("PENSTOCK_")}
    with LocalPenstock(folder, variables={**ours, **(variables or {})}) as made:
        yield made


def files_in(folder: Path) -> list[Path]:
    """Return the files below a folder in use: its folders may be deleted meanwhile."""
    # Unlike `rglob`, it passes over a folder that no longer exists.
    found = [Path(place, name) for place, _, names in os.walk(folder) for name in names]
    return [path for path in found if path.is_file()]


def contents(paths: Iterable[Path]) -> Iterator[tuple[Path, bytes]]:
    """Yield files with their contents, without those that are deleted meanwhile."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            yield path, path.read_bytes()


def until(what: str, condition: Callable[[], bool], within_s: float = 120) -> None:
    """Wait for a condition; what is not reachable just now is not there yet.

    Who asks without a pause takes the cores of what is waited for.
    """
    clock, pause = SystemClock(), threading.Condition()
    deadline_s = clock.monotonic_s() + within_s
    while (asked_s := clock.monotonic_s()) < deadline_s:
        with contextlib.suppress(PenstockError):
            if condition():
                return
        with pause:
            clock.wait(pause, min(3.0, max(0.2, 4 * (clock.monotonic_s() - asked_s))))
    pytest.fail(f"{what}: not within {within_s:g} s")
