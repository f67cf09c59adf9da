"""One request of the batch engine: from its inputs to its final files and their counts.

Owns how a request is divided into work for Spark, and which steps its rows pass. Arrow in Spark's
Python workers reads input files and writes final ones; computation and shuffles in between run in
the JVM. Does not own cancellation, nor the translation of errors
(`spark.batch.spark_batch_engine`).

| rows | read by | computed by | written by |
|---|---|---|---|
| need only Arrow | workers (`scan`) | workers | workers; the JVM shuffles large time chunks |
| need expressions or sketches | workers (`read_pieces`) | the JVM | workers (`shuffle`) |
| of a query | the JVM | the JVM | workers (`shuffle`) |
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from penstock.core.errors import (
    InvalidRequest,
    counted,
)
from penstock.core.intervals import Interval, condensed
from penstock.indexing.batch.batch_engine import (
    BatchRequest,
    BatchResult,
    EngineProgress,
    ExternalInput,
    ParseError,
    SparkFilesInput,
    SqlInput,
    WorkDone,
    WrittenFile,
    refuse_too_many,
    refuse_unreadable,
)
from penstock.indexing.engine import (
    DataFile,
    EngineFailure,
    EngineLost,
    RowCounts,
)
from penstock.spark import pipeline
from penstock.spark.batch.final_files import BatchTarget, FinalFile, finalize
from penstock.spark.batch.input.columnar import groups_of
from penstock.spark.batch.input.dimension_discovery import discovered, read_names
from penstock.spark.batch.input.documents import may_be_cut
from penstock.spark.batch.input.file_finder import FileFinder, InputFiles
from penstock.spark.batch.input.file_splits import cut
from penstock.spark.batch.input.input_work import (
    InputTally,
    InputWork,
    SplitReport,
    read_pieces,
    reports_of,
)
from penstock.spark.batch.input.segment_selection import selection_of
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.batch.query_rows import (
    QueryRows,
    as_read,
    check_times,
    columns_found,
    unseen,
    with_exact_names,
)
from penstock.spark.batch.scan import (
    BatchReport,
    ScanWork,
    batch_reports,
    make_files,
    parts,
    read_run_pieces,
    scan_pieces,
)
from penstock.spark.batch.shuffle import (
    Buckets,
    Shuffled,
    rows_unshuffled,
    whole_chunks,
    write_shuffled,
)
from penstock.spark.batch.stored_tables import StoredTable, shape_of, stored
from penstock.spark.connect.running_calls import RunningCall
from penstock.spark.connect.spark_sessions import EXACT_CONF, SparkSessions
from penstock.spark.ddl import ddl
from penstock.spark.pieces import Work, distribute, limited, numbered, run_pieces
from penstock.spark.rollup import fold_of
from penstock.spark.row_chunks import TimeLimits
from penstock.spark.schema_columns import (
    as_combined,
    file_columns,
    file_form,
    folded_columns,
    metric_names,
    output_columns,
    row_shape,
)
from penstock.spark.tables import TableSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.connect.shell.progress import ProgressHandler, StageInfo

    from penstock.indexing.specs import DataSchema
    from penstock.indexing.specs.inputs import ExternTable


_logger = logging.getLogger(__name__)


class BatchSessions:
    """The Spark sessions of a batch engine: one for files, one for exact names, one for queries.

    Args:
        sessions: Provider of Spark sessions; the engine uses a session of its own, or that of
            these sessions if they have `ENGINE_CONF`.
        tables: The visible files, for queries; None: queries are refused.
    """

    def __init__(self, sessions: SparkSessions, tables: TableSource | None) -> None:
        self._sessions = sessions.with_conf(pipeline.ENGINE_CONF)
        # Connected at its first use, because rows with case variants are rare.
        self._exact = self._sessions.with_conf(EXACT_CONF)
        self._queries = None if tables is None else QueryRows(sessions, tables)

    @contextlib.contextmanager
    def rows_of_query(
        self, query: SqlInput, externs: Sequence[StoredTable], running: RunningCall
    ) -> Iterator[tuple[SparkSession, DataFrame]]:
        """Provide a query's rows, and their Spark session, for a block.

        Args:
            query: The query.
            externs: Its external tables, already read.
            running: Its cancellable work.

        Raises:
            InvalidRequest: The query is not allowed here.
        """
        if self._queries is None:
            raise InvalidRequest("queries are not supported here: the engine has no datasources")
        with self._queries.opened(query, externs, running) as found:
            yield found

    def reach(self) -> None:
        """Connect to Spark before inputs are fetched, if the request needs Spark.

        Raises:
            EngineUnavailable: Spark cannot be reached.
        """
        self._sessions.reach()

    @contextlib.contextmanager
    def session(self, running: RunningCall, *, exact: bool = False) -> Iterator[SparkSession]:
        """Provide a Spark session for a block that can be cancelled.

        With `exact`, column names are case-sensitive.
        """
        sessions = self._exact if exact else self._sessions
        try:
            with sessions.use() as spark, running.tagged(spark):
                yield spark
        finally:
            running.end_late_work()  # the task's process ends soon afterwards

    def close(self) -> None:
        """End the Spark sessions."""
        self._sessions.close()
        self._exact.close()


@dataclass(slots=True)
class BatchRun:
    """One request in progress.

    Args:
        sessions: Provides Spark.
        options: Sizes and permissions.
        request: The request.
        running: Its cancellable work.
        folder: The output folder.
        scratch: Its scratch folder; `run` creates it if needed, and the caller deletes it.
        progress: Receives the progress.
    """

    sessions: BatchSessions
    options: SparkBatchOptions
    request: BatchRequest
    running: RunningCall
    folder: str
    scratch: Path
    progress: EngineProgress | None

    def run(self) -> BatchResult:
        """Write the files, and return the result.

        Raises:
            PenstockError: As `SparkBatchEngine.write`, which translates the errors.
        """
        intervals = tuple(condensed(i for i in self.request.intervals if not i.is_empty))
        if self.request.intervals and not intervals:
            return BatchResult((), RowCounts(), self.request.schema)
        if isinstance(self.request.input, SqlInput):
            return self._run_query(self.request.input, intervals)
        return self._run_files(intervals)

    def _run_query(self, query: SqlInput, intervals: tuple[Interval, ...]) -> BatchResult:
        externs, bad, errors = self._read_externs(query.externs)
        refuse_too_many(self.request.parse_errors_max, bad, errors)
        with self.sessions.rows_of_query(query, externs, self.running) as (spark, rows):
            schema = self.request.schema
            if schema.dimensions_spec.discovers:
                schema = discovered(schema, columns_found(rows))
            self._check_partitioning(schema)
            apart = with_exact_names(spark, rows) if schema.has_exact_names else rows
            with _reporting_progress(spark, self.progress):
                asked = as_read(apart, row_shape(schema).spark_columns())
                made, counted, buckets = self._shuffle(asked, schema, intervals)
                lost = (counted.get(pipeline.FILTERED, 0), counted.get(pipeline.EARLY, 0))
                if not made and not any(lost):
                    lost = unseen(asked)
            if schema.filter is None:
                check_times(*lost, intervals)
            counts = replace(_counts(counted), unparseable=bad)
            saved = errors[: self.request.parse_errors_saved]
            return self._result(schema, made, counts, saved, buckets)

    def _read_externs(
        self, tables: Sequence[ExternTable]
    ) -> tuple[list[StoredTable], int, list[ParseError]]:
        """Read the external tables of a query; return how many rows are bad, and which."""
        found: list[StoredTable] = []
        bad, errors = 0, list[ParseError]()
        if tables:
            self.sessions.reach()
        for number, given in enumerate(tables, 1):
            # Reports are identified only by their position.
            scratch = self.scratch / f"extern-{number}"
            finder = FileFinder(None, scratch, self.options, self.running.check)
            files = finder.find(ExternalInput(given.input_source, given.input_format))
            shape = shape_of(given)
            work = self._work(files.shaped(shape), scratch)
            with (
                self.sessions.session(self.running) as spark,
                _reporting_progress(spark, self.progress, InputTally(work)),
            ):
                table, reports = stored(spark, work, shape, number)
            found.append(table)
            bad += self._bad_rows(reports)
            errors += _parse_errors(reports)
        return found, bad, errors

    def _run_files(self, intervals: tuple[Interval, ...]) -> BatchResult:
        options, request = self.options, self.request
        assert not isinstance(request.input, SqlInput | SparkFilesInput)
        time = row_shape(request.schema).time
        assert time is not None
        self.sessions.reach()
        finder = FileFinder(time, self.scratch, options, self.running.check)
        found = finder.find(request.input)
        schema = request.schema
        selection = selection_of(request.input)
        if schema.dimensions_spec.discovers:
            with (
                self.sessions.session(self.running) as spark,
                _reporting_progress(spark, self.progress),
            ):
                work = self._work(found)
                names = read_names(functools.partial(run_pieces, spark), work)
            schema = discovered(schema, selection.shown(names))
        self._check_partitioning(schema)
        read_as = as_combined(schema, request.combines)
        exact = read_as.has_exact_names or selection.exact
        wanted = row_shape(read_as, exact=exact)
        work = self._work(found.shaped(selection.shape(wanted, exact=exact)))
        if not work.pieces:
            return BatchResult((), RowCounts(), schema)
        with (
            self.sessions.session(self.running, exact=exact) as spark,
            _reporting_progress(spark, self.progress, InputTally(work)),
        ):
            direct = None if selection else _folded_columns(read_as)
            if direct is not None:
                made, counted, buckets = self._scan(spark, work, read_as, direct, intervals)
            else:
                rows = numbered(spark, len(work.pieces)).mapInArrow(
                    limited(functools.partial(read_pieces, work)),
                    ddl(work.sources[0].shape.spark_columns()),
                )
                selected = selection.select(rows, wanted)
                made, counted, buckets = self._shuffle(selected, read_as, intervals, selection.mark)
        try:
            reports = reports_of(self.scratch, len(work.pieces))
        except FileNotFoundError:
            raise EngineFailure(
                "Spark did not read all of the input, as no row could pass: look for a transform"
                " of __time that is null for every row"
            ) from None
        errors = _parse_errors(reports)
        bad = self._bad_rows(reports)
        refuse_too_many(request.parse_errors_max, bad, errors)
        read = sum(report.rows for report in reports)
        lost = sum(counted.get(kind, 0) for kind in (pipeline.EARLY, pipeline.FILTERED))
        counts = RowCounts(
            processed=read - lost,
            unparseable=bad,
            thrown_away_early=counted.get(pipeline.EARLY, 0),
            thrown_away_filtered=counted.get(pipeline.FILTERED, 0),
        )
        return self._result(schema, made, counts, errors[: request.parse_errors_saved], buckets)

    def _bad_rows(self, reports: Sequence[SplitReport]) -> int:
        """Return how many rows of an input cannot be parsed, if it can be read at all."""
        bad = sum(report.bad for report in reports)
        parsed = sum(report.rows for report in reports)
        refuse_unreadable(self.request.parse_errors_max, bad, parsed, _parse_errors(reports))
        return bad

    def _work(self, found: InputFiles, scratch: Path | None = None) -> InputWork:
        options = self.options
        pieces = cut(
            found.files,
            found.sources,
            parallelism=options.parallelism or os.cpu_count() or 1,
            least=options.split_bytes_min,
            most=options.split_bytes_max,
            groups_of=groups_of,
            may_be_cut=may_be_cut,
        )
        return InputWork(
            pieces,
            found.sources,
            str(scratch or self.scratch),
            max(self.request.parse_errors_saved, 1),
            self.request.parse_errors_max,
            options.line_bytes_max,
        )

    def _scan(
        self,
        spark: SparkSession,
        work: InputWork,
        schema: DataSchema,
        direct: tuple[tuple[str, str], ...],
        intervals: tuple[Interval, ...],
    ) -> tuple[Sequence[FinalFile], Mapping[str, int], Buckets]:
        """Let the workers do all work, except for the shuffle of a large time chunk."""
        target = self._target(schema)
        fold = fold_of(schema, self.request.combines)
        rows_max = rows_unshuffled(self.request.partitioning)
        scan = ScanWork(work, target, direct, intervals, rows_max, fold)
        read = _reports(spark, functools.partial(scan_pieces, scan), len(work.pieces))
        runs = [run for report in read for run in report.runs]
        files = [file for report in read for file in report.files]
        counted = {pipeline.EARLY: sum(report.outside for report in read)}
        buckets = whole_chunks(self.request.partitioning)
        if not runs:
            return files, counted, buckets
        cores = self.options.parallelism or os.cpu_count() or 1
        found = parts(runs, rows_max) if rows_max else []
        # With dynamic partitioning a file may have any rows of its chunk, unless equal rows must be
        # combined.
        cuttable = self.request.partitioning.kind == "dynamic" and not schema.rollup
        if found and (cuttable or not any(part.bucket for part in found)):
            pieces = distribute(found, cores, lambda part: part.rows)
            making = functools.partial(make_files, pieces, target, fold)
            made = _reports(spark, making, len(pieces))
            return [file for report in made for file in report.files], counted, buckets
        by_core = tuple(tuple(runs[at::cores]) for at in range(min(cores, len(runs))))
        rows = numbered(spark, len(by_core)).mapInArrow(
            limited(functools.partial(read_run_pieces, by_core, fold)),
            ddl(output_columns(schema)),
        )
        names = metric_names(schema)
        done = self._spread(rows, as_combined(schema, names), names)
        return done.files, counted, done.buckets

    def _shuffle(
        self,
        rows: DataFrame,
        schema: DataSchema,
        intervals: tuple[Interval, ...],
        mark: str | None = None,
    ) -> tuple[tuple[FinalFile, ...], Mapping[str, int], Buckets]:
        """Let the JVM compute and shuffle the rows between reading and writing."""
        made = pipeline.transformed(rows, schema, () if mark is None else (mark,))
        kept = pipeline.judged(made, schema, TimeLimits(), intervals, mark=mark)
        done = self._spread(kept, schema, self.request.combines)
        return done.files, done.counted, done.buckets

    def _spread(self, rows: DataFrame, schema: DataSchema, combines: frozenset[str]) -> Shuffled:
        made = pipeline.measured(rows, schema, combines)
        partitioning = self.request.partitioning
        names = partitioning.dimensions or tuple(d.name for d in schema.dimensions)
        return write_shuffled(made, self._target(schema), partitioning, names)

    def _target(self, schema: DataSchema) -> BatchTarget:
        return BatchTarget(
            self.folder,
            schema.segment_granularity,
            tuple(name for name, _ in file_columns(schema)),
            file_form(schema, self.options.compression_level),
        )

    def _check_partitioning(self, schema: DataSchema) -> None:
        known = [name for name, _ in output_columns(schema)]
        for name in self.request.partitioning.dimensions:
            if name not in known:
                raise EngineFailure(
                    f"the rows cannot be partitioned by {name!r}: no such column; use one of"
                    f" {', '.join(known)}"
                )

    def _result(
        self,
        schema: DataSchema,
        made: Sequence[FinalFile],
        counts: RowCounts,
        errors: Sequence[ParseError],
        buckets: Buckets | None,
    ) -> BatchResult:
        self.running.check()
        rows = sum(file.rows for file in made)
        fits = rows <= counts.processed if schema.rollup else rows == counts.processed
        if counts.processed < 0 or not fits:
            raise EngineLost(
                f"the counts of task {self.request.task_id} do not add up:"
                f" {counted(rows, 'row')} in files, {counts.processed} processed: try again"
            )
        finalize(self.folder, [file.name for file in made])
        columns = output_columns(schema)
        files = [
            WrittenFile(
                DataFile(
                    f"{self.request.output_folder.rstrip('/')}/{file.name}",
                    Interval(file.start_ms, file.end_ms),
                    file.rows,
                    file.bytes,
                    file.min_time_ms,
                    file.max_time_ms,
                    columns,
                ),
                buckets.of(file.chunk, file.bucket) if buckets is not None else None,
            )
            for file in sorted(made, key=lambda f: (f.start_ms, f.bucket, f.min_time_ms, f.name))
        ]
        return BatchResult(tuple(files), counts, schema, tuple(errors))


def _folded_columns(schema: DataSchema) -> tuple[tuple[str, str], ...] | None:
    # The JVM shuffles a time chunk of several segments. It has no time of a first value except the
    # row's, which is truncated by then.
    if schema.rollup and any(metric.kind in {"first", "last"} for metric in schema.metrics):
        return None
    return folded_columns(schema)


def _reports(spark: SparkSession, work: Work, pieces: int) -> list[BatchReport]:
    return batch_reports(run_pieces(spark, work, pieces))


def _counts(counted: Mapping[str, int]) -> RowCounts:
    return RowCounts(
        processed=counted.get(pipeline.PROCESSED, 0),
        thrown_away_early=counted.get(pipeline.EARLY, 0),
        thrown_away_filtered=counted.get(pipeline.FILTERED, 0),
    )


def _parse_errors(reports: Iterable[SplitReport]) -> list[ParseError]:
    """Return the bad rows with their positions; line numbers continue from split to split."""
    found: list[ParseError] = []
    before: dict[str, int] = {}
    for report in reports:
        base = before.get(report.path, 0) if report.is_text else 0
        for bad in report.samples:
            number = base + bad.number + 1
            place = f"{report.shown}:{number}" if report.is_text else f"{report.shown} row {number}"
            found.append(ParseError(place, bad.row, bad.reason))
        before[report.path] = base + report.lines
    return found


class _StageSums:
    """Sums up the pieces of work of all stages, which Spark reports repeatedly.

    Args:
        progress: Receives the sums.
        tally: Reports of the pieces of the input; None: the rows of a query.
    """

    def __init__(self, progress: EngineProgress, tally: InputTally | None) -> None:
        self._progress = progress
        self._tally = tally
        self._thread = threading.get_ident()
        self._stages: dict[int, tuple[int, int]] = {}

    def __call__(
        self,
        stages: Iterable[StageInfo] | None,
        inflight_tasks: int,
        operation_id: str | None,
        done: bool,
    ) -> None:
        """Handle a report of Spark, which arrives in the thread of the query."""
        del inflight_tasks, operation_id, done
        if threading.get_ident() != self._thread:
            return
        for stage in stages or ():
            self._stages[stage.stage_id] = (stage.num_completed_tasks, stage.num_tasks)
        finished = sum(completed for completed, _ in self._stages.values())
        total = sum(total for _, total in self._stages.values())
        tally = self._tally
        if tally is None:
            self._progress(WorkDone(finished, total))
            return
        try:
            tally.update()
        except OSError as error:  # the reports are read again at the end, where an error counts
            _logger.debug("the progress of the input is not known now: %s", error)
        self._progress(WorkDone(finished, total, tally.rows, tally.files, tally.files_total))


@contextlib.contextmanager
def _reporting_progress(
    spark: SparkSession, progress: EngineProgress | None, tally: InputTally | None = None
) -> Iterator[None]:
    """Report the progress of this thread's jobs while the block runs.

    Only Spark Connect reports progress; other Spark sessions do not.
    """
    register = getattr(spark, "registerProgressHandler", None)
    if progress is None or register is None or not hasattr(spark, "client"):
        yield
        return
    # Spark accepts any callable, although its type hint requires a base class.
    handler = cast("ProgressHandler", _StageSums(progress, tally))
    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)
