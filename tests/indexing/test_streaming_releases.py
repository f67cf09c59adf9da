"""`releaseLocksOnHandoff`: a task lets go of locks whose rows are all published."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from penstock.core.errors import Unavailable
from penstock.core.intervals import Granularity, Interval
from penstock.indexing.overlord.lock_requests import lock_task
from penstock.indexing.ports import TaskAction, TaskState
from penstock.indexing.task_spec import base_sequence_name
from tests.indexing.indexing_kit import DAY_MS, START_MS, OneTask, event, make_spec

Answer = TypeVar("Answer")


def days(*numbers: int) -> list[Interval]:
    day = Granularity.parse("DAY")
    return [day.bucket(START_MS + number * DAY_MS) for number in numbers]


def a_task(folder: Path, **tuning: object) -> OneTask:
    tuned = make_spec({"releaseLocksOnHandoff": True, **tuning}).tuning
    return OneTask(folder, tuning_config=tuned)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[OneTask]:
    made = a_task(tmp_path)
    yield made
    made.metadata.close()


def feed(world: OneTask, *numbers: int, day: int) -> None:
    for n in numbers:
        world.broker.add("flights", n % 2, [event(n, day=day)])


def locked(world: OneTask) -> list[Interval]:
    held = world.lockboxes.locks_of(lock_task(world.spec)).result()
    return sorted(one.lock.interval for one in held)


def checkpoint(world: OneTask) -> None:
    """Close the open sequence where reading stands; the task goes on behind it."""
    offsets = world.ask(world.task.pause())
    world.ask(world.task.set_end_offsets(offsets, finish=False))


def finish(world: OneTask) -> None:
    offsets = world.ask(world.task.pause())
    world.ask(world.task.set_end_offsets(offsets, finish=True))
    world.run(lambda: world.task.result.state is TaskState.SUCCESS)


def test_locks_of_published_rows_go(world: OneTask) -> None:
    feed(world, 0, 1, day=0)
    world.run(lambda: len(world.announced()) == 2)
    checkpoint(world)
    world.run(lambda: world.published() == [0, 1] and not locked(world))
    feed(world, 2, 3, day=1)
    world.run(lambda: len(world.announced()) == 2)
    finish(world)
    assert world.published() == [0, 1, 2, 3]


def test_locks_stay_without_it(tmp_path: Path) -> None:
    world = OneTask(tmp_path)
    feed(world, 0, 1, day=0)
    world.run(lambda: len(world.announced()) == 2)
    checkpoint(world)
    world.run(lambda: world.published() == [0, 1])
    feed(world, 2, 3, day=1)
    world.run(lambda: len(world.announced()) == 2)
    assert locked(world) == days(0)
    world.metadata.close()


def test_a_lock_that_waiting_rows_need_stays(world: OneTask) -> None:
    feed(world, 0, 1, day=0)
    feed(world, 2, 3, day=1)
    world.run(lambda: len(world.announced()) == 4)
    checkpoint(world)
    # Rows of the second day are persisted before the first sequence is published.
    feed(world, 4, 5, day=1)
    publish = world.actions.perform

    def later(action: TaskAction[Answer]) -> Answer:
        is_first = type(action).__name__ == "PublishSegments" and not world.published()
        if is_first and len(world.announced()) < 6:
            raise Unavailable("later")
        return publish(action)

    world.actions.perform = later  # type: ignore[method-assign]
    world.run(lambda: world.published() == [0, 1, 2, 3] and locked(world) == days(1))
    finish(world)
    assert world.published() == [0, 1, 2, 3, 4, 5]


def test_killed_between_publish_and_release_it_releases_at_the_start(world: OneTask) -> None:
    feed(world, 0, 1, day=0)
    world.run(lambda: len(world.announced()) == 2)
    checkpoint(world)
    world.run(lambda: world.published() == [0, 1])
    assert locked(world) == days(0)
    world.kill()
    world.start()
    world.run(lambda: not locked(world))
    feed(world, 2, 3, day=0)
    world.run(lambda: len(world.announced()) == 2)
    finish(world)
    assert world.published() == [0, 1, 2, 3]


@pytest.mark.parametrize("step", range(12))
def test_killed_at_any_action_every_row_is_there_once(tmp_path: Path, step: int) -> None:
    world = a_task(tmp_path)
    feed(world, 0, 1, day=0)
    feed(world, 2, 3, day=1)
    world.run(lambda: len(world.announced()) == 4)
    checkpoint(world)
    feed(world, 4, 5, day=1)
    for _ in range(step * 3):
        world.step()
    world.kill()
    world.start()
    world.run(lambda: world.published()[:4] == [0, 1, 2, 3])
    world.run(lambda: len(world.announced()) == 2)
    finish(world)
    assert world.published() == [0, 1, 2, 3, 4, 5]
    world.metadata.close()


def test_an_overlord_that_is_away_only_delays_it(world: OneTask) -> None:
    feed(world, 0, 1, day=0)
    world.run(lambda: len(world.announced()) == 2)
    checkpoint(world)
    perform, left = world.actions.perform, [3]

    def away(action: TaskAction[Answer]) -> Answer:
        if type(action).__name__ == "LockRelease" and left[0]:
            left[0] -= 1
            raise Unavailable("away")
        return perform(action)

    world.actions.perform = away  # type: ignore[method-assign]
    world.run(lambda: world.published() == [0, 1] and not locked(world))
    assert left == [0]


def test_it_is_not_written_unless_it_is_set() -> None:
    tuning = {"maxTotalRows": 1_000}
    usual, off = make_spec(tuning), make_spec({**tuning, "releaseLocksOnHandoff": False})
    assert "releaseLocksOnHandoff" not in usual.tuning.model_dump(mode="json", by_alias=True)
    assert base_sequence_name(usual, {0: 0}) == base_sequence_name(off, {0: 0})
    changed = make_spec({**tuning, "releaseLocksOnHandoff": True})
    assert base_sequence_name(usual, {0: 0}) != base_sequence_name(changed, {0: 0})
