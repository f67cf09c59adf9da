"""Roll-up in Arrow: metrics of rows with equal times and dimensions. Pure.

Owns which metrics are folded here and how; the JVM computes the others (`pipeline`). Rows are
folded in a special form, in three steps:

    held       from fields: truncated times, and values that can be folded repeatedly
    folded     from held rows: one row for each key, with the same columns
    finished   from folded rows: the columns of the files

In that form, counts are columns of ones from the start; sums of floats are doubles, rounded once at
the end; minimum and maximum of doubles are whole numbers of the same order. The time that selects a
first or last value is in a separate column, even in files (`columns.kept_time`).

Invariant: the result equals that of Spark's aggregation, however rows are divided into parts that
are folded first. If Spark's result depends on the order in which rows arrive, here the order of the
rows decides: of equal times, the first row has the first value and the last row the last one, and
-0.0 is less than 0.0.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.intervals import Granularity
from penstock.indexing.specs import TIME_COLUMN, Aggregator, DataSchema
from penstock.spark.row_chunks import truncated
from penstock.spark.schema_columns import is_picked, kept_time, metric_type
from penstock.spark.topic.value_sets import in_order

# All bits but the sign's: inverts negative doubles, so that they sort as whole numbers.
_NOT_SIGN: Final = np.int64(2**63 - 1)


@dataclass(frozen=True, slots=True)
class FoldedMetric:
    """One metric: a column, its aggregation, and the maximum length of a text.

    `time` is the column of the deciding time, if the value is that of one row. Between equal
    times the numbers in the column `order` decide, or, without one, the order of the rows.
    """

    name: str
    kind: str
    type: pa.DataType
    characters_max: int | None = None
    time: str = ""
    order: str = ""

    @property
    def is_picked(self) -> bool:
        """Return whether its value is that of one of the rows, chosen by a time."""
        return bool(self.time)

    @property
    def how(self) -> str:
        """Return Arrow's aggregation of the values, or of the positions of chosen rows."""
        if self.is_picked:
            return "min" if self.kind == "first" else "max"
        return self.kind if self.kind in {"min", "max"} else "sum"

    def held(self, values: pa.Array) -> pa.Array:
        """Return values of rows in the form in which they are folded."""
        if self.characters_max is not None:
            values = pc.utf8_slice_codeunits(values, 0, self.characters_max)
        if not pa.types.is_floating(self.type) or self.is_picked:
            return values
        doubles = values.cast(pa.float64())
        return doubles if self.how == "sum" else _ranks(doubles)

    def finished(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return folded values in the form of files."""
        if pa.types.is_floating(self.type) and not self.is_picked and self.how != "sum":
            values = pa.chunked_array([_doubles(values.combine_chunks())])
        # A sum of floats that exceeds the range of float is infinite, as in Spark.
        return values.cast(self.type, safe=False)


@dataclass(frozen=True, slots=True)
class RowFold:
    """Combination of rows by equal keys, `__time` first; without keys, rows are not combined.

    `lengths` are (column, characters) pairs: the text of these dimensions is cut to this length.
    `lists` are (column, as a set) pairs: the lists of these dimensions are sorted.
    """

    granularity: Granularity
    keys: tuple[str, ...]
    metrics: tuple[FoldedMetric, ...]
    lengths: tuple[tuple[str, int], ...] = ()
    lists: tuple[tuple[str, bool], ...] = ()

    def held(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with the columns of the files in the form in which they are folded.

        Rows that were folded before have the deciding times; if one is missing, the row's own time
        decides.
        """
        times = rows.column(TIME_COLUMN)
        columns = {name: rows.column(name) for name in rows.schema.names}
        columns[TIME_COLUMN] = truncated(times, self.granularity)
        for name, characters_max in self.lengths:
            columns[name] = _shortened(columns[name], characters_max)
        for name, is_set in self.lists:
            columns[name] = in_order(columns[name], sets=is_set)
        for key in self.keys:
            if pa.types.is_floating(columns[key].type):
                columns[key] = _as_key(columns[key])
        for metric in self.metrics:
            columns[metric.name] = metric.held(columns[metric.name])
            if self.keys and metric.is_picked:
                micros = times.cast(pa.int64())
                kept = columns.get(metric.time)
                columns[metric.time] = micros if kept is None else pc.coalesce(kept, micros)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def folded(self, rows: pa.Table) -> pa.Table:
        """Return one row for each key, with the same columns; all rows if there are no keys."""
        if not self.keys:
            return rows
        picked = [metric for metric in self.metrics if metric.is_picked]
        orders = {metric.name: _order(rows, metric) for metric in picked}
        # Numbered, because Arrow makes new names from old ones, which could be names of other
        # columns.
        numbers = {name: str(at) for at, name in enumerate(rows.column_names)}
        folding = rows.rename_columns(list(numbers.values()))
        for metric in picked:
            place = _places(orders[metric.name], rows.column(metric.name))
            at = int(numbers[metric.name])
            folding = folding.set_column(at, numbers[metric.name], place)
        grouped = folding.group_by([numbers[key] for key in self.keys], use_threads=False)
        made = grouped.aggregate([(numbers[metric.name], metric.how) for metric in self.metrics])
        columns = {key: made.column(numbers[key]) for key in self.keys}
        for metric in self.metrics:
            values = made.column(f"{numbers[metric.name]}_{metric.how}")
            if metric.is_picked:
                chosen = pa.array(orders[metric.name]).take(values.combine_chunks())
                for name in filter(None, (metric.time, metric.order)):
                    columns[name] = rows.column(name).take(chosen)
                values = rows.column(metric.name).take(chosen)
            columns[metric.name] = values
        return pa.table([columns[name] for name in rows.column_names], schema=rows.schema)

    def finished(self, rows: pa.Table) -> pa.Table:
        """Return folded rows with the columns of the files."""
        if not self.keys:
            return rows
        metrics = {metric.name: metric for metric in self.metrics}
        names = rows.column_names
        columns = [
            metrics[name].finished(rows.column(name)) if name in metrics else rows.column(name)
            for name in names
        ]
        return pa.table(columns, names=names)


def fold_of(schema: DataSchema, combined: Container[str] = ()) -> RowFold | None:
    """Return the fold to the rows of the schema's files; None: they have that form already.

    `combined` names metrics that the rows have already. `columns.can_fold` must hold for all.
    """
    metrics = tuple(
        _folded_metric(m, is_raw=not schema.rollup or m.name not in combined)
        for m in schema.metrics
    )
    lengths = tuple(
        (d.name, d.max_string_length) for d in schema.dimensions if d.max_string_length is not None
    )
    lists = tuple((d.name, d.has_sets) for d in schema.dimensions if d.orders_lists)
    if schema.rollup:
        keys = (TIME_COLUMN, *(d.name for d in schema.dimensions))
        return RowFold(schema.query_granularity, keys, metrics, lengths, lists)
    cut = tuple(metric for metric in metrics if metric.characters_max is not None)
    is_exact = schema.query_granularity == Granularity.parse("NONE")
    if is_exact and not (cut or lengths or lists):
        return None
    return RowFold(schema.query_granularity, (), cut, lengths, lists)


def _folded_metric(metric: Aggregator, *, is_raw: bool) -> FoldedMetric:
    is_text = metric.value_type == "string"
    characters_max = metric.string_bytes_max if is_raw and is_text else None
    time = kept_time(metric) if is_picked(metric) else ""
    return FoldedMetric(metric.name, metric.kind, metric_type(metric).arrow, characters_max, time)


def _shortened(values: pa.Array, characters_max: int) -> pa.Array:
    """Return text cut to a number of characters; text that may be a JSON list stays complete."""
    is_long = pc.greater(pc.utf8_length(values), characters_max)
    if not pc.any(is_long).as_py():
        return values
    is_list = pc.and_(pc.starts_with(values, "["), pc.ends_with(values, "]"))
    cut = pc.utf8_slice_codeunits(values, 0, characters_max)
    return pc.if_else(pc.and_not(is_long, is_list), cut, values)


def _as_key(values: pa.Array) -> pa.Array:
    """Return floats with a single zero and NaN, because keys are compared by their bits."""
    found = pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), values.type), values)
    return pc.add(found, pa.scalar(0.0, values.type))


