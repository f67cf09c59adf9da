"""What records have beside their values becomes columns on a real Spark, of Kafka and of topics."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest

from penstock.core.clock import SystemClock
from penstock.core.intervals import parse_time
from penstock.indexing import kafka_settings
from penstock.indexing.engine import PersistResult, RowCounts, StreamRange
from penstock.indexing.source import KafkaClients
from penstock.indexing.source.kafka import KafkaSupplier
from penstock.indexing.specs import DataSchema, parse_data_schema
from penstock.indexing.specs.rows.stream_formats import KafkaFormat
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.spark_engine import SparkEngine, SparkEngineOptions
from penstock.storage.secrets.secret_sources import Secrets
from tests.broker.kafka_kit import MockCluster, StandInRecord, mock_cluster
from tests.spark.conftest import MakeTopic
from tests.spark.stream_kit import persist_request

pytestmark = pytest.mark.spark

BASE_MS = parse_time("2013-01-01")
WHOLE = KafkaFormat.model_validate(
    {
        "type": "kafka",
        "valueFormat": {"type": "json"},
        "headerFormat": {"type": "string"},
        "keyFormat": {"type": "tsv", "columns": ["x"]},
    }
)
OWN_TIME = {"column": "kafka.timestamp", "format": "millis"}
FIVE = ["kafka.timestamp", "kafka.topic", "kafka.partition", "kafka.offset", "kafka.key"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    with mock_cluster() as made:
        made.create("edits")
        made.add_whole("edits", 0, (edit(n) for n in range(6)))
        # Its value has columns of its own that are so called, its header is no text.
        own = b'{"page":"own","kafka.key":"mine","kafka.header.env":"its"}'
        made.add_whole("edits", 1, [record(own, b"k", [("env", b"\xff")], 10)])
        made.add_whole("edits", 1, [record(None, b"gone", None, 11)])
        made.add_whole("edits", 1, [record(b"{broken", b"k", None, 12)])
        made.add_whole("edits", 1, [record(b'{"page":"z"}', b"k", [("env", b"\xff")], 13)])
        yield made
    gc.collect()


def record(
    value: bytes | None, key: bytes | None, headers: list[tuple[str, bytes | None]] | None, at: int
) -> StandInRecord:
    return StandInRecord(value, key, headers, BASE_MS + at * 60_000)


def edit(n: int) -> StandInRecord:
    headers: list[tuple[str, bytes | None]] = [("env", b"test"), ("zone", b"z%d" % (n % 2))]
    return record(orjson.dumps({"page": f"p{n}", "size": n}), b"user%d" % (n % 2), headers, n)


def edits(cluster: MockCluster) -> tuple[StreamRange, ...]:
    given = kafka_settings.checked(cluster.properties)
    source = KafkaSupplier(KafkaClients(), SystemClock(), "edits", given, Secrets())
    seen = source.available(after={0: 0, 1: 0})
    ends = {p: a.latest for p, a in seen.partitions.items()}
    return source.ranges(dict.fromkeys(ends, 0), ends, seen)


def make_schema(**parts: object) -> DataSchema:
    return parse_data_schema(
        {
            "dataSource": "edits",
            "timestampSpec": OWN_TIME,
            "dimensionsSpec": {"dimensions": ["page", "kafka.key", "kafka.header.env"]},
            "granularitySpec": {"segmentGranularity": "month", "rollup": False},
            **parts,
        }
    )


def rows_of(result: PersistResult) -> list[dict[str, object]]:
    (file,) = result.files
    table = pq.read_table(file.path)
    assert tuple(table.column_names) == tuple(name for name, _ in file.columns)
    rows: list[dict[str, object]] = table.drop(["__time"]).to_pylist()
    return rows


def letters(result: PersistResult) -> list[tuple[int, bytes]]:
    lines = [
        orjson.loads(line)
        for path in result.bad_files
        for line in Path(path).read_bytes().splitlines()
    ]
    return [(one["offset"], one["message_base64"]) for one in lines]


def test_keys_headers_and_times_of_kafka_are_columns(
    engine: SparkEngine, cluster: MockCluster, tmp_path: Path
) -> None:
    schema = make_schema()
    ranges = edits(cluster)
    result = engine.persist(persist_request(tmp_path, ranges, schema, record_format=WHOLE))
    size = result.counts.read_bytes
    # Bad are what is no JSON, and the header that is no text where the value has none.
    assert result.counts == RowCounts(processed=8, unparseable=2, read_bytes=size)
    found = {(row["page"], row["kafka.key"], row["kafka.header.env"]) for row in rows_of(result)}
    assert found == {
        *((f"p{n}", f"user{n % 2}", "test") for n in range(6)),
        ("own", "mine", "its"),
        (None, "gone", None),
    }
    # Of a bad record its value is kept as it is.
    assert [offset for offset, _ in letters(result)] == [2, 3]
    assert letters(result)[0][1] == "e2Jyb2tlbg=="
    (file,) = result.files
    assert (file.min_time_ms, file.max_time_ms) == (BASE_MS, BASE_MS + 11 * 60_000)


def test_transforms_filters_and_limits_of_time_see_them(
    engine: SparkEngine, cluster: MockCluster, tmp_path: Path
) -> None:
    schema = make_schema(
        dimensionsSpec={"dimensions": ["who", "kafka.header.zone"]},
        metricsSpec=[
            {"type": "count", "name": "rows"},
            {"type": "longMax", "name": "last", "fieldName": "kafka.offset"},
        ],
        granularitySpec={"segmentGranularity": "month", "queryGranularity": "day", "rollup": True},
        transformSpec={
            "transforms": [
                {"type": "expression", "name": "who", "expression": 'upper("kafka.key")'}
            ],
            "filter": {"type": "equals", "column": "kafka.header.env", "matchValue": "test"},
        },
    )
    start, end = BASE_MS + 60_000, BASE_MS + 11 * 60_000
    result = engine.persist(
        persist_request(
            tmp_path,
            edits(cluster),
            schema,
            record_format=WHOLE,
            min_time_ms=start,
            max_time_ms=end,
        )
    )
    assert rows_of(result) == [
        {"who": "USER0", "kafka.header.zone": "z0", "rows": 2, "last": 4},
        {"who": "USER1", "kafka.header.zone": "z1", "rows": 3, "last": 5},
    ]
    counts = result.counts
    assert (counts.processed, counts.unparseable) == (5, 2)
    # The filter comes first: the row without a value and the one with a header of its own fail it.
    assert (counts.thrown_away_filtered, counts.thrown_away_late) == (2, 1)


def test_columns_beside_values_are_found_and_rows_roll_up(
    engine: SparkEngine, cluster: MockCluster, tmp_path: Path
) -> None:
    schema = make_schema(
        dimensionsSpec={"useSchemaDiscovery": True, "dimensionExclusions": ["kafka.offset"]},
        metricsSpec=[{"type": "count", "name": "rows"}],
        granularitySpec={"segmentGranularity": "month", "queryGranularity": "day", "rollup": True},
    )
    result = engine.persist(persist_request(tmp_path, edits(cluster), schema, record_format=WHOLE))
    (file,) = result.files
    assert dict(file.columns) == {
        "__time": "timestamp",
        "page": "string",
        "size": "bigint",
        "kafka.header.env": "string",
        "kafka.header.zone": "string",
        "kafka.topic": "string",
        "kafka.partition": "bigint",
        "kafka.key": "string",
        "rows": "bigint",
    }
    (row,) = (row for row in rows_of(result) if row["page"] == "p3")
    assert (row["kafka.topic"], row["kafka.key"], row["size"]) == ("things", "user1", 3)


def test_messages_of_a_topic_have_their_time_and_place(
    sessions: SparkSessions, make_topic: MakeTopic, tmp_path: Path
) -> None:
    before = SystemClock().now_ms()
    ranges = make_topic([b'{"page":"p%d"}' % n for n in range(20)])
    schema = make_schema(
        dimensionsSpec={
            "dimensions": [
                "page",
                *(
                    {"type": "long", "name": name}
                    for name in FIVE
                    if name.endswith(("p", "t", "n"))
                ),
                "kafka.topic",
                "kafka.key",
            ]
        }
    )
    # Small splits, so that several workers read and join.
    engine = SparkEngine(sessions, SparkEngineOptions(split_bytes_min=50, parallelism=3))
    result = engine.persist(persist_request(tmp_path, ranges, schema, record_format=WHOLE))
    engine.close()
    rows = sorted(rows_of(result), key=lambda row: int(str(row["page"])[1:]))
    assert [(row["kafka.partition"], row["kafka.offset"]) for row in rows] == [
        (n // 10, n % 10) for n in range(20)
    ]
    assert {row["kafka.topic"] for row in rows} == {"things"}
    assert {row["kafka.key"] for row in rows} == {None}
    times = [row["kafka.timestamp"] for row in rows]
    assert all(isinstance(at, int) and before <= at <= SystemClock().now_ms() for at in times)


def test_a_topic_without_dimensions_has_the_four_that_it_knows(
    engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path
) -> None:
    ranges = make_topic([b'{"page":"p"}'])
    schema = make_schema(dimensionsSpec={})
    result = engine.persist(persist_request(tmp_path, ranges, schema, record_format=WHOLE))
    assert [name for name, _ in result.files[0].columns] == [
        "__time",
        "page",
        "kafka.topic",
        "kafka.partition",
        "kafka.offset",
    ]
