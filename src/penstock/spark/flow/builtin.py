"""Which processors need Spark: name and import path.

Owns the table, for the services, which put it beside that of `flow.processors.builtin`; a flow
knows nothing of Spark. Paths and no classes: PySpark is imported when one runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SPARK_PROCESSORS: Final[Mapping[str, str]] = {
    "SparkSQL": "penstock.spark.flow.sql:SparkSQL",
    "SparkScript": "penstock.spark.flow.script:SparkScript",
}
