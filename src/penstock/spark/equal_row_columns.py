"""Computation by the JVM of raw rows or groups; Arrow computes the rest.

Builds DataFrames only. Rows have the form that `rollup.RowFold` expects: times, dimensions,
metrics, the latter as values of one row or as parts, in the order of the files' columns and named
by position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.indexing.specs import TIME_COLUMN
from penstock.spark import pipeline
from penstock.spark.aggregate_functions import plain
from penstock.spark.equal_row_groups import (
    EARLY,
    LATE,
    MOMENT,
    ROWS,
    order_name,
    part_name,
    time_name,
)
from penstock.spark.expressions import column
from penstock.spark.schema_columns import can_fold, is_picked, output_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.indexing.specs import DataSchema
    from penstock.spark.row_chunks import TimeLimits

_MOMENTS = {LATE: pipeline.LATE, EARLY: pipeline.EARLY}


def is_foldable_when_computed(schema: DataSchema) -> bool:
    """Return whether Arrow can compute everything except transforms and filters."""
    times = (metric.time_column in {None, TIME_COLUMN} for metric in schema.metrics)
    return can_fold(schema) and all(times)


def of_rows(rows: DataFrame, schema: DataSchema, limits: TimeLimits) -> DataFrame:
    """Return the kept values of raw rows; all rows are counted on the way."""
    kept = pipeline.judged(pipeline.transformed(rows, schema), schema, limits)
    return _placed(kept, schema, [plain(metric) for metric in schema.metrics])


def of_groups(groups: DataFrame, schema: DataSchema) -> DataFrame:
    """Return the kept values of groups; the rows in them are counted on the way."""
    parts = [part_name(at) for at, _ in enumerate(schema.metrics)]
    picked = [at for at, metric in enumerate(schema.metrics) if is_picked(metric)]
    own = (*parts, *map(time_name, picked), *map(order_name, picked))
    # The fields of metrics no longer exist.
    bare = schema.model_copy(update={"metrics_spec": ()})
    made = pipeline.transformed(groups, bare, also=(MOMENT, ROWS, *own))
    kept = pipeline.judged_together(made, bare, (MOMENT, _MOMENTS), ROWS, also=own)
    return _placed(kept, schema, [column(name) for name in own])


def _placed(rows: DataFrame, schema: DataSchema, values: list[Column]) -> DataFrame:
    types = dict(output_columns(schema))
    dimensions = [column(d.name).cast(types[d.name]) for d in schema.dimensions]
    columns = [column(TIME_COLUMN), *dimensions, *values]
    return rows.select(*(one.alias(f"c{i}") for i, one in enumerate(columns)))
