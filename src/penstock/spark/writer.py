"""Writing of rows that the JVM computed.

If only Arrow is needed from there on, rows stay in their splits. Others are grouped by time chunk:
small requests stay one piece of work without a shuffle; large ones are shuffled, and Spark balances
skewed chunks. `chunkwork` writes the files.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from penstock.indexing.specs import DataSchema
from penstock.spark.chunk_work import (
    Report,
    SpreadWork,
    Target,
    reports,
    spread_rows,
    write_rows,
)
from penstock.spark.expressions import column
from penstock.spark.pieces import REPORT_SCHEMA, limited, reports_of
from penstock.spark.pipeline import CHUNK_COLUMN, OBSERVED, chunked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# More partitions than cores, so that few time chunks seldom share one; Spark joins small ones
# again at run time.
_SHUFFLE_PLACES: Final = 32


def write_computed(
    rows: DataFrame, schema: DataSchema, target: Target, pieces: int
) -> tuple[list[Report], dict[str, int]]:
    """Write the rows; return the reports, and the counts observed on the way (`OBSERVED`)."""
    if pieces > 1:
        rows = chunked(rows, schema.segment_granularity)
        rows = rows.hint("rebalance", _SHUFFLE_PLACES, column(CHUNK_COLUMN))
    else:
        rows = rows.coalesce(1)
    # By position, because PySpark passes names to `mapInArrow` without quoting them.
    rows = rows.select(*(column(n).alias(f"c{i}") for i, n in enumerate(target.columns)))
    written = rows.mapInArrow(limited(functools.partial(write_rows, target)), REPORT_SCHEMA)
    return _done(written)


def spread_computed(rows: DataFrame, work: SpreadWork) -> tuple[list[Report], dict[str, int]]:
    """Write the rows of splits without a shuffle; return as `write_computed`.

    Columns are named by position, because PySpark does not quote names for `mapInArrow`.
    """
    return _done(rows.mapInArrow(limited(functools.partial(spread_rows, work)), REPORT_SCHEMA))


def _done(written: DataFrame) -> tuple[list[Report], dict[str, int]]:
    found = reports(reports_of(written))
    info = written.executionInfo
    for seen in info._observations if info is not None else []:  # noqa: SLF001
        # PySpark has no public access to them that does not cost another round trip.
        if seen.name == OBSERVED:
            return found, {name: int(value) for name, value in seen.pairs.items()}
    return found, {}
