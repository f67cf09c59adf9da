"""Stories of overlord and supervisor, with real tasks and a fake engine, on virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from penstock.core.errors import InvalidRequest, LockRevoked, NotFound, Unavailable
from penstock.core.instants import parse_time
from penstock.indexing.read_plan import SeenTopic
from penstock.indexing.supervisor import cursor_name
from penstock.storage.metadata import MetadataStore
from penstock.storage.metadata.rows.publish import CommittedRow
from tests.indexing.indexing_kit import event, spec_json
from tests.indexing.simulation_kit import Simulation
from tests.indexing.story_kit import ask, fail, feed, offsets, running, status, until


def test_each_group_has_a_task_and_its_successor_goes_on_where_it_ends(
    make: Callable[..., Simulation],
) -> None:
    sim = make(taskCount=2)
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    first = set(running(sim, 2))
    assert len(first) == 2
    assert [t["groupId"] for t in status(sim)["activeTasks"]] == [0, 1]
    until(sim, lambda: sim.published() == sim.good, 60)
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    second = set(running(sim, 2))
    assert len(second) == 2
    assert not first & second
    until(sim, lambda: sim.published() == sim.good, 60)
    assert offsets(sim) == {0: 10, 1: 10}


def test_committed_offsets_are_read_when_they_move_not_in_each_round(
    make: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = make()
    feed(sim, 10)
    until(sim, lambda: sim.published() == sim.good, 60)
    reads, read = [], sim.metadata.committed
    monkeypatch.setattr(sim.metadata, "committed", lambda id_: [reads.append(id_), read(id_)][1])
    sim.run(60)
    # A task that ends with nothing to publish leaves them where they are.
    assert len(reads) <= 4
    feed(sim, 10)
    until(sim, lambda: sim.published() == sim.good, 60)
    assert offsets(sim) == {0: 10, 1: 10}
    sim.run(2)
    assert status(sim)["committedOffsets"] == {"0": 10, "1": 10}


def test_offsets_that_move_while_they_are_read_are_read_again_at_the_next_look(
    make: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    read = sim.metadata.committed
    moved: list[object] = []

    def committed(name: str) -> CommittedRow | None:
        found = read(name)
        if not moved:
            moved.append(sim.metadata.move_offsets(name, {0: 1}))
        return found

    monkeypatch.setattr(sim.metadata, "committed", committed)
    until(sim, lambda: moved, 40)
    sim.run(2)
    assert status(sim)["committedOffsets"]["0"] == 1


def test_offsets_that_somebody_else_moved_are_seen_within_half_a_minute(
    make: Callable[..., Simulation],
) -> None:
    """Nobody else may, so no look asks for it; but who restores a backup does."""
    sim = make(taskDuration="PT1H")
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    MetadataStore(sim.metadata.memory).move_offsets("flights", {0: 1})
    sim.run(32)
    assert status(sim)["committedOffsets"]["0"] == 1


def test_status_has_what_druids_has(make: Callable[..., Simulation]) -> None:
    sim = make()
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    sim.run(3)
    payload = status(sim)
    assert payload["state"] == payload["detailedState"] == "RUNNING"
    assert payload["healthy"] is True
    assert payload["stream"] == "flights"
    assert payload["latestOffsets"] == {"0": 5, "1": 5}
    assert payload["aggregateLag"] == 0
    assert payload["minimumLag"] == {"0": 0, "1": 0}
    described = ("dataSource", "partitions", "replicas", "durationSeconds", "suspended")
    assert [payload[name] for name in described] == ["flights", 2, 1, 20, False]
    assert payload["publishingTasks"] == payload["recentErrors"] == []
    now_ms = sim.clock.now_ms()
    assert 0 <= now_ms - parse_time(payload["offsetsLastUpdated"]) <= 30_000
    (task,) = payload["activeTasks"]
    assert task["startingOffsets"] == {"0": 0, "1": 0}
    assert task["currentOffsets"] == {"0": 5, "1": 5}
    assert task["lag"] == {"0": 0, "1": 0}
    assert task["type"] == "ACTIVE"
    assert 0 < task["remainingSeconds"] <= 20
    assert 0 < now_ms - parse_time(task["startTime"]) <= 20_000
    stats: dict[str, Any] = ask(sim, sim.overlord.supervisor_service.stats("flights"))
    assert stats["0"][task["id"]]["totals"]["buildSegments"]["processed"] == 10
    (view,) = ask(sim, sim.overlord.supervisor_service.every())
    summary = view.summary
    assert summary["id"] == summary["dataSource"] == "flights"
    (task_view,) = sim.overlord.tasks(active=True)
    assert task_view.runner_state == "RUNNING"
    assert task_view.row.group_id == "index_penstock_flights"


def test_a_hand_off_publishes_now(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    ask(sim, sim.overlord.supervisor_service.hand_off("flights", [0]))
    until(sim, lambda: sim.published() == sim.good, 10)


def test_a_full_sequence_is_published_and_its_task_goes_on(make: Callable[..., Simulation]) -> None:
    sim = make({"maxRowsPerSegment": 5_000, "maxTotalRows": 10}, taskDuration="PT1H")
    feed(sim, 12)
    until(sim, lambda: sim.published() == sim.good)
    (task,) = running(sim)
    feed(sim, 3)
    until(sim, lambda: sim.visible() == sim.good)
    assert running(sim) == [task]


def test_suspended_it_publishes_and_reads_no_more_until_resumed(
    make: Callable[..., Simulation],
) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    ask(sim, sim.overlord.supervisor_service.suspend("flights"))
    until(sim, lambda: sim.published() == sim.good)
    until(sim, lambda: not sim.overlord.active_tasks())
    assert status(sim)["detailedState"] == "SUSPENDED"
    with pytest.raises(InvalidRequest, match="already suspended"):
        ask(sim, sim.overlord.supervisor_service.suspend("flights"))
    feed(sim, 6)
    sim.run(30)
    assert len(sim.visible()) == 6
    ask(sim, sim.overlord.supervisor_service.resume("flights"))
    until(sim, lambda: sim.visible() == sim.good)
    assert [
        row.payload["suspended"] for row in sim.overlord.supervisor_service.history("flights")
    ] == [
        False,
        True,
        False,
    ]


def test_terminated_it_publishes_and_is_gone(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    ask(sim, sim.overlord.supervisor_service.terminate("flights"))
    assert status(sim)["detailedState"] == "STOPPING"
    with pytest.raises(Unavailable, match="being terminated"):
        ask(sim, sim.overlord.supervisor_service.submit(sim.spec.to_json()))
    with pytest.raises(Unavailable, match="being terminated"):
        ask(sim, sim.overlord.supervisor_service.suspend("flights"))
    assert ask(sim, sim.overlord.supervisor_service.suspend_all(suspended=True)) == 0
    assert sim.metadata.supervisors.list() == []
    until(sim, lambda: sim.published() == sim.good)
    until(sim, lambda: not sim.overlord.active_tasks())
    sim.run(3)
    with pytest.raises(NotFound, match="there are: none"):
        ask(sim, sim.overlord.supervisor_service.status("flights"))
    assert sim.broker.cursors == {}
    assert offsets(sim) == {0: 3, 1: 3}  # a successor goes on there
    ask(sim, sim.overlord.supervisor_service.submit(sim.spec.to_json()))
    feed(sim, 4)
    until(sim, lambda: sim.visible() == sim.good)


def test_all_supervisors_change_in_one_transaction(
    make: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = make(taskDuration="PT1H")
    desk, table = sim.overlord.supervisor_service, sim.metadata.supervisors
    for number in range(4):
        spec = sim.spec.to_json() | {"id": f"more-{number}", "suspended": True}
        ask(sim, desk.submit(spec))
    sim.run(1)
    writes = []
    for name in ("put_all", "terminate_all"):
        done = getattr(type(table), name)
        monkeypatch.setattr(
            type(table),
            name,
            lambda self, of, done=done: (writes.append(len(of)), done(self, of))[1],
        )
    running = len(table.list())
    assert running >= 4
    changed = ask(sim, desk.suspend_all(suspended=False))
    assert ask(sim, desk.suspend_all(suspended=True)) == running
    assert {row.payload["suspended"] for row in table.list()} == {True}
    assert ask(sim, desk.terminate_all()) == running
    assert writes == [changed, running, running]
    assert table.list() == []


def test_a_termination_survives_its_overlord(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    ask(sim, sim.overlord.supervisor_service.terminate("flights"))
    sim.kill_overlord()
    until(sim, lambda: sim.published() == sim.good)
    until(sim, lambda: not sim.overlord.active_tasks())


def test_a_termination_lets_go_of_its_cursor_though_its_overlord_dies_before(
    make: Callable[..., Simulation],
) -> None:
    """The tasks have ended, so nothing but the tombstone tells of it."""
    sim = make(taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    sim.run(3)
    ask(sim, sim.overlord.supervisor_service.terminate("flights"))
    until(sim, lambda: sim.published() == sim.good)
    sim.broker.down = True
    until(sim, lambda: not sim.overlord.active_tasks())
    sim.kill_overlord()
    sim.run(3)
    sim.broker.down = False
    assert sim.broker.cursors
    until(sim, lambda: sim.broker.cursors == {}, 30)
    until(sim, lambda: sim.metadata.supervisors.unreleased() == [])
    assert ask(sim, sim.overlord.supervisor_service.every()) == []
    # Once it is noted, nobody asks for it again.
    sim.broker.cursors["flights", "supervisor.flights"] = {0: 0}
    sim.kill_overlord()
    sim.run(10)
    assert sim.broker.cursors


def kill_overlord_of_read_events(sim: Simulation) -> None:
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    sim.run(3)
    assert sim.broker.cursors
    sim.kill_overlord()


@pytest.mark.parametrize("command", ["one", "all"])
def test_a_supervisor_whose_spec_nobody_can_read_can_be_terminated(
    make: Callable[..., Simulation], command: str
) -> None:
    sim = make(taskDuration="PT1H")
    kill_overlord_of_read_events(sim)
    table = sim.metadata.supervisors
    table.put("flights", dict(table.list()[0].payload) | {"ofALaterRelease": 1})
    sim.run(10)
    desk = sim.overlord.supervisor_service
    with pytest.raises(NotFound, match=r"is invalid: ofALaterRelease.* or terminate it"):
        ask(sim, desk.status("flights"))
    if command == "one":
        ask(sim, desk.terminate("flights"))
    else:
        assert ask(sim, desk.terminate_all()) == 1
    assert table.list() == []
    until(sim, lambda: sim.broker.cursors == {}, 60)
    until(sim, lambda: table.unreleased() == [])
    with pytest.raises(NotFound, match="there are: none"):
        ask(sim, desk.terminate("flights"))


@pytest.mark.parametrize("broker_is_down", [False, True])
def test_a_termination_whose_spec_nobody_can_read_lets_go_of_its_cursor(
    make: Callable[..., Simulation], broker_is_down: bool
) -> None:
    sim = make(taskDuration="PT1H")
    kill_overlord_of_read_events(sim)
    table = sim.metadata.supervisors
    unknown = dict(table.list()[0].payload) | {"ofALaterRelease": 1}
    table.put("flights", unknown)
    table.terminate("flights")
    sim.broker.down = broker_is_down
    sim.run(10)
    sim.broker.down = False
    until(sim, lambda: sim.broker.cursors == {}, 60)
    until(sim, lambda: table.unreleased() == [])
    until(sim, lambda: not sim.overlord.active_tasks())
    # A supervisor that is submitted again holds what it has not published.
    ask(sim, sim.overlord.supervisor_service.submit(sim.spec.to_json()))
    until(sim, lambda: sim.broker.cursors)
    sim.run(90)
    assert sim.broker.cursors


def test_a_new_overlord_finds_the_tasks_of_the_old_one(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    tasks = running(sim)
    sim.kill_overlord()
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    until(sim, lambda: running(sim) == tasks)
    assert len(sim.metadata.tasks.list()) == 1


def test_a_new_overlord_whose_clock_is_behind_has_tasks_publish_in_time(
    make: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = make(taskDuration="PT20S")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    ahead = sim.clock.now_ms
    monkeypatch.setattr(sim.clock, "now_ms", lambda: ahead() - 3_600_000)
    sim.kill_overlord()
    until(sim, lambda: sim.published() == sim.good, 60)
    assert sim.visible() == sim.good


def test_another_spec_has_the_tasks_of_the_old_one_publish(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    (old,) = running(sim)
    changed = spec_json(taskDuration="PT1H")
    changed["spec"]["dataSchema"]["granularitySpec"]["segmentGranularity"] = "HOUR"
    changed["spec"]["dataSchema"]["dataSource"] = "flights"
    ask(sim, sim.overlord.supervisor_service.submit(changed))
    until(sim, lambda: sim.published() == sim.good)
    until(sim, lambda: running(sim) != [old])


def test_another_duration_leaves_the_tasks_alone(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    tasks = running(sim)
    ask(sim, sim.overlord.supervisor_service.submit(spec_json(taskDuration="PT2H")))
    sim.run(30)
    assert running(sim) == tasks


def test_tasks_have_the_context_of_the_spec(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    (old,) = running(sim)
    context = {"useConcurrentLocks": True}
    changed = spec_json(taskDuration="PT1H") | {"context": context}
    ask(sim, sim.overlord.supervisor_service.submit(changed))
    until(sim, lambda: running(sim) != [old])
    (new,) = running(sim)
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    ask(sim, sim.overlord.supervisor_service.hand_off("flights", [0]))
    until(sim, lambda: sim.published() == sim.good)
    assert sim.overlord.task(old).row.payload["context"] == {}
    assert sim.overlord.task(new).row.payload["context"] == context


def test_another_topic_is_refused(make: Callable[..., Simulation]) -> None:
    sim = make()
    with pytest.raises(InvalidRequest, match="give the new spec another id") as caught:
        ask(sim, sim.overlord.supervisor_service.submit(spec_json(topic="other")))
    assert caught.value.place == "spec.ioConfig.topic"
    assert len(sim.overlord.supervisor_service.history("flights")) == 1


def test_a_reset_reads_all_again_from_the_earliest(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    ask(sim, sim.overlord.supervisor_service.hand_off("flights"))
    until(sim, lambda: sim.published() == sim.good)
    ask(sim, sim.overlord.supervisor_service.reset("flights"))
    until(sim, lambda: sim.visible() == sorted(sim.good * 2))
    ask(sim, sim.overlord.supervisor_service.hand_off("flights"))
    until(sim, lambda: sim.published() == sorted(sim.good * 2))


def test_offsets_can_be_set_forward(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H")
    sim.run(5)
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    ask(sim, sim.overlord.supervisor_service.reset("flights", {0: 4}))
    until(sim, lambda: sim.visible() == [1, 3, 5, 7, 8, 9])
    assert offsets(sim) == {0: 4, 1: 0}


def test_messages_that_are_gone_are_an_error_until_it_is_told_to_go_on(
    make: Callable[..., Simulation],
) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 10)
    sim.broker.earliest["flights", 0] = 2
    sim.metadata.begin_offsets("flights", {0: 0, 1: 0})
    sim.run(10)
    assert sim.visible() == []
    (error,) = status(sim)["recentErrors"]
    assert "partition 0 continues at 0, but holds only 2 to 5" in error["exceptionMessage"]
    spec = spec_json({"resetOffsetAutomatically": True}, taskDuration="PT1H")
    ask(sim, sim.overlord.supervisor_service.submit(spec))
    until(sim, lambda: sim.visible() == [1, 3, 4, 5, 6, 7, 8, 9])


def test_without_use_earliest_it_begins_at_the_end(make: Callable[..., Simulation]) -> None:
    sim = make(useEarliestOffset=False, taskDuration="PT1H")
    feed(sim, 4)
    sim.run(5)
    until(sim, lambda: bool(offsets(sim)))
    feed(sim, 4)
    until(sim, lambda: sim.visible() == [4, 5, 6, 7])


def test_a_stream_partition_that_comes_later_is_read_from_its_beginning(
    make: Callable[..., Simulation],
) -> None:
    sim = make(useEarliestOffset=False, taskDuration="PT5S")
    until(sim, lambda: bool(offsets(sim)))
    sim.broker.topics["flights"].append([event(100), event(101)])
    until(sim, lambda: sim.visible() == [100, 101])


def test_a_topic_that_is_not_there_is_waited_for(make: Callable[..., Simulation]) -> None:
    sim = make()
    topic = sim.broker.topics.pop("flights")
    sim.run(20)
    payload = status(sim)
    assert payload["detailedState"] == "UNABLE_TO_CONNECT_TO_STREAM"
    assert payload["healthy"] is False
    assert "there is none" in payload["recentErrors"][-1]["exceptionMessage"]
    sim.broker.topics["flights"] = topic
    feed(sim, 4)
    until(sim, lambda: sim.visible() == sim.good)
    until(sim, lambda: status(sim)["healthy"] is True, 10)


def test_retention_is_held_back_at_the_committed_offsets(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT5S")
    feed(sim, 6)
    until(sim, lambda: sim.published() == sim.good)
    sim.run(3)
    assert sim.broker.cursors == {("flights", "supervisor.flights"): {0: 3, 1: 3}}


def test_an_overlord_that_has_stopped_holds_nothing_back(make: Callable[..., Simulation]) -> None:
    """Its last look comes back late: whoever leads by now may have let the topic go."""
    sim = make(taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    seen = sim.broker.available
    held: list[object] = []
    stopped: list[object] = []

    def set_cursor(*asked: str | Mapping[int, int]) -> None:
        held.append(asked)
        fail("the broker is busy")

    def available(topic: str, **asked: Any) -> SeenTopic:
        if held and not stopped and asked.get("after") is None:
            held.clear()
            stopped.append(sim.overlord.stop())
            while sim.overlord_processor.run_mailbox_step():
                pass
        return seen(topic, **asked)

    sim.metadata.move_offsets("flights", {0: 1, 1: 1})  # there is something new to hold
    sim.broker.set_cursor, sim.broker.available = set_cursor, available  # type: ignore[assignment,method-assign]
    sim.run(5)
    assert stopped
    assert held == []


def test_a_task_ended_by_a_user_is_replaced_and_its_rows_are_read_again(
    make: Callable[..., Simulation],
) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    (task,) = running(sim)
    assert ask(sim, sim.overlord.shutdown_task(task)) is True
    assert ask(sim, sim.overlord.shutdown_task(task)) is False
    with pytest.raises(LockRevoked, match="not active"):
        sim.overlord.perform_action(task, {"type": "retrieveSegmentsById", "segments": []})
    until(sim, lambda: sim.visible() == sim.good)
    assert running(sim) != [task]
    assert sim.overlord.task(task).row.state == "FAILED"


def test_a_task_lost_while_publishing_is_made_up_for_and_the_next_one_is_spared(
    make: Callable[..., Simulation],
) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    (lost,) = running(sim)
    push, sim.deep_store.push = sim.deep_store.push, lambda *_: fail("the store is full")  # type: ignore[method-assign]
    ask(sim, sim.overlord.supervisor_service.hand_off("flights"))
    feed(sim, 6)
    until(sim, lambda: [t["id"] for t in status(sim)["publishingTasks"]] == [lost])
    until(sim, lambda: sim.visible() == sim.good)
    (healthy,) = running(sim)
    ask(sim, sim.overlord.shutdown_task(lost))
    sim.deep_store.push = push  # type: ignore[method-assign]
    ask(sim, sim.overlord.supervisor_service.hand_off("flights"))
    until(sim, lambda: sim.published() == sim.good)
    assert sim.overlord.task(healthy).row.state in {"RUNNING", "SUCCESS"}


def test_a_publish_that_takes_too_long_is_begun_anew(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H", completionTimeout="PT60S")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    (slow,) = running(sim)
    push, sim.deep_store.push = sim.deep_store.push, lambda *_: fail("the store is full")  # type: ignore[method-assign]
    ask(sim, sim.overlord.supervisor_service.hand_off("flights"))
    until(sim, lambda: sim.overlord.task(slow).row.state == "FAILED")
    assert "completionTimeout (60 s)" in str(sim.overlord.task(slow).row.status["errorMsg"])
    sim.deep_store.push = push  # type: ignore[method-assign]
    until(sim, lambda: sim.visible() == sim.good)
    ask(sim, sim.overlord.supervisor_service.hand_off("flights"))
    until(sim, lambda: sim.published() == sim.good)


def test_a_worker_that_stays_away_loses_its_tasks(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    (task,) = running(sim)
    for peon in sim.peons.values():
        peon.die()
    report, sim.worker.report = sim.worker.report, lambda: fail("gone")  # type: ignore[method-assign]
    until(sim, lambda: sim.overlord.task(task).row.state == "FAILED", 200)
    assert "has not answered" in str(sim.overlord.task(task).row.status["errorMsg"])
    assert sim.visible() == []
    sim.worker.report = report  # type: ignore[method-assign]
    until(sim, lambda: sim.visible() == sim.good)


def test_a_task_that_disappeared_from_its_worker_has_failed(
    make: Callable[..., Simulation],
) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    (task,) = running(sim)
    sim.worker.shutdown(task)
    sim.worker._ended.forget(task)
    until(sim, lambda: sim.overlord.task(task).row.state == "FAILED")
    until(sim, lambda: sim.visible() == sim.good)


def test_tasks_wait_for_a_free_slot(make: Callable[..., Simulation]) -> None:
    sim = make(slots=1, taskCount=2, taskDuration="PT1H")
    feed(sim, 6)
    sim.run(10)
    assert sorted(v.runner_state for v in sim.overlord.tasks(active=True)) == [
        "PENDING",
        "RUNNING",
    ]
    (worker,) = ask(sim, sim.overlord.task_service.workers())
    assert (worker.name, worker.capacity, len(worker.running)) == ("worker", 1, 1)
    assert sorted(task["phase"] for task in status(sim)["activeTasks"]) == ["PENDING", "READING"]


def test_actions_of_a_starting_overlord_are_told_to_come_again(
    make: Callable[..., Simulation],
) -> None:
    sim = make()
    with pytest.raises(Unavailable, match="does not lead"):
        sim.overlord.perform_action("t", {"type": "retrieveSegmentsById", "segments": []})


@pytest.mark.parametrize(
    ("action", "says"),
    [
        (None, "must be a JSON object"),
        ({"type": "drop"}, "unknown action 'drop': use one of announceFiles"),
        ({"type": "segmentAllocate"}, "not well formed"),
        ({"type": "announceFiles", "sequenceName": "x", "files": [1]}, "not well formed"),
    ],
)
def test_what_is_no_action_is_refused(
    make: Callable[..., Simulation], action: dict[str, Any] | None, says: str
) -> None:
    sim = make()
    sim.run(3)
    with pytest.raises(InvalidRequest, match=says):
        sim.overlord.perform_action("t", action)


def test_a_task_publishes_no_sequences_of_others(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H")
    (task,) = running(sim)
    action = {"type": "segmentAllocate", "sequenceName": "other_0", "intervals": []}
    with pytest.raises(InvalidRequest, match="does not belong to the task"):
        sim.overlord.perform_action(task, action)


def test_cursor_names_are_within_the_brokers_rules() -> None:
    assert cursor_name("flights") == "supervisor.flights"
    odd = cursor_name("Flüge über alles")
    assert odd.isascii()
    assert len(cursor_name("x" * 64)) <= 64
    assert cursor_name("Flüge über Allem") != odd


# stopTaskCount


def publishing(sim: Simulation) -> int:
    return len(status(sim)["publishingTasks"])


def test_so_many_groups_hand_over_at_a_time_and_those_that_publish_count(
    make: Callable[..., Simulation],
) -> None:
    sim = make(taskCount=2, taskDuration="PT20S", stopTaskCount=1, slots=8)
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    running(sim, 2)
    push, sim.deep_store.push = sim.deep_store.push, lambda *_: fail("the store is full")  # type: ignore[method-assign]
    until(sim, lambda: publishing(sim) == 1)
    for _ in range(40):
        sim.run(1)
        assert publishing(sim) == 1, sim.tell()
    # The other is long over its time, and reads on.
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    sim.deep_store.push = push  # type: ignore[method-assign]
    until(sim, lambda: sim.published() == sim.good, 90)


def test_without_a_bound_all_groups_hand_over_at_once(make: Callable[..., Simulation]) -> None:
    sim = make(taskCount=2, taskDuration="PT20S", slots=8)
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    running(sim, 2)
    sim.deep_store.push = lambda *_: fail("the store is full")  # type: ignore[method-assign]
    until(sim, lambda: publishing(sim) == 2)


def test_a_hand_off_that_is_asked_for_knows_no_bound(make: Callable[..., Simulation]) -> None:
    sim = make(taskCount=2, taskDuration="PT1H", stopTaskCount=1, slots=8)
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    running(sim, 2)
    sim.deep_store.push = lambda *_: fail("the store is full")  # type: ignore[method-assign]
    ask(sim, sim.overlord.supervisor_service.hand_off("flights"))
    until(sim, lambda: publishing(sim) == 2)
