"""Grafana, Metabase, Airflow and ADBC against a whole Penstock.

ADBC's driver and the code of Airflow's provider run themselves. The requests of the others follow
their public sources: Grafana's plugin for Druid, and Metabase's two drivers for it.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import pyarrow as pa
import pytest

from tests.conformance.analysts_kit import MORNING, QUOTED, TABLE, World
from tests.conformance.clients_kit import Client, Refused

pytestmark = [pytest.mark.conformance, pytest.mark.system]

DAY = "2026-11-20T00:00:00.000Z"
COUNT = {"type": "count", "name": "n"}

# Grafana

OF_GRAFANA: dict[str, Any] = {
    "dataSource": {"type": "table", "name": TABLE},
    "intervals": {"type": "intervals", "intervals": [f"{DAY}/2026-12-02T00:00:00.000Z"]},
    "context": {"sqlOuterLimit": 2000, "queryId": "grafana-1"},
    "virtualColumns": [],
}
TEXT = {"type": "default", "dimension": "country", "outputName": "land", "outputType": "STRING"}
GERMAN = {"type": "selector", "dimension": "country", "value": "DE", "extractionFn": None}
GRAFANA: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "timeseries": (
        {
            "granularity": {"type": "period", "period": "P1D", "timeZone": "UTC"},
            "aggregations": [COUNT, {"type": "longLast", "name": "last", "fieldName": "added"}],
            "postAggregations": [], "filter": GERMAN, "descending": False, "limit": 0,
        },
        [{"n": 2, "last": 5}],
    ),
    "topN": (
        {
            "granularity": "all", "dimension": TEXT, "threshold": 1, "postAggregations": [],
            "metric": {"type": "numeric", "metric": "sum"},
            "aggregations": [{"type": "doubleSum", "name": "sum", "fieldName": "share"}],
        },
        [[{"land": "IT", "sum": 3.75}]],
    ),
    "groupBy": (
        {
            "granularity": "month", "dimensions": [TEXT], "aggregations": [COUNT],
            "postAggregations": [], "filter": {"type": "and", "fields": [
                GERMAN, {"type": "search", "dimension": "city", "query": {
                    "type": "insensitive_contains", "value": "BON"}}]},
        },
        [{"land": "DE", "n": 1}],
    ),
    "scan": (
        {
            "columns": ["__time", "city"], "resultFormat": "compactedList", "batchSize": 20480,
            "limit": 0, "order": "ascending", "filter": GERMAN,
        },
        [[[1795162200000, "Bonn"], [1795169100000, "Ulm"]]],
    ),
    "search": (
        {
            "granularity": "all", "limit": 0, "query": {"type": "contains", "value": "ö"},
            "searchDimensions": [{**TEXT, "dimension": "city"}],
        },
        [[
            {"dimension": "land", "value": "Röma 10", "count": 1},
            {"dimension": "land", "value": "Röma 9", "count": 1},
        ]],
    ),
    "timeBoundary": (
        {"bound": None}, [{"minTime": MORNING, "maxTime": "2026-12-01T06:30:00.000Z"}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", GRAFANA)
def test_native_queries_of_grafana(analysts: World, kind: str) -> None:
    query, wanted = GRAFANA[kind]
    found = analysts.post("/druid/v2/", {**OF_GRAFANA, "queryType": kind, **query})
    part = {"groupBy": "event", "scan": "events"}.get(kind, "result")
    shown = [one[part] for one in found]
    assert shown[: len(wanted)] == wanted


def test_sql_of_grafana(analysts: World) -> None:
    def asked(sql: str) -> Any:
        context = {"sqlOuterLimit": 2000}
        form = {"queryType": "sql", "resultFormat": "array", "header": True, "context": context}
        return analysts.post("/druid/v2/sql", {"query": sql, **form})

    times = "__time >= MILLIS_TO_TIMESTAMP(1795132800000) AND __time <= MILLIS_TO_TIMESTAMP({})"
    sql = f'SELECT __time, "city", added FROM "{TABLE}" WHERE city <> \'Ulm\' AND {times}'
    assert asked(sql.format(1795219200000) + " ORDER BY __time") == [
        ["__time", "city", "added"], [MORNING, "Bonn", 20],
        ["2026-11-20T08:40:00.000Z", "Lyon", 7],
    ]  # fmt: skip


def test_what_grafana_asks_about_datasources(analysts: World) -> None:
    assert isinstance(analysts.get("/status")["version"], str)
    assert TABLE in analysts.get("/druid/v2/datasources")
    columns = analysts.get(f"/druid/v2/datasources/{TABLE}")
    assert columns == {"dimensions": ["country", "city"], "metrics": ["added", "share"]}
    kinds = [
        *("cardinality", "size", "aggregators", "interval", "minmax"),
        *("queryGranularity", "timestampSpec", "rollup"),
    ]
    flags = {"lenientAggregatorMerge": False, "usingDefaultInterval": False}
    more = {"analysisTypes": kinds, "toInclude": {"type": "all"}, **flags}
    (found,) = analysts.post("/druid/v2/", {**OF_GRAFANA, "queryType": "segmentMetadata", **more})
    assert found["intervals"][0] == f"{DAY}/2026-11-21T00:00:00.000Z"
    assert found["columns"]["country"]["cardinality"] == 3


# Metabase: native queries

ALWAYS = {"intervals": ["1900-01-01/2100-01-01"], "granularity": "all"}
WEEKS = {
    "type": "period", "period": "P1W", "timeZone": "UTC", "origin": "1970-01-04T00:00:00Z",
}  # fmt: skip
MINUTES = {
    "type": "extraction", "dimension": "__time", "outputName": "timestamp", "extractionFn": {
        "type": "timeFormat", "format": "yyyy-MM-dd'T'HH:mm:00ZZ", "timeZone": "UTC",
        "locale": "en-US"},
}  # fmt: skip
METABASE: dict[str, tuple[str, dict[str, Any], object]] = {
    "a list in natural order, of an expression": (
        "topN",
        {
            **ALWAYS, "dimension": "city", "metric": {"type": "alphaNumeric"}, "threshold": 1000,
            "filter": {"type": "like", "dimension": "city", "escape": "\\", "pattern": "Röma%",
                       "extractionFn": None},
            "aggregations": [{"type": "filtered", "aggregator": COUNT, "filter": {
                "type": "not", "field": {"type": "selector", "dimension": "added",
                                         "value": None}}}],
            "postAggregations": [{"type": "arithmetic", "name": "expression", "fn": "*", "fields": [
                {"type": "fieldAccess", "fieldName": "n"},
                {"type": "constant", "name": "10", "value": 10}]}],
        },
        [
            {"city": "Röma 9", "n": 1, "expression": 10.0},
            {"city": "Röma 10", "n": 1, "expression": 10.0},
        ],
    ),
    "groups in order": (
        "groupBy",
        {
            **ALWAYS, "dimensions": ["country", MINUTES],
            "filter": {"type": "bound", "ordering": "numeric", "dimension": "added", "lower": 6,
                       "upper": None, "lowerStrict": True, "upperStrict": True},
            "aggregations": [{"type": "cardinality", "name": "u", "fieldNames": ["city"],
                              "byRow": True, "round": True}],
            "limitSpec": {"type": "default", "limit": 1, "columns": [
                {"dimension": "u", "direction": "descending"},
                {"dimension": "country", "direction": "ascending"}]},
        },
        {"country": "DE", "timestamp": "2026-11-20T08:10:00+00:00", "u": 1},
    ),
    "weeks that begin on Sunday": (
        "timeseries",
        {"granularity": WEEKS, "intervals": ["-5000/5000"], "aggregations": [COUNT]},
        {"n": 4},
    ),
}  # fmt: skip


@pytest.mark.parametrize("question", METABASE)
def test_native_queries_of_metabase(analysts: World, question: str) -> None:
    kind, query, wanted = METABASE[question]
    body = {"queryType": kind, "dataSource": TABLE, "context": {"timeout": 60000}, **query}
    first, *_ = analysts.post("/druid/v2", body)
    assert first["event" if kind == "groupBy" else "result"] == wanted
    if kind == "timeseries":
        assert first["timestamp"] == "2026-11-15T00:00:00.000Z"


# Metabase: JDBC

COLUMN = f'"druid"."{TABLE}"."{{}}"'
TIME, CITY, ADDED = (COLUMN.format(name) for name in ("__time", "city", "added"))
FROM = f'FROM "druid"."{TABLE}"'
DAYS = f"DATE_TRUNC('day', {TIME})"
MBQL: dict[str, tuple[str, list[object], list[list[object]]]] = {
    "by day": (
        (
            f'SELECT {DAYS} AS "__time", COUNT(*) AS "count", COUNT(DISTINCT {CITY}) AS "count_2",'
            f' SUM(CASE WHEN {ADDED} < 7 THEN 1 ELSE 0.0 END) / COUNT(*) AS "share" {FROM}'
            f" WHERE ({TIME} >= ?) AND ({TIME} < ?) GROUP BY {DAYS} ORDER BY {DAYS} ASC"
        ),
        ["2026-11-20 00:00:00.000", "2026-11-22 00:00:00.000"],
        [[1795132800000, 3, 3, 1 / 3], [1795219200000, 1, 1, 1.0]],
    ),
    "parts of a time": (
        (
            f"SELECT TIME_EXTRACT({TIME}, 'dow') AS \"day\", SUBSTRING({CITY}, 1, 1234) AS"
            f' "substring1" {FROM} WHERE (LOWER({CITY}) LIKE ?) AND ({TIME} <'
            " TIMESTAMPADD(year, 100, CURRENT_TIMESTAMP)) LIMIT 2000"
        ),
        ["%o'h%"],
        [[6, QUOTED]],
    ),
    "a question of a question": (
        (
            'SELECT "source"."country" AS "country", MAX("source"."n") AS "max" FROM (SELECT'
            f' {COLUMN.format("country")} AS "country", COUNT(*) AS "n" {FROM} GROUP BY'
            f' {COLUMN.format("country")}) AS "source" WHERE "source"."country" IS NOT NULL'
            ' GROUP BY "source"."country" ORDER BY "max" DESC, "source"."country" ASC LIMIT 2'
        ),
        [],
        [["DE", 2], ["IT", 2]],
    ),
}


class Avatica:
    """A connection of Druid's JDBC driver, which sends the properties of its address."""

    def __init__(self, world: World, **info: str) -> None:
        self._world, self._name = world, str(uuid.uuid4())
        self("openConnection", info=info)

    def __call__(self, kind: str, **fields: object) -> Any:
        body = {"request": kind, "connectionId": self._name, **fields}
        return self._world.post("/druid/v2/sql/avatica/", body)

    def rows(self, kind: str, **fields: object) -> list[dict[str, object]]:
        found = self(kind, **fields)
        names = [one["columnName"] for one in found["signature"]["columns"]]
        return [dict(zip(names, row, strict=True)) for row in found["firstFrame"]["rows"]]


