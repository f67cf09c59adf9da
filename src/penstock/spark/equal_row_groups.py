"""Grouping of equal raw rows before they are computed, in Spark's Python workers.

`groups_of` decides whether and how rows may be grouped; `EqualRowGroups` groups them. Neither
uses Spark; both are pure. All of these conditions must hold:

- the schema rolls up, and all its metrics can be folded in Arrow (`columns.can_fold`) from
  fields that are read as the metric's type and that no transform computes;
- every expression is deterministic;
- no transform computes the time, and the dimensions are not discovered from the messages;
- no column name starts with the prefix of group columns (`OWN_PREFIX`).

Rows are grouped by their exact times if an expression or filter reads the time, otherwise by
the rolled-up time. A group keeps bit by bit what transforms, filter and dimensions read, and
adds partial metrics, its number of rows, and whether its rows are late or early, which their
exact times decide. Rows of several groups may be interleaved, so first and last values keep
their row numbers, which decide between equal times.

Invariant: grouping changes nothing in the result except for the last digits of floating-point
sums, whose order of addition differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.intervals import Granularity
from penstock.core.sql.checked_expression import parsed_expression
from penstock.indexing.specs import (
    TIME_COLUMN,
    Aggregator,
    AndFilter,
    DataSchema,
    Filter,
    NotFilter,
    OrFilter,
)
from penstock.indexing.specs.filters import ExpressionFilter
from penstock.indexing.specs.scalars import OWN_PREFIX
from penstock.spark.rollup import FoldedMetric, RowFold, fold_of
from penstock.spark.row_chunks import TimeLimits, times_ms
from penstock.spark.schema_columns import (
    can_fold,
    filter_columns,
    is_picked,
    metric_type,
    row_shape,
)
from penstock.spark.topic.row_shape import FieldType
from penstock.spark.transforms.deterministic import is_deterministic

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
class EqualRowGroups:
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
    fold: RowFold
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


_EXACT: Final = Granularity.parse("NONE")
# A sum of sums of floats is rounded once, at its end.
_SUMMED_AS: Final = {FieldType.FLOAT: FieldType.DOUBLE}


def groups_of(schema: DataSchema, limits: TimeLimits) -> EqualRowGroups | None:
    """Return how raw rows become groups; None where they may not, or need not."""
    if not schema.rollup or schema.dimensions_spec.discovers or not can_fold(schema):
        return None
    if not schema.transforms and schema.filter is None:
        return None
    if not all(map(is_deterministic, _expressions(schema))):
        return None
    computed = {transform.name.lower() for transform in schema.transforms}
    fields = dict(row_shape(schema).fields)
    # No spec computes columns of such names; but messages may have them.
    if TIME_COLUMN in computed or any(name.lower().startswith(OWN_PREFIX) for name in fields):
        return None
    if not all(_is_read(metric, fields) for metric in schema.metrics):
        return None
    if any(str(metric.field_name).lower() in computed for metric in schema.metrics):
        return None
    read = {name.lower() for name in _read(schema)}
    kept = tuple((name, type_) for name, type_ in fields.items() if name.lower() in read)
    granularity = _EXACT if TIME_COLUMN in read else schema.query_granularity
    metrics = [_part(at, metric) for at, metric in enumerate(schema.metrics)]
    fold = RowFold(
        granularity,
        (TIME_COLUMN, *(name for name, _ in kept), MOMENT),
        (FoldedMetric(ROWS, "count", FieldType.LONG.arrow), *metrics),
    )
    parts = tuple(
        (part_name(at), metric.field_name or "", part_type(metric))
        for at, metric in enumerate(schema.metrics)
    )
    return EqualRowGroups(kept, parts, fold, limits)


def part_name(number: int) -> str:
    """Return the column of the partial values of a schema's metric."""
    return f"{OWN_PREFIX}part_{number}"


def part_type(metric: Aggregator) -> FieldType:
    """Return the type of the partial values of a metric."""
    type_ = metric_type(metric)
    return _SUMMED_AS.get(type_, type_) if metric.kind == "sum" else type_


def time_name(number: int) -> str:
    """Return the column of the time, in microseconds, that decided a first or last value."""
    return f"{OWN_PREFIX}time_{number}"


def order_name(number: int) -> str:
    """Return the column of the number of the row that has a first or last value."""
    return f"{OWN_PREFIX}order_{number}"


def fold_of_groups(schema: DataSchema) -> RowFold | None:
    """Return the fold that makes rows of the schema's files from computed groups."""
    fold = fold_of(schema)
    if fold is None:
        return None
    metrics = (
        replace(metric, order=order_name(at)) if metric.is_picked else metric
        for at, metric in enumerate(fold.metrics)
    )
    return replace(fold, metrics=tuple(metrics))


def _part(number: int, metric: Aggregator) -> FoldedMetric:
    characters_max = metric.string_bytes_max if metric.value_type == "string" else None
    time, order = (time_name(number), order_name(number)) if is_picked(metric) else ("", "")
    type_ = part_type(metric).arrow
    return FoldedMetric(part_name(number), metric.kind, type_, characters_max, time, order)


def _is_read(metric: Aggregator, fields: dict[str, FieldType]) -> bool:
    """Return whether a metric is of a field as it is read, and its time that of the row."""
    if metric.time_column not in {None, TIME_COLUMN}:
        return False
    # Fields of another type are cast by Spark.
    return metric.field_name is None or fields.get(metric.field_name) is metric_type(metric)


def _read(schema: DataSchema) -> Iterator[str]:
    """Yield the names of all columns that may distinguish rows."""
    for dimension in schema.dimensions:
        yield dimension.name
    for transform in schema.transforms:
        yield from parsed_expression(transform.sql).columns()
    if schema.filter is not None:
        yield from filter_columns(schema.filter)


def _expressions(schema: DataSchema) -> Iterator[str]:
    for transform in schema.transforms:
        yield transform.sql
    if schema.filter is not None:
        yield from _expressions_of(schema.filter)


def _expressions_of(node: Filter) -> Iterator[str]:
    match node:
        case AndFilter() | OrFilter():
            for inner in node.fields:
                yield from _expressions_of(inner)
        case NotFilter():
            yield from _expressions_of(node.field)
        case ExpressionFilter():
            yield node.sql
