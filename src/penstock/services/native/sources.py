"""The rows that a native query reads: datasources, unions of them, and names of columns.

Owns `TableOutline`, what is known of a datasource before a query, and the text after FROM. The
answer of another query as a source is in `aggregate_statements`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import END_OF_TIME_MS, START_OF_TIME_MS, Interval
from penstock.indexing.specs.scalars import TIME_COLUMN
from penstock.services.native.filter_sql import condition, inside
from penstock.services.native.query_specs import (
    NativeQuery,
    TableSourceSpec,
    UnionSourceSpec,
)
from penstock.services.native.written_sql import (
    STATEMENT_MAX,
    NamedValues,
    Value,
    all_of,
    column_values,
    text_literal,
)
from penstock.spark.ddl import quoted
from penstock.spark.tables.table_columns import wider
from penstock.spark.tables.table_files import Columns

_OWN: Final = "n_"


@dataclass(frozen=True, slots=True)
class TableOutline:
    """A datasource as the principal of a query sees it.

    Attributes:
        name: Its stored name.
        columns: Its columns.
        intervals: The intervals of its files, in order and apart.
        size_bytes: Size of its files.
        is_limited: Whether the principal sees a part of its rows or values.
    """

    name: str
    columns: Columns
    intervals: tuple[Interval, ...]
    size_bytes: int = 0
    is_limited: bool = False


OutlineOf = Callable[[str, str], TableOutline]
"""Returns the outline of a datasource; raises InvalidRequest with the given place."""


@dataclass(frozen=True, slots=True)
class RowSource:
    """The rows of a query, after FROM.

    Attributes:
        sql: Its text.
        columns: The values of its columns, by name.
        spark_columns: Its columns with the types of Spark, in their order.
        intervals: Where its rows are, in order and apart.
        outlines: The datasources that it reads.
    """

    sql: str
    columns: dict[str, Value]
    spark_columns: Columns
    intervals: tuple[Interval, ...]
    outlines: tuple[TableOutline, ...]

    @property
    def extent(self) -> Interval | None:
        """The time from the first interval to the last one; None if there are no rows.

        All times, if the principal sees a part of the rows: those of files tell about the others.
        """
        if not self.intervals:
            return None
        if any(one.is_limited for one in self.outlines):
            return Interval(START_OF_TIME_MS, END_OF_TIME_MS)
        return Interval(self.intervals[0].start_ms, max(one.end_ms for one in self.intervals))

    @property
    def prefix(self) -> str:
        """A prefix of names in a statement that no column has."""
        prefix = _OWN
        while any(name.lower().startswith(prefix) for name in self.columns):
            prefix = f"{prefix}{_OWN}"
        return prefix


def tables_source(
    spec: TableSourceSpec | UnionSourceSpec, outline_of: OutlineOf, place: str
) -> RowSource:
    """Return the rows of one or several datasources.

    Raises:
        InvalidRequest: One does not exist for the principal.
    """
    if isinstance(spec, TableSourceSpec):
        outline = outline_of(spec.name, place)
        columns = column_values(outline.columns)
        own = quoted(outline.name)
        return RowSource(own, columns, outline.columns, outline.intervals, (outline,))
    outlines = [
        outline_of(one.name, f"{place}.dataSources[{number}]")
        for number, one in enumerate(spec.data_sources)
    ]
    types: dict[str, str] = {}
    for outline in outlines:
        for name, type_ in outline.columns:
            types[name] = wider(types.get(name, type_), type_)
    united = " UNION ALL ".join(_selected(one, types) for one in outlines)
    intervals = tuple(sorted(interval for one in outlines for interval in one.intervals))
    found = RowSource("", column_values(types.items()), tuple(types.items()), intervals, ())
    alias = f"{found.prefix}u"
    return replace(found, sql=f"({united}) AS {alias}", outlines=tuple(outlines))


def _selected(outline: TableOutline, types: dict[str, str]) -> str:
    own = dict(outline.columns)
    shown = (
        quoted(name)
        if own.get(name) == type_
        else f"CAST({quoted(name) if name in own else 'NULL'} AS {type_}) AS {quoted(name)}"
        for name, type_ in types.items()
    )
    rows = f"FROM {quoted(outline.name)}"
    return f"SELECT {', '.join(shown)} {rows}"


def scope_of(query: NativeQuery, source: RowSource, place: str) -> NamedValues:
    """Return the values that the names of a query stand for.

    Raises:
        InvalidRequest: A virtual column has no exact translation.
    """
    scope = NamedValues(dict(source.columns))
    for number, virtual in enumerate(query.virtual_columns):
        where = f"{place}virtualColumns[{number}].expression"
        value = scope.expression(virtual.expression, where)
        scope.values[virtual.name] = (
            value.cast(virtual.output_type) if virtual.output_type else value
        )
    return scope


def rows_of(query: NativeQuery, source: RowSource, scope: NamedValues, place: str) -> str:
    """Return the FROM and WHERE of a query. Arguments and errors as `conditions_of`."""
    return rows_where(source, conditions_of(query, source, scope, place))


def conditions_of(
    query: NativeQuery, source: RowSource, scope: NamedValues, place: str
) -> list[str]:
    """Return the conditions that the rows of a query fulfil.

    Args:
        query: The query.
        source: Its rows.
        scope: The values that its names stand for.
        place: Its place in the request, with a dot at its end; empty for the request itself.

    Raises:
        InvalidRequest: The filter names an unknown column.
    """
    conditions = [inside(source.columns[TIME_COLUMN], query.times)]
    if query.filter is not None:
        conditions.append(condition(query.filter, scope, f"{place}filter"))
    return conditions


def rows_where(source: RowSource, conditions: Iterable[str]) -> str:
    """Return the FROM and WHERE of the rows that fulfil all conditions."""
    where = all_of(one for one in conditions if one != "TRUE")
    return f"FROM {source.sql}" + (f" WHERE {where}" if where else "")


def clipped(intervals: Sequence[Interval], to: Interval | None) -> tuple[Interval, ...]:
    """Return the parts of intervals within another one."""
    if to is None:
        return ()
    parts = (one.intersection(to) for one in intervals)
    return tuple(one for one in parts if one is not None)


def checked_statement(sql: str) -> str:
    """Return a statement that is not too long.

    Raises:
        InvalidRequest: It is.
    """
    if len(sql) > STATEMENT_MAX:
        raise InvalidRequest(
            f"the query has {len(sql)} characters in SQL, more than {STATEMENT_MAX}: compute less"
            " in one query"
        )
    return sql


def check_names(names: Iterable[str], place: str = "") -> None:
    """Refuse outputs that share a name.

    Raises:
        InvalidRequest: Two do.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidRequest(
                f"two of its outputs are called {text_literal(name)}: rename one", place=place
            )
        seen.add(name)
