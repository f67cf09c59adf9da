"""The indexing engine on Spark: offset ranges to sorted Parquet files, and files to one file.

Owns how a request is cut into work for Spark, and what comes back. One request is one Spark job:
the topic is read and parsed in Python workers, all else runs in the JVM. Folders must be reachable
under the same paths by this process and by Spark.

Invariants: a request changes nothing but its own folders; a result names files only when the job
ended well and every message of the ranges is accounted for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.core.errors import NotFound, Unavailable
from penstock.core.intervals import ETERNITY
from penstock.indexing.engine import (
    DataFile,
    EngineFailure,
    EngineUnavailable,
    MergeRequest,
    PersistRequest,
    PersistResult,
    RowCounts,
)
from penstock.spark import pipeline
from penstock.spark.badfiles import count_records, list_bad_files
from penstock.spark.columns import output_columns, row_shape
from penstock.spark.datafiles import collect
from penstock.spark.schematext import ddl
from penstock.spark.session import SparkSessions
from penstock.spark.splits import SourceRange
from penstock.spark.topic_reading import sized
from penstock.spark.writer import WriteOptions, observed, write_chunks, write_one
from penstock.storage.filesystem import OsFileSystem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Settings of the engine's own Spark sessions, on top of the server's.
ENGINE_CONF: Final[Mapping[str, str]] = {
    # An expression that fails on a row makes a null there, not the end of the stream.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    # Files of several chunks are written side by side, from rows in the order of time.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
}


@dataclass(frozen=True, slots=True)
class SparkEngineOptions:
    """Sizes that decide how a request is cut.

    Attributes:
        split_bytes_min: A read split is not made smaller than this; a request of less than two of
            them is one piece of work, without a shuffle.
        parallelism: Splits at most; this machine's cores when 0.
        write: How files are written.
    """

    split_bytes_min: int = 8 << 20
    parallelism: int = 0
    write: WriteOptions = field(default_factory=WriteOptions)


class SparkEngine:
    """`IndexingEngine` on a Spark session; any thread may call it, several at once.

    Args:
        sessions: How Spark is reached; the engine has a session of its own.
        options: Sizes.
    """

    def __init__(self, sessions: SparkSessions, options: SparkEngineOptions | None = None) -> None:
        self._sessions = sessions.with_conf(ENGINE_CONF)
        self._options = options or SparkEngineOptions()
        self._parallelism = self._options.parallelism or os.cpu_count() or 1
        self._fs = OsFileSystem()

    def persist(self, request: PersistRequest) -> PersistResult:
        """Write the rows of the ranges; see `IndexingEngine.persist`.

        Raises:
            EngineUnavailable: Spark was lost; try again into a new folder.
            EngineFailure: The request fails for good.
        """
        ranges = self._sized(request)
        folder = Path(request.output_folder)
        pieces = self._pieces(sum(r.size for r in ranges))
        rejection = pipeline.Rejection(request.min_time_ms, request.max_time_ms)
        with self._sessions.use() as spark:
            rows = self._read(spark, request, ranges, pieces)
            kept = pipeline.judged(
                pipeline.transformed(rows, request.schema), request.schema, rejection
            )
            made = pipeline.measured(kept, request.schema)
            written = write_chunks(made, request.schema, folder, pieces, self._options.write)
            seen = observed(written)
        files = collect(folder, output_columns(request.schema), request.schema.segment_granularity)
        bad_files = tuple(list_bad_files(self._fs, request.bad_folder))
        unparseable = sum(count_records(self._fs, path) for path in bad_files)
        counts = RowCounts(
            processed=seen.get("processed", 0),
            unparseable=unparseable,
            thrown_away_late=seen.get("late", 0),
            thrown_away_early=seen.get("early", 0),
            thrown_away_filtered=seen.get("filtered", 0),
        )
        _check(counts, files, request)
        return PersistResult(files, counts, bad_files)

    def merge(self, request: MergeRequest) -> DataFile:
        """Write one file of all rows of the given ones; raises as `persist`."""
        missing = [file.path for file in request.files if not Path(file.path).exists()]
        if missing or not request.files:
            raise EngineFailure(f"files to merge are not there: {missing or 'none were given'}")
        columns = output_columns(request.schema)
        folder = Path(request.output_folder)
        with self._sessions.use() as spark:
            rows = (
                spark.read.schema(ddl(columns))
                .parquet(*(file.path for file in request.files))
                .coalesce(1)
            )
            write_one(
                pipeline.merged(rows, request.schema), request.schema, folder, self._options.write
            )
        granularity = request.schema.segment_granularity
        merged = collect(folder, columns, granularity)
        if len(merged) != 1 or not ETERNITY.overlaps(merged[0].interval):
            raise EngineUnavailable(f"{folder}: {len(merged)} files came of a merge, not one")
        expected = sum(file.rows for file in request.files)
        if not request.schema.rollup and merged[0].rows != expected:
            raise EngineUnavailable(
                f"{folder}: {merged[0].rows} rows came of a merge of {expected}: try again"
            )
        return merged[0]

    def close(self) -> None:
        """End the Spark session."""
        self._sessions.close()

    def _sized(self, request: PersistRequest) -> list[SourceRange]:
        try:
            return [
                sized(self._fs, SourceRange(r.partition, r.folder, r.start, r.end))
                for r in request.ranges
            ]
        except NotFound as error:
            raise EngineFailure(f"topic {request.topic!r}: {error}") from error
        except Unavailable as error:
            raise EngineUnavailable(str(error)) from error

    def _pieces(self, size: int) -> int:
        return max(1, min(self._parallelism, size // self._options.split_bytes_min))

    def _read(
        self,
        spark: SparkSession,
        request: PersistRequest,
        ranges: Sequence[SourceRange],
        pieces: int,
    ) -> DataFrame:
        # Imported here: it brings PySpark, which this module's own import must not cost.
        from penstock.spark import register
        from penstock.spark.topic_source import FORMAT

        register(spark)
        shape = row_shape(request.schema)
        return (
            spark.read.format(FORMAT)
            .schema(ddl(shape.spark_columns()))
            .option("ranges", json.dumps([[r.partition, r.folder, r.start, r.end] for r in ranges]))
            .option("shape", shape.to_json())
            .option("topic", request.topic)
            .option("badFolder", request.bad_folder)
            .option("splits", pieces)
            .option("splitBytes", self._options.split_bytes_min)
            .load()
        )


def _check(counts: RowCounts, files: Sequence[DataFile], request: PersistRequest) -> None:
    """Refuse a result that does not account for every message exactly once.

    Spark may count a piece of work twice when it is tried again; the offsets say what is possible.
    """
    accounted = (
        counts.processed
        + counts.unparseable
        + counts.thrown_away_late
        + counts.thrown_away_early
        + counts.thrown_away_filtered
    )
    offered = sum(r.end - r.start for r in request.ranges)
    rows = sum(file.rows for file in files)
    fits = rows <= counts.processed if request.schema.rollup else rows == counts.processed
    if accounted > offered or not fits:
        raise EngineUnavailable(
            f"the counts of topic {request.topic!r} do not add up: {accounted} of {offered}"
            f" messages, {rows} rows in files, {counts.processed} processed: try again"
        )