def test_metabase_reads_tables_by_jdbc(analysts: World) -> None:
    driver = Avatica(analysts, user="x", password="y")
    assert driver("databaseProperties")["map"] == {}
    schemas = driver.rows("getSchemas", catalog=None, schemaPattern=None)
    assert [one["TABLE_SCHEM"] for one in schemas] == [
        "INFORMATION_SCHEMA", "druid", "lookup", "sys",
    ]  # fmt: skip
    kinds = ["TABLE", "PARTITIONED TABLE", "VIEW", "FOREIGN TABLE", "MATERIALIZED VIEW"]
    place = {"catalog": None, "schemaPattern": "druid"}
    tables = driver.rows("getTables", **place, tableNamePattern="tool\\_edit%", typeList=kinds)
    assert [(one["TABLE_NAME"], one["TABLE_TYPE"]) for one in tables] == [(TABLE, "TABLE")]
    columns = driver.rows("getColumns", **place, tableNamePattern=TABLE, columnNamePattern=None)
    types = {"country": "VARCHAR", "city": "VARCHAR", "added": "BIGINT", "share": "DOUBLE"}
    assert {one["COLUMN_NAME"]: one["TYPE_NAME"] for one in columns} == {
        "__time": "TIMESTAMP", **types,
    }  # fmt: skip
    driver("closeConnection")


