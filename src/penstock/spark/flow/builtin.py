"""Table of the processors that need Spark: name and import path.

Owns the table, which the services add to that of `flow.processors.builtin`, because `flow` does not
depend on Spark. It contains paths instead of classes, so that PySpark is imported only when such a
processor runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SPARK_PROCESSORS: Final[Mapping[str, str]] = {
    "SparkSQL": "penstock.spark.flow.sql:SparkSQL",
    "SparkScript": "penstock.spark.flow.script:SparkScript",
}
