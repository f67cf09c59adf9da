"""What of an input is read: filters with their bounds, columns of segments, Avro, sketches."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
from collections.abc import Iterator, Mapping
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import JsonValue, TypeAdapter

from penstock.core.errors import PenstockError
from penstock.core.intervals import Interval
from penstock.indexing.batch.batch_engine import Partitioning, SegmentInput
from penstock.indexing.engine import EngineFailure, RowCounts
from penstock.indexing.specs import Filter
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.batch.spark_batch_engine import SparkBatchEngine
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.storage.secrets.secret_sources import Secrets
from tests.fuzz.sql_places_kit import without_text_checks
from tests.spark.spark_batch_kit import Reply, external, inline, local, request, rows_of, served

pytestmark = pytest.mark.spark

YEAR = Interval.parse("2013-01-01/2014-01-01")
SIZED: dict[str, JsonValue] = {
    "dimensionsSpec": {"dimensions": ["name", {"type": "long", "name": "size"}]}
}
DAY_MS = 86_400_000
START_MS = 1_356_998_400_000  # 2013-01-01


@pytest.fixture(scope="module")
def batch(sessions: SparkSessions) -> Iterator[SparkBatchEngine]:
    secrets = Secrets(variables={"PENSTOCK_INPUT_SECRET": "open sesame"})
    engine = SparkBatchEngine(sessions, SparkBatchOptions(secrets=secrets))
    yield engine
    engine.close()


def numbered(count: int) -> list[dict[str, JsonValue]]:
    """Rows of days in January 2013, sizes and names in order."""
    return [{"at": START_MS + n * DAY_MS, "name": f"n{n}", "size": n} for n in range(count)]


def test_bounds_are_open_or_closed_as_they_say(batch: SparkBatchEngine, tmp_path: Path) -> None:
    def bound(**more: JsonValue) -> dict[str, JsonValue]:
        return {"type": "bound", "dimension": "size", "ordering": "numeric", **more}

    def of_text(**more: JsonValue) -> dict[str, JsonValue]:
        return {"type": "bound", "dimension": "name", **more}

    def range_(**more: JsonValue) -> dict[str, JsonValue]:
        return {"type": "range", "column": "size", "matchValueType": "long", **more}

    def of_time(**more: JsonValue) -> dict[str, JsonValue]:
        return {"type": "range", "column": "__time", "matchValueType": "long", **more}

    cases: list[tuple[dict[str, JsonValue], set[int]]] = [
        (bound(lower="1", upper="3"), {1, 2, 3}),
        (bound(lower="1", upper="3", lowerStrict=True), {2, 3}),
        (bound(lower="1", upper="3", upperStrict=True), {1, 2}),
        (bound(lower="1", upper="3", lowerStrict=True, upperStrict=True), {2}),
        (of_text(lower="n1", lowerStrict=True), {2, 3, 4}),
        (of_text(upper="n3", upperStrict=True), {0, 1, 2}),
        (range_(lower=1, upper=3), {1, 2, 3}),
        (range_(lower=1, upper=3, lowerOpen=True), {2, 3}),
        (range_(lower=1, upper=3, upperOpen=True), {1, 2}),
        (of_time(lower=START_MS + DAY_MS, lowerOpen=True), {2, 3, 4}),
        (of_time(upper=START_MS + DAY_MS), {0, 1}),
        ({"type": "selector", "dimension": "__time", "value": str(START_MS)}, {0}),
    ]
    # All at once: each row shows which of the filters hold for it.
    for number, (wanted, left) in enumerate(cases):
        parts = {**SIZED, "transformSpec": {"filter": wanted}}
        result = batch.write(request(tmp_path / str(number), inline(*numbered(5)), parts))
        assert {row["size"] for row in rows_of(result)} == left, wanted


def segments(batch: SparkBatchEngine, folder: Path) -> SegmentInput:
    """Segments of ten rows with a metric."""
    parts = {**SIZED, "metricsSpec": [{"type": "count", "name": "count"}]}
    first = batch.write(request(folder, inline(*numbered(10)), parts))
    return SegmentInput(tuple((file.data, YEAR) for file in first.files))


def chosen(value: Mapping[str, JsonValue]) -> Filter:
    return TypeAdapter[Filter](Filter).validate_python(value)


def test_a_filter_of_segments_leaves_rows_out_before_anything_else(
    batch: SparkBatchEngine, tmp_path: Path
) -> None:
    given = segments(batch, tmp_path / "first")
    doomed = {"type": "selector", "dimension": "size", "value": "3"}
    kept = dataclasses.replace(given, filter=chosen({"type": "not", "field": doomed}))
    result = batch.write(request(tmp_path / "plain", kept, SIZED))
    assert [row["size"] for row in rows_of(result)] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert result.counts == RowCounts(processed=9, thrown_away_filtered=1)
    # It sees the segments' own columns, whatever the rest of the spec makes of them.
    transforms: JsonValue = {
        "transforms": [{"type": "expression", "name": "size", "expression": "size + 10"}],
        "filter": {"type": "bound", "dimension": "size", "upper": "15", "ordering": "numeric"},
    }
    parts: dict[str, JsonValue] = {
        "dimensionsSpec": {"dimensions": [{"type": "long", "name": "size"}]},
        "transformSpec": transforms,
    }
    both = {
        "type": "and",
        "fields": [
            {"type": "bound", "dimension": "name", "lower": "n2"},
            {"type": "expression", "expression": '"size" <> 4'},
        ],
    }
    asked = dataclasses.replace(given, filter=chosen(both))
    result = batch.write(request(tmp_path / "changed", asked, parts))
    assert [row["size"] for row in rows_of(result)] == [12, 13, 15]
    assert result.counts == RowCounts(processed=3, thrown_away_filtered=7)


def test_a_filter_of_segments_is_checked_as_spark_understood_it(
    batch: SparkBatchEngine, tmp_path: Path
) -> None:
    given = segments(batch, tmp_path / "first")
    call = "reflect('java.lang.System', 'getenv', 'PATH') IS NOT NULL"
    with without_text_checks():
        hostile = chosen({"type": "not", "field": {"type": "expression", "expression": call}})
        asked = request(tmp_path / "out", dataclasses.replace(given, filter=hostile), SIZED)
        with pytest.raises(PenstockError, match=r"its plan contains reflect\("):
            batch.write(asked)


def test_a_filter_sees_a_long_as_one_though_a_metric_wants_a_double(
    batch: SparkBatchEngine, tmp_path: Path
) -> None:
    given = segments(batch, tmp_path / "first")
    wanted = {"type": "in", "dimension": "size", "values": ["3", "4", "5.0"]}
    parts: dict[str, JsonValue] = {
        "dimensionsSpec": {"dimensions": ["name"]},
        "metricsSpec": [{"type": "doubleSum", "name": "sum", "fieldName": "size"}],
    }
    asked = dataclasses.replace(given, filter=chosen(wanted))
    result = batch.write(request(tmp_path / "out", asked, parts))
    found = [(row["name"], row["sum"]) for row in rows_of(result)]
    assert found == [("n3", 3.0), ("n4", 4.0)]
    assert all(isinstance(value, float) for _, value in found)


def test_columns_that_are_not_selected_are_not_there(
    batch: SparkBatchEngine, tmp_path: Path
) -> None:
    given = segments(batch, tmp_path / "first")
    wanted = {"type": "selector", "dimension": "size", "value": "3"}
    hides = dataclasses.replace(given, hidden=frozenset({"size"}), filter=chosen(wanted))
    result = batch.write(request(tmp_path / "named", hides, SIZED))
    assert [(row["name"], row["size"]) for row in rows_of(result)] == [("n3", None)]
    found: dict[str, JsonValue] = {"dimensionsSpec": {"useSchemaDiscovery": True}}
    result = batch.write(request(tmp_path / "found", hides, found))
    assert [d.name for d in result.schema.dimensions] == ["name", "count"]


PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
AVRO = fastavro.parse_schema(
    {
        "type": "record",
        "name": "event",
        "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "name", "type": ["null", "string"]},
            {"name": "size", "type": "int"},
            {"name": "either", "type": ["long", "string"]},
            {"name": "price", "type": PRICE},
            {"name": "raw", "type": "bytes"},
            {"name": "more", "type": {"type": "map", "values": "long"}},
        ],
    }
)  # fmt: skip


def avro_file(path: Path, count: int, codec: str = "deflate") -> Path:
    start = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
    rows = (
        {
            "at": start + dt.timedelta(minutes=n),
            "name": f"n{n}" if n % 2 else None,
            "size": n,
            "either": n if n % 2 else f"t{n}",
            "price": decimal.Decimal(n) / 4,
            "raw": b"text",
            "more": {f"k{n % 3}": n},
        }
        for n in range(count)
    )
    with path.open("wb") as file:
        fastavro.writer(file, AVRO, rows, codec=codec)
    return path


def test_avro_files(batch: SparkBatchEngine, tmp_path: Path) -> None:
    path = avro_file(tmp_path / "a.avro", 3_000)
    names: JsonValue = ["name", {"type": "long", "name": "size"}, "either", "raw", "more", "gone"]
    price: JsonValue = {"type": "double", "name": "price"}
    parts: dict[str, JsonValue] = {"dimensionsSpec": {"dimensions": [*names, price]}}  # type: ignore[misc, list-item]
    format_: dict[str, JsonValue] = {"type": "avro_ocf", "binaryAsString": True}
    given = local(path, avro_file(tmp_path / "b.avro", 2, "null"), format_=format_)
    result = batch.write(request(tmp_path / "out", given, parts))
    assert result.counts == RowCounts(processed=3_002)
    rows = sorted(rows_of(result), key=lambda row: int(str(row["size"])))
    assert [row["size"] for row in rows[4:]] == list(range(2, 3_000))
    assert {name: rows[5][name] for name in rows[5] if name != "__time"} == {
        "name": "n3", "size": 3, "either": "3", "raw": "text", "more": '{"k0":3}', "gone": None,
        "price": 0.75,
    }  # fmt: skip
    assert rows[4]["name"] is None
    assert rows[4]["either"] == "t2"
    assert str(rows[5]["__time"]).startswith("2013-01-01 00:03:00")
    found: dict[str, JsonValue] = {"dimensionsSpec": {"useSchemaDiscovery": True}}
    result = batch.write(request(tmp_path / "found", given, found))
    assert {d.name: d.type for d in result.schema.dimensions} == {
        "name": "string", "size": "long", "either": "string", "price": "double", "raw": "string",
        "more": "json",
    }  # fmt: skip


@pytest.mark.parametrize("damage", ["cut", "text", "values"])
def test_what_is_no_avro_names_the_file(
    batch: SparkBatchEngine, tmp_path: Path, damage: str
) -> None:
    path = avro_file(tmp_path / "a.avro", 1_000)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "text":
        path.write_text('{"at": 1}\n' * 100)
    else:
        with path.open("wb") as file:
            fastavro.writer(file, "long", [1, 2])
    asked = request(tmp_path / "out", local(path, format_={"type": "avro_ocf"}), SIZED)
    with pytest.raises(EngineFailure, match=r"a\.avro"):
        batch.write(asked)


@pytest.mark.parametrize(("as_text", "expected"), [(True, "abc"), (False, "YWJj")])
def test_bytes_are_text_where_the_format_says_so(
    batch: SparkBatchEngine, tmp_path: Path, expected: str, *, as_text: bool
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"at": [START_MS], "name": pa.array([b"abc"], pa.binary())}), path)
    given = local(path, format_={"type": "parquet", "binaryAsString": as_text})
    result = batch.write(request(tmp_path / "out", given, SIZED))
    assert [row["name"] for row in rows_of(result)] == [expected]


def test_lines_are_lines_where_the_format_says_so(batch: SparkBatchEngine, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"at": 1356998400000,\n"size": 1}\n{"at": 1356998400000, "size": 2}\n')
    for lines_only, sizes, bad in ((False, [1, 2], 0), (True, [2], 2)):
        given = local(path, format_={"type": "json", "assumeNewlineDelimited": lines_only})
        result = batch.write(request(tmp_path / f"out-{lines_only}", given, SIZED))
        assert [row["size"] for row in rows_of(result)] == sizes
        assert result.counts.unparseable == bad


def test_sketches_of_an_input_are_united(
    batch: SparkBatchEngine, sessions: SparkSessions, tmp_path: Path
) -> None:
    """Sketches that another system has made come as base64 text; `lgK` says how fine they are."""
    with sessions.use() as spark:
        made = spark.sql(
            "SELECT 1356998400000 AS at, id % 2 AS name, base64(hll_sketch_agg(id, 8)) AS hll,"
            " base64(theta_sketch_agg(id)) AS theta FROM range(1000) GROUP BY id % 2, id % 4"
        ).toArrow()
    path = tmp_path / "a.parquet"
    pq.write_table(made, path)
    metrics: JsonValue = [
        {"type": "HLLSketchMerge", "name": "h", "fieldName": "hll", "lgK": 8},
        {"type": "hyperUnique", "name": "u", "fieldName": "hll", "isInputHyperUnique": True},
        {"type": "thetaSketch", "name": "t", "fieldName": "theta", "isInputThetaSketch": True},
        {"type": "HLLSketchBuild", "name": "coarse", "fieldName": "hll", "lgK": 4},
        {"type": "HLLSketchBuild", "name": "fine", "fieldName": "hll", "lgK": 18},
    ]
    parts: dict[str, JsonValue] = {
        "dimensionsSpec": {"dimensions": ["name"]},
        "metricsSpec": metrics,
    }
    given = local(path, format_={"type": "parquet"})
    by_month = {"rollup": True, "queryGranularity": "month"}
    result = batch.write(request(tmp_path / "out", given, parts, by_month, Partitioning("hashed")))
    query = (
        "SELECT hll_sketch_estimate(h) AS h, hll_sketch_estimate(u) AS u,"
        " theta_sketch_estimate(t) AS t, length(h) AS size, hll_sketch_estimate(fine) AS fine"
        f" FROM parquet.`{result.files[0].data.path}`"
    )
    with sessions.use() as spark:
        rows = spark.sql(query).collect()
    assert len(rows) == 2
    for row in rows:
        assert row.h == pytest.approx(500, rel=0.2)
        assert row.u == pytest.approx(500, rel=0.2)
        assert row.t == pytest.approx(500, rel=0.02)
        assert row.size < 500  # 2 to the power of 8 entries of four or six bits
        assert row.fine == pytest.approx(2, rel=0.01)


def test_what_http_is_told(batch: SparkBatchEngine, tmp_path: Path) -> None:
    with served(lambda _: Reply(200, b'{"at": 1356998400000, "size": 1}\n')) as server:
        given = external(
            {
                "type": "http",
                "uris": [f"{server.address}/rows.json"],
                "requestHeaders": {"X-Wanted": "yes"},
                "httpAuthenticationUsername": "ali",
                "httpAuthenticationPassword": {
                    "type": "environment",
                    "variable": "PENSTOCK_INPUT_SECRET",
                },
            }
        )
        result = batch.write(request(tmp_path / "out", given, SIZED))
    assert [row["size"] for row in rows_of(result)] == [1]
    ((_, headers),) = server.asked
    assert headers["X-Wanted"] == "yes"
    assert headers["Authorization"] == "Basic YWxpOm9wZW4gc2VzYW1l"


def test_a_filter_may_list_thousands(batch: SparkBatchEngine, tmp_path: Path) -> None:
    def is_named(number: int) -> dict[str, JsonValue]:
        return {"type": "selector", "dimension": "name", "value": f"n{number}"}

    def is_day(number: int) -> str:
        start = dt.date(2013, 1, 1) + dt.timedelta(days=2 * number)
        return f"{start}/{start + dt.timedelta(days=1)}"

    names: list[JsonValue] = [f"n{number}" for number in range(1, 5_000)]
    wanted: dict[str, JsonValue] = {
        "type": "and",
        "fields": [
            {"type": "in", "dimension": "name", "values": [*names, None]},
            {"type": "not", "field": {"type": "in", "dimension": "name", "values": []}},
            {"type": "or", "fields": [is_named(number) for number in range(301)]},
            {"type": "interval", "dimension": "__time", "intervals": [*map(is_day, range(300))]},
        ],
    }
    parts = {**SIZED, "transformSpec": {"filter": wanted}}
    result = batch.write(request(tmp_path, inline(*numbered(9)), parts))
    assert [row["size"] for row in rows_of(result)] == [2, 4, 6, 8]


def test_rows_may_be_wanted_of_hundreds_of_intervals(
    batch: SparkBatchEngine, tmp_path: Path
) -> None:
    wanted: JsonValue = {"type": "selector", "dimension": "name", "value": "n4"}
    parts = {**SIZED, "transformSpec": {"filter": wanted}}
    days = tuple(
        Interval(START_MS + 2 * number * DAY_MS, START_MS + (2 * number + 1) * DAY_MS)
        for number in range(300)
    )
    asked = dataclasses.replace(request(tmp_path, inline(*numbered(9)), parts), intervals=days)
    assert [row["size"] for row in rows_of(batch.write(asked))] == [4]


def test_nan_is_found_where_spark_says_that_it_is_the_greatest(
    batch: SparkBatchEngine, sessions: SparkSessions, tmp_path: Path
) -> None:
    """What Arrow tells of a column's extremes has no NaN, and Spark skips rows by it."""
    path = tmp_path / "a.parquet"
    sizes = pa.array([0.1, float("nan"), None, 0.2])
    pq.write_table(pa.table({"at": [START_MS] * 4, "size": sizes, "other": [1.0, 2, 3, 4]}), path)
    doubles: JsonValue = [{"type": "double", "name": name} for name in ("size", "other")]
    parts: dict[str, JsonValue] = {"dimensionsSpec": {"dimensions": doubles}}
    given = local(path, format_={"type": "parquet"})
    result = batch.write(request(tmp_path / "out", given, parts))
    written = result.files[0].data.path
    wanted = {"size > 0.25": 1, "size = double('NaN')": 1, "size >= 0.2": 2, "size < 1": 2}
    with sessions.use() as spark:
        found = {
            one: spark.sql(f"SELECT 1 FROM parquet.`{written}` WHERE {one}").count()
            for one in wanted
        }
    assert found == wanted
    columns = pq.read_metadata(written).row_group(0)
    told = {
        one.path_in_schema: one.is_stats_set
        for one in map(columns.column, range(columns.num_columns))
    }
    assert not told["size"]
    assert told["other"]  # whose rows can still be skipped
