"""Page of SQL: statements, functions, types and limits, from the checks in the code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from penstock.core import sql_sizes
from penstock.core.sql import call_check, sizes, values
from penstock.fastpath.sql_service import DEFAULT_ENGINE
from penstock.services.api.sql_results import CONTENT_TYPES
from penstock.spark.schema_columns import _DIMENSION_TYPES, _METRIC_TYPES
from penstock.spark.sql import constant_work
from penstock.spark.sql.service import SqlOptions
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
Functions that only Druid has are translated where Spark can express them exactly; other calls are refused,
and the error says what to write instead. [Druid SQL functions](druid-sql-functions.md) lists all of them
with examples. The schema `druid` may stand before a datasource, and `EXPLAIN PLAN FOR` is accepted.
"""
_OTHER_FORMS: Final = (
    ("`CROSS JOIN UNNEST(tags) AS t (tag)`", "The same: a row for each value of a list."),
    ("`ARRAY['a', 'b']`", "The same; of one value that is not a text: `array(1)`."),
    (
        "`JSON_OBJECT(KEY 'a' VALUE b)`, `JSON_VALUE(json, '$.a' RETURNING BIGINT)`",
        "The same, see [the functions](druid-sql-functions.md#json).",
    ),
    ("`INFORMATION_SCHEMA`, `sys`", "[Metadata tables](sql-metadata-tables.md), as in Druid."),
    ("`lookup.NAME`, `LOOKUP(key, 'name')`", "[Lookups](../howto/join-a-lookup.md), as in Druid."),
    ("`CAST(a AS VARCHAR)`", "The same: a text of any length."),
    ("`a / b` of whole numbers", "Differs: the quotient has a fraction; write `a DIV b`."),
    ("`'\\s+'`", "Differs: a backslash in a text is written twice, or as `r'\\s+'`."),
    ("`COUNT(DISTINCT a)`", "Differs: exact; write `APPROX_COUNT_DISTINCT(a)`."),
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
    (
        "engine",
        "`auto`, `spark`, `fast`",
        (
            "`fast`: the fast engine or an error; `auto`: Spark where it does not answer; default:"
            f" `{DEFAULT_ENGINE}`."
        ),
    ),
    (
        "useResultLevelCache",
        "`true`, `false`",
        "Whether the fast engine may return the kept answer of an equal query; default: `true`.",
    ),
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
    for name, reason in call_check.REFUSED_FUNCTIONS.items():
        by_reason[reason].append(f"`{name}`")
    rows = [(", ".join(names), sentence(reason)) for reason, names in by_reason.items()]
    yield from table(("refused function", "reason"), rows)


def _druid() -> Iterator[str]:
    yield from ("", "## Functions of Druid", "", *_DRUID.splitlines())
    yield from table(("forms of Druid", "here"), _OTHER_FORMS)


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
        ("operators within each other", f"{sizes.DEPTH_MAX:,}"),
        (
            "values of an `IN` list",
            f"{sizes.IN_MAX:,} constants, or {sizes.IN_COMPUTED_MAX:,} expressions",
        ),
        ("tables, after names of `WITH` are replaced", f"{sizes.TABLES_MAX:,}"),
        ("set operators such as `UNION` in a row", f"{sizes.UNIONS_MAX:,}"),
        ("pipes (`\\|>`)".replace("\\", ""), f"{sizes.PIPES_MAX:,}"),
        ("grouping sets", f"{sizes.GROUPING_SETS_MAX:,}"),
        ("size of one computed value", f"{values.VALUE_BYTES_MAX >> 20} MiB"),
        (
            "characters and elements of constants that `repeat`, `sequence` and the like make",
            (
                f"{constant_work.MADE_MAX:,} together; {constant_work.COSTLY_MAX:,} each, if the"
                " query calls `regexp_replace`, `split` or another function that makes more of them"
            ),
        ),
    ]
    yield from ("", "## Limits")
    yield from table(("of a query", "maximum"), rows)
