"""Constants of which a query makes more while Spark plans it are refused. No JVM."""

from __future__ import annotations

from functools import partial

import pytest

from penstock.core.errors import InvalidRequest
from penstock.spark.sql import constant_work
from penstock.spark.sql.query_statement import read_statement
from tests.kits.calls_kit import count_calls

DIGITS = "1000000"


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT str_to_map(repeat('a:1,', 8000000))", "repeat() makes about 32,000,000"),
        ("SELECT regexp_replace(repeat('a', 30000000), 'a', 'bb')", "calls regexp_replace()"),
        ("SELECT size(split(rpad('a', 9000000, ','), ','))", "rpad() makes about 9,000,000"),
        ("SELECT levenshtein(repeat('ab', 20000), repeat('ba', 20000))", "there may be 10,000"),
        ("SELECT space(2 * 100000) RLIKE '(a+)+b'", "line 1, column 8, and the query calls rlike"),
        ("SELECT x LIKE '%a%a' FROM (SELECT repeat('a', 200000) AS x)", "calls like()"),
        ("SELECT from_json(array_join(array_repeat('[', 200000), ''), 'a INT')", "from_json()"),
        # Numbers that the query itself gives a name
        ("SELECT repeat('x', n) FROM (SELECT 2000000000 AS n)", "have about 2,000,000,000"),
        ("SELECT repeat('x', n) FROM (SELECT int('90000000')) AS t(n)", "90,000,000"),
        ("SELECT repeat('x', n) FROM VALUES (1), (90000000) AS t(n)", "90,000,000"),
        ("SELECT repeat('x', col1) FROM VALUES (90000000)", "90,000,000"),
        ("WITH t(n) AS (VALUES (90000000)) SELECT space(n) FROM t", "90,000,000"),
        ("WITH t AS (SELECT 30000 * 3000 AS n) SELECT lpad('', t.n) FROM t", "90,000,000"),
        ("SELECT 90000000 AS a, a AS b, explode(sequence(0, b)) AS c", "90,000,000"),
        # Many that are not too large by themselves
        ("SELECT " + ", ".join(["length(space(30000000))"] * 3), "about 90,000,000 characters"),
    ],
)
def test_more_work_with_constants_than_spark_does_in_seconds_is_refused(
    sql: str, told: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_statement(sql)
    assert told in str(refused.value)


def test_names_that_stand_for_each_other_end() -> None:
    chain = ", ".join(f"a{n} AS a{n + 1}" for n in range(300))
    with pytest.raises(InvalidRequest, match="while it plans"):
        read_statement(f"SELECT 1 AS a0, {chain}, space(a300) AS s")
    read_statement("SELECT a AS b, b AS a, space(a) AS s FROM t")


@pytest.mark.parametrize("value", ["concat(a{}, 'b')", "a{} + 1"])
def test_names_of_deep_values_are_refused_without_a_trace(value: str) -> None:
    deep = f"{'(' * 30}{value}{')' * 30}"
    chain = ", ".join(f"{deep.format(n)} AS a{n + 1}" for n in range(55))
    with pytest.raises(InvalidRequest, match="within each other too deeply"):
        read_statement(f"SELECT 1 AS a0, {chain}, repeat(a55, a55) AS s")


def test_values_within_each_other_are_estimated_once() -> None:
    def added(names: int) -> int:
        """Return the calls for further values around one of these names."""
        inner = f"concat({', '.join(['a'] * names)})"
        nested = ("repeat(" * depth + inner + ", 1)" * depth for depth in (1, 101))
        statements = [f"SELECT {value} FROM t" for value in nested]
        few, many = (count_calls(partial(read_statement, sql)) for sql in statements)
        return many - few

    assert added(500) < 2 * added(5)


def test_names_of_values_within_each_other_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    value = f"concat({', '.join(['a'] * 50)})"
    for number in range(40):
        value = f"({value} AS a{number})"
    sql = f"SELECT {value}, {', '.join(f'repeat(a{n}, 1)' for n in range(40))} FROM t"
    read_statement(sql)
    monkeypatch.setattr(constant_work, "VISITED_MAX", 1_000)
    with pytest.raises(InvalidRequest, match="within each other too deeply"):
        read_statement(sql)


def test_parameters_count() -> None:
    read_statement("SELECT repeat(?, ?)", ["ab", 100])
    with pytest.raises(InvalidRequest, match="levenshtein"):
        read_statement("SELECT levenshtein(repeat('a', ?), '')", [20_000])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT length(repeat('x', 30000000))",
        "SELECT explode(sequence(1, 1000000)) AS n",
        "SELECT explode(sequence(1700000000, 1700100000, 10)) AS n",
        (
            "SELECT h, regexp_replace(page, 'a', 'b') FROM t JOIN (SELECT explode(sequence("
            "TIMESTAMP'2026-01-01', TIMESTAMP'2026-12-31', INTERVAL 1 HOUR)) AS h) ON h = __time"
        ),
        "SELECT sequence(to_date('2018-01-01'), to_date('2018-03-01'), INTERVAL 1 MONTH)",
        f"SELECT regexp_extract(lpad(page, 20, '0'), '[0-9]+'), repeat('{DIGITS}', 3) FROM t",
        "SELECT repeat('=', length('title')), rpad(page, n, ' '), page LIKE 'a%' FROM t",
        "SELECT str_to_map(page), repeat('x', n) FROM t WHERE __time > 1700000000000",
        "SELECT levenshtein(page, repeat('a', 1000)) FROM t",
        "SELECT max(n) FROM (SELECT explode(sequence(1L, id + 2000000000)) AS n FROM range(1))",
        "SELECT repeat('x', n * 1000000000) FROM t",
        "SELECT split(page, '/'), array_repeat(0, 100000 / 2) FROM t",
    ],
)
def test_other_queries_pass(sql: str) -> None:
    read_statement(sql)
