"""The broker under exceptions that nobody expects, at the calls of its ports."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest

from tests.broker.broker_faults_suite import INSIDE, OPERATIONS, PAIRS, Operation, call_count, play
from tests.harness.call_faults_kit import FAULTS
from tests.kits.fault_cases_kit import FaultPlan

# A task or thread that is refused leaves a coroutine that nobody awaits.
pytestmark = [
    pytest.mark.usefixtures("deaths", "_collected"),
    pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CALLS = 2
CALLS_INSIDE = 2
SAMPLE = 20


@pytest.fixture
def _collected() -> Iterator[None]:
    """Have such coroutines collected within the test, whose warnings are ignored.

    A log record that is kept would keep them by its traceback.
    """
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    gc.collect(1)  # what the test made; all would take seconds at the end of a run


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.__name__)
def test_a_fault_at_any_call_of_an_operation_loses_and_stops_nothing(operation: Operation) -> None:
    failed = []
    count = call_count(operation)
    # Evenly spread; `make soak` takes all.
    for number, at in enumerate(range(0, count, -(-count // CALLS))):
        plan = FaultPlan(FAULTS[number % len(FAULTS)], at, after=bool(number % 2))
        raised, problems = play(operation, plan)
        if problems:
            failed.append(f"{plan}, at {raised}: {'; '.join(problems)}")
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.__name__)
def test_no_memory_in_a_function_of_topics_or_channels_loses_and_stops_nothing(
    operation: Operation,
) -> None:
    failed = []
    count = call_count(operation, inside=True)
    for at in range(0, count, max(1, -(-count // CALLS_INSIDE))):
        plan = FaultPlan(MemoryError, at, inside=INSIDE)
        raised, problems = play(operation, plan)
        if problems:
            failed.append(f"{plan}, at {raised}: {'; '.join(problems)}")
    assert not failed, "\n".join(failed)


def test_a_sync_that_fails_before_it_begins_does_not_block_the_loop() -> None:
    """A journal at its close waited for a task that had ended, and never let the loop go on."""
    operation = next(one for one in OPERATIONS if one.__name__ == "dead_letters")
    met = set()
    for at in range(call_count(operation, inside=True) - 30, call_count(operation, inside=True)):
        raised, problems = play(operation, FaultPlan(MemoryError, at, inside=INSIDE))
        assert not problems, (at, raised, problems)
        met.add(raised.rpartition(".")[2])
    assert {"_sync", "_sync_all"} <= met, met


def test_a_sample_of_faults_and_pairs_of_faults() -> None:
    failures, reached = PAIRS.run(range(SAMPLE))
    assert not failures, "\n".join(failures)
    assert reached >= 10
