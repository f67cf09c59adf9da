"""The supervisor under exceptions that nobody expects: `supervisor_faults_suite` has the cases."""

from __future__ import annotations

import itertools

import pytest

from penstock.core.errors import PenstockError, Unavailable
from tests.harness.call_faults_kit import FAULTS
from tests.indexing.supervisor_faults_suite import (
    INSIDE,
    OPERATIONS,
    Operation,
    adopt,
    attempt,
    backfill,
    fail,
    hand_off,
    look,
    pair,
    prepare,
    resume,
    submit,
    terminate,
)
from tests.kits.fault_cases_kit import FaultPlan

# Each operation meets one kind of error at two of its 90 to 290 calls; the soak has all kinds,
# before and after each call.
SAMPLE = list(zip(OPERATIONS, itertools.cycle(FAULTS), itertools.cycle([False, True])))


@pytest.mark.parametrize(("operation", "error", "after"), SAMPLE)
def test_no_exception_at_any_call_of_a_port_loses_or_doubles_a_message(
    operation: Operation, error: type[BaseException], *, after: bool
) -> None:
    for at in (9, 81):
        assert attempt(operation, FaultPlan(error, at, after)).raised


@pytest.mark.parametrize("number", range(3))
def test_no_two_exceptions_lose_or_double_a_message(number: int) -> None:
    pair(number)


# Pairs that lost or delayed messages once: operation, first fault, second one, and replicas.
FOUND = [
    (hand_off, FaultPlan(OSError, 13, after=True, then=(KeyboardInterrupt, 12)), 2),
    (hand_off, FaultPlan(KeyboardInterrupt, 11, then=(KeyboardInterrupt, 2)), 1),
    (backfill, FaultPlan(RuntimeError, 27, after=True, then=(PenstockError, 1)), 1),
    (backfill, FaultPlan(MemoryError, 29, then=(PenstockError, 3)), 1),
    (resume, FaultPlan(MemoryError, 1, after=True, then=(Unavailable, 3)), 2),
]


@pytest.mark.parametrize(("operation", "plan", "replicas"), FOUND)
def test_pairs_that_failed_once(operation: Operation, plan: FaultPlan, replicas: int) -> None:
    assert ", then " in attempt(operation, plan, replicas=replicas).raised


@pytest.mark.parametrize(("operation", "at"), [*zip(OPERATIONS, itertools.count(40, 35))])
def test_memory_may_run_out_in_a_function(operation: Operation, at: int) -> None:
    """One function of each operation; the soak has all of them."""
    assert attempt(operation, FaultPlan(MemoryError, at, inside=INSIDE)).raised


# The number of a call in an operation, and which call that is: where a failure is an answer, so
# that the loop goes on with what it has noted before the call.
ANSWERED = [
    (hand_off, 4, "SupervisorWorld.within"),  # before an agreement
    (terminate, 6, "SupervisorWorld.within"),
    (adopt, 17, "SupervisorWorld.within"),  # before a question
    (look, 76, "SupervisorWorld.within"),  # before a catch-up
    (submit, 27, "TaskQueue.add"),
    (hand_off, 106, "TaskQueue.shutdown"),  # of a replica
    (look, 6, "FakeBroker.available"),
    (look, 7, "SupervisorWorld.report"),  # a question
    (look, 53, "SupervisorWorld.pause"),  # one of two in an agreement
    (look, 57, "SupervisorWorld.set_end_offsets"),
    (look, 90, "SupervisorWorld.report"),  # a catch-up
    (fail, 120, "MemoryDatabase.read"),  # the committed offsets, when they moved last
    (look, 118, "FakeBroker.set_cursor"),
    (terminate, 87, "FakeBroker.drop_cursor"),
]


@pytest.mark.parametrize(("operation", "at", "call"), ANSWERED)
def test_a_call_that_fails_leaves_nobody_waiting(operation: Operation, at: int, call: str) -> None:
    assert attempt(operation, FaultPlan(Unavailable, at)).raised == call


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_group_whose_only_task_does_not_answer_is_asked_again_for_its_end(*, after: bool) -> None:
    faults = attempt(hand_off, FaultPlan(Unavailable, 9, after), replicas=1)
    assert faults.raised == "SupervisorWorld.pause"


def test_a_supervisor_that_has_ended_is_reported_once() -> None:
    """A request after its end must not remove another supervisor that got its id meanwhile."""
    world = prepare(hand_off, replicas=1)
    (one,) = world.every()
    world.ask(one.stop)
    world.wait(lambda: world.every() == [], "stopped")
    world.ask(lambda: world.supervisors.put(world.spec))
    (other,) = world.every()
    assert other is not one
    world.ask(one._state.request_round)
    assert world.every() == [other]
