"""Spark expressions for names and times, independent of specs.

Separate from `pipeline`, so that the router can import it without specs and without pydantic.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.types import BooleanType, LongType, StringType

from penstock.core.intervals import START_OF_TIME_MS, Granularity
from penstock.spark.ddl import quoted
from penstock.spark.row_chunks import explicit_bucket_starts, lies_inside, zoned_starts
from penstock.spark.topic.row_shape import TIME_COLUMN
from penstock.spark.topic.value_sets import in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

    from penstock.core.intervals import Interval
    from penstock.core.zoned_time import ZonedBuckets

# With more intervals, the plan takes longer to build than a column takes in Python.
_CONDITIONS_MAX: Final = 16


def column(name: str) -> Column:
    """Return the column of exactly this name, with any characters."""
    return sf.col(quoted(name))


def value_of(name: str) -> Column:
    """Return a column; the time as a number of milliseconds, as in Druid's filters and metrics.

    Expressions see a timestamp.
    """
    return sf.unix_millis(column(name)) if name.lower() == TIME_COLUMN else column(name)


def instant(ms: int) -> Column:
    """Return a point in time as a literal."""
    return sf.timestamp_millis(sf.lit(ms).cast("bigint"))


def inside(time: Column, intervals: Sequence[Interval]) -> Column:
    """Return whether a time is in one of the intervals, which are disjoint and sorted."""
    if len(intervals) <= _CONDITIONS_MAX:
        parts = (
            (time >= instant(one.start_ms)) & (time < instant(one.end_ms)) for one in intervals
        )
        return functools.reduce(operator.or_, parts)
    return _of_millis(time, lambda ms: lies_inside(ms, intervals), BooleanType())


def truncated(time: Column, granularity: Granularity) -> Column:
    """Return the start of the granularity's bucket."""
    if granularity == Granularity.parse("NONE"):
        return time
    if granularity.zoned is not None:
        return sf.timestamp_millis(_zoned_start(time, granularity.zoned))
    if granularity.months:
        month = _month_number(time)
        start = month - sf.pmod(month, sf.lit(granularity.months))
        return sf.make_timestamp(
            sf.floor(start / 12).cast("int"),
            (sf.pmod(start, sf.lit(12)) + 1).cast("int"),
            sf.lit(1),
            sf.lit(0),
            sf.lit(0),
            sf.lit(0),
        )
    if granularity.fixed_ms:
        ms = sf.unix_millis(time)
        rest = sf.pmod(ms - granularity.origin_ms, sf.lit(granularity.fixed_ms).cast("bigint"))
        return sf.timestamp_millis(sf.greatest(ms - rest, sf.lit(START_OF_TIME_MS)))
    return instant(START_OF_TIME_MS)


def chunk_number(time: Column, granularity: Granularity) -> Column:
    """Return the number of the time chunk; numbers increase with time."""
    if granularity.given:
        return _given_start(time, granularity.given)
    if granularity.zoned is not None:
        return _zoned_start(time, granularity.zoned)
    if granularity.months:
        return sf.floor(_month_number(time) / granularity.months).cast("bigint")
    if granularity.fixed_ms:
        since = sf.unix_millis(time) - granularity.origin_ms
        length = sf.lit(granularity.fixed_ms).cast("bigint")
        return ((since - sf.pmod(since, length)) / length).cast("bigint")
    return sf.lit(0).cast("bigint")


def ordered_lists(text: Column, *, sets: bool) -> Column:
    """Return text in which each JSON list is sorted; with `sets`, without duplicates.

    Python does this, because the JVM's JSON reader writes numbers in another form, and ignores text
    after a list.
    """
    return _by_arrow(text, functools.partial(in_order, sets=sets), StringType())


def _zoned_start(time: Column, zoned: ZonedBuckets) -> Column:
    """Return the epoch milliseconds at which a zone's bucket begins.

    Python computes them, because the JVM has its own zones, possibly of another release, and both
    must assign a time to the same day.
    """
    return _of_millis(time, lambda ms: zoned_starts(ms, zoned), LongType())


def _given_start(time: Column, given: Sequence[Interval]) -> Column:
    """Return the epoch milliseconds at which a given bucket begins.

    Python looks them up, because a condition for each bucket would make the plan grow.
    """
    return _of_millis(time, lambda ms: explicit_bucket_starts(ms, given), LongType())


def _of_millis(
    time: Column,
    computed_of: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64 | np.bool_]],
    type_: DataType,
) -> Column:
    """Return a function of epoch milliseconds computed in Python; null for null."""

    def of_millis(times: pa.Array) -> pa.Array:
        known = times.fill_null(0).to_numpy(zero_copy_only=False)
        missing = times.is_null().to_numpy(zero_copy_only=False)
        return pa.array(computed_of(known), mask=missing)

    return _by_arrow(sf.unix_millis(time), of_millis, type_)


def _by_arrow(values: Column, compute: Callable[[pa.Array], pa.Array], type_: DataType) -> Column:
    """Return a function of a column computed in Python, batch by batch."""

    def computed(given: pa.Array) -> pa.Array:
        return compute(given)

    # Spark reads the annotations when it is called, so they must be types, not strings.
    computed.__annotations__ = {"given": pa.Array, "return": pa.Array}
    # PySpark has this function, but its stubs do not.
    found: Column = sf.arrow_udf(computed, type_)(values)  # type: ignore[attr-defined]
    return found


def _month_number(time: Column) -> Column:
    """Return months since the year 0."""
    return sf.year(time) * 12 + sf.month(time) - 1
