"""From parsed rows to rows of a time chunk: transform, filter, reject, truncate, roll up.

Builds DataFrames only; nothing runs here, and no call requests a schema from Spark, which would
cost a round trip each. Only new expressions are sent to Spark, once. Values of filters are bound as
literals, never inserted into SQL text.

A transform's expression is Spark SQL: names in double quotes, text in single ones. It can use the
fields of the message and `__time`, not other transforms. A value that cannot be computed becomes
null, because the engine's Spark sessions run without ANSI errors: one odd row must not stop a
stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from penstock.core.intervals import Granularity, Interval
from penstock.core.sql.checked_expression import parsed_expression
from penstock.indexing.specs import TIME_COLUMN, DataSchema
from penstock.indexing.specs.scalars import OWN_PREFIX
from penstock.spark.aggregate_functions import aggregates, is_plain, plain
from penstock.spark.expressions import (
    chunk_number,
    column,
    inside,
    instant,
    ordered_lists,
    truncated,
)
from penstock.spark.filter_conditions import condition, expressions_in
from penstock.spark.row_chunks import TimeLimits
from penstock.spark.schema_columns import inputs, metric_names, output_columns
from penstock.spark.sql_guard import OUTLINE_CONF, check_expressions, constants_kept

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.indexing.specs.rows.dimensions import Dimension

# Not a short name, because it could overwrite a column of users.
CHUNK_COLUMN: Final = f"{OWN_PREFIX}chunk"
OBSERVED: Final = "penstock_counts"
# Otherwise Spark would remove the counts with a part of the plan that returns no rows.
KEEP_COUNTING: Final = (
    "spark.sql.adaptive.optimizer.excludedRules",
    "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation",
)
ENGINE_CONF: Final[Mapping[str, str]] = {
    # An expression that fails on a row returns null, instead of ending the stream or task.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    KEEP_COUNTING[0]: KEEP_COUNTING[1],
    "spark.sql.runSQLOnFiles": "false",
    **OUTLINE_CONF,
}
"""Settings of the engines' Spark sessions, in addition to the server's."""

PROCESSED: Final = "processed"
FILTERED: Final = "filtered"
LATE: Final = "late"
EARLY: Final = "early"

# Expressions that Spark has accepted; two threads may check the same ones.
_CHECKED: Final[set[tuple[str, ...]]] = set()
_CHECKED_MAX: Final = 1_000

_FATE: Final = f"{OWN_PREFIX}fate"
_ROW: Final = f"{OWN_PREFIX}row"


def transformed(rows: DataFrame, schema: DataSchema, also: Sequence[str] = ()) -> DataFrame:
    """Return `__time` and the inputs of dimensions, metrics and filter, computed or as read."""
    computed = {t.name: sf.expr(parsed_expression(t.sql).in_spark()) for t in schema.transforms}
    time = sf.col(TIME_COLUMN).cast("timestamp")
    if TIME_COLUMN in computed:
        time = _as_time(computed[TIME_COLUMN])
    names = dict.fromkeys((*inputs(schema), *also))
    columns = [computed.get(name, column(name)).alias(name) for name in names]
    made = rows.select(time.alias(TIME_COLUMN), *columns)
    _check(made, schema)
    return made


def _check(rows: DataFrame, schema: DataSchema) -> None:
    """Check once how Spark resolves a schema's expressions."""
    texts = (*(t.sql for t in schema.transforms), *expressions_in(schema.filter))
    if not texts or texts in _CHECKED:
        return
    with constants_kept(rows.sparkSession):
        check_expressions(rows if schema.filter is None else rows.where(condition(schema.filter)))
    if len(_CHECKED) >= _CHECKED_MAX:
        _CHECKED.clear()
    _CHECKED.add(texts)


def judged(
    rows: DataFrame,
    schema: DataSchema,
    limits: TimeLimits,
    intervals: Sequence[Interval] = (),
    also: Sequence[str] = (),
    mark: str | None = None,
) -> DataFrame:
    """Return the rows to keep; the outcome of all others is counted on the way (`OBSERVED`).

    Rows outside of the intervals, if given, count as early; the intervals are disjoint and sorted.
    `also` names columns to keep in addition to the inputs, `mark` one that is false if a row counts
    as filtered.

    A row that fails the filter counts as filtered regardless of its time, and so does a row whose
    time a transform set to null.
    """
    time = sf.col(TIME_COLUMN)
    fate = _refused(schema, mark)
    if limits.min_time_ms is not None:
        fate = fate.when(time < instant(limits.min_time_ms), LATE)
    if limits.max_time_ms is not None:
        fate = fate.when(time >= instant(limits.max_time_ms), EARLY)
    if intervals:
        fate = fate.when(~inside(time, intervals), EARLY)
    return _counted(rows, fate, sf.lit(1)).select(*_wanted(schema, also))


def judged_together(
    rows: DataFrame,
    schema: DataSchema,
    moment: tuple[str, Mapping[int, str]],
    count: str,
    also: Sequence[str] = (),
) -> DataFrame:
    """Return the rows to keep, as `judged`; each represents `count` rows.

    `moment` is a column that marks late and early rows, with the meaning of its values; other rows
    have null there. `also` names columns to keep.
    """
    fate = _refused(schema)
    name, meanings = moment
    for value, kind in meanings.items():
        fate = fate.when(column(name) == value, kind)
    return _counted(rows, fate, column(count)).select(*_wanted(schema, also))


