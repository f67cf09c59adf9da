"""The places where users give SQL, besides queries: tasks, flows and the expressions of specs.

Each place checks a text as Penstock does when a user sends it, and runs it as its process does, up
to the rows. `without_text_checks` turns the first of the two walls off, in all places.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol
from unittest import mock

from pyspark.sql import SparkSession

from penstock.core.errors import InvalidRequest
from penstock.core.sql import tree
from penstock.core.sql.checked_expression import parsed_expression
from penstock.core.sql.checked_query import CheckedQuery
from penstock.indexing.batch.batch_engine import SqlInput
from penstock.indexing.batch.sql import ingest_statement
from penstock.indexing.batch.sql.ingest_statement import parse_ingest
from penstock.indexing.specs import DataSchema, parse_data_schema
from penstock.indexing.specs.druid_expressions import expression_dialect
from penstock.spark import pipeline
from penstock.spark.batch import query_rows
from penstock.spark.batch.batch_run import BatchSessions
from penstock.spark.connect.running_calls import RunningCall
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.flow import spark_processor
from penstock.spark.flow import sql as flow_sql
from penstock.spark.sql.query_statement import Statement
from penstock.spark.tables import TableSource
from penstock.spark.transforms import transform_errors
from penstock.spark.transforms.transform_errors import ExpressionCheck
from tests.fuzz.sql_statements_kit import Canaries, expression, flow_query, ingestion

TIMEOUT_S = 150  # a busy machine may be slow at the first statement
ROWS_MAX = 100


class Place(Protocol):
    """A place where users give SQL.

    Attributes:
        sessions: The Spark sessions that it keeps.
    """

    sessions: Sequence[SparkSessions]

    def check(self, sql: str) -> None:
        """Check a text; raises InvalidRequest if it is refused."""

    def run(self, sql: str) -> str:
        """Check a text and run it; return the rows. Raises PenstockError."""

    def close(self) -> None:
        """End its sessions."""


class SqlTasks:
    """`POST /druid/v2/sql/task`, and the rows that the task writes.

    Args:
        sessions: Spark.
        tables: The datasources.
    """

    sessions: Sequence[SparkSessions] = ()  # each query has one of its own

    def __init__(self, sessions: SparkSessions, tables: TableSource) -> None:
        self._sessions = BatchSessions(sessions, tables)

    def check(self, sql: str) -> None:
        query_rows.read_statement(parse_ingest(sql).query)  # type: ignore[attr-defined]  # it is patched there

    def run(self, sql: str) -> str:
        spec = parse_ingest(sql)
        if spec.externs:
            raise InvalidRequest("there are no files")
        running = RunningCall()
        with (
            running.limited(TIMEOUT_S, "it takes too long"),
            self._sessions.rows_of_query(SqlInput(spec.query), (), running) as (_, rows),
        ):
            return str(rows.limit(ROWS_MAX).collect())

    def close(self) -> None:
        self._sessions.close()


class FlowQueries:
    """SparkSQL over one view.

    Args:
        sessions: Spark.
        file: Parquet of the view `canary`.
    """

    def __init__(self, sessions: SparkSessions, file: Path) -> None:
        self._sessions = sessions.with_conf(spark_processor._CONF)
        self.sessions: Sequence[SparkSessions] = (self._sessions,)
        self._file = file
        self._one = threading.Lock()  # a processor triggers serially

    def check(self, sql: str) -> None:
        flow_sql.SparkSQL(input_format="json-lines", out=sql)

    def run(self, sql: str) -> str:
        processor = flow_sql.SparkSQL(input_format="json-lines", out=sql)
        with self._one, self._sessions.use() as spark, running_in(spark):
            frames = {"canary": spark.read.parquet(str(self._file))}
            with processor.views(spark, frames):
                (result,) = processor.results(spark, frames).values()
                return str(result.limit(ROWS_MAX).collect())

    def close(self) -> None:
        self._sessions.close()


class Expressions:
    """An expression of a spec: the router's check, and the rows that an engine computes.

    Args:
        sessions: Spark.
        file: Parquet of the rows.
    """

    def __init__(self, sessions: SparkSessions, file: Path) -> None:
        self._check = ExpressionCheck(sessions)
        self._sessions = sessions.with_conf(pipeline.ENGINE_CONF)
        self.sessions: Sequence[SparkSessions] = (self._check._sessions, self._sessions)
        with self._sessions.use() as spark:
            # A view hides the paths of files (`_metadata`), which an engine's rows do not have.
            spark.read.parquet(str(file)).createOrReplaceTempView("rows")

    def check(self, sql: str) -> None:
        self._schema(sql)

    def run(self, sql: str) -> str:
        schema = self._schema(sql)
        mistakes = self._check.mistakes([sql])
        with self._sessions.use() as spark, running_in(spark):
            rows = spark.table("rows").selectExpr("*", "0 AS __time")
            found = pipeline.transformed(rows, schema).limit(ROWS_MAX).collect()
        return str((mistakes, found))

    def close(self) -> None:
        self._check.close()
        self._sessions.close()

    def _schema(self, sql: str) -> DataSchema:
        return parse_data_schema(
            {
                "dataSource": "t",
                "timestampSpec": {"column": "__time", "format": "millis"},
                "dimensionsSpec": {"dimensions": ["x", {"type": "long", "name": "n"}]},
                "transformSpec": {
                    "transforms": [{"type": "expression", "name": "x", "expression": sql}]
                },
                "granularitySpec": {"segmentGranularity": "DAY", "rollup": False},
            }
        )


@contextmanager
def running_in(spark: SparkSession) -> Iterator[None]:
    """Bound the time of a block's work."""
    running = RunningCall()
    with running.limited(TIMEOUT_S, "it takes too long"), running.tagged(spark):
        yield


