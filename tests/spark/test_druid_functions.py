"""The examples of Druid's SQL functions run in Spark and return what the page says."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal

import pytest

from penstock.core.clock import SystemClock
from penstock.core.instants import format_time
from penstock.core.intervals import Granularity, parse_time
from penstock.core.sql.druid_function_table import EVENTS, FUNCTIONS, DruidFunction
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.sql.service import SqlQuery, SqlService
from tests.spark.table_kit import GivenTables

pytestmark = pytest.mark.spark

AGGREGATE = re.compile(
    r"(_AGG|LISTAGG|APPROX_\w+|COUNT\w*|(SUM|MIN|MAX|AVG)|STDDEV\w*|VAR\w*|BIT_\w+|ANY_VALUE"
    r"|(EARLIEST|LATEST)\w*|DS_\w+|HLL_\w+|THETA_\w+|KLL_\w+)(_BIGINT)?\(",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def sql(sessions: SparkSessions) -> Iterator[SqlService]:
    service = SqlService(sessions, GivenTables(), SystemClock())
    yield service
    service.close()


def shown(value: object) -> object:
    """Return a value as the page shows it."""
    match value:
        case dt.datetime():
            return format_time(int(value.timestamp() * 1_000))
        case Decimal():
            return float(value)
        case bytes():
            return "a sketch"
        case _:
            return value


def first_row(sql: SqlService, statement: str) -> Mapping[str, object]:
    table = sql.query(SqlQuery(f"{EVENTS} {statement}")).table
    return {name: shown(value) for name, value in table.slice(0, 1).to_pylist()[0].items()}


def call_of(one: DruidFunction) -> str:
    return one.sql if one.state == "absent" else one.example


def test_the_examples_of_all_functions_return_what_the_page_says(sql: SqlService) -> None:
    running = {name: one for name, one in FUNCTIONS.items() if one.value}
    whole = {name for name, one in running.items() if call_of(one).startswith("SELECT")}
    is_window = {name for name, one in running.items() if " OVER (" in call_of(one)}
    folded = {
        name
        for name in running.keys() - whole - is_window
        if AGGREGATE.search(call_of(running[name]))
    }
    found: dict[str, object] = {}
    for names, after in ((folded, ""), (running.keys() - whole - folded, "ORDER BY __time")):
        listed = ", ".join(f'{call_of(running[name])} AS "{name}"' for name in sorted(names))
        found |= first_row(sql, f"SELECT {listed} FROM events {after}")
    for name in whole:
        (found[name],) = first_row(sql, running[name].example).values()
    for name, one in running.items():
        wanted = json.loads(one.value)
        if isinstance(wanted, int | float) and isinstance(found[name], int | float):
            assert math.isclose(found[name], wanted, rel_tol=1e-12), name  # type: ignore[arg-type]
        else:
            assert found[name] == wanted, name


# Calls over the first row, beside those of the page, in the places where Druid and Spark differ.
CALLS: dict[str, object] = {
    "time_floor(__time, 'PT20M', NULL, 'UTC')": "2013-08-01T08:00:00.000Z",
    "TIME_FLOOR(__time, 'PT1H', NULL, 'Asia/Kathmandu')": "2013-08-01T07:15:00.000Z",
    "TIME_FLOOR(__time, 'PT6H', NULL, 'Europe/Berlin')": "2013-08-01T05:00:00.000Z",
    "TIME_FLOOR(__time, 'P2W')": "2013-08-01T00:00:00.000Z",
    "TIME_FLOOR(__time, 'P7M')": "2013-03-01T00:00:00.000Z",
    "TIME_CEIL(__time, 'P1M', NULL, 'Asia/Tokyo')": "2013-08-31T15:00:00.000Z",
    "TIME_CEIL(TIME_FLOOR(__time, 'P1D'), 'P1D')": "2013-08-01T00:00:00.000Z",
    "TIME_SHIFT(__time, 'P1M', added)": "2014-03-01T08:14:37.000Z",
    "TIME_SHIFT(__time, 'P1DT1H', -2)": "2013-07-30T06:14:37.000Z",
    "TIME_SHIFT(TIME_PARSE('2024-03-30T12:00'), 'P1D', 1, 'Europe/Berlin')": (
        "2024-03-31T11:00:00.000Z"
    ),
    "TIME_EXTRACT(__time + INTERVAL 1.5 SECONDS, 'SECOND')": 38,
    "TIME_EXTRACT(__time, 'dow')": 4,
    "EXTRACT(CENTURY FROM __time)": 21,
    "EXTRACT(YEAR FROM __time)": 2013,
    "TIME_PARSE('2000-01-01 00:00:00', NULL, 'America/Los_Angeles')": "2000-01-01T08:00:00.000Z",
    "TIME_PARSE('2000-01-01T00:00Z', NULL, 'America/Los_Angeles')": "2000-01-01T00:00:00.000Z",
    "TIME_PARSE('12:30')": None,
    "TIME_PARSE(CONCAT('2000-01-02T03:04', ':05.678+02:00'))": "2000-01-02T01:04:05.678Z",
    "TIME_PARSE('2000-1-5', 'yyyy-MM-dd')": "2000-01-05T00:00:00.000Z",
    "TIME_PARSE('20000105', 'yyyyMMdd')": "2000-01-05T00:00:00.000Z",
    "TIME_PARSE('2000-01-05T03:04', 'yyyy-MM-dd''T''HH:mm')": "2000-01-05T03:04:00.000Z",
    "TIME_PARSE('none', 'yyyy')": None,
    "TIME_FORMAT(__time)": "2013-08-01T08:14:37.000Z",
    "TIME_FORMAT(__time, 'EEE yyyy HH ZZ')": "Thu 2013 08 +00:00",
    "TIME_IN_INTERVAL(__time, '2013-08-02/P1D')": False,
    "CEIL(__time TO QUARTER)": "2013-10-01T00:00:00.000Z",
    "FLOOR(7.9)": 7,
    "PARSE_LONG('1x')": None,
    "SAFE_DIVIDE(added, 0)": None,
    "BITWISE_AND(added + 1, 12)": 8,
    "IPV4_PARSE('1.2.3.256')": None,
    "IPV4_PARSE(16909060)": 16909060,
    "IPV4_MATCH('none', '1.0.0.0/8')": False,
    "MV_OFFSET_OF(tags, 'x')": None,
    "MV_SLICE(tags, 2, 4)": ["t3", None],
    "MV_SLICE(tags, 4, 5)": None,
    "MV_CONTAINS(NULLIF(tags, tags), 'a')": False,
    "MV_FILTER_ONLY(tags, ARRAY['x'])": None,
    "MV_TO_STRING(MV_APPEND(tags, NULLIF('', '')), '+')": "t1+t2+t3+null",
    "ARRAY_OVERLAP(ARRAY['a', NULL], ARRAY[NULL, 'b'])": True,
    "SCALAR_IN_ARRAY('x', ARRAY['a', NULL])": False,
    "ARRAY_OFFSET_OF(STRING_TO_ARRAY('a-b', '-'), 'b')": 1,
    "JSON_VALUE('{\"a\": 7.9}', '$.a' RETURNING BIGINT)": 7,
    "JSON_VALUE('{\"a\": [1, 2]}', '$.a' RETURNING BIGINT ARRAY)": [1, 2],
    "JSON_VALUE(JSON_QUERY('{\"a b\": {\"c\": \"x\"}}', '$[''a b'']'), '$.c')": "x",
    "JSON_QUERY('{\"a\": null}', '$.a')": None,
    "JSON_QUERY_ARRAY('{\"a\": 1}', '$.a')": ["1"],
    "JSON_OBJECT(KEY 'n' VALUE NULL, 'o': JSON_QUERY('{\"a\": \"x\"}', '$.a'))": (
        '{"n":null,"o":"x"}'
    ),
    "TO_JSON_STRING(CONCAT('a\"', 'b'))": '"a\\"b"',
    "TRUNCATE(-1234.56, -2)": -1200.0,
    "added / 2": 3.5,
    "added DIV 2": 3,
    "'a' || 'b' = 'ab' AND added BETWEEN 7 AND 8 AND city IN ('San Juan, PR')": True,
    "added <> 7 OR missing IS NOT NULL OR NOT (added >= 7) IS TRUE": False,
    "'5%' LIKE '5!%' ESCAPE '!' AND '5%' LIKE '5\\\\%' AND NOT '5x' LIKE '5\\\\%'": True,
    "__time + INTERVAL '1' DAY": "2013-08-02T08:14:37.000Z",
}


def test_calls_in_which_druid_and_spark_differ(sql: SqlService) -> None:
    # A column: `from_json` of an expression that is none is refused.
    calls = {
        call.replace("NULLIF(tags, tags)", "missing").replace("NULLIF('', '')", "missing"): value
        for call, value in CALLS.items()
    }
    listed = ",\n ".join(f"{call} AS c{number}" for number, call in enumerate(calls))
    events = "(SELECT *, CAST(NULL AS STRING) AS missing FROM events)"
    row = first_row(sql, f"SELECT {listed} FROM {events} ORDER BY __time")
    assert dict(zip(calls, row.values(), strict=True)) == calls


def test_functions_of_sketches_take_stored_sketches_and_values(sql: SqlService) -> None:
    stored = (
        "SELECT hll_sketch_agg(CAST(id AS STRING)) AS h, theta_sketch_agg(CAST(id AS STRING)) AS t,"
        " kll_sketch_agg_double(CAST(id AS DOUBLE)) AS k, MAX(id) AS id FROM range(30)"
        " GROUP BY id % 2"
    )
    calls = {
        "APPROX_COUNT_DISTINCT_DS_HLL(h)": 30,
        "APPROX_COUNT_DISTINCT_DS_THETA(t)": 30,
        "APPROX_COUNT_DISTINCT_DS_HLL(id) FILTER (WHERE id > 28)": 1,
        "DS_GET_QUANTILE(DS_QUANTILES_SKETCH(k), 0.5)": 14.0,
        "THETA_SKETCH_ESTIMATE(THETA_SKETCH_NOT(DS_THETA(t), DS_THETA(id)))": 28,
    }
    listed = ", ".join(f"{call} AS c{number}" for number, call in enumerate(calls))
    row = first_row(sql, f"SELECT {listed} FROM ({stored})")
    assert dict(zip(calls, row.values(), strict=True)) == calls


PERIODS = ["PT1S", "PT5M", "PT15M", "PT1H", "PT6H", "P1D", "P2D", "P1W", "P1M", "P3M", "P5M", "P1Y"]
TIMES = [
    "2024-02-29T23:59:59.999",
    "2024-01-01T00:00:00",
    "1969-12-31T23:52:30",
    "2023-10-29T01:30",
    "2024-03-31T01:00",
    "2023-10-28T22:00",
]
ZONES = ["Europe/Berlin", "Asia/Kathmandu", "-04:00"]


def test_periods_are_those_of_granularities(sql: SqlService) -> None:
    asked, wanted = [], []
    cases = [(period, "", Granularity.parse(period)) for period in PERIODS]
    for zone in ZONES:
        cases += [
            (period, f", NULL, '{zone}'", Granularity.parse(f"{period} in {zone}"))
            for period in ("PT1H", "P1D", "P1W", "P3M")
        ]
    for period, rest, granularity in cases:
        for text in TIMES[3:] if rest else TIMES[:4]:  # the last ones are beside shifts of a clock
            ms = parse_time(text)
            call = f"TIMESTAMP '{text}', '{period}'{rest}"
            asked += [f"TIME_FLOOR({call})", f"TIME_CEIL({call})"]
            wanted += [granularity.truncate(ms), granularity.bucket(ms - 1).end_ms]
    listed = ", ".join(f"TIMESTAMP_TO_MILLIS({one}) AS c{n}" for n, one in enumerate(asked))
    (row,) = sql.query(SqlQuery(f"SELECT {listed}")).table.to_pylist()
    assert dict(zip(asked, row.values(), strict=True)) == dict(zip(asked, wanted, strict=True))


def test_a_text_that_is_not_a_list_is_a_list_of_one_value(sql: SqlService) -> None:
    """A message may have one value of a multi-value dimension without brackets, as in Druid."""
    rows = sql.query(
        SqlQuery(
            "SELECT MV_TO_ARRAY(tags) AS tags, MV_CONTAINS(tags, 'c') AS has, MV_LENGTH(tags) AS n,"
            " MV_OVERLAP(tags, ARRAY['c', 'a']) AS one, ARRAY_TO_STRING(tags, '-') AS text"
            """ FROM VALUES (1, '["a","b"]'), (2, 'c'), (3, '7'), (4, NULL) AS t (id, tags)"""
            " ORDER BY id"
        )
    ).table
    assert [tuple(row.values()) for row in rows.to_pylist()] == [
        (["a", "b"], False, 2, True, "a-b"),
        (["c"], True, 1, True, "c"),
        (["7"], False, 1, False, "7"),
        (None, False, None, False, None),
    ]
    tags = "FROM VALUES ('[\"a\",\"b\"]'), ('c'), (NULL) AS rows (tags)"
    found = sql.query(SqlQuery(f"SELECT tag {tags} CROSS JOIN UNNEST(tags) AS t (tag) ORDER BY 1"))
    assert found.table["tag"].to_pylist() == ["a", "b", "c"]
