"""Stories of batch tasks: what they write, replace, append, compact, whoever is beside or dies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.intervals import Interval, condensed
from penstock.indexing.batch.batch_engine import SegmentInput
from penstock.indexing.batch.batch_locks import outside
from penstock.indexing.batch.job import ids_digest
from penstock.indexing.ports import TaskState
from penstock.indexing.worker.peon_task import IngestionReport, IngestionState
from penstock.storage.metadata import PublishOutcome
from tests.indexing.batch_kit import ABC, START_MS, BatchWorld, Cut, day, index, lines

DYNAMIC_2 = {"partitionsSpec": {"type": "dynamic", "maxRowsPerSegment": 2}}
CONCURRENT: dict[str, Any] = {"context": {"useConcurrentLocks": True}}
HOURS = {"segmentGranularity": "hour"}


# Modes


def _do_nothing(_here: str) -> None:
    pass


def test_an_index_task_publishes_its_rows(world: BatchWorld) -> None:
    result = world.run(index(lines(*ABC), tuning=DYNAMIC_2))
    assert result.state is TaskState.SUCCESS, result.error
    assert world.rows() == ABC
    assert [(str(s.interval), s.shard_spec.partition_number) for s in world.visible()] == [
        (day(1), 0),
        (day(2), 0),
    ]


def test_a_later_task_replaces_the_days_that_it_has_rows_for(world: BatchWorld) -> None:
    world.run(index(lines(*ABC)))
    world.run(index(lines((2, "new", 9))))
    assert world.rows() == [*ABC[:2], (2, "new", 9)]


def test_a_replace_empties_days_of_its_intervals_that_got_no_rows(world: BatchWorld) -> None:
    world.run(index(lines(*ABC, (4, "stays", 4))))
    world.run(index(lines((2, "new", 9)), mode="replace", intervals=[day(1, 3)]))
    assert world.rows() == [(2, "new", 9), (4, "stays", 4)]


def test_an_append_adds_under_the_version_that_is_there(world: BatchWorld) -> None:
    world.run(index(lines(*ABC)))
    versions = {s.version for s in world.visible()}
    result = world.run(index(lines((1, "more", 7), (3, "new", 8)), mode="append"))
    assert result.state is TaskState.SUCCESS, result.error
    assert world.rows() == sorted([*ABC, (1, "more", 7), (3, "new", 8)])
    assert {s.version for s in world.visible() if str(s.interval) == day(1)} <= versions


def test_rows_outside_of_the_intervals_are_thrown_away_and_counted(world: BatchWorld) -> None:
    spec = world.add(index(lines(*ABC), intervals=[day(1)]))
    task = world.make(spec)
    assert task.run().state is TaskState.SUCCESS
    assert world.rows() == ABC[:2]
    counts = task.report().row_stats["buildSegments"]
    assert (counts["processed"], counts["thrownAway"]) == (2, 1)


def test_the_report_tells_the_rows_that_were_written(world: BatchWorld) -> None:
    """Of a rolled-up task they are fewer than those that were read; also after it was cut."""
    spec = world.add(index(lines(*ABC), intervals=[day(1)]))
    task = world.make(spec)
    assert task.run().state is TaskState.SUCCESS
    again = world.make(spec)
    assert again.run().state is TaskState.SUCCESS
    written = sum(segment.total_rows for segment in world.visible())
    assert [one.report().more["rowsWritten"] for one in (task, again)] == [written, written]


def test_the_report_of_a_running_task_has_its_progress(world: BatchWorld) -> None:
    spec = world.add(index(lines(*ABC), intervals=[day(1)]))
    task = world.make(spec)
    seen: list[IngestionReport] = []

    def look(moment: str) -> None:
        if moment == "after write":
            seen.append(task.report())

    world.engine.at = look
    assert task.run().state is TaskState.SUCCESS
    [running] = seen
    assert running.state is IngestionState.BUILD_SEGMENTS
    names = ("rowsRead", "filesRead", "filesTotal", "partsDone", "rowsWritten")
    assert [running.more[name] for name in names] == [2, 1, 1, 1, 0]
    # The call may still fail and be repeated, so its rows are not counted yet.
    assert running.row_stats["buildSegments"]["processed"] == 0
    ended = task.report()
    assert [ended.more[name] for name in names] == [len(ABC), 1, 1, 1, 2]


def test_a_task_without_rows_publishes_nothing_and_succeeds(world: BatchWorld) -> None:
    assert world.run(index("")).state is TaskState.SUCCESS
    assert world.rows() == []


def test_hashed_segments_are_seen_together_or_not_at_all(world: BatchWorld) -> None:
    hashed = {"partitionsSpec": {"type": "hashed", "numShards": 2}}
    world.run(index(lines(*ABC), tuning=hashed))
    assert world.rows() == ABC
    specs = [s.shard_spec for s in world.visible() if str(s.interval) == day(1)]
    assert [(s.kind, s.partition_number, s.core_partitions) for s in specs] == [
        ("hashed", 0, 2),
        ("hashed", 1, 2),
    ]
    shapes = [segment.shard_spec.to_json() for segment in world.visible()]
    # Spark's hash is none of Druid's, so a reader must not prune by it.
    assert {shape["partitionFunction"] for shape in shapes} == {None}


# Reading what is there


def test_a_datasource_is_read_into_another(world: BatchWorld) -> None:
    world.run(index(lines(*ABC)))
    task = index("", granularity={"segmentGranularity": "all"})
    task["spec"]["ioConfig"] = {
        "inputSource": {"type": "druid", "dataSource": "d", "interval": day(1)}
    }
    task["spec"]["dataSchema"]["dataSource"] = "e"
    assert world.run(task).state is TaskState.SUCCESS
    assert world.rows("e") == ABC[:2]
    assert world.rows() == ABC


def test_a_source_leaves_out_what_it_filters_and_what_it_does_not_select(
    world: BatchWorld,
) -> None:
    rollup: dict[str, Any] = {"granularity": {"rollup": True, "queryGranularity": "day"}}
    metrics = {"metricsSpec": [{"type": "count", "name": "count"}]}
    world.run(index(lines((1, "x", 1)), schema=metrics, **rollup))
    task = index("")
    keep = {"type": "selector", "dimension": "a", "value": "x"}
    source = {"type": "druid", "dataSource": "d", "interval": day(1), "filter": keep}
    for selected, hidden in (
        ({}, set()),
        ({"dimensions": ["n"]}, {"a"}),
        ({"dimensions": [], "metrics": []}, {"a", "n", "count"}),
        ({"metrics": ["gone"]}, {"count"}),
        ({"dimensions": ["count"], "metrics": ["a", "n"]}, set()),
    ):
        task["spec"]["ioConfig"] = {"inputSource": {**source, **selected}}
        result = world.run(task)
        assert result.state is TaskState.SUCCESS, result.error
        asked = world.engine.writes[-1].input
        assert isinstance(asked, SegmentInput)
        assert asked.filter is not None
        assert asked.filter.model_dump(by_alias=True) == keep
        assert asked.hidden == hidden
        world.run(index(lines((1, "x", 1)), schema=metrics, **rollup))


@pytest.mark.parametrize("mode", ["legacy", "append"])
def test_rows_that_need_too_many_locks_fail_the_task(world: BatchWorld, mode: str) -> None:
    rows = lines((1, "x", 1), (3, "x", 1), (5, "x", 1))
    tuning = {"type": "index_parallel", "maxAllowedLockCount": 2}
    result = world.run(index(rows, mode=mode, tuning=tuning))
    assert result.state is TaskState.FAILED
    assert "need 3 locks, more than maxAllowedLockCount 2" in result.error
    assert world.rows() == []
    result = world.run(index(rows, mode=mode, tuning={**tuning, "maxAllowedLockCount": 3}))
    assert result.state is TaskState.SUCCESS, result.error


def test_rows_of_the_day_beside_what_is_read_do_not_wait_for_its_lock(world: BatchWorld) -> None:
    world.run(index(lines(*ABC[:2])))
    task = index("", context={"taskLockTimeout": 0})
    task["spec"]["ioConfig"]["inputSource"] = {
        "type": "combining",
        "delegates": [
            {"type": "druid", "dataSource": "d", "interval": day(1)},
            {"type": "inline", "data": lines(ABC[2])},
        ],
    }
    result = world.run(task)
    assert result.state is TaskState.SUCCESS, result.error
    assert world.rows() == ABC


INTERVALS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 9)).map(lambda t: Interval(t[0], t[0] + t[1])),
    max_size=6,
)


@given(wanted=INTERVALS, held=INTERVALS)
def test_outside_is_what_no_other_interval_holds(
    wanted: list[Interval], held: list[Interval]
) -> None:
    wanted, held = condensed(wanted), condensed(held)
    left = outside(wanted, held)
    for ms in range(60):
        inside = [any(one.contains(ms) for one in side) for side in (wanted, held, left)]
        assert inside[2] == (inside[0] and not inside[1])
    assert not any(one.is_empty for one in left)


def test_compaction_makes_few_segments_of_many(world: BatchWorld) -> None:
    for row in ABC:
        world.run(index(lines(row), mode="append"))
    assert len(world.visible()) == 3
    result = world.run(compact(day(1, 2)))
    assert result.state is TaskState.SUCCESS, result.error
    assert world.rows() == ABC
    assert len(world.visible()) == 2
    assert all(s.last_compaction_state for s in world.visible())


def test_compaction_may_change_the_time_chunks(world: BatchWorld) -> None:
    world.run(index(lines(*ABC)))
    result = world.run(compact(day(1, 31), segmentGranularity="month"))
    assert result.state is TaskState.SUCCESS, result.error
    assert world.rows() == ABC
    assert [str(s.interval) for s in world.visible()] == [day(1, 31)]


def test_compaction_combines_rows_that_were_rolled_up(world: BatchWorld) -> None:
    rollup: dict[str, Any] = {"granularity": {"rollup": True, "queryGranularity": "day"}}
    metrics = {"metricsSpec": [{"type": "count", "name": "count"}]}
    for _ in range(3):
        world.run(index(lines((1, "x", 1), (1, "x", 1)), mode="append", schema=metrics, **rollup))
    result = world.run(compact(day(1)))
    assert result.state is TaskState.SUCCESS, result.error
    assert world.engine.writes[-1].combines == {"count"}
    assert world.engine.writes[-1].schema.rollup
    assert [m.name for m in world.engine.writes[-1].schema.metrics] == ["count"]


@pytest.mark.parametrize(
    "metric",
    [
        {"type": "count", "name": "count"},
        {"type": "longSum", "name": "count", "fieldName": "count"},
    ],
)
def test_metrics_that_are_named_again_go_on_from_what_is_there(
    world: BatchWorld, metric: dict[str, str]
) -> None:
    """A count of rows that were rolled up is the sum of their counts, however it is asked for."""
    rollup: dict[str, Any] = {"granularity": {"rollup": True, "queryGranularity": "day"}}
    metrics = {"metricsSpec": [{"type": "count", "name": "count"}]}
    world.run(index(lines((1, "x", 1), (1, "x", 1)), schema=metrics, **rollup))
    task = compact(day(1), rollup=True)
    task["metricsSpec"] = [metric]
    result = world.run(task)
    assert result.state is TaskState.SUCCESS, result.error
    assert world.engine.writes[-1].combines == {"count"}


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"interval": day(20)}, "nothing to compact"),
        ({"interval": day(1), "sha256OfSortedSegmentIds": "0" * 64}, "have changed"),
        ({"interval": str(day(1)).replace("T00:00:00.000Z/", "T12:00:00.000Z/")}, "cuts the time"),
    ],
)
def test_a_compaction_that_cannot_be_says_why(
    world: BatchWorld, spec: dict[str, str], told: str
) -> None:
    world.run(index(lines(*ABC)))
    task = compact(day(1))
    task["ioConfig"] = {"type": "compact", "inputSpec": {"type": "interval", **spec}}
    result = world.run(task)
    assert result.state is TaskState.FAILED
    assert told in result.error
    assert world.rows() == ABC


# Beside each other


def test_what_is_appended_during_a_replace_stays(world: BatchWorld) -> None:
    """The append lands between the replace's lock and its publish, and is carried over."""
    world.run(index(lines(*ABC), **CONCURRENT))
    replace = world.add(
        index(lines((1, "new", 9)), mode="replace", intervals=[day(1)], **CONCURRENT)
    )

    def meanwhile(_moment: str) -> None:
        world.engine.at = lambda _moment: None
        appended = world.run(index(lines((1, "late", 5)), mode="append", **CONCURRENT))
        assert appended.state is TaskState.SUCCESS, appended.error

    world.engine.at = meanwhile
    result = world.make(replace).run()
    world.end(replace)
    assert result.state is TaskState.SUCCESS, result.error
    assert world.rows() == [(1, "late", 5), (1, "new", 9), ABC[2]]