@pytest.mark.parametrize("question", MBQL)
def test_questions_of_metabase_by_jdbc(analysts: World, question: str) -> None:
    sql, values, wanted = MBQL[question]
    driver = Avatica(analysts)
    driver("connectionSync", connProps={"connProps": "connPropsImpl", "autoCommit": True})
    handle = driver("prepare", sql=sql, maxRowsTotal=-1)["statement"]
    assert len(handle["signature"]["parameters"]) == len(values)
    given = [{"type": "STRING", "value": one} for one in values]
    found = driver("execute", statementHandle=handle, parameterValues=given, maxRowCount=100)
    assert found["resultSets"][0]["firstFrame"]["rows"] == wanted
    driver("closeConnection")


# Airflow


@pytest.fixture(scope="module")
def airflow(analysts: World) -> Iterator[Client]:
    with Client("airflow") as running:
        running.ask("connection", "druid", port=analysts.port)
        yield running


def test_the_operator_of_airflow_waits_for_a_task(airflow: Client) -> None:
    airflow.ask("ingest", "druid", spec='{"type": "noop"}', kind="BATCH")
    with pytest.raises(Refused, match=r"AirflowException: Did not get 200 or 202"):
        airflow.ask("ingest", "druid", spec='{"type": "nooop"}', kind="BATCH")


