"""Benchmarks that report memory report that of their own process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_no_benchmark_uses_a_peak_that_begins_with_the_parent() -> None:
    found = [
        path.name for path in (ROOT / "benchmarks").glob("*.py") if "getrusage" in path.read_text()
    ]
    assert found == []


def test_the_peak_of_a_child_does_not_count_its_parent() -> None:
    # The middle process holds 300 MB when it starts the last one, which prints its own peak.
    last = "from benchmarks.processes import peak_mib; print(peak_mib())"
    middle = (
        "import subprocess, sys; held = b'x' * 300_000_000; "
        f"print(subprocess.check_output([sys.executable, '-c', {last!r}], text=True))"
    )
    command = [sys.executable, "-c", middle]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert 1 < float(done.stdout) < 250


def test_each_benchmark_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    package = tmp_path / "benchmarks"
    package.mkdir()
    for name in ("__init__.py", "__main__.py", "table.py"):
        shutil.copy(ROOT / "benchmarks" / name, package / name)
    pids = tmp_path / "pids"
    stub = (
        "import os\n"
        "def run():\n"
        f"    with open({str(pids)!r}, 'a') as file:\n"
        "        file.write(f'{os.getpid()}\\n')\n"
        "    return []\n"
    )
    for name in ("broker", "flow"):
        (package / f"{name}.py").write_text(stub)
    command = [sys.executable, "-m", "benchmarks", "broker", "flow"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        _, said = process.communicate()
    assert process.returncode == 0, said
    first, second = map(int, pids.read_text().split())
    assert len({process.pid, first, second}) == 3


def test_an_unknown_benchmark_is_refused_with_the_known_ones() -> None:
    command = [sys.executable, "-m", "benchmarks", "mailbox", "nothing"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("unknown benchmark nothing: use mailbox, storage")
