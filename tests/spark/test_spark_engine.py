"""Offset ranges become sorted files of time chunks, every message accounted for once."""

from __future__ import annotations

import base64
import datetime as dt
import re
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.instants import parse_time
from penstock.core.intervals import Interval
from penstock.indexing.engine import (
    DataFile,
    DivideRequest,
    EngineFailure,
    MergeRequest,
    PersistRequest,
    PersistResult,
    RowCounts,
    TopicRange,
)
from penstock.indexing.specs import DataSchema, parse_data_schema
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.spark_engine import SparkEngine, SparkEngineOptions
from tests.spark.conftest import MakeTopic
from tests.spark.stream_kit import persist_request

pytestmark = pytest.mark.spark

JANUARY = Interval.parse("2013-01-01/2013-02-01")
FEBRUARY = Interval.parse("2013-02-01/2013-03-01")
JSON_OBJECT = dict[str, object]


def make_schema(*, rollup: bool = False, query: str = "none", **parts: object) -> DataSchema:
    return parse_data_schema(
        {
            "dataSource": "things",
            "timestampSpec": {"column": "at", "format": "iso"},
            "dimensionsSpec": {"dimensions": ["name", {"type": "long", "name": "size"}]},
            "granularitySpec": {
                "segmentGranularity": "month",
                "queryGranularity": query,
                "rollup": rollup,
            },
            **parts,
        }
    )


def message(at: str, name: str | None = "a", size: int | None = 1, **more: object) -> bytes:
    return orjson.dumps({"at": at, "name": name, "size": size, **more})


def request(
    tmp_path: Path,
    ranges: tuple[TopicRange, ...],
    schema: DataSchema | None = None,
    **more: int,
) -> PersistRequest:
    return persist_request(tmp_path, ranges, schema or make_schema(), **more)


def rows_of(files: tuple[DataFile, ...] | list[DataFile]) -> list[JSON_OBJECT]:
    rows: list[JSON_OBJECT] = []
    for file in files:
        table = pq.read_table(file.path)
        assert table.num_rows == file.rows
        assert tuple(table.column_names) == tuple(name for name, _ in file.columns)
        times = table.column("__time").cast(pa.int64()).to_numpy() // 1000
        assert (times.min(), times.max()) == (file.min_time_ms, file.max_time_ms)
        assert file.interval.contains(file.min_time_ms)
        assert file.interval.contains(file.max_time_ms)
        assert (times[1:] >= times[:-1]).all()
        assert Path(file.path).stat().st_size == file.bytes
        rows += table.to_pylist()
    return rows


