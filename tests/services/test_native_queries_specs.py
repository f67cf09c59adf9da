"""Native queries without Spark: their forms, their SQL, and the shapes of answers."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Granularity, Interval
from penstock.services.native.aggregate_statements import filled_starts
from penstock.services.native.answers import NativeStatement, TimeseriesShape, timeseries
from penstock.services.native.query_specs import (
    DEPTH_MAX,
    QUERY_TYPES,
    VALUES_MAX,
    parse_query,
)
from penstock.services.native.row_statements import statement_of
from penstock.services.native.sources import TableOutline
from penstock.services.native.written_sql import text_literal
from penstock.spark.ddl import quoted
from penstock.spark.sql.query_statement import read_statement
from reference.pages import ROOT

DAYS = Interval.parse("2013-01-01/2013-01-03")
WIKI = TableOutline(
    "wiki_native",
    (
        *(("__time", "timestamp"), ("country", "string"), ("city", "string")),
        *(("added", "bigint"), ("delta", "double"), ("n_x", "string"), ("users", "binary")),
    ),
    (DAYS,),
)
BASE = {"dataSource": "wiki_native", "intervals": ["2013-01-01/2013-01-04"]}
COUNT = {"type": "count", "name": "rows"}
NOW_MS = 1_400_000_000_000


def outline(name: str, place: str) -> TableOutline:
    if not name.startswith("wiki_"):
        raise InvalidRequest(f"there is no datasource {name!r}", place=place)
    return WIKI


def translated(kind: str, **more: object) -> NativeStatement:
    found = statement_of(parse_query({**BASE, "queryType": kind, **more}), outline, NOW_MS)
    assert read_statement(found.sql).tables == {"wiki_native"}
    return found


def refused(body: Mapping[str, object]) -> str:
    with pytest.raises(InvalidRequest) as caught:
        statement_of(parse_query({**BASE, **body}), outline, NOW_MS)
    return str(caught.value)


@pytest.mark.parametrize(
    ("dimension", "wanted"),
    [
        (
            {"type": "lookup", "dimension": "country", "name": "names"},
            "coalesce(CAST(LOOKUP(country, 'names') AS STRING), CAST(NULL AS STRING))",
        ),
        (
            {
                "type": "extraction",
                "dimension": "country",
                "extractionFn": {
                    "type": "registeredLookup",
                    "lookup": "names",
                    "retainMissingValue": True,
                },
            },
            "coalesce(CAST(LOOKUP(country, 'names') AS STRING), country)",
        ),
    ],
)
def test_a_lookup_is_read_by_its_name(dimension: Mapping[str, object], wanted: str) -> None:
    body = {**BASE, "queryType": "groupBy", "granularity": "all", "dimensions": [dimension]}
    found = statement_of(parse_query({**body, "aggregations": [COUNT]}), outline, NOW_MS)
    assert wanted in found.sql.replace("`", "")
    read = read_statement(found.sql, has_metadata=True)
    assert [(one.name, one.is_map) for one in read.lookups] == [("names", True)]


MISTAKES: Sequence[tuple[Mapping[str, object], str]] = (
    ({}, "queryType: is required, one of timeseries, topN"),
    ({"queryType": 5}, "queryType: is required"),
    ({"queryType": "toppN"}, 'queryType: unknown query type \'toppN\': did you mean "topN"?'),
    *(({"queryType": kind}, f"queryType: the query type {kind} is not supported: ")
      for kind in ("select", "movingAverage", "windowOperator")),
    *(({"queryType": "scan", "dataSource": {"type": kind}},
       f"dataSource.type: the type {kind} of Druid is not supported here: ")
      for kind in ("join", "lookup", "inline", "unnest", "filter")),
    ({"queryType": "scan", "dataSource": "other"}, "dataSource: there is no datasource 'other'"),
    ({"queryType": "scan", "filtre": {}}, 'filtre: unknown field: did you mean "filter"?'),
    ({"queryType": "scan", "intervals": []}, "intervals: must not be empty"),
    ({"queryType": "scan", "intervals": {"type": "segments"}}, "intervals: only intervals are"),
    ({"queryType": "scan", "intervals": {"type": {}}}, "intervals: only intervals are"),
    ({"queryType": "scan", "intervals": "2013"}, "intervals[0]: invalid interval '2013'"),
    ({"queryType": "scan", "columns": ["a"]}, 'columns[0]: there is no column "a"'),
    ({"queryType": "scan", "columns": ["city", "city"]}, "columns: two of its outputs"),
    ({"queryType": "scan", "resultFormat": "valueVector"}, "resultFormat: "),
    ({"queryType": "scan", "legacy": True}, "legacy: "),
    ({"queryType": "scan", "filter": {"type": "javascript"}},
     "filter.type: the type javascript of Druid is not supported here: "),
    ({"queryType": "scan", "filter": {"type": "not", "field": {
        "type": "selector", "dimension": "cite", "value": 1}}},
     'filter.field.dimension: there is no column "cite": did you mean "city"?'),
    ({"queryType": "scan", "filter": {"type": "selector", "dimension": "city", "value": "a",
                                      "extractionFn": {"type": "javascript"}}},
     "filter.extractionFn.type: the type javascript of Druid is not supported here: "),
    ({"queryType": "scan", "filter": {"type": "search", "dimension": "city", "query": {}}},
     "filter.query: must be an object such as"),
    ({"queryType": "scan", "filter": {"type": "and", "fields": [{"type": "spatial"}]}},
     "filter.fields[0].type: the type spatial of Druid is not supported here: "),
    ({"queryType": "scan", "virtualColumns": [{"type": "nested-field"}]},
     "virtualColumns[0].type: the type nested-field of Druid is not supported here: "),
    ({"queryType": "scan", "virtualColumns": [
        {"type": "expression", "name": "v", "expression": "city +"}]},
     "virtualColumns[0].expression: "),
    ({"queryType": "groupBy", "dimensions": [{"type": "extraction", "dimension": "city",
      "extractionFn": {"type": "javascript"}}]},
     "dimensions[0].extractionFn.type: the type javascript of Druid is not supported here: "),
    ({"queryType": "groupBy", "dimensions": ["city"], "having": {
        "type": "greaterThan", "aggregation": "rows", "value": 1}},
     "having.aggregation: there is no dimension, aggregator or post-aggregator"),
    ({"queryType": "groupBy", "dimensions": ["city"], "limitSpec": {"columns": ["x"]}},
     "limitSpec.columns[0].dimension: there is no dimension, aggregator or post-aggregator"),
    ({"queryType": "groupBy", "dimensions": ["city"], "subtotalsSpec": [["city"]]},
     "subtotalsSpec: not supported here: send a query for each subtotal"),
    ({"queryType": "groupBy", "dimensions": ["city", "city"]}, "two of its outputs"),
    ({"queryType": "topN", "dimension": "city", "metric": "x", "threshold": 5},
     "metric.metric: there is no dimension, aggregator or post-aggregator"),
    ({"queryType": "topN", "dimension": "city", "threshold": 5,
      "metric": {"type": "dimension", "ordering": "version"}},
     "metric.ordering: the order version is not supported"),
    ({"queryType": "topN", "dimension": "city", "metric": "x", "threshold": 200_000},
     "threshold: must be at most 100000"),
    ({"queryType": "timeseries", "aggregations": [{"type": "longSum", "name": "a"}]},
     "aggregations[0]: set fieldName or expression"),
    ({"queryType": "timeseries", "aggregations": [{"type": "javascript", "name": "a"}]},
     "aggregations[0].type: the type javascript of Druid is not supported here: "),
    ({"queryType": "timeseries", "postAggregations": [
        {"type": "fieldAccess", "name": "p", "fieldName": "a"}]},
     'postAggregations[0].fieldName: there is no aggregator "a"'),
    ({"queryType": "timeseries", "postAggregations": [{"type": "constant", "value": 1}]},
     "postAggregations: give number 0 a name"),
    ({"queryType": "timeseries", "context": {"skipEmptyBuckets": "yes"}},
     "context.skipEmptyBuckets: must be true or false"),
    ({"queryType": "timeseries", "granularity": "second", "intervals": "2000/2014",
      "aggregations": [COUNT]}, "granularity: the intervals have more than 100000 buckets"),
    ({"queryType": "search", "query": {"type": "contains"}},
     "query: a search of the type contains needs texts"),
)  # fmt: skip


@pytest.mark.parametrize(("body", "told"), MISTAKES)
def test_a_mistake_is_refused_with_its_place(body: Mapping[str, object], told: str) -> None:
    found = refused(body)
    assert any(line.strip().startswith(told) for line in found.split("\n")), found


def test_objects_within_each_other_are_bounded() -> None:
    deep: dict[str, object] = {"type": "true"}
    for _ in range(DEPTH_MAX):
        deep = {"type": "not", "field": deep}
    assert "deeper than 60 levels" in refused({"queryType": "scan", "filter": deep})


def test_a_chain_of_post_aggregators_cannot_grow_without_a_bound() -> None:
    """Each refers twice to the one before it, so the text doubles."""
    first = {"type": "fieldAccess", "name": "p0", "fieldName": "rows"}
    others = [
        {"type": "arithmetic", "name": f"p{n}", "fn": "+", "fields": [
            {"type": "fieldAccess", "fieldName": f"p{n - 1}"}] * 2}
        for n in range(1, 60)
    ]  # fmt: skip
    body = {
        "queryType": "timeseries",
        "aggregations": [COUNT],
        "postAggregations": [first, *others],
    }
    assert "because each use of a name repeats what it stands for" in refused(body)


def test_names_of_long_values_cannot_be_repeated_without_a_bound() -> None:
    """A filter of a thousand parts, each of which repeats a long virtual column."""
    long = f"concat(city{', city' * 1_000})"
    virtual = {"type": "expression", "name": "v", "expression": long}
    part = {"type": "selector", "dimension": "v", "value": "a"}
    told = refused({"queryType": "scan", "virtualColumns": [virtual],
                    "filter": {"type": "or", "fields": [part] * 1_000}})  # fmt: skip
    assert "takes more than 400000 characters of SQL" in told
    nested = "regexp_extract(" * 70 + "city" + ", 'a')" * 70
    told = refused({"queryType": "scan", "virtualColumns": [
        {"type": "expression", "name": "v", "expression": nested}]})  # fmt: skip
    assert "the expression takes more than 100000 characters in Spark SQL" in told


LONG_PART = {"type": "dimSelector", "dimension": "v", "value": "a"}
FRAGMENTS = {"type": "fragment", "values": [""] * 2_000}
OF_LONG: Sequence[Mapping[str, object]] = (
    {"queryType": "scan", "filter": {
        "type": "columnComparison", "dimensions": ["v", *["city"] * 2_000]}},
    {"queryType": "scan", "filter": {
        "type": "interval", "dimension": "v", "intervals": ["2013-01-01/2013-01-02"] * 2_000}},
    {"queryType": "scan", "filter": {"type": "search", "dimension": "v", "query": FRAGMENTS}},
    {"queryType": "scan", "filter": {"type": "selector", "dimension": "v", "value": "a",
     "extractionFn": {"type": "searchQuery", "query": FRAGMENTS}}},
    {"queryType": "search", "searchDimensions": ["v"], "query": FRAGMENTS},
    {"queryType": "groupBy", "dimensions": ["v"], "having": {"type": "and", "havingSpecs": [
        {"type": "or", "havingSpecs": [LONG_PART] * 100}] * 20}},
    {"queryType": "groupBy", "dimensions": [
        {"type": "extraction", "dimension": "city", "outputName": f"d{number}", "extractionFn":
         {"type": "cascade", "extractionFns": [{"type": "regex", "expr": "a"}] * 7}}
        for number in range(500)]},
)  # fmt: skip


@pytest.mark.parametrize("body", OF_LONG)
def test_a_short_query_takes_little_memory_whatever_it_repeats(body: Mapping[str, object]) -> None:
    virtual = {"type": "expression", "name": "v", "expression": f"concat(city, '{'x' * 18_000}')"}
    query = parse_query({**BASE, "virtualColumns": [virtual], **body})
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="characters of SQL"):
            statement_of(query, outline, NOW_MS)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_the_values_of_a_query_have_a_bound() -> None:
    body = {
        "queryType": "scan",
        "filter": {"type": "in", "dimension": "city", "values": [1] * VALUES_MAX},
    }
    assert f"more than {VALUES_MAX} values" in refused(body)


def test_files_of_hidden_rows_do_not_decide_about_a_granularity() -> None:
    """Whether the buckets of a zone are those of UTC depends on the times that are read."""
    limited = TableOutline(WIKI.name, WIKI.columns, WIKI.intervals, is_limited=True)
    period = {"type": "period", "period": "PT3H", "timeZone": "Asia/Tokyo"}
    for day in "2013-01-01/2013-01-02", "2014-01-01/2014-01-02":
        body = {**BASE, "queryType": "timeseries", "granularity": period, "intervals": day}
        assert statement_of(parse_query(body), lambda _name, _place: limited, NOW_MS).sql


def test_a_principal_with_limited_rows_learns_nothing_from_buckets() -> None:
    limited = TableOutline(WIKI.name, WIKI.columns, WIKI.intervals, is_limited=True)
    query = parse_query({**BASE, "queryType": "timeseries", "granularity": "hour"})
    assert list(statement_of(query, lambda _name, _place: limited, NOW_MS).shape([])) == []
    query = parse_query({**BASE, "queryType": "segmentMetadata"})
    (described,) = statement_of(query, lambda _name, _place: limited, NOW_MS).shape([[(0,) * 30]])
    assert described["intervals"] is None  # type: ignore[index]
    assert described["size"] == 0  # type: ignore[index]


def test_a_plain_query_becomes_a_plain_statement() -> None:
    """It has the form that projections and the fast path know."""
    filter_ = {"type": "selector", "dimension": "country", "value": "DE"}
    found = translated("timeseries", granularity="hour", aggregations=[COUNT], filter=filter_)
    assert found.sql == (
        "SELECT date_trunc('HOUR', `__time`) AS n_n_t, count(*) AS n_n_c1 FROM `wiki_native`"
        " WHERE (((`__time` >= TIMESTAMP '2013-01-01T00:00:00.000Z')"
        " AND (`__time` < TIMESTAMP '2013-01-04T00:00:00.000Z')) AND (`country` = 'DE'))"
        " GROUP BY date_trunc('HOUR', `__time`) ORDER BY n_n_t"
    )


def test_all_of_time_is_no_condition() -> None:
    for times in (
        *("0000/3000-01-01", "0001/10000-01-01", ["0001/2013", "2013/10000-01-01"]),
        # Metabase and Druid's own planner.
        ["-5000/2013", "2013/5000"],
        "-5000/146140482-04-24T15:36:27.903Z",
        "-146136543-09-08T08:23:32.096Z/146140482-04-24T15:36:27.903Z",
    ):
        sql = translated("timeBoundary", intervals=times).sql
        assert ("WHERE" in sql) == (times in ("0000/3000-01-01", ["-5000/2013", "2013/5000"]))


def test_a_limit_of_zero_is_none() -> None:
    """As in the queries that Grafana's plugin sends."""
    assert "LIMIT" not in translated("timeseries", aggregations=[COUNT], limit=0).sql
    assert "LIMIT" not in translated("scan", limit=0, batchSize=0).sql
    found = translated("search", query={"type": "contains", "value": "a"}, limit=0)
    assert "LIMIT 1000" in found.sql