def test_the_operator_of_airflow_ends_a_task_that_takes_too_long(
    airflow: Client, analysts: World
) -> None:
    spec = json.dumps({"type": "noop", "id": "too-long", "runTime": 120_000})
    with pytest.raises(Refused, match=r"AirflowException: .* took more than 1 seconds"):
        airflow.ask("ingest", "druid", spec=spec, kind="BATCH", limit_s=1)
    status = analysts.get("/druid/indexer/v1/task/too-long/status")["status"]["status"]
    assert status == "FAILED"


def test_airflow_writes_and_reads_by_sql(airflow: Client) -> None:
    sql = (
        f"REPLACE INTO airflow_edits OVERWRITE ALL SELECT __time, city FROM {TABLE}"
        " WHERE country = 'DE' PARTITIONED BY DAY"
    )
    airflow.ask("ingest", "druid", spec=json.dumps({"query": sql}), kind="MSQ")
    airflow.ask("connection", "queries", port=int(airflow.ask("port", "druid")), conn_type="druid",
                extra={"endpoint": "druid/v2/sql/"})  # fmt: skip
    asked = "SELECT city FROM airflow_edits ORDER BY city"
    assert airflow.ask("query", "queries", sql=asked) == [["Bonn"], ["Ulm"]]


# ADBC


@pytest.fixture(scope="module")
def flight(analysts: World) -> Iterator[adbc.Connection]:
    with adbc.connect(analysts.flight, autocommit=True) as connection:
        yield connection


def test_adbc_reads_tables(flight: adbc.Connection) -> None:
    objects = flight.adbc_get_objects(
        depth="columns", db_schema_filter="druid", table_name_filter="tool%"
    )
    (catalog,) = objects.read_all().to_pylist()
    (schema,) = catalog["catalog_db_schemas"]
    (table,) = schema["db_schema_tables"]
    assert (table["table_name"], table["table_type"]) == (TABLE, "TABLE")
    names = [one["column_name"] for one in table["table_columns"]]
    assert names == ["__time", "country", "city", "added", "share"]
    assert flight.adbc_get_table_schema(TABLE) == pa.schema({
        "__time": pa.timestamp("us", "UTC"), "country": pa.string(), "city": pa.string(),
        "added": pa.int64(), "share": pa.float64(),
    })  # fmt: skip


def test_adbc_queries(flight: adbc.Connection) -> None:
    with flight.cursor() as cursor:
        sql = f"SELECT city FROM {TABLE} WHERE added > ? AND country = ? ORDER BY added"
        described = cursor.adbc_prepare(sql)
        assert described is not None
        assert len(described) == 2
        for least, cities in ((4, ["Ulm", "Bonn"]), (19, ["Bonn"])):
            cursor.execute(sql, (least, "DE"))
            assert cursor.fetchall() == [(one,) for one in cities]
        cursor.execute("SELECT id FROM range(100000)")
        assert sum(batch.num_rows for batch in cursor.fetch_record_batch()) == 100_000
        with pytest.raises(adbc.Error, match=r"`nope`.*line 1, column 8"):
            cursor.execute(f"SELECT nope FROM {TABLE}")


def test_adbc_cancels(flight: adbc.Connection) -> None:
    with flight.cursor() as cursor:
        ended = threading.Event()

        def cancel() -> None:
            while not ended.wait(1.0):  # once more where the query had not begun
                cursor.adbc_cancel()

        canceller = threading.Thread(target=cancel)
        canceller.start()
        try:
            with pytest.raises(adbc.Error, match=r"(?i)cancel"):
                cursor.execute(
                    "SELECT count(*) FROM range(100000) a CROSS JOIN range(100000) b"
                    " WHERE a.id * b.id % 7 = 3"
                )
        finally:
            ended.set()
            canceller.join()
