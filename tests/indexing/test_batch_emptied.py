"""Batch tasks that leave nothing: what was there is not emptied unsaid, by a slip least of all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from batch_kit import BatchWorld, day, index, lines

from penstock.indexing.ports import TaskState

ABC = [(1, "x", 1), (1, "y", 2), (2, "z", 3)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BatchWorld]:
    made = BatchWorld(tmp_path)
    yield made
    made.close()


def test_a_replace_tells_which_time_it_left_empty(
    world: BatchWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one whose process died behind its publish, and one that wrote rows beside."""
    caplog.set_level("INFO")
    for data, emptied, told in (
        ("", day(1, 2), "0 rows written"),
        (lines((1, "new", 1)), day(2), "1 row written"),
    ):
        world.run(index(lines(*ABC)))
        spec = world.add(index(data, mode="replace", intervals=[day(1, 9)]))
        for _ in range(2):
            caplog.clear()
            task = world.make(spec)
            assert task.run().state is TaskState.SUCCESS
            more = task.report().more
            assert (more["intervalsEmptied"], more["intervalsEmptiedCount"]) == ([emptied], 1)
            text = f"task {spec.id}: {told}; the segments of {emptied} are replaced by nothing"
            assert text in caplog.messages
        world.end(spec)
    plain = world.make(world.add(index("")))
    assert plain.run().state is TaskState.SUCCESS
    assert "intervalsEmptied" not in plain.report().more
    assert caplog.messages[-1].endswith(": 0 rows written")
