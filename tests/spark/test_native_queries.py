"""Druid's native queries over HTTP, with real rows on a real Spark, compared with SQL."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.core.metrics import MetricRegistry
from penstock.services.api.asgi import application
from penstock.services.api.native import NativeRoutes
from penstock.services.api.sql import SqlRoutes
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.sql.service import SqlService
from penstock.testing.clock import VirtualClock
from reference.pages import ROOT
from tests.harness.access_kit import AccessFolderKit, as_principal, with_token
from tests.harness.event_kit import KeptEvents
from tests.services.overlord_kit import Api
from tests.spark.data_folder_kit import FEBRUARY, DataFolder, table

pytestmark = pytest.mark.spark

HOURS = [f"2013-01-{1 + hour // 24:02}T{hour % 24:02}:15:00Z" for hour in range(0, 60, 3)]
COUNTRIES = ["DE", "FR", None, "O'S\\x", "de"]
JANUARY_DAYS = "2013-01-01/2013-01-04"
HALF = {"type": "arithmetic", "name": "half", "fn": "/", "fields": [
    {"type": "fieldAccess", "fieldName": "added"}, {"type": "constant", "value": 2}]}  # fmt: skip
COUNT = {"type": "count", "name": "rows"}
ADDED = {"type": "longSum", "name": "added", "fieldName": "added"}
DELTA = {"type": "doubleSum", "name": "delta", "fieldName": "delta"}
Answer = list[dict[str, object]]


class Rig:
    """The routes of SQL and of native queries, and the rows of two datasources."""

    def __init__(self, sessions: SparkSessions, data: DataFolder) -> None:
        count = len(HOURS)
        rows = table(
            HOURS,
            country=pa.array([COUNTRIES[n % 5] for n in range(count)], pa.string()),
            city=pa.array([f"city {n % 7}" for n in range(count)], pa.string()),
            added=pa.array([n if n % 4 else None for n in range(count)], pa.int64()),
            delta=pa.array([n / 4 for n in range(count)], pa.float64()),
            ok=pa.array([n % 2 == 0 for n in range(count)], pa.bool_()),
        )
        data.publish("wiki_native", rows)
        later = table(["2013-02-01"], country=pa.array(["IT"]), other=pa.array([1], pa.int64()))
        data.publish("wiki_later", later, FEBRUARY)
        self.clock = VirtualClock(start_ms=1_400_000_000_000)
        self.service = SqlService(sessions, data.source, self.clock)
        sql = SqlRoutes(self.service, MetricRegistry(), KeptEvents(), self.clock)
        native = NativeRoutes(sql, data.source, self.clock)
        self.routes = [*sql.routes(), *native.routes()]
        self.api = Api(application(self.routes, access=with_token(None)))

    def ask(self, kind: str, **more: object) -> Answer:
        answer = self.api.post("/druid/v2", json=query(kind, **more))
        assert answer.status_code == 200, answer.text
        found: Answer = answer.json()
        return found

    def refused(self, kind: str, **more: object) -> str:
        answer = self.api.post("/druid/v2", json=query(kind, **more))
        assert answer.status_code == 400, answer.text
        return str(answer.json()["errorMessage"])

    def sql(self, statement: str) -> list[list[object]]:
        body = {"query": statement, "resultFormat": "array"}
        answer = self.api.post("/druid/v2/sql", json=body)
        assert answer.status_code == 200, answer.text
        found: list[list[object]] = answer.json()
        return found

    def close(self) -> None:
        self.api.close()
        self.service.close()


def query(kind: str, **more: object) -> dict[str, object]:
    base = {"queryType": kind, "dataSource": "wiki_native", "intervals": JANUARY_DAYS}
    return {**base, **more}


@pytest.fixture(scope="module")
def rig(sessions: SparkSessions, data: DataFolder) -> Iterator[Rig]:
    made = Rig(sessions, data)
    yield made
    made.close()


def values(answer: Answer, name: str) -> list[list[object]]:
    """The timestamp and the values of each object of an answer."""
    return [[one["timestamp"], *dict_of(one[name]).values()] for one in answer]


def dict_of(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


def test_a_timeseries_fills_the_buckets_between_its_rows(rig: Rig) -> None:
    answer = rig.ask("timeseries", granularity="hour", aggregations=[COUNT, ADDED],
                     postAggregations=[HALF])  # fmt: skip
    found = rig.sql(
        "SELECT TIME_FLOOR(__time, 'PT1H'), count(*), sum(added),"
        " CAST(sum(added) AS DOUBLE) / 2 FROM wiki_native GROUP BY 1 ORDER BY 1"
    )
    assert [row for row in values(answer, "result") if row[1]] == found
    assert len(answer) == 72  # of three days; the rest of the segment is outside the interval
    empty = answer[1]
    assert empty["result"] == {"rows": 0, "added": None, "half": None}
    assert empty["timestamp"] == "2013-01-01T01:00:00.000Z"
    assert rig.ask("timeseries", granularity="hour", aggregations=[COUNT, ADDED], descending=True,
                   postAggregations=[HALF]) == answer[::-1]  # fmt: skip


def test_a_timeseries_skips_buckets_and_adds_a_total(rig: Rig) -> None:
    answer = rig.ask(
        "timeseries",
        granularity="hour",
        aggregations=[COUNT],
        filter={"type": "selector", "dimension": "country", "value": "DE"},
        context={"skipEmptyBuckets": "true", "grandTotal": True},
    )
    assert [one["result"] for one in answer] == [{"rows": 1}] * 4 + [{"rows": 4}]
    assert answer[-1]["timestamp"] is None


def test_an_expression_over_values_is_computed_for_buckets_without_rows(rig: Rig) -> None:
    answer = rig.ask(
        "timeseries",
        granularity={"type": "period", "period": "PT6H"},
        aggregations=[COUNT],
        postAggregations=[{"type": "expression", "name": "x", "expression": "rows / 2 + 1"}],
        filter={"type": "interval", "dimension": "__time", "intervals": ["2013-01-02/P1D"]},
    )
    assert [dict_of(one["result"])["x"] for one in answer] == [1] * 4 + [2] * 4 + [1] * 4


def test_days_of_a_zone_begin_at_its_midnight(rig: Rig) -> None:
    berlin = {"type": "period", "period": "P1D", "timeZone": "Europe/Berlin"}
    answer = rig.ask("timeseries", granularity=berlin, aggregations=[COUNT])
    assert values(answer, "result")[:3] == [
        ["2012-12-31T23:00:00.000Z", 8],
        ["2013-01-01T23:00:00.000Z", 8],
        ["2013-01-02T23:00:00.000Z", 4],
    ]
    hours = {"type": "period", "period": "PT1H", "timeZone": "Europe/Berlin"}
    assert len(rig.ask("timeseries", granularity=hours, aggregations=[COUNT])) == 72
    half = {"type": "period", "period": "PT1H", "timeZone": "Asia/Kolkata"}
    assert "granularity: PT1H in Asia/Kolkata is not supported" in rig.refused(
        "timeseries", granularity=half, aggregations=[COUNT]
    )


def test_one_bucket_begins_with_the_interval(rig: Rig) -> None:
    answer = rig.ask("timeseries", aggregations=[COUNT, DELTA], intervals="0000/3000")
    assert values(answer, "result") == [["0001-01-01T00:00:00.000Z", 20, 47.5]]
    none = {"type": "selector", "dimension": "country", "value": "XX"}
    answer = rig.ask("timeseries", aggregations=[COUNT, DELTA], filter=none)
    assert values(answer, "result") == [["2013-01-01T00:00:00.000Z", 0, None]]
    flag = {"type": "expression", "expression": "ok"}
    answer = rig.ask("timeseries", aggregations=[COUNT], filter=flag, intervals="0001/10000-01-01")
    assert [row[1:] for row in values(answer, "result")] == [[10]]
    skipped = {"skipEmptyBuckets": True}
    assert rig.ask("timeseries", aggregations=[COUNT], filter=none, context=skipped) == []


@pytest.mark.parametrize(
    ("metric", "order"),
    [
        ("added", "2 DESC, 1"),
        ({"type": "inverted", "metric": "added"}, "2, 1"),
        ({"type": "dimension"}, "1"),
        ({"type": "inverted", "metric": {"type": "dimension"}}, "1 DESC"),
        ({"type": "dimension", "ordering": "strlen"}, "length(country), 1"),
    ],
)
def test_a_top_list_has_the_order_of_its_metric(rig: Rig, metric: object, order: str) -> None:
    answer = rig.ask("topN", granularity="all", dimension="country", metric=metric, threshold=3,
                     aggregations=[ADDED])  # fmt: skip
    found = rig.sql(
        f"SELECT country, sum(added) FROM wiki_native GROUP BY country ORDER BY {order} LIMIT 3"
    )
    (bucket,) = answer
    assert bucket["timestamp"] == "2013-01-01T00:00:00.000Z"
    result = bucket["result"]
    assert isinstance(result, list)
    assert [list(one.values()) for one in result] == found
    assert list(result[0]) == ["country", "added"]


def test_each_bucket_has_its_own_top_list(rig: Rig) -> None:
    answer = rig.ask("topN", granularity="day", dimension="city", metric="rows", threshold=1,
                     aggregations=[COUNT])  # fmt: skip
    assert [one["timestamp"] for one in answer] == [
        f"2013-01-0{day}T00:00:00.000Z" for day in (1, 2, 3)
    ]
    assert [one["result"] for one in answer] == [
        [{"city": "city 0", "rows": 2}], [{"city": "city 1", "rows": 2}],
        [{"city": "city 2", "rows": 1}]]  # fmt: skip


def test_groups_have_dimensions_of_all_kinds(rig: Rig) -> None:
    dimensions = [
        "country",
        {"type": "default", "dimension": "added", "outputName": "n", "outputType": "LONG"},
        {"type": "default", "dimension": "added", "outputName": "text"},
        {"type": "extraction", "dimension": "city", "outputName": "digit",
         "extractionFn": {"type": "regex", "expr": "city (\\d)"}},
        {"type": "extraction", "dimension": "__time", "outputName": "day",
         "extractionFn": {"type": "timeFormat", "format": "EEEE", "timeZone": "Asia/Tokyo"}},
        {"type": "lookup", "dimension": "country", "outputName": "name", "retainMissingValue": True,
         "lookup": {"type": "map", "map": {"DE": "it's Germany"}}},
        {"type": "listFiltered", "values": ["DE"], "delegate": {
            "type": "default", "dimension": "country", "outputName": "only"}},
        {"type": "extraction", "dimension": "city", "outputName": "part",
         "extractionFn": {"type": "cascade", "extractionFns": [
             {"type": "substring", "index": 0, "length": 3}, {"type": "upper"}]}},
    ]  # fmt: skip
    answer = rig.ask("groupBy", granularity="all", dimensions=dimensions, aggregations=[COUNT])
    found = rig.sql(
        "SELECT country, added, CAST(added AS STRING), right(city, 1),"
        " date_format(from_utc_timestamp(__time, 'Asia/Tokyo'), 'EEEE'),"
        " CASE WHEN country = 'DE' THEN concat('it', char(39), 's Germany') ELSE country END,"
        " CASE WHEN country = 'DE' THEN 'DE' END, 'CIT', count(*)"
        " FROM wiki_native GROUP BY ALL ORDER BY 1, 2, 3, 4, 5, 6, 7"
    )
    assert [list(dict_of(one["event"]).values()) for one in answer] == found
    assert answer[0]["version"] == "v1"


def test_groups_are_selected_ordered_and_limited(rig: Rig) -> None:
    answer = rig.ask(
        "groupBy",
        granularity="day",
        dimensions=["city", {"type": "default", "dimension": "added", "outputType": "LONG"}],
        aggregations=[COUNT, DELTA],
        having={"type": "and", "havingSpecs": [
            {"type": "greaterThan", "aggregation": "delta", "value": 1},
            {"type": "not", "havingSpec": {
                "type": "dimSelector", "dimension": "city", "value": "city 3"}},
            {"type": "filter", "filter": {
                "type": "range", "column": "delta", "matchValueType": "DOUBLE", "upper": 4.5}}]},
        limitSpec={"type": "default", "limit": 4, "offset": 1, "columns": [
            {"dimension": "delta", "direction": "descending"}, "city"]},
    )  # fmt: skip
    found = rig.sql(
        "SELECT TIME_FLOOR(__time, 'P1D'), city, added, count(*), sum(delta) FROM wiki_native"
        " GROUP BY 1, 2, 3 HAVING sum(delta) > 1 AND city <> 'city 3' AND sum(delta) <= 4.5"
        " ORDER BY 1, 5 DESC, 2 LIMIT 4 OFFSET 1"
    )
    assert values(answer, "event") == found
    assert len(found) == 4


def test_no_rows_are_no_group(rig: Rig) -> None:
    none = {"type": "false"}
    assert rig.ask("groupBy", dimensions=[], aggregations=[COUNT], filter=none) == []
    assert rig.ask("topN", dimension="city", metric="rows", threshold=2, aggregations=[COUNT],
                   filter=none) == []  # fmt: skip
    assert rig.ask("scan", filter=none) == []
    assert rig.ask("timeBoundary", filter=none) == []


def test_aggregators_agree_with_sql(rig: Rig) -> None:
    positive = {"type": "bound", "dimension": "added", "lower": "10", "ordering": "numeric"}
    aggregations = [
        COUNT,
        {"type": "longMin", "name": "b", "fieldName": "added"},
        {"type": "doubleMax", "name": "c", "fieldName": "delta"},
        {"type": "doubleMean", "name": "d", "fieldName": "delta"},
        {"type": "longSum", "name": "e", "expression": "added * 2 + 1"},
        {"type": "longSum", "name": "f", "fieldName": "city"},
        {"type": "stringFirst", "name": "g", "fieldName": "country"},
        {"type": "doubleLast", "name": "h", "fieldName": "delta"},
        {"type": "filtered", "filter": positive, "aggregator": {"type": "count", "name": "i"}},
        {"type": "cardinality", "name": "j", "fields": ["country", "ok"], "byRow": True},
        {"type": "hyperUnique", "name": "k", "fieldName": "city"},
        {"type": "thetaSketch", "name": "l", "fieldName": "city"},
        {"type": "filtered", "filter": positive, "aggregator": {
            "type": "thetaSketch", "name": "m", "fieldName": "city"}},
        {"type": "HLLSketchBuild", "name": "n", "fieldName": "city"},
        {"type": "quantilesDoublesSketch", "name": "o", "fieldName": "delta"},
    ]  # fmt: skip
    post = [
        {"type": "arithmetic", "name": "p", "fn": "/", "fields": [
            {"type": "constant", "value": 1}, {"type": "constant", "value": 0}]},
        {"type": "longGreatest", "name": "q", "fields": [
            {"type": "fieldAccess", "fieldName": "b"}, {"type": "fieldAccess", "fieldName": "e"}]},
        {"type": "thetaSketchEstimate", "name": "r", "field": {
            "type": "thetaSketchSetOp", "func": "NOT", "fields": [
                {"type": "fieldAccess", "fieldName": "l"},
                {"type": "fieldAccess", "fieldName": "m"}]}},
        {"type": "quantilesDoublesSketchToQuantile", "name": "s", "fraction": 0.5,
         "field": {"type": "fieldAccess", "fieldName": "o"}},
        {"type": "expression", "name": "t", "expression": "nvl(b, 0) / rows"},
    ]  # fmt: skip
    (answer,) = rig.ask("timeseries", aggregations=aggregations, postAggregations=post)
    found = rig.sql(
        "SELECT count(*), min(added), max(delta), avg(delta), sum(added * 2 + 1), NULL,"
        " min_by(country, __time), max_by(delta, __time), count_if(added >= 10),"
        " count(DISTINCT struct(country, ok)), count(DISTINCT city), count(DISTINCT city),"
        " count(DISTINCT city) FILTER (WHERE added >= 10), count(DISTINCT city), count(delta),"
        " 0.0D, sum(added * 2 + 1), 1, percentile_disc(0.5) WITHIN GROUP (ORDER BY delta),"
        " min(added) DIV count(*) FROM wiki_native"
    )
    assert list(dict_of(answer["result"]).values()) == found[0]


FILTERS: Sequence[tuple[object, str]] = (
    ({"type": "selector", "dimension": "country", "value": "O'S\\x"}, "country = 'O\\'S\\\\x'"),
    ({"type": "selector", "dimension": "country", "value": None}, "country IS NULL"),
    ({"type": "selector", "dimension": "added", "value": "5"}, "added = 5"),
    ({"type": "selector", "dimension": "added", "value": "5.0"}, "added = 5"),
    ({"type": "selector", "dimension": "added", "value": "x"}, "FALSE"),
    ({"type": "selector", "dimension": "delta", "value": 2.5}, "delta = 2.5"),
    ({"type": "selector", "dimension": "ok", "value": True}, "ok"),
    ({"type": "selector", "dimension": "__time", "value": 1356999300000},
     "__time = timestamp_millis(1356999300000)"),
    ({"type": "not", "field": {"type": "selector", "dimension": "country", "value": "DE"}},
     "country <> 'DE'"),
    ({"type": "in", "dimension": "country", "values": ["DE", None]},
     "country = 'DE' OR country IS NULL"),
    ({"type": "not", "field": {"type": "in", "dimension": "country", "values": ["DE", None]}},
     "country <> 'DE'"),
    ({"type": "in", "dimension": "added", "values": ["5", "x", 7]}, "added IN (5, 7)"),
    ({"type": "in", "dimension": "delta", "values": ["2.5", "x"]}, "delta = 2.5"),
    ({"type": "not", "field": {"type": "in", "dimension": "added", "values": ["x"]}},
     "added IS NOT NULL"),
    ({"type": "bound", "dimension": "delta", "upper": "Infinity", "ordering": "numeric"}, "TRUE"),
    ({"type": "bound", "dimension": "country", "lower": "DE", "upper": "FR",
      "upperStrict": True}, "country >= 'DE' AND country < 'FR'"),
    ({"type": "bound", "dimension": "added", "lower": "7", "ordering": "numeric",
      "lowerStrict": True}, "added > 7"),
    ({"type": "bound", "dimension": "added", "lower": "7"}, "CAST(added AS STRING) >= '7'"),
    ({"type": "equals", "column": "added", "matchValueType": "LONG", "matchValue": 5},
     "added = 5"),
    ({"type": "null", "column": "added"}, "added IS NULL"),
    ({"type": "range", "column": "delta", "matchValueType": "DOUBLE", "lower": 1.5},
     "delta >= 1.5"),
    ({"type": "like", "dimension": "city", "pattern": "c_ty%1"}, "city LIKE 'c_ty%1'"),
    ({"type": "like", "dimension": "country", "pattern": "%\\x"}, "country LIKE '%x'"),
    ({"type": "like", "dimension": "city", "pattern": "city!_%", "escape": "!"}, "FALSE"),
    ({"type": "regex", "dimension": "city", "pattern": "[1-3]$"}, "city RLIKE '[1-3]$'"),
    ({"type": "columnComparison", "dimensions": ["country", "country"]}, "TRUE"),
    ({"type": "interval", "dimension": "__time", "intervals": ["2013-01-02/P1D"]},
     "CAST(__time AS DATE) = DATE '2013-01-02'"),
    ({"type": "search", "dimension": "country", "query": {"type": "contains", "value": "E"}},
     "country ILIKE '%e%'"),
    ({"type": "search", "dimension": "city", "query": {
        "type": "fragment", "values": ["ci", "4"]}}, "city = 'city 4'"),
    ({"type": "selector", "dimension": "city", "value": "CITY 1",
      "extractionFn": {"type": "upper"}}, "city = 'city 1'"),
    ({"type": "not", "field": {"type": "in", "dimension": "__time", "values": ["Tuesday"],
                               "extractionFn": {"type": "timeFormat", "format": "EEEE"}}},
     "date_format(__time, 'EEEE') <> 'Tuesday'"),
    ({"type": "expression", "expression": "added / 2 == 2 && strlen(country) > 1"},
     "added DIV 2 = 2 AND length(country) > 1"),
    ({"type": "or", "fields": [{"type": "false"}, {"type": "not", "field": {"type": "true"}},
                               {"type": "selector", "dimension": "v", "value": "DE0"}]},
     "country = 'DE' AND city = 'city 0'"),
)  # fmt: skip


def test_filters_agree_with_sql(rig: Rig) -> None:
    """All in one statement: the number of rows that each selects, and the sum of their times."""
    virtual = [
        {"type": "expression", "name": "v", "expression": "concat(country, substring(city, 5, 1))"}
    ]
    aggregators = [COUNT, {"type": "longSum", "name": "times", "fieldName": "__time"}]
    filtered = [
        {"type": "filtered", "name": f"{number} {aggregator['name']}", "filter": given,
         "aggregator": aggregator}
        for number, (given, _) in enumerate(FILTERS)
        for aggregator in aggregators
    ]  # fmt: skip
    (answer,) = rig.ask("timeseries", aggregations=filtered, virtualColumns=virtual)
    items = ", ".join(
        f"count(*) FILTER (WHERE {condition}), sum(unix_millis(__time)) FILTER (WHERE {condition})"
        for _, condition in FILTERS
    )
    (found,) = rig.sql(f"SELECT {items} FROM wiki_native")
    values = list(dict_of(answer["result"]).values())
    wrong = [
        (given, values[2 * n : 2 * n + 2], found[2 * n : 2 * n + 2])
        for n, (given, _) in enumerate(FILTERS)
        if values[2 * n : 2 * n + 2] != found[2 * n : 2 * n + 2]
    ]
    assert wrong == []
    assert len(set(found)) > 20


def rows_in(value: object) -> Sequence[object]:
    assert isinstance(value, list)
    return value


def test_a_scan_returns_rows_in_batches(rig: Rig) -> None:
    answer = rig.ask("scan", columns=["country", "__time", "delta"], batchSize=3, limit=5,
                     offset=1, order="descending")  # fmt: skip
    assert [len(rows_in(one["events"])) for one in answer] == [3, 2]
    first = answer[0]
    assert first["segmentId"] is None
    assert first["columns"] == ["country", "__time", "delta"]
    assert first["rowSignature"] == [
        {"name": "country", "type": "STRING"}, {"name": "__time", "type": "LONG"},
        {"name": "delta", "type": "DOUBLE"}]  # fmt: skip
    assert rows_in(first["events"])[0] == {
        "country": "O'S\\x", "__time": 1357193700000, "delta": 4.5}  # fmt: skip
    every = rig.ask("scan", limit=1)
    assert every[0]["columns"] == ["__time", "country", "city", "added", "delta", "ok"]


def test_sources_may_be_unions_and_queries(rig: Rig) -> None:
    union = {
        "type": "union",
        "dataSources": ["wiki_native", {"type": "table", "name": "wiki_later"}],
    }
    answer = rig.ask("groupBy", dataSource=union, intervals="2013/2014", granularity="month",
                     dimensions=["other"], aggregations=[COUNT])  # fmt: skip
    assert values(answer, "event") == [
        ["2013-01-01T00:00:00.000Z", None, 20], ["2013-02-01T00:00:00.000Z", "1", 1]]  # fmt: skip
    inner = query("groupBy", granularity="day", dimensions=["country"], aggregations=[COUNT],
                  limitSpec={"type": "default", "limit": 9, "columns": ["country"]})  # fmt: skip
    outer = rig.ask("timeseries", dataSource={"type": "query", "query": inner}, granularity="day",
                    aggregations=[COUNT, {"type": "longMax", "name": "m", "fieldName": "rows"}],
                    context={"skipEmptyBuckets": True})  # fmt: skip
    found = rig.sql(
        "SELECT day, count(*), max(n) FROM (SELECT TIME_FLOOR(__time, 'P1D') AS day, country,"
        " count(*) AS n FROM wiki_native GROUP BY 1, 2 ORDER BY 1, 2 LIMIT 9) GROUP BY day"
        " ORDER BY day"
    )
    assert values(outer, "result") == found


def test_a_search_counts_the_values_that_it_finds(rig: Rig) -> None:
    wanted = {"type": "insensitive_contains", "value": "E"}
    answer = rig.ask("search", granularity="all", query=wanted)
    assert [one["result"] for one in answer] == [[
        {"dimension": "country", "value": "DE", "count": 4},
        {"dimension": "country", "value": "de", "count": 4}]]  # fmt: skip
    by_day = rig.ask("search", granularity="day", query={"type": "all"}, limit=1,
                     searchDimensions=["city", "country"], sort={"type": "strlen"})  # fmt: skip
    assert [one["result"] for one in by_day] == [
        [{"dimension": "country", "value": value, "count": count}]
        for value, count in (("DE", 2), ("DE", 2), ("FR", 1))]  # fmt: skip


def test_metadata_of_a_datasource(rig: Rig) -> None:
    first, last = "2013-01-01T00:15:00.000Z", "2013-01-03T09:15:00.000Z"
    plain = {"queryType": "timeBoundary", "dataSource": "wiki_native"}
    answer = rig.api.post("/druid/v2/?pretty", json=plain)
    assert answer.text.count("\n") > 3
    assert answer.json() == [{"timestamp": first, "result": {"minTime": first, "maxTime": last}}]
    assert rig.ask("timeBoundary", bound="maxTime") == [
        {"timestamp": last, "result": {"maxTime": last}}]  # fmt: skip
    assert rig.ask("dataSourceMetadata", intervals=["2013/2014"]) == [
        {"timestamp": last, "result": {"maxIngestedEventTime": last}}]  # fmt: skip
    (described,) = rig.ask("segmentMetadata", merge=True)
    assert described["numRows"] == 20
    assert described["intervals"] == ["2013-01-01T00:00:00.000Z/2013-01-04T00:00:00.000Z"]
    columns = dict_of(described["columns"])
    assert columns["country"] == {
        "typeSignature": "STRING", "type": "STRING", "hasMultipleValues": False, "hasNulls": True,
        "size": 0, "cardinality": 4, "minValue": "DE", "maxValue": "de",
        "errorMessage": None}  # fmt: skip
    assert [dict_of(one)["type"] for one in columns.values()] == [
        "LONG", "STRING", "STRING", "LONG", "DOUBLE", "LONG"]  # fmt: skip


def test_a_row_filter_applies_to_native_queries(rig: Rig, tmp_path: Path) -> None:
    rules = """
        [roles.german]
        allow = ["read datasource:wiki_native"]
        row_filters.wiki_native = "country = 'DE'"
        masks.wiki_native.city = "null"
    """
    access = AccessFolderKit(tmp_path / "access", rules).control
    headers = as_principal(access, "user:g", "german")
    body = {"granularity": "day", "aggregations": [COUNT], "dimensions": ["city"]}
    with closing(Api(application(rig.routes, access=access))) as api:
        asked = [
            query("groupBy", **body),
            query("timeseries", granularity="hour", aggregations=[COUNT]),
            query("segmentMetadata"),
            query("scan", columns=["country"]),
            query("timeBoundary", dataSource="wiki_later"),
        ]
        groups, hours, metadata, rows, other = (
            api.post("/druid/v2", json=one, headers=headers) for one in asked
        )
    assert [row[1:] for row in values(groups.json(), "event")] == [[None, 2], [None, 2]]
    assert [row[1:] for row in values(hours.json(), "result")] == [[1]] * 4
    (described,) = metadata.json()
    assert (described["numRows"], described["size"], described["intervals"]) == (4, 0, None)
    assert described["columns"]["city"]["maxValue"] is None
    assert rows.json()[0]["events"] == [{"country": "DE"}] * 4
    assert other.status_code == 400


def test_mistakes_are_refused_with_their_place(rig: Rig) -> None:
    assert rig.refused("scan", columns=["contry"]) == (
        'columns[0]: there is no column "contry": did you mean "country"?'
    )
    assert rig.refused("scan", dataSource="wiki_nativ").startswith(
        'dataSource: there is no datasource "wiki_nativ" with rows: did you mean "wiki_native"?'
    )
    told = rig.refused("timeseries", granularity="second", intervals="2000/2013-01-15")
    assert "granularity: the intervals have more than 100000 buckets of SECOND" in told
    assert rig.refused("timeseries", aggregations=[COUNT, COUNT]) == (
        "two of its outputs are called 'rows': rename one"
    )


def test_the_queries_of_pydruid_are_answered(rig: Rig) -> None:
    """Recorded from pydruid 0.6.9, which sends these bodies to `druid/v2`."""
    asked = json.loads((ROOT / "tests/kits/pydruid_requests.json").read_text())
    answers = [rig.api.post("/druid/v2", json=one) for one in asked]
    assert [one.text for one in answers if one.status_code != 200] == []
    found = [one.json() for one in answers]
    assert [one["queryType"] for one in asked if not found.pop(0)] == []
    (last,) = answers[-1].json()
    assert last == {"version": "v1", "timestamp": "2013-01-01T00:00:00.000Z", "event": {"y": 3}}


def test_values_of_a_request_are_never_sql(rig: Rig) -> None:
    """The name of a column and each value are quoted, whatever they contain."""
    nasty = "x' OR 1=1 --`\"\\"
    for given in (
        {"type": "selector", "dimension": "country", "value": nasty},
        {"type": "like", "dimension": "country", "pattern": nasty},
        {"type": "in", "dimension": "country", "values": [nasty, "${x}", "\\'"]},
        {"type": "bound", "dimension": "country", "lower": f"{nasty}${{y}}"},
    ):
        answer = rig.ask(
            "timeseries", aggregations=[{"type": "count", "name": nasty}], filter=given
        )
        assert list(dict_of(answer[0]["result"])) == [nasty]
    assert json.dumps(nasty)[1:5] in rig.refused("scan", columns=[nasty])
