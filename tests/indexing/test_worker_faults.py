"""The worker under exceptions that nobody expects: `worker_faults_suite` has the cases."""

from __future__ import annotations

import itertools

import pytest

from penstock.core.errors import Unavailable
from tests.harness.call_faults_kit import FAULTS
from tests.indexing.worker_faults_suite import (
    INSIDE,
    OPERATIONS,
    Operation,
    attempt,
    count,
    lose,
    pair,
    take,
)
from tests.kits.fault_cases_kit import FaultPlan

# Each operation meets one kind of error here; the soak has all kinds, before and after each call.
SAMPLE = list(zip(OPERATIONS, itertools.cycle(FAULTS), itertools.cycle([False, True])))


@pytest.mark.parametrize(("operation", "error", "after"), SAMPLE)
def test_no_exception_at_any_call_of_a_port_loses_or_doubles_a_task(
    operation: Operation, error: type[BaseException], *, after: bool
) -> None:
    for at in range(0, min(count(operation), 40), 2):
        assert attempt(operation, FaultPlan(error, at, after)).raised


@pytest.mark.parametrize("number", range(20))
def test_no_two_exceptions_lose_or_double_a_task(number: int) -> None:
    pair(number)


@pytest.mark.parametrize(("operation", "at"), [*zip(OPERATIONS, itertools.count(10, 14))])
def test_memory_may_run_out_in_a_function(operation: Operation, at: int) -> None:
    """One function of each operation; the soak has all of them."""
    assert attempt(operation, FaultPlan(MemoryError, at, inside=INSIDE)).raised


@pytest.mark.parametrize("call", ["size", "pread", "close"])
def test_a_log_that_cannot_be_read_does_not_end_the_worker(call: str) -> None:
    """The last lines of the log are read for the error of a task that failed."""
    raised = {at: attempt(lose, FaultPlan(Unavailable, at)).raised for at in range(6, 9)}
    assert f"_ReadFile.{call}" in raised.values(), raised


def test_a_task_that_is_refused_leaves_no_folder() -> None:
    """The next worker would start it, though the overlord gave it to another one meanwhile."""
    plans = [FaultPlan(Unavailable, at) for at in range(count(take))]
    raised = {attempt(take, plan).raised for plan in plans[:12]}
    assert "VirtualClock.monotonic_s" in raised
