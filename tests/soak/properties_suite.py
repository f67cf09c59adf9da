"""Property-based tests as a suite of `make soak`: a case is one seed of all of them.

make soak ARGS="properties --total 20"
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent.parent
_PROPERTIES: Final = re.compile(r"^from hypothesis import|^import hypothesis", re.MULTILINE)
_FAILURE: Final = re.compile(r"^(?:FAILED|ERROR) .*$", re.MULTILINE)
_PASSED: Final = re.compile(r"(\d+) passed")
# They need a Spark, and each has a number of examples of its own.
_LEFT_OUT: Final = frozenset({"spark", "system"})


def files() -> list[str]:
    """Return the test modules that have properties."""
    return [
        str(path)
        for path in sorted(TESTS.rglob("test_*.py"))
        if path.parent.name not in _LEFT_OUT and _PROPERTIES.search(path.read_text())
    ]


def _run(seeds: range) -> tuple[list[str], dict[str, int]]:
    failures: list[str] = []
    passed = 0
    for seed in seeds:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-n",
                "2",
                f"--hypothesis-seed={seed}",
                *files(),
            ],
            env={**os.environ, "HYPOTHESIS_PROFILE": "soak"},
            capture_output=True,
            text=True,
            check=False,
        )
        found = [f"seed {seed}: {line}" for line in _FAILURE.findall(done.stdout)]
        if done.returncode and not found:
            found = [f"seed {seed}: exit code {done.returncode}: {done.stdout[-1_000:]}"]
        failures += found
        passed += sum(map(int, _PASSED.findall(done.stdout)))
    return failures, {"passed": passed}


@contextmanager
def properties() -> Iterator[Callable[[range], tuple[list[str], dict[str, int]]]]:
    """Give what runs seeds."""
    yield _run
