"""What failures of a supervisor amount to, and when they are over."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.indexing.supervisor.health import Health
from tests.indexing.simulation_kit import Simulation
from tests.indexing.story_kit import fail, running, status, until


@pytest.fixture
def health() -> Health:
    return Health("s", 1_000, 60_000)


def test_three_tasks_in_a_row_make_it_unhealthy_and_three_mend_it(health: Health) -> None:
    for now_s in (100, 200):
        health.task_failed(now_s)
    assert health.unhealthy_state(201, was_there=True) is None
    health.task_failed(300)
    assert health.unhealthy_state(301, was_there=True) == "UNHEALTHY_TASKS"
    health.task_succeeded()
    health.task_succeeded()
    assert health.unhealthy_state(302, was_there=True) == "UNHEALTHY_TASKS"
    health.task_succeeded()
    assert health.unhealthy_state(302, was_there=True) is None


def test_a_failure_between_good_ones_begins_the_count_anew(health: Health) -> None:
    for outcome in "fffggfgg":
        health.round_failed() if outcome == "f" else health.round_done()
    assert health.unhealthy_state(0, was_there=True) == "UNHEALTHY_SUPERVISOR"
    health.round_done()
    assert health.unhealthy_state(0, was_there=True) is None
    # Two failures are not enough to be unhealthy again.
    health.round_failed()
    health.round_failed()
    assert health.unhealthy_state(0, was_there=True) is None


def test_task_failures_of_long_ago_count_no_more(health: Health) -> None:
    for now_s in (100, 200, 300):
        health.task_failed(now_s)
    assert health.unhealthy_state(1_200, was_there=True) == "UNHEALTHY_TASKS"
    assert health.unhealthy_state(1_201, was_there=True) is None
    health.task_failed(2_000)
    assert health.unhealthy_state(2_000, was_there=True) is None
    assert not health.may_start_tasks(2_000.9)
    assert health.may_start_tasks(2_001)  # the wait begins small again


def test_the_wait_doubles_up_to_its_limit(health: Health) -> None:
    now_s, waits = 100.0, []
    for _ in range(8):
        health.task_failed(now_s)
        begin_s = now_s
        while not health.may_start_tasks(now_s):
            now_s += 0.5
        waits.append(now_s - begin_s)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


@pytest.mark.parametrize(
    ("was_there", "state"),
    [(True, "LOST_CONTACT_WITH_STREAM"), (False, "UNABLE_TO_CONNECT_TO_STREAM")],
)
def test_a_topic_that_cannot_be_looked_at_is_named_first(
    health: Health, was_there: bool, state: str
) -> None:
    for _ in range(3):
        health.poll_failed()
        health.round_failed()
    assert health.unhealthy_state(0, was_there=was_there) == state
    for _ in range(3):
        assert health.unhealthy_state(0, was_there=was_there) == state
        health.poll_succeeded()
    assert health.unhealthy_state(0, was_there=was_there) == "UNHEALTHY_SUPERVISOR"
    for _ in range(3):
        health.round_done()
    assert health.unhealthy_state(0, was_there=was_there) is None


def test_no_task_is_started_while_the_topic_is_away(health: Health) -> None:
    health.poll_failed()
    assert not health.may_start_tasks(1e9)
    health.poll_succeeded()
    assert health.may_start_tasks(1e9)


def test_a_supervisor_begins_in_druids_states(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H")
    assert status(sim)["state"] == status(sim)["detailedState"] == "PENDING"
    look, sim.broker.available = sim.broker.available, lambda *_, **__: fail("not up yet")  # type: ignore[method-assign]
    sim.run(2)
    assert status(sim)["detailedState"] == "CONNECTING_TO_STREAM"
    sim.broker.available = look  # type: ignore[method-assign]
    running(sim)
    assert status(sim)["detailedState"] == "RUNNING"


def test_an_overlord_that_finds_tasks_says_so_until_they_have_answered(
    make: Callable[..., Simulation],
) -> None:
    sim = make(taskDuration="PT1H")
    (task,) = running(sim)
    answer, sim._ask = sim._ask, lambda _task_id, _question: fail("no answer")  # type: ignore[assignment,method-assign]
    sim.kill_overlord()
    until(sim, lambda: status(sim)["detailedState"] == "DISCOVERING_INITIAL_TASKS")
    assert status(sim)["state"] == "RUNNING"
    sim.run(10)
    assert status(sim)["detailedState"] == "DISCOVERING_INITIAL_TASKS"
    sim._ask = answer  # type: ignore[method-assign]
    until(sim, lambda: status(sim)["detailedState"] == "RUNNING")
    assert running(sim) == [task]
