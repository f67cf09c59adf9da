"""A running flow under real limits: memory, file descriptors, threads.

Whatever a limit made fail, the flow goes on once the limit is lifted, or its process has ended and
goes on after a restart. Each FlowFile that was made ends once, with its content.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.services.host.restart_policy import RESTART_REQUESTED
from tests.system.controller_limits import TOTAL
from tests.system.limit_kit import limit_folder, limitable, limited, until, was_refused

pytestmark = pytest.mark.system

CHILD = Path(__file__).with_name("controller_limits.py")


class RunningFlow:
    """The process, and what it printed last."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.count = self.sum = -1
        self.log = log
        with log.open("ab") as stream:
            self.process = subprocess.Popen(
                [sys.executable, str(CHILD), str(folder / "flow")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                env=limitable(folder),
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.count, self.sum = map(int, line.split())

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def wait_open(self) -> None:
        until(lambda: self.count >= 0 or self.has_ended)
        assert not self.has_ended, self.log.read_text()

    def begin(self) -> None:
        """Start the components, which make some FlowFiles."""
        self._tell()

    def go_on(self) -> None:
        """Have them make the rest."""
        self._tell()

    def _tell(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended
            self.process.stdin.write("\n")
            self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def running(folder: Path, log: Path) -> Iterator[RunningFlow]:
    made = RunningFlow(folder, log)
    try:
        yield made
    finally:
        made.kill()


@pytest.mark.parametrize("kind", ["memory", "files", "threads"])
def test_each_flowfile_of_a_flow_under_a_limit_ends_once(kind: str) -> None:
    with limit_folder() as folder:
        log = folder / "log"
        with running(folder, log) as flow:
            flow.wait_open()
            if kind == "files":
                flow.begin()
                until(lambda: flow.count > 0)
            with limited(flow.process, kind):
                if kind != "files":  # later, it needs no more threads, and freed memory is enough
                    flow.begin()
                flow.go_on()
                until(lambda: flow.has_ended or was_refused(log.read_text()))
            until(lambda: flow.has_ended or flow.count >= TOTAL)
            assert flow.process.returncode in {None, RESTART_REQUESTED}, log.read_text()
        with running(folder, log) as flow:
            flow.wait_open()
            flow.begin()
            flow.go_on()
            until(lambda: flow.count >= TOTAL or flow.has_ended)
            assert flow.count == TOTAL, log.read_text()[-4_000:]
            assert flow.sum == TOTAL * (TOTAL - 1) // 2
