"""The suites `faults-...`: all pairs of faults at the ports of a part; `faults` runs all of them.

make soak ARGS="faults"
make soak ARGS="faults-journal"

A suite ends when all cases of its part are done. The counts say in how many all of their faults
were raised. The cases of a part NAME-one are all kinds of exceptions at all calls of ports in all
operations, one at a time; those of NAME-inside are a MemoryError at all calls of functions. To add
a part, give a module of tests a `PAIRS`, and list it here.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.kits.fault_cases_kit import DrawnCases, FaultCases

TESTS: Final = Path(__file__).parents[1]
# The part, and the module of tests that has its cases as `PAIRS`, or as what the function after the
# colon returns.
PARTS: Final = {
    "broker": "broker.broker_faults_suite",
    "client-inside": "client.test_client_faults:insides",
    "locks": "indexing.lock_faults_suite",
    "task-queue": "indexing.task_queue_faults_suite",
    "supervisor": "indexing.supervisor_faults_suite",
    "worker": "indexing.worker_faults_suite",
    "content": "storage.test_content_faults",
    "disk-queue": "storage.test_diskqueue_faults",
    "journal": "storage.test_journal_faults",
    "metadata": "storage.test_metadata_faults",
    "queue": "flow.test_queue_faults",
    "repository": "flow.test_repository_faults",
    "session": "flow.test_session_faults",
    "allocator": "indexing.allocator_faults_suite",
    "allocator-one": "indexing.allocator_faults_suite:singles",
    "allocator-inside": "indexing.allocator_faults_suite:insides",
    "locks-one": "indexing.lock_faults_suite:singles",
    "task-queue-one": "indexing.task_queue_faults_suite:singles",
    "task-queue-inside": "indexing.task_queue_faults_suite:insides",
    "supervisor-one": "indexing.supervisor_faults_suite:singles",
    "supervisor-inside": "indexing.supervisor_faults_suite:insides",
    "worker-one": "indexing.worker_faults_suite:singles",
    "worker-inside": "indexing.worker_faults_suite:insides",
}
# All suites of this module.
FAULT_SUITES: Final = tuple(f"faults-{part}" for part in PARTS)


class PartSuite:
    """The numbered cases of one part.

    Attributes:
        total: How many there are.
    """

    def __init__(self, cases: FaultCases | DrawnCases) -> None:
        self.total = cases.total
        self._cases = cases

    def __call__(self, numbers: range) -> tuple[list[str], dict[str, int]]:
        """Run cases; return failures, and in how many cases all faults were raised."""
        failures, raised = self._cases.run(numbers)
        return failures, {"pairs": raised} if isinstance(raised, int) else asdict(raised)


@contextmanager
def faults(suite: str) -> Iterator[PartSuite]:
    """Give what runs the cases of the part of a suite."""
    module, _, function = PARTS[suite.removeprefix("faults-")].partition(":")
    logging.disable(logging.CRITICAL)  # each fault is logged
    found = importlib.import_module(f"tests.{module}")
    yield PartSuite(getattr(found, function)() if function else found.PAIRS)
