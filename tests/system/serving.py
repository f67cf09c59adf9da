"""A Penstock of real processes, as `penstock up` starts them, for as long as a test needs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from penstock.core.clock import SystemClock
from penstock.services.demo.server import DemoServer
from penstock.services.host.datafolder import DataFolder


@contextmanager
def serving(folder: Path, variables: Mapping[str, str] | None = None) -> Iterator[DemoServer]:
    """Serve a data folder; ready when the block begins, stopped at its end."""
    made = DemoServer(DataFolder(folder), SystemClock(), variables)
    made.start()
    try:
        made.wait_ready()
        yield made
    finally:
        made.stop()
