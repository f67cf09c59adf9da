"""Columns that a data schema reads, computes and writes. Pure: no Spark.

Owns the conversion of the ingestion spec to names and types: the fields to read from the messages
(`row_shape`), the columns of the rows (`output_columns`), and further columns of files
(`file_columns`): for rolled-up rows the time that selected a first or last value, in microseconds,
because the row's own time is truncated. Without it, tasks and compactions could not roll such rows
up again when they merge files. Queries do not see this column; in files without it, the row's time
is used.

Every column that an expression, a filter, a dimension or a metric names is read from the message,
unless a transform computes it. The type of a field is that of its dimension, else of its metric,
else text, which Spark converts to a number if an expression needs one.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from penstock.core.sql.checked_expression import parsed_expression
from penstock.indexing.specs import (
    TIME_COLUMN,
    Aggregator,
    AndFilter,
    DataSchema,
    EqualsFilter,
    Filter,
    NotFilter,
    NullFilter,
    OrFilter,
    RangeFilter,
)
from penstock.indexing.specs.filters import (
    ColumnComparisonFilter,
    ExpressionFilter,
    FalseFilter,
    TrueFilter,
)
from penstock.indexing.specs.scalars import OWN_PREFIX
from penstock.spark.chunk_files import FileForm
from penstock.spark.topic.row_shape import FieldType, RowShape, TimeField, time_format

_DIMENSION_TYPES: Final = {
    "string": FieldType.STRING,
    "long": FieldType.LONG,
    "float": FieldType.FLOAT,
    "double": FieldType.DOUBLE,
    "json": FieldType.STRING,
    "auto": FieldType.STRING,
}
# Aggregations that Python workers compute without the JVM.
_FOLDED: Final = frozenset({"count", "sum", "min", "max", "first", "last"})
_PICKED: Final = frozenset({"first", "last"})
# Not a short name, because it could be a column of users.
_KEPT_TIME: Final = f"{OWN_PREFIX}time_"
_METRIC_TYPES: Final = {
    "long": FieldType.LONG,
    "double": FieldType.DOUBLE,
    "float": FieldType.FLOAT,
    "string": FieldType.STRING,
    "sketch": FieldType.BINARY,
}


def row_shape(schema: DataSchema, *, exact: bool = False) -> RowShape:
    """Return the fields to read from each message.

    With `exact` their names are case-sensitive, as needed if the schema's columns are case variants
    (`core.column_case`).
    """
    spec = schema.timestamp_spec
    time = TimeField(spec.column, time_format(spec.format), spec.missing_value_ms)
    types = _declared_types(schema)
    fields = {name: types.get(name, FieldType.STRING) for name in _fields(schema, exact=exact)}
    return RowShape(tuple(fields.items()), time)


def output_columns(schema: DataSchema) -> tuple[tuple[str, str], ...]:
    """Return (name, Spark SQL type) of the files' columns, `__time` first."""
    dimensions = ((d.name, str(_DIMENSION_TYPES[d.type])) for d in schema.dimensions)
    metrics = ((m.name, str(metric_type(m))) for m in schema.metrics)
    return ((TIME_COLUMN, "timestamp"), *dimensions, *metrics)


def file_columns(schema: DataSchema) -> tuple[tuple[str, str], ...]:
    """Return (name, Spark SQL type) of all columns of files, those hidden from queries last."""
    if not schema.rollup:
        return output_columns(schema)
    times = ((kept_time(m), str(FieldType.LONG)) for m in schema.metrics if is_picked(m))
    return (*output_columns(schema), *times)


def is_picked(metric: Aggregator) -> bool:
    """Return whether a metric is the value of one of the rows, chosen by a time."""
    return metric.kind in _PICKED


def kept_time(metric: Aggregator) -> str:
    """Return the column of the deciding time of a first or last value."""
    return f"{_KEPT_TIME}{metric.name}"


def metric_type(metric: Aggregator) -> FieldType:
    """Return the type of an aggregator's result."""
    return _METRIC_TYPES[metric.value_type]


def field_type(metric: Aggregator) -> FieldType:
    """Return the type with which an aggregator's field is read; sketches are base64 text."""
    return FieldType.STRING if metric.value_type == "sketch" else metric_type(metric)


def metric_names(schema: DataSchema) -> frozenset[str]:
    """Return the names of all metrics."""
    return frozenset(metric.name for metric in schema.metrics)


def as_combined(schema: DataSchema, names: Container[str]) -> DataSchema:
    """Return the schema with each of these metrics read from the column of its own name.

    Rows that are rolled up already have these columns.
    """

    def own(metric: Aggregator) -> Aggregator:
        time = kept_time(metric) if schema.rollup and is_picked(metric) else None
        changes = {"fields": None, "field_name": metric.name, "time_column": time}
        return metric.model_copy(update=changes)

    metrics = tuple(own(m) if m.name in names else m for m in schema.metrics)
    return schema.model_copy(update={"metrics_spec": metrics})


