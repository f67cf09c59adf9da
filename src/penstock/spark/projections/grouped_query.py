"""Form of the queries that projections answer: one SELECT of one datasource. Pure.

Owns which clauses such a query may have, and the reasons why others are refused. The expressions in
its clauses are not checked.

The tables have the functions and types that are allowed in a query over a projection. Others may
mean something else over groups than over rows. A function is listed if its result depends only on
its arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.core.sql import tree
from penstock.core.sql.checked_query import CheckedQuery


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


AGGREGATES: Final = frozenset({"COUNT", "SUM", "MIN", "MAX", "AVG", "MEAN"})
TYPES: Final = _words(
    "STRING BIGINT LONG INT INTEGER SMALLINT TINYINT DOUBLE FLOAT DATE TIMESTAMP BOOLEAN"
)
FUNCTIONS: Final = _words("""
    ABS CEIL CEILING EXP FLOOR GREATEST LEAST LN LOG10 MOD POW POWER ROUND SIGN SQRT
    COALESCE IF IFNULL ISNOTNULL ISNULL NULLIF NVL CAST TRY_CAST TRY_DIVIDE
    BTRIM CHAR_LENGTH CONCAT CONCAT_WS CONTAINS ENDSWITH GET_JSON_OBJECT INSTR LEFT LENGTH LOWER
    LPAD LTRIM REGEXP_EXTRACT REGEXP_LIKE REGEXP_REPLACE REPLACE REVERSE RIGHT RPAD RTRIM
    STARTSWITH SUBSTR SUBSTRING TRANSLATE TRIM UPPER
    DATE DATE_ADD DATE_FORMAT DATE_SUB DATE_TRUNC DATEDIFF DAY DAYOFMONTH DAYOFWEEK DAYOFYEAR HOUR
    MINUTE MONTH QUARTER SECOND TIMESTAMP_MILLIS TO_DATE TO_TIMESTAMP UNIX_MILLIS WEEKDAY WEEKOFYEAR
    YEAR
    """)

WITHOUT_ZERO: Final = _words("""
    CHAR_LENGTH CONCAT_WS DATE DATE_FORMAT DATE_TRUNC DAY GET_JSON_OBJECT HOUR LENGTH LOWER MINUTE
    MONTH QUARTER SECOND SUBSTR SUBSTRING TO_DATE TRIM UNIX_MILLIS UPPER YEAR
    """)
"""Functions that return text, times or whole numbers, which have a single zero. CONCAT also
returns arrays."""

TRUNCATED: Final = _words("SECOND MINUTE HOUR DAY WEEK MONTH QUARTER YEAR")
"""Units to which `date_trunc` truncates."""

PARTS: Final = {
    **{part: part for part in _words("SECOND MINUTE HOUR DAY MONTH QUARTER YEAR")},
    **dict.fromkeys(("DAYOFMONTH", "DAYOFWEEK", "DAYOFYEAR", "WEEKDAY", "DATE", "TO_DATE"), "DAY"),
    "WEEKOFYEAR": "WEEK",
}
"""Functions that return a part of a time, with the unit by which they change."""

EXTRACTED: Final = {
    **{part: part for part in _words("MINUTE HOUR DAY WEEK MONTH QUARTER YEAR")},
    **dict.fromkeys(("DOY", "DOW", "DAYOFWEEK", "DAYOFWEEK_ISO"), "DAY"),
}
"""Fields of EXTRACT, with the unit by which they change; a second has a fraction."""

_SHOWN_MAX: Final = 60


class NoMatch(Exception):
    """The projection does not answer the query; the message summarizes why."""


@dataclass(frozen=True, slots=True)
class SelectItem:
    """One select item; `alias` is its name, if it has one, without quotes."""

    value: tree.Expression
    alias: str = ""


@dataclass(frozen=True, slots=True)
class GroupedQuery:
    """A query of one datasource.

    Attributes:
        checked: The query.
        select: Its SELECT.
        table: The datasource in its FROM.
        items: Its select items.
        sorts: The items of its ORDER BY.
    """

    checked: CheckedQuery
    select: tree.Select
    table: tree.Table
    items: tuple[SelectItem, ...]
    sorts: tuple[tree.SortItem, ...]

    @property
    def qualifier(self) -> str:
        """Return the name, in lower case, by which its columns may be qualified."""
        return (self.table.alias or self.table.parts[0]).lower()

    def column(self, node: tree.Expression) -> str:
        """Return the name of a column in lower case; empty if a node is not one."""
        if not isinstance(node, tree.Name):
            return ""
        if len(node.parts) == 1:
            return node.parts[0].lower()
        is_own = len(node.parts) == 2 and node.parts[0].lower() == self.qualifier
        return node.parts[1].lower() if is_own else ""

    def qualifies(self) -> bool:
        """Return whether a column has the name of the datasource before it."""
        return any(
            len(node.parts) == 2
            for node in tree.walk(self.checked.root)
            if isinstance(node, tree.Name)
        )

    def text(self, node: tree.Node) -> str:
        """Return the text of a node, for messages."""
        first, last = self.checked.tokens[node.start], self.checked.tokens[node.end - 1]
        found = self.checked.text[first.position : last.position + len(last.raw)]
        return found if len(found) <= _SHOWN_MAX else f"{found[:_SHOWN_MAX]}…"


def read(checked: CheckedQuery, datasource: str) -> GroupedQuery:
    """Return the parts of a query.

    Raises:
        NoMatch: It has another form, or reads another datasource.
    """
    root, select = checked.root, checked.root.body
    if root.definitions or not isinstance(select, tree.Select):
        raise NoMatch("it is not a plain SELECT")
    if select.hints:
        raise NoMatch("it has a hint")
    if select.source is None:
        raise NoMatch("it has no FROM")
    _check_clauses(root, select)
    return GroupedQuery(
        checked,
        select,
        _table(select.source, datasource),
        tuple(map(_item, select.items)),
        root.sorts[0].items if root.sorts else (),
    )


def _table(source: tree.Relation, datasource: str) -> tree.Table:
    if (
        not isinstance(source, tree.Table)
        or [part.lower() for part in source.parts] != [datasource.lower()]
        or source.columns
        or source.sample is not None
    ):
        raise NoMatch("FROM does not read only this datasource")
    return source


def _check_clauses(root: tree.Query, select: tree.Select) -> None:
    for word, has in (
        ("DISTINCT", select.is_distinct),
        ("QUALIFY", select.qualify is not None),
        ("WINDOW", bool(select.windows or root.windows)),
    ):
        if has:
            raise NoMatch(f"{word} is not supported here")
    for sort in root.sorts:
        if sort.kind != "ORDER BY" or len(root.sorts) > 1:
            raise NoMatch(f"{sort.kind} is not supported here")
    for word, value in (("LIMIT", root.limit), ("OFFSET", root.offset)):
        if not (value is None or isinstance(value, tree.Number | tree.Parameter)):
            raise NoMatch(f"{word} has no number")


def _item(item: tree.Expression) -> SelectItem:
    if not isinstance(item, tree.Aliased):
        return SelectItem(item)
    if item.is_list:
        raise NoMatch("several names of one item are not supported")
    return SelectItem(item.value, item.names[0])
