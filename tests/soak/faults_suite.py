"""The suite `faults`: all pairs of faults at the ports of each part.

make soak ARGS="faults --total 1000000"

A case number goes to the parts in turn. A part whose cases are all done is left out, so that the
suite is complete when `total` is that of the largest part times the number of parts; the counts
say how many cases each part has. To add a part, give a module of tests a `PAIRS`, and list it here.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parents[1]
# The part, and the module that has its cases as `PAIRS`.
PARTS: Final = {
    "broker": "broker/broker_faults_suite",
    "locks": "indexing/lock_faults",
    "task queue": "indexing/task_queue_faults",
    "supervisor": "indexing/supervisor_faults",
    "worker": "indexing/worker_faults",
    "content": "storage/test_content_faults",
    "disk queue": "storage/test_diskqueue_faults",
    "journal": "storage/test_journal_faults",
    "queue": "flow/test_queue_faults",
    "repository": "flow/test_repository_faults",
    "session": "flow/test_session_faults",
}


@contextmanager
def faults() -> Iterator[Callable[[range], tuple[list[str], dict[str, int]]]]:
    """Give what runs cases of all parts."""
    sys.path[:0] = [str(TESTS / "kits"), str(TESTS / "harness")]
    from faultcases import FaultCases

    logging.disable(logging.CRITICAL)  # each fault is logged
    parts: dict[str, FaultCases] = {}
    for name, module in PARTS.items():
        folder, _, stem = module.rpartition("/")
        if str(TESTS / folder) not in sys.path:
            sys.path.insert(0, str(TESTS / folder))
        parts[name] = importlib.import_module(stem).PAIRS

    def run(numbers: range) -> tuple[list[str], dict[str, int]]:
        failures: list[str] = []
        counts: dict[str, int] = {}
        for place, (name, cases) in enumerate(parts.items()):
            own = [one // len(parts) for one in numbers if one % len(parts) == place]
            found, reached = cases.run([one for one in own if one < cases.total])
            failures += [f"{name}: {one}" for one in found]
            counts[name] = reached
            counts[f"{name} in all"] = cases.total
        return failures, counts

    yield run
