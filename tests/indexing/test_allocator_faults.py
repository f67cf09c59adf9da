"""The allocation of segment ids under unexpected exceptions: `allocator_faults` has the worlds."""

from __future__ import annotations

import pytest
from allocator_faults import INSIDE, OPERATIONS, Operation, attempt, attempt_round, divide
from call_faults_kit import FAULTS

CALLS_MAX = 10_000


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_no_exception_at_any_call_of_a_port_leaves_a_request_waiting(
    operation: Operation, *, after: bool
) -> None:
    for error in FAULTS:
        for at in range(CALLS_MAX):
            armed = lambda faults: faults.armed(error, at, after=after)  # noqa: B023, E731
            if not attempt(operation, armed, f"{error.__name__} at {at}, after: {after}"):
                break
        assert at > (0 if operation is divide else 3)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.__name__)
def test_memory_may_run_out_in_any_function_of_an_allocation(operation: Operation) -> None:
    for at in range(CALLS_MAX):
        armed = lambda faults: faults.armed_inside(INSIDE[:1], MemoryError, at)  # noqa: B023, E731
        if not attempt(operation, armed, f"no memory at {at}"):
            break
    assert at > 3


@pytest.mark.parametrize("is_bad", [False, True], ids=["together", "one by one"])
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, RuntimeError])
def test_a_round_that_raises_in_any_function_answers_all_requests_that_it_took(
    error: type[BaseException], *, is_bad: bool
) -> None:
    for at in range(CALLS_MAX):
        armed = lambda faults: faults.armed_inside(INSIDE, error, at)  # noqa: B023, E731
        if not attempt_round(armed, f"{error.__name__} at {at}", is_bad=is_bad):
            break
    assert at > 8


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_round_whose_transaction_raises_answers_all_requests(*, after: bool) -> None:
    for error in FAULTS:
        armed = lambda faults: faults.armed(error, 0, after=after)  # noqa: B023, E731
        assert attempt_round(armed, f"{error.__name__}, after: {after}")