def sort_keys(schema: DataSchema) -> tuple[str, ...]:
    """Return the columns by which the rows of a file are sorted."""
    dimensions = tuple(d.name for d in schema.dimensions)
    if schema.dimensions_spec.force_segment_sort_by_time or not dimensions:
        return (TIME_COLUMN, *dimensions)
    return (*dimensions, TIME_COLUMN)


def file_form(schema: DataSchema, level: int) -> FileForm:
    """Return the form of the files of a schema; `level` is zstd's."""
    filtered = tuple(one.name for one in schema.dimensions if one.has_value_index)
    return FileForm(level, sort_keys(schema), filtered)


def inputs(schema: DataSchema) -> tuple[str, ...]:
    """Return the columns that are needed after the transforms, in order, without the time."""
    names = [d.name for d in schema.dimensions]
    for metric in schema.metrics:
        names += metric.inputs
    if schema.filter is not None:
        names += filter_columns(schema.filter)
    return tuple(dict.fromkeys(name for name in names if name.lower() != TIME_COLUMN))


def filter_columns(node: Filter) -> Iterator[str]:
    """Yield the columns that a filter uses."""
    match node:
        case AndFilter() | OrFilter():
            for inner in node.fields:
                yield from filter_columns(inner)
        case NotFilter():
            yield from filter_columns(node.field)
        case EqualsFilter() | NullFilter() | RangeFilter():
            yield node.column
        case ColumnComparisonFilter():
            yield from node.dimensions
        case ExpressionFilter():
            yield from parsed_expression(node.sql).columns()
        case TrueFilter() | FalseFilter():
            return
        case _:
            yield node.dimension


def can_fold(schema: DataSchema) -> bool:
    """Return whether `rollup.RowFold` can compute all metrics."""
    return all(m.kind in _FOLDED and m.value_type != "sketch" for m in schema.metrics)


def folded_columns(schema: DataSchema) -> tuple[tuple[str, str], ...] | None:
    """Return the field of each column if rows need only parsing and `rollup.RowFold`; else None.

    Pairs of (column, field); the field is empty for a count, which is 1 in every row. Spark
    computes transforms, filters, sketches and times other than the row's own.
    """
    if schema.transforms or schema.filter is not None or not can_fold(schema):
        return None
    read_as = dict(row_shape(schema).fields)
    columns = [(d.name, d.name) for d in schema.dimensions]
    for metric in schema.metrics:
        if metric.time_column not in {None, TIME_COLUMN}:
            return None
        # Spark casts a field of another type, including the time.
        if metric.field_name and read_as.get(metric.field_name) is not metric_type(metric):
            return None
        columns.append((metric.name, metric.field_name or ""))
    if any(field and field not in read_as for _, field in columns):
        return None  # Spark treats names that differ only in case as one.
    return ((TIME_COLUMN, TIME_COLUMN), *columns)


def _fields(schema: DataSchema, *, exact: bool) -> Iterator[str]:
    exact = exact or schema.has_exact_names
    computed = {transform.name for transform in schema.transforms}
    seen: dict[str, str] = {}
    wanted = [name for name in inputs(schema) if name not in computed]
    for transform in schema.transforms:
        wanted += parsed_expression(transform.sql).columns()
    for name in wanted:
        # Unless names are exact, two fields that differ only in case would make every reference
        # ambiguous, because Spark ignores case.
        key = name if exact else name.lower()
        if name.lower() != TIME_COLUMN and seen.setdefault(key, name) == name:
            yield name


def _declared_types(schema: DataSchema) -> dict[str, FieldType]:
    types: dict[str, FieldType] = {}
    for metric in schema.metrics:
        if metric.time_column not in {None, TIME_COLUMN}:
            is_kept = metric.time_column == kept_time(metric)
            type_ = FieldType.LONG if is_kept else FieldType.STRING
            types.setdefault(str(metric.time_column), type_)
        for name in metric.fields or ():
            types.setdefault(name, FieldType.STRING)
        if metric.field_name is not None:
            type_ = field_type(metric)
            # A field of several metrics is read with the type that loses least.
            other = types.get(metric.field_name, type_)
            if other is not type_:
                text = FieldType.STRING in {other, type_}
                type_ = FieldType.STRING if text else FieldType.DOUBLE
            types[metric.field_name] = type_
    return types | {d.name: _DIMENSION_TYPES[d.type] for d in schema.dimensions}
