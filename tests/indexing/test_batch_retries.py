"""Retries of a batch task: calls that succeed late, that fail, that are stopped."""

from __future__ import annotations

from typing import TypeVar

import pytest

from penstock.core.backoff import RetryPolicy
from penstock.core.errors import Conflict, PenstockError, Unavailable
from penstock.core.waits import DependencyWait
from penstock.indexing.batch.retrying_caller import RetryingCaller, Stopped
from penstock.indexing.ports import TaskAction
from penstock.testing.clock import VirtualClock

R = TypeVar("R")


class NoOverlord:
    """Expects no action."""

    def perform(self, action: TaskAction[R]) -> R:
        raise AssertionError(action)


class Work:
    """Raises some errors, one in each call, and then returns."""

    def __init__(self, *errors: PenstockError) -> None:
        self.calls = 0
        self._errors = list(errors)

    def __call__(self) -> str:
        self.calls += 1
        if self._errors:
            raise self._errors.pop(0)
        return "done"


@pytest.fixture
def waits() -> list[tuple[DependencyWait, ...]]:
    return []


@pytest.fixture
def caller(waits: list[tuple[DependencyWait, ...]]) -> RetryingCaller:
    return RetryingCaller(NoOverlord(), VirtualClock(), waits.append, RetryPolicy(0, 0))


def test_a_call_returns_the_result_of_the_first_attempt_that_succeeds(
    caller: RetryingCaller, waits: list[tuple[DependencyWait, ...]]
) -> None:
    work = Work(Unavailable("away"), Unavailable("still away"))
    assert caller.call("working", work) == "done"
    assert work.calls == 3
    assert [[(one.work, one.tries, one.error) for one in shown] for shown in waits] == [
        [("working", 1, "away")],
        [("working", 2, "still away")],
        [],
    ]


def test_a_call_that_succeeds_at_once_shows_no_wait(
    caller: RetryingCaller, waits: list[tuple[DependencyWait, ...]]
) -> None:
    assert caller.call("working", Work()) == "done"
    assert waits == []


def test_another_error_ends_the_attempts_and_the_wait(caller: RetryingCaller) -> None:
    work = Work(Unavailable("away"), Conflict("taken"))
    with pytest.raises(Conflict, match="taken"):
        caller.call("working", work)
    assert (work.calls, caller.wait) == (2, None)


def test_a_stopped_caller_begins_no_attempt(caller: RetryingCaller) -> None:
    caller.stop()
    work = Work()
    with pytest.raises(Stopped):
        caller.call("working", work)
    assert work.calls == 0
