"""The task queue under exceptions that nobody expects: `task_queue_faults` has the cases."""

from __future__ import annotations

import itertools

import pytest
from call_faults_kit import FAULTS
from task_queue_faults import OPERATIONS, Operation, pair, single

# Each operation meets one kind of error here; the soak has all of them, before and after each call.
SAMPLE = list(zip(OPERATIONS, itertools.cycle(FAULTS), itertools.cycle([False, True])))


@pytest.mark.parametrize(("operation", "error", "after"), SAMPLE)
def test_no_exception_at_any_call_of_a_port_loses_or_holds_up_a_task(
    operation: Operation, error: type[BaseException], *, after: bool
) -> None:
    assert single(operation, error, after=after, stride=3)


@pytest.mark.parametrize("number", range(20))
def test_no_two_exceptions_lose_or_hold_up_a_task(number: int) -> None:
    pair(number)
