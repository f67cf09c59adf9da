"""All code that uses Spark: the engine, SQL, the data sources, the Spark Connect server."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from penstock.core.column_case import case_variants_in, shown_case_variants
from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_registered: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def register(spark: SparkSession) -> None:
    """Register `format("penstock")` and `format("penstock.topic")` with a session; repeatable.

    Only needed where Spark does not find the installed modules `pyspark_penstock` and
    `pyspark_penstock_topic`; otherwise Spark has registered both.
    """
    # Imported here: most users of this package need no PySpark, which is heavy.
    from pyspark.errors import AnalysisException  # noqa: PLC0415

    from penstock.spark.datasource import PenstockSource  # noqa: PLC0415
    from penstock.spark.topic.source import TopicSource  # noqa: PLC0415

    if spark in _registered:
        return
    for source in (PenstockSource, TopicSource):
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:  # narrow: Spark has found the installed module
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
    _registered.add(spark)


def table(spark: SparkSession, **options: str) -> DataFrame:
    """Return a datasource as a DataFrame that the JVM reads.

    It has the current rows of `format("penstock")` with the same options, and is several times as
    fast, because Spark reads only the columns that it needs and no row passes through Python.

    Raises:
        InvalidRequest: The options do not specify what to read; or columns differ only in case, and
            the Spark session ignores case.
        NotFound: The datasource has no data.
        Unavailable: The router or the metadata store does not answer.
    """
    # Imported here, as in `register`.
    from penstock.spark.datasource import select  # noqa: PLC0415
    from penstock.spark.views import table as read_by_the_jvm  # noqa: PLC0415

    selection = select(options)
    case_variants = case_variants_in(name for name, _ in selection.columns)
    if case_variants and spark.conf.get("spark.sql.caseSensitive") != "true":
        raise InvalidRequest(
            f"the columns {shown_case_variants(case_variants)} differ only in case, and this Spark"
            ' session ignores case: call spark.conf.set("spark.sql.caseSensitive",'
            ' "true") before'
        )
    return read_by_the_jvm(spark, selection.files, selection.columns)
