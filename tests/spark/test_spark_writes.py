"""Writes of DataFrames into datasources: modes, schemas, times and roll-up, without a JVM."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.core.errors import InvalidRequest, PenstockError
from penstock.indexing.engine import EngineFailure
from penstock.segments.deep_storage import DeepStore
from penstock.spark.sink import sink_rows
from penstock.spark.sink.checked_files import SparkFilesEngine
from tests.harness.engine_kit import read_rows
from tests.spark.sink_kit import Rows, SinkWorld, batch, schema_of

ONE, TWO, THREE = "2026-01-01T01:00:00", "2026-01-02T01:00:00", "2026-01-03T01:00:00"
COUNT = {"type": "count", "name": "count"}
SUM = {"type": "longSum", "name": "total", "fieldName": "n"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SinkWorld]:
    with SinkWorld(tmp_path_factory.mktemp("sink")) as made:
        yield made


@pytest.fixture
def world(shared: SinkWorld) -> Iterator[SinkWorld]:
    shared.begin()
    yield shared
    shared.at = lambda _kind: None


def refused(world: SinkWorld, match: str, *partitions: Rows, **more: str) -> None:
    """A write that is refused, and changes nothing that queries see."""
    before = [one.id for one in world.visible()]
    with pytest.raises(PenstockError, match=match):
        world.write(*partitions, **more)
    assert [one.id for one in world.visible()] == before


# Modes


def test_an_append_adds_rows_of_all_partitions(world: SinkWorld) -> None:
    world.write([(ONE, "x", 1), (TWO, "y", 2)], [(ONE, "z", 3)], [])
    world.write([(TWO, "w", 4)])
    assert world.rows() == [(1, "x", 1), (1, "z", 3), (2, "w", 4), (2, "y", 2)]
    assert {one.columns for one in world.visible()} == {
        (("__time", "timestamp"), ("a", "string"), ("n", "bigint"))
    }
    assert sum(one.total_rows for one in world.visible()) == 4


def test_a_write_without_rows_needs_no_task(world: SinkWorld) -> None:
    world.write([], [])
    assert world.specs == []


@pytest.mark.parametrize(
    ("overwrite", "left"),
    [
        ("2026-01-02/2026-01-04", [(1, "x", 1), (2, "new", 9)]),
        ("chunks", [(1, "x", 1), (2, "new", 9), (3, "z", 3)]),
        ("all", [(2, "new", 9)]),
        ("2026-01-02/P1D, 2026-01-03/P1D", [(1, "x", 1), (2, "new", 9)]),
    ],
)
def test_an_overwrite_replaces_what_its_option_says(
    world: SinkWorld, overwrite: str, left: list[tuple[int, str, int]]
) -> None:
    world.write([(ONE, "x", 1), (TWO, "y", 2), (THREE, "z", 3)])
    world.write([(TWO, "new", 9)], overwrite=overwrite)
    assert world.rows() == left


def test_an_overwrite_without_rows_empties_its_interval(world: SinkWorld) -> None:
    world.write([(ONE, "x", 1), (TWO, "y", 2)])
    world.write([], overwrite="2026-01-02/2026-01-03")
    assert world.rows() == [(1, "x", 1)]


def test_rows_outside_of_the_replaced_interval_are_refused(world: SinkWorld) -> None:
    world.write([(ONE, "x", 1)])
    outside = [(TWO, "y", 2), (THREE, "z", 3)]
    refused(world, "1 row outside of", outside, overwrite="2026-01-02/2026-01-03")


def test_the_last_of_two_overwrites_wins_and_no_row_is_of_both(world: SinkWorld) -> None:
    options = {"overwrite": "2026-01-01/2026-01-02"}
    one = world.source(**options).writer(schema_of(), overwrite=True)
    other = world.source(**options).writer(schema_of(), overwrite=True)
    first = one.write(iter([batch([(ONE, "one", 1)])]))
    second = other.write(iter([batch([(ONE, "other", 2)])]))
    other.commit([second])
    one.commit([first])
    assert world.rows() == [(1, "one", 1)]


def test_rows_that_are_appended_meanwhile_survive_an_overwrite_of_another_day(
    world: SinkWorld,
) -> None:
    one = world.source(overwrite="2026-01-01/P1D").writer(schema_of(), overwrite=True)
    written = one.write(iter([batch([(ONE, "new", 1)])]))
    world.write([(TWO, "appended", 2)])
    one.commit([written])
    assert world.rows() == [(1, "new", 1), (2, "appended", 2)]


@pytest.mark.parametrize(
    ("overwrite", "more", "reason"),
    [
        (True, {}, "needs option overwrite"),
        (False, {"overwrite": "all"}, r'set mode\("overwrite"\)'),
        (True, {"overwrite": "May"}, "invalid interval 'May'"),
        (False, {"datasource": ""}, 'set option."datasource"'),
        (False, {"url": ""}, 'set option."url"'),
        (False, {"url": "8888"}, "invalid router address"),
        (False, {"datasource": "../x"}, "datasource"),
        (False, {"rollup": "maybe"}, "option rollup must be true or false"),
        (False, {"metricsSpec": "{"}, "option metricsSpec is not JSON"),
        (False, {"context": "[]"}, "option context must be a JSON object"),
        (False, {"maxParseExceptions": "many"}, "must be a whole number"),
        (False, {"segmentGranularity": "fortnight"}, "segmentGranularity"),
        (False, {"queryGranularity": "month"}, "queryGranularity"),
    ],
)
def test_options_are_checked_before_anything_is_written(
    world: SinkWorld, overwrite: bool, more: dict[str, str], reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        world.source(**more).writer(schema_of(), overwrite)


def test_an_interval_that_is_not_of_whole_chunks_is_refused(world: SinkWorld) -> None:
    rows = [(ONE, "x", 1)]
    refused(world, "does not begin and end", rows, overwrite="2026-01-01/2026-01-01T12:00Z")


# Schema


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("a string, n bigint", "has no column __time"),
        ("__time string", "is string, and must be timestamp"),
        ("__time timestamp_ntz", "is timestamp_ntz, and must be timestamp"),
        ("__time timestamp, a array<string>", "with to_json"),
        ("__time timestamp, a binary", "with hex or base64"),
        ("__time timestamp, a date", "with date_format"),
        ("__time timestamp, a void", "cast it"),
        ("__time timestamp, a string, a string", "two columns 'a'"),
        ("__time timestamp, __penstock_x string", "__penstock_x"),
    ],
)
def test_schemas_that_cannot_be_stored(world: SinkWorld, schema: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        world.source().writer(schema_of(schema), overwrite=False)


def test_types_of_numbers(world: SinkWorld) -> None:
    schema = "__time timestamp, b byte, i int, t boolean, f float, m decimal(10,2)"
    types = schema_of(schema)
    writer = world.source().writer(types, overwrite=False)
    arrow = pa.RecordBatch.from_arrays(
        [
            batch([(ONE, "x", 1)]).column(0),
            pa.array([1], pa.int8()),
            pa.array([2], pa.int32()),
            pa.array([True]),
            pa.array([0.5], pa.float32()),
            pa.array([1.25]).cast(pa.decimal128(10, 2)),
        ],
        names=types.names,
    )
    writer.commit([writer.write(iter([arrow]))])
    (segment,) = world.visible()
    assert dict(segment.columns) == {
        "__time": "timestamp",
        **dict.fromkeys("bit", "bigint"),
        **dict.fromkeys("fm", "double"),
    }
    (row,) = read_rows(world.deep_store.location(segment.load_spec))
    assert [row[name] for name in "bitfm"] == [1, 2, 1, 0.5, 1.25]


@pytest.mark.parametrize("values", [(math.nan, 1.0), (math.nan, None), (None, None), (-0.0, 0.0)])
def test_numbers_without_usual_bounds(world: SinkWorld, values: Sequence[float | None]) -> None:
    types = schema_of("__time timestamp, x double")
    writer = world.source().writer(types, overwrite=False)
    times = batch([(ONE, "x", 1)] * 2).column(0)
    arrow = pa.RecordBatch.from_arrays([times, pa.array(values, pa.float64())], names=types.names)
    writer.commit([writer.write(iter([arrow]))])
    (segment,) = world.visible()
    found = [row["x"] for row in read_rows(world.deep_store.location(segment.load_spec))]
    assert sorted(map(repr, found)) == sorted(map(repr, values))


def test_a_new_column_is_added_and_a_missing_one_is_null(world: SinkWorld) -> None:
    world.write([(ONE, "x", 1)])
    world.write([(TWO, "y", 2)], schema="__time timestamp, a string, more bigint")
    columns = [dict(one.columns) for one in world.visible()]
    assert [sorted(one) for one in columns] == [["__time", "a", "n"], ["__time", "a", "more"]]


@pytest.mark.parametrize("name", ["n", "N"])
def test_text_is_not_added_to_numbers(world: SinkWorld, name: str) -> None:
    world.write([(ONE, "x", 1)])
    schema = f"__time timestamp, a string, {name} string"
    with pytest.raises(InvalidRequest, match="is string, and bigint in the datasource"):
        world.source().writer(schema_of(schema), overwrite=False)


def test_numbers_are_not_added_to_text(world: SinkWorld) -> None:
    world.write([(ONE, "x", 1)])
    schema = "__time timestamp, a bigint, n double"
    with pytest.raises(InvalidRequest, match="'a' of the DataFrame is long, and string"):
        world.source().writer(schema_of(schema), overwrite=False)
    world.source().writer(schema_of("__time timestamp, n double"), overwrite=False)


# Times


def test_rows_without_a_time_are_an_error(world: SinkWorld) -> None:
    refused(world, "because __time is null", [(ONE, "x", 1), (None, "y", 2)])


def test_rows_without_a_time_are_counted_up_to_a_limit(world: SinkWorld) -> None:
    rows = [(ONE, "x", 1), (None, "y", 2), (None, "z", 3)]
    refused(world, "2 rows cannot be parsed, but the limit is 1", rows, maxParseExceptions="1")
    world.write(rows, maxParseExceptions="2")
    assert world.rows() == [(1, "x", 1)]
    world.write(rows, rows, maxParseExceptions="-1")
    assert len(world.rows()) == 3
    assert [spec["unparseable"] for spec in world.specs] == [2, 2, 4]


@pytest.mark.parametrize("year", ["-290000-01-01", "+200000-01-01"])
def test_times_that_no_segment_can_have(world: SinkWorld, year: str) -> None:
    micros = -9_000_000_000_000_000_000 if year.startswith("-") else 9_000_000_000_000_000_000
    time = pa.array([micros], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    rows = pa.RecordBatch.from_arrays([time, pa.array(["x"]), pa.array([1])], schema_of().names)
    writer = world.source().writer(schema_of(), overwrite=False)
    with pytest.raises(InvalidRequest, match="outside of the times that segments may have"):
        writer.write(iter([rows]))


def test_times_are_those_of_any_zone_in_whole_milliseconds(world: SinkWorld) -> None:
    micros = pa.array([1_767_229_200_123_456], pa.int64())
    time = micros.cast(pa.timestamp("us", tz="America/New_York"))
    rows = pa.RecordBatch.from_arrays([time, pa.array(["x"]), pa.array([1])], schema_of().names)
    writer = world.source().writer(schema_of(), overwrite=False)
    writer.commit([writer.write(iter([rows]))])
    (segment,) = world.visible()
    assert read_rows(world.deep_store.location(segment.load_spec))[0]["__time"] == 1767229200123


# Granularity and roll-up


def test_a_datasource_begins_with_days_and_keeps_its_granularity(world: SinkWorld) -> None:
    world.write([(ONE, "x", 1)])
    world.write([(ONE, "x", 1)], datasource="hours", segmentGranularity="hour")
    world.write([(THREE, "y", 2)], datasource="hours")
    assert [one.interval.length_ms for one in world.visible()] == [86_400_000]
    assert [one.interval.length_ms for one in world.visible("hours")] == [3_600_000] * 2


def test_a_roll_up_is_set_by_options_and_then_kept(world: SinkWorld) -> None:
    metrics = json.dumps([COUNT, SUM])
    rows = [(ONE, "x", 1), ("2026-01-01T01:30:00", "x", 2), (ONE, "y", 3)]
    world.write(rows, metricsSpec=metrics, queryGranularity="hour")
    world.write([(TWO, "x", 4), (TWO, "x", 5)])
    assert [one.total_rows for one in world.visible()] == [2, 1]
    found = [
        (row["a"], row["count"], row["total"])
        for one in world.visible()
        for row in read_rows(world.deep_store.location(one.load_spec))
    ]
    assert found == [("x", 2, 3), ("y", 1, 3), ("x", 2, 9)]
    assert all(one.rollup for one in world.visible())


def test_a_roll_up_may_be_left(world: SinkWorld) -> None:
    world.write([(ONE, "x", 1)], metricsSpec=json.dumps([COUNT]))
    world.write([(TWO, "x", 1), (TWO, "x", 1)], rollup="false")
    assert [one.total_rows for one in world.visible()] == [1, 2]


def test_a_roll_up_needs_its_columns(world: SinkWorld) -> None:
    world.write([(ONE, "x", 1)], metricsSpec=json.dumps([COUNT, SUM]))
    with pytest.raises(InvalidRequest, match=r"no column 'n', from which .* computes total"):
        world.source().writer(schema_of("__time timestamp, a string"), overwrite=False)
    schema = "__time timestamp, a string, n bigint, count bigint"
    with pytest.raises(InvalidRequest, match="has a name that rows cannot have, or that of a"):
        world.source().writer(schema_of(schema), overwrite=False)


def test_metrics_that_only_tasks_compute_are_refused(world: SinkWorld) -> None:
    sketch = {"type": "HLLSketchBuild", "name": "users", "fieldName": "a"}
    with pytest.raises(InvalidRequest, match="workers cannot compute, such as sketches"):
        world.source(metricsSpec=json.dumps([sketch])).writer(schema_of(), overwrite=False)


# Files


def test_a_large_partition_becomes_several_files(
    world: SinkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_rows, "HELD_ROWS_MAX", 2)
    types = schema_of()
    writer = world.source().writer(types, overwrite=False)
    batches = [batch([(ONE, "x", number)]) for number in range(5)]
    writer.commit([writer.write(iter(batches))])
    assert sorted(one.total_rows for one in world.visible()) == [1, 2, 2]


def test_workers_may_write_into_the_deep_storage_themselves(world: SinkWorld) -> None:
    world.write([(ONE, "x", 1)], [(TWO, "y", 2)], deepStorage=world.deep_store.root)
    assert world.rows() == [(1, "x", 1), (2, "y", 2)]
    assert not list((world.folder / "tmp").glob("*"))


def test_another_deep_storage_is_told(world: SinkWorld, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    refused(world, "are not in Penstock's deep storage", [(ONE, "x", 1)], deepStorage=str(other))
    refused(world, "mount it, or restore it", [(ONE, "x", 1)], deepStorage=str(tmp_path / "no"))


def test_a_failed_task_is_an_error_of_the_write(world: SinkWorld) -> None:
    writer = world.source().writer(schema_of(), overwrite=False)
    message = writer.write(iter([batch([(ONE, "x", 1)])]))
    for path in (world.folder / "deep").rglob("*.parquet"):
        path.unlink()
    with pytest.raises(EngineFailure, match=r"nothing was written: task index_spark_.* does not"):
        writer.commit([message])
    assert world.rows() == []


def test_a_deep_storage_behind_a_url(world: SinkWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DeepStore("memory://sink-of-spark")
    monkeypatch.setattr(world, "deep_store", store)
    monkeypatch.setattr(world, "engine", SparkFilesEngine(store, world.clock))
    monkeypatch.setattr(world.writes, "_deep_store", store)
    world.write([(ONE, "x", 1)], [(TWO, "y", 2)])
    world.write([(THREE, "z", 3)], deepStorage=store.root)
    assert [one.total_rows for one in world.visible()] == [1, 1, 1]
    locations = [store.location(one.load_spec) for one in world.visible()]
    assert all(one.startswith("memory://sink-of-spark/") for one in locations)
