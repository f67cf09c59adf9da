"""The supervisor under exceptions that nobody expects: `supervisor_faults` has the cases."""

from __future__ import annotations

import itertools

import pytest
from call_faults_kit import FAULTS
from supervisor_faults import (
    OPERATIONS,
    Operation,
    adopt,
    attempt,
    fail,
    hand_off,
    look,
    pair,
    prepare,
    single,
    submit,
    terminate,
)

from penstock.core.errors import Unavailable

# Each operation meets one kind of error here; the soak has pairs of all kinds.
SAMPLE = list(zip(OPERATIONS, itertools.cycle(FAULTS), itertools.cycle([False, True])))


@pytest.mark.parametrize(("operation", "error", "after"), SAMPLE)
def test_no_exception_at_any_call_of_a_port_loses_or_doubles_a_message(
    operation: Operation, error: type[BaseException], *, after: bool
) -> None:
    assert single(operation, error, after=after, stride=31)


@pytest.mark.parametrize("number", [*range(20), 760, 1311, 1783, 2455, 2521])
def test_no_two_exceptions_lose_or_double_a_message(number: int) -> None:
    pair(number)


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
    (terminate, 97, "FakeBroker.drop_cursor"),
]


@pytest.mark.parametrize(("operation", "at", "call"), ANSWERED)
def test_a_call_that_fails_leaves_nobody_waiting(operation: Operation, at: int, call: str) -> None:
    assert attempt(operation, Unavailable, at) == call


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_group_whose_only_task_does_not_answer_is_asked_again_for_its_end(*, after: bool) -> None:
    raised = attempt(hand_off, Unavailable, 9, after=after, replicas=1)
    assert raised == "SupervisorWorld.pause"


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
