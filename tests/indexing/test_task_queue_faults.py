"""The task queue under exceptions that nobody expects: `task_queue_faults_suite` has the cases."""

from __future__ import annotations

import itertools

import pytest

from tests.harness.call_faults_kit import FAULTS
from tests.indexing.task_queue_faults_suite import (
    INSIDE,
    OPERATIONS,
    Operation,
    attempt,
    count,
    pair,
)
from tests.kits.fault_cases_kit import FaultPlan

# Each operation meets one kind of error here; the soak has all kinds, before and after each call.
SAMPLE = list(zip(OPERATIONS, itertools.cycle(FAULTS), itertools.cycle([False, True])))


@pytest.mark.parametrize(("operation", "error", "after"), SAMPLE)
def test_no_exception_at_any_call_of_a_port_loses_or_holds_up_a_task(
    operation: Operation, error: type[BaseException], *, after: bool
) -> None:
    for at in range(0, count(operation), 6):
        assert attempt(operation, FaultPlan(error, at, after)).raised


@pytest.mark.parametrize("number", range(10))
def test_no_two_exceptions_lose_or_hold_up_a_task(number: int) -> None:
    pair(number)


@pytest.mark.parametrize(("operation", "at"), [*zip(OPERATIONS, itertools.count(30, 60))])
def test_memory_may_run_out_in_a_function(operation: Operation, at: int) -> None:
    """One function of each operation; the soak has all of them."""
    assert attempt(operation, FaultPlan(MemoryError, at, inside=INSIDE)).raised
