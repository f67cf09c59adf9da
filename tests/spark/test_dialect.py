"""What Druid's SQL has and Spark's does not: errors say what to write, and that runs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest
from penstock.core.sql.druid_function_table import EVENTS
from penstock.core.sql.druid_hints import in_spark, unresolved_column
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.sql.service import SqlQuery, SqlService
from tests.spark.table_kit import GivenTables

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def sql(sessions: SparkSessions) -> Iterator[SqlService]:
    service = SqlService(sessions, GivenTables(), SystemClock())
    yield service
    service.close()


def refusal(sql: SqlService, statement: str) -> str:
    with pytest.raises(InvalidRequest) as refused:
        sql.query(SqlQuery(statement))
    return str(refused.value)


def test_errors_behind_a_translated_call_have_their_line(sql: SqlService) -> None:
    said = refusal(sql, f"{EVENTS} SELECT TIME_FLOOR(__time,\n 'P1D'),\n nosuch FROM events")
    line = f"{EVENTS} SELECT TIME_FLOOR(__time,\n 'P1D'),\n".count("\n") + 1
    assert f"line {line}, column 2" in said


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("SELECT JSON_OBJECT(KEY id VALUE 1) FROM range(1)", "to_json(named_struct("),
        ("SELECT * FROM sys.nosuch", "The tables of sys are segments, servers"),
        ("DESCRIBE sys.segments", "select its columns from INFORMATION_SCHEMA.COLUMNS"),
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
def test_a_time_at_the_start_of_a_unit_is_its_own_ceiling(
    sql: SqlService, unit: str, whole: str, above: str
) -> None:
    asked = f"SELECT CEIL(TIMESTAMP '{whole}' TO {unit}) AS up"
    (row,) = sql.query(SqlQuery(asked)).table.to_pylist()
    assert row["up"].replace(tzinfo=None) == dt.datetime.fromisoformat(above)


def test_plans_are_asked_for_as_in_druid(sql: SqlService) -> None:
    (row,) = sql.query(SqlQuery("EXPLAIN PLAN FOR SELECT id FROM range(3)")).table.to_pylist()
    assert "Range (0, 3" in row["plan"]


def test_a_function_of_druid_that_is_described_is_told_of_its_calls(sql: SqlService) -> None:
    said = refusal(sql, "DESCRIBE FUNCTION time_shift")
    assert "TIME_SHIFT is a function of Druid's SQL. It is translated in calls such as" in said


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
    assert "Spark SQL has no function strptime, line 1, column 8: " in refusal(
        sql, "SELECT strptime('a')"
    )


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