def test_a_range_of_milliseconds_is_one_of_times() -> None:
    """So that Spark skips files; Druid's SQL planner writes ranges in this form."""
    filter_ = {"type": "range", "column": "__time", "matchValueType": "LONG",
               "lower": 1_357_000_000_000, "upperOpen": True, "upper": "1357000001000"}  # fmt: skip
    sql = translated("scan", filter=filter_, intervals="0001/10000-01-01").sql
    assert sql.endswith(
        "WHERE ((`__time` >= TIMESTAMP '2013-01-01T00:26:40.000Z')"
        " AND (`__time` < TIMESTAMP '2013-01-01T00:26:41.000Z'))"
    )


@pytest.mark.parametrize(
    ("given", "pattern"),
    [
        ("yyyy-MM-dd'T'00:00:00ZZ", "yyyy-MM-dd'T'00:00:00'+00:00'"),
        ("HH'ZZ'Z", "HH'ZZ+0000'"),
        ("HH':00'ZZ", "HH':00+00:00'"),
        ("Z'x'", "'+0000x'"),
        ("EEEE", "EEEE"),
    ],
)
def test_offsets_in_formats_are_those_of_utc(given: str, pattern: str) -> None:
    """Metabase sends the first one."""
    function = {"type": "timeFormat", "format": given, "locale": "en-US", "timeZone": "UTC"}
    day = {"type": "extraction", "dimension": "__time", "outputName": "d", "extractionFn": function}
    sql = translated("groupBy", dimensions=[day]).sql
    assert f"date_format(`__time`, {text_literal(pattern)})" in sql


