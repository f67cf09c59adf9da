"""Page of SQL: statements, functions, types and limits, from the checks in the code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from penstock.core import sql_sizes, sql_text, sql_values
from penstock.services.api.sql_results import CONTENT_TYPES
from penstock.spark.schema_columns import _DIMENSION_TYPES, _METRIC_TYPES
from penstock.spark.sql.service import SqlOptions
from penstock.spark.sql.sql_dialect import _NO_FUNCTION, _SYSTEM_TABLES, FUNCTIONS
from reference.markdown import head, sentence, table, written

_ABOUT: Final = """\
Which statements, functions and types SQL accepts, what replaces the functions of Druid, and the
limits of a query. Run statements with `penstock sql`, or `POST /druid/v2/sql`.
"""
_FUNCTIONS: Final = """\
All functions of Spark SQL 4.3 may be used; `SHOW FUNCTIONS` lists them, and
`DESCRIBE FUNCTION name` describes one. These are refused, and so are functions with the name of a
schema, such as `default.f`:
"""
_SCHEMAS: Final = """\
The schema of `from_json`, `from_csv` and `from_xml`, and the type of `variant_get` and
`try_variant_get`, must be one text in single quotes, such as `'a INT, b ARRAY<STRING>'`, or a call of
`schema_of_json`, `schema_of_csv`, `schema_of_xml` or `schema_of_variant`. Options of XML functions
must be written as `map('rowTag', 'item')`. `${…}` is refused in any statement: write `'$\\{…}'`, or use a
parameter. A text with a line that begins with `+- ` or `:- ` is refused.
"""
_DRUID: Final = """\
An error for a function that only Druid has says what to write instead. In these examples `text`,
`number`, `tags` (a list, which is stored as JSON text), `json`, `hll` and `theta` (sketches) are
columns.
"""
_OTHER_FORMS: Final = (
    ("`FLOOR(__time TO DAY)`", "`date_trunc('DAY', __time)`"),
    (
        "`CROSS JOIN UNNEST(tags) AS t (tag)`",
        "`LATERAL VIEW explode(from_json(tags, 'ARRAY<STRING>')) t AS tag`",
    ),
    ("`INFORMATION_SCHEMA`", "`SHOW TABLES`, `DESCRIBE datasource`"),
    ("`EXPLAIN PLAN FOR`", "`EXPLAIN`"),
)
_CONTEXT: Final = (
    (
        "sqlQueryId",
        "text",
        "Id of the query, 1 to 255 visible ASCII characters; default: a new one.",
    ),
    (
        "sqlOuterLimit",
        "whole number",
        "Maximum number of rows; it can only lower the limit of the server.",
    ),
    ("timeout", "milliseconds", "Maximum time; it can only lower the limit of the server."),
    (
        "sqlTimeZone",
        "`UTC`",
        "Other time zones are refused: use `from_utc_timestamp(__time, 'Europe/Berlin')`.",
    ),
    ("useProjection", "text", "Only this projection may answer. If it cannot, the error says why."),
    ("forceProjections", "`true`, `false`", "A projection must answer."),
    ("noProjections", "`true`, `false`", "No projection may answer."),
)


def page() -> str:
    """Return docs/reference/sql.md."""
    lines = [head("SQL", "the checks of statements", _ABOUT)]
    lines += ["", "## Statements", "", *written("sql_statements")]
    lines += ["", "## INSERT and REPLACE", "", *written("sql_writes")]
    lines += ["", "## Functions", "", *_FUNCTIONS.splitlines(), *_refused()]
    lines += ["", *_SCHEMAS.splitlines(), *_druid(), *_types()]
    lines += ["", "## Context of a query", "", "Other keys are accepted without effect."]
    rows = [(f"`{name}`", kind, about) for name, kind, about in _CONTEXT]
    lines += table(("key", "value", "meaning"), rows)
    formats = ", ".join(f"`{one}`" for one in CONTENT_TYPES)
    lines += ["", f"`resultFormat` of a request is one of {formats}."]
    lines += [*_limits(), "", "## Projections", "", *written("sql_projections")]
    return "\n".join(lines) + "\n"


def _refused() -> Iterator[str]:
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for name, reason in sql_text._FORBIDDEN_CALLS.items():  # noqa: SLF001 - the table of the page
        by_reason[reason].append(f"`{name}`")
    rows = [(", ".join(names), sentence(reason)) for reason, names in by_reason.items()]
    yield from table(("refused function", "reason"), rows)


def _druid() -> Iterator[str]:
    yield from ("", "## Functions of Druid", "", *_DRUID.splitlines())
    rows = [(f"`{name}`", f"`{text}`") for name, text in sorted(FUNCTIONS.items())]
    rows += [(f"`{name}`", sentence(text)) for name, text in _NO_FUNCTION.items()]
    yield from table(("Druid", "Spark SQL"), rows)
    rows = [
        *_OTHER_FORMS,
        *((f"`sys.{name}`", sentence(text)) for name, text in _SYSTEM_TABLES.items()),
    ]
    yield from table(("other forms of Druid", "here"), rows)


def _types() -> Iterator[str]:
    yield from ("", "## Types of columns")
    rows = [(f"`{name}` dimension", f"`{kind}`") for name, kind in _DIMENSION_TYPES.items()]
    rows += [(f"`{name}` metric", f"`{kind}`") for name, kind in _METRIC_TYPES.items()]
    yield from table(("column", "type in SQL"), [*rows, ("`__time`", "`timestamp`")])
    yield ""
    yield (
        "A list or a nested value is JSON text; `from_json(tags, 'ARRAY<STRING>')` makes it an array."
        " A column that only some segments have is null in the rows of the others. If its type differs"
        " between segments, numbers are read as `double`, and other combinations as text."
    )


def _limits() -> Iterator[str]:
    options = SqlOptions()
    rows = [
        (
            "rows of an answer",
            f"{options.row_limit:,}; the header `X-Penstock-Truncated` reports a cut",
        ),
        ("time of a query", f"{options.timeout_ms // 60_000} minutes"),
        ("characters of a statement", f"{sql_sizes.TEXT_MAX:,}"),
        ("words of a statement", f"{sql_sizes.TOKENS_MAX:,}"),
        ("parentheses within each other", f"{sql_sizes.NESTING_MAX:,}"),
        ("operators within each other", f"{sql_sizes.DEPTH_MAX:,}"),
        (
            "values of an `IN` list",
            f"{sql_sizes.IN_MAX:,} constants, or {sql_sizes.IN_COMPUTED_MAX:,} expressions",
        ),
        ("tables, after names of `WITH` are replaced", f"{sql_sizes.TABLES_MAX:,}"),
        ("set operators such as `UNION` in a row", f"{sql_sizes.UNIONS_MAX:,}"),
        ("pipes (`\\|>`)".replace("\\", ""), f"{sql_sizes.PIPES_MAX:,}"),
        ("grouping sets", f"{sql_sizes.GROUPING_SETS_MAX:,}"),
        ("size of one computed value", f"{sql_values.VALUE_BYTES_MAX >> 20} MiB"),
    ]
    yield from ("", "## Limits")
    yield from table(("of a query", "maximum"), rows)
