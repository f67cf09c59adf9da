"""Replicas of several server priorities: each group has those that are wanted, whatever dies.

And queries read the one of the highest priority that keeps up. Which priorities lack is to follow
from the tasks that are there, so tasks end here before and after anybody has seen them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from penstock.indexing.engine import TopicRange
from penstock.indexing.specs import SpecError
from penstock.indexing.supervisor.spec_updates import UpdateAction, update_action
from penstock.indexing.task_spec import StreamTaskSpec, is_made_by, parse_task_spec
from tests.indexing.indexing_kit import make_spec
from tests.indexing.simulation_kit import Simulation
from tests.indexing.story_kit import ask, fail, feed, running, status, until

ONE_OF_EACH = {"1": 1, "0": 1}


def priorities(sim: Simulation) -> dict[str, dict[str, int]]:
    """Return the priority of each active task, by base sequence name and id."""
    found: dict[str, dict[str, int]] = {}
    for task_id, active in sim.overlord.active_tasks().items():
        assert isinstance(active.task, StreamTaskSpec)
        group = found.setdefault(active.task.base_sequence_name, {})
        group[task_id] = active.task.server_priority
    return found


def of_one_group(sim: Simulation) -> list[int] | None:
    """Return its priorities; None while there is another number of groups."""
    groups = list(priorities(sim).values())
    return sorted(groups[0].values(), reverse=True) if len(groups) == 1 else None


def task_of(sim: Simulation, priority: int) -> str:
    (group,) = priorities(sim).values()
    return next(task_id for task_id, found in group.items() if found == priority)


def change(sim: Simulation, wanted: Mapping[str, int]) -> None:
    changed: dict[str, Any] = sim.spec.to_json()
    changed["spec"]["ioConfig"] |= {"serverPriorityToReplicas": wanted, "replicas": None}
    ask(sim, sim.overlord.supervisor_service.submit(changed))


@pytest.fixture
def sim(make: Callable[..., Simulation]) -> Simulation:
    found = make(serverPriorityToReplicas=ONE_OF_EACH, workers=3, taskDuration="PT1H")
    feed(found, 10)
    until(found, lambda: found.visible() == found.good)
    return found


def test_a_group_has_a_replica_of_each_priority(sim: Simulation) -> None:
    assert of_one_group(sim) == [1, 0]
    running(sim, 2)
    payload = status(sim)
    assert payload["replicas"] == 2
    assert sorted(task["serverPriority"] for task in payload["activeTasks"]) == [0, 1]


@pytest.mark.parametrize("priority", [1, 0])
def test_a_lost_replica_is_replaced_by_one_of_its_priority(sim: Simulation, priority: int) -> None:
    running(sim, 2)
    lost, kept = task_of(sim, priority), task_of(sim, 1 - priority)
    ask(sim, sim.overlord.shutdown_task(lost))
    until(sim, lambda: lost not in sim.overlord.active_tasks() and of_one_group(sim) == [1, 0])
    assert kept in running(sim, 2)


def test_a_replica_that_dies_before_it_ever_ran_leaves_its_priority_free(
    make: Callable[..., Simulation],
) -> None:
    """Druid's bug 19405: the priority was noted when the task was made, and nobody took it back."""
    sim = make(serverPriorityToReplicas=ONE_OF_EACH, taskDuration="PT1H")
    for _ in range(3):
        until(sim, lambda: of_one_group(sim) == [1, 0])
        # One worker runs one of two replicas, the other waits.
        (waiting,) = {task_of(sim, 1), task_of(sim, 0)} - set(running(sim, 1))
        ask(sim, sim.overlord.shutdown_task(waiting))
    until(sim, lambda: of_one_group(sim) == [1, 0])
    errors = status(sim)["recentErrors"]
    assert all("shut down by a user" in error["exceptionMessage"] for error in errors), errors


def test_a_new_overlord_finds_which_priorities_there_are(sim: Simulation) -> None:
    before = priorities(sim)
    sim.kill_overlord()
    until(sim, lambda: len(running(sim, 2)) == 2)
    assert priorities(sim) == before
    sim.kill_overlord()
    until(sim, lambda: priorities(sim) == before)
    ask(sim, sim.overlord.shutdown_task(task_of(sim, 1)))
    until(sim, lambda: of_one_group(sim) == [1, 0])


def test_with_other_priorities_one_that_stays_goes_on_and_the_others_are_replaced(
    sim: Simulation,
) -> None:
    running(sim, 2)
    kept = task_of(sim, 0)
    change(sim, {"5": 1, "0": 1})
    until(sim, lambda: of_one_group(sim) == [5, 0])
    assert task_of(sim, 0) == kept
    change(sim, {"0": 1})
    until(sim, lambda: of_one_group(sim) == [0])
    assert task_of(sim, 0) == kept
    assert sim.visible() == sim.good


def test_a_group_of_which_nobody_may_stay_publishes_and_its_successor_has_the_others(
    sim: Simulation,
) -> None:
    running(sim, 2)
    (before,) = priorities(sim)
    change(sim, {"7": 2})
    until(sim, lambda: before not in priorities(sim) and of_one_group(sim) == [7, 7])
    assert sim.published() == sim.good
    feed(sim, 4)
    until(sim, lambda: sim.visible() == sim.good)


def test_groups_of_a_spec_without_priorities_are_those_of_priority_0(
    make: Callable[..., Simulation],
) -> None:
    sim = make(replicas=2, workers=2, taskDuration="PT1H")
    feed(sim, 4)
    until(sim, lambda: len(running(sim, 2)) == 2)
    (before,) = priorities(sim)
    change(sim, {"0": 2})
    change(sim, {"3": 1, "0": 1})
    until(sim, lambda: of_one_group(sim) == [3, 0])
    assert list(priorities(sim)) == [before]


