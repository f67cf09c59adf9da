"""A task's publish when answers are lost or late, and what the overlord takes from a task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from penstock.core.errors import (
    Dependency,
    InvalidRequest,
    LockRevoked,
    StorageUnavailable,
    Unavailable,
)
from penstock.core.intervals import Interval
from penstock.indexing.actions import PublishSegments, SegmentAllocate
from penstock.indexing.engine import EngineUnavailable, RowCounts
from penstock.indexing.ports import TaskAction, TaskState
from penstock.segments.segment import SegmentId
from tests.indexing.indexing_kit import OneTask, event

Answer = TypeVar("Answer")

DAY = Interval.parse("2013-01-01/2013-01-02")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[OneTask]:
    made = OneTask(tmp_path)
    yield made
    made.metadata.close()


def feed(world: OneTask, count: int) -> None:
    for n in range(count):
        world.broker.add("flights", n % 2, [event(n)])
    world.run(lambda: sum(world.task._context.state.commit.current.values()) == count)


def agree_on_the_end(world: OneTask) -> None:
    offsets = world.ask(world.task.pause())
    world.ask(world.task.set_end_offsets(offsets, finish=True))


def files(world: OneTask) -> list[str]:
    return sorted(str(path) for path in world.deep_store.files())


def test_a_publish_whose_answer_was_lost_keeps_its_files(world: OneTask) -> None:
    feed(world, 8)
    lost: list[object] = []

    def lose_the_answer(moment: str) -> None:
        if moment == "after action" and not lost and world.metadata.snapshot("flights").segments:
            lost.append(moment)
            raise Unavailable("the answer was lost")

    world.actions.chaos = lose_the_answer
    agree_on_the_end(world)
    world.run(lambda: world.task.result.state is TaskState.SUCCESS)
    assert lost
    assert world.published() == list(range(8))
    assert len(files(world)) == len(world.metadata.snapshot("flights").segments)


def test_rows_that_are_not_announced_yet_are_not_published_out_of_sight(
    world: OneTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    perform, away = world.actions.perform, [True]

    def without_announcements(action: TaskAction[Answer]) -> Answer:
        if away and type(action).__name__ == "AnnounceFiles":
            raise Unavailable("the overlord is away")
        return perform(action)

    monkeypatch.setattr(world.actions, "perform", without_announcements)
    feed(world, 4)
    agree_on_the_end(world)
    until_s = world.clock.monotonic_s() + 60
    world.run(lambda: world.clock.monotonic_s() >= until_s)
    assert world.task.result.state is TaskState.RUNNING
    assert world.metadata.segments.pending("flights") == []  # its publish has not even begun
    away.clear()
    world.run(lambda: world.task.result.state is TaskState.SUCCESS)
    assert world.published() == list(range(4))


def actions_of(name: str) -> list[SegmentAllocate | PublishSegments]:
    return [
        SegmentAllocate(name, (DAY,)),
        PublishSegments(name, (), {0: 0}, {0: 1}, RowCounts()),
    ]


@pytest.mark.parametrize("action", actions_of("another_0"), ids=lambda one: type(one).__name__)
def test_a_task_acts_for_its_own_sequences_only(
    world: OneTask, action: SegmentAllocate | PublishSegments
) -> None:
    with pytest.raises(InvalidRequest, match="does not belong to the task"):
        world.handler.perform(world.spec.id, action.to_json())
    assert world.metadata.offsets("flights") == {0: 0, 1: 0}
    assert world.metadata.segments.pending("flights") == []


def test_a_task_that_is_not_active_is_not_heard(world: OneTask) -> None:
    world.active = False
    for action in actions_of(f"{world.spec.base_sequence_name}_0"):
        with pytest.raises(LockRevoked, match="not active"):
            world.handler.perform(world.spec.id, action.to_json())


def test_a_deep_storage_that_answers_503_is_waited_for_by_name(
    world: OneTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(world, 4)
    push = world.deep_store.push
    away = StorageUnavailable("s3://b/k: cannot write: 503 Slow Down")

    def fail(*_given: str | SegmentId) -> None:
        raise away

    monkeypatch.setattr(world.deep_store, "push", fail)
    agree_on_the_end(world)
    waits = world.task._context.waits
    begun_ms = world.clock.now_ms()
    world.run(lambda: any(one.tries > 4 for one in waits.all()))
    (wait,) = waits.all()
    assert (wait.dependency, wait.work, wait.error) == (
        Dependency.STORAGE,
        "publishing",
        str(away),
    )
    assert wait.since_ms >= begun_ms
    monkeypatch.setattr(world.deep_store, "push", push)
    world.run(lambda: world.task.result.state is TaskState.SUCCESS)
    assert waits.all() == ()
    assert world.published() == list(range(4))


@pytest.mark.parametrize("dependency", [Dependency.BROKER, Dependency.SPARK])
def test_a_broker_and_a_spark_that_are_away_are_waited_for_by_name(
    world: OneTask, monkeypatch: pytest.MonkeyPatch, dependency: Dependency
) -> None:
    feed(world, 2)
    where, what = {
        Dependency.BROKER: (type(world.broker), "available"),
        Dependency.SPARK: (type(world.engine), "persist"),
    }[dependency]
    before = getattr(where, what)

    def fail(*_given: object, **_more: object) -> None:
        if dependency is Dependency.SPARK:
            raise EngineUnavailable("nothing answers at sc://localhost:1")
        raise Unavailable("refused", dependency=dependency)

    monkeypatch.setattr(where, what, fail)
    world.broker.add("flights", 0, [event(7)])
    waits = world.task._context.waits
    world.run(lambda: any(one.tries > 2 for one in waits.all()))
    assert [one.dependency for one in waits.all()] == [dependency]
    monkeypatch.setattr(where, what, before)
    world.run(lambda: waits.all() == ())
