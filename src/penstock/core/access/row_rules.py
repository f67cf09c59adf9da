"""Row filters and column masks of roles: which rows and values of a datasource a principal sees.

Owns their text, its check, and the rule by which several roles combine. Pure. The conditions and
expressions are parsed here as those of specs are, and put into statements by
`penstock.spark.sql.limited_tables`.

They are SQL expressions over the columns of one row. Only the functions and nodes of lists are
allowed, so that no condition reads a file or another datasource, runs code, or changes its value
with time or chance.

Rules of combination: all filters of one role apply to its rows; with several roles that filter a
datasource, a principal sees the rows of each of them; a role without a filter changes nothing. A
column is masked if any role masks it, and null if two roles mask it differently.
"""

from __future__ import annotations

import contextlib
import hmac
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.core.access.rules import name_matches
from penstock.core.errors import InvalidRequest
from penstock.core.names import normalised
from penstock.core.printable import quoted
from penstock.core.similar_names import most_similar, nearest
from penstock.core.sql import tree
from penstock.core.sql.checked_expression import (
    ParsedExpression,
    check_expression,
    parsed_expression,
)
from penstock.core.sql.writer import written
from penstock.core.sql_text import place

HASH: Final = "hash"
"""Mask that replaces a text by its keyed hash."""
NULL: Final = "null"
"""Mask that hides a value."""

# Separates this key from those of bearer tokens, which are derived from the same secret.
_MASK_KEY: Final = b"penstock column masks 1"

EXPRESSION_CHARACTERS_MAX: Final = 4_000

FUNCTIONS: Final = frozenset(
    {"lower", "upper", "trim", "ltrim", "rtrim", "left", "right", "substr", "substring", "length"}
    | {"concat", "concat_ws", "replace", "regexp_replace", "startswith", "endswith", "contains"}
    | {"coalesce", "nullif", "ifnull", "nvl", "if", "isnull", "isnotnull", "greatest", "least"}
    | {"abs", "round", "floor", "ceil", "mod", "pmod", "cast", "try_cast", "array_contains"}
    | {"date_trunc", "to_date", "year", "month", "day", "hour", "dayofweek", "md5", "sha2"}
)
"""Functions that filters and masks may call. Each depends on its arguments alone."""

