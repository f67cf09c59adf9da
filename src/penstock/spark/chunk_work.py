"""Work of Spark's Python workers for the indexing engine: one function for each kind.

Owns the work itself and its report; Spark only distributes it, retries it and returns the reports.
Each function takes Spark's batches and yields one row, `report`: JSON that `reports` parses. Work
is named by its number within the request, and so are its files: a repeated attempt writes the same
files again, and only the reports of successful attempts are returned.

    read_splits    messages → parsed rows → files of time chunks, or a run if there are more splits
    parse_splits   messages → parsed rows, or groups of them
    spread_rows    rows that the JVM computed → files or a run of them
    join_runs      the runs of some time chunks → their files
    write_rows     rows that the JVM computed and sorted by chunk → files of time chunks
    merge_files    files of one time chunk → one file
    divide_file    a file → one for each of some times
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.core.errors import CorruptData
from penstock.core.intervals import Granularity, Interval
from penstock.spark.chunk_files import (
    FileForm,
    RunFiles,
    SortedRun,
    WrittenParquet,
    write_parquet,
    write_run,
)
from penstock.spark.equal_row_groups import EqualRowGroups
from penstock.spark.pieces import numbers, reported
from penstock.spark.rollup import RowFold
from penstock.spark.row_chunks import (
    TimeLimits,
    by_chunk,
    cut_in_order,
    keep_within,
    times_ms,
)
from penstock.spark.topic.offset_splits import Split
from penstock.spark.topic.parse import BatchParser
from penstock.spark.topic.row_shape import TIME_COLUMN, TIME_TYPE
from penstock.spark.topic.split_reader import BadMessagePolicy, read_parsed, translate_split_errors
from penstock.spark.topic.whole_records import RecordParser
from penstock.storage.disk import OsFileSystem


@dataclass(frozen=True, slots=True)
class Report:
    """Result of one piece of work."""

    files: tuple[WrittenParquet, ...] = ()
    runs: tuple[SortedRun, ...] = ()
    processed: int = 0
    late: int = 0
    early: int = 0


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """Location and form of files, and the columns to keep."""

    folder: str
    granularity: Granularity
    columns: tuple[str, ...]
    form: FileForm

    def write(self, rows: pa.Table, number: int) -> list[WrittenParquet]:
        """Sort the rows and write the file of each time chunk."""
        folder = Path(self.folder)
        return [
            write_parquet(part, folder, chunk, number, self.form)
            for chunk, part in cut_in_order(rows, self.form.sort_keys, self.granularity)
        ]


@dataclass(frozen=True, slots=True)
class ReadWork:
    """Splits to read, one for each piece of work, each with its own parser.

    `renamed` are (column, field) pairs; an empty field counts 1 for every row. With a fold the rows
    of a split are rolled up before they are written.
    """

    splits: tuple[Split, ...]
    make_parser: Callable[[], BatchParser | RecordParser]
    policy: BadMessagePolicy
    limits: TimeLimits
    target: WriteTarget
    renamed: tuple[tuple[str, str], ...]
    fold: RowFold | None = None

    def read(self, number: int) -> Report:
        """Read one split and write its rows."""
        with translate_split_errors(self.splits[number], self.policy.topic):
            return self._read(number)

    def _read(self, number: int) -> Report:
        gathered = _Gathered(self.target, self.fold)
        processed = late = early = 0
        split = self.splits[number]
        for rows in read_parsed(OsFileSystem(), split, self.make_parser(), self.policy):
            kept = keep_within(rows, self.limits)
            late, early = late + kept.late, early + kept.early
            processed += kept.rows.num_rows
            gathered.add(renamed(kept.rows, self.renamed))
        report = gathered.written(number, is_alone=len(self.splits) == 1)
        return replace(report, processed=processed, late=late, early=early)


@dataclass(frozen=True, slots=True)
class SpreadWork:
    """Rows of splits that the JVM computed; each split is one of Spark's partitions.

    They have the target's columns in its order, then those of the fold's orders, under arbitrary
    names; missing order columns are created by the fold, or not used. With a fold the rows are
    rolled up before they are written.
    """

    target: WriteTarget
    fold: RowFold | None
    splits: int

    def spread(self, number: int, batches: Iterable[pa.RecordBatch]) -> Report:
        """Write the rows of one split."""
        gathered = _Gathered(self.target, self.fold)
        metrics = () if self.fold is None else self.fold.metrics
        names = [*self.target.columns, *(metric.order for metric in metrics if metric.order)]
        for rows in batches:
            if rows.num_rows:
                columns = [rows.column(0).cast(TIME_TYPE), *rows.columns[1:]]
                named = names[: rows.num_columns]
                gathered.add(pa.RecordBatch.from_arrays(columns, names=named))
        return gathered.written(number, is_alone=self.splits == 1)


@dataclass(slots=True)
class _Gathered:
    """The rows of a split that will be written to files."""

    target: WriteTarget
    fold: RowFold | None
    held: list[pa.RecordBatch] = field(default_factory=list)
    chunks: dict[Interval, list[pa.RecordBatch]] = field(default_factory=dict)

    def add(self, rows: pa.RecordBatch) -> None:
        if self.fold is not None:
            self.held.append(self.fold.held(rows))
        else:
            self._spread(rows)

    def written(self, number: int, *, is_alone: bool) -> Report:
        """Write files if it is the only split, otherwise a run; return the report."""
        if self.fold is not None and self.held:
            # Together, so that only the remaining rows are divided by time chunk.
            made = self.fold.folded(pa.Table.from_batches(self.held))
            # The deciding order within a split has no meaning across splits.
            for rows in made.select(self.target.columns).combine_chunks().to_batches():
                self._spread(rows)
        if not is_alone:
            return Report(runs=tuple(write_run(self.chunks, Path(self.target.folder), number)))
        files: list[WrittenParquet] = []
        for batches in self.chunks.values():
            whole = pa.Table.from_batches(batches)
            files += self.target.write(finished(whole, self.fold), number)
        return Report(tuple(files))

    def _spread(self, rows: pa.RecordBatch) -> None:
        for chunk, part in by_chunk(rows, self.target.granularity):
            self.chunks.setdefault(chunk, []).append(part)


@dataclass(frozen=True, slots=True)
class JoinWork:
    """Time chunks to join from runs: for each piece of work, chunks with their runs.

    With a fold, the rows of each run are folded, and then those of all runs of a chunk.
    """

    pieces: tuple[tuple[tuple[SortedRun, ...], ...], ...]
    target: WriteTarget
    fold: RowFold | None = None

    def join(self, number: int) -> Report:
        """Write the files of one piece's chunks."""
        files: list[WrittenParquet] = []
        found = RunFiles()
        for runs in self.pieces[number]:
            rows = found.read(runs)
            if self.fold is not None:
                rows = self.fold.folded(rows)
            files += self.target.write(finished(rows, self.fold), 0)
        return Report(tuple(files))