@pytest.mark.parametrize(
    ("column", "values", "condition"),
    [
        ("delta", ["5", "N/A"], "(`delta` IN (5))"),
        ("delta", ["5", "NaN", "-Infinity", "1_0", "nan"],
         "(`delta` IN (5, CAST('NaN' AS DOUBLE), CAST('-Infinity' AS DOUBLE)))"),
        ("added", ["5", "x", None], "((`added` IN (5)) OR (`added` IS NULL))"),
        # False, and unknown for a missing value.
        ("delta", ["x", "y"], "(CAST(`delta` AS STRING) IN ('x', 'y'))"),
        ("country", ["5", "x"], "(`country` IN ('5', 'x'))"),
        ("__time", ["1356998400000", "x"],
         "(`__time` IN (TIMESTAMP '2013-01-01T00:00:00.000Z'))"),
        ("ok", ["true", "x"], "(CAST(`ok` AS STRING) IN ('true', 'x'))"),
    ],
)  # fmt: skip
def test_numbers_stay_numbers_beside_texts(
    column: str, values: Sequence[str | None], condition: str
) -> None:
    assert condition_of({"type": "in", "dimension": column, "values": values}) == condition


@pytest.mark.parametrize(
    ("filter_", "condition"),
    [
        ({"type": "bound", "dimension": "delta", "upper": "Infinity", "ordering": "numeric"},
         "(`delta` <= CAST('Infinity' AS DOUBLE))"),
        ({"type": "range", "column": "delta", "matchValueType": "DOUBLE", "lower": "-Infinity"},
         "(`delta` >= CAST('-Infinity' AS DOUBLE))"),
        ({"type": "equals", "column": "delta", "matchValueType": "DOUBLE", "matchValue": "NaN"},
         "(`delta` = CAST('NaN' AS DOUBLE))"),
        ({"type": "equals", "column": "delta", "matchValueType": "DOUBLE", "matchValue": "1e999"},
         "(`delta` = CAST('Infinity' AS DOUBLE))"),
        ({"type": "selector", "dimension": "delta", "value": "Infinity"},
         "(`delta` = CAST('Infinity' AS DOUBLE))"),
        ({"type": "equals", "column": "delta", "matchValueType": "DOUBLE", "matchValue": "-2.5e1"},
         "(`delta` = (-25.0D))"),
    ],
)  # fmt: skip
def test_infinity_is_a_number_and_no_name(filter_: Mapping[str, object], condition: str) -> None:
    assert condition_of(filter_) == condition