def shown_of(sim: Simulation) -> set[str]:
    return {row.task_id for row in sim.metadata.snapshot("flights").announced}


def test_queries_see_the_replica_of_the_highest_priority(sim: Simulation) -> None:
    high, low = task_of(sim, 1), task_of(sim, 0)
    until(sim, lambda: shown_of(sim) == {high})
    for _ in range(5):
        feed(sim, 6)
        until(sim, lambda: sim.visible() == sim.good)
        until(sim, lambda: shown_of(sim) == {high})
    # It is lost: the other takes over, and its successor when it has read what there is.
    ask(sim, sim.overlord.shutdown_task(high))
    until(sim, lambda: shown_of(sim) == {low})
    until(sim, lambda: sim.visible() == sim.good)
    until(sim, lambda: of_one_group(sim) == [1, 0])
    until(sim, lambda: shown_of(sim) == {task_of(sim, 1)})
    until(sim, lambda: sim.visible() == sim.good)


def test_one_that_stands_still_is_shown_no_more(make: Callable[..., Simulation]) -> None:
    sim = make(serverPriorityToReplicas=ONE_OF_EACH, workers=2, taskDuration="PT1H")
    read, stuck = sim.broker.read, set[str]()

    def read_unless_stuck(wanted: TopicRange) -> Iterable[tuple[int, bytes]]:
        if sim.acting is not None and sim.acting.task_id in stuck:
            fail("the engine is slow")
        return read(wanted)

    sim.broker.read = read_unless_stuck  # type: ignore[assignment,method-assign]
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    high, low = task_of(sim, 1), task_of(sim, 0)
    until(sim, lambda: shown_of(sim) == {high})
    stuck.add(high)
    for _ in range(2):
        feed(sim, 6)
        until(sim, lambda: sum(sim.report(low).persisted.values()) == sim.sent)
    until(sim, lambda: shown_of(sim) == {low})
    assert sim.visible() == sim.good
    stuck.clear()
    until(sim, lambda: shown_of(sim) == {high})


# The spec


def test_the_sum_is_the_number_of_replicas() -> None:
    spec = make_spec(serverPriorityToReplicas={"1": 2, "2": 3, "-4": 0})
    assert spec.io.replicas == 5
    assert spec.io.server_priorities == (2, 2, 2, 1, 1)
    again = make_spec(serverPriorityToReplicas={"1": 2}, replicas=2)
    assert again.io.server_priorities == (1, 1)
    assert make_spec(replicas=3).io.server_priorities == (0, 0, 0)
    assert type(spec).model_validate(spec.to_json(), by_alias=True, by_name=False) == spec


@pytest.mark.parametrize(
    ("io", "place", "text"),
    [
        ({"serverPriorityToReplicas": {}}, "", "must not be empty"),
        ({"serverPriorityToReplicas": {"0": 0}}, "", "specifies 0 replicas in all"),
        ({"serverPriorityToReplicas": {"0": 6, "1": 5}}, "", "specifies 11 replicas in all"),
        ({"serverPriorityToReplicas": {"0": 2, "1": -1}}, ".1", "must be at least 0, not -1"),
        ({"serverPriorityToReplicas": {"0": 1.5}}, ".0", "must be a whole number, not 1.5"),
        ({"serverPriorityToReplicas": {"0": True}}, ".0", "must be a whole number, not true"),
        ({"serverPriorityToReplicas": {"high": 1}}, ".high", "must be a whole number of up to 9"),
        ({"serverPriorityToReplicas": {"1.0": 1}}, ".1.0", "must be a whole number of up to 9"),
        ({"serverPriorityToReplicas": {"01": 1}}, ".01", "must be a whole number of up to 9"),
        ({"serverPriorityToReplicas": {"1" * 10: 1}}, ".1111111111", "of up to 9 digits"),
        ({"serverPriorityToReplicas": [1]}, "", "must be an object, not a list"),
    ],
)
def test_wrong_priorities_are_refused_with_their_place(
    io: dict[str, Any], place: str, text: str
) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec(**io)
    (found,) = caught.value.mistakes
    assert found.place == f"spec.ioConfig.serverPriorityToReplicas{place}"
    assert text in found.message


def test_replicas_that_are_not_their_sum_are_refused() -> None:
    with pytest.raises(SpecError) as caught:
        make_spec(serverPriorityToReplicas={"1": 2, "2": 3}, replicas=3)
    (found,) = caught.value.mistakes
    assert found.place == "spec.ioConfig.replicas"
    assert found.message == (
        "is 3, but serverPriorityToReplicas specifies 5 in all: leave replicas out"
    )


def test_other_priorities_are_another_spec_and_the_same_work() -> None:
    plain, zeros = make_spec(replicas=2), make_spec(serverPriorityToReplicas={"0": 2})
    other = make_spec(serverPriorityToReplicas={"0": 1, "1": 1})
    assert update_action(plain, zeros) is UpdateAction.RESTART_SUPERVISOR
    assert update_action(zeros, other) is UpdateAction.RESTART_SUPERVISOR_AND_TASKS
    assert update_action(other, other) is UpdateAction.NONE


def test_a_task_without_priority_is_written_as_earlier_releases_do(sim: Simulation) -> None:
    written = {p: sim.overlord.active_tasks()[task_of(sim, p)].task.to_json() for p in (0, 1)}
    assert "serverPriority" not in written[0]
    assert written[1]["serverPriority"] == 1
    for value in written.values():
        task = parse_task_spec(value)
        assert task.to_json() == value
        assert is_made_by(sim.spec, task)
