"""Batch tasks that leave nothing: what was there is not emptied unsaid, by a slip least of all."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.indexing.batch import ingest_task
from penstock.indexing.ports import TaskState
from tests.indexing.batch_kit import ABC, BatchWorld, day, index, lines


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
            text = (
                f"task {spec.id}: {told}; the segments of {emptied} are hidden and have no new rows"
            )
            assert text in caplog.messages
        world.end(spec)
    plain = world.make(world.add(index("")))
    assert plain.run().state is TaskState.SUCCESS
    assert "intervalsEmptied" not in plain.report().more
    assert caplog.messages[-1].endswith(": 0 rows written")


def test_of_much_time_that_is_left_empty_the_first_is_named(
    world: BatchWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ingest_task, "_EMPTIED_SHOWN_MAX", 1)
    caplog.set_level("INFO")
    world.run(index(lines((1, "x", 1), (3, "y", 2), (5, "z", 3))))
    task = world.make(world.add(index("", mode="replace", intervals=[day(1, 9)])))
    assert task.run().state is TaskState.SUCCESS
    more = task.report().more
    assert (more["intervalsEmptied"], more["intervalsEmptiedCount"]) == ([day(1)], 3)
    assert (
        f"of {day(1)} and 2 intervals more are hidden and have no new rows" in caplog.messages[-1]
    )


def reindex(source: object) -> dict[str, Any]:
    task = index("", mode="replace", intervals=[day(1, 9)])
    parts = task["spec"]
    assert isinstance(parts, dict)
    parts["ioConfig"] = {"inputSource": source, "dropExisting": True}
    return task


def test_a_source_that_is_no_datasource_leaves_the_target_as_it_is(world: BatchWorld) -> None:
    """Its name was mistyped; the task succeeded, and the target was empty."""
    world.run(index(lines(*ABC)))
    for name in ("orders", "shops"):
        world.run(index(lines((8, name, 1)), schema={"dataSource": name}))
    read = {"type": "druid", "dataSource": "orders", "interval": day(1, 9)}
    both = {"type": "combining", "delegates": [read, {**read, "dataSource": "zzz"}]}
    near = 'dataSource: no datasource "ordres" with data: correct its name'
    for source, told in (
        ({**read, "dataSource": "ordres"}, f"spec.ioConfig.inputSource.{near}"),
        (both, 'inputSource.delegates[1].dataSource: no datasource "zzz" with data'),
        ({**read, "dataSource": "zzz"}, "correct its name"),
    ):
        result = world.run(reindex(source))
        assert result.state is TaskState.FAILED
        assert told in result.error
        assert world.rows() == ABC


def test_a_source_that_has_nothing_in_the_interval_replaces_by_nothing(world: BatchWorld) -> None:
    world.run(index(lines(*ABC)))
    world.run(index(lines((20, "x", 1)), schema={"dataSource": "orders"}))
    result = world.run(reindex({"type": "druid", "dataSource": "orders", "interval": day(1, 9)}))
    assert result.state is TaskState.SUCCESS, result.error
    assert world.rows() == []


def test_who_replaces_by_nothing_says_so(world: BatchWorld) -> None:
    world.run(index(lines(*ABC)))
    month = ["2026-01-01/2026-02-01"]
    bears = {"maxParseExceptions": 2}
    result = world.run(index("no\nno", mode="replace", intervals=month, tuning=bears))
    assert result.state is TaskState.SUCCESS
    assert world.rows() == []
    world.run(index(lines(*ABC)))
    assert world.run(index("", mode="replace", intervals=month)).state is TaskState.SUCCESS
    assert world.rows() == []
