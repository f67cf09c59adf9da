"""Makes Spark know `format("penstock")` where Penstock is installed.

Spark imports all top-level modules called `pyspark_*`, and knows the `DefaultSource` of each by its
name. Each module can have only one.
"""

from penstock.spark.datasource import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