PLACES: dict[str, Callable[[SparkSessions, TableSource, Path], Place]] = {
    "task": lambda sessions, tables, _file: SqlTasks(sessions, tables),
    "flow": lambda sessions, _tables, file: FlowQueries(sessions, file),
    "expression": lambda sessions, _tables, file: Expressions(sessions, file),
}
WRITERS: dict[str, Callable[[int, Canaries], str]] = {
    "task": ingestion,
    "flow": flow_query,
    "expression": expression,
}


@contextmanager
def without_text_checks() -> Iterator[None]:
    """Have all places pass each text on to Spark as it is; the checks of plans stay."""
    unchecked = {
        query_rows: ("read_statement",),
        flow_sql: ("read_statement",),
        ingest_statement: ("check_variables",),
        expression_dialect: ("check_expression",),
    }
    with ExitStack() as patches:
        for module, names in unchecked.items():
            for name in names:
                fake = _as_it_is if name == "read_statement" else _nothing
                patches.enter_context(mock.patch.object(module, name, fake))
        patches.enter_context(mock.patch.object(ingest_statement, "checked_query", _unchecked))
        # Only its tree: its names are still written in backquotes.
        parse = mock.patch.object(transform_errors, "check_expression", parsed_expression)
        patches.enter_context(parse)
        expression_dialect.as_spark_sql.cache_clear()
        patches.callback(expression_dialect.as_spark_sql.cache_clear)
        yield


def _as_it_is(sql: str, _parameters: Sequence[object] = (), **_more: bool) -> Statement:
    return unchecked_statement(sql)


def unchecked_statement(sql: str) -> Statement:
    """Return a statement as it is, which may read each table whose name is a word of it."""
    return Statement(query=sql, tables=frozenset(re.findall(r"\w+", sql.lower())))


def _unchecked(sql: str, _position: int) -> CheckedQuery:
    return CheckedQuery(
        tree.Query(body=tree.Pipe(source=tree.Body(), operator="")), sql, frozenset()
    )


def _nothing(*_: object) -> None: ...
