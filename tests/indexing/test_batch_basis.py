"""Batch tasks that replace what they have read, and users who mark segments meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.core.intervals import Interval
from penstock.indexing.ports import TaskState
from tests.indexing.batch_kit import ABC, BatchWorld, Cut, day, index, lines

MARKED = "marked unused since"
CONCURRENT: dict[str, Any] = {"context": {"useConcurrentLocks": True}}


def compact(**more: object) -> dict[str, Any]:
    given = {"type": "interval", "interval": day(1, 2)}
    return {
        "type": "compact",
        "dataSource": "d",
        "ioConfig": {"type": "compact", "inputSpec": given},
        **more,
    }


def reindex(**more: object) -> dict[str, Any]:
    task = index("", **more)  # type: ignore[arg-type]
    source = {"type": "druid", "dataSource": "d", "interval": day(1, 2)}
    task["spec"]["ioConfig"] = {"inputSource": source}
    return task


def sql(query: str = "SELECT * FROM d", **more: object) -> dict[str, Any]:
    return {
        "type": "query_controller",
        "dataSource": "d",
        "sql": "REPLACE …",
        "query": query,
        "overwrite": [day(1)],
        "partitionedBy": "day",
        **more,
    }


def drop(world: BatchWorld, number: int = 1) -> None:
    world.store.segments.mark_unused_within("d", Interval.parse(day(number)))


def during(world: BatchWorld, work: Callable[[], object]) -> None:
    """Do something when the engine has read."""

    def meanwhile(moment: str) -> None:
        if moment == "after write":
            world.engine.at = lambda _moment: None
            work()

    world.engine.at = meanwhile


@pytest.mark.parametrize("more", [{}, CONCURRENT], ids=["alone", "concurrent"])
@pytest.mark.parametrize("make", [compact, reindex, sql])
def test_rows_that_are_taken_out_of_view_meanwhile_do_not_come_back(
    world: BatchWorld, make: Callable[..., dict[str, Any]], more: dict[str, Any]
) -> None:
    world.run(index(lines(*ABC), **more))
    doomed = next(str(s.id) for s in world.visible() if str(s.interval) == day(1))
    during(world, lambda: drop(world))
    result = world.run(make(**more))
    assert result.state is TaskState.FAILED
    assert doomed in result.error
    assert MARKED in result.error
    assert "submit it again" in result.error
    assert world.rows() == ABC[2:]
    # What is there now may be replaced.
    if make is not sql:
        assert world.run(make(**more)).state is TaskState.SUCCESS
        assert world.rows() == ABC[2:]


def test_rows_that_are_brought_back_meanwhile_stay(world: BatchWorld) -> None:
    world.run(index(lines(*ABC[1:])))
    world.run(index(lines(ABC[0]), mode="append"))
    first = [str(s.id) for s in world.visible() if s.shard_spec.partition_number]
    world.store.segments.mark_unused(first)
    during(world, lambda: world.store.segments.mark_used(first))
    result = world.run(compact())
    assert first[0] in result.error
    assert world.rows() == ABC


def test_a_statement_that_reads_something_else_does_not_mind(world: BatchWorld) -> None:
    world.run(index(lines(*ABC)))
    during(world, lambda: drop(world))
    assert world.run(sql("SELECT * FROM other")).state is TaskState.SUCCESS


def test_a_statement_reads_a_datasource_in_any_case_of_letters(world: BatchWorld) -> None:
    world.run(index(lines(*ABC)))
    during(world, lambda: drop(world))
    result = world.run(sql("SELECT * FROM D"))
    assert result.state is TaskState.FAILED
    assert MARKED in result.error


def test_marks_outside_of_what_a_statement_replaces_do_not_matter(world: BatchWorld) -> None:
    """Such as those of a rule that drops what is old."""
    world.run(index(lines(*ABC)))
    during(world, lambda: drop(world, 2))
    result = world.run(sql())
    assert result.state is TaskState.SUCCESS, result.error
    assert [(str(s.interval), s.total_rows) for s in world.visible()] == [(day(1), 2)]


def test_a_peon_that_is_started_again_does_not_publish_what_another_has_read(
    world: BatchWorld,
) -> None:
    """It wrote, and died; what it read is not what there is now, so it is read anew."""
    world.run(index(lines(*ABC)))
    spec = world.add(compact())

    def cut(kind: str) -> None:
        if kind == "before lockTryAcquire" and len(world.engine.writes) == 2:
            raise Cut

    world.at = cut
    with pytest.raises(Cut):
        world.make(spec).run()
    world.at = lambda _kind: None
    drop(world)
    result = world.make(spec).run()
    world.end(spec)
    assert result.state is TaskState.SUCCESS, result.error
    assert world.rows() == ABC[2:]


def test_a_peon_that_is_started_again_goes_on_with_what_it_has_written(world: BatchWorld) -> None:
    world.run(index(lines(*ABC)))
    spec = world.add(compact())

    def cut(kind: str) -> None:
        if kind.startswith("before segmentTransactional"):
            raise Cut

    world.at = cut
    with pytest.raises(Cut):
        world.make(spec).run()
    written = len(world.engine.writes)
    drop(world)
    with pytest.raises(Cut):
        world.make(spec).run()
    world.at = lambda _kind: None
    result = world.make(spec).run()
    world.end(spec)
    assert len(world.engine.writes) == written
    assert result.state is TaskState.FAILED
    assert MARKED in result.error
    assert world.rows() == ABC[2:]


def test_what_is_appended_meanwhile_does_not_hinder(world: BatchWorld) -> None:
    world.run(index(lines(*ABC), **CONCURRENT))
    during(world, lambda: world.run(index(lines((1, "late", 5)), mode="append", **CONCURRENT)))
    result = world.run(compact(**CONCURRENT))
    assert result.state is TaskState.SUCCESS, result.error
    assert world.rows() == sorted([*ABC, (1, "late", 5)])
