"""Whether the expressions of a spec can be Spark SQL at all, before a task meets them.

Owns the question to Spark, which analyses and runs nothing. The router asks it, so this knows no
specs. Only what is wrong whatever the types of the fields are is told: syntax, functions that are
not there, numbers of arguments, and what sees more than its row or runs other code. Fields cannot
be wrong: each is one that a message may have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest
from penstock.core.sqltext import check_expression, tokens
from penstock.core.sqlvalues import check_values
from penstock.spark.connect.session import SparkRefusal, SparkSessions
from penstock.spark.expressions import column
from penstock.spark.sqlwall import OUTLINE_CONF, check_expressions
from penstock.spark.transforms.identifiers import in_backticks, names_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# As in the engine's Spark session: a function may be there, or not, in one dialect only.
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
    "it aggregates rows, and an expression sees its own: use metricsSpec, or queries"
)
# What is no part of the message: where functions live, Spark's number, the text the caller has.
_REST: Final = re.compile(r" on search path \[.*?\]|\.? SQLSTATE: \w+|\n[\s\S]*")


class ExpressionCheck:
    """Asks Spark about expressions; any thread may call it."""

    def __init__(self, sessions: SparkSessions) -> None:
        self._sessions = sessions.with_conf(EXPRESSION_CONF)

    def mistakes(self, expressions: Sequence[str]) -> list[str]:
        """Return for each expression what is wrong with it; empty text when nothing is.

        Raises:
            EngineUnavailable: Spark cannot be asked now.
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
                return _AGGREGATES  # Spark's own mend, GROUP BY or a window, is none here
            return _REST.sub("", text) if _WRONG.search(text) else ""
        return ""


def _analyse(spark: SparkSession, expression: str) -> None:
    # Here as everywhere: PySpark is imported when there is a session.
    from pyspark.sql import functions as sf  # noqa: PLC0415

    fields = [sf.lit("").alias(name) for name in _distinct(names_in(expression))]
    row = spark.range(1).select(sf.timestamp_millis(sf.lit(0)).alias(_TIME), *fields)
    # Asking for the plan makes Spark analyse it; the row itself is never computed.
    check_expressions(row.select(sf.expr(in_backticks(expression)), column(_TIME)))


def _distinct(names: Iterable[str]) -> Iterator[str]:
    """Yield each name once; Spark folds case."""
    seen = {_TIME}
    for name in names:
        if name.lower() not in seen:
            seen.add(name.lower())
            yield name
