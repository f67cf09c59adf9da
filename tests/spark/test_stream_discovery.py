"""Streams that leave their dimensions to their messages: each persist finds its own."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from penstock.indexing.engine import (
    DataFile,
    RowCounts,
)
from penstock.indexing.specs import DataSchema, parse_data_schema
from penstock.indexing.specs.input_formats import CsvFormat
from penstock.spark.batch.input.dimension_discovery import Found, merge_found
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.messages.found_columns import json_columns
from penstock.spark.spark_engine import SparkEngine
from penstock.testing.clock import VirtualClock
from tests.spark.conftest import MakeTopic
from tests.spark.data_folder_kit import DataFolder
from tests.spark.stream_kit import Story

pytestmark = pytest.mark.spark

NO_ROLL_UP = {"segmentGranularity": "month", "rollup": False}
ROLL_UP = {"segmentGranularity": "month", "queryGranularity": "day", "rollup": True}
JSON_OBJECT = dict[str, object]


def make_schema(*, rollup: bool = False, **dimensions: object) -> DataSchema:
    return parse_data_schema(
        {
            "dataSource": "things",
            "timestampSpec": {"column": "at", "format": "iso"},
            "dimensionsSpec": dimensions,
            "metricsSpec": [{"type": "count", "name": "rows"}] if rollup else [],
            "granularitySpec": ROLL_UP if rollup else NO_ROLL_UP,
        }
    )


@pytest.fixture
def story(engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path) -> Story:
    return Story(engine, make_topic, tmp_path)


def message(at: str = "2013-01-01", **fields: object) -> bytes:
    return orjson.dumps({"at": at, **fields})


def rows_of(file: DataFile) -> list[JSON_OBJECT]:
    table = pq.read_table(file.path)
    assert tuple(table.column_names) == tuple(name for name, _ in file.columns)
    assert table.num_rows == file.rows
    rows: list[JSON_OBJECT] = table.drop(["__time"]).to_pylist()
    return rows


def test_an_odd_column_is_not_told_of_each_batch(
    sessions: SparkSessions,
    make_topic: MakeTopic,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A batch is persisted each second, and a log of that hides what else there is to read."""
    engine = SparkEngine(sessions, clock=VirtualClock())
    story = Story(engine, make_topic, tmp_path)
    for _ in range(3):
        story.persist(make_schema(useSchemaDiscovery=True), [message(a=1, **{" ": 2})])
    engine.close()
    assert len([text for text in caplog.messages if "left out" in text]) == 1


def test_persists_find_their_own_columns_and_a_merge_unites_them(story: Story) -> None:
    schema = make_schema(useSchemaDiscovery=True)
    first = story.persist(schema, [message(a=1, b="x"), message("2013-01-03", a=2)])
    second = story.persist(
        schema, [message(a=1.5, B="y", c=[1, 2]), message("2013-01-02", ok=True), b"{bad"]
    )
    assert first.files[0].columns == (("__time", "timestamp"), ("a", "bigint"), ("b", "string"))
    assert dict(second.files[0].columns) == {
        "__time": "timestamp",
        "a": "double",
        "B": "string",
        "c": "string",
        "ok": "bigint",
    }
    assert (second.counts.processed, second.counts.unparseable) == (2, 1)
    merged = story.merge(schema, [first.files[0], second.files[0]])
    assert merged.columns == (
        ("__time", "timestamp"),
        ("a", "double"),
        ("b", "string"),
        ("B", "string"),
        ("c", "string"),
        ("ok", "bigint"),
    )
    rows = [
        {"a": 1.0, "b": "x", "B": None, "c": None, "ok": None},
        {"a": 1.5, "b": None, "B": "y", "c": "[1,2]", "ok": None},
        {"a": None, "b": None, "B": None, "c": None, "ok": 1},
        {"a": 2.0, "b": None, "B": None, "c": None, "ok": None},
    ]
    assert rows_of(merged) == rows
    # Files that were merged are merged again, and divided.
    third = story.persist(schema, [message("2013-01-04", a="text")])
    again = story.merge(schema, [merged, third.files[0]])
    assert [row["a"] for row in rows_of(again)] == ["1.0", "1.5", None, "2.0", "text"]
    parts = story.divide(schema, merged)
    assert [rows_of(part) for part in parts] == [rows[:2], rows[2:]]


def test_rows_roll_up_over_columns_that_were_found(story: Story) -> None:
    schema = make_schema(rollup=True, useSchemaDiscovery=True)
    first = story.persist(schema, [message(a=1), message(a=1), message(a=2)])
    second = story.persist(schema, [message(a=1.0), message(a=1, b="x"), message("2013-01-02")])
    assert [row["rows"] for row in rows_of(first.files[0])] == [2, 1]
    merged = story.merge(schema, [first.files[0], second.files[0]])
    assert rows_of(merged) == [
        {"a": 1.0, "b": "x", "rows": 1},
        {"a": 1.0, "b": None, "rows": 3},
        {"a": 2.0, "b": None, "rows": 1},
        {"a": None, "b": None, "rows": 1},
    ]


def test_what_is_found_is_text_without_types_and_stands_behind_what_is_listed(
    story: Story,
) -> None:
    schema = make_schema(
        dimensions=[{"type": "long", "name": "z"}],
        includeAllDimensions=True,
        dimensionExclusions=["secret"],
    )
    result = story.persist(schema, [message(a=1, z=5, secret=1), message(a=2, z="6")])
    (file,) = result.files
    assert file.columns == (("__time", "timestamp"), ("z", "bigint"), ("a", "string"))
    assert rows_of(file) == [{"z": 5, "a": "1"}, {"z": 6, "a": "2"}]
    (file,) = story.persist(make_schema(), [message(a=1)]).files
    assert file.columns == (("__time", "timestamp"), ("a", "string"))


