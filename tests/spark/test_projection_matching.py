"""Which queries a projection answers, by their text: rather too few than one that it does not.

A query that is taken by mistake gives a wrong sum and nobody sees it; so all that is not known must
be refused, whatever it is.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.core.sql import tree
from penstock.core.sql.checked_query import checked_query
from penstock.indexing.specs.rows.projections import Projection
from penstock.spark.projections.matcher import matched_query, why_not
from penstock.spark.projections.plan import ProjectionPlan
from penstock.spark.projections.projection_catalog import plans
from penstock.spark.tables.table_files import Columns
from tests.spark.projection_kit import COLUMNS, aggregator, plan, virtual

HOURLY = plan(
    "__gran",
    "carrier",
    "low",
    "next",
    virtual=[
        virtual("__gran", "timestamp_floor(__time, 'PT1H')"),
        virtual("low", "lower(city)"),
        virtual("next", "n + 1"),
    ],
    aggregators=[
        aggregator("longSum", "n"),
        aggregator("longMax", "n"),
        {"type": "count", "name": "count"},
    ],
)
# All columns as they are, none cut.
PLAIN = plan("__time", "carrier", "d", "flag", "distinct")
OF_UA = plan(
    "City",
    filter={
        "type": "and",
        "fields": [
            {"type": "equals", "column": "carrier", "matchValue": "UA"},
            {"type": "range", "column": "n", "matchValueType": "LONG", "lower": 1},
        ],
    },
)
ALL = plan(aggregators=[aggregator("longSum", "n")])
ROWS = "COALESCE(SUM(`__penstock_rows_0`), 0)"
SUM = "SUM(`__penstock_sum_1`)"
TIME = "`__penstock_key_0`"
NEXT = "`__penstock_key_3`"
FROM = "FROM ds"


def over(sql: str, one: ProjectionPlan = HOURLY) -> str | None:
    """Return the query over the projection; None: the rows answer, or the query is wrong."""
    try:
        query = checked_query(sql)
    except InvalidRequest:
        return None
    return matched_query(query, "ds", one, COLUMNS, "the view")


def why(sql: str, one: ProjectionPlan = HOURLY, columns: Columns = COLUMNS) -> str:
    try:
        query = checked_query(sql)
    except InvalidRequest as error:
        return str(error)
    reason = why_not(query, "ds", one, columns)
    assert bool(reason) == (matched_query(query, "ds", one, columns, "the view") is None)
    return reason


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        # aggregates
        ("SELECT COUNT(*) FROM ds", f"SELECT {ROWS} FROM `the view`"),
        ("select count ( 1 ) from DS ;", f"select {ROWS} from `the view`"),
        (
            'SELECT Sum("N"), MAX(n), sum("count") FROM "ds"',
            f"SELECT {SUM}, MAX(`__penstock_max_3`), SUM(`__penstock_sum_4`) FROM `the view`",
        ),
        ("SELECT SUM(count) FROM ds", "SELECT SUM(`__penstock_sum_4`) FROM `the view`"),
        (
            "SELECT SUM(n) / COUNT(n) FROM ds",
            f"SELECT {SUM} / COALESCE(SUM(`__penstock_values_2`), 0) FROM `the view`",
        ),
        (
            "SELECT COUNT(carrier), MIN(Carrier) FROM ds",
            (
                "SELECT COALESCE(SUM(CASE WHEN `carrier` IS NULL THEN 0 ELSE"
                " `__penstock_rows_0` END), 0), MIN(`carrier`) FROM `the view`"
            ),
        ),
        (
            "SELECT ROUND(SUM(n) / COUNT(*), 2) AS mean FROM `ds` HAVING COUNT(*) > 10",
            f"SELECT ROUND({SUM} / {ROWS}, 2) AS mean FROM `the view` HAVING {ROWS} > 10",
        ),
        # names of the datasource
        (
            'SELECT "ds"."carrier" AS "Carrier", SUM(DS.n) FROM ds GROUP BY ds.carrier',
            (
                f'SELECT "ds"."carrier" AS "Carrier", {SUM} FROM `the view` AS `ds`'
                " GROUP BY ds.carrier"
            ),
        ),
        (
            "SELECT a.carrier, year(a . __time) FROM ds AS a GROUP BY ALL",
            f"SELECT a.carrier, year({TIME}) FROM `the view` AS a GROUP BY ALL",
        ),
        ("SELECT COUNT(*) FROM ds a", f"SELECT {ROWS} FROM `the view` a"),
        # keys
        (
            "SELECT carrier, COUNT(*) n2 FROM ds GROUP BY carrier ORDER BY 2 DESC LIMIT 5 OFFSET 1",
            (
                f"SELECT carrier, {ROWS} n2 FROM `the view` GROUP BY carrier ORDER BY 2 DESC"
                " LIMIT 5 OFFSET 1"
            ),
        ),
        (
            (
                "SELECT \"CARRIER\" AS c, SUM(n) FROM ds WHERE carrier IN (?, 'b') AND"
                " carrier LIKE ? GROUP BY c HAVING SUM(n) > ? ORDER BY c NULLS LAST, SUM(n) LIMIT ?"
            ),
            (
                f"SELECT \"CARRIER\" AS c, {SUM} FROM `the view` WHERE carrier IN (?, 'b') AND"
                f" carrier LIKE ? GROUP BY c HAVING {SUM} > ? ORDER BY c NULLS LAST, {SUM} LIMIT ?"
            ),
        ),
        (
            "SELECT Lower( city ) AS l, COUNT(*) FROM ds GROUP BY ALL",
            f"SELECT `__penstock_key_2` AS l, {ROWS} FROM `the view` GROUP BY ALL",
        ),
        (
            'SELECT upper(lower("City")) FROM ds GROUP BY 1',
            "SELECT upper(`__penstock_key_2`) FROM `the view` GROUP BY 1",
        ),
        (
            "SELECT n + 1, COUNT(*) FROM ds WHERE (n + 1) > 3 GROUP BY n + 1",
            (
                f"SELECT `__penstock_key_3`, {ROWS} FROM `the view` WHERE (`__penstock_key_3`) > 3"
                " GROUP BY `__penstock_key_3`"
            ),
        ),
        (
            (
                "SELECT CASE WHEN carrier = 'UA' THEN 1.5 ELSE -1e3 END x, COUNT(*) FROM ds"
                " WHERE NOT (carrier IS NULL OR carrier <=> 'x') GROUP BY 1 -- the end"
            ),
            (
                f"SELECT CASE WHEN carrier = 'UA' THEN 1.5 ELSE -1e3 END x, {ROWS} FROM `the view`"
                " WHERE NOT (carrier IS NULL OR carrier <=> 'x') GROUP BY 1"
            ),
        ),
        (
            "SELECT carrier || '-' || CAST(length(carrier) AS STRING) /* why */ FROM ds GROUP BY 1",
            (
                "SELECT carrier || '-' || CAST(length(carrier) AS STRING)           FROM `the view`"
                " GROUP BY 1"
            ),
        ),
        ("SELECT carrier AS carrier FROM ds GROUP BY 1", None),
        ("SELECT ALL carrier::int FROM ds GROUP BY 1", None),
        (
            "SELECT COUNT(*) FROM ds WHERE n + 1 > 3",
            f"SELECT {ROWS} FROM `the view` WHERE {NEXT} > 3",
        ),
        (
            "SELECT (((n) + (1))) + 1 FROM ds GROUP BY 1",
            f"SELECT (({NEXT})) + 1 FROM `the view` GROUP BY 1",
        ),
        ('SELECT SUM(ALL n), "sum"(n) FROM ds', f"SELECT {SUM}, {SUM} FROM `the view`"),
        (
            "SELECT COUNT(*) c, carrier asc FROM ds GROUP BY carrier, asc || 'x'",
            f"SELECT {ROWS} c, carrier asc FROM `the view` GROUP BY carrier, asc || 'x'",
        ),
        (
            'SELECT COUNT(*) AS "end", R"carrier" FROM ds GROUP BY 2',
            f'SELECT {ROWS} AS "end", R"carrier" FROM `the view` GROUP BY 2',
        ),
        # names of items that are those of columns
        (
            (
                "SELECT date_trunc('DAY', __time) AS __time, SUM(n) AS n FROM ds"
                " WHERE __time >= '2024-01-01' GROUP BY date_trunc('DAY', __time)"
                ' ORDER BY __time ASC, "N" DESC NULLS LAST, COUNT(*)'
            ),
            (
                f"SELECT date_trunc('DAY', {TIME}) AS __time, {SUM} AS n FROM `the view`"
                f" WHERE {TIME} >= '2024-01-01' GROUP BY date_trunc('DAY', {TIME})"
                f' ORDER BY __time ASC, "N" DESC NULLS LAST, {ROWS}'
            ),
        ),
        ("SELECT upper(carrier) AS carrier FROM ds GROUP BY carrier ORDER BY carrier", None),
        # times
        (
            "SELECT date_trunc('day', __time) AS day, COUNT(*) FROM ds GROUP BY day",
            f"SELECT date_trunc('day', {TIME}) AS day, {ROWS} FROM `the view` GROUP BY day",
        ),
        (
            'SELECT hour(__time), year("__TIME"), CAST(__time AS DATE) FROM ds GROUP BY ALL',
            (
                f"SELECT hour({TIME}), year({TIME}), CAST({TIME} AS DATE) FROM `the view`"
                " GROUP BY ALL"
            ),
        ),
        (
            "SELECT EXTRACT(DOW FROM __time), extract(hour FROM __time) FROM ds GROUP BY ALL",
            (
                f"SELECT EXTRACT(DOW FROM {TIME}), extract(hour FROM {TIME}) FROM `the view`"
                " GROUP BY ALL"
            ),
        ),
        (
            "SELECT TIME_FLOOR(__time, 'P1D'), TIME_EXTRACT(__time, 'HOUR') FROM ds GROUP BY ALL",
            (
                f"SELECT (date_trunc('DAY', {TIME})), (CAST(extract(HOUR FROM {TIME}) AS BIGINT))"
                " FROM `the view` GROUP BY ALL"
            ),
        ),
        (
            (
                "SELECT COUNT(*) FROM ds WHERE __time >= TIMESTAMP '2024-01-01T05:00:00+01:00'"
                " AND __time < DATE '2024-02-01'"
            ),
            (
                f"SELECT {ROWS} FROM `the view` WHERE {TIME} >="
                f" TIMESTAMP '2024-01-01T05:00:00+01:00' AND {TIME} < DATE '2024-02-01'"
            ),
        ),
        (
            (
                "SELECT COUNT(*) FROM ds WHERE NOT (__time < '2024-01-01 07:00:00' OR"
                " __time >= '2024-02-01')"
            ),
            (
                f"SELECT {ROWS} FROM `the view` WHERE NOT ({TIME} < '2024-01-01 07:00:00' OR"
                f" {TIME} >= '2024-02-01')"
            ),
        ),
        (
            (
                "SELECT date_trunc('HOUR', __time), hour(date_trunc('HOUR', __time)) FROM ds"
                " WHERE date_trunc('HOUR', __time) BETWEEN ? AND ? GROUP BY 1"
            ),
            f"SELECT {TIME}, hour({TIME}) FROM `the view` WHERE {TIME} BETWEEN ? AND ? GROUP BY 1",
        ),
    ],
)
def test_queries_that_it_answers(sql: str, expected: str | None) -> None:
    if expected is None:
        expected = sql.replace(FROM, "FROM `the view`")
    assert over(sql) == expected


def test_a_time_that_is_not_cut_may_be_asked_anything() -> None:
    for sql in (
        "SELECT MIN(__time), MAX(__time) FROM ds",
        "SELECT COUNT(*) FROM ds WHERE __time > '2024-01-01T00:00:00.123456Z'",
        "SELECT second(__time), date_format(__time, 'yyyy-MM') FROM ds GROUP BY ALL",
        "SELECT minute(__time) FROM ds WHERE __time = ? GROUP BY 1",
        "SELECT __time FROM ds GROUP BY __time",
    ):
        assert why(sql, PLAIN) == ""
        assert why(sql)


def test_of_several_cut_times_the_first_is_asked_and_the_others_by_their_expression() -> None:
    both = plan(
        "day",
        "hour",
        virtual=[
            virtual("day", "timestamp_floor(__time, 'P1D')"),
            virtual("hour", "timestamp_floor(__time, 'PT1H')"),
        ],
    )
    assert over("SELECT year(__time) FROM ds GROUP BY 1", both) == (
        "SELECT year(`__penstock_key_0`) FROM `the view` GROUP BY 1"
    )
    assert over("SELECT hour(date_trunc('HOUR', __time)) FROM ds GROUP BY 1", both) == (
        "SELECT hour(`__penstock_key_1`) FROM `the view` GROUP BY 1"
    )
    assert not over("SELECT hour(__time) FROM ds GROUP BY 1", both)


@pytest.mark.parametrize(
    ("cut", "fits", "does_not"),
    [
        ("PT5M", ["MINUTE' IS NO", "HOUR", "WEEK", "YEAR"], ["MINUTE", "SECOND"]),
        ("PT7M", [], ["HOUR", "DAY", "YEAR"]),
        ("P1D", ["DAY", "WEEK", "MONTH"], ["HOUR"]),
        ("P2D", [], ["WEEK", "MONTH", "DAY"]),
        ("P1W", ["WEEK"], ["DAY", "MONTH", "YEAR"]),
        ("P1M", ["MONTH", "QUARTER", "YEAR"], ["WEEK", "DAY"]),
        ("P3M", ["QUARTER", "YEAR"], ["MONTH"]),
    ],
)
def test_units_that_buckets_nest_in(cut: str, fits: list[str], does_not: list[str]) -> None:
    one = plan("g", virtual=[virtual("g", f"timestamp_floor(__time, '{cut}')")])
    for unit in fits[cut == "PT5M" :]:
        assert over(f"SELECT date_trunc('{unit}', __time) FROM ds GROUP BY 1", one)
    for unit in does_not:
        assert not over(f"SELECT date_trunc('{unit}', __time) FROM ds GROUP BY 1", one)


def test_literals_that_start_a_bucket() -> None:
    one = plan("g", virtual=[virtual("g", "timestamp_floor(__time, 'P1W')")])
    for literal in ("'2024-01-01'", "DATE '2024-01-08'", "TIMESTAMP '2024-01-14T23:00:00-01:00'"):
        assert over(f"SELECT COUNT(*) FROM ds WHERE __time >= {literal}", one)
    for literal in (
        "'2024-01-02'",
        "'2024-01-01T00:00:00.000001Z'",
        "'2024-01-01 00:00:00.0000001'",
        "'2024-13-01'",
        "'2024-01-01T25:00:00'",
        "'2024-01'",
        "DATE '2024-01-01T00:00:00'",
        "'2024-01-01T00:00:00Europe/Berlin'",
        "r'2024-01-01'",
        "?",
        "20240101",
    ):
        assert not over(f"SELECT COUNT(*) FROM ds WHERE __time >= {literal}", one)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        # the shape
        ("SELECT COUNT(*) FROM other", "not a query of ds"),
        ("SELECT COUNT(*) AS ds FROM other", "not a query of ds"),
        ("SELECT COUNT(*) FROM ds2", "not a query of ds"),
        ("SELECT COUNT(*) FROM x.ds", "only this datasource"),
        ("SELECT COUNT(*) FROM ds.x", "not a query of ds"),
        ("SELECT COUNT(*) FROM ds a b", "b is not expected"),
        ("SELECT COUNT(*) FROM ds AS (a)", "( is not expected"),
        ("SELECT COUNT(*) FROM ds AS a (x)", "only this datasource"),
        ("SELECT COUNT(*) FROM ds AS 'a'", "'a' is not expected"),
        ("SELECT COUNT(*) FROM ds, ds", "only this datasource"),
        ("SELECT COUNT(*) FROM ds JOIN ds USING (carrier)", "only this datasource"),
        ("SELECT COUNT(*) FROM ds TABLESAMPLE (5 ROWS)", "only this datasource"),
        ("SELECT COUNT(*) FROM ds LATERAL VIEW explode(tags) t", "only this datasource"),
        ("SELECT COUNT(*) FROM ds |> LIMIT 1", "not a plain SELECT"),
        ("SELECT COUNT(*) FROM (SELECT * FROM ds)", "only this datasource"),
        ("SELECT COUNT(*) FROM ds UNION ALL SELECT COUNT(*) FROM ds", "not a plain SELECT"),
        ("SELECT COUNT(*) FROM ds WHERE TRUE SELECT 1", "SELECT is not expected"),
        ("WITH a AS (SELECT 1) SELECT COUNT(*) FROM ds", "not a plain SELECT"),
        ("(SELECT COUNT(*) FROM ds)", "not a plain SELECT"),
        ("EXPLAIN SELECT COUNT(*) FROM ds", "EXPLAIN is not expected"),
        ("FROM ds SELECT COUNT(*)", "FROM is not expected"),
        ("TABLE ds", "not a plain SELECT"),
        ("SELECT COUNT(*) ds", "not a query of ds"),
        ("SELECT COUNT(*) FROM", "ends too early"),
        ("SELECT COUNT(*) FROM ds WHERE", "ends too early"),
        ("SELECT COUNT(*), FROM ds", "FROM is not expected"),
        ("SELECT COUNT(*) FROM ds LIMIT ALL", "LIMIT has no number"),
        ("SELECT COUNT(*) FROM ds LIMIT 1 + 1", "LIMIT has no number"),
        ("SELECT COUNT(*) FROM ds ORDER 1", "expected BY"),
        ("SELECT COUNT(*) FROM ds ORDER BY 1 WHERE TRUE", "WHERE is not expected"),
        ("SELECT /*+ BROADCAST(ds) */ COUNT(*) FROM ds", "hint"),
        ("SELECT /*+ carrier */ COUNT(*) FROM ds", "hint"),
        ("SELECT COUNT(*) FROM ds WHERE carrier = 'x", "opens a text"),
        # rows
        ("SELECT * FROM ds", "* is not supported"),
        ("SELECT carrier FROM ds", "selects rows"),
        ("SELECT 1 FROM ds", "selects rows"),
        ("SELECT COUNT(*), carrier FROM ds", "selects rows"),
        ("SELECT DISTINCT carrier FROM ds", "DISTINCT is not supported"),
        ("SELECT a.carrier FROM ds GROUP BY 1", ""),
        ("SELECT ds.carrier.x FROM ds GROUP BY 1", ""),
        ("SELECT x.ds.carrier FROM ds GROUP BY 1", ""),
        ("SELECT ds.carrier FROM ds a GROUP BY 1", ""),
        ("SELECT ds.upper(carrier) FROM ds GROUP BY 1", ""),
        ("SELECT ds.n FROM ds GROUP BY 1", "ds.n is not one of its keys"),
        ("SELECT carrier.x FROM ds GROUP BY 1", ""),
        ("SELECT carrier[0] FROM ds GROUP BY 1", ""),
        # aggregates
        ("SELECT COUNT(DISTINCT carrier) FROM ds", "DISTINCT is not supported"),
        ("SELECT SUM(DISTINCT n) FROM ds", "DISTINCT is not supported"),
        ("SELECT SUM(n + 1) FROM ds", "is not a column"),
        ("SELECT SUM((n)) FROM ds", "is not a column"),
        ("SELECT SUM(1) FROM ds", "is not a column"),
        ("SELECT COUNT(NULL) FROM ds", "is not a column"),
        ("SELECT COUNT(?) FROM ds", "is not a column"),
        ("SELECT COUNT(n, n) FROM ds", "is not a column"),
        ("SELECT COUNT() FROM ds", "is not a column"),
        ("SELECT COUNT(ds.*) FROM ds", "is not a column"),
        ("SELECT SUM(SUM(n)) FROM ds", "is not a column"),
        ("SELECT SUM(d) FROM ds", "no sum of d"),
        ("SELECT MIN(n) FROM ds", "no min of n"),
        ("SELECT COUNT(delays) FROM ds", "no count of delays"),
        ("SELECT MAX(__time) FROM ds", "no max of __time"),
        ("SELECT COUNT(*) FILTER (WHERE carrier = 'x') FROM ds", "not supported"),
        ("SELECT SUM(n) OVER (PARTITION BY carrier) FROM ds", "not supported"),
        ("SELECT SUM(n) IGNORE NULLS FROM ds", ""),
        ("SELECT any_value(carrier) FROM ds", "any_value(carrier) is not supported"),
        ("SELECT approx_count_distinct(carrier) FROM ds", "is not supported"),
        # names
        ("SELECT n FROM ds GROUP BY n", "n is not one of its keys"),
        ("SELECT count, COUNT(*) FROM ds GROUP BY count", "count is not one of its keys"),
        ("SELECT carrier FROM ds WHERE n > 3 GROUP BY carrier", "n is not one of its keys"),
        ("SELECT carrier AS n, COUNT(*) FROM ds GROUP BY n", "n is not one of its keys"),
        ("SELECT carrier AS n, n || 'x' FROM ds GROUP BY ALL", "n is not one of its keys"),
        ("SELECT SUM(n) AS N FROM ds HAVING N > 1", "N may be an item or a column"),
        ("SELECT SUM(n) AS n FROM ds ORDER BY SUM(n)", "n may be an item or a column"),
        ("SELECT SUM(n) AS n FROM ds ORDER BY 1, n + 1", "n may be an item or a column"),
        ("SELECT SUM(n) AS n FROM ds ORDER BY (n)", "n may be an item or a column"),
        ("SELECT SUM(n) AS n, COUNT(*) AS n FROM ds ORDER BY n", "several items have the name n"),
        ("SELECT carrier, 1 AS Carrier FROM ds GROUP BY 1", "several items have the name carrier"),
        ("SELECT SUM(n) AS n FROM ds ORDER BY ds.n", "ds.n may be an item or a column"),
        (
            "SELECT lower(city) AS city, COUNT(*) FROM ds GROUP BY city",
            "city is not one of its keys",
        ),
        # words that are names of items to Spark
        ("SELECT COUNT(*) end FROM ds", "end is not expected"),
        (
            "SELECT CASE WHEN TRUE THEN 1 END end, COUNT(*) FROM ds GROUP BY 1",
            "end is not expected",
        ),
        ("SELECT carrier case, COUNT(*) FROM ds GROUP BY 1", "case is not expected"),
        ("SELECT carrier null, COUNT(*) FROM ds GROUP BY 1", "null is not expected"),
        ("SELECT COUNT(*), NULL true FROM ds GROUP BY carrier", "true is not expected"),
        ("SELECT COUNT(*) AS __penstock_rows_0 FROM ds", "the item name __penstock_rows_0"),
        ("SELECT carrier AS (a, b) FROM ds GROUP BY 1", ""),
        ("SELECT carrier AS c FROM ds WHERE c = 'x' GROUP BY 1", "c is not one of its keys"),
        ('SELECT COUNT(*) FROM ds ORDER BY "count(1)"', ""),
        ("SELECT \u017fum(n) FROM ds", "has characters other than"),
        ("SELECT COUNT(٣) FROM ds", "has characters other than"),
        # expressions
        ("SELECT lower(n) FROM ds GROUP BY 1", "n is not one of its keys"),
        ("SELECT 2 * n + 1 FROM ds GROUP BY 1", "n is not one"),
        ("SELECT n + 1 * 2 FROM ds GROUP BY 1", "n is not one"),
        ("SELECT -n + 1 FROM ds GROUP BY 1", "n is not one"),
        ('SELECT "carrier" -n + 1 FROM ds GROUP BY 1', "n is not one"),
        ("SELECT rand(), COUNT(*) FROM ds GROUP BY carrier", "rand() is not supported"),
        ("SELECT carrier -> 1 FROM ds GROUP BY 1", "carrier -> 1 is not supported"),
        ("SELECT round(carrier => 1) FROM ds GROUP BY 1", "carrier => 1 is not supported"),
        ("SELECT carrier | 1 FROM ds GROUP BY 1", "carrier | 1 is not supported"),
        ("SELECT carrier FROM ds GROUP BY carrier, ()", "expected an expression"),
        (
            "SELECT carrier FROM ds GROUP BY (carrier, carrier)",
            "(carrier, carrier) is not supported",
        ),
        ("SELECT carrier FROM ds GROUP BY carrier WITH ROLLUP", ""),
        (
            "SELECT carrier FROM ds GROUP BY CUBE (carrier)",
            "CUBE and GROUPING SETS are not supported",
        ),
        ("SELECT carrier FROM ds GROUP BY GROUPING SETS ((carrier))", ""),
        ("SELECT carrier COLLATE UNICODE FROM ds GROUP BY 1", ""),
        ("SELECT x'1F', COUNT(*) FROM ds GROUP BY 1", ""),
        (
            "SELECT CAST(carrier AS DECIMAL(3, 1)) FROM ds GROUP BY 1",
            "the type DECIMAL(3, 1) is not supported",
        ),
        (
            "SELECT CAST(carrier AS ARRAY<STRING>) FROM ds GROUP BY 1",
            "the type ARRAY<STRING> is not supported",
        ),
        (
            "SELECT COUNT(*) FROM ds WHERE carrier = current_user()",
            "current_user() is not supported",
        ),
        ("SELECT COUNT(*) FROM ds WHERE carrier = current_user", "current_user is not supported"),
        (
            "SELECT COUNT(*) FROM ds WHERE carrier LIKE ANY ('a')",
            "carrier LIKE ANY ('a') is not supported",
        ),
        ("SELECT COUNT(*) FROM ds WHERE EXISTS (carrier)", "EXISTS (carrier) is not supported"),
        ("SELECT COUNT(*) FROM ds WHERE carrier IN (SELECT 'x')", "(SELECT 'x') is not supported"),
        ("SELECT COUNT(*) FROM ds WHERE :p = 1", ": is not expected"),
        ("SELECT COUNT(*) FROM ds WHERE carrier = {p}", "{ is not expected"),
        # times
        ("SELECT __time FROM ds GROUP BY 1", "truncated to HOUR"),
        ("SELECT date_trunc('MINUTE', __time) FROM ds GROUP BY 1", "truncated to HOUR"),
        ("SELECT date_trunc('HOUR', __time + carrier) FROM ds GROUP BY 1", "truncated to HOUR"),
        ("SELECT date_trunc(carrier, __time) FROM ds GROUP BY 1", "truncated to HOUR"),
        ("SELECT date_trunc('DECADE', __time) FROM ds GROUP BY 1", "truncated to HOUR"),
        ("SELECT minute(__time) FROM ds GROUP BY 1", "truncated to HOUR"),
        ("SELECT EXTRACT(MINUTE FROM __time) FROM ds GROUP BY 1", "truncated to HOUR"),
        ("SELECT EXTRACT(SECOND FROM __time) FROM ds GROUP BY 1", "is not supported"),
        ("SELECT EXTRACT(DAY FROM n) FROM ds GROUP BY 1", "n is not one of its keys"),
        ("SELECT TIME_FLOOR(__time, 'PT1M') FROM ds GROUP BY 1", "truncated to HOUR"),
        ("SELECT date_format(__time, 'yyyy') FROM ds GROUP BY 1", "truncated to HOUR"),
        ("SELECT CAST(__time AS STRING) FROM ds GROUP BY 1", "truncated to HOUR"),
        ("SELECT COUNT(*) FROM ds WHERE __time > '2024-01-01'", "truncated to HOUR"),
        ("SELECT COUNT(*) FROM ds WHERE __time <= '2024-01-01'", "truncated to HOUR"),
        ("SELECT COUNT(*) FROM ds WHERE __time = '2024-01-01'", "truncated to HOUR"),
        ("SELECT COUNT(*) FROM ds WHERE __time <> '2024-01-01'", "truncated to HOUR"),
        ("SELECT COUNT(*) FROM ds WHERE '2024-01-01' <= __time", "truncated to HOUR"),
        ("SELECT COUNT(*) FROM ds WHERE __time <=> '2024-01-01'", "truncated to HOUR"),
        (
            "SELECT COUNT(*) FROM ds WHERE __time << '2024-01-01'",
            "<< '2024-01-01' is not supported",
        ),
        ("SELECT COUNT(*) FROM ds WHERE __time >== '2024-01-01'", "= is not expected"),
        ("SELECT COUNT(*) FROM ds WHERE '2024-01-01' >= __time", "truncated to HOUR"),
        ("SELECT COUNT(*) FROM ds WHERE __time >= '2024-01-01T00:30:00'", "truncated to HOUR"),
        ("SELECT COUNT(*) FROM ds WHERE __time >= ?", "truncated to HOUR"),
        ("SELECT COUNT(*) FROM ds WHERE __time >= carrier", "truncated to HOUR"),
        (
            "SELECT COUNT(*) FROM ds WHERE __time BETWEEN '2024-01-01' AND '2025-01-01'",
            "truncated to",
        ),
        (
            "SELECT COUNT(*) FROM ds WHERE __time >= TIMESTAMP '2024-01-01' + INTERVAL 1 DAY",
            "truncated to HOUR",
        ),
        ("SELECT COUNT(*) FROM ds WHERE __time + carrier >= '2024-01-01'", "truncated to HOUR"),
        ("SELECT COUNT(*) FROM ds WHERE carrier + __time >= '2024-01-01'", "truncated to HOUR"),
        ("SELECT COUNT(*) FROM ds WHERE __time >= '2024-01-01' = TRUE", "truncated to HOUR"),
        ("SELECT COUNT(*) FROM ds WHERE carrier = __time >= '2024-01-01'", "truncated to HOUR"),
        ("SELECT COUNT(*) FROM ds WHERE __time >= '2024-01-01' 'x'", "truncated to HOUR"),
        ("SELECT date_trunc('DAY', __time) AS __time FROM ds GROUP BY __time", "truncated to HOUR"),
        (
            "SELECT date_trunc('DAY', __time) AS __time FROM ds GROUP BY 1 HAVING __time < '2024'",
            "may be an item or a column",
        ),
        (
            (
                "SELECT date_trunc('DAY', __time) AS __time FROM ds GROUP BY 1"
                " ORDER BY date_trunc('HOUR', __time)"
            ),
            "may be an item or a column",
        ),
    ],
)
def test_queries_that_it_does_not_answer(sql: str, reason: str) -> None:
    assert over(sql) is None
    assert reason in why(sql)


# key words as columns


def test_columns_that_are_named_as_key_words() -> None:
    columns = (*COLUMNS, ("end", "string"))
    ends = plan("end", "carrier", columns=columns)

    def says(sql: str) -> str:
        return why(sql, ends, columns)

    assert not says('SELECT "end", COUNT(*) FROM ds GROUP BY "end"')
    assert not says("SELECT end, COUNT(*) FROM ds GROUP BY end")
    assert not says("SELECT COUNT(*) FROM ds WHERE CASE WHEN TRUE THEN TRUE END")
    assert "is not expected" in says("SELECT carrier end, COUNT(*) FROM ds GROUP BY 1")
    assert over('SELECT "distinct", COUNT(*) FROM ds GROUP BY 1', PLAIN)
    # In Spark this is SELECT DISTINCT carrier, not a column that gets a name.
    assert not over("SELECT distinct carrier FROM ds GROUP BY 1", PLAIN)
    assert not over("SELECT distinct carrier2 FROM ds GROUP BY 1", PLAIN)


def test_what_stood_side_by_side_stays_apart() -> None:
    assert over('SELECT lower(city)"c",COUNT(*)`x`FROM`ds`GROUP BY(lower(city))') == (
        f'SELECT `__penstock_key_2` "c",{ROWS} `x`FROM `the view` GROUP BY(`__penstock_key_2`)'
    )
    assert over("SELECT COUNT(*)FROM ds WHERE(carrier='UA')AND(n>=1)", OF_UA) == (
        f"SELECT {ROWS} FROM `the view` WHERE TRUE AND TRUE"
    )


# conditions


@pytest.mark.parametrize(
    "where",
    [
        "carrier = 'UA' AND n >= 1",
        "(n >= 1) AND ((\"CARRIER\" = 'UA')) AND city LIKE 'a%'",
        "city BETWEEN 'a' AND 'b' AND carrier = 'UA' AND n>=1 AND n >= 1",
        "CASE WHEN city = 'a' AND city = 'b' THEN TRUE END AND carrier = 'UA' AND n >= 1",
    ],
)
def test_what_the_projection_is_of_must_be_asked_for(where: str) -> None:
    sql = f"SELECT city, COUNT(*) FROM ds WHERE {where} GROUP BY 1"
    made = over(sql, OF_UA)
    assert made is not None
    assert "carrier" not in made.lower()
    assert made.count("TRUE") >= 2


def test_a_condition_may_stand_in_parentheses_on_either_side() -> None:
    known = dataclasses.replace(OF_UA, conditions=("(`carrier` IS NOT NULL)",))
    for where in ("carrier IS NOT NULL", "((carrier IS NOT NULL)) AND city = 'a'"):
        assert over(f"SELECT COUNT(*) FROM ds WHERE {where}", known)
    assert not over("SELECT COUNT(*) FROM ds WHERE carrier IS NULL", known)


@pytest.mark.parametrize(
    "where",
    [
        "",
        "WHERE carrier = 'UA'",
        "WHERE carrier = 'UA' OR n >= 1",
        "WHERE carrier = 'UA' AND n >= 1 OR city = 'x'",
        "WHERE NOT carrier = 'UA' AND n >= 1",
        "WHERE carrier = 'ua' AND n >= 1",
        "WHERE carrier = 'UA' AND n >= 2",
        "WHERE carrier = 'UA' AND n > 1",
        "WHERE (carrier = 'UA' AND n >= 1) OR city = 'x'",
        "WHERE carrier = 'UA' AND city BETWEEN 'a' AND n >= 1",
        "WHERE carrier = 'UA' AND n >= 1 + 1",
        "HAVING carrier = 'UA' AND n >= 1",
    ],
)
def test_what_the_projection_is_not_of(where: str) -> None:
    assert not over(f"SELECT COUNT(*) FROM ds {where}", OF_UA)


# one group, and numbers whose zeros differ


def test_one_group_of_all_rows_answers_no_grouped_query() -> None:
    assert over("SELECT COUNT(*), SUM(n) FROM ds", ALL)
    # A file without rows has the group, too.
    for sql in (
        "SELECT 'a', COUNT(*) FROM ds GROUP BY 'a'",
        "SELECT COUNT(*) FROM ds GROUP BY ALL",
    ):
        assert "one group" in why(sql, ALL)


ZEROS = plan(
    "carrier",
    "d",
    "twice",
    "both",
    "arrays",
    columns=(*COLUMNS, ("numbers", "array<double>")),
    virtual=[
        virtual("twice", "f * 2"),
        virtual("both", "concat(carrier, city)"),
        virtual("arrays", "concat(numbers, numbers)"),
    ],
)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT d, COUNT(*) FROM ds GROUP BY d ORDER BY d DESC NULLS FIRST",
        "SELECT d AS x, COUNT(d) FROM ds WHERE carrier > 'a' GROUP BY x ORDER BY x",
        "SELECT f * 2, concat(numbers, numbers) FROM ds GROUP BY f * 2, 2 ORDER BY f * 2",
        "SELECT concat(carrier, city) AS c, COUNT(*) FROM ds GROUP BY c",
    ],
)
def test_a_number_of_two_zeros_stands_alone(sql: str) -> None:
    assert why(sql, ZEROS) == ""


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT CAST(d AS STRING) FROM ds GROUP BY 1",
        "SELECT d || '' FROM ds GROUP BY 1",
        "SELECT d * 3 FROM ds GROUP BY 1",
        "SELECT -d FROM ds GROUP BY 1",
        "SELECT COALESCE(d, 1) FROM ds GROUP BY 1",
        "SELECT CASE WHEN carrier = 'a' THEN d END FROM ds GROUP BY 1",
        "SELECT d AS x, length(x) FROM ds GROUP BY 1",
        "SELECT COUNT(*) FROM ds WHERE d NOT LIKE '-%'",
        "SELECT COUNT(*) FROM ds WHERE (d) RLIKE '^-'",
        "SELECT COUNT(*) FROM ds WHERE ((d)) IN ('-0.0')",
        "SELECT d, COUNT(*) FROM ds WHERE (d) || '' <> '0.0' GROUP BY d",
        "SELECT COUNT(*) FROM ds GROUP BY carrier, (d) / 1 || ''",
        "SELECT COUNT(*) c, d x FROM ds GROUP BY d, (x) || 'x'",
        "SELECT COUNT(*) FROM ds GROUP BY carrier, d HAVING (d) || '' = '-0.0'",
        "SELECT (f * 2) || 'x', COUNT(*) FROM ds GROUP BY 1",
        "SELECT CAST(concat(numbers, numbers) AS STRING), COUNT(*) FROM ds GROUP BY 1",
        "SELECT concat(carrier, city) || 'x', COUNT(*) FROM ds GROUP BY 1",
        "SELECT MIN(d) FROM ds",
    ],
)
def test_nothing_is_made_of_a_number_of_two_zeros(sql: str) -> None:
    without = plan("carrier", "d", aggregators=[aggregator("longSum", "n")])
    assert "two zeros" in why(sql, ZEROS) if "MIN" not in sql else why(sql, without)


def test_names_that_look_like_numbers_are_names() -> None:
    # A whole number has no exponent: to Spark 1e1l is the column.
    columns = (*COLUMNS, ("1e1l", "double"))
    one = plan("1e1l", columns=columns)
    for name in ("1e1l", "1e1S", "1e2y"):
        sql = f"SELECT {name} || 'x', COUNT(*) FROM ds GROUP BY 1"
        assert "is not a number" in why(sql, one, columns)
    assert "two zeros" in why("SELECT \"1e1L\" || 'x' FROM ds GROUP BY 1", one, columns)
    for number in ("1e1", "1e1f", "1E1D", "1bd", "1L", "5s"):
        assert not why(f"SELECT {number}, COUNT(*) FROM ds GROUP BY 1", one, columns)


def test_averages_of_bigint_are_those_of_the_rows() -> None:
    # Spark adds them as doubles: of 2^60, 3 and -2^60 it makes another sum than the exact one.
    columns = (*COLUMNS, ("i", "int"))
    wanted = [aggregator("longSum", name) for name in ("n", "i", "d")]
    one = plan("carrier", aggregators=wanted, columns=columns)
    assert "SUM / COUNT" in why("SELECT AVG(n) FROM ds", one, columns)
    for column, number in (("i", 3), ("d", 5)):
        query = checked_query(f"SELECT MEAN({column}) FROM ds")
        assert matched_query(query, "ds", one, columns, "v") == (
            f"SELECT (SUM(CAST(`__penstock_sum_{number}` AS DOUBLE))"
            f" / NULLIF(SUM(`__penstock_values_{number + 1}`), 0)) FROM `v`"
        )


# anything


WORDS = """
    SELECT FROM ds WHERE GROUP BY HAVING ORDER LIMIT AND OR NOT IN AS ALL DISTINCT carrier city n d
    __time count COUNT SUM AVG lower date_trunc EXTRACT CAST DATE CASE WHEN THEN ELSE END BETWEEN
    TIMESTAMP ( ) ( ) , * + - / = < > >= <= . ? ; | 'UA' 'DAY' '2024-01-01' "carrier" `n` 1 2.5 x
    ' " /* $ [ :: -> COUNT(*) SUM(n) date_trunc('DAY',__time) lower(city)
    """.split()  # noqa: SIM905 - a hundred of them
WORDS += ["/*+ a */", "--\n", "FROM ds", "GROUP BY"]


def names_of(one: ProjectionPlan) -> set[str]:
    stored = [*(k.stored for k in one.keys), *(m.stored for m in one.measures)]
    return {name.lower() for name in stored}


@given(st.lists(st.sampled_from(WORDS), max_size=25), st.booleans())
def test_noise_is_refused_or_names_nothing_else(words: list[str], begins: bool) -> None:
    sql = " ".join((["SELECT", "COUNT(*)", "FROM ds"] if begins else []) + words)
    columns = {name.lower() for name, _ in COLUMNS}
    for one in (HOURLY, PLAIN, OF_UA, ALL):
        made = over(sql, one)
        why(sql, one)
        if made is None:
            continue
        query, rewritten = checked_query(sql).root.body, checked_query(made).root.body
        assert isinstance(query, tree.Select)
        names = {
            one.parts[-1].lower() for one in tree.walk(rewritten) if isinstance(one, tree.Name)
        }
        items = {one.names[0].lower() for one in query.items if isinstance(one, tree.Aliased)}
        assert names & columns <= names_of(one) | items


@given(st.text(max_size=60))
def test_any_text_is_refused_or_told(text: str) -> None:
    for sql in (text, f"SELECT COUNT(*) FROM ds {text}", f"SELECT {text} FROM ds GROUP BY 1"):
        assert why(sql) or over(sql)


def test_odd_names_of_datasources() -> None:
    for name, written in {
        "my table": '"MY TABLE"',
        'q"uote': '"q""uote"',
        "back`tick": "`back``tick`",
        "with.dot": "`with.dot`",
        "select": '"select"',
    }.items():
        sql = f"SELECT COUNT(*) FROM {written}"
        assert (
            matched_query(checked_query(sql), name, HOURLY, COLUMNS, "a`b")
            == f"SELECT {ROWS} FROM `a``b`"
        )


def test_long_queries_are_refused_at_once() -> None:
    assert "longer" in why(f"SELECT COUNT(*) FROM ds WHERE carrier IN ('{'x' * 10_000}')")
    deep = f"SELECT COUNT(*) FROM ds WHERE {'(' * 150}n >= 1{')' * 150} AND carrier = 'UA'"
    assert over(deep, OF_UA)
    assert not over(deep.replace("1)", "2)", 1), OF_UA)
    # As deep as a statement may be.
    value = f"{'NOT ' * 140}{'(carrier = 1 AND ' * 150}TRUE{')' * 150}"
    assert over(f"SELECT {value}, COUNT(*) FROM ds GROUP BY 1")


def test_the_queries_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/sql.md").read_text()
    section = page.split("\n## Projections\n")[1].split("\n## ")[0]
    example = json.loads(section.split("```json")[1].split("```")[0])
    columns = (("__time", "timestamp"), ("channel", "string"), ("page", "string"))
    columns = (*columns, ("added", "bigint"))
    specs = [Projection.model_validate(one) for one in example["projections"]]
    (made,) = plans(specs, (), columns)
    told = re.findall(r"^\| `(SELECT [^`]+)` \| (the projection|the rows)", section, re.MULTILINE)
    assert len(told) == 7
    for sql, by in told:
        assert bool(why_not(checked_query(sql), "edits", made, columns)) == (by == "the rows"), sql
