"""What Druid's SQL has and Spark's does not: errors say what to write, and that runs."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from table_kit import GivenTables

from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Granularity, parse_time
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.sql.service import SqlQuery, SqlService
from penstock.spark.sql.sql_dialect import FUNCTIONS, in_spark, unresolved_column

pytestmark = pytest.mark.spark

# One row, whose columns are named as in the table of functions; lists are JSON text, as in ours.
ROW = """
WITH sketches AS (SELECT hll_sketch_agg(id) AS hll, theta_sketch_agg(id) AS theta FROM range(3)),
one AS (
    SELECT
        TIMESTAMP '2024-01-15T10:30:00' AS __time, '2024-01-15' AS text, 7 AS number,
        '["a","b","c"]' AS tags, '{"a": "x"}' AS json, *
    FROM sketches
)
"""


def utc(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[arg-type,misc]


ABC = ["a", "b", "c"]
SKETCH = object()
VALUES: dict[str, object] = {
    "TIME_FLOOR": utc(2024, 1, 15),
    "TIME_CEIL": utc(2024, 1, 16),
    "TIME_SHIFT": utc(2024, 1, 17, 10, 30),
    "TIME_EXTRACT": 10,
    "TIME_PARSE": utc(2024, 1, 15),
    "TIME_FORMAT": "2024-01-15",
    "TIME_IN_INTERVAL": True,
    "MILLIS_TO_TIMESTAMP": utc(1970, 1, 1, 0, 0, 0, 7_000),
    "TIMESTAMP_TO_MILLIS": 1_705_314_600_000,
    "EARLIEST": 7,
    "LATEST": 7,
    "EARLIEST_BY": 7,
    "LATEST_BY": 7,
    "APPROX_COUNT_DISTINCT_BUILTIN": 1,
    "APPROX_COUNT_DISTINCT_DS_HLL": 3,
    "APPROX_COUNT_DISTINCT_DS_THETA": 3,
    "DS_HLL": SKETCH,
    "DS_THETA": SKETCH,
    "HLL_SKETCH_UNION": SKETCH,
    "THETA_SKETCH_UNION": SKETCH,
    "THETA_SKETCH_INTERSECT": SKETCH,
    "THETA_SKETCH_NOT": SKETCH,
    "APPROX_QUANTILE": 7,
    "APPROX_QUANTILE_DS": 7,
    "APPROX_QUANTILE_FIXED_BUCKETS": 7,
    "STRING_TO_MV": ["2024", "01", "15"],
    "STRING_TO_ARRAY": ["2024", "01", "15"],
    "MV_TO_STRING": "a-b-c",
    "ARRAY_TO_STRING": "a-b-c",
    "MV_TO_ARRAY": ABC,
    "ARRAY_LENGTH": 3,
    "MV_LENGTH": 3,
    "ARRAY_OFFSET": "a",
    "MV_OFFSET": "a",
    "ARRAY_ORDINAL": "a",
    "MV_ORDINAL": "a",
    "ARRAY_OFFSET_OF": 0,
    "MV_OFFSET_OF": 0,
    "ARRAY_ORDINAL_OF": 1,
    "MV_ORDINAL_OF": 1,
    "MV_CONTAINS": True,
    "ARRAY_OVERLAP": True,
    "MV_OVERLAP": True,
    "MV_FILTER_ONLY": ["a"],
    "MV_FILTER_NONE": ["b", "c"],
    "ARRAY_CONCAT": [*ABC, "z"],
    "MV_CONCAT": [*ABC, "z"],
    "MV_APPEND": [*ABC, "z"],
    "MV_PREPEND": ["z", *ABC],
    "ARRAY_SLICE": ["a", "b"],
    "MV_SLICE": ["a", "b"],
    "ARRAY_CONCAT_AGG": ABC,
    "UNNEST": "a",
    "JSON_VALUE": "x",
    "JSON_QUERY": "x",
    "JSON_KEYS": ["a"],
    "JSON_OBJECT": '{"a":7}',
    "TO_JSON_STRING": '{"a":7}',
    "CONTAINS_STRING": True,
    "ICONTAINS_STRING": True,
    "STRLEN": 10,
    "STRPOS": 5,
    "TEXTCAT": "2024-01-15!",
    "STRING_FORMAT": "2024-01-15!",
    "PARSE_LONG": 7,
    "SAFE_DIVIDE": 3.5,
    "TRUNCATE": 7,
    "BITWISE_AND": 1,
    "BITWISE_OR": 7,
    "BITWISE_XOR": 6,
    "BITWISE_COMPLEMENT": -8,
    "BITWISE_SHIFT_LEFT": 14,
    "BITWISE_SHIFT_RIGHT": 3,
}


@pytest.fixture(scope="module")
def sql(sessions: SparkSessions) -> Iterator[SqlService]:
    service = SqlService(sessions, GivenTables(), SystemClock())
    yield service
    service.close()


def refusal(sql: SqlService, statement: str) -> str:
    with pytest.raises(InvalidRequest) as refused:
        sql.query(SqlQuery(statement))
    return str(refused.value)


def test_what_is_told_instead_of_a_function_runs(sql: SqlService) -> None:
    assert set(VALUES) == set(FUNCTIONS)
    aggregates = re.compile(r"(_agg|_by|approx_\w+|collect_list)\(")
    found: dict[str, object] = {}
    alone = {"UNNEST"}
    folded = {name for name in FUNCTIONS if aggregates.search(FUNCTIONS[name])}
    # What folds rows, what makes rows, and what does neither cannot stand in one statement.
    for names in (alone, folded, FUNCTIONS.keys() - alone - folded):
        listed = ", ".join(f"{FUNCTIONS[name]} AS {name}" for name in sorted(names))
        result = sql.query(SqlQuery(f"{ROW} SELECT {listed} FROM one"))
        found |= result.table.slice(0, 1).to_pylist()[0]
    for name, value in found.items():
        if VALUES[name] is SKETCH:
            assert isinstance(value, bytes), name
        else:
            assert value == VALUES[name], name


def test_lists_are_read_as_the_page_for_those_who_know_druid_says(sql: SqlService) -> None:
    tags = "from_json(tags, 'ARRAY<STRING>')"
    asked = f"{ROW} SELECT tag FROM one LATERAL VIEW explode({tags}) t AS tag"
    assert sql.query(SqlQuery(asked)).table.column(0).to_pylist() == ABC
    page = (Path(__file__).parents[2] / "docs" / "druid-compatibility.md").read_text()
    assert asked.split("FROM one ")[1] in page
    for name in ("MV_TO_STRING", "MV_CONTAINS", "ARRAY_LENGTH"):
        assert FUNCTIONS[name] in page


def test_spark_has_no_such_functions(sql: SqlService) -> None:
    known = sql.query(SqlQuery("SHOW FUNCTIONS")).table.column(0).to_pylist()
    assert not {name.upper() for name in known} & FUNCTIONS.keys()
    said = refusal(sql, f"{ROW} SELECT latest(text) FROM one")
    advice = FUNCTIONS["LATEST"]
    assert said.endswith(f"LATEST is a function of Druid's SQL. In Spark SQL: {advice}")


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("SELECT lookup('a', 'b')", "join the datasource"),
        ("SELECT FLOOR(now() TO MONTH)", "date_trunc('MONTH', now())"),
        ("SELECT CEIL(now() TO HOUR)", "date_trunc('HOUR', now() - INTERVAL 1 MICROSECOND) +"),
        ("SELECT JSON_OBJECT(KEY 'a' VALUE 1)", "to_json(named_struct("),
        ("EXPLAIN PLAN FOR SELECT 1", "EXPLAIN SELECT"),
        ("SELECT * FROM INFORMATION_SCHEMA.COLUMNS", "SHOW TABLES"),
        ("SELECT * FROM sys.segments", "penstock segment list"),
        ('SELECT * FROM "druid"."web"', "without a schema"),
    ],
)
def test_forms_and_tables_of_druid(sql: SqlService, statement: str, says: str) -> None:
    assert says in refusal(sql, statement).split("\n")[-1]


@pytest.mark.parametrize("statement", ["SELECT nosuch(1)", "SELECT FROM", "SELECT * FROM a.b"])
def test_what_is_not_druids_gets_no_advice(sql: SqlService, statement: str) -> None:
    assert "Druid" not in refusal(sql, statement)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1/0",
        "SELECT sum(1/(id - 1)) FROM range(3)",
        "SELECT java_method('java.lang.System', 'exit')",
        "SELECT regexp_extract('a', '(((', 1)",
        "SELECT date_format(now(), 'QQQQQQ')",
        "SELECT from_json('{', 'a INT', map('mode', 'FAILFAST'))",
        "SELECT assert_true(id < 0) FROM range(3)",
    ],
)
def test_names_of_the_jvms_classes_reach_nobody(sql: SqlService, statement: str) -> None:
    said = refusal(sql, statement)
    for package in ("org.apache", "java.lang.", "java.util", "scala."):
        assert package not in said.replace("java.lang.System", "")


@pytest.mark.parametrize(
    ("unit", "whole", "above"),
    [
        ("hour", "2024-01-01T05:00:00", "2024-01-01T05:00:00"),
        ("DAY", "2024-01-01T05:00:00", "2024-01-02T00:00:00"),
        ("QUARTER", "2024-01-01T00:00:00", "2024-01-01T00:00:00"),
        ("QUARTER", "2024-02-01T00:00:00", "2024-04-01T00:00:00"),
    ],
)
def test_what_is_told_instead_of_ceil_runs(
    sql: SqlService, unit: str, whole: str, above: str
) -> None:
    said = refusal(sql, f"SELECT CEIL(now() TO {unit})").split("\n")[-1]
    advice = said.removeprefix("In Spark SQL: ")
    time = f"TIMESTAMP '{whole}'"
    asked = f"SELECT {advice.replace('now()', time)} AS up"
    (row,) = sql.query(SqlQuery(asked)).table.to_pylist()
    assert row["up"].replace(tzinfo=None) == dt.datetime.fromisoformat(above)


PERIODS = ["PT1S", "PT5M", "PT15M", "PT1H", "PT6H", "P1D", "P2D", "P1W", "P1M", "P3M", "P5M", "P1Y"]
TIMES = [
    "2024-02-29T23:59:59.999",
    "2024-01-01T00:00:00",
    "1969-12-31T23:52:30",
    "2023-10-29T01:30",
]


def told(function: str, arguments: str) -> str:
    """The hint that is reported instead of a call whose routine Spark does not know."""
    refusal = f"[UNRESOLVED_ROUTINE] Cannot resolve routine `{function}` on search path"
    return in_spark(f"SELECT {function}({arguments}) FROM web", refusal).partition(": ")[2]


def test_a_period_in_a_call_is_that_of_its_hint(sql: SqlService) -> None:
    assert told("TIME_FLOOR", "__time, 'P1D'") == "date_trunc('DAY', __time)"
    assert "pmod(unix_millis(a.b), 300000)" in told("time_floor", "a.b , 'PT5M'")
    asked, wanted = [], []
    for period in PERIODS:
        granularity = Granularity.parse(period)
        for text in TIMES:
            ms = parse_time(text)
            time = f"TIMESTAMP '{text}'"
            floor, ceiling = granularity.truncate(ms), granularity.bucket(ms - 1).end_ms
            asked += [told(name, f"{time}, '{period}'") for name in ("TIME_FLOOR", "TIME_CEIL")]
            wanted += [floor, ceiling]
    listed = ", ".join(f"unix_millis({one}) AS c{n}" for n, one in enumerate(asked))
    (row,) = sql.query(SqlQuery(f"SELECT {listed}")).table.to_pylist()
    assert list(row.values()) == wanted


@pytest.mark.parametrize(
    ("function", "arguments", "value"),
    [
        ("TIME_FLOOR", "{}, 'P1D', NULL, 'Europe/Berlin'", "2024-02-01T23:00:00"),
        ("TIME_SHIFT", "{}, 'P1D', -2", "2024-01-30T23:59:30"),
        ("TIME_SHIFT", "{}, 'PT5M', 3", "2024-02-02T00:14:30"),
        ("TIME_SHIFT", "{}, 'P1M', 2", "2024-04-01T23:59:30"),
        ("TIME_EXTRACT", "{}, 'MINUTE'", 59),
        ("TIME_EXTRACT", "{}, 'dow'", 4),
    ],
)
def test_other_arguments_of_a_call_are_those_of_its_hint(
    sql: SqlService, function: str, arguments: str, value: object
) -> None:
    advice = told(function, arguments.format("TIMESTAMP '2024-02-01T23:59:30'"))
    (row,) = sql.query(SqlQuery(f"SELECT {advice} AS one")).table.to_pylist()
    is_time = isinstance(row["one"], dt.datetime)
    assert (row["one"].isoformat()[:19] if is_time else row["one"]) == value


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("TIME_FLOOR", "__time"),
        ("TIME_FLOOR", "__time, period"),
        ("TIME_FLOOR", "__time, 'fortnight'"),
        ("TIME_FLOOR", "__time, 'PT5M', TIMESTAMP '2024-01-01 00:01:00'"),
        ("TIME_SHIFT", "__time, 'P1D', n"),
        ("TIME_EXTRACT", "__time, 'MILLENNIUM'"),
    ],
)
def test_a_call_that_is_not_understood_gets_the_usual_hint(function: str, arguments: str) -> None:
    assert told(function, arguments) == FUNCTIONS[function]


def test_a_name_without_quotes_is_told_of_double_quotes(sql: SqlService) -> None:
    for statement in ("SELECT größe FROM range(3)", "EXPLAIN SELECT id AS größe FROM range(3)"):
        said = refusal(sql, statement)
        assert 'write it in double quotes, "größe"' in said
        assert "`" not in said
    assert sql.query(SqlQuery('SELECT id AS "größe" FROM range(1)')).table.num_rows == 1


def test_a_text_in_double_quotes_is_told_of_single_ones(sql: SqlService) -> None:
    said = refusal(sql, """SELECT * FROM range(3) WHERE CAST(id AS STRING) = "/a b\"""")
    assert """Double quotes enclose a name. If "/a b" is a text, write '/a b'""" in said
    assert "Double quotes" not in refusal(sql, "SELECT nid FROM range(3)")