def _refused(schema: DataSchema, mark: str | None = None) -> Column:
    """Return `FILTERED` for rows that the filter or the mark refuses; more cases may follow."""
    time = sf.col(TIME_COLUMN)
    fate = sf.when(time.isNull(), FILTERED)
    if mark is not None:
        fate = fate.when(time.isNotNull() & ~column(mark), FILTERED)
    if schema.filter is not None:
        kept = sf.coalesce(condition(schema.filter), sf.lit(False))  # noqa: FBT003
        # With a filter that is known to fail, Spark would read and count nothing.
        fate = fate.when(time.isNotNull() & ~kept, FILTERED)
    return fate


def _counted(rows: DataFrame, fate: Column, count: Column) -> DataFrame:
    """Return the rows without an outcome; all are counted by outcome (`OBSERVED`)."""

    def total(is_it: Column, name: str) -> Column:
        return sf.coalesce(sf.sum(sf.when(is_it, count)), sf.lit(0)).alias(name)

    counts = [total(sf.col(_FATE) == kind, kind) for kind in (FILTERED, LATE, EARLY)]
    kept = total(sf.col(_FATE).isNull(), PROCESSED)
    return (
        rows.withColumn(_FATE, fate).observe(OBSERVED, kept, *counts).where(sf.col(_FATE).isNull())
    )


def _wanted(schema: DataSchema, also: Sequence[str] = ()) -> list[Column]:
    # By name, because `drop` fails with names that contain dots or backticks.
    return [column(name) for name in dict.fromkeys((TIME_COLUMN, *inputs(schema), *also))]


def measured(
    rows: DataFrame, schema: DataSchema, combines: frozenset[str] = frozenset()
) -> DataFrame:
    """Return the columns of files: truncated time, dimensions, metrics; rolled up if requested.

    `combines` names metrics that the rows have; the schema is made by `columns.as_combined`.
    """
    types = dict(output_columns(schema))
    time = truncated(sf.col(TIME_COLUMN), schema.query_granularity).alias(TIME_COLUMN)
    dimensions = [_kept(d, types[d.name]).alias(d.name) for d in schema.dimensions]
    if schema.rollup:
        return _grouped(rows, [time, *dimensions], aggregates(schema, combines))
    if all(is_plain(m) or m.name in combines for m in schema.metrics):
        return rows.select(time, *dimensions, *(plain(metric) for metric in schema.metrics))
    # A sketch of one value is made by an aggregate over one row.
    key = sf.monotonically_increasing_id().alias(_ROW)
    made = rows.withColumn(_ROW, key).groupBy(_ROW, time, *dimensions)
    names = [TIME_COLUMN, *(d.name for d in schema.dimensions), *(m.name for m in schema.metrics)]
    return made.agg(*aggregates(schema, combines)).select(*map(column, names))


def merged(rows: DataFrame, schema: DataSchema) -> DataFrame:
    """Return rows of files as rows of one file; rolled up again if the schema rolls up.

    The rows have all columns of their files (`columns.file_columns`).
    """
    if not schema.rollup:
        return rows
    keys = [column(TIME_COLUMN), *(column(d.name) for d in schema.dimensions)]
    return _grouped(rows, keys, aggregates(schema, metric_names(schema), encoded=False))


def chunked(rows: DataFrame, granularity: Granularity) -> DataFrame:
    """Return the rows with the number of their time chunk; numbers increase with time."""
    return rows.withColumn(CHUNK_COLUMN, chunk_number(sf.col(TIME_COLUMN), granularity))


def _kept(dimension: Dimension, type_: str) -> Column:
    """Return the stored value of a dimension."""
    value = _shortened(column(dimension.name).cast(type_), dimension.max_string_length)
    return ordered_lists(value, sets=dimension.has_sets) if dimension.orders_lists else value


def _shortened(text: Column, characters_max: int | None) -> Column:
    """Return text cut to a number of characters; text that may be a JSON list stays complete."""
    if characters_max is None:
        return text
    is_list = text.startswith("[") & text.endswith("]")
    is_long = sf.char_length(text) > characters_max
    return sf.when(is_long & ~is_list, sf.left(text, sf.lit(characters_max))).otherwise(text)


def _as_time(value: Column) -> Column:
    """Return a computed time; numbers are milliseconds, as in Druid, not Spark's seconds."""
    kind = sf.typeof(value)  # known without reading rows
    is_number = kind.isin("tinyint", "smallint", "int", "bigint", "float", "double")
    millis = sf.timestamp_millis(value.cast("bigint"))
    return sf.when(is_number | kind.startswith("decimal"), millis).otherwise(
        value.cast("timestamp")
    )


def _grouped(rows: DataFrame, keys: list[Column], found: list[Column]) -> DataFrame:
    if not found:
        return rows.select(*keys).distinct()
    return rows.groupBy(*keys).agg(*found)
