"""Trials: seeds of the simulation with one fault in the product, and the record of their results.

A trial runs only the seeds that execute a changed statement: the others are the same with and
without the fault. `Reach` has these seeds, from a run of the unchanged product, which must pass all
seeds. A trial ends at the first seed that notices the fault: by a violation, or because the product
ended, did not end in time, or used too much memory.

The record has a line for each trial, with the trees of the product and of the simulation. A trial
is not repeated while both are the same, and is continued if more seeds are wanted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.simulation.mutation.catalogue import ROOT, Fault
from tests.simulation.mutation.overlay import sources_with

TRACED: Final = 20
"""Seeds whose lines are recorded, which takes several times as long."""
_STEP: Final = 5
"""Seeds of the unchanged product that are run before the results are stored."""
_RUNNER: Final = "tests.simulation.mutation.seed_runner"
_PLACES: Final = ("src", "tests/harness/cluster_simulation")


class UnsoundProduct(Exception):
    """A seed fails without a fault, so nothing shows whether it notices one."""


@dataclass(frozen=True, slots=True)
class Trees:
    """The sources that a trial depends on, as names in git; `changed`: there are other changes."""

    commit: str
    src: str
    simulation: str
    changed: bool

    @classmethod
    def now(cls) -> Trees:
        """Return the trees of the present commit."""
        src, simulation = (_git("rev-parse", f"HEAD:{place}") for place in _PLACES)
        changed = bool(_git("status", "--porcelain", "--", *_PLACES))
        return cls(_git("rev-parse", "--short=12", "HEAD"), src, simulation, changed)

    def are_those_of(self, line: dict[str, object]) -> bool:
        """Return whether a line of the record is about these trees."""
        same = (line.get("src"), line.get("simulation")) == (self.src, self.simulation)
        return same and not self.changed and not line.get("changed")


@dataclass(frozen=True, slots=True)
class SeedResult:
    """Result of seeds, up to the first that noticed something.

    Attributes:
        run: Number of seeds that were run.
        noticed: The seed that noticed a fault; None: none has.
        how: How it noticed; empty if it did not.
        lines: Executed lines by module, for each seed; only if they were recorded.
    """

    run: int = 0
    noticed: int | None = None
    how: str = ""
    lines: tuple[dict[str, list[int]], ...] = ()


def run_seeds(seeds: Sequence[int], fault: Fault | None, *, records: bool = False) -> SeedResult:
    """Run seeds in a child process with a fault in the product, until one notices it."""
    if not seeds:
        return SeedResult()
    with sources_with(fault) as folder:
        done = subprocess.run(
            [sys.executable, "-m", _RUNNER, *(["--lines"] if records else []), *map(str, seeds)],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
                "PYTHONHASHSEED": "0",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=False,
        )
    return read_result(seeds, done.stdout, done.returncode)


def read_result(seeds: Sequence[int], output: str, code: int) -> SeedResult:
    """Return the result of a child process from its output and its exit code."""
    found = [json.loads(line) for line in output.splitlines() if line.endswith("}")]
    lines = tuple(one.get("lines", {}) for one in found)
    for one in found:
        if one["violation"]:
            return SeedResult(len(found), one["seed"], one["violation"], lines)
    if len(found) < len(seeds):
        how = f"the process ended with code {code}"
        return SeedResult(len(found) + 1, seeds[len(found)], how, lines)
    return SeedResult(len(found), lines=lines)


class Reach:
    """The seeds that execute a changed statement of each fault. Kept in a file beside the record.

    Args:
        path: The file.
        trees: The sources that the seeds were run with.
    """

    def __init__(self, path: Path, trees: Trees) -> None:
        self._path = path
        self._trees = trees
        self._lines: list[dict[str, list[int]]] = []
        self._passed = 0
        if path.exists() and trees.are_those_of(kept := json.loads(path.read_text())):
            self._lines, self._passed = kept["lines"], kept["passed"]

    def require(self, seeds: int) -> None:
        """Run the unchanged product with the seeds below a number, unless that was done.

        Raises:
            UnsoundProduct: A seed fails.
        """
        traced = min(seeds, TRACED)
        while len(self._lines) < traced:
            first = len(self._lines)
            self._run(range(first, min(first + _STEP, traced)), records=True)
        while self._passed < seeds:
            self._run(range(self._passed, min(self._passed + _STEP, seeds)), records=False)

    def _run(self, seeds: range, *, records: bool) -> None:
        result = run_seeds(seeds, None, records=records)
        if result.noticed is not None:
            raise UnsoundProduct(f"seed {result.noticed} fails without a fault: {result.how}")
        self._lines += result.lines if records else ()
        self._passed = max(self._passed, seeds.stop)
        kept = {**asdict(self._trees), "passed": self._passed, "lines": self._lines}
        self._path.write_text(json.dumps(kept), encoding="utf-8")

    def seeds_of(self, fault: Fault, seeds: range) -> list[int]:
        """Return the seeds of a range that execute a changed statement of a fault, or may do so."""
        changed = fault.lines()
        if changed is None:
            imported = any(one.get(fault.file) for one in self._lines)
            return list(seeds) if imported else []
        return [
            seed
            for seed in seeds
            if seed >= len(self._lines)
            or not changed.isdisjoint(self._lines[seed].get(fault.file, ()))
        ]


@dataclass(frozen=True, slots=True)
class Trial:
    """Seeds with one fault.

    Attributes:
        fault: The fault.
        seeds: The seeds below this number were tried.
        reached: Number of them that execute a changed statement.
        noticed: The seed that noticed it; None: none has.
        how: How it noticed.
    """

    fault: Fault
    seeds: int = 0
    reached: int = 0
    noticed: int | None = None
    how: str = ""

    def is_enough(self, seeds: int) -> bool:
        """Return whether nothing is left to try with a number of seeds."""
        return self.noticed is not None or self.seeds >= seeds

    def within(self, seeds: int) -> bool:
        """Return whether one of the first seeds noticed it."""
        return self.noticed is not None and self.noticed < seeds


class Record:
    """The trials that were made, in a file to which lines are added.

    Args:
        path: The file.
        trees: Trials of other trees do not count.
    """

    def __init__(self, path: Path, trees: Trees) -> None:
        self._path = path
        self._trees = trees

    def trials(self, faults: Iterable[Fault]) -> dict[str, Trial]:
        """Return the newest trial of each fault, by its id; an empty one if there is none."""
        known = {(fault.id, fault.digest): fault for fault in faults}
        found = {fault.id: Trial(fault) for fault in known.values()}
        for line in self._read():
            fault = known.get((str(line["fault"]), str(line["digest"])))
            if fault is not None and self._trees.are_those_of(line):
                found[fault.id] = Trial(
                    fault,
                    int(str(line["seeds"])),
                    int(str(line["reached"])),
                    None if line["noticed"] is None else int(str(line["noticed"])),
                    str(line["how"]),
                )
        return found

    def add(self, trial: Trial, seconds: float) -> None:
        """Add the result of a trial."""
        line = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            **asdict(self._trees),
            "fault": trial.fault.id,
            "part": trial.fault.part,
            "digest": trial.fault.digest,
            "seeds": trial.seeds,
            "reached": trial.reached,
            "noticed": trial.noticed,
            "how": trial.how.replace(f"{ROOT}/", ""),
            "seconds": round(seconds, 1),
        }
        with self._path.open("a", encoding="utf-8") as out:
            out.write(f"{json.dumps(line, ensure_ascii=False)}\n")

    def _read(self) -> Iterator[dict[str, object]]:
        if not self._path.exists():
            return
        for text in self._path.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(text)
            except json.JSONDecodeError:  # a run that was killed cut it
                continue


def carry_on(trial: Trial, seeds: int, reach: Reach, record: Record) -> Trial:
    """Try the seeds that a trial lacks, and record the result."""
    began_s = time.monotonic()
    wanted = reach.seeds_of(trial.fault, range(trial.seeds, seeds))
    result = run_seeds(wanted, trial.fault)
    done = Trial(
        trial.fault,
        seeds,
        trial.reached + len(wanted),
        result.noticed,
        result.how,
    )
    record.add(done, time.monotonic() - began_s)
    return done


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
