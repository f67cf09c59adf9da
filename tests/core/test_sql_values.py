"""Values of a size that is written in a statement: too large ones are refused, others are not."""

from __future__ import annotations

import datetime as dt

import pytest

from penstock.core.errors import InvalidRequest
from penstock.core.sql.checked_query import checked_query
from penstock.core.sql.values import VALUE_BYTES_MAX
from penstock.indexing.batch.sql.ingest_statement import parse_ingest
from penstock.indexing.specs.druid_expressions.expression_dialect import as_spark_sql
from penstock.spark.sql.query_statement import read_statement

LARGE = {
    "repeat": "SELECT repeat('x', 2000000000)",
    "capitals": "SELECT REPEAT('x', 2000000000)",
    "quoted": "SELECT \"repeat\"('x', 2000000000)",
    "with its schema": "SELECT builtin.repeat('x', 2000000000)",
    "of a column": "SELECT repeat(name, 2000000000) FROM t",
    "space": "SELECT space(2000000000)",
    "raw text": "SELECT space(int(r'2000000000'))",
    "raw text in double quotes": 'SELECT space(int(R"2000000000"))',
    "translated": "SELECT repeat('x', BITWISE_SHIFT_LEFT(1, 33))",
    "lpad": "SELECT lpad('x', 2000000000)",
    "rpad": "SELECT rpad(name, 2000000000, 'ab') FROM t",
    "sequence": "SELECT sequence(1, 200000000)",
    "sequence downwards": "SELECT sequence(200000000, 1)",
    "negative": "SELECT sequence(-100000000, 100000000)",
    "step": "SELECT sequence(1, 2000000000, 100)",
    "small step": "SELECT sequence(0.0, 1.0, 0.00000001)",
    "days": "SELECT sequence(DATE '0001-01-01', DATE '9999-01-01', INTERVAL 1 SECOND)",
    "times": "SELECT sequence(TIMESTAMP '2000-01-01', TIMESTAMP '2030-01-01', INTERVAL '1' SECOND)",
    "one text": "SELECT sequence(DATE'2000-01-01', DATE'2030-01-01', INTERVAL '1 second')",
    "array_repeat": "SELECT array_repeat(1, 200000000)",
    "arithmetic": "SELECT repeat('x', 1000*1000*1000)",
    "parentheses": "SELECT repeat('x', ((1000) * (1000 * (1000))))",
    "plus": "SELECT space(1000000000 + 1000000000)",
    "division": "SELECT space(4000000000 / 2)",
    "signs": "SELECT space(- -2000000000)",
    "exponent": "SELECT space(CAST(2e9 AS INT))",
    "suffix": "SELECT space(int(2000000000L))",
    "power": "SELECT space(int(power(10, 9)))",
    "shift": "SELECT space(shiftleft(1, 30))",
    "nested": "SELECT repeat(repeat('x',10000),10000)",
    "nested in others": "SELECT repeat(upper(concat('a', repeat('x',10000), 'b')),10000)",
    "joined": "SELECT repeat('a' || repeat('x',10000),10000)",
    "nested lists": "SELECT array_repeat(array_repeat(1, 10000), 10000)",
    "list of texts": "SELECT array_repeat(space(10000), 10000)",
    "within": "SELECT length(repeat('x', 2000000000)) + 1 FROM t WHERE a > 1",
    "in a subquery": "SELECT 1 WHERE 'x' IN (SELECT repeat('x', 2000000000))",
    "in CASE": "SELECT CASE WHEN a THEN repeat('x', 2000000000) ELSE 'x' END FROM t",
    "in a lambda": "SELECT transform(array(1), e -> repeat('x', 2000000000))",
    "a number in a text": "SELECT lpad('x', '2000000000')",
    "random text": "SELECT randstr(2000000000)",
    "far insert": "SELECT array_insert(array(1), 1000000000, 2)",
    "insert from the end": "SELECT array_insert(array(1), -1000000000, 2)",
    "digits": "SELECT format_number(1.5, 1000000000)",
    "width": "SELECT format_string('%-2000000000s', name) FROM t",
    "width and precision": "SELECT printf('a %d %2$,5.1000000000f', 1, 2.5)",
    "several widths": "SELECT format_string('%20000000d%20000000d', 1, 2)",
    "width in adjacent texts": "SELECT STRING_FORMAT('%20000' '00000d', 1)",
    "windows": "SELECT window(__time, '1 day', '1 second') FROM t GROUP BY 1",
    "counters": "SELECT count_min_sketch(name, 0.000000001D, 0.95D, 1) FROM t",
    "stack": "SELECT stack(200000000, 1)",
    "partitions": "SELECT * FROM range(0, 1000000000, 1, 500000000)",
    "escapes": r"SELECT repeat('\n\n\n\n\n\n\n\n', 20000000)",
    "adjacent texts": "SELECT space('2000' '000000')",
    "cast to a date": "SELECT sequence(CAST('2000-01-01' AS DATE), '2030-01-01'::DATE, 1)",
    "with its name": "SELECT repeat(str => 'x', n => 2000000000)",
    "the second": "SELECT repeat('x', 2), repeat('x', 2000000000)",
}
SMALL = [
    "SELECT stack(2, 'a', 1, 'b', 2), format_number(1.5, '#.#'), randstr(10)",
    "SELECT format_string('%5.2f of %10$d %% 2000000000', a, b), printf(name, 1), printf() FROM t",
    "SELECT window(__time, '1 day', '5 minutes'), count_min_sketch(a, 0.001, 0.99, 1) FROM t",
    "SELECT array_insert(array(1), 3, 2), array_insert(array(1), -3, 2) FROM range(0, 1000, 1, 10)",
    "SELECT repeat('x', 1000000), space(1000), lpad(name, 10, '0'), array_repeat(0, 1000) FROM t",
    f"SELECT repeat('x', {VALUE_BYTES_MAX})",
    "SELECT explode(sequence(1, 4000000))",
    "SELECT sequence(DATE '1900-01-01', DATE '2100-01-01')",
    "SELECT sequence(DATE '1900-01-01', DATE '2100-01-01', INTERVAL 1 MONTH)",
    "SELECT sequence(TIMESTAMP '2020-01-01', TIMESTAMP '2021-01-01', INTERVAL 1 MINUTE)",
    "SELECT repeat('x', n), space(n * 1000000000), sequence(1, n) FROM t",
    "SELECT repeat('x', -2000000000), space(1000000000 - 999999999), space(1000000000 % 7)",
    "SELECT repeat('x', CASE WHEN n > 2000000000 THEN 1 ELSE 2 END) FROM t",
    "SELECT repeat('x', 2000000000 > 5), repeat('x', length('2000000000'))",
    "SELECT repeat, space FROM repeat WHERE sequence > 2000000000 AND lpad = 'repeat(2000000000)'",
    "SELECT length(repeat('x', 1000000)) * 1000000000, repeat(md5(repeat('x', 10000)), 10000)",
    "SELECT repeat(), space(), sequence(1), repeat('x', 1, 2), lpad('x'), array_repeat(2000000000)",
    "SELECT sequence(1, 2000000000, 0), sequence(0, 1e400 - 1e400)",
    "SELECT date_trunc('DAY', __time) FROM t WHERE __time >= TIMESTAMP '2013-01-01'",
]