def test_what_is_appended_during_a_compaction_is_there_once(world: BatchWorld) -> None:
    world.run(index(lines(*ABC), **CONCURRENT))
    task = world.add({**compact(day(1)), **CONCURRENT})

    def meanwhile(kind: str) -> None:
        if kind == "before segmentListUsed":
            world.at = lambda _kind: None
            world.run(index(lines((1, "late", 5)), mode="append", **CONCURRENT))

    world.at = meanwhile
    result = world.make(task).run()
    world.end(task)
    assert result.state is TaskState.SUCCESS, result.error
    assert world.rows() == sorted([*ABC, (1, "late", 5)])


def test_what_is_appended_before_a_sql_replace_reads_is_not_read_as_well(
    world: BatchWorld,
) -> None:
    world.run(index(lines(*ABC), **CONCURRENT))
    task = world.add(
        {
            "type": "query_controller",
            "dataSource": "d",
            "sql": "REPLACE …",
            "query": "SELECT * FROM d",
            "overwrite": [day(1)],
            "partitionedBy": "day",
            **CONCURRENT,
        }
    )

    def meanwhile(kind: str) -> None:
        if kind == "before segmentListUsed":
            world.at = lambda _kind: None
            world.run(index(lines((1, "late", 5)), mode="append", **CONCURRENT))

    world.at = meanwhile
    made = world.make(task)
    result = made.run()
    world.end(task)
    assert result.state is TaskState.SUCCESS, result.error
    counts = made.report().row_stats["buildSegments"]
    assert (counts["processed"], counts["thrownAway"]) == (2, 1)  # that of another day
    assert sum(s.total_rows for s in world.visible() if str(s.interval) == day(1)) == 3