@pytest.mark.parametrize("text", ["inf", "nan", "1_0", "x", " 5", ""])
def test_only_numbers_of_druid_are_numbers(text: str) -> None:
    bound = {"type": "bound", "dimension": "delta", "lower": text, "ordering": "numeric"}
    with pytest.raises(InvalidRequest, match="is not a number"):
        condition_of(bound)


def condition_of(filter_: Mapping[str, object]) -> str:
    columns = (("__time", "timestamp"), ("country", "string"), ("added", "bigint"),
               ("delta", "double"), ("ok", "boolean"))  # fmt: skip
    table = TableOutline("wiki_native", columns, (DAYS,))
    body = {"queryType": "scan", "dataSource": "wiki_native", "intervals": "0001/10000-01-01"}
    query = parse_query({**body, "filter": filter_})
    sql = statement_of(query, lambda _name, _place: table, NOW_MS).sql
    assert read_statement(sql).tables == {"wiki_native"}
    return sql.partition(" WHERE ")[2]


def test_a_condition_is_never_a_name_alone() -> None:
    """Spark would take `t WHERE (flag)` for a table with an alias, and return all rows."""
    table = TableOutline("wiki_native", (("__time", "timestamp"), ("flag", "boolean")), (DAYS,))
    filter_ = {"type": "expression", "expression": "flag"}
    body = {"queryType": "scan", "dataSource": "wiki_native", "intervals": "0001/10000-01-01"}
    query = parse_query({**body, "filter": filter_})
    sql = statement_of(query, lambda _name, _place: table, NOW_MS).sql
    assert sql.endswith("FROM `wiki_native` WHERE (`flag` = TRUE)")


