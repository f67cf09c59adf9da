"""A SQL REPLACE over the days of a zone on real Spark, with locks, gaps and its publish."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from penstock.core.intervals import ETERNITY, Granularity, Interval, format_time, parse_time
from penstock.indexing.batch.input_segments import visible_segments
from penstock.indexing.batch.sql.ingest_statement import parse_ingest
from penstock.indexing.ports import TaskState
from penstock.spark.batch.spark_batch_engine import SparkBatchEngine, SparkBatchOptions
from tests.indexing.batch_kit import BatchWorld
from tests.spark.table_kit import GivenTables

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.spark.connect.spark_sessions import SparkSessions

pytestmark = pytest.mark.spark

HOUR_MS = 3_600_000
DAYS = "P1D in America/New_York"


@pytest.fixture
def world(sessions: SparkSessions, tmp_path: Path) -> Iterator[BatchWorld]:
    made = BatchWorld(tmp_path)
    engine = SparkBatchEngine(sessions, SparkBatchOptions(parallelism=2), GivenTables())
    made.engine = engine
    yield made
    engine.close()
    made.close()


def run(world: BatchWorld, sql: str) -> None:
    spec = parse_ingest(f"{sql} PARTITIONED BY '{DAYS}'")
    given = {name: value for name, value in spec.to_json().items() if name != "id"}
    result = world.run(given)
    assert result.state is TaskState.SUCCESS, result.error


def literal(ms: int) -> str:
    return f"TIMESTAMP '{format_time(ms).rstrip('Z').replace('T', ' ')}'"


def hours(world: BatchWorld) -> list[int]:
    """Return the times of the rows that a query sees, in order."""
    found: list[int] = []
    for one in visible_segments(world.store.segments.used("d"), [ETERNITY]):
        times = pq.read_table(world.deep_store.location(one.segment.load_spec)).column("__time")
        ms = [at.timestamp() * 1000 for at in times.to_pylist()]
        found += [int(at) for at in ms if one.interval.contains(int(at))]
    return sorted(found)


def tombstones(world: BatchWorld) -> list[Interval]:
    used = world.store.segments.used("d")
    return sorted(row.interval for row in used if row.payload["loadSpec"]["type"] == "tombstone")


@pytest.mark.parametrize(
    ("span", "gone", "length_h"),
    [
        ("2024-03-08T05:00Z/2024-03-13T04:00Z", "2024-03-10T12:00Z", 23),
        ("2024-11-01T04:00Z/2024-11-06T05:00Z", "2024-11-03T12:00Z", 25),
    ],
)
def test_a_day_without_rows_is_hidden_from_its_midnight_to_the_next(
    world: BatchWorld, span: str, gone: str, length_h: int
) -> None:
    whole, day = Interval.parse(span), Granularity.parse(DAYS).bucket(parse_time(gone))
    assert day.length_ms == length_h * HOUR_MS
    times = range(whole.start_ms, whole.end_ms, HOUR_MS)
    run(
        world,
        "INSERT INTO d SELECT timestamp_millis(id) AS __time, id AS n"
        f" FROM range({whole.start_ms}, {whole.end_ms}, {HOUR_MS})",
    )
    assert hours(world) == list(times)
    within = f"__time >= {literal(whole.start_ms)} AND __time < {literal(whole.end_ms)}"
    outside = f"(__time < {literal(day.start_ms)} OR __time >= {literal(day.end_ms)})"
    run(world, f"REPLACE INTO d OVERWRITE WHERE {within} SELECT * FROM d WHERE {outside}")
    assert hours(world) == [at for at in times if not day.contains(at)]
    assert tombstones(world) == [day]
