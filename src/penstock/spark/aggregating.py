"""Aggregators of a spec as Spark's aggregate functions.

Owns what each metric computes, of raw rows and of rows that are rolled up already. Sketches are
those of Spark: HLL and theta of Apache DataSketches, KLL for quantiles. Sketches in an input come
as base64 text, since rows are read as text and numbers.
"""

from __future__ import annotations

from collections.abc import Container
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from penstock.indexing.spec import TIME_COLUMN, Aggregator, DataSchema
from penstock.spark.columns import metric_type
from penstock.spark.expressions import column

if TYPE_CHECKING:
    from pyspark.sql import Column


def aggregates(schema: DataSchema, combines: Container[str] = ()) -> list[Column]:
    """Return the metrics of grouped rows; `combines` names those that the rows have already."""
    return [
        (_combined(m) if m.name in combines else _aggregated(m))
        .cast(str(metric_type(m)))
        .alias(m.name)
        for m in schema.metrics
    ]


def is_plain(metric: Aggregator) -> bool:
    """Tell whether the metric of one row alone is a value of that row."""
    return metric.value_type != "sketch"


def plain(metric: Aggregator) -> Column:
    """Return the metric of one row alone, whose sketch is there already if it is one."""
    if metric.value_type == "sketch":
        return sf.unbase64(column(metric.name)).alias(metric.name)
    return _value(metric).alias(metric.name)


def _value(metric: Aggregator) -> Column:
    if metric.field_name is None:
        return sf.lit(1).cast("bigint")
    value = column(metric.field_name).cast(str(metric_type(metric)))
    return _cut(metric, value)


def _cut(metric: Aggregator, value: Column) -> Column:
    return sf.left(value, sf.lit(metric.string_bytes_max)) if _is_text(metric) else value


def _is_text(metric: Aggregator) -> bool:
    return metric.value_type == "string"


def _aggregated(metric: Aggregator) -> Column:
    if metric.value_type != "sketch":
        return _reduced(metric, _value(metric), _time(metric))
    size = sf.lit(metric.sketch_size)
    if metric.reads_sketches:
        sketch = sf.unbase64(column(str(metric.field_name)))
        return _united(metric, sketch)
    value = _sketched(metric)
    match metric.kind:
        case "hll" if metric.fields and not metric.by_row:
            # By value: the values of all columns are counted together.
            each = [sf.hll_sketch_agg(column(n).cast("string"), size) for n in metric.fields]
            return reduce(sf.hll_union, each)
        case "hll":
            return sf.hll_sketch_agg(value, size)
        case "theta":
            return sf.theta_sketch_agg(value, size)
        case _:
            return sf.kll_sketch_agg_double(value, size)


def _combined(metric: Aggregator) -> Column:
    value = column(metric.name)
    if metric.value_type == "sketch":
        return _united(metric, sf.unbase64(value))
    return _reduced(metric, value.cast(str(metric_type(metric))), sf.col(TIME_COLUMN))


def _reduced(metric: Aggregator, value: Column, time: Column) -> Column:
    match metric.kind:
        case "min":
            return sf.min(value)
        case "max":
            return sf.max(value)
        case "first":
            # Where the value is null there is no first one, as in Druid's rows without the field.
            return sf.min_by(value, sf.when(value.isNotNull(), time))
        case "last":
            return sf.max_by(value, sf.when(value.isNotNull(), time))
        case _:
            return sf.sum(value)


def _united(metric: Aggregator, sketch: Column) -> Column:
    match metric.kind:
        case "hll":
            return sf.hll_union_agg(sketch, sf.lit(True))  # noqa: FBT003 - sizes may differ
        case "theta":
            return sf.theta_union_agg(sketch, sf.lit(metric.sketch_size))
        case _:
            return sf.kll_merge_agg_double(sketch)


def _sketched(metric: Aggregator) -> Column:
    if metric.kind == "quantiles":
        return column(str(metric.field_name)).cast("double")
    if metric.fields is None:
        return column(str(metric.field_name)).cast("string")
    return sf.to_json(sf.array(*(column(name).cast("string") for name in metric.fields)))


def _time(metric: Aggregator) -> Column:
    if metric.time_column in {None, TIME_COLUMN}:
        return sf.col(TIME_COLUMN)
    return column(str(metric.time_column)).cast("timestamp")
