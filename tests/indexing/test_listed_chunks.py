"""Type `arbitrary` of a granularitySpec: the time chunks are the intervals, in batch tasks.

What is locked, written, replaced and appended must be these very chunks, whatever chunks are there
already; what lies outside is thrown away and counted, never put into a chunk of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Granularity, Interval
from penstock.indexing.batch.batch_engine import BatchRequest, CombinedInput, Partitioning
from penstock.indexing.ports import TaskState
from penstock.indexing.specs import SpecError, parse_data_schema, parse_supervisor
from penstock.indexing.specs.batch.batch_task_specs import parse_batch_task
from penstock.indexing.specs.batch.index_parallel import IndexParallelSpec
from penstock.indexing.specs.batch.task import aligned
from tests.indexing.batch_kit import START_MS, BatchWorld, day, index, lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

ROWS = [(1, "a", 1), (2, "b", 2), (3, "c", 3), (5, "d", 5), (9, "e", 9)]
HALF_DAY_MS = 43_200_000
NEW_YORK: JsonValue = {"type": "period", "period": "P1D", "timeZone": "America/New_York"}


def listed(data: str, *intervals: str, mode: str = "legacy", **more: object) -> dict[str, Any]:
    """Return an `index_parallel` whose time chunks are intervals."""
    told: dict[str, Any] = {"type": "arbitrary", "segmentGranularity": None}
    return index(data, mode=mode, intervals=intervals, granularity=told, **more)


def schema_of(**granularity: JsonValue) -> dict[str, JsonValue]:
    return {
        "dataSource": "d",
        "dimensionsSpec": {"dimensions": ["a"]},
        "granularitySpec": {"type": "arbitrary", **granularity},
    }


def refused(**granularity: JsonValue) -> Mapping[str, str]:
    """Return what is wrong, by the field of the granularitySpec."""
    with pytest.raises(SpecError) as raised:
        parse_data_schema(schema_of(**granularity))
    return {one.place.rpartition(".")[2]: one.message for one in raised.value.mistakes}


def chunks(world: BatchWorld) -> list[str]:
    return sorted({str(one.interval) for one in world.visible()})


# The spec


def test_the_intervals_are_the_time_chunks() -> None:
    schema = parse_data_schema(schema_of(intervals=[day(3, 4), day(1, 2), day(1, 2)]))
    assert schema.segment_granularity == Granularity.of_intervals(
        [Interval.parse(day(1, 2)), Interval.parse(day(3, 4))]
    )
    written = schema.model_dump(mode="json", by_alias=True)
    assert written["granularitySpec"]["segmentGranularity"] is None
    assert parse_data_schema(written) == schema


def test_it_is_taken_as_druid_writes_it() -> None:
    told: dict[str, JsonValue] = {
        "type": "arbitrary",
        "queryGranularity": {"type": "none"},
        "rollup": True,
        "intervals": ["2026-01-01T00:00:00.000Z/2026-01-03T00:00:00.000Z"],
    }
    found = parse_data_schema({**schema_of(), "granularitySpec": told})
    assert found.segment_granularity.given == (Interval.parse(day(1, 2)),)


def test_time_chunks_are_listed_and_apart() -> None:
    assert "is required" in refused()["intervals"]
    assert "is required" in refused(intervals=[])["intervals"]
    overlapping = refused(intervals=[day(1, 3), day(5), day(3, 4)])["intervals"]
    assert f"{day(1, 3)} and {day(3, 4)} overlap" in overlapping
    both = refused(intervals=[day(1)], segmentGranularity="day")
    assert "leave it out" in both["segmentGranularity"]
    wrong = {"segmentGranularity": "day", "queryGranularity": "month"}
    told = refused(intervals=[day(1, 3), day(3, 4)], **wrong)
    assert told.keys() == {"intervals", "segmentGranularity", "queryGranularity"}


@pytest.mark.parametrize(
    ("interval", "query", "fits"),
    [
        ("2026-01-01/2026-01-04", "day", True),
        ("2026-01-01/2026-01-04", "none", True),
        ("2026-01-01T12:00Z/2026-01-04", "hour", True),
        ("2026-01-01T12:00Z/2026-01-04", "day", False),
        ("2026-01-01/2026-01-04T00:30Z", "hour", False),
        ("2026-01-01/2026-03-01", "month", True),
        ("2026-01-01/2026-01-04", "all", False),
    ],
)
def test_no_bucket_of_time_lies_across_the_end_of_a_chunk(
    interval: str, query: str, fits: bool
) -> None:
    if fits:
        parse_data_schema(schema_of(intervals=[interval], queryGranularity=query))
        return
    found = refused(intervals=[day(9), interval], queryGranularity=query)
    assert "does not fit into the time chunk" in found["queryGranularity"]


def test_a_stream_has_no_listed_chunks() -> None:
    spec: dict[str, JsonValue] = {
        "type": "penstock",
        "spec": {
            "dataSchema": schema_of(intervals=[day(1)]),
            "ioConfig": {"topic": "t"},
        },
    }
    with pytest.raises(SpecError) as raised:
        parse_supervisor(spec)
    (mistake,) = raised.value.mistakes
    assert mistake.place == "spec.dataSchema.granularitySpec.type"
    assert "segmentGranularity" in mistake.message


def test_an_index_task_locks_its_chunks_and_no_more() -> None:
    noon = str(Interval(START_MS + HALF_DAY_MS, START_MS + 3 * HALF_DAY_MS))
    spec = parse_batch_task(listed("", noon, day(5, 9)))
    assert isinstance(spec, IndexParallelSpec)
    assert [str(wish.interval) for wish in spec.lock_intents()] == [noon, day(5, 9)]
    again = parse_batch_task(spec.to_json())
    assert again == spec


def test_the_engine_is_never_asked_for_rows_between_the_chunks() -> None:
    schema = parse_data_schema(schema_of(intervals=[day(1, 2), day(3), day(9)]))

    def asked(*intervals: str) -> BatchRequest:
        wanted = tuple(map(Interval.parse, intervals))
        return BatchRequest("t", schema, CombinedInput(()), wanted, Partitioning(), "/out")

    assert len(asked(day(2, 3), day(9)).intervals) == 2
    for wrong in ([], [day(9, 10)], [day(1), day(5)]):
        with pytest.raises(InvalidRequest, match="choose intervals within these chunks"):
            asked(*wrong)


def test_what_lies_between_chunks_is_not_widened() -> None:
    granularity = Granularity.of_intervals([Interval(10, 20), Interval(20, 30), Interval(50, 60)])
    for given, wanted in [
        ((12, 15), (10, 20)),
        ((12, 25), (10, 30)),
        ((5, 25), (5, 30)),
        ((12, 40), (10, 40)),
        ((32, 40), (32, 40)),
        ((40, 55), (40, 60)),
    ]:
        assert aligned(Interval(*given), granularity) == Interval(*wanted)


# Tasks


@pytest.mark.parametrize("mode", ["legacy", "replace", "append"])
def test_rows_go_into_the_listed_chunks_and_others_are_counted(
    world: BatchWorld, mode: str
) -> None:
    spec = world.add(listed(lines(*ROWS), day(1, 2), day(3, 4), day(9, 12), mode=mode))
    task = world.make(spec)
    assert task.run().state is TaskState.SUCCESS
    assert chunks(world) == [day(1, 2), day(3, 4), day(9, 12)]
    assert world.rows() == [row for row in ROWS if row[0] != 5]
    counts = task.report().row_stats["buildSegments"]
    assert (counts["processed"], counts["thrownAway"]) == (4, 1)


def test_a_later_task_replaces_the_chunks_that_it_has_rows_for(world: BatchWorld) -> None:
    assert world.run(listed(lines(*ROWS), day(1, 2), day(3, 12))).state is TaskState.SUCCESS
    world.run(listed(lines((4, "new", 4)), day(1, 2), day(3, 12)))
    assert world.rows() == [*ROWS[:2], (4, "new", 4)]


def test_chunks_across_those_that_are_there_hide_what_lies_in_them(world: BatchWorld) -> None:
    world.run(index(lines(*ROWS)))
    assert world.run(listed(lines((4, "new", 4)), day(2, 4))).state is TaskState.SUCCESS
    assert world.rows() == [ROWS[0], (4, "new", 4), *ROWS[3:]]
    # Of a month only what lies in the chunk is hidden.
    world.run(index(lines((1, "m", 1), (20, "m", 2)), granularity={"segmentGranularity": "month"}))
    world.run(listed(lines((20, "new", 3)), day(15, 25)))
    assert world.rows() == [(1, "m", 1), (20, "new", 3)]


def test_a_replace_hides_all_of_its_chunks_and_nothing_between_them(world: BatchWorld) -> None:
    world.run(index(lines(*ROWS)))
    result = world.run(listed(lines((9, "new", 9)), day(1, 2), day(4), day(9, 12), mode="replace"))
    assert result.state is TaskState.SUCCESS, result.error
    assert world.rows() == [ROWS[2], ROWS[3], (9, "new", 9)]
    empty = [
        str(row.interval)
        for row in world.store.segments.used("d")
        if row.payload["loadSpec"] == {"type": "tombstone"}
    ]
    assert empty == [day(1, 2)]


def test_an_append_goes_into_the_chunk_that_is_there(world: BatchWorld) -> None:
    world.run(index(lines((1, "m", 1)), granularity={"segmentGranularity": "month"}))
    (there,) = world.visible()
    result = world.run(listed(lines(*ROWS), day(1, 2), day(3, 12), mode="append"))
    assert result.state is TaskState.SUCCESS, result.error
    assert {(one.interval, one.version) for one in world.visible()} == {
        (there.interval, there.version)
    }
    assert world.rows() == sorted([(1, "m", 1), *ROWS])


def test_an_append_across_the_end_of_a_chunk_that_is_there_is_refused(world: BatchWorld) -> None:
    world.run(index(lines((1, "a", 1))))
    before = world.rows()
    result = world.run(listed(lines((2, "b", 2)), day(1, 2), mode="append"))
    assert result.state is TaskState.FAILED
    assert "none of them can hold all rows of the task" in str(result.error)
    assert "intervals, each within one of theirs" in str(result.error)
    assert world.rows() == before


def test_a_later_append_by_day_goes_into_a_listed_chunk(world: BatchWorld) -> None:
    world.run(listed(lines(*ROWS[:3]), day(1, 3)))
    result = world.run(index(lines((2, "more", 2), (4, "day", 4)), mode="append"))
    assert result.state is TaskState.SUCCESS, result.error
    assert chunks(world) == [day(1, 3), day(4)]
    assert world.rows() == sorted([*ROWS[:3], (2, "more", 2), (4, "day", 4)])


def test_a_datasource_is_read_into_itself_by_other_chunks(world: BatchWorld) -> None:
    world.run(index(lines(*ROWS)))
    task = listed("", day(1, 3), day(4, 6))
    task["spec"]["ioConfig"] = {
        "inputSource": {"type": "druid", "dataSource": "d", "interval": day(1, 31)}
    }
    result = world.run(task)
    assert result.state is TaskState.SUCCESS, result.error
    # The rows of the ninth day are of no chunk that is listed: they stay as they were.
    assert world.rows() == ROWS
    assert chunks(world) == [day(1, 3), day(4, 6), day(9)]


@pytest.mark.parametrize("granularity", [None, "day", "month"])
def test_listed_chunks_are_compacted_as_they_are_or_into_others(
    world: BatchWorld, granularity: str | None
) -> None:
    world.run(
        listed(
            lines(*ROWS[:2]),
            day(1, 3),
            tuning={"partitionsSpec": {"type": "dynamic", "maxRowsPerSegment": 1}},
        )
    )
    assert len(world.visible()) == 2
    compact: dict[str, Any] = {
        "type": "compact",
        "dataSource": "d",
        "ioConfig": {
            "inputSpec": {"type": "interval", "interval": day(1, 3)},
            "allowNonAlignedInterval": True,
            "dropExisting": True,
        },
    }
    if granularity is not None:
        compact["granularitySpec"] = {"segmentGranularity": granularity}
    result = world.run(compact)
    assert result.state is TaskState.SUCCESS, result.error
    assert world.rows() == ROWS[:2]
    wanted = {None: [day(1, 3)], "day": [day(1), day(2)], "month": [day(1, 31)]}
    assert chunks(world) == wanted[granularity]


@pytest.mark.parametrize(
    ("chunk", "query"),
    [
        ({"type": "arbitrary", "segmentGranularity": None}, "month"),
        ({"segmentGranularity": NEW_YORK}, NEW_YORK),
    ],
    ids=["months", "zone"],
)
def test_a_chunk_that_is_no_bucket_of_its_length_is_compacted_as_it_is(
    world: BatchWorld, chunk: dict[str, JsonValue], query: JsonValue
) -> None:
    # A day of a zone in summer, and two months: what times are cut down to fits in all the same.
    interval = "2026-06-01/2026-08-01" if "type" in chunk else "2026-06-01T04:00/2026-06-02T04:00"
    at = Interval.parse(interval).start_ms
    told: dict[str, Any] = {
        "granularity": {**chunk, "queryGranularity": query, "rollup": True},
        "schema": {"metricsSpec": [{"type": "count", "name": "count"}]},
        "tuning": {"partitionsSpec": {"type": "dynamic", "maxRowsPerSegment": 1}},
    }
    data = "\n".join(f'{{"t": {at + 1}, "a": "x", "n": {n}}}' for n in (1, 2))
    world.run(index(data, intervals=[interval], **told))
    assert len(world.visible()) == 2
    whole = {"type": "interval", "interval": interval}
    result = world.run({"type": "compact", "dataSource": "d", "ioConfig": {"inputSpec": whole}})
    assert result.state is TaskState.SUCCESS, result.error
    (made,) = world.visible()
    assert made.interval == Interval.parse(interval)
    assert made.total_rows == 2


@pytest.mark.parametrize("mode", ["legacy", "append"])
def test_segments_of_listed_chunks_may_be_locked_one_by_one(world: BatchWorld, mode: str) -> None:
    context = {"context": {"forceTimeChunkLock": False}}
    world.run(listed(lines(*ROWS[:2]), day(1, 3)))
    (before,) = world.visible()
    result = world.run(listed(lines((3, "new", 3)), day(1, 3), mode=mode, **context))
    assert result.state is TaskState.SUCCESS, result.error
    wanted = [(3, "new", 3)] if mode == "legacy" else [*ROWS[:2], (3, "new", 3)]
    assert world.rows() == wanted
    assert {one.version for one in world.visible()} == {before.version}


def test_two_tasks_with_chunks_that_overlap_wait_for_each_other(world: BatchWorld) -> None:
    first = world.add(listed(lines((2, "first", 1)), day(1, 3)))
    held = world.make(first)
    other = listed(lines((3, "other", 2)), day(3, 4), context={"taskLockTimeout": 5_000})
    refusals: list[str] = []

    def meanwhile(at: str) -> None:
        if at == "before segmentTransactionalInsert" and not refusals:
            refusals.append("")
            result = world.run(other)
            refusals[0] = str(result.error)

    world.at = meanwhile
    assert held.run().state is TaskState.SUCCESS
    world.end(first)
    assert "taskLockTimeout" in refusals[0]
    assert world.run(other).state is TaskState.SUCCESS
    # The later one hides the third day, and what lies before it stays.
    assert world.rows() == [(2, "first", 1), (3, "other", 2)]
