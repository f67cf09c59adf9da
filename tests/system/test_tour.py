"""The tour's commands, typed in order at a running Penstock: each works and says what it should."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.services.demo.server import DemoServer
from penstock.services.host.datafolder import DataFolder

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

ROOT = Path(__file__).parent.parent.parent
FENCE = re.compile(r"```console\n(.*?)```", re.DOTALL)
COMMANDS = [
    line[2:]
    for fence in FENCE.findall((ROOT / "docs" / "tour.md").read_text())
    for line in fence.splitlines()
    if line.startswith("$ ")
]

# What a command's output comes to hold, where that is the point of the command.
EXPECTED = {
    "penstock topic stats clicks": r"\b2\b",
    "penstock supervisor status": r"(?i)running",
    "penstock sql": r"/docs.*\b1\b",
    "penstock segment list": r"2026-11-21[\s\S]*2026-11-22",
    "penstock topic peek clicks --max": r"/docs",
    "penstock topic peek clicks.dead-letter": r"not JSON",
}


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("tour") / "data"
    made = DemoServer(DataFolder(folder), SystemClock())
    made.start()
    try:
        made.wait_ready()
        yield folder
    finally:
        made.stop()


def expectation(command: str) -> str:
    matching = [start for start in EXPECTED if command.startswith(start)]
    return EXPECTED[max(matching, key=len)] if matching else ""


def test_the_tour_has_commands() -> None:
    assert len(COMMANDS) > 8


def test_the_tour_works_as_it_is_written(data_folder: Path) -> None:
    clock, pause = SystemClock(), threading.Condition()
    environment = os.environ | {"PENSTOCK_DATA_DIR": str(data_folder), "COLUMNS": "200"}
    for command in COMMANDS:
        program, *arguments = shlex.split(command)
        assert program == "penstock"
        deadline_s = clock.monotonic_s() + 90
        while True:
            done = subprocess.run(
                [sys.executable, "-m", "penstock", *arguments],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            if done.returncode == 0 and re.search(expectation(command), done.stdout):
                break
            # Rows, segments and dead letters come a moment after what makes them; a page cannot
            # say how long, and a reader would ask again.
            assert clock.monotonic_s() < deadline_s, f"{command}\n{done.stdout}\n{done.stderr}"
            assert "Traceback" not in done.stderr
            with pause:
                clock.wait(pause, 0.5)
