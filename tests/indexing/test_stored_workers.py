"""The workers of tasks in the metadata store: names, returns, and a store that refuses them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import Conflict, Unavailable
from penstock.indexing.overlord.runner.worker_config import WorkerConfig
from penstock.indexing.ports import TaskState
from tests.indexing.queue_kit import SaidWorker, TaskQueueWorld


def _status(world: TaskQueueWorld, task_id: str) -> Mapping[str, object]:
    row = world.metadata.tasks.get(task_id)
    assert row is not None
    return row.status


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TaskQueueWorld]:
    world = TaskQueueWorld(tmp_path)
    yield world
    world.metadata.close()


def test_that_a_task_waits_again_counts_though_it_cannot_be_stored(
    world: TaskQueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = world.worker("w")
    worker.error = Conflict("all slots are taken")
    set_statuses, stored = world.metadata.tasks.set_statuses, []

    def refuse_returns(changes: Sequence[tuple[str, TaskState, dict[str, str]]]) -> set[str]:
        if any(status == {} for _id, _state, status in changes):
            raise Unavailable("the database is away")
        stored.append(changes)
        return set_statuses(changes)

    monkeypatch.setattr(world.metadata.tasks, "set_statuses", refuse_returns)
    world.add("a")
    assert len(stored) == 1
    assert world.queue.index.all()["a"].worker is None
    worker.error = None
    world.processor.main_executor.execute(lambda: world.queue.configure(WorkerConfig()), "")
    world.settle()
    assert worker.taken == ["a"]


def test_that_a_task_waits_again_is_stored_later(
    world: TaskQueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = world.worker("w")
    worker.error = Conflict("all slots are taken")
    set_statuses, tries = world.metadata.tasks.set_statuses, itertools.count()

    def refuse_the_first_return(
        changes: Sequence[tuple[str, TaskState, dict[str, str]]],
    ) -> set[str]:
        if any(status == {} for _id, _state, status in changes) and next(tries) == 0:
            raise Unavailable("the database is away")
        return set_statuses(changes)

    monkeypatch.setattr(world.metadata.tasks, "set_statuses", refuse_the_first_return)
    world.add("a")
    assert _status(world, "a") == {"worker": "w"}
    monkeypatch.setattr(world.queue.runner, "select", list)  # no worker has room
    world.settle(2)
    assert _status(world, "a") == {}


def test_the_new_name_of_a_worker_is_stored_later(
    world: TaskQueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.worker("w")
    world.add("a")
    world.announced.clear()
    world.start()
    set_statuses, tries = world.metadata.tasks.set_statuses, itertools.count()

    def refuse_the_first(changes: Sequence[tuple[str, TaskState, dict[str, str]]]) -> set[str]:
        if next(tries) == 0:
            raise Unavailable("the database is away")
        return set_statuses(changes)

    monkeypatch.setattr(world.metadata.tasks, "set_statuses", refuse_the_first)
    world.worker("renamed").say("a")
    world.settle(5)
    assert _status(world, "a") == {"worker": "renamed"}
    assert next(tries) == 2  # One failure, one success.


def test_the_new_names_of_workers_are_stored_together_once_in_a_while(
    world: TaskQueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a", "b", "c"]
    for name in names:
        world.worker(f"worker-of-{name}", capacity=1)
        world.add(name)
    world.announced.clear()
    world.start()
    set_statuses, calls = world.metadata.tasks.set_statuses, []

    def refuse_workers(changes: list[Any]) -> set[str]:
        if changes[0][1] is not TaskState.RUNNING:
            return set_statuses(changes)
        calls.append(sorted(task_id for task_id, _state, _status in changes))
        raise Unavailable("the database is away")

    monkeypatch.setattr(world.metadata.tasks, "set_statuses", refuse_workers)
    for name in names:
        worker = SaidWorker(f"new-of-{name}")
        worker.say(name)
        world.announced.append(worker)
    world.settle(10)
    assert calls[-1] == names
    assert len(calls) <= 11  # One in each `retry_ms`, not one for each task.
    world.queue.shutdown("b", "it is not needed")
    stored = []

    def record(changes: Sequence[tuple[str, TaskState, dict[str, str]]]) -> set[str]:
        stored.append({task_id: status for task_id, _state, status in changes})
        return set_statuses(changes)

    monkeypatch.setattr(world.metadata.tasks, "set_statuses", record)
    world.settle(10)
    assert stored == [{name: {"worker": f"new-of-{name}"} for name in ("a", "c")}]
