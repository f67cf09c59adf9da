"""Checks by its text whether a query can return a column of a given name. Pure.

A statement that writes is parsed without Spark, and its task may wait for hours, so a column that
is certainly missing is reported before that. Invariant: the answer is False only for a query that
cannot return the column; if the text does not decide it (a `*` over a datasource, a pipe, an
unknown form), the answer is True, and the task detects it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

from penstock.core.sql_text import Token

Tables: TypeAlias = Mapping[str, bool]
"""Whether each table that a statement defines itself can return the column, by folded name."""

_OPENING: Final = frozenset("([{")
_CLOSING: Final = frozenset(")]}")
_SET_OPERATORS: Final = frozenset({"UNION", "EXCEPT", "INTERSECT", "MINUS"})
# After these, FROM does not begin the tables: `IS DISTINCT FROM`, a field, an alias.
_BEFORE_OTHER_FROM: Final = frozenset({"DISTINCT", ".", "AS"})
_QUANTIFIERS: Final = frozenset({"DISTINCT", "ALL"})
# Calls whose column is named after their argument, or that make several columns.
_NAMED_INSIDE: Final = frozenset({"CAST", "TRY_CAST", "INLINE", "INLINE_OUTER"})


def may_give(query: Sequence[Token], column: str, tables: Tables) -> bool:
    """Return False if a query certainly returns no column of a name.

    Args:
        query: The tokens of the query.
        column: The name, in lower case.
        tables: Other tables that the query may read by name, and whether they can return it.
    """
    if not query:
        return True
    first = query[0].text
    if first == "(":
        end = _closing(query, 0)
        # Other branches of a UNION follow the parenthesis; their names do not matter.
        return may_give(query[1:end], column, tables)
    if first == "WITH":
        return _with_definitions(query, column, tables)
    if first == "SELECT":
        return _selected(query, column, tables)
    if first == "VALUES":
        return _names(query, column)
    return True


def _selected(query: Sequence[Token], column: str, tables: Tables) -> bool:
    if any((one.text, other.text) == ("|", ">") for one, other in pairwise(query)):
        return True
    begin = 1
    if query[begin : begin + 1] and query[begin].text in _QUANTIFIERS:
        begin += 1
    end = _from(query, begin)
    items = _items(query[begin:end])
    if any(_may_be_named(item, column) for item in items if not _has_star(item)):
        return True
    # Once for all of them: otherwise each level of nested queries would multiply the work.
    return any(map(_has_star, items)) and _star(query[end + 1 :], column, tables)


def _has_star(item: Sequence[Token]) -> bool:
    """Return whether an item of a SELECT is a `*`, perhaps without some columns."""
    return item[-1].text == "*" or any(
        one.text == "*" and other.text in {"EXCEPT", "REPLACE"} for one, other in pairwise(item)
    )


def _may_be_named(item: Sequence[Token], column: str) -> bool:
    """Return whether an item of a SELECT may be a column of a name."""
    if item[-1].name.lower() == column:
        return True
    if not _names(item, column):
        return False
    if any((one.text, other.text) == (":", ":") for one, other in pairwise(item)):
        return True
    if item[-1].text != ")":
        return False
    is_call = len(item) > 1 and item[1].text == "(" and _closing(item, 1) == len(item) - 1
    return not is_call or item[0].text in _NAMED_INSIDE


def _star(source: Sequence[Token], column: str, tables: Tables) -> bool:
    """Return whether a `*` can return the column, from the tables after FROM."""
    if not source:
        return True
    if source[0].text == "(":
        end = _closing(source, 0)
        given = may_give(source[1:end], column, tables)
        rest = source[end + 1 :]
    else:
        given = tables.get(source[0].name.lower(), True)
        rest = source[1:]
    # Further tables, or names for the columns of this one, may supply it.
    return given or any(one.text in {",", "JOIN", "(", "."} for one in rest)


def _with_definitions(query: Sequence[Token], column: str, tables: Tables) -> bool:
    known = dict(tables)
    at = 2 if len(query) > 1 and query[1].text == "RECURSIVE" else 1
    while at + 2 < len(query):
        name = query[at].name.lower()
        if query[at + 1].text != "AS" or query[at + 2].text != "(":
            return True  # its columns are named, or its form is unknown
        end = _closing(query, at + 2)
        known[name] = may_give(query[at + 3 : end], column, known)
        at = end + 2
        if query[end + 1 : end + 2] and query[end + 1].text == ",":
            continue
        return may_give(query[end + 1 :], column, known)
    return True


def _names(found: Sequence[Token], column: str) -> bool:
    return any(one.name.lower() == column for one in found)


def _items(found: Sequence[Token]) -> list[Sequence[Token]]:
    """Return the parts between the commas outside parentheses."""
    items: list[Sequence[Token]] = []
    depth = begin = 0
    for at, token in enumerate(found):
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
        if token.text == "," and not depth:
            items.append(found[begin:at])
            begin = at + 1
    return [item for item in (*items, found[begin:]) if item]


def _from(query: Sequence[Token], begin: int) -> int:
    """Return the index of the FROM of a SELECT, or the end."""
    depth = 0
    for at in range(begin, len(query)):
        token = query[at]
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
        if (
            token.text in _SET_OPERATORS
            and not depth
            and query[at - 1].text not in {".", "*", "AS"}
        ):
            return at
        is_from = token.text == "FROM" and not depth
        if is_from and query[at - 1].text not in _BEFORE_OTHER_FROM:
            return at
    return len(query)


def _closing(found: Sequence[Token], at: int) -> int:
    """Return the index of the parenthesis that closes the one at `at`, or the end."""
    depth = 0
    for index in range(at, len(found)):
        depth += (found[index].text in _OPENING) - (found[index].text in _CLOSING)
        if not depth:
            return index
    return len(found)
