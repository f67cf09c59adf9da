"""What operators are told of tasks: how long they wait and run, how they end, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import Fenced, Unavailable
from penstock.indexing.ports import TaskState
from penstock.storage.metadata.rows.tasks import LockRow, TaskRow
from tests.indexing.queue_kit import TaskQueueWorld, kill, noop, submit


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TaskQueueWorld]:
    made = TaskQueueWorld(tmp_path)
    yield made
    made.metadata.close()


def test_the_times_of_a_task_are_told_once_each(world: TaskQueueWorld) -> None:
    submit(world, noop("a"))
    assert world.events.of("task/waiting/time")[0][0] == 0  # it needs no locks
    world.settle(7)
    worker = world.worker("w")
    world.settle(1)
    (pending,) = world.events.of("task/pending/time")
    assert 7_000 <= pending[0] <= 9_000
    world.settle(20)
    worker.say("a", TaskState.SUCCESS)
    world.settle(1)
    (run,) = world.events.of("task/run/time")
    assert 20_000 <= run[0] <= 23_000
    assert run[1] == {
        "taskId": "a",
        "taskType": "noop",
        "groupId": "a",
        "dataSource": "d",
        "taskStatus": "SUCCESS",
    }


def test_a_task_that_waits_for_locks_says_how_long_it_did(world: TaskQueueWorld) -> None:
    worker = world.worker("w")
    submit(world, kill("first"), kill("second"))
    world.settle(30)
    worker.say("first", TaskState.FAILED, error="x")
    world.settle(1)
    waits = {dims["taskId"]: value for value, dims in world.events.of("task/waiting/time")}
    assert waits["first"] == 0
    assert waits["second"] >= 30_000
    (run,) = world.events.of("task/run/time")
    assert run[1]["taskStatus"] == "FAILED"


def test_counts_are_told_each_minute(world: TaskQueueWorld) -> None:
    worker = world.worker("w", capacity=1)
    submit(world, *(noop(name) for name in "abc"), kill("k1"), kill("k2"))
    worker.say(worker.taken[0], TaskState.SUCCESS)
    world.settle(2)
    world.events.measures.clear()
    world.settle(60)
    told = {name: (value, dims) for name, value, dims in world.events.measures}
    assert told["task/success/count"][1] == {"dataSource": "d"}
    assert told["task/success/count"][0] == told["task/running/count"][0] == 1
    assert not told["task/running/count"][1]
    assert told["task/pending/count"][0] + told["task/waiting/count"][0] == 3
    assert told["task/waiting/count"][0] == 1
    world.events.measures.clear()
    world.settle(60)
    assert world.events.of("task/success/count") == []


def test_of_a_task_that_a_former_overlord_began_no_time_is_told(world: TaskQueueWorld) -> None:
    worker = world.worker("w")
    submit(world, noop("a"))
    world.settle(1)
    world.queue.stop()
    world.events.measures.clear()
    world.start()
    world.settle(2)
    worker.say("a", TaskState.SUCCESS)
    world.settle(61)
    times = [name for name, _, _ in world.events.measures if name.endswith("/time")]
    assert times == []
    assert world.events.of("task/success/count") == [(1, {"dataSource": "d"})]


def test_a_lost_worker_is_told_once(world: TaskQueueWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = world.worker("w")
    submit(world, noop("a"), noop("b"))
    worker.error = Unavailable("away")

    def away(_changes: list[Any]) -> None:
        raise Unavailable("the database is away")

    # While no end can be stored, its tasks stay with it, and it is lost at each look again.
    monkeypatch.setattr(world.metadata.tasks, "set_statuses", away)
    world.settle(200)
    ((text, data),) = world.events.alerts
    assert text.startswith("worker w is lost, and 2 tasks failed with it: ")
    assert data == {"worker": "w"}


def test_an_end_that_another_one_came_before_is_told(world: TaskQueueWorld) -> None:
    worker = world.worker("w")
    submit(world, noop("a"))
    world.metadata.tasks.set_status("a", TaskState.FAILED, {"errorMsg": "by somebody else"})
    worker.say("a", TaskState.SUCCESS)
    world.settle(1)
    ((text, data),) = world.events.alerts
    assert "task a was complete or deleted already" in text
    assert data == {"taskId": "a", "state": "SUCCESS"}


def test_locks_that_cannot_be_stored_are_told_once_until_they_can(
    world: TaskQueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = world.metadata.locks.apply
    errors: list[Exception | None] = []

    def failing(*args: Sequence[LockRow], **more: Any) -> None:
        error = errors.pop(0) if errors else None
        if error is not None:
            raise error
        return apply(*args, **more)

    monkeypatch.setattr(world.metadata.locks, "apply", failing)
    errors[:] = [Unavailable("the disk is full"), Unavailable("the disk is full")]
    submit(world, kill("k"))
    world.settle(30)
    (alert,) = world.events.alerts
    assert alert[0] == "task locks cannot be stored, so none is granted: the disk is full"
    errors[:] = [Fenced("another one leads")]
    submit(world, kill("other", datasource="e"))
    world.settle(5)
    assert len(world.events.alerts) == 1


def test_lists_and_the_store_tell_the_same_time_of_a_task(
    world: TaskQueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = world.metadata.tasks.insert_new

    def slow(rows: Sequence[TaskRow]) -> set[str]:
        world.clock.advance(0.017)
        return insert(rows)

    monkeypatch.setattr(world.metadata.tasks, "insert_new", slow)
    world.queue.add(noop("n"))
    listed, stored = world.queue.index.get("n"), world.metadata.tasks.get("n")
    assert listed is not None
    assert stored is not None
    assert listed is not None
    assert listed.created_ms == stored.created_ms