def test_a_task_waits_for_a_lock_and_then_says_who_had_it(world: BatchWorld) -> None:
    holder = world.add(index(lines(*ABC), intervals=[day(1)]))
    world.make(holder).run()
    spec = index(lines(*ABC), intervals=[day(1)], context={"taskLockTimeout": 0})
    result = world.run(spec)
    assert result.state is TaskState.FAILED
    assert holder.id in result.error
    assert "taskLockTimeout" in result.error


def test_an_append_waits_for_a_lock_no_longer_than_its_timeout(world: BatchWorld) -> None:
    """Who has the lock may wait for the very slot in which this one waits."""
    holder = world.add(index(lines(*ABC), intervals=[day(1)]))
    world.make(holder).run()
    result = world.run(index(lines(*ABC), mode="append", context={"taskLockTimeout": 0}))
    assert result.state is TaskState.FAILED
    assert holder.id in result.error
    assert "taskLockTimeout" in result.error
    world.end(holder)
    assert world.rows() == ABC[:2]


def test_a_revoked_task_publishes_nothing(world: BatchWorld) -> None:
    spec = world.add(index(lines(*ABC), intervals=[day(1)]))

    def meanwhile(_moment: str) -> None:
        world.engine.at = lambda _moment: None
        stronger = index(lines((1, "strong", 1)), intervals=[day(1)], context={"priority": 90})
        assert world.run(stronger).state is TaskState.SUCCESS

    world.engine.at = meanwhile
    result = world.make(spec).run()
    world.end(spec)
    assert result.state is TaskState.FAILED
    assert "higher priority" in result.error
    assert world.rows() == [(1, "strong", 1)]