def _ranks(doubles: pa.Array) -> pa.Array:
    """Return whole numbers in the order of the doubles; NaN is the greatest, as in Spark."""
    values: npt.NDArray[np.float64] = doubles.to_numpy(zero_copy_only=False)
    bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
    ranks = bits ^ ((bits >> 63) & _NOT_SIGN)
    return pa.array(ranks, mask=_is_null(doubles))


def _doubles(ranks: pa.Array) -> pa.Array:
    """Return the doubles of such whole numbers."""
    values: npt.NDArray[np.int64] = ranks.fill_null(0).to_numpy(zero_copy_only=False)
    doubles = (values ^ ((values >> 63) & _NOT_SIGN)).view(np.float64)
    return pa.array(doubles, mask=_is_null(ranks))


def _order(rows: pa.Table, metric: FoldedMetric) -> npt.NDArray[np.int64]:
    """Return the rows ordered by time; equal times by their numbers, or by position."""
    names = filter(None, (metric.order, metric.time))
    numbers = [rows.column(name).combine_chunks().fill_null(0) for name in names]
    return np.lexsort([one.to_numpy(zero_copy_only=False) for one in numbers])


def _places(order: npt.NDArray[np.int64], values: pa.ChunkedArray) -> pa.Array:
    """Return the position of each row in the order; null if its value is null."""
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order), dtype=np.int64)
    return pa.array(places, mask=_is_null(values.combine_chunks()))


def _is_null(values: pa.Array) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = values.is_null().to_numpy(zero_copy_only=False)
    return found
