"""Statements of the queries that aggregate: timeseries, topN and groupBy.

Owns the SQL of each, and which column of its answer is what. Names of outputs are not used in a
statement, because columns of the datasource may have the same ones: columns of the answer have
names that no column has, and `answers` gives them their own. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Granularity, Interval
from penstock.indexing.specs.scalars import TIME_COLUMN
from penstock.services.native.aggregation_sql import Aggregate, aggregate, post_aggregate
from penstock.services.native.answers import (
    NativeStatement,
    TimeseriesShape,
    grouped,
    timeseries,
    top,
)
from penstock.services.native.dimension_sql import BUCKETS_MAX, bucket_start, dimension_value
from penstock.services.native.filter_sql import condition
from penstock.services.native.query_specs import (
    AllHavingSpec,
    AnyHavingSpec,
    AnyMetric,
    AnySource,
    CompareHavingSpec,
    DefaultLimit,
    DimensionHavingSpec,
    FilterHavingSpec,
    FixedHavingSpec,
    GroupByQuery,
    InvertedMetric,
    NotHavingSpec,
    NumericMetric,
    QuerySourceSpec,
    TimeseriesQuery,
    TopNQuery,
)
from penstock.services.native.sources import (
    OutlineOf,
    RowSource,
    check_names,
    checked_statement,
    clipped,
    rows_of,
    scope_of,
    tables_source,
)
from penstock.services.native.written_sql import (
    NamedValues,
    Value,
    all_of,
    alphanumeric_key,
    any_of,
    check_characters,
    number_literal,
    text_literal,
    text_of,
    time_literal,
)
from penstock.spark.ddl import quoted

_COMPARISONS: Final[Mapping[str, str]] = {"equalTo": "=", "greaterThan": ">", "lessThan": "<"}
_SPARK_TYPES: Final[Mapping[str, str]] = {
    "LONG": "bigint",
    "DOUBLE": "double",
    "FLOAT": "float",
    "STRING": "string",
    "BOOLEAN": "boolean",
    "TIME": "timestamp",
    "OTHER": "string",
}


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a statement that aggregates.

    Attributes:
        source: Its rows.
        rows: FROM and WHERE.
        time: The start of the bucket; empty if there is one bucket.
        dimensions: Names and values of the dimensions.
        values: The aggregators and post-aggregators, by name.
    """

    source: RowSource
    rows: str
    time: str
    dimensions: Sequence[tuple[str, Value]]
    values: Mapping[str, Aggregate]

    @property
    def keys(self) -> list[str]:
        """The expressions that GROUP BY has."""
        own = [self.time] if self.time else []
        return own + [value.sql for _, value in self.dimensions]

    @property
    def outputs(self) -> list[tuple[str, Value]]:
        """Names and values of the dimensions, then of the aggregates."""
        return [*self.dimensions, *((name, one.value) for name, one in self.values.items())]

    def column(self, kind: str, number: int = 0) -> str:
        """Return the name of a column of the statement."""
        return f"{self.source.prefix}{kind}{number or ''}"

    def selected(self) -> list[str]:
        """Return the items of SELECT: the time, then the outputs."""
        own = [f"{self.time} AS {self.column('t')}"] if self.time else []
        items = [
            f"{value.sql} AS {self.column('c', number)}"
            for number, (_, value) in enumerate(self.outputs, 1)
        ]
        return own + (items or [f"count(*) AS {self.column('c', 1)}"])

    def column_of(self, name: str) -> tuple[str, Value] | None:
        """Return the column and the value of an output; None if there is none."""
        for number, (own, value) in enumerate(self.outputs, 1):
            if own == name:
                return self.column("c", number), value
        return None

    def group_clause(self) -> str:
        """Return GROUP BY; empty if all rows are one group."""
        return f" GROUP BY {', '.join(self.keys)}" if self.keys else ""


def source_of(spec: AnySource, outline_of: OutlineOf, place: str = "dataSource") -> RowSource:
    """Return the rows that a query reads.

    Raises:
        InvalidRequest: A datasource does not exist, or an inner query is not valid.
    """
    if not isinstance(spec, QuerySourceSpec):
        return tables_source(spec, outline_of, place)
    inner = spec.query
    where = f"{place}.query."
    parts = _parts(inner, outline_of, where)
    time = Value(parts.time or time_literal(inner.times[0].start_ms), "TIME")
    outputs = [(TIME_COLUMN, time), *parts.outputs]
    check_names((name.lower() for name, _ in outputs), f"{where}dimensions")
    items = ", ".join(f"{value.sql} AS {quoted(name)}" for name, value in outputs)
    sql = f"SELECT {items} {parts.rows}{parts.group_clause()}{_having(inner, parts, where)}"
    if isinstance(inner.limit_spec, DefaultLimit):
        order = _group_order(inner, parts, where, by_expression=True)
        sql += f"{order}{_limit(inner.limit_spec)}"
    columns = {name: Value(quoted(name), value.type) for name, value in outputs}
    types = tuple((name, _SPARK_TYPES[value.type]) for name, value in outputs)
    alias = f"{parts.source.prefix}q"
    return RowSource(
        f"({checked_statement(sql)}) AS {alias}",
        columns,
        types,
        parts.source.intervals,
        parts.source.outlines,
    )


