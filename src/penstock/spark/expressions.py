"""Spark expressions for names and times, free of specs.

Apart from `pipeline`, for the router imports this and needs no spec, nor the memory of pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from penstock.core.intervals import START_OF_TIME_MS, Granularity

if TYPE_CHECKING:
    from pyspark.sql import Column


def quoted(name: str) -> str:
    """Return a name as SQL takes it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def column(name: str) -> Column:
    """Return the column of exactly this name, whatever characters it has."""
    return sf.col(quoted(name))


def instant(ms: int) -> Column:
    """Return a point in time as a literal."""
    return sf.timestamp_millis(sf.lit(ms).cast("bigint"))


def truncated(time: Column, granularity: Granularity) -> Column:
    """Return the start of the granularity's bucket."""
    if granularity == Granularity.parse("NONE"):
        return time
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
    """Return the number of the time chunk; numbers follow each other in time."""
    if granularity.months:
        return sf.floor(_month_number(time) / granularity.months).cast("bigint")
    if granularity.fixed_ms:
        since = sf.unix_millis(time) - granularity.origin_ms
        length = sf.lit(granularity.fixed_ms).cast("bigint")
        return ((since - sf.pmod(since, length)) / length).cast("bigint")
    return sf.lit(0).cast("bigint")


def _month_number(time: Column) -> Column:
    """Return months since the year 0."""
    return sf.year(time) * 12 + sf.month(time) - 1
