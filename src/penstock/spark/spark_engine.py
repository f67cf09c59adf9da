"""Indexing engine on Spark: offset ranges to sorted Parquet files, and several files to one.

`SparkEngine` owns how a request is divided into work for Spark, how computed rows reach the
files, and the conversion of results into data files. Arrow in Spark's Python workers reads and
parses topics, rolls up, sorts and writes (`chunk_work`); the JVM computes transforms, filters
and sketches in between (`pipeline`). This process and Spark must reach the folders under the
same paths.

Computed rows stay in their split if the rest needs only Arrow. Otherwise they are combined by
time chunk: a small request is one piece of work without a shuffle; a large one is shuffled, and
Spark evens out skewed partitions.

Invariants: a request changes only its own folders. A result names files only if all work
succeeded and every message of the ranges is accounted for. Any thread may call the engine,
several at once.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import NotFound, Unavailable, counted
from penstock.core.intervals import Interval
from penstock.core.rate_limited_log import RateLimitedLogs, Warn
from penstock.indexing.engine import (
    DataFile,
    DivideRequest,
    EngineFailure,
    EngineUnavailable,
    MergeRequest,
    PersistRequest,
    PersistResult,
    RowCounts,
)
from penstock.indexing.specs import DataSchema
from penstock.spark import pipeline
from penstock.spark.batch.input.dimension_discovery import Found, discovered
from penstock.spark.chunk_files import SortedRun, WrittenParquet
from penstock.spark.chunk_work import (
    JoinWork,
    ReadWork,
    Report,
    SpreadWork,
    WriteTarget,
    divide_file,
    join_runs,
    merge_files,
    parse_splits,
    read_splits,
    reports,
    spread_rows,
    write_rows,
)
from penstock.spark.connect.spark_sessions import EXACT_CONF, SparkSessions
from penstock.spark.ddl import ddl
from penstock.spark.equal_row_columns import is_foldable_when_computed, of_groups, of_rows
from penstock.spark.equal_row_groups import EqualRowGroups, fold_of_groups, groups_of
from penstock.spark.expressions import column
from penstock.spark.messages.formats import metadata_columns, text_format
from penstock.spark.messages.found_columns import (
    AlikeWork,
    InspectWork,
    found_in,
    inspect_splits,
    united,
    unlike,
    write_alike,
)
from penstock.spark.messages.record_rows import RecordRows
from penstock.spark.pieces import (
    REPORT_SCHEMA,
    Work,
    distribute,
    limited,
    numbered,
    reports_of,
    run_pieces,
)
from penstock.spark.pipeline import CHUNK_COLUMN, OBSERVED, chunked
from penstock.spark.rollup import RowFold, fold_of
from penstock.spark.row_chunks import TimeLimits
from penstock.spark.schema_columns import (
    can_fold,
    file_columns,
    file_form,
    folded_columns,
    metric_names,
    output_columns,
    row_shape,
)
from penstock.spark.topic.bad_files import count_records, list_bad_files
from penstock.spark.topic.byte_counts import take_bytes
from penstock.spark.topic.offset_splits import Split, cut
from penstock.spark.topic.parse import BatchParser
from penstock.spark.topic.record_locations import as_source
from penstock.spark.topic.row_shape import TIME_TYPE, FieldType
from penstock.spark.topic.split_reader import BadMessagePolicy, sized
from penstock.spark.topic.whole_records import RecordParser
from penstock.spark.transforms.transform_errors import translate_transform_errors
from penstock.storage.disk import OsFileSystem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def as_data_files(
    written: Iterable[WrittenParquet], columns: tuple[tuple[str, str], ...]
) -> tuple[DataFile, ...]:
    """Return the files in the order of time."""
    files = (
        DataFile(
            file.path,
            Interval(file.start_ms, file.end_ms),
            file.rows,
            file.bytes,
            file.min_time_ms,
            file.max_time_ms,
            columns,
        )
        for file in written
    )
    return tuple(sorted(files, key=lambda file: (file.min_time_ms, file.path)))


# More partitions than cores, so that few time chunks seldom share one; Spark joins small ones
# again at run time.
_SHUFFLE_PLACES: Final = 32


def write_computed(
    rows: DataFrame, schema: DataSchema, target: WriteTarget, pieces: int
) -> tuple[list[Report], dict[str, int]]:
    """Write the rows; return the reports, and the counts observed on the way (`OBSERVED`)."""
    if pieces > 1:
        rows = chunked(rows, schema.segment_granularity)
        rows = rows.hint("rebalance", _SHUFFLE_PLACES, column(CHUNK_COLUMN))
    else:
        rows = rows.coalesce(1)
    # By position, because PySpark passes names to `mapInArrow` without quoting them.
    rows = rows.select(*(column(n).alias(f"c{i}") for i, n in enumerate(target.columns)))
    written = rows.mapInArrow(limited(functools.partial(write_rows, target)), REPORT_SCHEMA)
    return _done(written)


def spread_computed(rows: DataFrame, work: SpreadWork) -> tuple[list[Report], dict[str, int]]:
    """Write the rows of splits without a shuffle; return as `write_computed`.

    Columns are named by position, because PySpark does not quote names for `mapInArrow`.
    """
    return _done(rows.mapInArrow(limited(functools.partial(spread_rows, work)), REPORT_SCHEMA))


def _done(written: DataFrame) -> tuple[list[Report], dict[str, int]]:
    found = reports(reports_of(written))
    info = written.executionInfo
    for seen in info._observations if info is not None else []:  # noqa: SLF001
        # PySpark has no public access to them that does not cost another round trip.
        if seen.name == OBSERVED:
            return found, {name: int(value) for name, value in seen.pairs.items()}
    return found, {}


logger = logging.getLogger(__name__)
_READ_AGAIN: Final = "the next task reads its events again; check the disk"


@dataclass(frozen=True, slots=True)
class SparkEngineOptions:
    """Sizes that determine the division of a request.

    Attributes:
        split_bytes_min: Minimum size of a read split; a request of less than two of them is one
            piece of work.
        split_bytes_max: Approximate maximum size: a worker holds the rows of its split in memory.
        parallelism: Number of concurrent pieces; 0: this machine's cores.
        compression_level: Level of zstd.
    """

    split_bytes_min: int = 8 << 20
    split_bytes_max: int = 192 << 20
    parallelism: int = 0
    compression_level: int = 1


class SparkEngine:
    """`IndexingEngine` on a Spark session; thread-safe, with several calls at once.

    Args:
        sessions: Provider of Spark sessions; the engine uses a session of its own, or that of
            these sessions if they have `ENGINE_CONF`.
        options: Sizes.
        clock: Limits how often left-out columns are logged.
    """

    def __init__(
        self,
        sessions: SparkSessions,
        options: SparkEngineOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._sessions = sessions.with_conf(pipeline.ENGINE_CONF)
        # Connected at its first use, because rows with case variants are rare.
        self._exact = self._sessions.with_conf(EXACT_CONF)
        self._options = options or SparkEngineOptions()
        self._parallelism = self._options.parallelism or os.cpu_count() or 1
        self._fs = OsFileSystem()
        # Many batches may have the same odd column.
        self._odd_columns = RateLimitedLogs(logger, clock or SystemClock())

    def connect(self) -> None:
        """Open the Spark session now, so that the first request does not wait for it.

        Raises:
            EngineUnavailable: Spark cannot be reached.
        """
        with self._sessions.use() as spark:
            spark.sql("SELECT 1").collect()

    def persist(self, request: PersistRequest) -> PersistResult:
        """Write the rows of the ranges; see `IndexingEngine.persist`.

        Raises:
            EngineUnavailable: Spark was lost; retry with a new folder.
            EngineFailure: The request fails permanently.
        """
        splits = self._splits(request)
        with translate_transform_errors(request.schema):
            if request.schema.dimensions_spec.discovers:
                with self._sessions.use() as spark:
                    request = _with_found(spark, request, splits, self._odd_columns.warning)
            schema = request.schema
            target = self._target(schema, request.output_folder)
            direct = folded_columns(schema)
            if direct is not None:
                with self._sessions.use() as spark:
                    found, filtered = self._write_direct(spark, request, splits, target, direct), 0
            else:
                with self._computing(schema).use() as spark:
                    found, filtered = self._write_computed(spark, request, splits, target)
        files = as_data_files((f for r in found for f in r.files), output_columns(schema))
        bad_files = tuple(list_bad_files(self._fs, request.bad_folder))
        counts = RowCounts(
            processed=sum(r.processed for r in found),
            unparseable=sum(count_records(self._fs, path) for path in bad_files),
            thrown_away_late=sum(r.late for r in found),
            thrown_away_early=sum(r.early for r in found),
            thrown_away_filtered=filtered,
            read_bytes=take_bytes(self._fs, request.output_folder),
        )
        _check(counts, files, request)
        return PersistResult(files, counts, bad_files)

    def merge(self, request: MergeRequest) -> DataFile:
        """Write one file of all rows of the given ones; raises as `persist`."""
        if not request.files:
            raise EngineFailure("no files to merge were given")
        _check_whole(request.files)
        if not request.schema.dimensions_spec.discovers:
            return self._merge(request, [file.path for file in request.files])
        request = replace(request, schema=united(request.schema, request.files))
        columns = output_columns(request.schema)
        odd = tuple(file.path for file in unlike(request.files, columns))
        copies = self._copied(
            AlikeWork(odd, columns, request.interval, f"{request.output_folder}/alike")
        )
        merged = self._merge(request, [copies.get(f.path, f.path) for f in request.files])
        for copy in copies.values():
            Path(copy).unlink(missing_ok=True)
        return merged

    def _copied(self, work: AlikeWork) -> dict[str, str]:
        """Rewrite files with differing columns; return the copies."""
        if not work.paths:
            return {}
        with self._sessions.use() as spark:
            found = _run(spark, functools.partial(write_alike, work), len(work.paths))
        made = {file.path for report in found for file in report.files}
        ordered = sorted(made, key=lambda path: int(Path(path).stem.rpartition("-")[2]))
        return dict(zip(work.paths, ordered, strict=True))

    def _merge(self, request: MergeRequest, paths: list[str]) -> DataFile:
        columns = file_columns(request.schema)
        target = self._target(request.schema, request.output_folder)
        computes = request.schema.rollup and not can_fold(request.schema)
        sessions = self._computing(request.schema) if computes else self._sessions
        with sessions.use() as spark:
            if computes:
                rows = spark.read.schema(ddl(columns)).parquet(*paths).coalesce(1)
                found, _ = write_computed(
                    pipeline.merged(rows, request.schema), request.schema, target, 1
                )
            else:
                again = request.schema.rollup
                fold = fold_of(request.schema, metric_names(request.schema)) if again else None
                work = functools.partial(merge_files, paths, _arrow_schema(columns), target, fold)
                found = _run(spark, work, 1)
        shown = output_columns(request.schema)
        merged = as_data_files((f for r in found for f in r.files), shown)
        expected = sum(file.rows for file in request.files)
        if len(merged) != 1 or (not request.schema.rollup and merged[0].rows != expected):
            raise EngineFailure(
                f"merging {counted(len(paths), 'file')} of {counted(expected, 'row')} made"
                f" {counted(len(merged), 'file')} of {sum(file.rows for file in merged)}: check"
                f" that they are all of {request.interval}"
            )
        return merged[0]

    def divide(self, request: DivideRequest) -> tuple[DataFile, ...]:
        """Write a file for each of the intervals that has rows; raises as `persist`."""
        file = request.file
        _check_whole([file])
        target = self._target(request.schema, request.output_folder)
        work = functools.partial(divide_file, file.path, request.times, target)
        with self._sessions.use() as spark:
            found = _run(spark, work, 1)
        parts = as_data_files((f for r in found for f in r.files), file.columns)
        rows = sum(part.rows for part in parts)
        if rows != file.rows:
            raise EngineFailure(
                f"dividing {file.path} of {counted(file.rows, 'row')} made files of"
                f" {counted(rows, 'row')}: check the intervals, from"
                f" {file.min_time_ms} to {file.max_time_ms} ms?"
            )
        return parts

    def close(self) -> None:
        """End the Spark sessions."""
        self._sessions.close()
        self._exact.close()

    def _computing(self, schema: DataSchema) -> SparkSessions:
        """Return the sessions whose JVM computes rows; for case variants, case-sensitive ones."""
        return self._exact if schema.has_exact_names else self._sessions

    def _splits(self, request: PersistRequest) -> list[Split]:
        try:
            ranges = [sized(self._fs, as_source(r)) for r in request.ranges]
        except NotFound as error:
            raise EngineFailure(f"topic {request.topic!r}: {error}") from error
        except Unavailable as error:
            raise EngineUnavailable(str(error), dependency=error.dependency) from error
        enough = -(-sum(r.size for r in ranges) // self._options.split_bytes_max)
        return cut(ranges, max(self._parallelism, enough), self._options.split_bytes_min)

    def _target(self, schema: DataSchema, folder: str) -> WriteTarget:
        return WriteTarget(
            str(Path(folder).absolute()),
            schema.segment_granularity,
            tuple(name for name, _ in file_columns(schema)),
            file_form(schema, self._options.compression_level),
        )

    def _write_direct(
        self,
        spark: SparkSession,
        request: PersistRequest,
        splits: Sequence[Split],
        target: WriteTarget,
        direct: tuple[tuple[str, str], ...],
    ) -> list[Report]:
        """Let the workers do everything: read, and join if there are several splits."""
        if not splits:
            return []
        reading = ReadWork(
            tuple(splits),
            _parser(request),
            _policy(request),
            TimeLimits(request.min_time_ms, request.max_time_ms),
            target,
            direct,
            fold_of(request.schema),
        )
        read = _run(spark, functools.partial(read_splits, reading), len(splits))
        return self._joined(spark, read, target, reading.fold)

    def _joined(
        self, spark: SparkSession, read: list[Report], target: WriteTarget, fold: RowFold | None
    ) -> list[Report]:
        """Join the runs of splits, if there are any; return all reports."""
        runs = [run for report in read for run in report.runs]
        if not runs:
            return read
        joining = JoinWork(distribute(_chunks(runs), self._parallelism, _rows), target, fold)
        joined = _run(spark, functools.partial(join_runs, joining), len(joining.pieces))
        for path in {run.path for run in runs}:
            Path(path).unlink(missing_ok=True)
        return [*read, *joined]

    def _write_computed(
        self,
        spark: SparkSession,
        request: PersistRequest,
        splits: Sequence[Split],
        target: WriteTarget,
    ) -> tuple[list[Report], int]:
        """Read in workers, compute in the JVM, and write in workers."""
        schema, limits = request.schema, TimeLimits(request.min_time_ms, request.max_time_ms)
        if not splits:
            return [], 0
        groups = groups_of(schema, limits)
        rows = _read(spark, request, splits, groups)
        if is_foldable_when_computed(schema):
            fold = spread = fold_of(schema)
            if groups is None:
                made = of_rows(rows, schema, limits)
            else:
                made, spread = of_groups(rows, schema), fold_of_groups(schema)
            found, seen = spread_computed(made, SpreadWork(target, spread, len(splits)))
            found = self._joined(spark, found, target, fold)
        else:
            kept = pipeline.judged(pipeline.transformed(rows, schema), schema, limits)
            made = pipeline.measured(kept, schema)
            found, seen = write_computed(made, schema, target, len(splits))
        counted = Report(
            processed=seen.get(pipeline.PROCESSED, 0),
            late=seen.get(pipeline.LATE, 0),
            early=seen.get(pipeline.EARLY, 0),
        )
        return [*found, counted], seen.get(pipeline.FILTERED, 0)


def _read(
    spark: SparkSession,
    request: PersistRequest,
    splits: Sequence[Split],
    groups: EqualRowGroups | None,
) -> DataFrame:
    """Return the rows of the messages, or groups of them, read in the workers.

    Uses a function, not a data source: Spark shows a data source's options, maybe secret ones, and
    starts a Python process for its plan each time.
    """
    columns = row_shape(request.schema).spark_columns() if groups is None else groups.columns
    parser, policy = _parser(request), _policy(request)
    work = functools.partial(parse_splits, tuple(splits), parser, policy, groups)
    return numbered(spark, len(splits)).mapInArrow(limited(work), ddl(columns))


def _with_found(
    spark: SparkSession,
    request: PersistRequest,
    splits: Sequence[Split],
    warn: Warn,
) -> PersistRequest:
    """Return the request with the dimensions that its messages have."""
    format_, found = text_format(request.delimited), Found()
    metadata = metadata_columns(request.record_format)
    types_matter = request.schema.dimensions_spec.discovers_types
    if format_.columns and metadata is None and not types_matter:
        found = dict.fromkeys(format_.columns, "string")
    elif splits:
        work = InspectWork(tuple(splits), format_, metadata)
        found = found_in(run_pieces(spark, functools.partial(inspect_splits, work), len(splits)))
    return replace(request, schema=discovered(request.schema, found, lenient=True, warn=warn))


def _parser(request: PersistRequest) -> Callable[[], BatchParser | RecordParser]:
    shape, format_ = row_shape(request.schema), text_format(request.delimited)
    metadata = metadata_columns(request.record_format)
    if metadata is None:
        return functools.partial(format_.parser, shape)
    return functools.partial(RecordRows, shape, format_, metadata)


def _policy(request: PersistRequest) -> BadMessagePolicy:
    return BadMessagePolicy(
        request.bad_folder, topic=request.topic, tally_folder=request.output_folder
    )


def _run(spark: SparkSession, work: Work, pieces: int) -> list[Report]:
    return reports(run_pieces(spark, work, pieces))


def _chunks(runs: Iterable[SortedRun]) -> list[tuple[SortedRun, ...]]:
    """Return the runs of each time chunk."""
    chunks: dict[int, list[SortedRun]] = {}
    for run in runs:
        chunks.setdefault(run.start_ms, []).append(run)
    return [tuple(chunk) for chunk in chunks.values()]


def _rows(chunk: Sequence[SortedRun]) -> int:
    return sum(run.rows for run in chunk)


def _arrow_schema(columns: Sequence[tuple[str, str]]) -> pa.Schema:
    return pa.schema(
        [
            (name, TIME_TYPE if type_ == "timestamp" else FieldType(type_).arrow)
            for name, type_ in columns
        ]
    )


def _check_whole(files: Iterable[DataFile]) -> None:
    """Refuse files that changed since they were written: Spark reads an empty one as no rows."""
    for file in files:
        try:
            size = Path(file.path).stat().st_size
        except FileNotFoundError:
            raise EngineFailure(f"{file.path} is missing: {_READ_AGAIN}") from None
        if size != file.bytes:
            raise EngineFailure(f"{file.path} has {size} bytes, not {file.bytes}: {_READ_AGAIN}")


def _check(counts: RowCounts, files: Sequence[DataFile], request: PersistRequest) -> None:
    """Refuse a result that does not account for every message exactly once.

    Spark may count a retried piece of work twice; the offsets bound what is possible.
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
            f" messages, {counted(rows, 'row')} in files, {counts.processed} processed: try again"
        )
