"""Page of Druid's SQL functions: the state of each, with an example, from the table in the code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from penstock.core.sql.druid_function_table import EVENTS, GROUPS, DruidFunction
from reference.markdown import fence, head, sentence, slug, table

STATUSES: Final[Mapping[str, str]] = {
    "works": "The same in Spark SQL.",
    "translated": "Written in Spark SQL before the query runs, with the same result.",
    "differs": "Accepted; the last but one column describes the difference.",
    "absent": "Refused; the error says what the last but one column says.",
}
_TEST: Final = "tests/spark/test_druid_functions.py"
_LINK: Final = f"[test_druid_functions](https://github.com/penstock/penstock/blob/main/{_TEST})"
_ABOUT: Final = """\
All functions of Druid's SQL, and what becomes of them in Penstock. Queries are written in Spark SQL;
functions that only Druid has are translated where Spark can express them exactly. A function that Spark
has, too, has Spark's meaning.
"""
_ROWS: Final = """\
A test runs each call over these rows. The result is that of the first row, or of all rows for an
aggregate. Columns with lists and nested values are JSON text, as in a datasource: where Druid has an array
or a multi-value string, a function accepts such a column, an array, or a call that returns one, and it
returns an array. A text in a column that is not a list counts as a list of one value.
"""
_FORMS: Final = """\
Calls are translated in queries and in statements that write; expressions of specs, row filters and masks
are Spark SQL. The aggregates accept `FILTER (WHERE …)`, and no `OVER`. Where a call cannot be translated, for
example because a period is a column, the error shows a call that can. An unknown name is refused with
the most similar function of Spark or Druid.
"""


def page() -> str:
    """Return docs/reference/druid-sql-functions.md."""
    lines = [head("Druid SQL functions", "the table of functions", _ABOUT)]
    lines += table(("status", "meaning"), STATUSES.items())
    lines += ["", '<div id="status-filter"></div>', "", "## Overview", *_overview()]
    lines += ["", "## Examples", "", *_ROWS.splitlines(), *fence("sql", EVENTS)]
    lines += ["", *_FORMS.splitlines()]
    for title, functions in GROUPS.items():
        lines += ["", f"## {title}", *_table(functions)]
    return "\n".join(lines) + "\n"


def _overview() -> Iterator[str]:
    rows = []
    for title, functions in GROUPS.items():
        count = Counter[str](one.state for one in functions.values())
        rows.append((f"[{title}](#{slug(title)})", *(str(count[one] or "") for one in STATUSES)))
    yield from table(("functions", *STATUSES), rows)


def _table(functions: Mapping[str, DruidFunction]) -> Iterator[str]:
    rows = [
        (
            f"`{name}`",
            one.state,
            f"`{one.example}`",
            f"`{one.value}`" if one.value and one.state != "absent" else "",
            _note(one),
            _LINK,
        )
        for name, one in functions.items()
    ]
    heads = ("function", "status", "call", "result", "what differs or what to do", "test")
    yield from table(heads, rows)


def _note(one: DruidFunction) -> str:
    if one.state != "absent" or not one.sql:
        return sentence(one.note)
    return f"{one.note or 'In Spark SQL:'} `{one.sql}`."