def _parts(
    query: TimeseriesQuery | TopNQuery | GroupByQuery, outline_of: OutlineOf, place: str
) -> _Parts:
    source = source_of(query.datasource, outline_of, f"{place}dataSource")
    scope = scope_of(query, source, place)
    rows = rows_of(query, source, scope, place)
    buckets = query.buckets
    time = ""
    if buckets.name != "ALL":
        times = clipped(query.times, source.extent)
        own = source.columns[TIME_COLUMN].sql
        time = bucket_start(own, buckets, times, f"{place}granularity")
    specs = []
    if isinstance(query, GroupByQuery):
        specs = [(one, f"{place}dimensions[{n}]") for n, one in enumerate(query.dimensions)]
    elif isinstance(query, TopNQuery):
        specs = [(query.dimension, f"{place}dimension")]
    dimensions: list[tuple[str, Value]] = []
    characters = 0
    for dimension, where in specs:
        value = dimension_value(dimension, scope, buckets, where)
        dimensions.append((dimension.name, value))
        characters += len(value.sql)
        check_characters(characters, where)
    values: dict[str, Aggregate] = {}
    names = [name for name, _ in dimensions]
    characters = 0
    for number, spec in enumerate(query.aggregations):
        names.append(spec.name)
        where = f"{place}aggregations[{number}]"
        found = values[spec.name] = aggregate(spec, scope, where)
        characters += len(found.value.sql)
        check_characters(characters, where)
    characters = 0
    for number, post in enumerate(query.post_aggregations):
        known = {**{n: Aggregate(v) for n, v in dimensions}, **values}
        names.append(post.name or "")
        where = f"{place}postAggregations[{number}]"
        found = values[post.name or ""] = post_aggregate(post, known, where)
        characters += len(found.value.sql)
        check_characters(characters, where)
    check_names(names)
    return _Parts(source, rows, time, dimensions, values)


def group_by_statement(query: GroupByQuery, outline_of: OutlineOf) -> NativeStatement:
    """Return the statement of a groupBy.

    Raises:
        InvalidRequest: A part of it is not valid for its datasource.
    """
    parts = _parts(query, outline_of, "")
    sql = f"SELECT {', '.join(parts.selected())} {parts.rows}{parts.group_clause()}"
    sql += _having(query, parts, "") + _group_order(query, parts, "")
    if isinstance(query.limit_spec, DefaultLimit):
        sql += _limit(query.limit_spec)
    names = [name for name, _ in parts.outputs]
    start_ms = None if parts.time else query.times[0].start_ms
    return NativeStatement(checked_statement(sql), partial(grouped, names=names, start_ms=start_ms))


def _limit(spec: DefaultLimit) -> str:
    limit = "" if spec.limit is None else f" LIMIT {spec.limit}"
    return limit + (f" OFFSET {spec.offset}" if spec.offset else "")


def _group_order(
    query: GroupByQuery, parts: _Parts, place: str, *, by_expression: bool = False
) -> str:
    spec = query.limit_spec
    items = []
    if parts.time:
        items.append(parts.time if by_expression else parts.column("t"))
    columns = spec.columns if isinstance(spec, DefaultLimit) else ()
    for number, one in enumerate(columns):
        where = f"{place}limitSpec.columns[{number}].dimension"
        found = parts.column_of(one.dimension)
        if found is None:
            raise _unknown_output(one.dimension, parts, where)
        column, value = found
        own = value if by_expression else Value(column, value.type)
        is_dimension = any(name == one.dimension for name, _ in parts.dimensions)
        order = one.dimension_order if is_dimension else "natural"
        items += _ordered(own, order, is_descending=one.direction == "descending")
        check_characters(sum(map(len, items)), where)
    if not columns:
        for name, value in parts.dimensions:
            found = parts.column_of(name)
            assert found is not None
            items.append(value.sql if by_expression else found[0])
    return f" ORDER BY {', '.join(items)}" if items else ""


