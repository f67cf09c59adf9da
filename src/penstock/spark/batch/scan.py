"""Rows that only need parsing: workers read, sort and write them, without the JVM.

Two steps, as in `chunk_work`: pieces of input become runs of time chunks, then the runs of each
chunk become final files with a row limit, in the order of the input.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.intervals import Interval
from penstock.spark.batch.final_files import BatchTarget, FinalFile
from penstock.spark.batch.input.input_work import InputWork
from penstock.spark.chunk_files import RunFiles, SortedRun, write_run
from penstock.spark.chunk_work import finished, renamed
from penstock.spark.pieces import numbers, reported
from penstock.spark.rollup import RowFold
from penstock.spark.row_chunks import cut_sorted, lies_inside, times_ms
from penstock.spark.topic.row_shape import TIME_COLUMN

# A worker holds the rows of one run, or of one file.
RUN_BYTES_MAX: Final = 512 << 20
FILE_BYTES_MAX: Final = 1 << 30
# Rows are copied to bring those of a time chunk together if they are in more places.
_SLICES_MAX: Final = 64
_SEARCHED_ROWS: Final = 16_384


@dataclass(frozen=True, slots=True)
class BatchReport:
    """Result of one piece of work; `outside` counts rows of no interval."""

    files: tuple[FinalFile, ...] = ()
    runs: tuple[SortedRun, ...] = ()
    processed: int = 0
    outside: int = 0


@dataclass(frozen=True, slots=True)
class ScanWork:
    """Pieces of input to sort into time chunks.

    `renamed` are (column, field) pairs; an empty field counts 1 for every row. `intervals` are
    disjoint and sorted; none: all rows count.
    """

    reading: InputWork
    target: BatchTarget
    renamed: tuple[tuple[str, str], ...]
    intervals: tuple[Interval, ...]
    rows_max: int
    fold: RowFold | None = None

    def scan(self, number: int) -> BatchReport:
        """Read one piece; write its files if it is small and the only one, otherwise its runs."""
        runs: list[SortedRun] = []
        held: list[pa.RecordBatch] = []
        size = processed = outside = 0
        for rows in self.reading.read(number):
            kept = within(rows, self.intervals)
            outside += rows.num_rows - kept.num_rows
            processed += kept.num_rows
            if kept.num_rows:
                made = renamed(kept, self.renamed)
                held.append(made if self.fold is None else self.fold.held(made))
                size += held[-1].nbytes
            if size > RUN_BYTES_MAX:
                runs += self._write_run(held, f"{number}-{len(runs)}")
                held, size = [], 0
        if len(self.reading.pieces) == 1 and not runs and processed <= self.rows_max:
            whole = finished(self._folded(held), self.fold) if held else None
            files = [] if whole is None else self.target.write(whole, 0)
            return BatchReport(tuple(files), (), processed, outside)
        if held:
            runs += self._write_run(held, f"{number}-{len(runs)}")
        return BatchReport((), tuple(runs), processed, outside)

    def _write_run(self, held: Sequence[pa.RecordBatch], name: str) -> list[SortedRun]:
        whole = self._folded(held).combine_chunks()
        times = times_ms(whole.column(TIME_COLUMN).combine_chunks())
        first = self.target.granularity.bucket(int(times.min()))
        if times.max() < first.end_ms:
            return write_run({first: whole.to_batches()}, Path(self.reading.scratch), name)
        slices = self._slices(whole, times)
        if slices is not None:
            return write_run(slices, Path(self.reading.scratch), name)
        ordered = whole.take(pa.array(np.argsort(times, kind="stable")))
        chunks = {
            chunk: part.combine_chunks().to_batches()
            for chunk, part in cut_sorted(ordered, self.target.granularity)
        }
        return write_run(chunks, Path(self.reading.scratch), name)

    def _slices(
        self, rows: pa.Table, times: npt.NDArray[np.int64]
    ) -> dict[Interval, list[pa.RecordBatch]] | None:
        """Return the rows of each time chunk as slices; None if they are too many to be quick.

        Most files have their rows almost in the order of time.
        """
        found: dict[Interval, list[pa.RecordBatch]] = {}
        at = 0
        for _ in range(_SLICES_MAX):
            chunk = self.target.granularity.bucket(int(times[at]))
            end = _end_of(times, at, chunk)
            found.setdefault(chunk, []).extend(rows.slice(at, end - at).to_batches())
            if end == len(times):
                return dict(sorted(found.items(), key=lambda one: one[0].start_ms))
            at = end
        return None

    def _folded(self, held: Sequence[pa.RecordBatch]) -> pa.Table:
        whole = pa.Table.from_batches(held)
        return whole if self.fold is None else self.fold.folded(whole)


@dataclass(frozen=True, slots=True)
class FilePart:
    """One final file to make: rows [first, first + rows) of the runs of a time chunk."""

    runs: tuple[SortedRun, ...]
    first: int
    rows: int
    bucket: int


def _end_of(times: npt.NDArray[np.int64], at: int, chunk: Interval) -> int:
    """Return the first row after `at` that is not in a time chunk."""
    while at < len(times):
        part = times[at : at + _SEARCHED_ROWS]
        outside = (part < chunk.start_ms) | (part >= chunk.end_ms)
        if outside.any():
            return at + int(outside.argmax())
        at += len(part)
    return at


def within(rows: pa.RecordBatch, intervals: Sequence[Interval]) -> pa.RecordBatch:
    """Return the rows whose time is in one of the intervals, which are disjoint and sorted."""
    if not intervals:
        return rows
    inside = lies_inside(times_ms(rows.column(TIME_COLUMN)), intervals)
    return rows if inside.all() else rows.filter(pa.array(inside))


def parts(runs: Sequence[SortedRun], rows_max: int) -> list[FilePart]:
    """Return the files of the runs: as few as possible for each time chunk, of equal sizes."""
    chunks: dict[int, list[SortedRun]] = {}
    for run in runs:
        chunks.setdefault(run.start_ms, []).append(run)
    sizes = {path: Path(path).stat().st_size for path in {run.path for run in runs}}
    rows_of = dict.fromkeys(sizes, 0)
    for run in runs:
        rows_of[run.path] += run.rows
    found = []
    for _, ours in sorted(chunks.items()):
        total = sum(run.rows for run in ours)
        size = sum(sizes[run.path] * run.rows / rows_of[run.path] for run in ours)
        count = max(-(-total // max(rows_max, 1)), int(size // FILE_BYTES_MAX) + 1)
        for bucket in range(count):
            first, end = total * bucket // count, total * (bucket + 1) // count
            found.append(FilePart(tuple(ours), first, end - first, bucket))
    return found


def scan_pieces(work: ScanWork, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Scan the pieces whose numbers Spark passes in."""
    for number in numbers(batches):
        yield reported(work.scan(number))


def make_files(
    pieces: Sequence[Sequence[FilePart]],
    target: BatchTarget,
    fold: RowFold | None,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Make the files of the pieces whose numbers Spark passes in."""
    for number in numbers(batches):
        files: list[FinalFile] = []
        found = RunFiles()
        for part in pieces[number]:
            rows = found.read(part.runs).slice(part.first, part.rows)
            whole = rows if fold is None else fold.finished(fold.folded(rows))
            files += target.write(whole, part.bucket)
        yield reported(BatchReport(tuple(files)))


def read_run_pieces(
    pieces: Sequence[Sequence[SortedRun]], fold: RowFold | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read the runs of the pieces whose numbers Spark passes in, for the JVM."""
    for number in numbers(batches):
        found = RunFiles()
        for run in pieces[number]:
            yield from finished(found.read([run]), fold).to_batches()


def batch_reports(texts: Iterable[str]) -> list[BatchReport]:
    """Return the reports of a job."""
    found = []
    for text in texts:
        raw = json.loads(text)
        files = tuple(FinalFile(**file) for file in raw["files"])
        runs = tuple(SortedRun(**run) for run in raw["runs"])
        found.append(BatchReport(files, runs, raw["processed"], raw["outside"]))
    return found
