"""Check whether the expressions of a spec are valid Spark SQL, before a task uses them.

Owns the question to Spark, which analyses and runs nothing. The router calls it, so it does not
depend on specs. It reports only what is wrong for all types of the fields: syntax, functions that
do not exist, wrong numbers of arguments, and expressions that use other rows or run foreign code.
Field names cannot be wrong, because a message may have any field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest
from penstock.core.sql_text import check_expression, tokens
from penstock.core.sqlvalues import check_values
from penstock.spark.connect.session import SparkRefusal, SparkSessions
from penstock.spark.expressions import column
from penstock.spark.sql_guard import OUTLINE_CONF, check_expressions
from penstock.spark.transforms.identifiers import in_backticks, names_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# As in the engine's Spark session: some functions exist in only one dialect.
EXPRESSION_CONF: Final[Mapping[str, str]] = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # Otherwise parquet.`/any/path` would open any file of the host.
    "spark.sql.runSQLOnFiles": "false",
    **OUTLINE_CONF,
}
_TIME: Final = "__time"
_WRONG: Final = re.compile(
    r"\[(?:PARSE_|INVALID_SQL_SYNTAX|UNRESOLVED_ROUTINE|WRONG_NUM_ARGS|MISSING_GROUP_BY)"
)
_AGGREGATES: Final = (
    "it aggregates rows, but an expression sees one row: use metricsSpec, or queries"
)
# Parts that are cut from messages: the search path of functions, Spark's code, the caller's text.
_REST: Final = re.compile(r" on search path \[.*?\]|\.? SQLSTATE: \w+|\n[\s\S]*")


class ExpressionCheck:
    """Checks expressions with Spark; thread-safe."""

    def __init__(self, sessions: SparkSessions) -> None:
        self._sessions = sessions.with_conf(EXPRESSION_CONF)

    def mistakes(self, expressions: Sequence[str]) -> list[str]:
        """Return for each expression what is wrong with it, or an empty text.

        Raises:
            EngineUnavailable: Spark does not answer.
        """
        return [self._mistake(expression) for expression in expressions]

    def close(self) -> None:
        """End the Spark session."""
        self._sessions.close()

    def _mistake(self, expression: str) -> str:
        try:
            check_expression(expression)
            check_values(expression, tokens(expression))
        except InvalidRequest as error:
            return str(error)
        try:
            with self._sessions.use() as spark:
                _analyse(spark, expression)
        except InvalidRequest as error:
            return str(error)
        except SparkRefusal as error:
            text = str(error)
            if "[MISSING_GROUP_BY]" in text:
                return _AGGREGATES  # Spark's advice, GROUP BY or a window, does not apply
            return _REST.sub("", text) if _WRONG.search(text) else ""
        return ""


def _analyse(spark: SparkSession, expression: str) -> None:
    # As everywhere, PySpark is imported once there is a session.
    from pyspark.sql import functions as sf  # noqa: PLC0415

    fields = [sf.lit("").alias(name) for name in _distinct(names_in(expression))]
    row = spark.range(1).select(sf.timestamp_millis(sf.lit(0)).alias(_TIME), *fields)
    # Requesting the plan makes Spark analyse the expression; no row is computed.
    check_expressions(row.select(sf.expr(in_backticks(expression)), column(_TIME)))


def _distinct(names: Iterable[str]) -> Iterator[str]:
    """Yield each name once, ignoring case as Spark does."""
    seen = {_TIME}
    for name in names:
        if name.lower() not in seen:
            seen.add(name.lower())
            yield name
