"""The supervisor under exceptions that nobody expects: `supervisor_faults` has the cases."""

from __future__ import annotations

import itertools

import pytest
from supervisor_faults import OPERATIONS, Operation, attempt, hand_off, pair, single, terminate

from penstock.core.errors import Unavailable
from penstock.testing.injection import FAULTS

# Each operation meets one kind of error here; the soak has pairs of all kinds.
SAMPLE = list(zip(OPERATIONS, itertools.cycle(FAULTS), itertools.cycle([False, True])))


@pytest.mark.parametrize(("operation", "error", "after"), SAMPLE)
def test_no_exception_at_any_call_of_a_port_loses_or_doubles_a_message(
    operation: Operation, error: type[BaseException], *, after: bool
) -> None:
    assert single(operation, error, after=after, stride=31)


@pytest.mark.parametrize("number", range(20))
def test_no_two_exceptions_lose_or_double_a_message(number: int) -> None:
    pair(number)


@pytest.mark.parametrize(("operation", "at"), [(hand_off, 4), (terminate, 6)])
def test_a_client_of_tasks_that_cannot_be_made_leaves_no_group_waiting(
    operation: Operation, at: int
) -> None:
    assert attempt(operation, Unavailable, at) == "SupervisorWorld.within"
