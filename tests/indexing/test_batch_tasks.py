"""Stories of batch tasks: what they write, replace, append, compact and delete, whatever dies."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping

import pytest
from batch_kit import ABC, START_MS, BatchWorld, Cut, day, index, lines
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from penstock.core.errors import Unavailable
from penstock.core.instants import format_time
from penstock.core.intervals import Interval, condensed
from penstock.indexing.batch.engine import SegmentInput
from penstock.indexing.batch.insisting import LOSSES_MAX, Losses
from penstock.indexing.batch.job import ids_digest
from penstock.indexing.batch.locks.locking import outside
from penstock.indexing.engine import (
    EngineFailure,
    EngineLost,
    EngineUnavailable,
    InputUnavailable,
)
from penstock.indexing.ports import TaskState
from penstock.indexing.worker.peontask import PeonTask
from penstock.storage.metadata import PublishOutcome
from penstock.testing.batchengine import FakeBatchEngine

DYNAMIC_2 = {"partitionsSpec": {"type": "dynamic", "maxRowsPerSegment": 2}}
CONCURRENT = {"context": {"useConcurrentLocks": True}}
HOURS = {"segmentGranularity": "hour"}


# Modes


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
    task["spec"]["ioConfig"] = {  # type: ignore[index]
        "inputSource": {"type": "druid", "dataSource": "d", "interval": day(1)}
    }
    task["spec"]["dataSchema"]["dataSource"] = "e"  # type: ignore[index]
    assert world.run(task).state is TaskState.SUCCESS
    assert world.rows("e") == ABC[:2]
    assert world.rows() == ABC


def test_a_source_leaves_out_what_it_filters_and_what_it_does_not_select(
    world: BatchWorld,
) -> None:
    rollup = {"granularity": {"rollup": True, "queryGranularity": "day"}}
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
        task["spec"]["ioConfig"] = {"inputSource": {**source, **selected}}  # type: ignore[index]
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
    task["spec"]["ioConfig"]["inputSource"] = {  # type: ignore[index]
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
    rollup = {"granularity": {"rollup": True, "queryGranularity": "day"}}
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
    rollup = {"granularity": {"rollup": True, "queryGranularity": "day"}}
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


# Trouble


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
            world.at = world.engine.at = lambda _here: None
            result = world.make(spec).run()
        world.at = world.engine.at = lambda _here: None
        world.end(spec)
        assert result.state is TaskState.SUCCESS, (moment, died, result.error)
        assert [row[1] for row in world.rows()].count(moment) == 1


def test_a_compaction_that_dies_after_its_publish_has_succeeded(world: BatchWorld) -> None:
    """What it was made for is hidden by then, and must not be looked for again."""
    world.run(index(lines(*ABC)))
    task = compact(day(1, 2))
    digest = ids_digest([str(segment.id) for segment in world.visible()])
    task["ioConfig"]["inputSpec"]["sha256OfSortedSegmentIds"] = digest  # type: ignore[index]
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


def test_a_lost_engine_costs_another_try_into_another_folder(world: BatchWorld) -> None:
    folders = []

    def lose(_moment: str) -> None:
        folders.append(1)
        if len(folders) < 3:
            raise EngineUnavailable("the engine is gone")

    world.engine.at = lose
    assert world.run(index(lines(*ABC))).state is TaskState.SUCCESS
    assert world.rows() == ABC


def payload(task: PeonTask) -> dict[str, JsonValue]:
    found = task.report().to_json("t")["ingestionStatsAndErrors"]
    assert isinstance(found, dict)
    told = found["payload"]
    assert isinstance(told, dict)
    return told


def test_an_engine_that_is_not_there_is_waited_for_and_the_report_says_so(
    world: BatchWorld,
) -> None:
    told = []
    spec = world.add(index(lines(*ABC)))
    task = world.make(spec)

    def lose(moment: str) -> None:
        told.append((payload(task).get("failedTries"), payload(task).get("lastFailure")))
        if len(told) <= 3 * LOSSES_MAX:
            raise EngineUnavailable(f"nothing answers {moment}")

    world.engine.at = lose
    assert task.run().state is TaskState.SUCCESS
    assert told[:2] == [(None, None), (1, "nothing answers before write")]
    assert told[3 * LOSSES_MAX][0] == 3 * LOSSES_MAX
    assert "failedTries" not in payload(task)


def test_the_report_says_which_try_of_how_many_and_when_the_next_is(world: BatchWorld) -> None:
    told: list[dict[str, JsonValue]] = []
    began_ms: list[int] = []
    spec = world.add(index(lines(*ABC)))
    task = world.make(spec)

    def silent(_moment: str) -> None:
        began_ms.append(world.clock.now_ms())
        told.append(payload(task))
        if len(told) < 4:
            raise InputUnavailable("https://u:hush@h.org/a?key=hush cannot be read" + "!" * 9_000)

    world.engine.at = silent
    assert task.run().state is TaskState.SUCCESS
    assert [one.get("failedTries") for one in told[:4]] == [None, 1, 2, 3]
    for number, one in enumerate(told[1:4], 1):
        assert one["failedTriesMax"] == LOSSES_MAX
        assert one["failedWork"] == "writing segments"
        assert one["nextTry"] == format_time(began_ms[number])
        assert "hush" not in str(one["lastFailure"])
        assert len(str(one["lastFailure"])) == 2_000


def test_a_report_of_a_task_that_failed_tells_of_no_next_try(world: BatchWorld) -> None:
    spec = world.add(index(lines(*ABC)))
    task = world.make(spec)
    errors = [InputUnavailable("h.org cannot be read"), EngineFailure("a row has no time")]

    def break_down(_moment: str) -> None:
        if errors:
            raise errors.pop(0)

    world.engine.at = break_down
    assert task.run().state is TaskState.FAILED
    assert "nextTry" not in payload(task)


def test_the_report_says_that_the_overlord_does_not_answer(world: BatchWorld) -> None:
    told: list[dict[str, JsonValue]] = []
    spec = world.add(index(lines(*ABC)))
    task = world.make(spec)

    def refuse(_kind: str) -> None:
        told.append(payload(task))
        if len(told) < 3:
            raise Unavailable("nobody is there")

    world.at = refuse
    assert task.run().state is TaskState.SUCCESS
    assert [one.get("failedTries") for one in told[:3]] == [None, 1, 2]
    assert "failedTries" not in payload(task)
    assert (told[2]["lastFailure"], told[2]["failedTriesMax"]) == ("nobody is there", None)


def test_work_that_breaks_the_engine_each_time_is_given_up(world: BatchWorld) -> None:
    began_s = []

    def lose(_moment: str) -> None:
        began_s.append(world.clock.monotonic_s())
        raise EngineLost("OutOfMemoryError: Java heap space")

    world.engine.at = lose
    spec = world.add(index(lines(*ABC)))
    task = world.make(spec)
    result = task.run()
    assert result.state is TaskState.FAILED
    assert len(began_s) == LOSSES_MAX
    assert f"lost {LOSSES_MAX} times" in result.error
    assert "Java heap space" in result.error
    assert "--spark-memory" in result.error
    assert payload(task)["failedTries"] == LOSSES_MAX
    world.end(spec)
    assert not world.store.locks.every()
    pauses = [after - before for before, after in itertools.pairwise(began_s)]
    assert pauses[-1] == 300


def test_a_peon_that_is_started_again_counts_on(world: BatchWorld) -> None:
    tries = []
    spec = world.add(index(lines(*ABC)))
    task = world.make(spec)

    def lose(_moment: str) -> None:
        tries.append(1)
        if len(tries) == LOSSES_MAX - 3:
            task.stop()
        raise EngineLost("OutOfMemoryError: Java heap space")

    world.engine.at = lose
    assert task.run().state is TaskState.RUNNING
    task = world.make(spec)
    result = task.run()
    assert f"lost {LOSSES_MAX} times" in result.error
    # What ends a try that was told to stop is not held against the work.
    assert len(tries) == LOSSES_MAX + 1


def test_an_input_that_does_not_answer_is_given_up_and_named(world: BatchWorld) -> None:
    began_s = []

    def silent(_moment: str) -> None:
        began_s.append(world.clock.monotonic_s())
        raise InputUnavailable("https://example.org/a.json does not answer as it should")

    world.engine.at = silent
    result = world.run(index(lines(*ABC)))
    assert result.state is TaskState.FAILED
    assert len(began_s) == LOSSES_MAX
    assert f"did not answer {LOSSES_MAX} times, at last: https://example.org/a.json" in result.error
    assert "See to its host, or correct the input" in result.error
    assert began_s[-1] - began_s[0] > 600


class NoFolder:
    """Keeps nothing."""

    def read_json(self, _name: str) -> None:
        return None

    def write_json(self, _name: str, _value: object) -> None:
        raise Unavailable("the disk is full")


def losses(dice: random.Random) -> Losses:
    return Losses(dice.random, NoFolder())  # type: ignore[arg-type]


@given(st.integers(0, 2**32), st.integers(1, 120))
def test_work_beside_such_work_is_not_given_up(seed: int, takes_s: int) -> None:
    dice = random.Random(seed)
    guilty, innocent, lost = losses(dice), losses(dice), EngineLost("gone")
    # The guilty task breaks the engine after half a minute of work.
    kills_s = [30.0]
    for _ in range(LOSSES_MAX - 1):
        kills_s.append(kills_s[-1] + guilty.note(lost).pause_ms / 1000 + 30)
    assert isinstance(guilty.note(lost).end, EngineFailure)
    begins_s = 0.0
    for kill_s in kills_s:
        if begins_s + takes_s <= kill_s:
            break
        if begins_s < kill_s:
            setback = innocent.note(lost)
            assert setback.end is None
            begins_s = kill_s + setback.pause_ms / 1000


def test_an_overlord_that_does_not_answer_is_asked_again(world: BatchWorld) -> None:
    asked = []

    def refuse(kind: str) -> None:
        asked.append(kind)
        if asked.count(kind) < 3:
            raise Unavailable("nobody is there")

    world.at = refuse
    assert world.run(index(lines(*ABC))).state is TaskState.SUCCESS
    assert world.rows() == ABC


def test_a_failure_of_the_engine_fails_the_task_and_changes_nothing(world: BatchWorld) -> None:
    world.run(index(lines(*ABC)))

    def fail(_moment: str) -> None:
        raise EngineFailure("a.json: line 3 is no JSON")

    world.engine.at = fail
    result = world.run(index(lines(*ABC)))
    assert result.state is TaskState.FAILED
    assert "line 3" in result.error
    assert world.rows() == ABC


def test_bad_rows_are_counted_sampled_and_bounded(world: BatchWorld) -> None:
    tuning = {"maxParseExceptions": 1, "maxSavedParseExceptions": 5}
    spec = world.add(index(lines(*ABC) + "\nnonsense", tuning=tuning))
    task = world.make(spec)
    assert task.run().state is TaskState.SUCCESS
    assert task.report().unparseable["buildSegments"][0]["place"] == "inline:4"  # type: ignore[index,call-overload]
    task = world.make(world.add(index("no\nno", tuning=tuning)))
    assert task.run().state is TaskState.FAILED
    report = task.report()
    assert report.row_stats["buildSegments"]["unparseable"] == 2  # type: ignore[index,call-overload]
    assert len(report.unparseable["buildSegments"]) == 2  # type: ignore[arg-type]
    result = world.run(index(lines(*ABC) + "\nno", tuning={"maxParseExceptions": 0}))
    assert result.error.startswith("1 row cannot be parsed, and at most 0 may be; the first: ")
    task = world.make(world.add(index("no\nno\nno")))
    assert task.run().state is TaskState.FAILED
    assert task.report().row_stats["buildSegments"]["unparseable"] == 3  # type: ignore[index,call-overload]


@pytest.mark.parametrize("fails", [False, True])
def test_the_log_tells_bad_rows_if_the_spec_says_so(
    world: BatchWorld, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    rows = "\n".join([lines(*ABC), *["nonsense"] * 120])
    tuning = {"maxParseExceptions": 5 if fails else 200}
    world.run(index(rows, tuning=tuning))
    assert "cannot be parsed: inline" not in caplog.text
    result = world.run(index(rows, tuning=tuning | {"logParseExceptions": True}))
    assert (result.state is TaskState.FAILED) is fails
    told = [one.getMessage() for one in caplog.records if "be parsed: " in one.getMessage()]
    assert told[0] == "cannot be parsed: inline:4: not a JSON object with a time: 'nonsense'"
    assert (len(told), told[-1]) == (101, "cannot be parsed: 20 more like these")


@pytest.mark.parametrize("mode", ["append", "legacy", "replace"])
def test_an_input_without_a_row_that_parses_changes_nothing(world: BatchWorld, mode: str) -> None:
    world.run(index(lines(*ABC)))
    month = ["2026-01-01/2026-02-01"]
    result = world.run(index("no\nno", mode=mode, intervals=month))
    assert result.state is TaskState.FAILED
    assert "none of the 2 rows can be parsed; the first: inline:1: " in result.error
    assert "inputFormat" in result.error
    assert world.rows() == ABC


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


def test_a_stopped_task_goes_on_later(world: BatchWorld) -> None:
    spec = world.add(index(lines(*ABC)))
    task = world.make(spec)

    def stop(_moment: str) -> None:
        task.stop()
        raise EngineFailure("cancelled")

    world.engine.at = stop
    assert task.run().state is TaskState.RUNNING
    assert world.engine.cancelled == [spec.id]
    world.engine = FakeBatchEngine()  # Each process has its own.
    assert world.make(spec).run().state is TaskState.SUCCESS
    assert world.rows() == ABC


def test_a_task_that_is_stopped_just_before_the_engine_is_called_does_not_write(
    world: BatchWorld,
) -> None:
    spec = world.add(index(lines(*ABC)))
    task = world.make(spec)
    world.engine.at = lambda moment: task.stop() if moment == "before write" else None
    assert task.run().state is TaskState.RUNNING
    assert world.engine.writes == []


# Deleting


def test_kill_deletes_unused_segments_and_their_files_alone(world: BatchWorld) -> None:
    world.run(index(lines(*ABC)))
    doomed = [str(s.id) for s in world.visible() if str(s.interval) == day(1)]
    before = world.files()
    world.store.segments.mark_unused(doomed)
    world.clock.advance(10)
    result = world.run({"type": "kill", "dataSource": "d", "interval": day(1, 5)})
    assert result.state is TaskState.SUCCESS, result.error
    assert world.store.segments.by_ids(doomed) == []
    assert len(world.files()) == len(before) - 1
    assert world.rows() == ABC[2:]


@pytest.mark.parametrize(
    ("context", "kind"), [({}, "EXCLUSIVE"), ({"useConcurrentLocks": True}, "REPLACE")]
)
def test_a_kill_holds_its_lock_until_the_last_file_is_gone(
    world: BatchWorld, monkeypatch: pytest.MonkeyPatch, context: dict[str, object], kind: str
) -> None:
    world.run(index(lines(*ABC)))
    world.store.segments.mark_unused([str(s.id) for s in world.visible()])
    world.clock.advance(10)
    seen: list[list[tuple[str, str]]] = []
    kill = world.deep_store.kill

    def noting(load_spec: Mapping[str, object]) -> None:
        held = world.lockboxes.locks("d").result()
        seen.append([(one.lock.type, str(one.lock.interval)) for one in held])
        kill(load_spec)

    monkeypatch.setattr(world.deep_store, "kill", noting)
    task = {"type": "kill", "dataSource": "d", "interval": day(1, 5), "context": context}
    assert world.run(task).state is TaskState.SUCCESS
    assert seen == [[(kind, str(Interval.parse(day(1, 5))))]] * len(seen)
    assert seen
    assert world.lockboxes.locks("d").result() == []


def test_kill_leaves_what_was_marked_later(world: BatchWorld) -> None:
    """Druid's maxUsedStatusLastUpdatedTime is the last moment that still counts."""
    world.run(index(lines(*ABC)))
    segments = {str(s.interval): str(s.id) for s in world.visible()}
    world.store.segments.mark_unused([segments[day(1)]])
    marked_ms = world.clock.now_ms()
    world.clock.advance(ms=1)
    world.store.segments.mark_unused([segments[day(2)]])
    world.clock.advance(10)
    for earlier_ms, left in ((1, 2), (0, 1)):
        task = {"type": "kill", "dataSource": "d", "interval": day(1, 5)}
        last = str(Interval(marked_ms - earlier_ms, marked_ms + 1)).partition("/")[0]
        result = world.run({**task, "maxUsedStatusLastUpdatedTime": last})
        assert result.state is TaskState.SUCCESS, result.error
        assert len(world.store.segments.every()) == left


