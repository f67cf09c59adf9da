"""Stories of supervisors whose topic, tasks or overlord are not what they were."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from penstock.core.errors import InvalidRequest
from penstock.indexing.engine import TopicRange
from penstock.indexing.read_plan import SeenTopic
from tests.indexing.indexing_kit import event, spec_json
from tests.indexing.simulation_kit import Simulation
from tests.indexing.story_kit import ask, fail, feed, offsets, running, status, until


def store_fills_up(sim: Simulation) -> Callable[..., None]:
    """Let no task publish any more; the answer is what ends that."""
    push, sim.deep_store.push = sim.deep_store.push, lambda *_: fail("the store is full")  # type: ignore[method-assign]

    def remedy() -> None:
        sim.deep_store.push = push  # type: ignore[method-assign]

    return remedy


def recreate(sim: Simulation, *counts: int) -> None:
    """Delete the topic and make it anew with so many messages in each stream partition."""
    sim.broker.topics["flights"] = [[event(900 + n) for n in range(count)] for count in counts]


def errors(sim: Simulation) -> str:
    return " ".join(error["exceptionMessage"] for error in status(sim)["recentErrors"])


def test_a_new_overlord_asks_before_it_takes_a_publishing_task_for_lost(
    make: Callable[..., Simulation],
) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    (first,) = running(sim)
    remedy = store_fills_up(sim)
    ask(sim, sim.overlord.supervisor_service.hand_off("flights"))
    feed(sim, 6)
    until(sim, lambda: len(sim.overlord.active_tasks()) == 2)
    until(sim, lambda: sim.visible() == sim.good)
    sim.kill_overlord()
    for _ in range(40):
        sim.run(0.5)
        assert sim.visible() == sim.good, sim.tell()
    assert len(sim.metadata.tasks.list()) == 2
    remedy()
    until(sim, lambda: sim.published() == sim.good[:6])
    until(sim, lambda: sim.overlord.task(first).row.state == "SUCCESS", 10)


def test_a_task_that_never_answers_is_replaced(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    (mute,) = running(sim)
    asked = sim._ask
    sim._ask = lambda task_id, question: (  # type: ignore[method-assign]
        fail("no answer") if task_id == mute else asked(task_id, question)
    )
    until(sim, lambda: sim.overlord.task(mute).row.state == "FAILED", 900)
    assert "has not answered" in str(sim.overlord.task(mute).row.status["errorMsg"])
    until(sim, lambda: sim.visible() == sim.good)


def test_more_stream_partitions_are_read_before_the_tasks_end(
    make: Callable[..., Simulation],
) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    sim.broker.topics["flights"].append([event(100), event(101)])
    # They are collected for repartitionTransitionDuration, two minutes.
    until(sim, lambda: sim.visible() == [*sim.good, 100, 101], 150)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_another_task_count_holds_at_once(
    make: Callable[..., Simulation], before: int, after: int
) -> None:
    sim = make(taskCount=before, taskDuration="PT1H")
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    running(sim, before)
    ask(
        sim, sim.overlord.supervisor_service.submit(spec_json(taskCount=after, taskDuration="PT1H"))
    )
    feed(sim, 10)
    for _ in range(20):
        sim.run(1)
        assert len(set(sim.visible())) == len(sim.visible()), sim.tell()
    assert sim.visible() == sim.good
    assert len(running(sim, after)) == after


def test_a_follower_that_has_not_begun_makes_way_for_one_that_begins_earlier(
    make: Callable[..., Simulation],
) -> None:
    sim = make(slots=1, taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    (lost,) = running(sim)
    remedy = store_fills_up(sim)
    ask(sim, sim.overlord.supervisor_service.hand_off("flights"))
    until(sim, lambda: len(sim.overlord.active_tasks()) == 2)
    feed(sim, 6)
    ask(sim, sim.overlord.shutdown_task(lost))
    remedy()
    until(sim, lambda: sim.visible() == sim.good, 30)
    ask(sim, sim.overlord.supervisor_service.hand_off("flights"))
    until(sim, lambda: sim.published() == sim.good, 30)


def test_a_long_gap_is_not_given_up_while_it_is_read(make: Callable[..., Simulation]) -> None:
    sim = make(
        {"maxRowsPerPersist": 2, "maxRowsPerSegment": 1000, "maxTotalRows": 5000},
        taskDuration="PT1H",
        completionTimeout="PT20S",
    )
    feed(sim, 12)
    until(sim, lambda: sim.visible() == sim.good)
    (lost,) = running(sim)
    remedy = store_fills_up(sim)
    ask(sim, sim.overlord.supervisor_service.hand_off("flights"))
    until(sim, lambda: len(sim.overlord.active_tasks()) == 2)
    running(sim)
    remedy()
    slow = sim.broker.read

    def read(wanted: TopicRange) -> Iterable[tuple[int, bytes]]:
        sim.clock.advance(8)
        return slow(wanted)

    sim.broker.read = read  # type: ignore[assignment,method-assign]
    ask(sim, sim.overlord.shutdown_task(lost))
    until(sim, lambda: sim.published() == sim.good, 200)
    assert len(sim.metadata.tasks.list()) == 3


# a topic that is not what it was


def test_a_topic_made_anew_is_an_error_with_its_mend(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    ask(sim, sim.overlord.supervisor_service.hand_off("flights"))
    until(sim, lambda: sim.published() == sim.good)
    recreate(sim, 2, 2)
    until(sim, lambda: status(sim)["detailedState"] == "UNHEALTHY_SUPERVISOR")
    assert status(sim)["healthy"] is False
    assert status(sim)["state"] == "UNHEALTHY_SUPERVISOR"
    assert "continues at 5, but holds only 0 to 2" in errors(sim)
    assert "Reset the supervisor's offsets" in errors(sim)
    tasks = len(sim.metadata.tasks.list())
    sim.run(60)
    assert len(sim.metadata.tasks.list()) == tasks
    ask(sim, sim.overlord.supervisor_service.reset("flights"))
    until(sim, lambda: len(sim.visible()) == 14)
    assert status(sim)["healthy"] is True


def test_a_cursor_that_cannot_be_set_hides_nothing(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    ask(sim, sim.overlord.supervisor_service.hand_off("flights"))
    until(sim, lambda: sim.published() == sim.good)
    recreate(sim, 2, 2)
    sim.kill_overlord()
    sim.run(20)
    assert "continues at 5, but holds only 0 to 2" in errors(sim)


def test_a_topic_that_is_deleted_costs_one_task_and_no_more(
    make: Callable[..., Simulation],
) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    del sim.broker.topics["flights"]
    sim.run(300)
    assert status(sim)["detailedState"] == "LOST_CONTACT_WITH_STREAM"
    assert len(sim.metadata.tasks.list()) <= 2


def test_a_gap_whose_messages_are_gone_is_an_error_with_its_mend(
    make: Callable[..., Simulation],
) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    (lost,) = running(sim)
    store_fills_up(sim)
    ask(sim, sim.overlord.supervisor_service.hand_off("flights"))
    until(sim, lambda: len(sim.overlord.active_tasks()) == 2)
    running(sim)
    sim.broker.earliest["flights", 0] = 2
    ask(sim, sim.overlord.shutdown_task(lost))
    sim.run(30)
    assert "partition 0 continues at 0, but holds only 2 to 5" in errors(sim)
    assert status(sim)["detailedState"] == "UNHEALTHY_SUPERVISOR"
    assert len(sim.metadata.tasks.list()) == 2


def test_messages_that_are_not_there_are_waited_for_if_the_spec_says_so(
    make: Callable[..., Simulation],
) -> None:
    tuning = {"maxRowsPerSegment": 1000, "skipSequenceNumberAvailabilityCheck": True}
    sim = make(tuning, taskDuration="PT1H")
    feed(sim, 10)
    sim.broker.earliest["flights", 0] = 2
    sim.metadata.begin_offsets("flights", {0: 0, 1: 0})
    sim.run(100)
    assert sim.visible() == []
    assert len(sim.metadata.tasks.list()) == 1
    assert not errors(sim)
    sim.broker.earliest["flights", 0] = 0
    until(sim, lambda: sim.visible() == sim.good)
    assert len(sim.metadata.tasks.list()) == 1


def test_messages_that_go_while_they_are_waited_for_cost_no_task(
    make: Callable[..., Simulation],
) -> None:
    tuning = {"maxRowsPerSegment": 1000, "skipSequenceNumberAvailabilityCheck": True}
    sim = make(tuning, taskDuration="PT1H")
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    kept = sim.broker.topics["flights"][0]
    sim.broker.topics["flights"][0] = []
    sim.run(100)
    sim.broker.topics["flights"][0] = kept
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    assert len(sim.metadata.tasks.list()) == 1
    # Another topic of that name is not what was waited for.
    sim.broker.create("flights", 2)
    until(sim, lambda: len(sim.metadata.tasks.list()) == 2)


def test_going_on_by_itself_starts_each_group_once(make: Callable[..., Simulation]) -> None:
    tuning = {"maxRowsPerSegment": 1000, "resetOffsetAutomatically": True}
    sim = make(tuning, taskCount=2, taskDuration="PT1H")
    feed(sim, 10)
    sim.broker.earliest["flights", 0] = 2
    sim.metadata.begin_offsets("flights", {0: 0, 1: 0})
    until(sim, lambda: len(sim.visible()) == 8)
    sim.run(10)
    assert len(sim.overlord.active_tasks()) == 2
    assert "continuing at" in errors(sim)


def test_a_look_that_is_older_than_what_was_read_is_not_believed(
    make: Callable[..., Simulation],
) -> None:
    tuning = {"maxRowsPerSegment": 1000, "resetOffsetAutomatically": True}
    sim = make(tuning, taskDuration="PT1H", period="PT1S")
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    ask(sim, sim.overlord.supervisor_service.suspend("flights"))
    until(sim, lambda: sim.published() == sim.good)
    truth = sim.broker.available

    def earlier(topic: str, **asked: Any) -> SeenTopic:
        found = truth(topic, **asked)
        partitions = {p: replace(a, latest=a.latest - 2) for p, a in found.partitions.items()}
        return replace(found, partitions=partitions)

    sim.broker.available = earlier  # type: ignore[method-assign]
    sim.run(1.5)
    assert status(sim)["latestOffsets"] == {"0": 3, "1": 3}
    ask(sim, sim.overlord.supervisor_service.resume("flights"))
    sim.broker.available = truth  # type: ignore[method-assign]
    sim.run(30)
    assert sim.visible() == sim.good
    assert offsets(sim) == {0: 5, 1: 5}
    assert len(running(sim)) == 1


def test_going_on_by_itself_waits_for_what_still_publishes(make: Callable[..., Simulation]) -> None:
    tuning = {"maxRowsPerSegment": 1000, "resetOffsetAutomatically": True}
    sim = make(tuning, taskDuration="PT1H")
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    (first,) = running(sim)
    remedy = store_fills_up(sim)
    ask(sim, sim.overlord.supervisor_service.suspend("flights"))
    until(sim, lambda: [t["id"] for t in status(sim)["publishingTasks"]] == [first])
    feed(sim, 10)
    sim.broker.earliest["flights", 0] = 7
    ask(sim, sim.overlord.supervisor_service.resume("flights"))
    sim.run(30)
    remedy()
    until(sim, lambda: sim.published() == sim.good[:10])
    until(sim, lambda: len(sim.visible()) == 18)


# supervisors that come and go


def test_a_terminated_supervisors_offsets_do_not_serve_another_topic(
    make: Callable[..., Simulation],
) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    ask(sim, sim.overlord.supervisor_service.terminate("flights"))
    until(sim, lambda: not sim.overlord.active_tasks())
    sim.run(5)
    with pytest.raises(InvalidRequest, match="give the new spec another id"):
        ask(sim, sim.overlord.supervisor_service.submit(spec_json(topic="other")))
    assert offsets(sim) == {0: 3, 1: 3}


def test_a_cursor_is_dropped_also_when_the_broker_was_away(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    sim.run(3)
    assert sim.broker.cursors
    ask(sim, sim.overlord.supervisor_service.terminate("flights"))
    until(sim, lambda: sim.published() == sim.good)
    sim.broker.down = True
    until(sim, lambda: not sim.overlord.active_tasks())
    sim.run(20)
    sim.broker.down = False
    until(sim, lambda: sim.broker.cursors == {}, 30)


def test_a_spec_that_cannot_be_read_any_more_keeps_no_overlord_from_starting(
    make: Callable[..., Simulation],
) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    (task,) = running(sim)
    sim.metadata.supervisors.put("flights", {"type": "of a later release"})
    sim.kill_overlord()
    sim.run(5)
    assert sim.overlord.task(task).row.state == "FAILED"
    ask(sim, sim.overlord.supervisor_service.submit(sim.spec.to_json()))
    until(sim, lambda: sim.visible() == sim.good)


def test_offsets_of_stream_partitions_that_are_not_there_are_refused(
    make: Callable[..., Simulation],
) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    with pytest.raises(InvalidRequest, match="no stream partition 7"):
        ask(sim, sim.overlord.supervisor_service.reset("flights", {7: 0}))
    with pytest.raises(InvalidRequest, match="0 to 3"):
        ask(sim, sim.overlord.supervisor_service.reset("flights", {0: 9}))
    assert sim.visible() == sim.good
