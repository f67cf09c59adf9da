"""Topics of Kafka become files on a real Spark: every message once, rolled up or not."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import orjson
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock.core.clock import SystemClock
from penstock.core.intervals import parse_time
from penstock.indexing import kafka_settings
from penstock.indexing.engine import (
    DataFile,
    EngineFailure,
    EngineUnavailable,
    PersistRequest,
    RowCounts,
    StreamRange,
)
from penstock.indexing.source import KafkaClients
from penstock.indexing.source.kafka import KafkaSupplier
from penstock.indexing.specs import DataSchema, parse_data_schema
from penstock.spark.connect.spark_sessions import SparkSessions, translate
from penstock.spark.spark_engine import SparkEngine, SparkEngineOptions
from penstock.storage.secrets.secret_sources import Secrets
from tests.broker.kafka_kit import MockCluster, mock_cluster

pytestmark = pytest.mark.spark

COUNT = 50_000
BAD = 7
BASE_MS = parse_time("2013-01-01")


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    with mock_cluster() as made:
        made.create("flights")
        for partition in range(2):
            numbers = range(partition, COUNT, 2)
            made.add("flights", partition, map(flight, numbers))
        made.add("flights", 1, (b"broken %d" % n for n in range(BAD - 1)))
        # A record without a value makes no row, and is counted.
        made.add("flights", 1, [None])
        yield made
    gc.collect()


def flight(n: int) -> bytes:
    return orjson.dumps({"at": BASE_MS + n * 60_000, "name": f"n{n % 3}", "size": n})


def supplier(cluster: MockCluster, topic: str = "flights") -> KafkaSupplier:
    given = kafka_settings.checked(cluster.properties)
    return KafkaSupplier(KafkaClients(), SystemClock(), topic, given, Secrets())


def everything(cluster: MockCluster) -> tuple[StreamRange, ...]:
    source = supplier(cluster)
    seen = source.available(after={0: 0, 1: 0})
    ends = {p: a.latest for p, a in seen.partitions.items()}
    return source.ranges(dict.fromkeys(ends, 0), ends, seen)


def schema(*, rollup: bool) -> DataSchema:
    return parse_data_schema(
        {
            "dataSource": "flights",
            "timestampSpec": {"column": "at", "format": "millis"},
            "dimensionsSpec": {"dimensions": ["name"]},
            "metricsSpec": [
                {"type": "count", "name": "count"},
                {"type": "longSum", "name": "total", "fieldName": "size"},
            ],
            "granularitySpec": {
                "segmentGranularity": "month",
                "queryGranularity": "day" if rollup else "none",
                "rollup": rollup,
            },
        }
    )


def request(tmp_path: Path, ranges: tuple[StreamRange, ...], *, rollup: bool) -> PersistRequest:
    out, bad = str(tmp_path / "out"), str(tmp_path / "bad")
    return PersistRequest("task", "flights", ranges, schema(rollup=rollup), out, bad)


def total(files: tuple[DataFile, ...], column: str) -> int:
    return sum(pc.sum(pq.read_table(f.path).column(column)).as_py() for f in files)


@pytest.mark.parametrize("rollup", [False, True])
def test_every_message_is_counted_once(
    sessions: SparkSessions, cluster: MockCluster, tmp_path: Path, *, rollup: bool
) -> None:
    # Small splits, so that several workers read each partition.
    engine = SparkEngine(sessions, SparkEngineOptions(split_bytes_min=500_000, parallelism=3))
    result = engine.persist(request(tmp_path, everything(cluster), rollup=rollup))
    engine.close()
    size = result.counts.read_bytes
    assert result.counts == RowCounts(processed=COUNT, unparseable=BAD, read_bytes=size)
    assert size > COUNT
    assert (sum(f.rows for f in result.files) < COUNT) == rollup
    assert total(result.files, "count") == COUNT
    assert total(result.files, "total") == sum(range(COUNT))
    letters = [
        orjson.loads(line)
        for path in result.bad_files
        for line in Path(path).read_bytes().splitlines()
    ]
    assert [(x["partition"], x["offset"]) for x in letters] == [
        (1, COUNT // 2 + n) for n in range(BAD)
    ]
    assert letters[-1]["message_base64"] == ""
    assert "without a value" in letters[-1]["reason"]


def test_offsets_that_are_gone_are_named_with_a_mend(
    engine: SparkEngine, cluster: MockCluster, tmp_path: Path
) -> None:
    source = supplier(cluster)
    seen = source.available()
    ranges = source.ranges({0: COUNT}, {0: COUNT + 5}, seen)
    with pytest.raises(
        EngineFailure, match=rf"no longer holds offset {COUNT}.*resetOffsetAutomatically"
    ):
        engine.persist(request(tmp_path, ranges, rollup=False))


def test_a_cluster_that_does_not_answer_is_a_reason_to_try_again() -> None:
    from pyspark.errors import PythonException

    story = "Traceback\n  line\npenstock.core.errors.Unavailable: Kafka's topic x: nothing came"
    assert isinstance(translate(PythonException(story)), EngineUnavailable)
