"""Everything that touches Spark: the engine, SQL, the data sources, the Spark Connect server."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_registered: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("penstock")` and `format("penstock.topic")` known to a session.

    Doing it again costs nothing.
    """
    # Imported here: most users of this package need no PySpark, which is heavy.
    from penstock.spark.datasource import PenstockSource  # noqa: PLC0415
    from penstock.spark.topic.source import TopicSource  # noqa: PLC0415

    if spark in _registered:
        return
    spark.dataSource.register(PenstockSource)
    spark.dataSource.register(TopicSource)
    _registered.add(spark)
