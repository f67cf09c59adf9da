"""Inputs of batch tasks become sorted, durable files of time chunks; every row is accounted for."""

from __future__ import annotations

import bz2
import dataclasses
import datetime as dt
import functools
import gzip
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import orjson
import pyarrow as pa
import pyarrow.orc as po
import pyarrow.parquet as pq
import pytest
from pydantic import JsonValue, TypeAdapter

from penstock.core.errors import PenstockError
from penstock.core.intervals import Interval
from penstock.indexing.batch.batch_engine import (
    BatchInput,
    BatchRequest,
    BatchResult,
    CombinedInput,
    ExternalInput,
    Partitioning,
    SegmentInput,
    SqlInput,
    Unparseable,
    WorkDone,
)
from penstock.indexing.engine import EngineFailure, RowCounts
from penstock.indexing.specs import DataSchema, parse_data_schema
from penstock.indexing.specs.input_formats import InputFormat
from penstock.indexing.specs.inputs import InputSource
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.batch.spark_batch_engine import SparkBatchEngine
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.schema_columns import metric_names
from tests.kits.this_host_kit import this_host_listed

pytestmark = pytest.mark.spark

JANUARY = Interval.parse("2013-01-01/2013-02-01")
FEBRUARY = Interval.parse("2013-02-01/2013-03-01")
JSON = {"type": "json"}
Row = dict[str, object]


@pytest.fixture(autouse=True)
def servers_of_this_host() -> Iterator[None]:
    """Allow servers of tests."""
    with this_host_listed():
        yield


@pytest.fixture(scope="module")
def batch(sessions: SparkSessions) -> Iterator[SparkBatchEngine]:
    engine = SparkBatchEngine(sessions, SparkBatchOptions(split_bytes_min=4_000, parallelism=2))
    yield engine
    engine.close()


def make_schema(
    parts: Mapping[str, JsonValue] | None = None, *, rollup: bool = False, query: str = "none"
) -> DataSchema:
    granularity: JsonValue = {
        "segmentGranularity": "month",
        "queryGranularity": query,
        "rollup": rollup,
    }
    return parse_data_schema(
        {
            "dataSource": "things",
            "timestampSpec": {"column": "at", "format": "auto"},
            "dimensionsSpec": {"dimensions": ["name", {"type": "long", "name": "size"}]},
            "granularitySpec": granularity,
            **(parts or {}),
        }
    )


def external(source: Mapping[str, object], format_: Mapping[str, object] = JSON) -> ExternalInput:
    return ExternalInput(
        TypeAdapter[InputSource](InputSource).validate_python(source),
        TypeAdapter[InputFormat](InputFormat).validate_python(format_),
    )


def inline(*lines: str, format_: Mapping[str, object] = JSON) -> ExternalInput:
    return external({"type": "inline", "data": "\n".join(lines)}, format_)


def local(*paths: Path, format_: Mapping[str, object] = JSON) -> ExternalInput:
    return external({"type": "local", "files": [str(path) for path in paths]}, format_)


def request(
    tmp_path: Path,
    given: BatchInput,
    schema: DataSchema | None = None,
    partitioning: Partitioning | None = None,
    intervals: tuple[Interval, ...] = (),
    saved: int = 0,
    most: int | None = None,
    combines: bool = False,
) -> BatchRequest:
    schema = schema or make_schema()
    return BatchRequest(
        "task",
        schema,
        given,
        intervals,
        partitioning or Partitioning(),
        str(tmp_path / "out"),
        parse_errors_max=most,
        parse_errors_saved=saved,
        combines=metric_names(schema) if combines else frozenset(),
    )


def line(at: object, name: object = "a", size: object = 1, **more: object) -> str:
    return orjson.dumps({"at": at, "name": name, "size": size, **more}).decode()


