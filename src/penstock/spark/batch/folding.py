"""Rows rolled up in Arrow: sums, counts, least and greatest values of equal times and dimensions.

Owns the roll-up of one table. It may be done again on what came of it: counts are columns of ones
from the start, and sums of sums are sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.core.intervals import Granularity
from penstock.spark.chunks import truncated
from penstock.spark.topic.rowshape import TIME_COLUMN


@dataclass(frozen=True, slots=True)
class Fold:
    """How rows become fewer: by equal keys, `__time` first, metrics by sum, min or max."""

    granularity: Granularity
    keys: tuple[str, ...]
    metrics: tuple[tuple[str, str], ...]

    def truncated(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with their times cut down to the granularity."""
        at = rows.schema.get_field_index(TIME_COLUMN)
        return rows.set_column(at, TIME_COLUMN, truncated(rows.column(at), self.granularity))

    def folded(self, rows: pa.Table) -> pa.Table:
        """Return one row for each of the keys, with the columns as they were; all without keys."""
        if not self.keys:
            return rows
        grouped = rows.group_by(list(self.keys), use_threads=False)
        made = grouped.aggregate(list(self.metrics))
        columns = [made.column(key) for key in self.keys]
        columns += [made.column(f"{name}_{how}") for name, how in self.metrics]
        named = pa.table(columns, names=[*self.keys, *(name for name, _ in self.metrics)])
        return named.select(rows.column_names).cast(rows.schema)
