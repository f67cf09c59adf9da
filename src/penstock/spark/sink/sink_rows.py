"""From the rows of a partition of Spark to segment files, in one of Spark's Python workers.

Owns the conversion of Spark's batches to the columns of a schema, roll-up within a partition, and
the memory that rows take until they are written. Does not own where files go (`sink_files`), nor
the schema (`write_plan`). Everything here is sent to the workers.

Invariant: the file of a time chunk is what a task would write of the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import InvalidRequest, counted
from penstock.core.intervals import END_OF_TIME_MS, START_OF_TIME_MS, Interval
from penstock.spark.batch.final_files import BatchTarget, FinalFile
from penstock.spark.chunk_work import renamed
from penstock.spark.rollup import RowFold
from penstock.spark.row_chunks import lies_inside
from penstock.spark.topic.row_shape import TIME_COLUMN, TIME_TYPE, FieldType

HELD_BYTES_MAX: Final = 128 << 20
"""Rows of a partition that a worker keeps before it writes them; sorting takes three times that."""
HELD_ROWS_MAX: Final = 5_000_000
"""Rows of a file at most, as the default of batch tasks."""


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """Rows of a partition: those in its files, before roll-up, and those without a usable time."""

    rows: int = 0
    unparseable: int = 0


@dataclass(frozen=True, slots=True)
class SinkRows:
    """How rows become files.

    Attributes:
        fields: The columns to read, and the type of each.
        columns: (column of the files, column of the rows) pairs; an empty one counts 1.
        fold: The fold to the rows of files; None: they have that form already.
        target: Folder, form and columns of files.
        intervals: Rows outside of these intervals are refused; empty: there are none.
        drops_without_time: Whether rows without a usable time are left out, and not refused.
    """

    fields: tuple[tuple[str, FieldType], ...]
    columns: tuple[tuple[str, str], ...]
    fold: RowFold | None
    target: BatchTarget
    intervals: tuple[Interval, ...] = ()
    drops_without_time: bool = False

    def write(
        self, batches: Iterable[pa.RecordBatch], done: Callable[[Sequence[FinalFile]], None]
    ) -> PartitionCounts:
        """Write the rows of a partition.

        Args:
            batches: Its rows.
            done: Gets the files whenever some are complete.

        Raises:
            InvalidRequest: A row has no usable time, or one outside of the intervals.
            Unavailable: A file cannot be written.
        """
        held = _Held(self, done)
        rows = unparseable = 0
        for batch in batches:
            kept = self._timed(batch)
            unparseable += batch.num_rows - kept.num_rows
            rows += kept.num_rows
            if kept.num_rows:
                held.add(renamed(kept, self.columns))
        held.flush()
        return PartitionCounts(rows, unparseable)

    def _timed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with a usable time, in the types of the fields."""
        micros = batch.column(TIME_COLUMN).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        absent: npt.NDArray[np.bool_] = micros.is_null().to_numpy(zero_copy_only=False)
        values: npt.NDArray[np.int64] = micros.fill_null(0).to_numpy(zero_copy_only=False)
        ms = np.floor_divide(values, 1000)
        usable = ~absent & (ms >= START_OF_TIME_MS) & (ms < END_OF_TIME_MS)
        if not usable.all():
            if not self.drops_without_time:
                raise InvalidRequest(_without_time(batch, int(np.argmin(usable)), usable))
            mask = pa.array(usable)
            batch, ms = batch.filter(mask), ms[usable]
        if self.intervals:
            self._check_inside(ms)
        times = pa.array(ms * 1000).cast(TIME_TYPE)
        columns = [times, *(_typed(batch.column(name), type_) for name, type_ in self.fields)]
        names = [TIME_COLUMN, *(name for name, _ in self.fields)]
        return pa.RecordBatch.from_arrays(columns, names=names)

    def _check_inside(self, ms: npt.NDArray[np.int64]) -> None:
        outside = int(np.count_nonzero(~lies_inside(ms, self.intervals)))
        if outside:
            raise InvalidRequest(
                f"Spark writes {counted(outside, 'row')} outside of the intervals"
                f" {', '.join(map(str, self.intervals))}: widen option overwrite, or filter them"
            )


@dataclass(slots=True)
class _Held:
    """Rows of a partition that are not in files yet."""

    sink: SinkRows
    done: Callable[[Sequence[FinalFile]], None]
    batches: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0
    rows: int = 0

    def add(self, rows: pa.RecordBatch) -> None:
        fold = self.sink.fold
        rows = rows if fold is None else fold.held(rows)
        self.batches.append(rows)
        self.bytes += rows.nbytes
        self.rows += rows.num_rows
        if self.bytes >= HELD_BYTES_MAX or self.rows >= HELD_ROWS_MAX:
            self.flush()

    def flush(self) -> None:
        """Write the files of all held rows."""
        if not self.batches:
            return
        table, fold = pa.Table.from_batches(self.batches), self.sink.fold
        self.batches, self.bytes, self.rows = [], 0, 0
        if fold is not None:
            table = fold.finished(fold.folded(table))
        target = self.sink.target
        self.done(target.write(table.select(target.columns).combine_chunks(), 0))


def _typed(values: pa.Array, type_: FieldType) -> pa.Array:
    """Return values of Spark in the type of a field, which `write_plan` has checked."""
    return values if values.type == type_.arrow else pc.cast(values, type_.arrow, safe=False)


def _without_time(batch: pa.RecordBatch, at: int, usable: npt.NDArray[np.bool_]) -> str:
    count = int(np.count_nonzero(~usable))
    value = batch.column(TIME_COLUMN)[at]
    what = "null" if not value.is_valid else "outside of the times that segments may have"
    return (
        f"{counted(count, 'row')} of a batch of Spark cannot be stored, because {TIME_COLUMN} is"
        f" {what}: filter them, or allow some with option maxParseExceptions"
    )