# Deaths


@pytest.mark.parametrize("concurrent", [False, True])
@pytest.mark.parametrize("intervals", [(), ("2026-01-01T20:00Z/2026-01-03T02:00Z",)])
@pytest.mark.parametrize(
    "moment", ["", *(f"after {one}" for one in ("lockTryAcquire", "segmentAllocate"))]
)
def test_hours_across_the_end_of_a_day_are_added_to_both_days(
    world: BatchWorld, concurrent: bool, intervals: tuple[str, ...], moment: str
) -> None:
    """Its own lock, of the hours, is not in the way of those of the days."""
    world.run(index(lines((1, "x", 1), (2, "y", 2), (3, "z", 3))))
    hours = [json.dumps({"t": START_MS + h * 3_600_000, "a": "late", "n": h}) for h in (23, 24)]
    more = {"context": {"useConcurrentLocks": concurrent}, "granularity": dict(HOURS)}
    spec = world.add(index("\n".join(hours), mode="append", intervals=intervals, **more))

    def cut(here: str) -> None:
        if here == moment:
            world.at = lambda _here: None
            raise Cut

    world.at = cut
    if moment:
        with pytest.raises(Cut):
            world.make(spec).run()
    result = world.make(spec).run()
    world.end(spec)
    assert result.state is TaskState.SUCCESS, result.error
    assert {str(one.interval) for one in world.visible()} == {day(1), day(2), day(3)}
    late = [(1, "late", 23), (1, "x", 1), (2, "late", 24), (2, "y", 2), (3, "z", 3)]
    assert world.rows() == late