def test_every_query_type_has_a_statement() -> None:
    needed: Mapping[str, Mapping[str, object]] = {
        "topN": {"dimension": "city", "metric": {"type": "dimension"}, "threshold": 1},
        "search": {"query": {"type": "all"}},
    }
    for kind in QUERY_TYPES:
        assert "SELECT" in translated(kind, **needed.get(kind, {})).sql


def test_sketches_that_ingestion_made_are_united() -> None:
    kinds = {
        **dict.fromkeys(("hyperUnique", "HLLSketchMerge"), "hll_union_agg"),
        "thetaSketch": "theta_union_agg",
        "quantilesDoublesSketch": "kll_merge_agg_double",
    }
    for kind, function in kinds.items():
        aggregator = {"type": kind, "name": "a", "fieldName": "users"}
        assert f"{function}(`users`" in translated("timeseries", aggregations=[aggregator]).sql


def test_requests_of_pydruid_are_understood() -> None:
    for body in json.loads((ROOT / "tests/kits/pydruid_requests.json").read_text()):
        read_statement(statement_of(parse_query(body), outline, NOW_MS).sql)


@given(st.text(), st.text(min_size=1))
def test_a_value_stays_a_value_whatever_its_text_is(text: str, name: str) -> None:
    """The statement has one more literal and one more name, and nothing else."""
    more = "$\\{" if "${" in text else ""
    literal = text_literal(text)
    assert literal[0] == literal[-1] == "'"
    assert "${" not in literal
    assert more in literal
    inner = literal[1:-1].replace("\\\\", "")
    assert "'" not in inner.replace("\\'", "")
    filter_ = {"type": "or", "fields": [
        {"type": "selector", "dimension": "city", "value": text},
        {"type": "regex", "dimension": "city", "pattern": text or "a"},
        {"type": "like", "dimension": "city", "pattern": text}]}  # fmt: skip
    columns = (*WIKI.columns, (name, "string"))
    table = TableOutline("wiki_native", columns, (DAYS,))
    query = parse_query({**BASE, "queryType": "groupBy", "filter": filter_, "aggregations": [
        {"type": "count", "name": text or "x"}], "dimensions": [{"dimension": name,
        "outputName": "d"}]})  # fmt: skip
    if (text or "x") == "d" or "${" in name:
        return  # two outputs of one name, or a name that statements refuse
    statement = statement_of(query, lambda _name, _place: table, NOW_MS)
    assert quoted(name) in statement.sql
    assert read_statement(statement.sql).tables == {"wiki_native"}


