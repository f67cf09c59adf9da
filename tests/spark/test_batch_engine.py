"""Inputs of batch tasks become sorted, durable files of time chunks; every row is accounted for."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import JsonValue, TypeAdapter

from penstock.core.intervals import Interval
from penstock.indexing.batch.engine import (
    BatchInput,
    BatchRequest,
    BatchResult,
    ExternalInput,
    Partitioning,
)
from penstock.indexing.engine import EngineFailure, RowCounts
from penstock.indexing.spec import DataSchema, parse_data_schema
from penstock.indexing.spec.inputs import InputFormat, InputSource
from penstock.spark.batch.engine import SparkBatchEngine
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.connect.session import SparkSessions

pytestmark = pytest.mark.spark

JANUARY = Interval.parse("2013-01-01/2013-02-01")
FEBRUARY = Interval.parse("2013-02-01/2013-03-01")
JSON = {"type": "json"}
Row = dict[str, object]


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
    return BatchRequest(
        "task",
        schema or make_schema(),
        given,
        intervals,
        partitioning or Partitioning(),
        str(tmp_path / "out"),
        parse_errors_max=most,
        parse_errors_saved=saved,
        combines=combines,
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
        assert tuple(table.column_names) == tuple(name for name, _ in file.columns)
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
    assert "no bigint" in result.parse_errors[3].reason
    assert len(rows_of(result, tmp_path)) == 896


def test_too_many_bad_rows_fail_and_name_the_first(batch: SparkBatchEngine, tmp_path: Path) -> None:
    given = inline(line("2013-01-01"), "[]", "{}")
    with pytest.raises(EngineFailure, match=r"at most 1 may be; the first: inline:2: .*object"):
        batch.write(request(tmp_path, given, most=1))
    assert batch.write(request(tmp_path, given, most=2)).counts.unparseable == 2
