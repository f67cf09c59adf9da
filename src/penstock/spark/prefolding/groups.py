"""Combine identical raw rows into groups, in Spark's Python workers. Pure: no Spark.

Owns the columns of such groups, and how rows are combined. Values that transforms, filter and
dimensions read stay as they were read, bit by bit. Groups also have partial metrics, the number of
their rows, and whether their rows are late or early, which depends on the rows' exact times. Rows
of several groups may alternate, so first and last values have row numbers, which decide between
equal times.

Invariant: whether and which rows were combined does not change the result, except for the last
digits of sums of floats, which are added in another order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.indexing.specs.scalars import OWN_PREFIX
from penstock.spark.chunks import TimeLimits, times_ms
from penstock.spark.rollup import Fold
from penstock.spark.topic.row_shape import TIME_COLUMN, FieldType

ROWS: Final = f"{OWN_PREFIX}rows"
# Mark of rows that are neither late nor early: null.
MOMENT: Final = f"{OWN_PREFIX}moment"
LATE: Final = 1
EARLY: Final = 2
# If more than this part of the rows remains, combining costs about as much as it saves: 0.1 to
# 0.3 µs a row, compared with 1 to 2 µs for a row's way through the JVM.
_WORTH: Final = 0.75
_WAITING_MAX_ROWS: Final = 400_000
_BITS: Final = {pa.float64(): pa.int64(), pa.float32(): pa.int32()}


@dataclass(frozen=True, slots=True)
class Groups:
    """How raw rows are combined into groups.

    Attributes:
        fields: (name, type) of the columns that stay unchanged, without the time.
        parts: (name, field, type) of the partial metrics; an empty field counts 1 for every row.
        fold: How they are combined; its columns are the time, fields, `MOMENT`, `ROWS`, the parts,
            and for some parts the decisive times and the row numbers.
        limits: Limits of late and early rows.
    """

    fields: tuple[tuple[str, FieldType], ...]
    parts: tuple[tuple[str, str, FieldType], ...]
    fold: Fold
    limits: TimeLimits

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Return the (name, Spark SQL type) of the columns of groups."""
        long = str(FieldType.LONG)
        picked = [metric for metric in self.fold.metrics if metric.is_picked]
        return (
            (TIME_COLUMN, "timestamp"),
            *((name, str(type_)) for name, type_ in self.fields),
            (MOMENT, "bigint"),
            (ROWS, long),
            *((name, str(type_)) for name, _, type_ in self.parts),
            *((metric.time, long) for metric in picked),
            *((metric.order, long) for metric in picked),
        )

    def gathered(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the groups of batches; rows of one key may be in several groups.

        The result of the first batch decides whether grouping pays off; if not, each row is one.
        """
        waiting: list[pa.Table] = []
        is_worth: bool | None = None
        number = 0
        for batch in batches:
            rows = pa.Table.from_batches([self._held(batch, number)])
            number += batch.num_rows
            if is_worth is not False:
                made = self._folded(rows)
                if is_worth is None:
                    is_worth = made.num_rows <= rows.num_rows * _WORTH
                rows = made
            if not is_worth:
                yield from self._finished(rows)
                continue
            waiting.append(rows)
            if sum(table.num_rows for table in waiting) > _WAITING_MAX_ROWS:
                rows = self._folded(pa.concat_tables(waiting))
                waiting = [rows]
                if rows.num_rows > _WAITING_MAX_ROWS * _WORTH:
                    yield from self._finished(rows)
                    waiting = []
        if waiting:
            whole = pa.concat_tables(waiting)
            yield from self._finished(self._folded(whole) if len(waiting) > 1 else whole)

    def _held(self, rows: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """Return rows in the form in which they are folded; floats of fields as their bits.

        They are numbered from `first` on.
        """
        times = rows.column(TIME_COLUMN)
        columns = {TIME_COLUMN: times}
        for name, _ in self.fields:
            values = rows.column(name)
            # An expression may distinguish zeros of both signs.
            bits = _BITS.get(values.type)
            columns[name] = values if bits is None else values.view(bits)
        columns[MOMENT] = _moments(times_ms(times), self.limits)
        ones = pa.array(np.ones(rows.num_rows, np.int64))
        columns[ROWS] = ones
        for name, field, _ in self.parts:
            columns[name] = rows.column(field) if field else ones
        numbers = pa.array(np.arange(first, first + rows.num_rows))
        columns |= {metric.order: numbers for metric in self.fold.metrics if metric.order}
        found = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        return self.fold.held(found)

    def _folded(self, rows: pa.Table) -> pa.Table:
        """Return one row for each of the keys; keys that are always null cost nothing."""
        empty = [n for n in self.fold.keys if rows.column(n).null_count == rows.num_rows]
        if not empty:
            return self.fold.folded(rows)
        keys = tuple(name for name in self.fold.keys if name not in empty)
        made = replace(self.fold, keys=keys).folded(rows.drop_columns(empty))
        columns = {name: made.column(name) for name in made.column_names}
        columns |= {n: pa.nulls(made.num_rows, rows.column(n).type) for n in empty}
        return pa.table([columns[name] for name in rows.column_names], schema=rows.schema)

    def _finished(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield folded rows in the form in which they are sent."""
        made = self.fold.finished(rows)
        types = dict(self.fields)
        columns = []
        for name, _ in self.columns:
            column = made.column(name)
            if name in types and types[name].arrow in _BITS:
                column = column.combine_chunks().view(types[name].arrow)
            columns.append(column)
        names = [name for name, _ in self.columns]
        yield from pa.table(columns, names=names).combine_chunks().to_batches()


def _moments(times: npt.NDArray[np.int64], limits: TimeLimits) -> pa.Array:
    """Return `LATE`, `EARLY` or null for each of the times."""
    found = np.zeros(len(times), np.int64)
    if limits.max_time_ms is not None:
        found[times >= limits.max_time_ms] = EARLY
    if limits.min_time_ms is not None:
        # After the others: a time that is both, because the limits cross, counts as late.
        found[times < limits.min_time_ms] = LATE
    return pa.array(found, mask=found == 0)