def at(hour: int) -> datetime:
    return datetime(2013, 1, 1, hour, tzinfo=UTC)


def starts(*hours: int) -> list[int]:
    return [1_356_998_400_000 + hour * 3_600_000 for hour in hours]


def shaped(rows: Sequence[Sequence[object]], shape: TimeseriesShape) -> list[object]:
    found = timeseries([rows], shape)
    return [
        (str(one["timestamp"])[11:13], one["result"]["n"])  # type: ignore[index]
        for one in found
    ]


def test_buckets_without_rows_are_filled_in_both_directions() -> None:
    shape = TimeseriesShape(("n",), None, starts(1, 2, 3, 4), (0,))
    rows = [(at(0), 5), (at(2), 6)]
    filled = [("00", 5), ("01", 0), ("02", 6), ("03", 0), ("04", 0)]
    assert shaped(rows, shape) == filled
    backwards = TimeseriesShape(("n",), None, starts(4, 3, 2, 1), (0,), is_descending=True)
    assert shaped(rows[::-1], backwards) == filled[::-1]
    limited = TimeseriesShape(("n",), None, starts(1, 2, 3, 4), (0,), limit=2)
    assert shaped(rows, limited) == filled[:2]


def test_rows_of_other_kinds_are_the_empty_values_and_the_total() -> None:
    shape = TimeseriesShape(("n",), None, starts(0, 1), (None,), has_kinds=True, limit=1)
    rows = [(0, None, 7), (1, at(0), 5), (1, at(3), 9), (2, None, 14)]
    assert shaped(rows, shape) == [("00", 5), ("", 14)]
    unlimited = TimeseriesShape(("n",), None, starts(0, 1), (None,), has_kinds=True)
    assert shaped(rows, unlimited) == [("00", 5), ("01", 7), ("03", 9), ("", 14)]


def test_buckets_are_filled_up_to_now() -> None:
    day = Interval.parse("2013-01-01/2013-01-02")
    assert filled_starts(Granularity.parse("HOUR"), [day]) == starts(*range(24))
    found = translated("timeseries", granularity="hour", aggregations=[COUNT])
    assert len(list(found.shape([]))) == 48
    noon = statement_of(
        parse_query({**BASE, "queryType": "timeseries", "granularity": "hour"}),
        outline,
        starts(36)[0],
    )
    assert len(list(noon.shape([]))) == 36
