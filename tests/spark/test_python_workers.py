"""Sessions share Spark's Python workers, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

from penstock.spark.connect.spark_server import SparkServer
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def parents(session: SparkSession) -> set[int]:
    """Return which processes the Python workers of a session were forked from."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"parent": [os.getppid()]})

    rows = session.range(0, 2, 1, 2).mapInArrow(work, "parent long").collect()
    return {row["parent"] for row in rows}


def test_new_sessions_find_the_python_workers_of_others(spark_server: SparkServer) -> None:
    """Workers of its own would cost each task and each query seconds, and 100 MB a core."""
    found = set()
    for _ in range(3):
        sessions = SparkSessions(SparkSessionOptions(spark_server.remote))
        with sessions.use() as session:
            found |= parents(session)
        sessions.close()
    assert len(found) == 1


def test_views_and_settings_of_one_session_are_not_seen_by_another(
    spark_server: SparkServer,
) -> None:
    key = "spark.sql.shuffle.partitions"
    options = SparkSessionOptions(spark_server.remote, conf={key: "7"})
    one, other = SparkSessions(options), SparkSessions(SparkSessionOptions(spark_server.remote))
    try:
        one.get().range(1).createOrReplaceTempView("of_one")
        assert one.get().conf.get(key) == "7"
        assert other.get().conf.get(key) != "7"
        with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
            other.get().table("of_one").count()
    finally:
        one.close()
        other.close()
