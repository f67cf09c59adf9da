"""Groups of raw rows to the rows of files: what `pipeline` does of rows, of fewer of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark import pipeline
from penstock.spark.columns import file_columns
from penstock.spark.expressions import column
from penstock.spark.prefolding.groups import EARLY, LATE, MOMENT, ROWS
from penstock.spark.prefolding.plan import of_groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.indexing.spec import DataSchema


def computed(groups: DataFrame, schema: DataSchema) -> DataFrame:
    """Return the rows of files, rolled up; what becomes of the raw ones is counted in passing."""
    read_as = of_groups(schema)
    made = pipeline.transformed(groups, read_as, also=(MOMENT, ROWS))
    moments = {LATE: pipeline.LATE, EARLY: pipeline.EARLY}
    kept = pipeline.judged_together(made, read_as, (MOMENT, moments), ROWS)
    rows = pipeline.measured(kept, read_as)
    # Sums of floats are doubles till here.
    return rows.select(*(column(n).cast(t).alias(n) for n, t in file_columns(schema)))
