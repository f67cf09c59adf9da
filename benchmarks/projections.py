"""The same query with and without a projection, in turns, over the same segments.

Segments of random rows are published into a data folder of its own, on a Spark of its own; the
best of the rounds counts. ``--rows N`` sets how many rows each of the segments has.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.ingest import served_spark
from benchmarks.table import Row, against, print_rows
from penstock.core.clock import SystemClock
from penstock.core.intervals import Interval
from penstock.indexing.specs.rows.declared_projections import DeclaredProjections, config_name, dump
from penstock.segments.deep_storage import DeepStore
from penstock.segments.segment import Segment, SegmentId, ShardSpec
from penstock.services.roles.router import SqlParts, sql_parts
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.projections.selector import ProjectionOptions
from penstock.spark.sql.service import SqlQuery
from penstock.spark.tables.visible_files import VisibleFiles
from penstock.storage.metadata import MetadataStore, PublishRequest

ROWS: Final = 2_500_000
SEGMENTS: Final = 4
ROUNDS: Final = 5
DAY_US: Final = 86_400_000_000
START_US: Final = 1_356_998_400_000_000
NAME: Final = "edits"
COLUMNS: Final = (
    ("__time", "timestamp"),
    ("channel", "string"),
    ("page", "string"),
    ("added", "bigint"),
)
BY_HOUR: Final[dict[str, object]] = {
    "type": "aggregate",
    "name": "channels by hour",
    "virtualColumns": [
        {"type": "expression", "name": "hour", "expression": "timestamp_floor(__time, 'PT1H')"}
    ],
    "groupingColumns": ["hour", "channel"],
    "aggregators": [{"type": "longSum", "name": "added", "fieldName": "added"}],
}
ASKED: Final = (
    "SELECT date_trunc('HOUR', __time) AS hour, channel, COUNT(*) AS edits, SUM(added) AS total"
    f" FROM {NAME} GROUP BY date_trunc('HOUR', __time), channel ORDER BY total DESC LIMIT 10"
)
FILTERED: Final = (
    f"SELECT channel, SUM(added) AS total FROM {NAME} WHERE __time >= TIMESTAMP '2013-01-02'"
    " GROUP BY channel ORDER BY channel"
)


def rows_of(day: int, rows: int) -> pa.Table:
    """Return a day's edits."""
    rng = np.random.default_rng(day)
    time_us = START_US + day * DAY_US + np.sort(rng.integers(0, DAY_US, rows))
    channels = pa.array([f"#{number:02}.wikipedia" for number in range(50)])
    return pa.table(
        {
            "__time": pa.array(time_us).cast(pa.timestamp("us", "UTC")),
            "channel": channels.take(pa.array(rng.zipf(1.6, rows) % 50)),
            "page": pa.array(rng.integers(0, 200_000, rows)).cast(pa.string()),
            "added": pa.array(rng.integers(-500, 5_000, rows)),
        }
    )


def publish(store: MetadataStore, folder: Path, rows: int) -> None:
    """Publish a segment of each day."""
    deep = DeepStore(str(folder / "segments"))
    deep.make_root()
    local = folder / "rows.parquet"
    for day in range(SEGMENTS):
        pq.write_table(rows_of(day, rows), local, compression="zstd", store_schema=False)
        interval = Interval(
            (START_US + day * DAY_US) // 1_000, (START_US + (day + 1) * DAY_US) // 1_000
        )
        pushed = deep.push(str(local), SegmentId(NAME, interval, "v1"), "u")
        segment = Segment(
            datasource=NAME,
            interval=interval,
            version="v1",
            load_spec=pushed.load_spec,
            shard_spec=ShardSpec(0, 1),
            size=pushed.size,
            total_rows=rows,
            columns=COLUMNS,
        )
        outcome = store.publish(PublishRequest("bench", NAME, (segment.to_row(),)))
        assert outcome.ok, outcome.reason
    kept = dump([DeclaredProjections(BY_HOUR)])
    assert store.config.compare_and_set(config_name(NAME), None, kept)


def measured(parts: SqlParts, sql: str) -> tuple[float, float]:
    """Ask from the projection and from the rows in turns; return the best seconds of each."""

    def asked(wish: ProjectionOptions, used: str) -> tuple[float, list[object]]:
        began_s = time.perf_counter()
        found = parts.sql.query(SqlQuery(sql, projections=wish))
        took_s = time.perf_counter() - began_s
        assert found.projection == used, found.projection
        return took_s, found.table.to_pylist()

    def both() -> tuple[float, float]:
        with_s, with_rows = asked(ProjectionOptions(), str(BY_HOUR["name"]))
        without_s, without_rows = asked(ProjectionOptions(none=True), "")
        assert with_rows == without_rows
        return with_s, without_s

    both()
    rounds = [both() for _ in range(ROUNDS)]
    return min(one for one, _ in rounds), min(other for _, other in rounds)


def run(rows: int = ROWS) -> list[Row]:
    """Measure in a temporary folder, which is removed."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, served_spark() as served:
        folder, clock = Path(name), SystemClock()
        sessions = SparkSessions(SparkSessionOptions(served[2]))
        with MetadataStore.open(f"sqlite:///{folder}/metadata.db", clock=clock) as store:
            publish(store, folder, rows)
            tables = VisibleFiles(store, str(folder / "segments"), clock)
            parts = sql_parts(sessions, tables, str(folder / "segments"), clock)
            try:
                return _rows(parts, rows)
            finally:
                for close in _closing(parts):
                    close()


def _rows(parts: SqlParts, rows: int) -> list[Row]:
    parts.sql.query(SqlQuery(ASKED))
    began_s = time.perf_counter()
    parts.maker.work()
    made_s = time.perf_counter() - began_s
    assert parts.maker.made.value == SEGMENTS
    grouped_s, grouped_rows_s = measured(parts, ASKED)
    filtered_s, filtered_rows_s = measured(parts, FILTERED)
    label = "over a projection"
    return [
        against(f"sums by hour, {label}", grouped_s, "s", "the rows", grouped_rows_s, "< 0.6"),
        against(f"sums of some days, {label}", filtered_s, "s", "the rows", filtered_rows_s),
        Row("a projection is made, on one core", rows * SEGMENTS / made_s, "rows/s"),
    ]


def _closing(parts: SqlParts) -> tuple[Callable[[], None], ...]:
    return (parts.maker.stop, parts.maker.close, parts.projections.close, parts.sql.close)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    print_rows(run(parser.parse_args().rows))
