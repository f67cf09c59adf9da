"""The wheel alone: `scripts/setup wheel` installs it for each Python of the machine.

The commands run in an empty folder, without make, without a checkout and without its packages.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from serving import until

ROOT = Path(__file__).parent.parent.parent
INSTALLED = sorted((ROOT / ".venv" / "wheel").glob("3.*"), key=lambda path: int(path.name[2:]))
# The demo uses all there is. Each other Python takes events in and gives SQL out, but for the one
# that runs all other tests: that one only has to find everything in the wheel.
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
DEMO = INSTALLED[-1:]
OTHERS = [home for home in INSTALLED[:-1] if home.name != OWN]
LIMIT_S = 300
# See tests/conftest.py.
KEPT = {"PENSTOCK_SPARK_JAVA_OPTIONS", "PENSTOCK_QUERY_MEMORY"}

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder: where a user stands."""
    made = tmp_path / "empty"
    made.mkdir()
    return made


def environment(home: Path) -> dict[str, str]:
    """Environment of a user who has activated the installation."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT or not name.startswith(("PENSTOCK_", "PYTEST_", "PYTHON", "VIRTUAL_ENV"))
    }
    # The first Spark of an installation records its classes, and writes an archive of 200 MB at its
    # end. Without a cache folder it does neither, which takes half the time of these tests less.
    return kept | {
        "PATH": f"{home / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "COLUMNS": "100",
        "XDG_CACHE_HOME": os.devnull,
    }


def run(home: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [home / "bin" / "penstock", *arguments],
        cwd=folder,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def penstock(home: Path, folder: Path, *arguments: str) -> str:
    """Run a command that has to succeed and return what it printed."""
    done = run(home, folder, *arguments)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def up(home: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run `penstock up` in the folder, on free ports."""
    ports = [f"--{name}=127.0.0.1:0" for name in ("http", "broker-http", "broker-tcp")]
    process = subprocess.Popen(
        [home / "bin" / "penstock", "up", "--data-dir", "data", *ports],
        cwd=folder,
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("ready after"):
                break
        else:
            pytest.fail("penstock up ended:\n" + "".join(lines))
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_the_wheel_is_installed_for_this_python_at_least() -> None:
    assert INSTALLED, "run scripts/setup wheel; make test does"


@pytest.mark.parametrize("home", INSTALLED, ids=lambda home: home.name)
def test_the_command_needs_no_checkout(home: Path, folder: Path) -> None:
    assert re.fullmatch(r"penstock \d+\.\d+\.\d+\n", penstock(home, folder, "--version"))
    penstock(home, folder, "init", "examples")
    assert {path.name for path in folder.iterdir()} == {"examples"}


@pytest.mark.parametrize("home", OTHERS, ids=lambda home: home.name)
def test_events_in_and_sql_out(home: Path, folder: Path) -> None:
    penstock(home, folder, "init", "examples")
    with up(home, folder):
        asking = ("--data-dir", "data")
        penstock(home, folder, "topic", "create", "clicks", "--partitions", "2", *asking)
        penstock(
            *(home, folder, "supervisor", "submit", "examples/clicks-supervisor.json", *asking)
        )
        event = '{"time": "2026-11-21T10:00:00Z", "page": "/", "ms": 12}'
        penstock(home, folder, "pub", "--topic", "clicks", event, *asking)

        def visible() -> bool:
            query = ("sql", "SELECT page, ms FROM clicks", "--format", "csv")
            done = run(home, folder, *query, *asking)
            return done.stdout.splitlines()[1:] == ["/,12"]

        until("the event in SQL", visible)
    assert {path.name for path in folder.iterdir()} == {"data", "examples"}


@pytest.mark.parametrize("home", DEMO, ids=lambda home: home.name)
def test_the_demo_runs_without_a_checkout(home: Path, folder: Path) -> None:
    shown = penstock(home, folder, "demo")
    assert "✗" not in shown
    assert "distance flown, miles: 350,217,607" in shown
    progress = [line for line in shown.splitlines() if " rows/s, lag " in line]
    assert all(len(line) < 80 for line in progress), shown
    assert {path.name for path in folder.iterdir()} == {"demo-data"}
