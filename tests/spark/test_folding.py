"""Rows folded in Arrow are what Spark's aggregation makes of them, however they are cut."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from penstock.core.intervals import Interval
from penstock.indexing.engine import MergeRequest, PersistRequest, PersistResult, TopicRange
from penstock.indexing.specs import DataSchema
from penstock.spark import pipeline
from penstock.spark.chunk_work import renamed
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.equal_row_groups import groups_of
from penstock.spark.pipeline import ENGINE_CONF
from penstock.spark.rollup import fold_of
from penstock.spark.row_chunks import TimeLimits
from penstock.spark.schema_columns import folded_columns
from penstock.spark.spark_engine import SparkEngine, SparkEngineOptions
from tests.spark.conftest import MakeTopic
from tests.spark.fold_kit import (
    LONGS,
    METRICS,
    SMALL,
    TEXTS,
    Row,
    as_read,
    messages,
    metric,
    rolling_schema,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIELDS = ("name", "level", "whole", "wide", "narrow", "text")
DIMENSIONS: list[JsonValue] = ["name", {"type": "double", "name": "level"}]
GRANULARITIES = ("none", "second", "hour", "day", "week", "month", "quarter", "year", "all")
DOUBLES = st.none() | SMALL | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 0.0])
DAY_MS = 86_400_000
# The years 1 to 9999, and few enough days near 1970 that rows meet.
TIMES = st.integers(-3 * DAY_MS, 3 * DAY_MS) | st.integers(-62_135_596_800_000, 253_402_300_799_999)


def make_schema(
    query: str = "hour", metrics: Sequence[JsonValue] = METRICS, **parts: JsonValue
) -> DataSchema:
    return rolling_schema(query, DIMENSIONS, metrics, **parts)


@pytest.fixture(scope="module")
def engine_session(sessions: SparkSessions) -> Iterator[SparkSession]:
    """A Spark session as the engine has."""
    own = sessions.with_conf(ENGINE_CONF)
    yield own.get()
    own.close()


def rows_with(times: st.SearchStrategy[int]) -> st.SearchStrategy[list[Row]]:
    names = st.none() | st.sampled_from(["", "a", "b"])
    levels = st.sampled_from([None, 1.5, -0.0, 0.0, math.nan])
    row = st.tuples(times, names, levels, LONGS, DOUBLES, DOUBLES, TEXTS)
    # Of equal times Spark takes the value of any row.
    return st.lists(row, min_size=1, max_size=40, unique_by=lambda row: row[0])


def folded(parts: Sequence[pa.RecordBatch], schema: DataSchema) -> pa.Table:
    """The rows of all parts, of which each is folded first."""
    fold, columns = fold_of(schema), folded_columns(schema)
    assert fold is not None
    assert columns is not None
    held = [fold.held(renamed(part, columns)) for part in parts]
    once = [fold.folded(pa.Table.from_batches([part])) for part in held]
    return fold.finished(fold.folded(pa.concat_tables(once)))


def comparable(table: pa.Table) -> list[tuple[str, ...]]:
    """Rows in an order of their own; NaN equals NaN, and -0.0 equals 0.0 but in keys."""
    keys = ("__time", "name", "level")
    columns = []
    for name in table.column_names:
        column = table.column(name)
        values = (column.cast(pa.int64()) if name == "__time" else column).to_pylist()
        plain = [0.0 if name not in keys and value == 0 else value for value in values]
        columns.append([repr(value) for value in plain])
    return sorted(zip(*columns, strict=True))


def by_spark(spark: SparkSession, rows: pa.RecordBatch, schema: DataSchema) -> pa.Table:
    frame = spark.createDataFrame(pa.Table.from_batches([rows]))
    made = pipeline.measured(pipeline.transformed(frame, schema), schema)
    return made.toArrow()


@pytest.mark.spark
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows_with(TIMES), st.sampled_from(GRANULARITIES), st.integers(1, 7))
@example([(0, "a", 0.0, None, math.nan, 1.0, "x"), (1, "a", -0.0, 1, None, None, "")], "day", 1)
def test_folded_rows_are_those_of_spark(
    engine_session: SparkSession, rows: list[Row], query: str, step: int
) -> None:
    schema = make_schema(query)
    read = as_read(rows, FIELDS, schema)
    parts = [read.slice(at, step) for at in range(0, len(rows), step)]
    assert comparable(folded(parts, schema)) == comparable(by_spark(engine_session, read, schema))


@given(rows_with(TIMES), st.sampled_from(GRANULARITIES), st.integers(1, 7))
def test_rows_folded_in_parts_are_those_folded_at_once(
    rows: list[Row], query: str, step: int
) -> None:
    schema = make_schema(query)
    read = as_read(rows, FIELDS, schema)
    parts = [read.slice(at, step) for at in range(0, len(rows), step)]
    at_once = folded([read], schema)
    in_parts = folded(parts, schema)
    assert in_parts.schema == at_once.schema
    assert comparable(in_parts) == comparable(at_once)


@given(rows_with(TIMES), st.sampled_from(GRANULARITIES), st.integers(1, 7))
def test_rows_folded_again_are_those_folded_at_once(rows: list[Row], query: str, step: int) -> None:
    """Files keep the times that decided, so that they can be merged in any order."""
    schema = make_schema(query)
    read = as_read(rows, FIELDS, schema)
    files = [folded([read.slice(at, step)], schema) for at in range(0, len(rows), step)]
    again = fold_of(schema, {metric.name for metric in schema.metrics})
    assert again is not None
    held = [again.held(part) for file in reversed(files) for part in file.to_batches()]
    merged = again.finished(again.folded(pa.Table.from_batches(held)))
    at_once = folded([read], schema)
    # Files hold sums of floats as floats: what is added up again is rounded again.
    rounded = ["fSum"]
    ours, wanted = merged.drop_columns(rounded), at_once.drop_columns(rounded)
    assert ours.schema == wanted.schema
    assert comparable(ours) == comparable(wanted)


@given(rows_with(st.just(5) | st.just(6)), st.integers(1, 7))
def test_of_equal_times_the_order_of_the_rows_decides(rows: list[Row], step: int) -> None:
    times = [int(str(row[0])) for row in rows] * 5
    rows = [(ms, "a", 0.0, n, 0.0, 0.0, "") for n, ms in enumerate(times)]
    schema = make_schema()
    read = as_read(rows, FIELDS, schema)
    parts = [read.slice(at, step) for at in range(0, len(rows), step)]
    [made] = folded(parts, schema).to_pylist()
    assert made["n_first"] == times.index(min(times))
    assert made["n_last"] == len(times) - 1 - times[::-1].index(max(times))


def test_zeros_and_what_is_no_number_are_ordered_whatever_the_order_of_rows() -> None:
    schema = make_schema()
    for values in ([0.0, -0.0], [-0.0, 0.0]):
        rows: list[Row] = [(0, "a", value, 0, value, value, "") for value in values]
        [made] = folded([as_read(rows, FIELDS, schema)], schema).to_pylist()
        ends = [made[name] for name in ("dMin", "dMax", "fMin", "fMax", "level")]
        assert [math.copysign(1, end) for end in ends] == [-1, 1, -1, 1, 1]
    nan = math.nan
    rows = [(0, "a", nan, 0, value, nan, "") for value in (1.0, nan, math.inf)]
    [made] = folded([as_read(rows, FIELDS, schema)], schema).to_pylist()
    assert made["dMin"] == 1.0
    assert all(math.isnan(made[name]) for name in ("dMax", "fMin", "fMax", "level"))


def test_long_sums_go_round_and_float_sums_are_rounded_once() -> None:
    schema = make_schema()
    rows: list[Row] = [(0, "a", 0.0, 2**63 - 1, 0.0, 16_777_216.0, "")]
    rows += [(0, "a", 0.0, 1, 0.0, 1.0, "")] * 2
    parts = [as_read([row], FIELDS, schema) for row in rows]
    [made] = folded(parts, schema).to_pylist()
    assert (made["n"], made["n_sum"], made["fSum"]) == (3, 1 - 2**63, 16_777_218.0)


def test_what_has_a_time_of_its_own_or_another_type_is_left_to_spark() -> None:
    first = metric("longFirst", "x", "whole")
    assert folded_columns(make_schema(metrics=[first])) is not None
    assert folded_columns(make_schema(metrics=[first | {"timeColumn": "__time"}])) is not None
    assert folded_columns(make_schema(metrics=[first | {"timeColumn": "when"}])) is None
    assert folded_columns(make_schema(metrics=[first | {"fieldName": "name"}])) is None
    assert folded_columns(make_schema(metrics=[first | {"fieldName": "__time"}])) is None
    sketch = metric("thetaSketch", "x", "whole")
    assert folded_columns(make_schema(metrics=[sketch])) is None


def persist(
    engine: SparkEngine, ranges: tuple[TopicRange, ...], schema: DataSchema, folder: Path
) -> PersistResult:
    out, bad = folder / "out", folder / "bad"
    limits = (-40 * DAY_MS, 40 * DAY_MS)
    return engine.persist(
        PersistRequest("task", "things", ranges, schema, str(out), str(bad), *limits)
    )


@pytest.mark.spark
@pytest.mark.parametrize("query", ["none", "week"])
@pytest.mark.parametrize("rollup", [True, False])
def test_a_stream_folded_by_workers_is_as_one_that_the_jvm_computes(
    sessions: SparkSessions, make_topic: MakeTopic, tmp_path: Path, query: str, *, rollup: bool
) -> None:
    """A filter that all rows pass makes the JVM compute them, a sketch makes it roll them up."""
    granularity: dict[str, JsonValue] = {
        "segmentGranularity": "week",
        "queryGranularity": query,
        "rollup": rollup,
    }
    folds = make_schema(granularitySpec=granularity)
    passing: JsonValue = {"filter": {"type": "true"}}
    groups = make_schema(granularitySpec=granularity, transformSpec=passing)
    computes = make_schema(
        granularitySpec=granularity, metrics=[*METRICS, metric("thetaSketch", "sketch", "text")]
    )
    assert folded_columns(folds) is not None
    assert folded_columns(computes) is None
    assert (groups_of(groups, TimeLimits()) is not None) is rollup
    # Times go back and forth over 1970; of two rows in three another one has the same keys.
    found: list[Row] = [
        (
            (i * 7919 % 41 - 20) * DAY_MS // (1 + i % 2) + (i if query == "week" else 0),
            (None, "a", "b")[i % 3],
            (1.5, -0.0, 0.0, None)[i % 4],
            (2**63 - 1, -i, None)[i % 3],
            None if i % 5 == 0 else i / 4,
            -0.0 if i % 7 == 0 else i / 2,
            f"{'x' * (i % 3)}{i}",
        )
        for i in range(400)
    ]
    if query == "none":
        # One time has one value then.
        found = [(row[0], *row[1:3], 1, 0.25, 0.5, "abcd") for row in found]
    sent = [
        *messages(found, FIELDS),
        b"{",
        b"[]",
        *messages([(99 * DAY_MS, *found[0][1:])], FIELDS),
    ]
    sent.insert(7, messages([(-99 * DAY_MS, *found[0][1:])], FIELDS)[0])
    ranges = make_topic(sent)
    results = []
    for name, schema, split_bytes in (
        ("jvm", computes, 1_000),
        ("one", folds, 1 << 20),
        ("two", folds, 1_000),
        ("groups", groups, 1_000),
    ):
        options = SparkEngineOptions(split_bytes_min=split_bytes, parallelism=2)
        engine = SparkEngine(sessions, options)
        results.append(persist(engine, ranges, schema, tmp_path / name))
        engine.close()
    by_jvm = results[0]
    assert by_jvm.counts.processed == len(found)
    assert by_jvm.counts.unparseable == 2
    for made in results[1:]:
        assert made.counts == by_jvm.counts
        assert dead_letters(made) == dead_letters(by_jvm)
        assert [(f.interval, f.rows, f.columns) for f in made.files] == [
            (f.interval, f.rows, f.columns[:-1]) for f in by_jvm.files
        ]
        for ours, theirs in zip(made.files, by_jvm.files, strict=True):
            mine, other = pq.read_table(ours.path), pq.read_table(theirs.path)
            other = other.drop_columns(["sketch"])
            # The JVM knows that some columns have no nulls, and its files say so.
            assert mine.schema.names == other.schema.names
            assert mine.schema.types == other.schema.types
            assert in_file(mine, sort=not rollup) == in_file(other, sort=not rollup)


def dead_letters(made: PersistResult) -> list[bytes]:
    """The lines of all bad files, of which each split has its own."""
    return sorted(line for p in made.bad_files for line in Path(p).read_bytes().splitlines())


def in_file(table: pa.Table, *, sort: bool) -> list[str]:
    """Rows in their order; zeros are equal."""
    rows = [
        repr({name: 0.0 if value == 0 else value for name, value in row.items()})
        for row in table.to_pylist()
    ]
    return sorted(rows) if sort else rows


@pytest.mark.spark
def test_replicas_make_equal_files(
    sessions: SparkSessions, make_topic: MakeTopic, tmp_path: Path
) -> None:
    rows: list[Row] = [(i % 3, "a", 0.0, i, i / 7, i / 3, str(i)) for i in range(300)]
    ranges = make_topic(messages(rows, FIELDS))
    engine = SparkEngine(sessions, SparkEngineOptions(split_bytes_min=1_000, parallelism=2))
    first, second = (
        persist(engine, ranges, make_schema(), tmp_path / name) for name in ("first", "second")
    )
    engine.close()
    contents = [[Path(f.path).read_bytes() for f in made.files] for made in (first, second)]
    assert contents[0] == contents[1]


@pytest.mark.spark
def test_files_are_merged_in_workers_as_by_spark(
    engine: SparkEngine,
    engine_session: SparkSession,
    make_topic: MakeTopic,
    tmp_path: Path,
) -> None:
    schema = make_schema("day")
    rows: list[Row] = [
        (i * 3_600_000, "ab"[i % 2], (1.5, None)[i % 2], 2**62 + i, i / 4, i / 2, f"t{i}")
        for i in range(100)
    ]
    ranges = make_topic(messages(rows, FIELDS))
    files = tuple(
        file
        for number, part in enumerate(ranges)
        for file in persist(engine, (part,), schema, tmp_path / str(number)).files
    )
    interval = Interval.parse("1970-01-01/1970-02-01")
    made = engine.merge(MergeRequest("task", interval, files, schema, str(tmp_path / "merged")))
    read = engine_session.read.parquet(*(file.path for file in files))
    wanted = pipeline.merged(read, schema).toArrow()
    merged = pq.read_table(made.path)
    assert comparable(merged) == comparable(wanted)
    assert merged.column("n").to_pylist() == wanted.sort_by("__time").column("n").to_pylist()
