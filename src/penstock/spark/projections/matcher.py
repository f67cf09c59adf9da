"""Decide whether a projection answers a query, and rewrite the query. Pure: uses only its tree.

A query is accepted if every node of it is known, and refused otherwise: the rows give the same
answer more slowly. An accepted query keeps its form (`rewriter`), so Spark checks and computes it
as over the rows. Names are compared as in Spark. Long queries are refused, so the cost of the
decision is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.core.sql import tree
from penstock.core.sql.checked_query import CheckedQuery
from penstock.core.sql.shapes import conjuncts
from penstock.spark.ddl import quoted
from penstock.spark.projections.grouped_query import GroupedQuery, NoMatch, read
from penstock.spark.projections.plan import ProjectionPlan
from penstock.spark.projections.projection_columns import ProjectionColumns, shape_of
from penstock.spark.projections.rewriter import QueryRewriter
from penstock.spark.tables.table_files import Columns

_LENGTH_MAX: Final = 10_000


def matched_query(
    query: CheckedQuery, datasource: str, plan: ProjectionPlan, columns: Columns, table: str
) -> str | None:
    """Return a query over a projection instead of the datasource; None if it cannot answer it.

    Args:
        query: The query; whether its names and types are valid in Spark is not checked.
        datasource: The datasource of the projection.
        plan: The projection.
        columns: (name, Spark SQL type) of all columns of the datasource.
        table: A table, or view, with the keys and measures of all groups by their stored names.
    """
    try:
        return _rewritten(query, datasource, plan, columns, table)
    except NoMatch:
        return None


def why_not(query: CheckedQuery, datasource: str, plan: ProjectionPlan, columns: Columns) -> str:
    """Summarize why a projection does not answer a query; empty if it does."""
    try:
        _rewritten(query, datasource, plan, columns, "t")
    except NoMatch as error:
        return str(error)
    return ""


def _rewritten(
    checked: CheckedQuery, datasource: str, plan: ProjectionPlan, columns: Columns, table: str
) -> str:
    if datasource.lower() not in checked.tables or len(checked.text) > _LENGTH_MAX:
        raise NoMatch(f"it is not a query of {datasource}, or longer than {_LENGTH_MAX} characters")
    query = read(checked, datasource)
    has = ProjectionColumns(plan, columns)
    shadows = _shadows(query, has)
    aliases = frozenset(item.alias.lower() for item in query.items if item.alias) - has.names
    if not plan.keys and query.select.groups is not None:
        raise NoMatch("it has one group for all rows, and the query has GROUP BY")
    time = None if "__time" in has.plain else has.time
    rewriter = QueryRewriter(query, has, time, aliases)
    is_named = not query.table.alias and query.qualifies()
    own = f" AS {quoted(query.table.parts[0])}" if is_named else ""
    rewriter.replace_table(quoted(table) + own)
    _rewrite(rewriter, plan.conditions, shadows)
    return rewriter.text()


def _shadows(query: GroupedQuery, has: ProjectionColumns) -> frozenset[str]:
    """Return the names of items that are also names of columns; refuse ambiguous names."""
    found: set[str] = set()
    names: list[str] = []
    for item in query.items:
        alias = item.alias.casefold()
        own = item.value.parts[-1].casefold() if isinstance(item.value, tree.Name) else ""
        names.append(alias or own)
        is_column = alias in has.columns
        if is_column and alias != own:
            found.add(alias)
        elif not is_column and alias in has.stored:
            raise NoMatch(f"the item name {item.alias} is ambiguous")
    for name in found:
        if names.count(name) > 1:
            raise NoMatch(f"several items have the name {name}")
    return frozenset(found)


def _rewrite(rewriter: QueryRewriter, conditions: tuple[str, ...], shadows: frozenset[str]) -> None:
    query = rewriter.query
    select = query.select
    sums_up = [rewriter.rewrite(item.value, sees_aliases=True) for item in query.items]
    if select.groups is None and not all(sums_up):
        raise NoMatch("it selects rows: it has no GROUP BY, and no aggregate in each item")
    if select.where is not None:
        _rewrite_where(rewriter, select.where, conditions)
    elif conditions:
        raise _without(conditions)
    for group in _groups(query):
        rewriter.rewrite(group, sees_aliases=True)
    # If an item's name is also a column, Spark resolves it to the column, except in HAVING and
    # ORDER BY. There it is the item if it is a whole expression, which stays.
    if select.having is not None:
        _check_names(query, select.having, shadows)
        rewriter.rewrite(select.having, sees_aliases=True)
    for sort in query.sorts:
        is_name = isinstance(sort.value, tree.Name) and len(sort.value.parts) == 1
        if not (is_name and query.column(sort.value) in shadows):
            _check_names(query, sort.value, shadows)
            rewriter.rewrite(sort.value, sees_aliases=True)


def _check_names(query: GroupedQuery, node: tree.Expression, shadows: frozenset[str]) -> None:
    for one in tree.walk(node):
        if isinstance(one, tree.Name) and not shadows.isdisjoint(map(str.casefold, one.parts)):
            raise NoMatch(f"{query.text(one)} may be an item or a column")


def _groups(query: GroupedQuery) -> Iterable[tree.Expression]:
    groups = query.select.groups
    if groups is None:
        return ()
    found = [one for one in groups.items if isinstance(one, tree.Expression)]
    if groups.sets is not None or len(found) < len(groups.items):
        raise NoMatch("ROLLUP, CUBE and GROUPING SETS are not supported")
    return found


def _rewrite_where(
    rewriter: QueryRewriter, where: tree.Expression, conditions: tuple[str, ...]
) -> None:
    """Rewrite WHERE; the projection's own conditions hold for all its rows."""
    wanted = {shape_of(text) for text in conditions}
    met = set()
    for one in conjuncts(where) if wanted else (where,):
        form = rewriter.shape(one)
        if form in wanted:
            met.add(form)
            rewriter.replace(one, "TRUE")
        else:
            rewriter.rewrite(one, sees_aliases=False)
    if met != wanted:
        raise _without(conditions)


def _without(conditions: tuple[str, ...]) -> NoMatch:
    return NoMatch(
        f"it has only rows with {' AND '.join(conditions)}, but WHERE has no such condition"
    )
