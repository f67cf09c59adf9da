"""The launcher without free file descriptors: it ends no child, and starts each once it can."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.limit_kit import WAIT_S, limit_files, limited, until

pytestmark = pytest.mark.system

LAUNCHER = Path(__file__).with_name("launcher_limits.py")


# With two, the pipe of a child's reports is opened, but not the file of its output.
@pytest.mark.parametrize("spare_files", [0, 2])
def test_a_launcher_without_descriptors_ends_no_child(tmp_path: Path, spare_files: int) -> None:
    log = tmp_path / "log"
    with log.open("wb") as stream:
        launcher = subprocess.Popen(
            [sys.executable, str(LAUNCHER), str(tmp_path)], stdout=stream, stderr=stream
        )

    def says(*texts: str) -> bool:
        said = log.read_text()
        assert launcher.poll() is None, said
        return all(text in said for text in texts)

    def postpones() -> bool:
        # Again and again, because a probe that was open before leaves its descriptor.
        limit_files(launcher, 0)
        return says("a liveness check is postponed: ")

    try:
        until(lambda: says("all are ready"))
        before = pids(tmp_path)
        with limited(launcher, "files", spare_files=spare_files):
            if not spare_files:
                until(postpones)
            for name in ("a", "spark"):
                os.kill(before[name], signal.SIGKILL)
            until(lambda: says("a cannot be started: ", "spark cannot be started: "))
        until(lambda: says("a is ready again", "spark is ready again"))
        after = pids(tmp_path)
        assert after["b"] == before["b"]
        assert {after[name] for name in ("a", "spark")}.isdisjoint(before.values())
        launcher.terminate()
        assert launcher.wait(WAIT_S) == 0, log.read_text()
    finally:
        launcher.kill()
        launcher.wait()


def pids(folder: Path) -> dict[str, int]:
    content = json.loads((folder / "children.json").read_text())
    return {name: one["pid"] for name, one in content.items()}
