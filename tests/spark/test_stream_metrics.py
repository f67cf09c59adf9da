"""Metrics of streams: each kind over several persists, merges and a compaction, as a naive model.

What arrives first is not what happened first: events come in no order, so that times which are cut
down would give wrong first and last values.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest
from pydantic import JsonValue

from penstock.core.clock import SystemClock
from penstock.core.intervals import Interval
from penstock.indexing.batch.batch_engine import Partitioning, SegmentInput
from penstock.indexing.batch.metric_merge import KeptRows, carried
from penstock.indexing.engine import (
    DataFile,
    DivideRequest,
    MergeRequest,
    PersistRequest,
    PersistResult,
    TopicRange,
)
from penstock.indexing.specs import DataSchema, parse_data_schema
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.batch.spark_batch_engine import SparkBatchEngine
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.schema_columns import folded_columns, output_columns
from penstock.spark.spark_engine import SparkEngine, SparkEngineOptions
from penstock.spark.sql.service import SqlQuery, SqlService
from penstock.spark.tables import TableFile
from tests.spark.conftest import MakeTopic
from tests.spark.spark_batch_kit import inline
from tests.spark.spark_batch_kit import request as batch_request
from tests.spark.table_kit import GivenTables

pytestmark = pytest.mark.spark

JANUARY = Interval.parse("2013-01-01/2013-02-01")
START = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
EVENTS = 600
ENDS: list[JsonValue] = [
    {"type": "count", "name": "n"},
    {"type": "longSum", "name": "total", "fieldName": "size"},
    {"type": "longFirst", "name": "first", "fieldName": "size"},
    {"type": "longLast", "name": "last", "fieldName": "size"},
    {"type": "stringFirst", "name": "who", "fieldName": "person", "maxStringBytes": 3},
    {"type": "stringLast", "name": "whom", "fieldName": "person"},
]
BY_JVM: list[JsonValue] = [
    *ENDS,
    {"type": "doubleLast", "name": "paid", "fieldName": "size", "timeColumn": "settled"},
    {"type": "stringFirst", "name": "payer", "fieldName": "person", "timeColumn": "settled"},
    {"type": "longMax", "name": "latest_ms", "fieldName": "__time"},
]
SKETCHES: list[JsonValue] = [
    {"type": "HLLSketchBuild", "name": "hll", "fieldName": "person"},
    {"type": "thetaSketch", "name": "theta", "fieldName": "person"},
    {"type": "cardinality", "name": "pairs", "fields": ["person", "size"], "byRow": True},
    {"type": "hyperUnique", "name": "unique", "fieldName": "person"},
    {"type": "quantilesDoublesSketch", "name": "spread", "fieldName": "size", "k": 1024},
]
METRICS: Mapping[str, list[JsonValue]] = {
    "workers": ENDS,
    "jvm": BY_JVM,
    "sketches": [*BY_JVM, *SKETCHES],
}


@dataclass(frozen=True, slots=True)
class Event:
    at: dt.datetime
    settled: dt.datetime
    shop: str
    person: str
    size: int | None

    def json(self) -> dict[str, JsonValue]:
        times: dict[str, JsonValue] = {
            "at": self.at.isoformat(),
            "settled": self.settled.isoformat(),
        }
        return times | {"shop": self.shop, "person": self.person, "size": self.size}


def events(count: int = EVENTS) -> list[Event]:
    """Events of three days at two shops, in no order; each has times of its own."""
    found = []
    for i in range(count):
        at, settled = i * 277 % count, i * 431 % count
        found.append(
            Event(
                START + dt.timedelta(seconds=at * 259_200 // count),
                START + dt.timedelta(seconds=settled),
                "ab"[at % 2],
                f"p{at * 7 % 97:03}",
                None if at % 11 == 0 else at,
            )
        )
    return found


def schema_of(metrics: Sequence[JsonValue], query: str, *, rollup: bool = True) -> DataSchema:
    granularity: JsonValue = {
        "segmentGranularity": "month",
        "queryGranularity": query,
        "rollup": rollup,
    }
    return parse_data_schema(
        {
            "dataSource": "things",
            "timestampSpec": {"column": "at", "format": "iso"},
            "dimensionsSpec": {"dimensions": ["shop"]},
            "metricsSpec": list(metrics),
            "granularitySpec": granularity,
        }
    )


def picked(found: Sequence[Event], by: str, what: str, *, last: bool = False) -> object:
    there = [event for event in found if getattr(event, what) is not None]
    ordered = sorted(there, key=lambda event: getattr(event, by))
    return getattr(ordered[-1 if last else 0], what) if ordered else None


def model(found: Sequence[Event], metrics: Sequence[JsonValue]) -> dict[str, object]:
    """What a row is of these events, but for sketches."""
    row: dict[str, object] = {
        "n": len(found),
        "total": sum(event.size or 0 for event in found),
        "first": picked(found, "at", "size"),
        "last": picked(found, "at", "size", last=True),
        "who": str(picked(found, "at", "person"))[:3],
        "whom": picked(found, "at", "person", last=True),
    }
    if metrics is not ENDS:
        row["paid"] = picked(found, "settled", "size", last=True)
        row["payer"] = picked(found, "settled", "person")
        row["latest_ms"] = max(int(event.at.timestamp()) * 1000 for event in found)
    return row


def grouped(found: Sequence[Event], *, by_day: bool = True) -> dict[tuple[str, str], list[Event]]:
    groups: dict[tuple[str, str], list[Event]] = {}
    for event in found:
        day = str(event.at.date()) if by_day else "2013-01-01"
        groups.setdefault((day, event.shop), []).append(event)
    return groups


def rows_of(files: Sequence[DataFile], schema: DataSchema) -> dict[tuple[str, str], dict]:
    """The rows of files by their keys, which come once; without sketches and what is not shown."""
    shown = [name for name, type_ in output_columns(schema) if type_ != "binary"]
    rows = {}
    for file in files:
        assert file.columns == output_columns(schema)
        for row in pq.read_table(file.path).select(shown).to_pylist():
            key = (str(row.pop("__time").date()), row.pop("shop"))
            assert key not in rows
            rows[key] = row
    return rows


class Shown(GivenTables):
    """The files that queries see."""

    def show(self, files: Sequence[DataFile], *, announced: bool) -> None:
        self.number += 1
        self.files["things"] = tuple(
            TableFile(f.path, f.columns, f.interval, announced=announced, size_bytes=f.bytes)
            for f in files
        )


@pytest.fixture(scope="module")
def shown() -> Shown:
    return Shown()


@pytest.fixture(scope="module")
def sql(sessions: SparkSessions, shown: Shown) -> Iterator[SqlService]:
    service = SqlService(sessions, shown, SystemClock())
    yield service
    service.close()


@pytest.fixture(scope="module")
def stream(sessions: SparkSessions) -> Iterator[SparkEngine]:
    """Splits are small: the rows of a persist meet in a second step."""
    engine = SparkEngine(sessions, SparkEngineOptions(split_bytes_min=4_000, parallelism=2))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def batch(sessions: SparkSessions) -> Iterator[SparkBatchEngine]:
    engine = SparkBatchEngine(sessions, SparkBatchOptions(parallelism=2))
    yield engine
    engine.close()


def persist(
    engine: SparkEngine, ranges: Sequence[TopicRange], schema: DataSchema, folder: Path
) -> PersistResult:
    return engine.persist(
        PersistRequest(
            "task", "things", tuple(ranges), schema, str(folder / "out"), str(folder / "bad")
        )
    )


def persisted(
    engine: SparkEngine, ranges: Sequence[TopicRange], schema: DataSchema, folder: Path
) -> list[DataFile]:
    """The files of four persists, one after the other."""
    files: list[DataFile] = []
    for number in range(4):
        parts = [
            TopicRange(
                r.partition,
                r.folder,
                r.start + (r.end - r.start) * number // 4,
                r.start + (r.end - r.start) * (number + 1) // 4,
            )
            for r in ranges
        ]
        made = persist(engine, parts, schema, folder / str(number))
        assert made.counts.processed == sum(part.end - part.start for part in parts)
        files += made.files
    return files


def merged(
    engine: SparkEngine, files: Sequence[DataFile], schema: DataSchema, folder: Path
) -> DataFile:
    """The files made one in two steps, the later ones first."""
    middle = len(files) // 2
    parts = []
    for number, some in enumerate((files[middle:], files[:middle])):
        out = str(folder / f"part{number}")
        parts.append(engine.merge(MergeRequest("task", JANUARY, tuple(some), schema, out)))
    return engine.merge(MergeRequest("task", JANUARY, tuple(parts), schema, str(folder / "merged")))


def asked(sql: SqlService, statement: str) -> list[tuple[object, ...]]:
    result = sql.query(SqlQuery(statement, ()))
    return [tuple(row.values()) for row in result.table.to_pylist()]


def messages(found: Sequence[Event]) -> list[bytes]:
    return [orjson.dumps(event.json()) for event in found]


SHAPE = (
    "SELECT sum(n), sum(total), hll_sketch_estimate(hll_union_agg(hll)),"
    " theta_sketch_estimate(theta_union_agg(theta)), hll_sketch_estimate(hll_union_agg(pairs)),"
    " hll_sketch_estimate(hll_union_agg(unique)),"
    " kll_sketch_get_n_double(kll_merge_agg_double(spread)) FROM things"
)


def estimates(found: Sequence[Event]) -> list[object]:
    people = len({event.person for event in found})
    pairs = len({(event.person, event.size) for event in found})
    sizes = sum(event.size is not None for event in found)
    total = sum(event.size or 0 for event in found)
    return [len(found), total, people, people, pairs, people, sizes]


@pytest.mark.parametrize(
    ("kind", "query"),
    [("workers", "day"), ("jvm", "day"), ("sketches", "day"), ("workers", "none")],
)
def test_persists_and_merges_are_as_the_model(
    stream: SparkEngine,
    batch: SparkBatchEngine,
    make_topic: MakeTopic,
    tmp_path: Path,
    kind: str,
    query: str,
) -> None:
    metrics, found = METRICS[kind], events()
    schema = schema_of(metrics, query)
    assert (folded_columns(schema) is not None) == (kind == "workers")
    files = persisted(stream, make_topic(messages(found)), schema, tmp_path)
    assert len(files) == 4
    whole = merged(stream, files, schema, tmp_path)
    if query == "day":
        wanted = {key: model(some, metrics) for key, some in grouped(found).items()}
        assert rows_of([whole], schema) == wanted
    # A compaction brings all days to one, of rows that the stream published.
    month = schema_of(metrics, "month")
    parts: dict[str, JsonValue] = {
        "dimensionsSpec": {"dimensions": ["shop"]},
        "metricsSpec": list(metrics),
    }
    by_month: dict[str, JsonValue] = {"rollup": True, "queryGranularity": "month"}
    again = SegmentInput(((whole, JANUARY),))
    made = batch.write(batch_request(tmp_path / "month", again, parts, by_month, combines=True))
    wanted = {key: model(some, metrics) for key, some in grouped(found, by_day=False).items()}
    assert rows_of([file.data for file in made.files], month) == wanted


def test_queries_see_the_same_shape_while_announced_and_when_published(
    stream: SparkEngine, sql: SqlService, shown: Shown, make_topic: MakeTopic, tmp_path: Path
) -> None:
    schema, found = schema_of(METRICS["sketches"], "day"), events()
    files = persisted(stream, make_topic(messages(found)), schema, tmp_path)
    whole = merged(stream, files, schema, tmp_path)
    for seen, announced in ((files, True), ([whole], False)):
        shown.show(seen, announced=announced)
        [row] = asked(sql, SHAPE)
        assert [float(str(value)) for value in row] == pytest.approx(estimates(found), rel=0.02)
        names = sql.query(SqlQuery("SELECT * FROM things LIMIT 1", ())).table.column_names
        assert names == [name for name, _ in output_columns(schema)]
    days = grouped(found)
    rows = asked(sql, "SELECT CAST(CAST(__time AS DATE) AS STRING), shop, first, payer FROM things")
    assert {(day, shop): (first, payer) for day, shop, first, payer in rows} == {
        key: (picked(some, "at", "size"), picked(some, "settled", "person"))
        for key, some in days.items()
    }


def stay_as_they_are(batch: SparkBatchEngine, file: DataFile, folder: Path) -> list[DataFile]:
    """Compact rows that were not rolled up: all columns are dimensions but sketches."""
    columns = {name: type_.upper() for name, type_ in file.columns[1:]}
    metrics = carried([KeptRows(columns, None)], ())
    kinds = {"BIGINT": "long", "DOUBLE": "double", "STRING": "string"}
    parts: dict[str, JsonValue] = {
        "dimensionsSpec": {
            "dimensions": [
                {"name": name, "type": kinds[type_]}
                for name, type_ in columns.items()
                if type_ in kinds
            ]
        },
        "metricsSpec": [m.model_dump(by_alias=True, exclude_none=True) for m in metrics],
    }
    given = SegmentInput(((file, JANUARY),))
    made = batch.write(batch_request(folder, given, parts, combines=True))
    return [written.data for written in made.files]


def test_without_roll_up_each_message_is_a_row(
    stream: SparkEngine,
    batch: SparkBatchEngine,
    sql: SqlService,
    shown: Shown,
    make_topic: MakeTopic,
    tmp_path: Path,
) -> None:
    found = events(100)
    schema = schema_of(METRICS["sketches"], "day", rollup=False)
    files = persisted(stream, make_topic(messages(found)), schema, tmp_path)
    whole = merged(stream, files, schema, tmp_path)
    assert whole.rows == 100
    compacted = stay_as_they_are(batch, whole, tmp_path / "compacted")
    for seen, announced in ((files, True), ([whole], False), (compacted, False)):
        shown.show(seen, announced=announced)
        [row] = asked(sql, SHAPE)
        assert [float(str(value)) for value in row] == pytest.approx(estimates(found), rel=0.02)
        rows = asked(sql, "SELECT shop, first, last, whom, paid, payer FROM things")
        sizes = [(e.shop, e.size, e.size, e.person, e.size, e.person) for e in found]
        assert sorted(map(repr, rows)) == sorted(
            repr((s, a, b, p, None if c is None else float(c), q)) for s, a, b, p, c, q in sizes
        )


def test_odd_values_stop_no_stream(
    stream: SparkEngine, sql: SqlService, shown: Shown, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """A message that cannot be computed would come again and again."""
    odd: list[JsonValue] = [None, "", "NaN", "1e999", "-Infinity", "no", [1], {"a": None}, True]
    sent: list[dict[str, JsonValue]] = [
        {"at": START.isoformat(), "shop": shop, "person": value, "size": value, "settled": value}
        for shop, value in zip("aaabbbccd", odd, strict=True)
    ]
    sent += [{"at": START.isoformat(), "shop": "d", "person": "p", "size": 1e300}]
    schema = schema_of(METRICS["sketches"], "day")
    files = persisted(stream, make_topic([orjson.dumps(m) for m in sent]), schema, tmp_path)
    whole = merged(stream, files, schema, tmp_path)
    shown.show([whole], announced=False)
    [row] = asked(sql, SHAPE)
    assert row[0] == len(sent)


def test_a_file_that_is_divided_keeps_the_times_that_decided(
    stream: SparkEngine, make_topic: MakeTopic, tmp_path: Path
) -> None:
    schema, found = schema_of(BY_JVM, "day"), events()
    files = persisted(stream, make_topic(messages(found)), schema, tmp_path)
    days = tuple(Interval.parse(f"2013-01-0{day}/P1D") for day in (1, 2, 3))
    parts: list[list[DataFile]] = []
    for number, file in enumerate(files):
        out = str(tmp_path / f"divided{number}")
        parts.append(list(stream.divide(DivideRequest("task", file, days, schema, out))))
    whole = [
        stream.merge(MergeRequest("task", day, tuple(some), schema, str(tmp_path / f"d{number}")))
        for number, (day, some) in enumerate(zip(days, zip(*parts, strict=True), strict=True))
    ]
    wanted = {key: model(some, BY_JVM) for key, some in grouped(found).items()}
    assert rows_of(whole, schema) == wanted


def test_a_backfill_beside_the_stream_is_compacted_with_it(
    stream: SparkEngine, batch: SparkBatchEngine, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Both know when a first value was: the rows of either may be older."""
    metrics, found = METRICS["sketches"], events()
    streamed, backfilled = found[::2], found[1::2]
    schema = schema_of(metrics, "day")
    files = persisted(stream, make_topic(messages(streamed)), schema, tmp_path)
    whole = merged(stream, files, schema, tmp_path)
    parts: dict[str, JsonValue] = {
        "dimensionsSpec": {"dimensions": ["shop"]},
        "metricsSpec": list(metrics),
    }
    by_day: dict[str, JsonValue] = {"rollup": True, "queryGranularity": "day"}
    given = inline(*(event.json() for event in backfilled))
    replaced = batch.write(batch_request(tmp_path / "backfill", given, parts, by_day))
    wanted = {key: model(some, metrics) for key, some in grouped(backfilled).items()}
    assert rows_of([file.data for file in replaced.files], schema) == wanted
    both = SegmentInput(
        tuple((file, JANUARY) for file in (*(f.data for f in replaced.files), whole))
    )
    spread = Partitioning("hashed")
    made = batch.write(batch_request(tmp_path / "c", both, parts, by_day, spread, combines=True))
    wanted = {key: model(some, metrics) for key, some in grouped(found).items()}
    assert rows_of([file.data for file in made.files], schema) == wanted