def test_kill_keeps_to_the_versions_that_it_names(world: BatchWorld) -> None:
    world.run(index(lines((1, "x", 1))))
    (old,) = world.visible()
    world.run(index(lines((1, "y", 2))))
    (new,) = world.visible()
    world.store.segments.mark_unused([str(old.id), str(new.id)])
    world.clock.advance(10)
    task = {"type": "kill", "dataSource": "d", "interval": day(1)}
    result = world.run({**task, "versions": [old.version, "1999-01-01T00:00:00.000Z"]})
    assert result.state is TaskState.SUCCESS, result.error
    assert [row.id for row in world.store.segments.every()] == [str(new.id)]


def test_kill_keeps_to_its_limit(world: BatchWorld, caplog: pytest.LogCaptureFixture) -> None:
    world.run(index(lines(*ABC)))
    world.store.segments.mark_unused([str(s.id) for s in world.visible()])
    world.clock.advance(10)
    task = world.add(
        {"type": "kill", "dataSource": "d", "interval": day(1, 5), "limit": 1, "batchSize": 1}
    )
    kill = world.make(task)
    caplog.set_level("INFO")
    assert kill.run().state is TaskState.SUCCESS
    assert kill.report().more == {"segmentsKilled": 1, "filesDeleted": 1}
    assert f"task {task.id}: 1 segment removed, and 1 file of them" in caplog.messages


def test_a_kill_that_is_started_again_keeps_to_its_limit(world: BatchWorld) -> None:
    world.run(index(lines(*ABC, (3, "c", 3))))
    world.store.segments.mark_unused([str(s.id) for s in world.visible()])
    world.clock.advance(10)
    task = world.add(
        {"type": "kill", "dataSource": "d", "interval": day(1, 5), "limit": 1, "batchSize": 1}
    )

    def cut(kind: str) -> None:
        if kind == "after segmentNuke":
            raise Cut

    world.at = cut
    with pytest.raises(Cut):
        world.make(task).run()
    world.at = lambda _kind: None
    assert world.make(task).run().state is TaskState.SUCCESS
    assert len(world.store.segments.every()) == 2


def compact(interval: str, **granularity: object) -> dict[str, object]:
    return {
        "type": "compact",
        "dataSource": "d",
        "ioConfig": {"type": "compact", "inputSpec": {"type": "interval", "interval": interval}},
        "granularitySpec": granularity,
    }
