"""The rows of a query over the datasources, as the input of a batch task.

Owns what may be asked: one statement that only reads, of datasources alone. A query has a Spark
session of its own, so that what it sees stays as it was when it was first planned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.core.errors import InvalidRequest
from penstock.spark.connect.running import Running
from penstock.spark.connect.session import SparkSessions
from penstock.spark.pipeline import KEEP_COUNTING
from penstock.spark.sql import SQL_CONF, mentions
from penstock.spark.statement import check_reads_only
from penstock.spark.tables import TableSource
from penstock.spark.views import Views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class QueryRows:
    """Gives rows of queries; any thread may call it."""

    def __init__(self, sessions: SparkSessions, tables: TableSource) -> None:
        self._sessions = sessions
        self._tables = tables

    @contextlib.contextmanager
    def opened(self, query: str, running: Running) -> Iterator[tuple[SparkSession, DataFrame]]:
        """Give the rows and their Spark session to a block.

        Raises:
            InvalidRequest: The statement is no query, or names what is not there.
            EngineUnavailable: Spark was lost.
            EngineFailure: Spark refuses the query, or it was cancelled.
        """
        if not check_reads_only(query):
            raise InvalidRequest("the statement gives no rows to write: begin with SELECT or WITH")
        sessions = self._sessions.with_conf({**SQL_CONF, KEEP_COUNTING[0]: KEEP_COUNTING[1]})
        try:
            with sessions.use() as spark, running.tagged(spark):
                files = self._tables.tables().files
                text = query.lower()
                Views(spark).bring(files, [name for name in files if mentions(text, name)])
                yield spark, spark.sql(query)
        finally:
            sessions.close()
