"""Statements of the other queries: scan, search, timeBoundary, and the metadata of datasources.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.indexing.specs.scalars import TIME_COLUMN
from penstock.services.native.aggregate_statements import (
    group_by_statement,
    source_of,
    timeseries_statement,
    top_statement,
)
from penstock.services.native.answers import (
    ColumnFacts,
    NativeStatement,
    boundary,
    described,
    scanned,
    top,
)
from penstock.services.native.dimension_specs import DefaultDimension, search_pattern
from penstock.services.native.dimension_sql import bucket_start, dimension_value
from penstock.services.native.query_specs import (
    SEARCHED_MAX,
    AnyQuery,
    DatasourceMetadataQuery,
    GroupByQuery,
    ScanQuery,
    SearchQuery,
    SegmentMetadataQuery,
    TimeBoundaryQuery,
    TimeseriesQuery,
    TopNQuery,
)
from penstock.services.native.sources import (
    OutlineOf,
    RowSource,
    check_names,
    checked_statement,
    clipped,
    conditions_of,
    rows_of,
    rows_where,
    scope_of,
)
from penstock.services.native.written_sql import (
    Value,
    ValueType,
    alphanumeric_key,
    matches_all,
    text_literal,
)

_SIGNATURES: Final[Mapping[ValueType, str]] = {
    "BOOLEAN": "LONG",
    "TIME": "LONG",
    "OTHER": "COMPLEX<other>",
}
_SEARCH_NAMES: Final = ("dimension", "value", "count")


def statement_of(query: AnyQuery, outline_of: OutlineOf, now_ms: int) -> NativeStatement:
    """Return the statement of a query.

    Args:
        query: The query.
        outline_of: Returns the outlines of datasources.
        now_ms: The time of the request.

    Raises:
        InvalidRequest: A part of it is not valid for its datasource; the message has the place.
    """
    match query:
        case TimeseriesQuery():
            return timeseries_statement(query, outline_of, now_ms)
        case TopNQuery():
            return top_statement(query, outline_of)
        case GroupByQuery():
            return group_by_statement(query, outline_of)
        case ScanQuery():
            return _scan(query, outline_of)
        case SearchQuery():
            return _search(query, outline_of)
        case TimeBoundaryQuery() | DatasourceMetadataQuery():
            return _boundary(query, outline_of)
        case SegmentMetadataQuery():
            return _metadata(query, outline_of)


def _scan(query: ScanQuery, outline_of: OutlineOf) -> NativeStatement:
    source = source_of(query.datasource, outline_of)
    scope = scope_of(query, source, "")
    check_names(query.columns, "columns")
    virtual = [one.name for one in query.virtual_columns if one.name not in source.columns]
    names = query.columns or (*source.columns, *virtual)
    values = [
        (name, scope.of(name, f"columns[{number}]").plain) for number, name in enumerate(names)
    ]
    prefix = source.prefix
    items = ", ".join(f"{value.sql} AS {prefix}c{n}" for n, (_, value) in enumerate(values))
    sql = f"SELECT {items} {rows_of(query, source, scope, '')}"
    order = [
        f"{scope.of(one.column_name, f'orderBy[{number}].columnName').sql}"
        + (" DESC" if one.order == "descending" else "")
        for number, one in enumerate(query.order_by)
    ]
    if query.order != "none":
        time = source.columns[TIME_COLUMN].sql
        order = [f"{time} DESC" if query.order == "descending" else time]
    if order:
        sql += f" ORDER BY {', '.join(order)}"
    if query.limit is not None:
        sql += f" LIMIT {query.limit}"
    if query.offset:
        sql += f" OFFSET {query.offset}"
    columns = [(name, signature(value.type)) for name, value in values]
    is_compact = query.result_format == "compactedList"
    shape = partial(scanned, columns=columns, batch_size=query.batch_size, is_compact=is_compact)
    return NativeStatement(checked_statement(sql), shape)


def signature(of: ValueType) -> str:
    """Return Druid's name of a type."""
    return _SIGNATURES.get(of, of)