def test_an_odd_message_stops_no_stream(story: Story) -> None:
    schema = make_schema(useSchemaDiscovery=True)
    odd = [
        message(a=1, A=2),
        b"null",
        b"[1]",
        b"",
        b"{}",
        b'{"at":"2013-01-01","a":%d}' % 2**70,
        message(a=2),
    ]
    result = story.persist(schema, odd)
    assert result.counts == RowCounts(
        processed=3, unparseable=4, read_bytes=sum(len(one) for one in odd)
    )
    assert sorted(row["a"] for row in rows_of(result.files[0])) == [1.0, 2.0, float(2**70)]
    assert story.persist(schema, [b"nothing"]).files == ()


def test_columns_of_delimited_messages_are_those_that_are_named(story: Story) -> None:
    format_ = CsvFormat(columns=("at", "name", "size"))
    messages = [b"2013-01-01,x,1", b"2013-01-02,y,2"]
    (file,) = story.persist(make_schema(useSchemaDiscovery=True), messages, format_).files
    assert rows_of(file) == [{"name": "x", "size": 1}, {"name": "y", "size": 2}]
    (file,) = story.persist(make_schema(), messages, format_).files
    assert rows_of(file) == [{"name": "x", "size": "1"}, {"name": "y", "size": "2"}]


def test_computed_rows_find_columns_and_merge_them_too(story: Story) -> None:
    schema = parse_data_schema(
        {
            "dataSource": "things",
            "timestampSpec": {"column": "at", "format": "iso"},
            "dimensionsSpec": {"useSchemaDiscovery": True},
            "metricsSpec": [
                {"type": "count", "name": "rows"},
                {"type": "HLLSketchBuild", "name": "people", "fieldName": "person"},
                {"type": "stringLast", "name": "latest", "fieldName": "word"},
            ],
            "transformSpec": {
                "transforms": [{"type": "expression", "name": "a", "expression": "a * 2"}],
                "filter": {"type": "not", "field": {"type": "null", "column": "a"}},
            },
            "granularitySpec": ROLL_UP,
        }
    )
    first = story.persist(
        schema, [message(a=1, person="p", word="one"), message(), message(a=1, b=7, person="p")]
    )
    assert first.counts.thrown_away_filtered == 1
    second = story.persist(
        schema, [message("2013-01-01T10:00:00Z", a=1.0, b="x", person="q", word="two")] * 2
    )
    third = story.persist(schema, [message(a=1, b="7", person="r", word="x")])
    files = [result.files[0] for result in (first, second, third)]
    merged = story.merge(schema, files)
    assert dict(merged.columns) == {
        "__time": "timestamp",
        "a": "double",
        "b": "string",
        "rows": "bigint",
        "people": "binary",
        "latest": "string",
    }
    found = pq.read_table(merged.path).select(["a", "b", "rows", "latest"]).to_pylist()
    assert sorted(found, key=lambda row: str(row["b"])) == [
        {"a": 2.0, "b": "7", "rows": 2, "latest": "x"},
        {"a": 2.0, "b": None, "rows": 1, "latest": "one"},
        {"a": 2.0, "b": "x", "rows": 2, "latest": "two"},
    ]


def test_queries_see_the_union_before_and_after_files_are_merged(
    story: Story, spark: SparkSession, data: DataFolder
) -> None:
    schema = make_schema(useSchemaDiscovery=True)
    batches = [
        [message("2013-01-01", a=1, b="x"), message("2013-01-02", b=10**17)],
        [message("2013-01-03", a=1.5e20), message("2013-01-04", a=0.25, c=[1])],
        [message("2013-01-05", b=2.5, A=3)],
    ]
    files = [story.persist(schema, batch).files[0] for batch in batches]
    data.announce_together("found-announced", [pq.read_table(file.path) for file in files])
    merged = story.merge(schema, [story.merge(schema, files[:2]), files[2]])
    data.publish("found-published", pq.read_table(merged.path))
    expected = [
        (1.0, "x", None, None),
        (None, str(10**17), None, None),
        (1.5e20, None, None, None),
        (0.25, None, "[1]", None),
        (None, "2.5", None, 3),
    ]
    for name in ("found-announced", "found-published"):
        reader = spark.read.format("penstock").options(
            dataDir=str(data.folder), datasource=name, includeRunning="true"
        )
        assert reader.load().columns == ["__time", "a", "b", "c", "A"]
        # In Spark's own sessions case does not count.
        ours = reader.schema("__time timestamp, a double, b string, c string").load()
        rows = ours.orderBy("__time").select("a", "b", "c").collect()
        other = reader.schema("__time timestamp, A bigint").load().orderBy("__time").select("A")
        found = [(*row, twin) for row, (twin,) in zip(rows, other.collect(), strict=True)]
        assert found == expected, name


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=3),
    st.lists(st.integers(0, 9), max_size=2),
)


@given(
    st.lists(
        st.one_of(
            st.dictionaries(st.sampled_from("abc"), VALUES).map(orjson.dumps),
            st.sampled_from([b"", b"null", b"{", b"\xff", b'{"a":1}{"a":2}']),
        ),
        max_size=400,
    )
)
def test_whole_batches_find_what_each_message_has(messages: list[bytes]) -> None:
    found: Found = {}
    for columns in json_columns(pa.array(messages, pa.binary())):
        merge_found(found, columns)
    expected: Found = {}
    for one in messages:
        for columns in json_columns(pa.array([one, b"{"], pa.binary())):
            merge_found(expected, columns)
    assert found == expected
