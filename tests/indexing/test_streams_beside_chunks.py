"""Streams and appending tasks over segments of another granularity: no row lost, none doubled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar

import orjson
import pytest

from penstock.core.errors import Conflict
from penstock.core.instants import END_OF_TIME_MS, START_OF_TIME_MS, parse_time
from penstock.core.intervals import ETERNITY, Granularity, Interval
from penstock.indexing.actions import LockList, LockTryAcquire, PublishSegments, SegmentAllocate
from penstock.indexing.batch.input_segments import visible_segments
from penstock.indexing.engine import RowCounts
from penstock.indexing.overlord.lock_requests import lock_task
from penstock.indexing.ports import TaskAction, TaskState
from penstock.indexing.specs import parse_supervisor_spec
from penstock.indexing.specs.data_schema import DataSchema
from penstock.indexing.task_spec import TaskSpec
from penstock.segments.segment import Segment, SegmentId, ShardSpec
from tests.harness.engine_kit import read_rows, write_chunk
from tests.indexing.action_kit import batch, rows
from tests.indexing.indexing_kit import START_MS, OneTask, make_task, spec_json

Answer = TypeVar("Answer")

HOUR_MS = 3_600_000
DAY = Granularity.parse("DAY").bucket(START_MS)
MONTH = Granularity.parse("MONTH").bucket(START_MS)
WEEK = Granularity.parse("WEEK").bucket(START_MS)


def hour(number: int) -> Interval:
    return Interval(START_MS + number * HOUR_MS, START_MS + (number + 1) * HOUR_MS)


def schema_of(granularity: str) -> DataSchema:
    text = orjson.dumps(spec_json()).replace(b'"DAY"', f'"{granularity}"'.encode())
    return parse_supervisor_spec(text).data_schema


class StreamsWorld(OneTask):
    """One stream after another, each of its own granularity, and batch tasks between them."""

    def __init__(self, folder: Path, context: Mapping[str, bool]) -> None:
        self.context = context
        self.others: dict[str, TaskSpec] = {}
        self.sent = 0
        self.names = 0
        super().__init__(folder, context=context)

    def active_task(self, task_id: str) -> TaskSpec | None:
        return self.others.get(task_id) or super().active_task(task_id)

    def stream(self, granularity: str, hours: Sequence[int] | range, *, ends: bool = True) -> None:
        """Have a task of this granularity read an event of each hour, publish and end."""
        start = {p: len(self.broker.topics["flights"][p]) for p in (0, 1)}
        self.names += 1
        self.spec = make_task(
            start,
            id=f"stream-{self.names}",
            base_sequence_name=f"base-{self.names}",
            data_schema=schema_of(granularity),
            context=self.context,
        )
        self.actions.task_id = self.spec.id
        self.start()
        for number in hours:
            n, self.sent = self.sent, self.sent + 1
            text = f'{{"time": {hour(number).start_ms + n}, "carrier": "UA", "n": {n}}}'
            self.broker.add("flights", n % 2, [text.encode()])
        whole = sum(len(part) for part in self.broker.topics["flights"])
        self.run(lambda: sum(self.task._context.state.commit.current.values()) == whole)
        offsets = self.ask(self.task.pause())
        self.ask(self.task.set_end_offsets(offsets, finish=True))
        self.run(lambda: self.task.result.state is not TaskState.RUNNING)
        assert self.task.result.state is TaskState.SUCCESS, self.task.result
        self.kill()
        if ends:
            self.lockboxes.remove(lock_task(self.spec)).result()

    def task_named(self, task_id: str, **more: Any) -> TaskSpec:
        task = self.others[task_id] = batch(task_id, **{**self.context, **more})
        self.lockboxes.add(lock_task(task)).result()
        return task

    def do(self, task_id: str, action: TaskAction[Answer]) -> Answer:
        return action.parse_result(self.handler.perform(task_id, action.to_json()))

    def compact(self, interval: Interval, granularity: str) -> None:
        """Replace what is visible in an interval by segments of this granularity."""
        self.names += 1
        name = f"compact-{self.names}"
        self.task_named(name, priority=25)
        locks = self.do(name, LockTryAcquire((interval,))).locks
        assert locks
        schema = schema_of(granularity)
        chunks: dict[Interval, list[dict[str, object]]] = {}
        for row in self.visible(interval):
            bucket = schema.segment_granularity.bucket(row["__time"])
            chunks.setdefault(bucket, []).append(row)
        segments = []
        for chunk, found in chunks.items():
            file = write_chunk(found, chunk, schema, str(self.folder / name))
            place = SegmentId("flights", chunk, locks[0].version, 0)
            pushed = self.deep_store.push(file.path, place, name)
            segments.append(
                Segment(
                    "flights",
                    chunk,
                    place.version,
                    pushed.load_spec,
                    ShardSpec(0, 1),
                    pushed.size,
                    file.rows,
                ).to_row()
            )
        kind: Literal["replace", "insert"]
        kind = "replace" if locks[0].type == "REPLACE" else "insert"
        action = PublishSegments(name, tuple(segments), None, None, RowCounts(), kind=kind)
        assert self.do(name, action).ok
        self.lockboxes.remove(lock_task(self.others.pop(name))).result()

    def visible(self, interval: Interval = ETERNITY) -> list[Any]:
        found = self.metadata.segments.used("flights")
        return [
            row
            for one in visible_segments(found, [interval])
            for row in read_rows(self.deep_store.location(one.segment.load_spec))
            if one.interval.contains(int(str(row["__time"])))
        ]

    def seen(self) -> list[int]:
        return sorted(row["n"] for row in self.visible())

    def chunks(self) -> set[Interval]:
        shown = visible_segments(self.metadata.segments.used("flights"), [ETERNITY])
        return {one.segment.interval for one in shown}


@pytest.fixture(params=[False, True], ids=["exclusive", "concurrent"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StreamsWorld]:
    made = StreamsWorld(tmp_path, {"useConcurrentLocks": True} if request.param else {})
    yield made
    made.metadata.close()


@pytest.mark.parametrize(("interval", "granularity"), [(DAY, "DAY"), (MONTH, "MONTH")])
def test_an_hourly_stream_goes_on_in_what_a_compaction_made(
    world: StreamsWorld, interval: Interval, granularity: str
) -> None:
    world.stream("HOUR", range(6))
    world.compact(interval, granularity)
    assert world.chunks() == {interval}
    world.stream("HOUR", [2, 3, 3, 9, 23])
    world.stream("HOUR", [3, 12])
    assert world.seen() == list(range(world.sent))
    assert world.chunks() == {interval}
    world.compact(interval, "HOUR")
    world.stream("HOUR", range(24))
    assert world.seen() == list(range(world.sent))
    # Hours of which no row was there are not replaced.
    assert {hour(number) for number in (0, 5, 9, 23)} < world.chunks()


def test_a_stream_whose_locks_are_held_yet_goes_on_in_the_larger_chunk(tmp_path: Path) -> None:
    world = StreamsWorld(tmp_path, {"useConcurrentLocks": True})
    world.stream("HOUR", range(6), ends=False)
    world.compact(DAY, "DAY")
    world.stream("HOUR", range(6), ends=False)
    assert world.seen() == list(range(12))
    world.metadata.close()


def test_a_daily_stream_divides_its_files_by_the_hours_that_are_there(world: StreamsWorld) -> None:
    world.stream("HOUR", [0, 1, 1, 5])
    world.stream("DAY", [0, 1, 5, 6, 6, 20, 30])
    assert world.seen() == list(range(world.sent))
    gaps = {Interval(hour(n).start_ms, hour(n + 5).end_ms) for n in (6, 18)}
    next_day = Granularity.parse("DAY").bucket(hour(30).start_ms)
    assert world.chunks() == {hour(0), hour(1), hour(5), *gaps, next_day}
    world.stream("DAY", range(24))
    assert world.seen() == list(range(world.sent))


def test_a_stream_whose_rows_lie_in_one_hour_divides_nothing(world: StreamsWorld) -> None:
    world.stream("HOUR", [0, 1])
    world.stream("DAY", [1, 1])
    assert world.seen() == list(range(4))
    assert world.chunks() == {hour(0), hour(1)}


def test_a_stream_over_chunks_that_cross_its_own(world: StreamsWorld) -> None:
    world.stream("HOUR", range(0, 200, 7))
    world.compact(WEEK, "WEEK")
    world.stream("MONTH", range(0, 300, 11))
    assert world.seen() == list(range(world.sent))


def test_an_hour_that_was_replaced_in_a_day_divides_the_day(world: StreamsWorld) -> None:
    world.stream("HOUR", range(6))
    world.compact(DAY, "DAY")
    world.compact(hour(3), "HOUR")
    assert world.chunks() == {DAY, hour(3)}
    world.stream("HOUR", range(6))
    world.stream("DAY", range(24))
    assert world.seen() == list(range(world.sent))


def test_chunks_that_change_while_a_file_is_divided_divide_it_anew(
    world: StreamsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stream("HOUR", [0, 1, 2])
    perform = world.handler.perform
    compacted: list[object] = []

    def compact_first(task_id: str, action: Mapping[str, object]) -> object:
        if action["type"] == "segmentAllocate" and not compacted:
            compacted.append(True)
            monkeypatch.setattr(world.handler, "perform", perform)
            world.compact(hour(1), "FIFTEEN_MINUTE")
            world.compact(hour(2), "FIFTEEN_MINUTE")
        return perform(task_id, action)

    monkeypatch.setattr(world.handler, "perform", compact_first)
    world.stream("DAY", range(4))
    assert compacted
    assert world.seen() == list(range(7))


NEW_YORK = "P1D in America/New_York"


def test_a_stream_of_days_of_a_zone_publishes_into_those(world: StreamsWorld) -> None:
    # From the last day of winter time on: days of 24, 23 and 24 hours.
    first = (parse_time("2013-03-09T05:00Z") - START_MS) // HOUR_MS
    world.stream(NEW_YORK, range(first, first + 71, 3))
    days = list(
        Granularity.parse(NEW_YORK).buckets(
            Interval(hour(first).start_ms, parse_time("2013-03-12T04:00Z"))
        )
    )
    assert [day.length_ms // HOUR_MS for day in days] == [24, 23, 24]
    assert world.chunks() == set(days)
    world.stream(NEW_YORK, range(first, first + 71, 7))
    assert world.chunks() == set(days)
    # Files of a day are divided where the days of the zone and of UTC lie across each other.
    world.stream("DAY", range(first, first + 71, 5))
    world.compact(days[1], "HOUR")
    world.stream(NEW_YORK, range(first - 24, first + 71, 4))
    assert world.seen() == list(range(world.sent))


def test_a_stream_of_days_of_a_zone_over_days_of_utc(world: StreamsWorld) -> None:
    world.stream("DAY", range(0, 50, 3))
    world.stream(NEW_YORK, range(0, 50, 2))
    world.stream("P1D in Asia/Kolkata", range(0, 50, 5))
    assert world.seen() == list(range(world.sent))
    # What is left before the first day of UTC is filled, and no time is in two chunks.
    chunks = sorted(world.chunks())
    assert all(one.end_ms <= other.start_ms for one, other in pairwise(chunks))


def test_rows_at_both_ends_of_the_calendar(world: StreamsWorld) -> None:
    # By the clock of a zone they are of the year 0, and of the year 10000.
    ends = [START_OF_TIME_MS, START_OF_TIME_MS + 5 * HOUR_MS, END_OF_TIME_MS - HOUR_MS]
    hours = [(ms - START_MS) // HOUR_MS for ms in ends]
    for granularity in (NEW_YORK, "P1M in Asia/Kolkata", "DAY"):
        world.stream(granularity, hours)
    world.compact(ETERNITY, "YEAR")
    world.stream("HOUR", hours)
    assert world.seen() == list(range(world.sent))
    assert world.chunks() == {Granularity.parse("YEAR").bucket(ms) for ms in ends}


def test_a_task_that_holds_an_hour_gets_the_day_around_it(tmp_path: Path) -> None:
    world = StreamsWorld(tmp_path, {})
    world.stream("HOUR", range(3))
    world.compact(DAY, "DAY")
    world.compact(hour(1), "HOUR")
    world.task_named("append")
    (first,) = world.do("append", SegmentAllocate("append", (hour(1),)))
    (second,) = world.do("append", SegmentAllocate("append", (hour(2),)))
    assert [first.interval, second.interval] == [hour(1), DAY]
    assert [lock.interval for lock in world.do("append", LockList())] == [DAY]
    both = PublishSegments("append", rows([first, second]), None, None, RowCounts())
    assert world.do("append", both).ok
    world.metadata.close()


def test_an_appending_task_takes_the_larger_chunk_and_its_version(world: StreamsWorld) -> None:
    world.stream("HOUR", range(6))
    world.compact(DAY, "DAY")
    (before,) = {
        row.version for row in world.metadata.segments.used("flights", DAY) if row.used
    } & {
        one.segment.version
        for one in visible_segments(world.metadata.segments.used("flights"), [ETERNITY])
    }
    world.task_named("append", appendToExisting=True)
    places = world.do("append", SegmentAllocate("append", (hour(2), hour(2), hour(4))))
    assert {(p.interval, p.version) for p in places} == {(DAY, before)}
    assert [p.partition_number for p in places] == [1, 2, 3]
    assert [p.core_partitions for p in places] == [1, 1, 1]
    assert [lock.interval for lock in world.do("append", LockList())] == [DAY]
    assert world.do("append", SegmentAllocate("append", (hour(2), hour(2), hour(4)))) == places
    append = PublishSegments("append", rows(places), None, None, RowCounts(), kind="insert")
    if not world.context:
        assert world.do("append", append).ok


def test_an_appending_task_over_finer_chunks_is_told_what_to_do(world: StreamsWorld) -> None:
    world.stream("HOUR", range(6))
    world.task_named("append")
    with pytest.raises(Conflict, match="segmentGranularity that is not coarser than theirs"):
        world.do("append", SegmentAllocate("append", (DAY,)))
    assert world.do("append", LockList()) == ()
    assert world.metadata.segments.pending("flights") == []