def without_times(file: DataFile) -> DataFile:
    """Write a file as it was written before it kept the times that decided."""
    table = pq.read_table(file.path).select([name for name, _ in file.columns])
    pq.write_table(table, file.path, store_schema=False)
    return dataclasses.replace(file, bytes=Path(file.path).stat().st_size)


def test_files_of_before_are_read_as_if_the_time_of_the_row_had_decided(
    stream: SparkEngine, batch: SparkBatchEngine, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Segments and folders of running tasks may be older than the times that are kept."""
    found, metrics = events(80), METRICS["jvm"]
    schema = schema_of(metrics, "day")
    files = persisted(stream, make_topic(messages(found)), schema, tmp_path)
    mixed = [without_times(file) for file in files[:2]] + files[2:]
    whole = merged(stream, mixed, schema, tmp_path)
    parts: dict[str, JsonValue] = {
        "dimensionsSpec": {"dimensions": ["shop"]},
        "metricsSpec": list(metrics),
    }
    by_day: dict[str, JsonValue] = {"rollup": True, "queryGranularity": "day"}
    given = SegmentInput(tuple((file, JANUARY) for file in mixed))
    made = batch.write(batch_request(tmp_path / "c", given, parts, by_day, combines=True))
    for seen in ([whole], [file.data for file in made.files]):
        rows = rows_of(seen, schema)
        for key, some in grouped(found).items():
            assert rows[key]["total"] == sum(event.size or 0 for event in some)
            assert rows[key]["first"] in {event.size for event in some}
            assert rows[key]["payer"] in {event.person for event in some}