@pytest.mark.parametrize("mode", ["legacy", "append", "replace"])
def test_a_task_that_dies_anywhere_goes_on_and_counts_once(world: BatchWorld, mode: str) -> None:
    world.run(index(lines(*ABC)))
    kinds = ["lockTryAcquire", "segmentListUsed", "segmentAllocate", "lockList"]
    kinds += [f"segmentTransactional{one}" for one in ("Insert", "Append", "Replace")]
    moments = [f"{when} {kind}" for kind in kinds for when in ("before", "after")]
    for moment in [*moments, "before write", "after write"]:
        spec = world.add(index(lines((1, moment, 1)), mode=mode, intervals=[day(1)]))

        def cut(here: str, moment: str = moment) -> None:
            if here == moment:
                raise Cut

        world.at = world.engine.at = cut
        died = False
        try:
            result = world.make(spec).run()
        except Cut:
            died = True
            world.at = world.engine.at = _do_nothing
            result = world.make(spec).run()
        world.at = world.engine.at = _do_nothing
        world.end(spec)
        assert result.state is TaskState.SUCCESS, (moment, died, result.error)
        assert [row[1] for row in world.rows()].count(moment) == 1


def test_a_compaction_that_dies_after_its_publish_has_succeeded(world: BatchWorld) -> None:
    """What it was made for is hidden by then, and must not be looked for again."""
    world.run(index(lines(*ABC)))
    task = compact(day(1, 2))
    digest = ids_digest([str(segment.id) for segment in world.visible()])
    task["ioConfig"]["inputSpec"]["sha256OfSortedSegmentIds"] = digest
    spec = world.add(task)

    def cut(kind: str) -> None:
        if kind.startswith("after segmentTransactional"):
            raise Cut

    world.at = cut
    with pytest.raises(Cut):
        world.make(spec).run()
    world.at = lambda _kind: None
    published = world.visible()
    again = world.make(spec)
    result = again.run()
    assert result.state is TaskState.SUCCESS, result.error
    assert world.visible() == published
    assert again.report().row_stats["buildSegments"]["processed"] == len(ABC)


def test_a_refused_publish_that_is_tried_again_still_has_its_files(world: BatchWorld) -> None:
    """The peon dies between the refusal and its report; by then nothing is in the way any more."""
    world.run(index(lines(*ABC), **CONCURRENT))
    spec = world.add(index(lines((1, "new", 9)), mode="replace", intervals=[day(1)], **CONCURRENT))
    refused = PublishOutcome(ok=False, reason="something is in the way")
    publish = world.store.publish
    world.store.publish = lambda _request: refused  # type: ignore[assignment,method-assign]
    result = world.make(spec).run()
    assert "in the way" in result.error
    world.store.publish = publish  # type: ignore[method-assign]
    assert world.make(spec).run().state is TaskState.SUCCESS
    assert world.rows() == [(1, "new", 9), ABC[2]]


def compact(interval: str, **granularity: object) -> dict[str, Any]:
    return {
        "type": "compact",
        "dataSource": "d",
        "ioConfig": {"type": "compact", "inputSpec": {"type": "interval", "interval": interval}},
        "granularitySpec": granularity,
    }
