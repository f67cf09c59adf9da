"""Decide whether a projection answers a query, and rewrite the query. Pure: uses only its text.

A query is accepted if every token of it is known, and refused otherwise: the rows give the same
answer more slowly. An accepted query keeps its form (`rewriter`), so Spark checks and computes it
as over the rows. Names are compared as in Spark. Long queries are refused, so the cost of the
decision is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.sql_text import tokens
from penstock.spark.ddl import quoted
from penstock.spark.projections.parsed_query import (
    KEYWORDS,
    RESERVED,
    NoMatch,
    ParsedQuery,
    commas,
    is_number,
    read,
)
from penstock.spark.projections.plan import ProjectionPlan
from penstock.spark.projections.projection_columns import (
    Normal,
    ProjectionColumns,
    closing_parentheses,
    normal,
)
from penstock.spark.projections.rewriter import QueryRewriter, TokenSpan
from penstock.spark.tables.table_files import Columns

_LENGTH_MAX: Final = 10_000


def matched_query(
    sql: str, datasource: str, plan: ProjectionPlan, columns: Columns, table: str
) -> str | None:
    """Return a query over a projection instead of the datasource; None if it cannot answer it.

    Args:
        sql: The query; its validity in Spark is not checked.
        datasource: The datasource of the projection.
        plan: The projection.
        columns: (name, Spark SQL type) of all columns of the datasource.
        table: A table, or view, with the keys and measures of all groups by their stored names.
    """
    try:
        return _rewritten(sql, datasource, plan, columns, table)
    except (NoMatch, InvalidRequest):
        return None


def why_not(sql: str, datasource: str, plan: ProjectionPlan, columns: Columns) -> str:
    """Summarize why a projection does not answer a query; empty if it does."""
    try:
        _rewritten(sql, datasource, plan, columns, "t")
    except (NoMatch, InvalidRequest) as error:
        return str(error)
    return ""


def _rewritten(
    sql: str, datasource: str, plan: ProjectionPlan, columns: Columns, table: str
) -> str:
    _check_text(sql, datasource)
    block = read(sql, datasource)
    has = ProjectionColumns(plan, columns)
    shadows = _shadows(block, has)
    aliases = frozenset(item.alias.lower() for item in block.items if item.alias) - has.names
    if not plan.keys and "GROUP" in block.clauses:
        raise NoMatch("it has one group for all rows, and the query has GROUP BY")
    time = None if "__time" in has.plain else has.time
    query = QueryRewriter(block, normal(block.found), has, time, aliases)
    own = f" AS {quoted(block.own_name)}" if block.own_name else ""
    query.replace(block.table, block.table, quoted(table) + own)
    _rewrite(query, plan.conditions, shadows)
    return query.text()


def _check_text(sql: str, datasource: str) -> None:
    """Refuse at once a text that cannot be a query of the datasource."""
    is_plain = not {'"', "`"} & set(datasource)
    if len(sql) > _LENGTH_MAX or (is_plain and datasource.lower() not in sql.lower()):
        raise NoMatch(f"it is not a query of {datasource}, or longer than {_LENGTH_MAX} characters")


def _shadows(block: ParsedQuery, has: ProjectionColumns) -> frozenset[str]:
    """Return the names of items that are also names of columns; refuse ambiguous names."""
    for token in block.found:
        if token.text in KEYWORDS and token.name.casefold() in has.columns:
            raise NoMatch(f"{token.raw} is also a column: quote it")
    found: set[str] = set()
    names: list[str] = []
    for item in block.items:
        alias = item.alias.casefold()
        own = block.found[item.start].name.casefold() if item.end - item.start == 1 else ""
        names.append(alias or own)
        is_column = alias in has.columns
        if is_column and alias != own:
            found.add(alias)
        elif not is_column and (alias in has.stored or alias.upper() in KEYWORDS | RESERVED):
            raise NoMatch(f"the item name {item.alias} is ambiguous")
    for name in found:
        if names.count(name) > 1:
            raise NoMatch(f"several items have the name {name}")
    return frozenset(found)


def _rewrite(query: QueryRewriter, conditions: tuple[str, ...], shadows: frozenset[str]) -> None:
    block = query.block
    sums_up = [
        TokenSpan(query, range(item.start, item.end), sees_aliases=True).rewrite()
        for item in block.items
    ]
    if "GROUP" not in block.clauses and not all(sums_up):
        raise NoMatch("it selects rows: it has no GROUP BY, and no aggregate in each item")
    for name, span in block.clauses.items():
        if name == "WHERE":
            _rewrite_where(query, span, conditions)
        elif name in {"LIMIT", "OFFSET"}:
            token = block.found[span.start]
            if len(span) != 1 or not (is_number(token) or token.text == "?"):
                raise NoMatch(f"{name} has no number")
        elif name != "GROUP" or len(span) != 1 or block.found[span.start].text != "ALL":
            for part in _parts(block, name, span, shadows):
                TokenSpan(query, part, sees_aliases=True).rewrite()
    if conditions and "WHERE" not in block.clauses:
        raise _without(conditions)


def _parts(
    block: ParsedQuery, clause: str, span: range, shadows: frozenset[str]
) -> Iterator[range]:
    """Yield the parts of a clause to rewrite.

    If an item's name is also a column, Spark resolves it to the column, except in HAVING and ORDER
    BY. There it is the item if it is a whole expression, which stays; otherwise it is refused.
    """
    if not shadows or clause == "GROUP":
        yield span
        return
    for part in commas(block.found, span.start, span.stop):
        words = {block.found[at].text for at in part[1:]}
        first = block.found[part.start] if part else None
        is_item = first is not None and "." not in first.raw and first.name.casefold() in shadows
        if clause == "ORDER" and is_item and words <= {"ASC", "DESC", "NULLS", "FIRST", "LAST"}:
            continue
        for at in part:
            if block.found[at].name.casefold() in shadows:
                raise NoMatch(f"{block.found[at].raw} may be an item or a column")
        yield part


def _rewrite_where(query: QueryRewriter, span: range, conditions: tuple[str, ...]) -> None:
    """Rewrite WHERE; the projection's own conditions hold for all its rows."""
    if not conditions:
        TokenSpan(query, span, sees_aliases=False).rewrite()
        return
    wanted = {_unwrapped(normal(tokens(text))) for text in conditions}
    met: set[tuple[Normal, ...]] = set()
    for part in _conjuncts(query.block, span):
        form = _unwrapped(query.forms[part.start : part.stop])
        if form in wanted:
            met.add(form)
            query.replace(part.start, part.stop - 1, "TRUE")
        elif not part:
            raise NoMatch("a condition is empty")
        else:
            TokenSpan(query, part, sees_aliases=False).rewrite()
    if met != wanted:
        raise _without(conditions)


def _without(conditions: tuple[str, ...]) -> NoMatch:
    return NoMatch(
        f"it has only rows with {' AND '.join(conditions)}, but WHERE has no such condition"
    )


def _conjuncts(block: ParsedQuery, span: range) -> Iterator[range]:
    """Yield the conditions joined by AND; a single one if other operators join them."""
    ends: list[int] = []
    depth = 0
    between = False
    for at in span:
        word = block.found[at].text
        depth += {"(": 1, ")": -1, "CASE": 1, "END": -1}.get(word, 0)
        if depth:
            continue
        if word == "OR":
            ends = []
            break
        if word == "AND" and not between:
            ends.append(at)
        between = (between or word == "BETWEEN") and word != "AND"
    for start, end in pairwise([span.start - 1, *ends, span.stop]):
        yield range(start + 1, end)


def _unwrapped(form: tuple[Normal, ...]) -> tuple[Normal, ...]:
    """Return a condition without the parentheses around it."""
    closed, around = closing_parentheses(form), 0
    while closed.get(around) == len(form) - 1 - around:
        around += 1
    return form[around : len(form) - around]