def renamed(rows: pa.RecordBatch, columns: Sequence[tuple[str, str]]) -> pa.RecordBatch:
    """Return the columns of (column, field) pairs; an empty field counts 1 for every row."""
    found = [
        rows.column(source) if source else pa.array(np.ones(rows.num_rows, np.int64))
        for _, source in columns
    ]
    return pa.RecordBatch.from_arrays(found, names=[name for name, _ in columns])


def finished(rows: pa.Table, fold: RowFold | None) -> pa.Table:
    """Return rows, folded if there is a fold, with the columns of files."""
    return rows if fold is None else fold.finished(rows)


def read_splits(work: ReadWork, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the splits whose numbers Spark passes in."""
    for number in numbers(batches):
        yield reported(work.read(number))


def parse_splits(
    splits: Sequence[Split],
    make_parser: Callable[[], BatchParser | RecordParser],
    policy: BadMessagePolicy,
    groups: EqualRowGroups | None,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the splits whose numbers Spark passes in, or their groups."""
    for number in numbers(batches):
        with translate_split_errors(splits[number], policy.topic):
            rows = read_parsed(OsFileSystem(), splits[number], make_parser(), policy)
            yield from rows if groups is None else groups.gathered(rows)


def spread_rows(work: SpreadWork, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of one of Spark's partitions, which is a split."""
    yield reported(work.spread(_spark_partition(), batches))


def join_runs(work: JoinWork, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do the pieces whose numbers Spark passes in."""
    for number in numbers(batches):
        yield reported(work.join(number))


def write_rows(target: WriteTarget, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of one of Spark's partitions, which names the files.

    Columns have the order of the target's, under arbitrary names.
    """
    rows = [batch for batch in batches if batch.num_rows]
    if rows:
        number = _spark_partition()
        table = pa.Table.from_batches(rows).rename_columns(list(target.columns))
        time = table.column(TIME_COLUMN).cast(TIME_TYPE)
        table = table.set_column(0, TIME_COLUMN, time)
        yield reported(Report(tuple(target.write(table, number))))


def _spark_partition() -> int:
    # Imported here: only Spark's workers have a task; a Spark Connect session does not.
    from pyspark import TaskContext  # noqa: PLC0415

    context = TaskContext.get()
    # The number names files: two tasks with the same number would overwrite each other's.
    assert context is not None, "only a Spark worker writes rows of a Spark partition"
    return context.partitionId()


def merge_files(
    paths: Sequence[str],
    schema: pa.Schema,
    target: WriteTarget,
    fold: RowFold | None,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Write the rows of all files as one, rolled up again if there is a fold."""
    for _ in numbers(batches):
        rows = pa.concat_tables([_conformed(_read(path), schema) for path in paths])
        if fold is not None and rows.num_rows:
            held = [fold.held(batch) for batch in rows.to_batches()]
            rows = fold.finished(fold.folded(pa.Table.from_batches(held)))
        yield reported(Report(tuple(target.write(rows, 0))))


def divide_file(
    path: str,
    times: Sequence[Interval],
    target: WriteTarget,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Write a file for each of the sorted intervals that has rows."""
    for _ in numbers(batches):
        rows = _read(path).combine_chunks()
        at = times_ms(rows.column(TIME_COLUMN).combine_chunks())
        files = []
        form = replace(target.form, sort_keys=())
        for number, part in enumerate(times):
            inside = (at >= part.start_ms) & (at < part.end_ms)
            if inside.any():
                # In their order, which may differ from that of time.
                piece, folder = rows.filter(pa.array(inside)), Path(target.folder)
                files.append(write_parquet(piece, folder, part, number, form))
        yield reported(Report(tuple(files)))


def _read(path: str) -> pa.Table:
    # Imported here: see `chunk_files.write_table`.
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        return pq.read_table(path, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        reason = f"{str(error).strip()}: the next task reads its events again"
        raise CorruptData(path, None, reason) from None


def reports(texts: Iterable[str]) -> list[Report]:
    """Return the reports of a job."""
    found = []
    for text in texts:
        raw = json.loads(text)
        found.append(
            Report(
                tuple(WrittenParquet(**file) for file in raw["files"]),
                tuple(SortedRun(**run) for run in raw["runs"]),
                raw["processed"],
                raw["late"],
                raw["early"],
            )
        )
    return found


def _conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the columns of the schema; missing ones are null."""
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
