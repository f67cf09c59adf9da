"""`make soak`: tests with large counts, which go on where they were stopped.

    make soak ARGS="sql-wall --total 100000"
    make soak ARGS="faults"

A suite is a function that runs numbered cases and returns the failures. Cases are run in blocks;
after each block, a line is added to `record.jsonl`: commit, tree of the sources, suite, seeds and
result. A run goes on behind the last seed that the record has of the suite for these sources, which
are all of `src` unless `SOURCES` names a part of it.
To add a suite, write such a function and put it into `SUITES`. `faults` is all suites `faults-...`
in turn, each with all of its cases unless `--total` is given.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.soak.faults_suite import FAULT_SUITES

HERE: Final = Path(__file__).parent
RECORD: Final = HERE / "record.jsonl"
# Runs the cases of a block; returns failures, and counts that are worth a line in the record.
Block = Callable[[range], tuple[list[str], dict[str, int]]]
# Names of modules of this folder and of functions in them that give a `Block`; seeds of one block.
# The functions of `FAULT_SUITES` take the name of the suite.
SUITES: Final = {
    "sql-wall": ("sql_wall_suite", "sql_wall", 1_000),
    "sql-plan": ("sql_wall_suite", "sql_plan", 1_000),
    "sql-task": ("sql_wall_suite", "sql_task", 500),
    "sql-task-plan": ("sql_wall_suite", "sql_task_plan", 500),
    "sql-flow": ("sql_wall_suite", "sql_flow", 1_000),
    "sql-flow-plan": ("sql_wall_suite", "sql_flow_plan", 1_000),
    "sql-expression": ("sql_wall_suite", "sql_expression", 1_000),
    "sql-expression-plan": ("sql_wall_suite", "sql_expression_plan", 1_000),
    "fast-path": ("fast_path_suite", "fast_path", 500),
    "open-tables": ("open_tables_suite", "open_tables", 100),
    "open-tables-kills": ("open_tables_kills_suite", "open_tables_kills", 40),
    "hand-offs": ("hand_offs_suite", "hand_offs", 30),
    "spark-sink": ("spark_sink_suite", "spark_sink", 100),
    "properties": ("properties_suite", "properties", 1),
    "bombs": ("bombs_suite", "suite", 10),
    "simulation": ("simulation_suite", "simulation", 50),
    **dict.fromkeys(FAULT_SUITES, ("faults_suite", "faults", 2_000)),
}
# What a suite runs, if it is not all of `src`.
SOURCES: Final = {
    # The compiler, the engine, the text that Spark receives, and the view that it reads.
    "fast-path": (
        "src/penstock/core/sql",
        *(
            f"src/penstock/fastpath/{name}.py"
            for name in (
                "aggregates",
                "casts",
                "comparison",
                "compiled_query",
                "compiler",
                "decimals",
                "engine_process",
                "expressions",
                "fragments",
                "functions",
                "literals",
                "newest_rows",
                "number_functions",
                "snapshot_relations",
            )
        ),
        "src/penstock/spark/ddl.py",
        "src/penstock/spark/sql_guard.py",
        "src/penstock/spark/tables/remote_reads.py",
        "src/penstock/spark/tables/table_columns.py",
        "src/penstock/spark/tables/table_files.py",
        "src/penstock/spark/views.py",
    ),
}
ALL_FAULTS: Final = "faults"
TOTAL: Final = 100_000  # of a suite without an end


def main() -> int:
    """Run a suite; return 1 if a case failed."""
    parser = argparse.ArgumentParser(description="Run a suite with large counts.")
    parser.add_argument("suite", choices=sorted([*SUITES, ALL_FAULTS]))
    parser.add_argument(
        "--total", type=int, help=f"cases, with recorded ones; default: all, or {TOTAL} if endless"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no block later")
    parser.add_argument("--record", type=Path, default=RECORD, help="file that lines are added to")
    given = parser.parse_args()
    until = time.monotonic() + given.seconds
    suites = FAULT_SUITES if given.suite == ALL_FAULTS else (given.suite,)
    failed = [run_suite(suite, given.total, until, given.record) for suite in suites]
    return int(any(failed))


def run_suite(suite: str, total: int | None, until: float, record: Path) -> bool:
    """Run what the record lacks of a suite; return whether a case failed.

    Args:
        suite: Its name.
        total: Number of cases with the recorded ones; None: all of them.
        until: Begin no block after this time of the monotonic clock.
        record: The file to which a line is added for each block.
    """
    module, function, size = SUITES[suite]
    make: Callable[..., AbstractContextManager[Block]]
    make = getattr(importlib.import_module(f"tests.soak.{module}"), function)
    places = SOURCES.get(suite, ("src",))
    sources = _git("rev-parse", *(f"HEAD:{place}" for place in places))
    if len(places) > 1:
        sources = hashlib.sha1(sources.encode(), usedforsecurity=False).hexdigest()
    done = max((one["seeds"][1] for one in _lines(record, suite, sources)), default=0)
    failed = False
    with make(suite) if suite in FAULT_SUITES else make() as run:
        end = getattr(run, "total", TOTAL) if total is None else total
        while done < end and time.monotonic() < until:
            seeds = range(done, min(done + size, end))
            began = time.monotonic()
            failures, counts = run(seeds)
            # The record names no folder of the machine.
            failures = [one.replace(f"{HERE.parents[1]}/", "") for one in failures]
            line = {
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "commit": _git("rev-parse", "--short=12", "HEAD"),
                "src": sources,
                "changed": bool(_git("status", "--porcelain", "--", *places)),
                "suite": suite,
                "seeds": [seeds.start, seeds.stop],
                "of": end,
                "seconds": round(time.monotonic() - began, 1),
                "counts": counts,
                "failures": failures[:20],
            }
            _append(record, json.dumps(line, ensure_ascii=False))
            print(f"{suite}: {seeds.stop} of {end}, {counts}", flush=True)
            for failure in failures[:20]:
                print(failure, flush=True)
            failed |= bool(failures)
            done = seeds.stop
    return failed


def _lines(record: Path, suite: str, sources: str) -> Iterator[dict[str, list[int]]]:
    if not record.exists():
        return
    for text in record.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:  # a run that was killed cut it
            continue
        if line["suite"] == suite and line["src"] == sources and not line["changed"]:
            yield line


def _append(record: Path, line: str) -> None:
    """Append a line; if the last one was cut, the new one begins below it."""
    with record.open("a+b") as out:
        is_cut = out.tell() > 0
        if is_cut:
            out.seek(-1, os.SEEK_END)
            is_cut = out.read() != b"\n"
        out.write(("\n" * is_cut + line + "\n").encode())


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(HERE), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