@pytest.mark.parametrize("sql", LARGE.values(), ids=LARGE)
def test_a_value_that_is_too_large_is_refused(sql: str) -> None:
    message = (
        r"\(\) takes about \d+ bytes of memory, line 1, column \d+;"
        rf" the limit is {VALUE_BYTES_MAX}"
    )
    with pytest.raises(InvalidRequest, match=message):
        read_statement(sql)


@pytest.mark.parametrize("sql", SMALL)
def test_what_people_write_is_not_refused(sql: str) -> None:
    checked_query(sql)


def test_the_error_has_the_value_the_place_the_limit_and_the_remedy() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_statement("SELECT 1,\n  array_repeat('ab', 1000 * 1000 * 10)")
    assert str(caught.value) == (
        "array_repeat() takes about 80000000 bytes of memory, line 2, column 3; the limit is"
        " 33554432, because Spark holds a value in memory several times: request a smaller value,"
        " or rows: range(1, 1000000) returns a row for each number"
    )


def test_parameters_count_as_what_they_are() -> None:
    sql = "SELECT ?, repeat(?, ?), sequence(?, ?, INTERVAL 1 SECOND)"
    day = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    read_statement(sql)
    read_statement(sql, ("a", "x", 100, day, day + dt.timedelta(days=1)))
    for parameters in (
        ("a", "x", 2_000_000_000),
        ("a", "x" * 1_000_000, 100),
        ("a", "x", 1, day, day + dt.timedelta(days=1_000)),
    ):
        with pytest.raises(InvalidRequest, match="bytes of memory"):
            read_statement(sql, parameters)


@pytest.mark.parametrize(
    "inner", ["(" * 150 + "1" + ")" * 150, "- " * 290 + "1", "abs(" * 150 + "1" + ")" * 150]
)
def test_what_is_deep_costs_no_stack(inner: str) -> None:
    sql = f"SELECT space({inner})"
    checked_query(sql)


def test_statements_that_write_and_expressions_of_specs_are_checked_too() -> None:
    with pytest.raises(InvalidRequest, match="bytes of memory"):
        parse_ingest(f"INSERT INTO t {LARGE['nested']} PARTITIONED BY DAY")
    with pytest.raises(InvalidRequest, match="bytes of memory"):
        parse_ingest(f"INSERT INTO t {LARGE['translated']} PARTITIONED BY DAY")
    with pytest.raises(InvalidRequest, match="bytes of memory"):
        as_spark_sql("space(1000 * 1000 * 1000)")
