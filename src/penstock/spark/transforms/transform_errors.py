"""Errors in a spec's expressions: the check before a task starts, and attribution at run time.

`ExpressionCheck` lets Spark analyse the expressions; nothing is executed.
It does not depend on specs, because the router uses it; any thread may call it. It reports only
errors that do not depend on field types: syntax, unknown functions, numbers of arguments, and
expressions that read other data than their row or run other code. An unknown field is not an error,
because any message may contain it. `translate_transform_errors` adds to a Spark error the
transforms or filters that may have raised it, because Spark's message contains the expression and
no name.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest
from penstock.core.sql.checked_expression import ParsedExpression, check_expression
from penstock.spark.connect.spark_sessions import SparkRefusal, SparkSessions
from penstock.spark.expressions import column
from penstock.spark.sql_guard import (
    GUARD_CONF,
    OUTLINE_CONF,
    check_expressions,
    relocated_error,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.indexing.specs import DataSchema


_RAISED: Final = "[USER_RAISED_EXCEPTION]"
_RAISING: Final = re.compile(r"\b(?:raise_error|assert_true)\s*\(", re.IGNORECASE)


@contextlib.contextmanager
def translate_transform_errors(schema: DataSchema) -> Iterator[None]:
    """Name the transforms that may have raised an error of the block.

    Raises:
        SparkRefusal: The error of the block, with the names.
    """
    try:
        yield
    except SparkRefusal as error:
        names = [t.name for t in schema.transforms if _RAISING.search(t.expression)]
        if _RAISED not in str(error) or not names:
            raise
        which = f"transform {names[0]!r}" if len(names) == 1 else f"one of the transforms {names}"
        raise SparkRefusal(
            f"{which} fails on a row, because its expression raises an error: {error}. Return null "
            "instead, or leave out such rows with the filter"
        ) from error


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
        self._sessions = sessions.with_conf({**EXPRESSION_CONF, **GUARD_CONF})

    def mistakes(self, expressions: Sequence[str]) -> list[str]:
        """Return the mistake of each expression, or an empty text.

        Raises:
            EngineUnavailable: Spark does not answer.
        """
        return [self._mistake(expression) for expression in expressions]

    def close(self) -> None:
        """End the Spark session."""
        self._sessions.close()

    def _mistake(self, expression: str) -> str:
        try:
            parsed = check_expression(expression)
        except InvalidRequest as error:
            return str(error)
        try:
            with self._sessions.use() as spark:
                _analyse(spark, parsed)
        except InvalidRequest as error:
            return str(error)
        except SparkRefusal as error:
            text = str(error)
            if "[MISSING_GROUP_BY]" in text:
                return _AGGREGATES  # Spark's advice, GROUP BY or a window, does not apply
            if not _WRONG.search(text):
                return ""
            return _REST.sub("", relocated_error(text, expression, first_line=1))
        return ""


def _analyse(spark: SparkSession, expression: ParsedExpression) -> None:
    # As everywhere, PySpark is imported once there is a session.
    from pyspark.sql import functions as sf  # noqa: PLC0415

    fields = [sf.lit("").alias(name) for name in _distinct(expression.columns())]
    row = spark.range(1).select(sf.timestamp_millis(sf.lit(0)).alias(_TIME), *fields)
    # Requesting the plan makes Spark analyse the expression; no row is computed.
    check_expressions(row.select(sf.expr(expression.in_spark()), column(_TIME)))


def _distinct(names: Iterable[str]) -> Iterator[str]:
    """Yield each name once, ignoring case as Spark does."""
    seen = {_TIME}
    for name in names:
        if name.lower() not in seen:
            seen.add(name.lower())
            yield name
