"""Which queries a projection answers, and how they then read. Pure: the text of a query alone.

A query is taken if every token of it is known, and refused otherwise: the rows give the same answer
later. What is taken keeps its shape (`rewriting`), so Spark checks and computes it as it would over
the rows. Names compare as Spark compares them. Long queries are refused, so the cost is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.sqltext import tokens
from penstock.spark.projections.block import Block, NoMatch, commas, is_number, read
from penstock.spark.projections.holdings import Holdings, Normal, closings, normal
from penstock.spark.projections.plan import ProjectionPlan
from penstock.spark.projections.rewriting import Part, Rewriting
from penstock.spark.projections.words import KEYWORDS, RESERVED
from penstock.spark.schematext import quoted
from penstock.spark.tables.model import Columns

_LENGTH_MAX: Final = 10_000


def rewritten(
    sql: str, datasource: str, plan: ProjectionPlan, columns: Columns, table: str
) -> str | None:
    """Return a query over a projection instead of the datasource; None if it does not answer it.

    Args:
        sql: The query; whether Spark takes it is not looked at.
        datasource: What the projection is of.
        plan: The projection.
        columns: (name, Spark SQL type) of all columns of the datasource.
        table: A table, or view, with the keys and measures of all groups by their stored names.
    """
    try:
        return _rewritten(sql, datasource, plan, columns, table)
    except (NoMatch, InvalidRequest):
        return None


def why_not(sql: str, datasource: str, plan: ProjectionPlan, columns: Columns) -> str:
    """Return in a few words why a projection does not answer a query; empty if it does."""
    try:
        _rewritten(sql, datasource, plan, columns, "t")
    except (NoMatch, InvalidRequest) as error:
        return str(error)
    return ""


def _rewritten(
    sql: str, datasource: str, plan: ProjectionPlan, columns: Columns, table: str
) -> str:
    _look(sql, datasource)
    block = read(sql, datasource)
    has = Holdings(plan, columns)
    shadows = _shadows(block, has)
    aliases = frozenset(item.alias.lower() for item in block.items if item.alias) - has.names
    if not plan.keys and "GROUP" in block.clauses:
        raise NoMatch("it has one group for all rows, and the query has GROUP BY")
    time = None if "__time" in has.plain else has.time
    query = Rewriting(block, normal(block.found), has, time, aliases)
    own = f" AS {quoted(block.own_name)}" if block.own_name else ""
    query.replace(block.table, block.table, quoted(table) + own)
    _rewrite(query, plan.conditions, shadows)
    return query.text()


def _look(sql: str, datasource: str) -> None:
    """Refuse at once what cannot be a query of the datasource."""
    is_plain = not {'"', "`"} & set(datasource)
    if len(sql) > _LENGTH_MAX or (is_plain and datasource.lower() not in sql.lower()):
        raise NoMatch(f"it is no query of {datasource}, or longer than {_LENGTH_MAX} characters")


def _shadows(block: Block, has: Holdings) -> frozenset[str]:
    """Return the names of items that are those of other columns; refuse what may be two things."""
    for token in block.found:
        if token.text in KEYWORDS and token.name.casefold() in has.columns:
            raise NoMatch(f"{token.raw} is a column, too: quote it")
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
            raise NoMatch(f"the name {item.alias} of an item is that of something else, too")
    for name in found:
        if names.count(name) > 1:
            raise NoMatch(f"several items are named {name}")
    return frozenset(found)


def _rewrite(query: Rewriting, conditions: tuple[str, ...], shadows: frozenset[str]) -> None:
    block = query.block
    sums_up = [
        Part(query, range(item.start, item.end), sees_aliases=True).rewrite()
        for item in block.items
    ]
    if "GROUP" not in block.clauses and not all(sums_up):
        raise NoMatch("it asks for rows: it has no GROUP BY, and no aggregate in each item")
    for name, span in block.clauses.items():
        if name == "WHERE":
            _rewrite_where(query, span, conditions)
        elif name in {"LIMIT", "OFFSET"}:
            token = block.found[span.start]
            if len(span) != 1 or not (is_number(token) or token.text == "?"):
                raise NoMatch(f"{name} has no number")
        elif name != "GROUP" or len(span) != 1 or block.found[span.start].text != "ALL":
            for part in _parts(block, name, span, shadows):
                Part(query, part, sees_aliases=True).rewrite()
    if conditions and "WHERE" not in block.clauses:
        raise _without(conditions)


def _parts(block: Block, clause: str, span: range, shadows: frozenset[str]) -> Iterator[range]:
    """Yield what is to be rewritten of a clause.

    Where the name of an item is that of a column, too, Spark takes the column but in HAVING and
    ORDER BY. There it is the item where it stands alone, which stays; else it is not known.
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


def _rewrite_where(query: Rewriting, span: range, conditions: tuple[str, ...]) -> None:
    """Rewrite WHERE; what the projection is of is true of all that it has."""
    if not conditions:
        Part(query, span, sees_aliases=False).rewrite()
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
            Part(query, part, sees_aliases=False).rewrite()
    if met != wanted:
        raise _without(conditions)


def _without(conditions: tuple[str, ...]) -> NoMatch:
    return NoMatch(f"it is of rows with {' AND '.join(conditions)}, which WHERE does not ask for")


def _conjuncts(block: Block, span: range) -> Iterator[range]:
    """Yield the conditions that must all be true: one, if some are joined otherwise."""
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
    closed, around = closings(form), 0
    while closed.get(around) == len(form) - 1 - around:
        around += 1
    return form[around : len(form) - around]
