"""Aggregators of a spec as Spark's aggregate functions.

Owns the computation of each metric, for raw rows and for rolled-up rows. Sketches are Spark's: HLL
and theta of Apache DataSketches, KLL for quantiles. Sketches in an input are base64 text, because
rows are read as text and numbers; those of segment files are bytes. The time that selects a first
or last value is in another column (`columns.kept_time`).
"""

from __future__ import annotations

from collections.abc import Container
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from penstock.indexing.specs import TIME_COLUMN, Aggregator, DataSchema
from penstock.spark.expressions import column, value_of
from penstock.spark.schema_columns import is_picked, kept_time, metric_type

if TYPE_CHECKING:
    from pyspark.sql import Column


def aggregates(
    schema: DataSchema, combines: Container[str] = (), *, encoded: bool = True
) -> list[Column]:
    """Return the metrics of grouped rows, and the deciding times of first and last values.

    Args:
        schema: Schema of the resulting rows.
        combines: The metrics that the rows have already, with their deciding times if the schema
            rolls up.
        encoded: Whether existing sketches are base64 text, not bytes.
    """
    made, times = [], []
    for metric in schema.metrics:
        if metric.name in combines:
            time = _kept_time(metric) if schema.rollup else _time_of_row()
            found = _combined(metric, time, encoded=encoded)
        else:
            time = _time(metric)
            found = _aggregated(metric, time)
        made.append(found.cast(str(metric_type(metric))).alias(metric.name))
        if schema.rollup and is_picked(metric):
            value = column(metric.name) if metric.name in combines else _value(metric)
            reduced = sf.min if metric.kind == "first" else sf.max
            decided = reduced(sf.when(value.isNotNull(), time))
            times.append(decided.alias(kept_time(metric)))
    return made + times


def is_plain(metric: Aggregator) -> bool:
    """Return whether the metric of a single row is a value of that row."""
    return metric.value_type != "sketch"


def plain(metric: Aggregator) -> Column:
    """Return the metric of a single row; a sketch exists already."""
    if metric.value_type == "sketch":
        return sf.unbase64(column(metric.name)).alias(metric.name)
    return _value(metric).alias(metric.name)


def _value(metric: Aggregator) -> Column:
    if metric.field_name is None:
        return sf.lit(1).cast("bigint")
    value = value_of(metric.field_name).cast(str(metric_type(metric)))
    return _cut(metric, value)


def _cut(metric: Aggregator, value: Column) -> Column:
    return sf.left(value, sf.lit(metric.string_bytes_max)) if _is_text(metric) else value


def _is_text(metric: Aggregator) -> bool:
    return metric.value_type == "string"


def _aggregated(metric: Aggregator, time: Column) -> Column:
    if metric.value_type != "sketch":
        return _reduced(metric, _value(metric), time)
    size = sf.lit(metric.sketch_size)
    if metric.reads_sketches:
        sketch = sf.unbase64(column(str(metric.field_name)))
        return _united(metric, sketch)
    value = _sketched(metric)
    match metric.kind:
        case "hll" if metric.fields and not metric.by_row:
            # By value, because the values of all columns are counted together.
            each = [sf.hll_sketch_agg(value_of(n).cast("string"), size) for n in metric.fields]
            return reduce(sf.hll_union, each)
        case "hll":
            return sf.hll_sketch_agg(value, size)
        case "theta":
            return sf.theta_sketch_agg(value, size)
        case _:
            return sf.kll_sketch_agg_double(value, size)


def _combined(metric: Aggregator, time: Column, *, encoded: bool) -> Column:
    value = column(metric.name)
    if metric.value_type == "sketch":
        return _united(metric, sf.unbase64(value) if encoded else value)
    return _reduced(metric, value.cast(str(metric_type(metric))), time)


def _reduced(metric: Aggregator, value: Column, time: Column) -> Column:
    match metric.kind:
        case "min":
            return sf.min(value)
        case "max":
            return sf.max(value)
        case "first":
            # If the value is null there is no first one, as in Druid for rows without the field.
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
        return value_of(str(metric.field_name)).cast("double")
    if metric.fields is None:
        return value_of(str(metric.field_name)).cast("string")
    return sf.to_json(sf.array(*(value_of(name).cast("string") for name in metric.fields)))


def _time(metric: Aggregator) -> Column:
    """Return the microseconds of the deciding time, for raw rows."""
    if metric.time_column in {None, TIME_COLUMN}:
        return _time_of_row()
    return sf.unix_micros(column(str(metric.time_column)).cast("timestamp"))


def _kept_time(metric: Aggregator) -> Column:
    """Return the microseconds of the deciding time, for rolled-up rows."""
    if not is_picked(metric):
        return _time_of_row()
    return sf.coalesce(column(kept_time(metric)), _time_of_row())


def _time_of_row() -> Column:
    return sf.unix_micros(sf.col(TIME_COLUMN))