def _search(query: SearchQuery, outline_of: OutlineOf) -> NativeStatement:
    source = source_of(query.datasource, outline_of)
    scope = scope_of(query, source, "")
    buckets, prefix = query.buckets, source.prefix
    time = ""
    if buckets.name != "ALL":
        own = source.columns[TIME_COLUMN].sql
        time = bucket_start(own, buckets, clipped(query.times, source.extent), "granularity")
    specs = query.search_dimensions or [
        DefaultDimension(dimension=name)
        for name, value in source.columns.items()
        if value.type == "STRING"
    ]
    if len(specs) > SEARCHED_MAX:
        raise InvalidRequest(
            f"the datasource has {len(specs)} columns of text, and a search reads at most"
            f" {SEARCHED_MAX}: name some",
            place="searchDimensions",
        )
    patterns = search_pattern(query.query)
    conditions = conditions_of(query, source, scope, "")
    parts = []
    for number, spec in enumerate(specs):
        value = dimension_value(spec, scope, buckets, f"searchDimensions[{number}]").cast("STRING")
        matches = matches_all(value.sql, patterns, "query")
        matching = matches or f"({value.sql} IS NOT NULL)"
        rows = rows_where(source, (*conditions, matching))
        shown = [f"{time} AS {prefix}t"] if time else []
        shown += [f"{text_literal(spec.name)} AS {prefix}d", f"{value.sql} AS {prefix}v"]
        keys = [time, value.sql] if time else [value.sql]
        parts.append(
            f"SELECT {', '.join([*shown, f'count(*) AS {prefix}n'])} {rows}"
            f" GROUP BY {', '.join(keys)}"
        )
    if not parts:
        raise InvalidRequest("the datasource has no column of text", place="searchDimensions")
    order = ", ".join(_search_order(query.sort, prefix))
    columns = ", ".join(f"{prefix}{one}" for one in ("t" * bool(time), *"dvn") if one)
    found = f"FROM ({' UNION ALL '.join(parts)}) AS {prefix}s"
    rest = f"ORDER BY {order} LIMIT {query.limit}"
    start_ms = None if time else query.times[0].start_ms
    if time:
        ranked = f"row_number() OVER (PARTITION BY {prefix}t ORDER BY {order}) AS {prefix}r"
        found = f"FROM (SELECT {columns}, {ranked} {found}) AS {prefix}q"
        rest = f"WHERE ({prefix}r <= {query.limit}) ORDER BY {prefix}t, {prefix}r"
    sql = f"SELECT {columns} {found} {rest}"
    return NativeStatement(
        checked_statement(sql), partial(top, names=_SEARCH_NAMES, start_ms=start_ms)
    )


def _search_order(sort: str, prefix: str) -> Sequence[str]:
    value = f"{prefix}v"
    first = {
        "lexicographic": (),
        "strlen": (f"length({value})",),
        "alphanumeric": (alphanumeric_key(value),),
        "numeric": (f"TRY_CAST({value} AS DOUBLE)",),
    }[sort]
    return (*first, value, f"{prefix}d")


def _boundary(
    query: TimeBoundaryQuery | DatasourceMetadataQuery, outline_of: OutlineOf
) -> NativeStatement:
    source = source_of(query.datasource, outline_of)
    scope = scope_of(query, source, "")
    if isinstance(query, DatasourceMetadataQuery):
        wanted = {"maxIngestedEventTime": "max"}
    else:
        bounds = [query.bound] if query.bound else ["minTime", "maxTime"]
        wanted = {name: name.removesuffix("Time") for name in bounds}
    time = source.columns[TIME_COLUMN].sql
    items = ", ".join(
        f"{function}({time}) AS {source.prefix}{function}" for function in wanted.values()
    )
    sql = f"SELECT {items} {rows_of(query, source, scope, '')}"
    return NativeStatement(checked_statement(sql), partial(boundary, names=list(wanted)))


def _metadata(query: SegmentMetadataQuery, outline_of: OutlineOf) -> NativeStatement:
    source = source_of(query.datasource, outline_of)
    scope = scope_of(query, source, "")
    columns = [_facts(name, value, query.analysis_types) for name, value in source.columns.items()]
    if query.to_include is not None and query.to_include.type == "none":
        columns = []
    elif query.to_include is not None and query.to_include.type == "list":
        listed = query.to_include.columns
        for number, name in enumerate(listed):
            scope.of(name, f"toInclude.columns[{number}]")
        columns = [one for one in columns if one.name in listed]
    items = ["count(*)"]
    for one in columns:
        own = source.columns[one.name].sql
        items += [f"count({own})"] if one.is_counted else []
        items += [f"approx_count_distinct({own})"] if one.has_cardinality else []
        items += [f"min({own})", f"max({own})"] if one.has_bounds else []
    shown = ", ".join(f"{item} AS {source.prefix}c{n}" for n, item in enumerate(items))
    sql = f"SELECT {shown} {rows_of(query, source, scope, '')}"
    shape = partial(described, columns=columns, facts=_common_facts(query, source))
    return NativeStatement(checked_statement(sql), shape)


def _facts(name: str, value: Value, analyses: Sequence[str]) -> ColumnFacts:
    is_text = value.type == "STRING"
    counts, bounds = "cardinality" in analyses, "minmax" in analyses
    return ColumnFacts(
        name,
        signature(value.type),
        is_counted=counts or bounds,
        has_cardinality=is_text and counts,
        has_bounds=is_text and bounds,
    )


def _common_facts(query: SegmentMetadataQuery, source: RowSource) -> dict[str, object]:
    # Times and sizes of files tell about rows that the principal does not see.
    is_limited = any(one.is_limited for one in source.outlines)
    found = [part for one in source.intervals for part in clipped(query.times, one)]
    return {
        "intervals": None
        if is_limited or "interval" not in query.analysis_types
        else [str(one) for one in dict.fromkeys(found)],
        "size": 0 if is_limited else sum(one.size_bytes for one in source.outlines),
        "aggregators": None,
        "projections": None,
        "timestampSpec": None,
        "queryGranularity": None,
        "rollup": None,
    }
