"""Indexing beside plain PySpark."""

from __future__ import annotations

from charts import chart, rows
from drawing import Picture

NAMES = (
    "ingest into Parquet",
    "ingest into Parquet, rolled up",
    "batch ingest of JSON",
    "batch ingest of Parquet",
    "stream into published segments",
    "batch of JSON into published segments",
)


def draw() -> Picture:
    """Return the picture."""
    found = rows()
    return chart(
        "Indexing beside plain PySpark",
        "Rows per second of Penstock and of a plain PySpark job over the same input.",
        "plain PySpark",
        [found[name] for name in NAMES],
    )