def rows_of(result: BatchResult, tmp_path: Path) -> list[Row]:
    """Check that the files are as the result says, and return their rows."""
    rows: list[Row] = []
    names = set()
    for written in result.files:
        file = written.data
        names.add(Path(file.path).name)
        table = pq.read_table(file.path)
        assert table.num_rows == file.rows
        seen = tuple(name for name in table.column_names if not name.startswith("__penstock_"))
        assert seen == tuple(name for name, _ in file.columns)
        times = table.column("__time").cast(pa.int64()).to_numpy() // 1000
        assert (times.min(), times.max()) == (file.min_time_ms, file.max_time_ms)
        assert file.interval.contains(file.min_time_ms)
        assert file.interval.contains(file.max_time_ms)
        assert Path(file.path).stat().st_size == file.bytes
        rows += table.to_pylist()
    folder = tmp_path / "out"
    assert ({path.name for path in folder.iterdir()} if folder.exists() else set()) == names
    return rows


def day(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


def many(count: int) -> list[str]:
    start = day("2013-01-25")
    return [
        line((start + dt.timedelta(seconds=i * 997 % 1_000_000)).isoformat(), f"n{i % 7}", i)
        for i in range(count)
    ]


def sizes(rows: Sequence[Row]) -> list[int]:
    return sorted(int(str(row["size"])) for row in rows)


def test_inline_rows_are_written_sorted_by_time_chunk(
    batch: SparkBatchEngine, tmp_path: Path
) -> None:
    given = inline(
        line("2013-02-01", "z"),
        line("2013-01-02", "b", 2),
        "",
        line("2013-01-01T10:00:00.5Z"),
        line("2013-01-02", "a", None),
    )
    result = batch.write(request(tmp_path, given))
    assert result.counts == RowCounts(processed=4)
    assert result.parse_errors == ()
    assert [file.data.interval for file in result.files] == [JANUARY, FEBRUARY]
    assert [file.bucket for file in result.files] == [None, None]
    assert rows_of(result, tmp_path) == [
        {"__time": day("2013-01-01T10:00:00.500"), "name": "a", "size": 1},
        {"__time": day("2013-01-02"), "name": "a", "size": None},
        {"__time": day("2013-01-02"), "name": "b", "size": 2},
        {"__time": day("2013-02-01"), "name": "z", "size": 1},
    ]


@pytest.mark.parametrize("computed", [False, True])
def test_splits_of_files_lose_and_double_nothing(
    batch: SparkBatchEngine, tmp_path: Path, computed: bool
) -> None:
    transforms: JsonValue = [{"type": "expression", "name": "name", "expression": "'x'"}]
    schema = make_schema({"transformSpec": {"transforms": transforms}} if computed else {})
    lines = many(2_000)
    folder = tmp_path / "in" / "deep"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text("\n".join(lines[:1500]))
    (folder.parent / "b.json").write_text("\r\n".join(lines[1500:]) + "\r\n")
    (folder / "empty.json").write_text("")
    (folder / "other.txt").write_text("no row")
    base = {"type": "local", "baseDir": str(folder.parent), "filter": "*.json"}
    result = batch.write(request(tmp_path, external(base), schema))
    assert result.counts == RowCounts(processed=2_000)
    assert sizes(rows_of(result, tmp_path)) == list(range(2_000))


def test_dynamic_files_have_at_most_so_many_rows(batch: SparkBatchEngine, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text("\n".join(many(1_000)))
    result = batch.write(request(tmp_path, local(path), partitioning=Partitioning(rows_max=300)))
    assert max(file.data.rows for file in result.files) <= 300
    assert sizes(rows_of(result, tmp_path)) == list(range(1_000))


@pytest.mark.parametrize("computed", [False, True])
def test_bad_rows_are_counted_with_file_and_line(
    batch: SparkBatchEngine, tmp_path: Path, computed: bool
) -> None:
    other: JsonValue = {"type": "selector", "dimension": "name", "value": "q"}
    keep: JsonValue = {"filter": {"type": "not", "field": other}}
    schema = make_schema({"transformSpec": keep} if computed else {})
    lines = many(900)
    lines[700] = '{"at": "2013-01-01", "size": "many"}'
    lines[10] = "{"
    lines[500] = line(None)
    lines[501] = line("10000-01-01")
    path = tmp_path / "rows.json"
    path.write_text("\n".join(lines))
    result = batch.write(request(tmp_path, local(path), schema, saved=9))
    assert result.counts == RowCounts(processed=896, unparseable=4)
    assert [error.place for error in result.parse_errors] == [
        f"{path}:{number}" for number in (11, 501, 502, 701)
    ]
    assert result.parse_errors[0].row == "{"
    assert "not a long" in result.parse_errors[3].reason
    assert len(rows_of(result, tmp_path)) == 896


def test_too_many_bad_rows_fail_and_name_the_first(batch: SparkBatchEngine, tmp_path: Path) -> None:
    given = inline(line("2013-01-01"), "[]", "{}")
    says = r"the limit is 1; the first: inline:2: .*object"
    with pytest.raises(Unparseable, match=says) as caught:
        batch.write(request(tmp_path, given, most=1))
    assert (caught.value.count, caught.value.samples[0].place) == (2, "inline:2")
    assert batch.write(request(tmp_path, given, most=2)).counts.unparseable == 2


def test_rows_outside_of_the_intervals_are_thrown_away(
    batch: SparkBatchEngine, tmp_path: Path
) -> None:
    given = inline(*(line(f"2013-0{month}-15", "a", month) for month in range(1, 8)))
    intervals = (Interval.parse("2013-05-01/2013-06-01"), JANUARY, FEBRUARY)
    result = batch.write(request(tmp_path, given, intervals=intervals))
    assert result.counts == RowCounts(processed=3, thrown_away_early=4)
    assert sizes(rows_of(result, tmp_path)) == [1, 2, 5]


METRICS: JsonValue = [
    {"type": "count", "name": "count"},
    {"type": "longSum", "name": "sum", "fieldName": "size"},
    {"type": "doubleMax", "name": "max", "fieldName": "size"},
]


@pytest.mark.parametrize(
    "partitioning",
    [
        Partitioning(),
        Partitioning("hashed"),
        Partitioning("hashed", shards=3),
        Partitioning("hashed", rows_target=40, dimensions=("name",)),
        Partitioning("range", rows_target=40, dimensions=("name",)),
    ],
)
def test_rolled_up_rows_are_the_same_however_they_are_spread(
    batch: SparkBatchEngine, tmp_path: Path, partitioning: Partitioning
) -> None:
    schema = make_schema(
        {"dimensionsSpec": {"dimensions": ["name"]}, "metricsSpec": METRICS},
        rollup=True,
        query="day",
    )
    path = tmp_path / "rows.json"
    path.write_text("\n".join(many(2_000)))
    result = batch.write(request(tmp_path, local(path), schema, partitioning))
    assert result.counts == RowCounts(processed=2_000)
    rows = rows_of(result, tmp_path)
    keys = [(row["__time"], row["name"]) for row in rows]
    assert len(set(keys)) == len(keys) == 7 * 12
    assert sum(int(str(row["count"])) for row in rows) == 2_000
    assert sum(int(str(row["sum"])) for row in rows) == sum(range(2_000))
    assert max(float(str(row["max"])) for row in rows) == 1_999
    if partitioning.kind != "dynamic":
        assert all(file.bucket is not None for file in result.files)


def test_hashed_buckets_keep_equal_dimensions_together(
    batch: SparkBatchEngine, tmp_path: Path
) -> None:
    path = tmp_path / "rows.json"
    path.write_text("\n".join(many(700)))
    partitioning = Partitioning("hashed", shards=4, dimensions=("name",))
    result = batch.write(request(tmp_path, local(path), partitioning=partitioning))
    bucket_of: dict[object, set[int]] = {}
    for file in result.files:
        assert file.bucket is not None
        assert file.bucket.count == 4
        for name in pq.read_table(file.data.path).column("name").to_pylist():
            bucket_of.setdefault(name, set()).add(file.bucket.number)
    assert all(len(buckets) == 1 for buckets in bucket_of.values())
    assert sizes(rows_of(result, tmp_path)) == list(range(700))


def test_ranges_are_in_order_nulls_first_and_near_their_target(
    batch: SparkBatchEngine, tmp_path: Path
) -> None:
    names = [None, *(f"n{i:03d}" for i in range(199))]
    lines = [line("2013-01-05", names[i * 37 % 200], i) for i in range(1_000)]
    path = tmp_path / "rows.json"
    path.write_text("\n".join(lines))
    partitioning = Partitioning("range", rows_target=200, dimensions=("name", "size"))
    result = batch.write(request(tmp_path, local(path), partitioning=partitioning))
    assert sizes(rows_of(result, tmp_path)) == list(range(1_000))
    buckets = [file.bucket for file in result.files if file.bucket is not None]
    assert [bucket.number for bucket in buckets] == [0, 1, 2, 3, 4]
    assert buckets[0].start is None
    assert buckets[-1].end is None
    for before, after in itertools.pairwise(buckets):
        assert before.end == after.start
        assert after.start is not None
    for file, bucket in zip(result.files, buckets, strict=True):
        assert file.data.rows <= 300
        for row in pq.read_table(file.data.path).to_pylist():
            # Text order, with null before everything.
            key = tuple("" if row[n] is None else f"\x01{row[n]}" for n in ("name", "size"))
            for bound, is_before in ((bucket.start, False), (bucket.end, True)):
                if bound is not None:
                    edge = tuple("" if text is None else f"\x01{text}" for text in bound)
                    assert (key < edge) is is_before


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2"])
def test_packed_files_are_read_whole(batch: SparkBatchEngine, tmp_path: Path, suffix: str) -> None:
    packs: dict[str, Callable[[bytes], bytes]] = {
        ".gz": gzip.compress,
        ".zst": functools.partial(pa.compress, codec="zstd", asbytes=True),
        ".bz2": bz2.compress,
    }
    pack = packs[suffix]
    path = tmp_path / f"rows.json{suffix}"
    packed = pack("\n".join(many(500)).encode())
    path.write_bytes(packed)
    result = batch.write(request(tmp_path, local(path)))
    assert sizes(rows_of(result, tmp_path)) == list(range(500))
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(EngineFailure, match=f"rows.json{suffix}.*complete"):
        batch.write(request(tmp_path, local(path)))


CSV = {"type": "csv", "columns": ["at", "name", "size"]}


def test_delimited_text(batch: SparkBatchEngine, tmp_path: Path) -> None:
    given = CombinedInput(
        (
            inline(
                '2013-01-01,"a, ""b""",1', "2013-01-02,,", "2013-01-03", "2013-01-04,x,y", "x,y,3",
                format_=CSV,
            ),
            inline(
                "some words", "size\tname\tat\textra", "7\tq;r\t1357603200000\tz\r",
                format_={"type": "tsv", "findColumnsFromHeader": True, "skipHeaderRows": 1}
                | {"listDelimiter": ";"},
            ),
        )
    )  # fmt: skip
    result = batch.write(request(tmp_path, given, saved=5))
    assert rows_of(result, tmp_path) == [
        {"__time": day("2013-01-01"), "name": 'a, "b"', "size": 1},
        {"__time": day("2013-01-02"), "name": None, "size": None},
        {"__time": day("2013-01-03"), "name": None, "size": None},
        {"__time": day("2013-01-08"), "name": '["q","r"]', "size": 7},
    ]
    assert [error.place for error in result.parse_errors] == ["inline:4", "inline:5"]


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_columnar_files(batch: SparkBatchEngine, tmp_path: Path, kind: str) -> None:
    count = 20_000
    table = pa.table(
        {
            "size": pa.array(range(count), pa.int32()),
            "name": pa.array(["n"] * count),
            "at": pa.array([1_357_000_000_000 + i for i in range(count)], pa.timestamp("ms")),
            "deep": pa.array([{"a": 1}] * count),
        }
    )
    path = tmp_path / f"rows.{kind}"
    if kind == "orc":
        po.write_table(table, path)
    else:
        pq.write_table(table, path, row_group_size=1_000)
    wanted: JsonValue = {"dimensions": [{"type": "long", "name": "size"}, "deep", "absent"]}
    schema = make_schema({"dimensionsSpec": wanted})
    result = batch.write(request(tmp_path, local(path, format_={"type": kind}), schema))
    rows = rows_of(result, tmp_path)
    assert sizes(rows) == list(range(count))
    assert rows[0]["deep"] == '{"a":1}'
    assert rows[0]["absent"] is None
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(EngineFailure, match=f"rows.{kind}"):
        batch.write(request(tmp_path, local(path, format_={"type": kind}), schema))


def test_segments_are_read_in_their_visible_time_and_combined(
    batch: SparkBatchEngine, tmp_path: Path
) -> None:
    metrics: JsonValue = [
        {"type": "count", "name": "count"},
        {"type": "longFirst", "name": "first", "fieldName": "size"},
        {"type": "stringLast", "name": "last", "fieldName": "name"},
        {"type": "HLLSketchBuild", "name": "people", "fieldName": "size"},
        {"type": "quantilesDoublesSketch", "name": "spread", "fieldName": "size"},
    ]
    parts: dict[str, JsonValue] = {
        "dimensionsSpec": {"dimensions": ["name"]},
        "metricsSpec": metrics,
    }
    daily = make_schema(parts, rollup=True, query="day")
    given = inline(
        *(
            line(f"2013-01-{d:02d}T0{h}", f"n{h % 2}", d * 10 + h)
            for d in (3, 4, 5)
            for h in range(4)
        )
    )
    first = batch.write(request(tmp_path / "first", given, daily))
    assert first.counts == RowCounts(processed=12)
    assert sum(file.data.rows for file in first.files) == 6
    visible = Interval.parse("2013-01-04/2013-02-01")
    again = SegmentInput(tuple((file.data, visible) for file in first.files))
    monthly = make_schema(parts, rollup=True, query="month")
    result = batch.write(request(tmp_path, again, monthly, Partitioning("hashed"), combines=True))
    assert result.counts == RowCounts(processed=4)
    rows = rows_of(result, tmp_path)
    assert [(row["name"], row["count"], row["first"], row["last"]) for row in rows] == [
        ("n0", 4, 40, "n0"),
        ("n1", 4, 41, "n1"),
    ]


def test_dimensions_are_found_in_all_files(batch: SparkBatchEngine, tmp_path: Path) -> None:
    spec: JsonValue = {"useSchemaDiscovery": True, "dimensionExclusions": ["no"]}
    schema = make_schema({"dimensionsSpec": spec})
    given = CombinedInput(
        (
            inline('{"at":"2013-01-01","b":1,"a":true,"no":1,"n":null}'),
            inline('{"at":"2013-01-02","b":1.5,"c":"x","d":{"e":[1]},"a":"t"}', "{bad"),
        )
    )
    result = batch.write(request(tmp_path, given, schema))
    assert [(d.name, d.type) for d in result.schema.dimensions] == [
        ("b", "double"), ("a", "string"), ("n", "string"), ("c", "string"), ("d", "json"),
    ]  # fmt: skip
    assert [(row["b"], row["a"], row["d"]) for row in rows_of(result, tmp_path)] == [
        (1.0, "true", None),
        (1.5, "t", '{"e":[1]}'),
    ]


def test_bad_inputs_say_what_is_wrong(batch: SparkBatchEngine, tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("no parquet")
    cases: list[tuple[BatchInput, str]] = [
        (local(tmp_path / "gone.json"), "gone.json does not exist"),
        (local(tmp_path), "is a folder"),
        (local(tmp_path / "text.parquet", format_={"type": "parquet"}), "text.parquet.*format"),
        (local(tmp_path / "a.avro", format_={"type": "avro_ocf"}), "does not exist"),
        (external({"type": "local", "baseDir": str(tmp_path), "filter": "*.x"}), "has no files"),
        (external({"type": "http", "uris": ["http://127.0.0.1:9/x"]}), "does not answer"),
        (SqlInput("SELECT 1"), "has no datasources"),
    ]  # fmt: skip
    for given, message in cases:
        with pytest.raises(PenstockError, match=message):
            batch.write(request(tmp_path, given))


def test_long_wide_and_deep_rows(batch: SparkBatchEngine, tmp_path: Path) -> None:
    wide = {f"c{i}": i for i in range(5_000)}
    lines = [
        line("2013-01-01", "x" * 10_000_000),
        line("2013-01-02", {"deep": [[1], {"er": None}]}),
        line("2013-01-03", "w", **wide),
        line("0000-01-01"),
    ]
    path = tmp_path / "rows.json"
    path.write_text("\n".join(lines))
    result = batch.write(request(tmp_path, local(path)))
    assert result.counts == RowCounts(processed=3, unparseable=1)
    names = [str(row["name"]) for row in rows_of(result, tmp_path)]
    assert [len(names[0]), *names[1:]] == [10_000_000, '{"deep":[[1],{"er":null}]}', "w"]


@pytest.mark.parametrize("kind", ["dynamic", "hashed", "range"])
def test_columns_may_have_names_that_seem_reserved(
    batch: SparkBatchEngine, tmp_path: Path, kind: Literal["dynamic", "hashed", "range"]
) -> None:
    names = ["__bucket", "__KEY", "__count", "__part", "__selected", "__chunk", "__FATE", "__row"]
    kept: JsonValue = {"type": "not", "field": {"type": "null", "column": "__bucket"}}
    schema = make_schema(
        {
            "dimensionsSpec": {"dimensions": list[JsonValue](names)},
            "transformSpec": {"filter": kept},
            # A sketch of each row is made with a number of the row beside its columns.
            "metricsSpec": [{"type": "thetaSketch", "name": "theta", "fieldName": "__part"}],
        }
    )
    spread = Partitioning(kind, rows_target=1, dimensions=() if kind == "dynamic" else ("__KEY",))
    rows = [{"at": "2013-01-01"} | {name: f"{name} {n}" for name in names} for n in range(4)]
    given = inline(*(orjson.dumps(row).decode() for row in rows))
    result = batch.write(request(tmp_path, given, schema, spread))
    found = [{name: row[name] for name in names} for row in rows_of(result, tmp_path)]
    expected = [{name: row[name] for name in names} for row in rows]
    assert sorted(found, key=str) == sorted(expected, key=str)


def test_a_call_for_a_task_that_was_cancelled_just_before_it_never_begins(tmp_path: Path) -> None:
    # Nobody is there: it would fail in another way if it began.
    engine = SparkBatchEngine(SparkSessions(SparkSessionOptions("sc://localhost:1")))
    engine.cancel("task")
    with pytest.raises(EngineFailure, match="task task was cancelled"):
        engine.write(request(tmp_path, inline(line("2013-01-01"))))
    engine.close()


def test_progress_has_the_rows_and_files_that_were_read(
    batch: SparkBatchEngine, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{name}.json" for name in range(3)]
    for path in paths:
        path.write_text("\n".join(many(500)))
    reports: list[WorkDone] = []
    batch.write(request(tmp_path, local(*paths)), reports.append)
    assert reports, "Spark reports at least once"
    for before, after in itertools.pairwise([WorkDone(), *reports]):
        assert before.rows <= after.rows <= 1_500
        assert before.files <= after.files <= after.files_total == 3


def test_a_cancelled_call_fails(batch: SparkBatchEngine, tmp_path: Path) -> None:
    schema = make_schema({"transformSpec": {"filter": {"type": "true"}}})
    cancelled = threading.Event()

    def progress(done: WorkDone) -> None:
        assert done.parts <= done.parts_total
        batch.cancel("mine")
        cancelled.set()

    path = tmp_path / "rows.json"
    path.write_text("\n".join(many(2_000)))
    mine = dataclasses.replace(request(tmp_path, local(path), schema), task_id="mine")
    with pytest.raises(EngineFailure, match="task mine was cancelled"):
        batch.write(mine, progress)
    assert cancelled.is_set()
