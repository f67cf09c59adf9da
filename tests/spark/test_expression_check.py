"""Expressions of a spec are judged by a real Spark before a task meets them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import functions as sf

from penstock.spark.connect.spark_sessions import SparkRefusal, SparkSessions
from penstock.spark.pipeline import ENGINE_CONF
from penstock.spark.sql_guard import check_expressions
from penstock.spark.transforms.transform_errors import EXPRESSION_CONF, ExpressionCheck

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def check(sessions: SparkSessions) -> Iterator[ExpressionCheck]:
    made = ExpressionCheck(sessions)
    yield made
    made.close()


@pytest.mark.parametrize(
    "expression",
    [
        '"qty" * "price"',
        "upper(Page) || page",
        "get_json_object(customer, '$.id')",
        "CASE WHEN ms > 1000 THEN 'slow' ELSE 'fast' END",
        "date_trunc('hour', __time)",
        "timestamp_millis(sent)",
        "CAST(ms AS BIGINT) / 0",
        '`odd.name` + "a `b`"',
    ],
)
def test_what_a_task_can_compute_is_taken(check: ExpressionCheck, expression: str) -> None:
    assert check.mistakes([expression]) == [""]


def test_each_mistake_is_told_in_one_line(check: ExpressionCheck) -> None:
    found = check.mistakes(["qty * * 2", "upper(page)", "uper(page)", "upper(page, 1)", "max(qty)"])
    assert "2 is not expected, line 1, column 9" in found[0]
    assert found[1] == ""
    assert "no function uper, line 1, column 1: did you mean upper?" in found[2]
    assert "WRONG_NUM_ARGS" in found[3]
    assert "use metricsSpec" in found[4]
    assert not any("\n" in one for one in found)


@pytest.mark.parametrize(
    "expression",
    [
        "reflect('java.lang.System', 'exit', '1')",
        "`java_method` ('java.lang.System', 'exit', '1')",
        "(SELECT max(value) FROM text.`/etc/hostname`)",
        "(TABLE text.`/etc/hostname`)",
        "(FROM text.`/etc/hostname` |> AGGREGATE max(value))",
    ],
)
def test_what_leaves_its_row_is_refused_before_spark_sees_it(
    check: ExpressionCheck, expression: str
) -> None:
    found = check.mistakes([expression])[0]
    assert "not allowed, line 1, column" in found or "not expected, line 1, column" in found


def test_no_expression_opens_a_file_where_the_text_is_not_checked(sessions: SparkSessions) -> None:
    expression = "(FROM text.`/etc/hostname` |> AGGREGATE max(value))"
    with (
        pytest.raises(SparkRefusal, match="TABLE_OR_VIEW_NOT_FOUND"),
        sessions.with_conf(EXPRESSION_CONF).use() as spark,
    ):
        check_expressions(spark.range(1).select(sf.expr(expression)))


def test_the_dialect_is_the_engines() -> None:
    assert EXPRESSION_CONF.items() <= ENGINE_CONF.items()


def test_a_name_that_looks_like_a_place_is_told_unchanged(check: ExpressionCheck) -> None:
    (mistake,) = check.mistakes(["1 + `line 3, pos 4`(1)"])
    assert "no function line 3, pos 4, line 1, column 5" in mistake