def test_a_function_that_is_unknown_is_told_where_the_known_ones_are(sql: SqlService) -> None:
    assert "Spark SQL has no function STRPTIME: see http" in refusal(sql, "SELECT strptime('a')")


def test_a_long_mistake_is_looked_at_once() -> None:
    # A pattern that begins anew at each FLOOR would take hours; the other threads wait for it.
    assert in_spark("SELECT " + "FLOOR(" * 500_000, "[PARSE_SYNTAX_ERROR]") == ""


@pytest.mark.parametrize(
    ("sql", "name", "refusal"),
    [
        (
            'SELECT "a`.b"',
            ["a`.b"],
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `a``.b` cannot be resolved: `t`.`a`?",
        ),
        (
            'SELECT t."a.b" FROM t',
            ["t", "a.b"],
            "[UNRESOLVED_COLUMN.WITHOUT_SUGGESTION] A column `t`.`a.b` cannot be resolved.",
        ),
        (
            'SELECT 1 FROM t JOIN u USING ("n")',
            ["n"],
            "[UNRESOLVED_USING_COLUMN_FOR_JOIN] USING column `n` cannot be resolved on the left.",
        ),
    ],
)
def test_only_a_name_of_one_part_may_be_meant_as_a_text(
    sql: str, name: list[str], refusal: str
) -> None:
    assert unresolved_column(refusal) == name
    assert ("Double quotes" in in_spark(sql, refusal)) is (name == ["a`.b"])


def test_a_plain_mistake_has_no_hint() -> None:
    assert in_spark("SELECT 1", "[UNRESOLVED_COLUMN] no such column") == ""
