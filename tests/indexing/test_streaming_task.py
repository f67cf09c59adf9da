"""Stories of one streaming task: it is fed, asked, killed, and its rows are there once."""

from __future__ import annotations

import pytest
from indexing_kit import OneTask, event

from penstock.indexing.ports import TaskPhase, TaskState


@pytest.fixture
def world(tmp_path):
    made = OneTask(tmp_path)
    yield made
    made.metadata.close()


def feed(world, count, *, start=0):
    for n in range(start, start + count):
        world.broker.add("flights", n % 2, [event(n)])


def finish(world):
    offsets = world.ask(world.task.pause())
    world.ask(world.task.set_end_offsets(offsets, finish=True))
    world.run(lambda: world.task.result.state is not TaskState.RUNNING)
    return offsets


def test_rows_are_shown_soon_and_published_at_the_end(world):
    feed(world, 10)
    world.run(lambda: len(world.announced()) == 10)
    assert world.published() == []
    assert finish(world) == {0: 5, 1: 5}
    assert world.task.result.state is TaskState.SUCCESS
    assert world.published() == list(range(10))
    assert world.announced() == []
    assert world.metadata.offsets("flights") == {0: 5, 1: 5}
    assert world.metadata.counts("flights").processed == 10