_OPERATORS: Final = frozenset(
    {"AND", "OR", "=", "==", "<=>", "<>", "!=", "<", "<=", ">", ">=", "||", "|"}
    | {"+", "-", "*", "/", "%", "DIV"}
)
# Nodes without a rule of their own. A type is always that of a cast.
_NODES: Final = (
    *(tree.Number, tree.Text, tree.Constant, tree.Cast, tree.DataType, tree.Case),
    *(tree.Row, tree.Field),
)
# Words that begin a part of a query, or that Spark evaluates although no column has this name.
_REFUSED: Final = frozenset(
    {"SELECT", "FROM", "WITH", "TABLE", "VALUES", "EXISTS", "WHERE", "GROUP", "ORDER", "HAVING"}
    | {"LIMIT", "OFFSET", "UNION", "EXCEPT", "INTERSECT", "MINUS", "JOIN", "LATERAL", "OVER"}
    | {"WINDOW", "USING", "MAP", "REDUCE", "TRANSFORM", "ON", "ANY", "SOME", "ALL", "DISTINCT"}
    | {"CURRENT_DATE", "CURRENT_TIMESTAMP", "CURRENT_TIME", "LOCALTIMESTAMP", "LOCALTIME", "NOW"}
    | {"CURRENT_USER", "SESSION_USER", "USER", "CURRENT_CATALOG", "CURRENT_SCHEMA"}
    | {"CURRENT_DATABASE", "CURRENT_TIMEZONE", "INTERVAL"}
)
_LITERALS: Final = frozenset({"DATE", "TIMESTAMP"})
# Functions whose first argument, or last one of date_trunc, is a time.
_OF_TIMES: Final = frozenset({"to_date", "year", "month", "day", "hour", "dayofweek"})
# Functions, and words of predicates, that convert their operands to a common type.
_COMMON: Final = frozenset({"coalesce", "nullif", "ifnull", "nvl", "if", "greatest", "least"})
_COMPARED: Final = frozenset({"BETWEEN", "IN", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"})
_TEXT_TYPES: Final = frozenset({"STRING", "VARCHAR", "CHAR", "CHARACTER"})
_TIME_COLUMN: Final = "__time"
_FIXED_TIME: Final = re.compile(r"[+-]?[0-9]", re.ASCII)
_OWN_ROW: Final = "a filter or mask sees only its own row, and depends on nothing else"
# The parentheses that `combined` and the statement of a limited table put around a condition.
_AROUND: Final = "(((("


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A condition that the visible rows of datasources meet.

    Attributes:
        pattern: The datasources: a name in which `*` stands for any characters.
        condition: A SQL condition over their columns.
    """

    pattern: str
    condition: str


@dataclass(frozen=True, slots=True)
class ColumnMask:
    """A replacement of the values of a column.

    Attributes:
        pattern: The datasources: a name in which `*` stands for any characters.
        column: The column, in any case.
        mask: `HASH`, or a SQL expression over the column, such as `null`.
    """

    pattern: str
    column: str
    mask: str


@dataclass(frozen=True, slots=True)
class RowRules:
    """Rows and values that a principal sees of a datasource that it may read.

    Attributes:
        condition: SQL condition of the visible rows; empty: all.
        masks: Masks of columns, by `folded_column` of their names, sorted.
    """

    condition: str = ""
    masks: tuple[tuple[str, str], ...] = ()

    @property
    def is_limited(self) -> bool:
        """Whether some rows or values are not visible."""
        return bool(self.condition or self.masks)


@dataclass(frozen=True, slots=True)
class AbsentColumns:
    """Columns that rules name and a datasource does not have, folded and sorted.

    Attributes:
        filtered: Those of the filter: no row can be shown.
        masked: Those of masks: a misspelt mask leaves the column that was meant as it is.
    """

    filtered: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.filtered or self.masked)

    def text(self, datasource: str, columns: Iterable[str]) -> str:
        """Return the problem and the remedy, for administrators."""
        known = sorted(columns)
        problems = [
            f"a {what} for datasource {quoted(datasource)} names the column {quoted(name)}, which"
            f" does not exist{_or_else(name, known)}, so {effect}"
            for what, names, effect in (
                ("row filter", self.filtered, "no row is shown"),
                ("mask", self.masked, "it hides nothing"),
            )
            for name in names
        ]
        return f"{'; '.join(problems)}: correct access.toml"


ALL_ROWS: Final = RowRules()
"""All rows and values are visible."""


class MaskKey:
    """The key with which masks hash values, the same for all processes of an installation.

    It changes with the key of the installation, and with it all hashes.

    Args:
        key: Returns the key of the installation; it is not read before the first hash. It may raise
            Unavailable.
    """

    def __init__(self, key: Callable[[], bytes]) -> None:
        self._key = key

    def __call__(self) -> str:
        """Return the key as 64 hexadecimal digits."""
        return hmac.digest(self._key(), _MASK_KEY, "sha256").hex()


def folded_column(name: str) -> str:
    """Return the form in which names of masked columns are compared: any case, normal form C."""
    return normalised(name.lower())


def combined(
    filters: Iterable[Sequence[RowFilter]], masks: Iterable[Sequence[ColumnMask]], datasource: str
) -> RowRules:
    """Return the rows and values of a datasource that a principal with several roles sees.

    Args:
        filters: The filters of each role.
        masks: The masks of each role.
        datasource: Its name, in normal form C.
    """
    groups = []
    for own in filters:
        matching = [one.condition for one in own if name_matches(one.pattern, datasource)]
        if matching:
            groups.append(" AND ".join(f"({one})" for one in matching))
    found: dict[str, str] = {}
    for role in masks:
        for one in role:
            if name_matches(one.pattern, datasource):
                column = folded_column(one.column)
                found[column] = one.mask if found.get(column, one.mask) == one.mask else NULL
    condition = groups[0] if len(groups) == 1 else " OR ".join(f"({one})" for one in groups)
    return RowRules(condition, tuple(sorted(found.items())))


def absent_columns(rules: RowRules, columns: Iterable[str]) -> AbsentColumns:
    """Return the columns that rules name and a datasource does not have.

    Args:
        rules: The rules.
        columns: The columns of the datasource.
    """
    known = {folded_column(one) for one in columns}
    named: set[str] = set()
    with contextlib.suppress(InvalidRequest):  # then it shows no row, and Spark reports it
        named.update(map(folded_column, parsed_expression(rules.condition).columns()))
    masked = {column for column, _ in rules.masks}
    return AbsentColumns(tuple(sorted(named - known)), tuple(sorted(masked - known)))


def _or_else(name: str, known: Iterable[str]) -> str:
    near = most_similar(name, known)
    return "" if near is None else f" (did you mean {quoted(near)}?)"


def check_condition(text: str, *, place: str) -> str:
    """Return the condition of a row filter if it may be used, without comments.

    Raises:
        InvalidRequest: It is not a condition over the columns of one row.
    """
    return _checked(text, None, place)


def check_mask(text: str, column: str, *, place: str) -> str:
    """Return a mask of a column if it may be used, without comments.

    Raises:
        InvalidRequest: It is not `HASH` and not an expression over this column alone.
    """
    return text if text == HASH else _checked(text, column, place)


def _checked(text: str, column: str | None, where: str) -> str:
    if len(text) > EXPRESSION_CHARACTERS_MAX or not text.isprintable() or not text.strip():
        raise InvalidRequest(
            f"must have 1 to {EXPRESSION_CHARACTERS_MAX:,} printable characters, on one line",
            place=where,
        )
    try:
        parsed = parsed_expression(text)
        for node in tree.walk(parsed.root):
            _check_node(parsed, node, column)
        check_expression(text)
        parsed_expression(f"{_AROUND}{text}\n{')' * len(_AROUND)}")
    except InvalidRequest as error:  # narrow: translates
        raise InvalidRequest(str(error), place=where) from None
    return written(text, parsed.tokens, parsed.root).strip()


def _check_node(parsed: ParsedExpression, node: tree.Node, column: str | None) -> None:
    token = parsed.tokens[node.start]
    where = place(parsed.sql, token.position)
    _check_times(parsed, node)
    match node:
        case tree.Name():
            if token.text in _REFUSED:
                raise InvalidRequest(
                    f"{token.text} is not allowed, {where}: {_OWN_ROW}; a column of that name is"
                    f' written "{token.name}"'
                )
            if column is not None and folded_column(node.parts[0]) != folded_column(column):
                raise InvalidRequest(
                    f"{node.parts[0]:.40} is not the masked column, {where}: the mask of a column"
                    f" may use only its own value, {quoted(column)}"
                )
        case tree.Call():
            name = node.name[-1].lower()
            has_clauses = any((node.within, node.condition, node.over, node.nulls, node.form))
            if name not in FUNCTIONS or node.is_distinct or has_clauses:
                raise InvalidRequest(
                    f"{node.name[-1]:.40}() is not allowed, {where}: use"
                    f" {', '.join(sorted(FUNCTIONS))}{nearest(name, FUNCTIONS)}"
                )
        case tree.Operation() if _OPERATORS.issuperset(node.operators):
            pass
        case tree.Unary() if node.operator != "~":
            pass
        case tree.Predicate() if not node.operator.endswith((" ANY", " SOME", " ALL")):
            pass
        case tree.TypedText() if node.type in _LITERALS:
            pass
        case tree.Subquery() | tree.Exists():
            raise InvalidRequest(f"a query is not allowed, {where}: {_OWN_ROW}")
        case _ if isinstance(node, _NODES):
            pass
        case _:
            last = parsed.tokens[node.end - 1]
            shown = parsed.sql[token.position : last.position + len(last.raw)]
            raise InvalidRequest(f"{shown:.40} is not allowed, {where}: {_OWN_ROW}")


def _check_times(parsed: ParsedExpression, node: tree.Node) -> None:
    """Refuse texts that Spark reads as a changing time, such as the word "today".

    Its optimizer replaces them wherever a constant text becomes a date or a timestamp, even for a
    comparison with one (source: the rule SpecialDatetimeValues of Spark).

    Raises:
        InvalidRequest: There is one.
    """
    for one in _read_as_times(node):
        if _may_change(one):
            first, last = parsed.tokens[one.start], parsed.tokens[one.end - 1]
            shown = parsed.sql[first.position : last.position + len(last.raw)]
            raise InvalidRequest(
                f"{shown:.40} is not allowed, {place(parsed.sql, first.position)}: a text that is"
                " read as a time must begin with a digit or a sign, so that it always is the same"
                " time; write one such as '2026-01-31'"
            )


def _read_as_times(node: tree.Node) -> Sequence[tree.Node]:
    """Return the operands of a node that Spark converts to a date or a timestamp."""
    match node:
        case tree.TypedText() if node.type in _LITERALS:
            return (node.text,)
        case tree.Cast() if node.type.name.startswith(tuple(_LITERALS)):
            return (node.value,)
        case tree.Call() if node.name[-1].lower() in _OF_TIMES:
            return node.arguments[:1]
        case tree.Call() if node.name[-1].lower() == "date_trunc":
            return node.arguments[-1:]
        case tree.Call() if node.name[-1].lower() not in _COMMON:
            return ()
        case tree.Predicate() if node.operator not in _COMPARED:
            return ()
        case tree.Operation() | tree.Predicate() | tree.Case() | tree.Call():
            operands = [*tree.children(node)]
            return operands if any(map(_is_time, operands)) else ()
        case _:
            return ()


def _is_time(node: tree.Node) -> bool:
    """Return whether a value is known to be a date or a timestamp."""
    match node:
        case tree.Row(items=(only,)):
            return _is_time(only)
        case tree.Name():
            return folded_column(node.parts[-1]) == _TIME_COLUMN
        case tree.TypedText():
            return node.type in _LITERALS
        case tree.Cast():
            return node.type.name.startswith(tuple(_LITERALS))
        case tree.Call() if node.name[-1].lower() in _COMMON:
            return any(map(_is_time, node.arguments))
        case tree.Call():
            return node.name[-1].lower() in {"to_date", "date_trunc"}
        case tree.Case():
            return any(map(_is_time, tree.children(node)))
        case _:
            return False


def _may_change(node: tree.Node) -> bool:
    """Return whether a value that is read as a time may be a text such as "now"."""
    while isinstance(node, tree.Row) and len(node.items) == 1:
        node = node.items[0]
    if isinstance(node, tree.Text):
        return _FIXED_TIME.match(node.value or "") is None
    if isinstance(node, tree.Number | tree.Constant | tree.Unary) or _is_time(node):
        return False
    if isinstance(node, tree.Operation) and "||" not in node.operators:
        return False
    if isinstance(node, tree.Cast) and node.type.name not in _TEXT_TYPES:
        return False
    # A constant text may be composed, as in 'no' || 'w'.
    return not any(isinstance(one, tree.Name) for one in tree.walk(node))
