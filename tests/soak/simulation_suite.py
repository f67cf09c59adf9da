"""Seeds of the simulated cluster as a suite of `make soak`.

make soak ARGS="simulation --total 1000"
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.harness.cluster_simulation.run import run_seed


def _run(seeds: range) -> tuple[list[str], dict[str, int]]:
    failures: list[str] = []
    counts: Counter[str] = Counter()
    for seed in seeds:
        outcome = run_seed(seed)
        if outcome.violation:
            failures.append(f"seed {seed}: {outcome.violation}")
        counts += Counter(commits=outcome.commits, faults=sum(outcome.faults.values()))
    return failures, dict(counts)


@contextmanager
def simulation() -> Iterator[Callable[[range], tuple[list[str], dict[str, int]]]]:
    """Give what runs seeds."""
    yield _run
