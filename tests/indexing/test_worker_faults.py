"""The worker under exceptions that nobody expects: `worker_faults` has the cases."""

from __future__ import annotations

import itertools

import pytest
from call_faults_kit import FAULTS
from worker_faults import OPERATIONS, Operation, pair, report, single

# Each operation meets one kind of error here; the soak has all of them, before and after each call.
SAMPLE = list(zip(OPERATIONS, itertools.cycle(FAULTS), itertools.cycle([False, True])))


@pytest.mark.parametrize(("operation", "error", "after"), SAMPLE)
def test_no_exception_at_any_call_of_a_port_loses_or_doubles_a_task(
    operation: Operation, error: type[BaseException], *, after: bool
) -> None:
    assert single(operation, error, after=after, stride=2) or operation is report


@pytest.mark.parametrize("number", range(20))
def test_no_two_exceptions_lose_or_double_a_task(number: int) -> None:
    pair(number)