def _ordered(value: Value, order: str, *, is_descending: bool) -> list[str]:
    """Return the items of ORDER BY for one of Druid's orders; null comes before all values."""
    keys = [value.sql]
    if order == "lexicographic":
        keys = [value.text]
    elif order == "strlen":
        keys = [f"length({value.text})", value.text]
    elif order == "alphanumeric":
        keys = [alphanumeric_key(value.text), value.text]
    elif order == "numeric":
        keys = [value.number] if value.type != "STRING" else [value.number, value.sql]
    return [f"{key} DESC" if is_descending else key for key in keys]


def _unknown_output(name: str, parts: _Parts, place: str) -> InvalidRequest:
    scope = NamedValues(dict(parts.outputs), "dimension, aggregator or post-aggregator")
    try:
        scope.of(name, place)
    except InvalidRequest as error:
        return error
    raise AssertionError("an unknown name was found")


def _having(query: GroupByQuery, parts: _Parts, place: str) -> str:
    conditions = []
    if not parts.keys:
        conditions.append("(count(*) > 0)")  # without rows, there is no group
    if query.having is not None:
        conditions.append(_having_condition(query.having, parts, f"{place}having"))
    found = all_of(conditions)
    return f" HAVING {found}" if found else ""


def _having_condition(spec: AnyHavingSpec, parts: _Parts, place: str) -> str:
    scope = NamedValues(dict(parts.outputs), "dimension, aggregator or post-aggregator")
    match spec:
        case CompareHavingSpec():
            value = scope.of(spec.aggregation, f"{place}.aggregation")
            return f"({value.number} {_COMPARISONS[spec.type]} {number_literal(spec.value)})"
        case DimensionHavingSpec():
            value = scope.of(spec.dimension, f"{place}.dimension")
            if spec.value is None:
                return f"({value.sql} IS NULL)"
            return f"({value.text} = {text_literal(text_of(spec.value))})"
        case AllHavingSpec():
            found: list[str] = []
            for number, one in enumerate(spec.having_specs):
                found.append(_having_condition(one, parts, f"{place}.havingSpecs[{number}]"))
                check_characters(sum(map(len, found)), place)
            return all_of(found) if spec.type == "and" else any_of(found)
        case NotHavingSpec():
            # A comparison with a missing value is false here, unlike in a filter.
            own = _having_condition(spec.having_spec, parts, f"{place}.havingSpec")
            return f"(NOT coalesce({own}, FALSE))"
        case FilterHavingSpec():
            if parts.time:
                scope.values.setdefault(TIME_COLUMN, Value(parts.time, "TIME"))
            return condition(spec.filter, scope, f"{place}.filter")
        case FixedHavingSpec():
            return "TRUE" if spec.type == "always" else "FALSE"


def top_statement(query: TopNQuery, outline_of: OutlineOf) -> NativeStatement:
    """Return the statement of a topN, which is exact here.

    Raises:
        InvalidRequest: A part of it is not valid for its datasource.
    """
    parts = _parts(query, outline_of, "")
    order, stop = _top_order(query.metric, parts)
    having = f" HAVING {stop}" if stop else ""
    selected = parts.selected()
    names = [name for name, _ in parts.outputs]
    start_ms = None if parts.time else query.times[0].start_ms
    if parts.time:
        rank = parts.column("r")
        window = f"row_number() OVER (PARTITION BY {parts.time} ORDER BY {', '.join(order)})"
        inner = f"SELECT {', '.join([*selected, f'{window} AS {rank}'])} {parts.rows}"
        inner += f"{parts.group_clause()}{having}"
        columns = [parts.column("t"), *(parts.column("c", n) for n in range(1, len(names) + 1))]
        sql = f"SELECT {', '.join(columns)} "
        sql += f"FROM ({inner}) AS {parts.column('q')} WHERE ({rank} <= {query.threshold})"
        sql += f" ORDER BY {parts.column('t')}, {rank}"
    else:
        sql = f"SELECT {', '.join(selected)} {parts.rows}{parts.group_clause()}{having}"
        sql += f" ORDER BY {', '.join(order)} LIMIT {query.threshold}"
    return NativeStatement(checked_statement(sql), partial(top, names=names, start_ms=start_ms))


