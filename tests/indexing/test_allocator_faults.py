"""Allocation of segment ids under unexpected errors: `allocator_faults_suite` has the worlds."""

from __future__ import annotations

import itertools

import pytest

from penstock.core.errors import PenstockError
from tests.harness.call_faults_kit import FAULTS
from tests.indexing.allocator_faults_suite import (
    INSIDE,
    INSIDE_ROUND,
    OPERATIONS,
    Operation,
    attempt,
    attempt_round,
    count,
    pair,
)
from tests.kits.fault_cases_kit import FaultPlan

CALLS_MAX = 10_000
# Each operation meets one kind of error here; the soak has all kinds, before and after each call.
SAMPLE = list(zip(OPERATIONS, itertools.cycle(FAULTS), itertools.cycle([False, True])))


@pytest.mark.parametrize(("operation", "error", "after"), SAMPLE)
def test_no_exception_at_any_call_of_a_port_leaves_a_request_waiting(
    operation: Operation, error: type[BaseException], *, after: bool
) -> None:
    for at in range(count(operation)):
        assert attempt(operation, FaultPlan(error, at, after)).raised


@pytest.mark.parametrize("number", range(20))
def test_no_two_exceptions_leave_a_request_waiting(number: int) -> None:
    pair(number)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.__name__)
def test_memory_may_run_out_in_any_function_of_an_allocation(operation: Operation) -> None:
    for at in range(count(operation, INSIDE)):
        assert attempt(operation, FaultPlan(MemoryError, at, inside=INSIDE)).raised


@pytest.mark.parametrize("is_bad", [False, True], ids=["together", "one by one"])
def test_a_round_that_raises_in_any_function_answers_all_requests_that_it_took(
    *, is_bad: bool
) -> None:
    for at in range(CALLS_MAX):
        error = (MemoryError, KeyboardInterrupt, RuntimeError, PenstockError)[at % 4]
        if not attempt_round(FaultPlan(error, at, inside=INSIDE_ROUND), is_bad=is_bad):
            break
    assert at > 8


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_round_whose_transaction_raises_answers_all_requests(*, after: bool) -> None:
    for error in FAULTS:
        assert attempt_round(FaultPlan(error, 0, after))
