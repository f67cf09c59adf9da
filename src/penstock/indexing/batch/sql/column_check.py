"""Checks by its tree whether a query can return a column of a given name. Pure.

A statement that writes is parsed without Spark, and its task may wait for hours, so a column that
is certainly missing is reported before that. Invariant: the answer is False only for a query that
cannot return the column; if the tree does not decide it (a `*` over a datasource, a pipe), the
answer is True, and the task detects it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from penstock.core.sql import tree

Tables: TypeAlias = Mapping[str, bool]
"""Whether each table that a statement defines itself can return the column, by folded name."""

# Expressions whose column is named after their text, or whose names are known.
_NAMED_BY_TEXT: Final = (
    *(tree.Call, tree.Operation, tree.Predicate, tree.Case, tree.Unary, tree.Number, tree.Text),
    *(tree.Constant, tree.TypedText, tree.Interval, tree.Subquery, tree.Exists, tree.Subscript),
)
# Calls that return columns with the names of the fields of a struct.
_OF_FIELDS: Final = frozenset({"inline", "inline_outer"})


def may_give(query: tree.Query, column: str, tables: Tables) -> bool:
    """Return False if a query certainly returns no column of a name.

    Args:
        query: The query.
        column: The name, in lower case.
        tables: Other tables that the query may read by name, and whether they can return it.
    """
    known = dict(tables)
    for one in query.definitions:
        given = may_give(one.query, column, known)
        known[one.name.lower()] = _has(one.columns, column) if one.columns else given
    return _body(query.body, column, known)


def _body(body: tree.Body, column: str, tables: Tables) -> bool:
    match body:
        case tree.Select():
            if any(_may_be_named(item, column) for item in body.items):
                return True
            # Once for all of them: otherwise each level of nested queries would multiply the work.
            has_star = any(isinstance(item, tree.Star) for item in body.items)
            return has_star and (body.source is None or _relation(body.source, column, tables))
        case tree.SetOperation():
            return _body(body.operands[0], column, tables)  # names of others do not matter
        case tree.Nested():
            return may_give(body.query, column, tables)
        case tree.Values():
            return _relation(body.table, column, tables)
        case tree.WholeTable():
            return _relation(body.table, column, tables)
        case _:
            return True


def _may_be_named(item: tree.Expression, column: str) -> bool:
    """Return whether an item of a SELECT, if it is not a `*`, may be a column of a name."""
    match item:
        case tree.Aliased():
            return _has(item.names, column)
        case tree.Name():
            return item.parts[-1].lower() == column
        case tree.Star():
            return False
        case tree.Call() if item.name[-1].lower() in _OF_FIELDS:
            return True
        case _ if isinstance(item, _NAMED_BY_TEXT):
            return False
        case _:  # such as a cast, which has the name of its column
            names = (one for one in tree.walk(item) if isinstance(one, tree.Name))
            return any(_has(one.parts, column) for one in names)


def _relation(relation: tree.Relation, column: str, tables: Tables) -> bool:
    """Return whether a `*` can return the column, from a relation after FROM."""
    waiting = [relation]
    while waiting:
        one = waiting.pop()
        match one:
            case _ if one.columns:
                given = _has(one.columns, column)
            case tree.Table():
                given = len(one.parts) > 1 or tables.get(one.parts[0].lower(), True)
            case tree.Derived():
                given = may_give(one.query, column, tables)
            case tree.Join():
                given = False
                waiting += [one.left, one.right]
            case tree.Grouped():
                given = False
                waiting.append(one.relation)
            case _:
                given = not isinstance(one, tree.InlineTable)  # it has col1, col2 and so on
        if given:
            return True
    return False


def _has(names: tuple[str, ...], column: str) -> bool:
    return any(name.lower() == column for name in names)
