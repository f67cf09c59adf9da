"""Whether rows of a schema may be brought together before they are computed, and how. No Spark.

Owns the conditions, all of which must hold:

- the schema rolls up, and all its metrics are folded in Arrow (`columns.can_fold`) from fields that
  are read as the metric's type and that no transform computes;
- every expression gives the same for the same row, however often it is asked;
- no transform computes the time, and dimensions are not found in the messages;
- no column is named as those of groups are (`OWN_PREFIX`).

Where an expression or a filter reads the time, rows are brought together by exact times, else by
those that the rolled-up rows have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from penstock.core.intervals import Granularity
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
from penstock.spark.chunks import TimeLimits
from penstock.spark.columns import (
    can_fold,
    filter_columns,
    is_picked,
    metric_type,
    row_shape,
)
from penstock.spark.prefolding.groups import MOMENT, ROWS, Groups
from penstock.spark.rollup import Fold, FoldedMetric, fold_of
from penstock.spark.topic.row_shape import FieldType
from penstock.spark.transforms.identifiers import names_in
from penstock.spark.transforms.repeatable import is_repeatable

_EXACT: Final = Granularity.parse("NONE")
# A sum of sums of floats is rounded once, at its end.
_SUMMED_AS: Final = {FieldType.FLOAT: FieldType.DOUBLE}


def groups_of(schema: DataSchema, limits: TimeLimits) -> Groups | None:
    """Return how raw rows become groups; None where they may not, or need not."""
    if not schema.rollup or schema.dimensions_spec.discovers or not can_fold(schema):
        return None
    if not schema.transforms and schema.filter is None:
        return None
    if not all(map(is_repeatable, _expressions(schema))):
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
    fold = Fold(
        granularity,
        (TIME_COLUMN, *(name for name, _ in kept), MOMENT),
        (FoldedMetric(ROWS, "count", FieldType.LONG.arrow), *metrics),
    )
    parts = tuple(
        (part_name(at), metric.field_name or "", part_type(metric))
        for at, metric in enumerate(schema.metrics)
    )
    return Groups(kept, parts, fold, limits)


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


def fold_of_groups(schema: DataSchema) -> Fold | None:
    """Return how what was computed of groups becomes rows of the schema's files."""
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
    """Tell whether a metric is of a field as it is read, and its time that of the row."""
    if metric.time_column not in {None, TIME_COLUMN}:
        return False
    # Fields of another type are cast by Spark.
    return metric.field_name is None or fields.get(metric.field_name) is metric_type(metric)


def _read(schema: DataSchema) -> Iterator[str]:
    """Yield the names of all that may tell rows apart."""
    for dimension in schema.dimensions:
        yield dimension.name
    for transform in schema.transforms:
        yield from names_in(transform.sql)
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