def day(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


def many(count: int) -> list[bytes]:
    start = parse_time("2013-01-25")
    return [
        orjson.dumps(
            {
                "at": dt.datetime.fromtimestamp(start // 1000 + i * 997 % 1_000_000, dt.UTC),
                "name": f"n{i % 7}",
                "size": i,
            }
        )
        for i in range(count)
    ]


def size_of(messages: list[bytes]) -> int:
    return sum(len(one) for one in messages)


def test_rows_are_written_sorted_by_time_chunk(
    engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path
) -> None:
    messages = [
        message("2013-02-01", "z"),
        message("2013-01-02", "b", 2),
        message("2013-01-01T10:00:00.5Z"),
        message("2013-01-02", "a", None),
    ]
    result = engine.persist(request(tmp_path, make_topic(messages)))
    assert result.counts == RowCounts(processed=4, read_bytes=size_of(messages))
    assert result.bad_files == ()
    assert [file.interval for file in result.files] == [JANUARY, FEBRUARY]
    assert rows_of(result.files) == [
        {"__time": day("2013-01-01T10:00:00.500"), "name": "a", "size": 1},
        {"__time": day("2013-01-02"), "name": "a", "size": None},
        {"__time": day("2013-01-02"), "name": "b", "size": 2},
        {"__time": day("2013-02-01"), "name": "z", "size": 1},
    ]
    assert result.files[0].columns == (
        ("__time", "timestamp"),
        ("name", "string"),
        ("size", "bigint"),
    )


def test_several_splits_make_one_file_of_each_time_chunk(
    sessions: SparkSessions, make_topic: MakeTopic, tmp_path: Path
) -> None:
    options = SparkEngineOptions(split_bytes_min=2_000, parallelism=3)
    engine = SparkEngine(sessions, options)
    result = engine.persist(request(tmp_path, make_topic(many(2_000))))
    assert result.counts == RowCounts(processed=2_000, read_bytes=size_of(many(2_000)))
    # What the workers told of that is gone.
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {Path(file.path).name for file in result.files}
    assert [file.interval for file in result.files] == [JANUARY, FEBRUARY]
    assert sorted(row["size"] for row in rows_of(result.files)) == list(range(2_000))
    # Nothing else is left: no runs, no temporary files.
    assert sorted(map(str, (tmp_path / "out").iterdir())) == [file.path for file in result.files]
    engine.close()


def test_only_the_asked_offsets_are_read(
    engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path
) -> None:
    first, second = make_topic(many(100))
    some = (
        TopicRange(0, first.folder, 5, 17),
        TopicRange(1, second.folder, 20, 20),
    )
    result = engine.persist(request(tmp_path, some))
    sizes = sorted(int(str(row["size"])) for row in rows_of(result.files))
    # Stream partition 0 has the messages 0 to 9, 20 to 29 … of all.
    assert sizes == [5, 6, 7, 8, 9, 20, 21, 22, 23, 24, 25, 26]


def test_nothing_to_read_makes_no_files(
    engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path
) -> None:
    ranges = tuple(TopicRange(r.partition, r.folder, 3, 3) for r in make_topic(many(20)))
    assert engine.persist(request(tmp_path, ranges)) == PersistResult((), RowCounts())


def test_bad_messages_are_kept_with_their_offsets(
    engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path
) -> None:
    messages = [message("2013-01-01")] * 20
    messages[3] = b"{\xff"
    messages[14] = b'{"at":"2013-01-01","size":"many"}'
    result = engine.persist(request(tmp_path, make_topic(messages)))
    assert result.counts == RowCounts(processed=18, unparseable=2, read_bytes=size_of(messages))
    records = [orjson.loads(Path(path).read_bytes()) for path in result.bad_files]
    assert [(r["topic"], r["partition"], r["offset"]) for r in records] == [
        ("things", 0, 3),
        ("things", 1, 4),
    ]
    assert [base64.b64decode(r["message_base64"]) for r in records] == [messages[3], messages[14]]
    assert "not a long" in records[1]["reason"]


def test_only_bad_messages(engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path) -> None:
    result = engine.persist(request(tmp_path, make_topic([b"bad"] * 30)))
    assert result.files == ()
    assert result.counts == RowCounts(unparseable=30, read_bytes=90)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("computed", [False, True])
def test_late_and_early_rows_are_thrown_away_and_counted(
    engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path, computed: bool
) -> None:
    parts = {"transforms": [{"type": "expression", "name": "name", "expression": "'x'"}]}
    schema = make_schema(transformSpec=parts) if computed else make_schema()
    messages = [message(f"2013-01-0{day}") for day in (1, 2, 2, 3, 4, 5, 6)]
    result = engine.persist(
        request(
            tmp_path,
            make_topic(messages),
            schema,
            min_time_ms=parse_time("2013-01-02"),
            max_time_ms=parse_time("2013-01-04"),
        )
    )
    assert result.counts == RowCounts(
        processed=3, thrown_away_late=1, thrown_away_early=3, read_bytes=size_of(messages)
    )
    assert len(rows_of(result.files)) == 3


def test_transforms_and_filter(engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path) -> None:
    schema = make_schema(
        transformSpec={
            "transforms": [
                {"type": "expression", "name": "name", "expression": "upper(\"name\") || '!'"},
                {"type": "expression", "name": "size", "expression": '"width" * "height" + 1'},
            ],
            "filter": {
                "type": "and",
                "fields": [
                    {"type": "not", "field": {"type": "null", "column": "name"}},
                    {
                        "type": "or",
                        "fields": [
                            {"type": "in", "dimension": "kind", "values": ["it's", None]},
                            {
                                "type": "bound",
                                "dimension": "width",
                                "lower": 10,
                                "ordering": "numeric",
                            },
                        ],
                    },
                ],
            },
        }
    )
    messages = [
        message("2013-01-01", "kept", kind="it's", width=2, height=3),
        message("2013-01-01", "wide", kind="x", width=10, height="odd"),
        message("2013-01-01", "small", kind="x", width=9, height=1),
        message("2013-01-01", None, kind="it's"),
        message("2013-01-01", "none"),
    ]
    result = engine.persist(request(tmp_path, make_topic(messages), schema))
    assert result.counts == RowCounts(
        processed=3, thrown_away_filtered=2, read_bytes=size_of(messages)
    )
    assert [(row["name"], row["size"]) for row in rows_of(result.files)] == [
        ("KEPT!", 7),
        ("NONE!", None),
        ("WIDE!", None),
    ]


METRICS = [
    {"type": "count", "name": "n"},
    {"type": "longSum", "name": "total", "fieldName": "size"},
    {"type": "doubleMax", "name": "top", "fieldName": "price"},
    {"type": "floatMin", "name": "low", "fieldName": "price"},
]


# Nothing is made of it, and nothing must change because of it.
BY_NAME = {
    "type": "aggregate",
    "name": "by name",
    "groupingColumns": ["name"],
    "aggregators": [{"type": "longSum", "name": "total", "fieldName": "total"}],
}


def rolled_up(query: str = "hour") -> DataSchema:
    return make_schema(
        rollup=True,
        query=query,
        dimensionsSpec={"dimensions": ["name"]},
        metricsSpec=METRICS,
        projections=[BY_NAME],
    )


@pytest.mark.parametrize("split_bytes", [1_000, 1 << 20])
def test_equal_rows_are_rolled_up_and_once_more_when_merged(
    sessions: SparkSessions, make_topic: MakeTopic, tmp_path: Path, split_bytes: int
) -> None:
    engine = SparkEngine(sessions, SparkEngineOptions(split_bytes_min=split_bytes, parallelism=2))
    messages = [
        message(f"2013-01-01T1{i % 2}:{i % 60:02}:00Z", "ab"[i % 4 // 2], i, price=i / 2)
        for i in range(200)
    ]
    result = engine.persist(request(tmp_path, make_topic(messages), rolled_up()))
    assert result.counts == RowCounts(processed=200, read_bytes=size_of(messages))
    merged = engine.merge(
        MergeRequest("task", JANUARY, result.files, rolled_up(), str(tmp_path / "merged"))
    )
    wanted = [
        {
            "__time": day(f"2013-01-01T1{hour}:00"),
            "name": name,
            "n": 50,
            "total": sum(numbers),
            "top": max(numbers) / 2,
            "low": min(numbers) / 2,
        }
        for hour, name, numbers in (
            (h, "ab"[k], range(2 * k + h, 200, 4)) for h in (0, 1) for k in (0, 1)
        )
    ]
    assert rows_of([merged]) == wanted
    assert merged.columns[3:] == (("total", "bigint"), ("top", "double"), ("low", "float"))
    engine.close()


def test_metrics_without_roll_up_are_columns(
    engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path
) -> None:
    schema = make_schema(metricsSpec=METRICS[:1] + METRICS[2:3])
    messages = [message("2013-01-01", price=2.5), message("2013-01-01")]
    result = engine.persist(request(tmp_path, make_topic(messages), schema))
    assert [(row["n"], row["top"]) for row in rows_of(result.files)] == [(1, 2.5), (1, None)]


@pytest.mark.parametrize(
    ("query", "start"),
    [
        ("minute", "2013-03-14T15:09:00"),
        ("P1D", "2013-03-14"),
        ("month", "2013-03-01"),
    ],
)
def test_times_are_cut_to_the_query_granularity(
    engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path, query: str, start: str
) -> None:
    ranges = make_topic([message("2013-03-14T15:09:26.535Z")])
    result = engine.persist(request(tmp_path, ranges, make_schema(query=query)))
    assert rows_of(result.files)[0]["__time"] == day(start)


def test_files_are_merged_into_one(
    engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path
) -> None:
    first, second = make_topic([message(f"2013-01-{i % 28 + 1:02}", size=i) for i in range(60)])
    files = []
    for number, part in enumerate((first, second)):
        result = engine.persist(request(tmp_path / str(number), (part,)))
        files += result.files
    merged = engine.merge(
        MergeRequest("task", JANUARY, tuple(files), make_schema(), str(tmp_path / "merged"))
    )
    assert merged.interval == JANUARY
    assert sorted(int(str(row["size"])) for row in rows_of([merged])) == list(range(60))


def test_files_of_an_older_schema_are_merged_with_nulls(
    engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path
) -> None:
    ranges = make_topic([message("2013-01-01", color="red")])
    old = engine.persist(request(tmp_path / "old", ranges)).files
    dimensions = ["name", "color", {"type": "long", "name": "size"}]
    newer = make_schema(dimensionsSpec={"dimensions": dimensions})
    new = engine.persist(request(tmp_path / "new", ranges, newer)).files
    merged = engine.merge(MergeRequest("task", JANUARY, old + new, newer, str(tmp_path / "merged")))
    assert {row["color"] for row in rows_of([merged])} == {None, "red"}


def test_a_file_is_divided_by_times_and_each_row_is_in_one_of_them(
    engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path
) -> None:
    days = [message(f"2013-01-{d:02}", size=d) for d in (1, 2, 2, 9, 20)]
    (file,) = engine.persist(request(tmp_path, make_topic(days))).files
    texts = ("2013-01-01/P1D", "2013-01-02/P1D", "2013-01-03/P5D", "2013-01-08/2013-02-01")
    times = tuple(Interval.parse(text) for text in texts)
    parts = engine.divide(DivideRequest("task", file, times, make_schema(), str(tmp_path / "d")))
    assert [(part.interval, part.rows) for part in parts] == [
        (times[0], 1),
        (times[1], 2),
        (times[3], 2),
    ]
    assert rows_of(parts) == rows_of([file])
    missing = DivideRequest("task", file, times[1:], make_schema(), str(tmp_path / "m"))
    with pytest.raises(EngineFailure, match="5 rows made files of 4 rows"):
        engine.divide(missing)


def test_names_with_odd_characters(
    engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path
) -> None:
    names = ["a.b", "c`d", 'e"f', "g h", "Ünï"]
    transform = {"type": "expression", "name": "x", "expression": "\"a.b\" || '-'"}
    ranges = make_topic([orjson.dumps({"at": "2013-01-01", **dict.fromkeys(names, "v")})])
    for parts in ({}, {"transformSpec": {"transforms": [transform]}}):
        schema = make_schema(dimensionsSpec={"dimensions": [*names, "x"]}, **parts)
        folder = tmp_path / str(len(parts))
        [row] = rows_of(engine.persist(request(folder, ranges, schema)).files)
        assert [row[name] for name in names] == ["v"] * len(names)


def test_an_expression_that_spark_refuses_fails_for_good(
    engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path
) -> None:
    transform = {"type": "expression", "name": "name", "expression": "CAST(name AS nosuch)"}
    schema = make_schema(transformSpec={"transforms": [transform]})
    with pytest.raises(EngineFailure, match="UNSUPPORTED_DATATYPE") as failure:
        engine.persist(request(tmp_path, make_topic(many(3)), schema))
    assert "at org.apache" not in str(failure.value)


def test_a_topic_that_is_gone_fails_for_good(engine: SparkEngine, tmp_path: Path) -> None:
    gone = (TopicRange(0, str(tmp_path / "gone"), 0, 5),)
    with pytest.raises(EngineFailure, match="gone"):
        engine.persist(request(tmp_path, gone))


def test_files_that_are_gone_are_not_merged(engine: SparkEngine, tmp_path: Path) -> None:
    file = DataFile(str(tmp_path / "gone.parquet"), JANUARY, 1, 1, 0, 0, ())
    with pytest.raises(EngineFailure, match=r"gone\.parquet"):
        engine.merge(MergeRequest("task", JANUARY, (file,), make_schema(), str(tmp_path / "m")))


def test_a_file_that_is_cut_or_damaged_is_not_merged(
    engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path
) -> None:
    first, second = make_topic([message(f"2013-01-{i % 28 + 1:02}", size=i) for i in range(60)])
    for schema in (make_schema(), rolled_up()):
        folder = tmp_path / str(schema.rollup)
        parts = (
            request(folder / str(n), (part,), schema) for n, part in enumerate((first, second))
        )
        files = tuple(file for part in parts for file in engine.persist(part).files)
        path = Path(files[0].path)
        whole = path.read_bytes()
        for content in (b"", whole[:99], whole[:4] + bytes(len(whole) - 4), None):
            path.unlink()
            if content is not None:
                path.write_bytes(content)
            merging = MergeRequest("task", JANUARY, files, schema, str(folder / "merged"))
            with pytest.raises(EngineFailure, match=re.escape(str(path))) as failure:
                engine.merge(merging)
            assert "Traceback" not in str(failure.value)
            path.write_bytes(whole)