def _top_order(metric: AnyMetric, parts: _Parts) -> tuple[list[str], str]:
    """Return the items of ORDER BY, and the condition of `previousStop`."""
    place, is_inverted = "metric", False
    while isinstance(metric, InvertedMetric):
        metric, place, is_inverted = metric.metric, f"{place}.metric", not is_inverted
    (_, dimension), *_ = parts.dimensions
    if isinstance(metric, NumericMetric):
        found = parts.values.get(metric.metric)
        if found is None:
            raise _unknown_output(metric.metric, parts, f"{place}.metric")
        order = _ordered(found.value, "natural", is_descending=not is_inverted)
        return [*order, dimension.sql], ""
    order = _ordered(dimension, metric.ordering, is_descending=is_inverted)
    stop = ""
    if metric.previous_stop is not None:
        operator = "<" if is_inverted else ">"
        own, literal = dimension.text, text_literal(metric.previous_stop)
        if metric.ordering == "numeric":
            own, literal = dimension.number, f"TRY_CAST({literal} AS DOUBLE)"
        elif metric.ordering in {"strlen", "alphanumeric"}:
            raise InvalidRequest(
                f"is not supported with the ordering {metric.ordering}: leave it out",
                place=f"{place}.previousStop",
            )
        stop = f"({own} {operator} {literal})"
    return order, stop


def timeseries_statement(
    query: TimeseriesQuery, outline_of: OutlineOf, now_ms: int
) -> NativeStatement:
    """Return the statement of a timeseries.

    Args:
        query: The query.
        outline_of: Returns the outlines of datasources.
        now_ms: The time of the request: buckets after it are not filled.

    Raises:
        InvalidRequest: A part of it is not valid for its datasource, or too many buckets of time
            would be filled.
    """
    parts = _parts(query, outline_of, "")
    skips = query.flag("skipEmptyBuckets")
    has_total = query.flag("grandTotal")
    fills = bool(parts.time) and not skips
    starts = _bucket_starts(query, parts.source, now_ms) if fills else []
    is_known = all(one.is_known_empty for one in parts.values.values())
    kind = parts.column("k")
    direction = " DESC" if query.descending else ""
    has_kinds = has_total or (fills and not is_known)
    items = [f"1 AS {kind}"] * has_kinds + parts.selected()
    sql = f"SELECT {', '.join(items)} {parts.rows}{parts.group_clause()}"
    if not parts.time and skips:
        sql += " HAVING (count(*) > 0)"  # all rows are one group, even if there are none
    if fills and not is_known:
        sql += f" UNION ALL {_extra(parts, 0, f'FROM {parts.source.sql} WHERE FALSE')}"
    if has_total:
        sql += f" UNION ALL {_extra(parts, 2, parts.rows)}"
    order = [kind] * has_kinds + [f"{parts.column('t')}{direction}"] * bool(parts.time)
    if order:
        sql += f" ORDER BY {', '.join(order)}"
    if query.limit is not None and not fills and not has_kinds:
        sql += f" LIMIT {query.limit}"
    shape = TimeseriesShape(
        names=tuple(name for name, _ in parts.outputs),
        start_ms=None if parts.time else query.times[0].start_ms,
        starts=tuple(reversed(starts)) if query.descending else tuple(starts),
        empty=tuple(one.empty for one in parts.values.values()),
        has_kinds=has_kinds,
        is_descending=query.descending,
        limit=query.limit,
    )
    return NativeStatement(checked_statement(sql), partial(timeseries, shape=shape))


def _extra(parts: _Parts, kind: int, rows: str) -> str:
    time = ["CAST(NULL AS TIMESTAMP)"] if parts.time else []
    values = [one.value.sql for one in parts.values.values()] or ["count(*)"]
    return f"SELECT {', '.join([str(kind), *time, *values])} {rows}"


def _bucket_starts(query: TimeseriesQuery, source: RowSource, now_ms: int) -> list[int]:
    """Return the starts of the buckets that the answer has, also without rows."""
    extent = source.extent
    if extent is None or extent.start_ms >= now_ms:
        return []
    if any(one.is_limited for one in source.outlines):
        return []  # the extent tells about rows that the principal does not see
    extent = Interval(extent.start_ms, min(extent.end_ms, now_ms))
    return filled_starts(query.buckets, clipped(query.times, extent))


def filled_starts(buckets: Granularity, intervals: Sequence[Interval]) -> list[int]:
    """Return the starts of all buckets of some intervals, in order.

    Raises:
        InvalidRequest: They are too many.
    """
    found: dict[int, None] = {}
    for interval in intervals:
        if buckets.fixed_ms and interval.length_ms // buckets.fixed_ms > BUCKETS_MAX:
            raise _too_many(buckets)
        for bucket in buckets.buckets(interval):
            found[bucket.start_ms] = None
            if len(found) > BUCKETS_MAX:
                raise _too_many(buckets)
    return list(found)


def _too_many(buckets: Granularity) -> InvalidRequest:
    return InvalidRequest(
        f"the intervals have more than {BUCKETS_MAX} buckets of {buckets}, and each is in the"
        " answer, also without rows: use a coarser granularity, shorter intervals, or"
        ' "skipEmptyBuckets": true in the context',
        place="granularity",
    )
