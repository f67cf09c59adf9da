"""`make soak`: tests with large counts, which go on where they were stopped.

    make soak ARGS="sql-wall --total 100000"

A suite is a function that runs numbered cases and returns the failures. Cases are run in blocks;
after each block, a line is added to `record.jsonl`: commit, tree of the sources, suite, seeds and
result. A run goes on behind the last seed that the record has of the suite for these sources.
To add a suite, write such a function and put it into `SUITES`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
RECORD: Final = HERE / "record.jsonl"
# Runs the cases of a block; returns failures, and counts that are worth a line in the record.
Block = Callable[[range], tuple[list[str], dict[str, int]]]
# Names of modules and of functions in them that give a `Block`; seeds of one block.
SUITES: Final = {
    "sql-wall": ("sql_wall_suite", "sql_wall", 1_000),
    "sql-plan": ("sql_wall_suite", "sql_plan", 1_000),
    "hand-offs": ("hand_offs_suite", "hand_offs", 30),
    "faults": ("faults_suite", "faults", 7_000),
    "properties": ("properties_suite", "properties", 1),
    "bombs": ("bombs_suite", "suite", 10),
    "simulation": ("simulation_suite", "simulation", 50),
}


def main() -> int:
    """Run a suite; return 1 if a case failed."""
    parser = argparse.ArgumentParser(description="Run a suite with large counts.")
    parser.add_argument("suite", choices=sorted(SUITES))
    parser.add_argument("--total", type=int, default=100_000, help="cases, with recorded ones")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no block later")
    parser.add_argument("--record", type=Path, default=RECORD, help="file that lines are added to")
    given = parser.parse_args()
    module, function, size = SUITES[given.suite]
    sys.path.insert(0, str(HERE))
    made: AbstractContextManager[Block] = getattr(importlib.import_module(module), function)()
    sources = _git("rev-parse", "HEAD:src")
    done = max((one["seeds"][1] for one in _lines(given.record, given.suite, sources)), default=0)
    began = time.monotonic()
    failed = False
    with made as run:
        while done < given.total and time.monotonic() - began < given.seconds:
            seeds = range(done, min(done + size, given.total))
            block_began = time.monotonic()
            failures, counts = run(seeds)
            line = {
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "commit": _git("rev-parse", "--short=12", "HEAD"),
                "src": sources,
                "changed": bool(_git("status", "--porcelain", "--", "src")),
                "suite": given.suite,
                "seeds": [seeds.start, seeds.stop],
                "seconds": round(time.monotonic() - block_began, 1),
                "counts": counts,
                "failures": failures[:20],
            }
            with given.record.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line, ensure_ascii=False) + "\n")
            print(f"{given.suite}: {seeds.stop} of {given.total}, {counts}", flush=True)
            for failure in failures:
                print(failure, flush=True)
            failed |= bool(failures)
            done = seeds.stop
    return int(failed)


def _lines(record: Path, suite: str, sources: str) -> Iterator[dict[str, list[int]]]:
    if not record.exists():
        return
    for text in record.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if line["suite"] == suite and line["src"] == sources and not line["changed"]:
            yield line


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(HERE), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
