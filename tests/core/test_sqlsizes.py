"""Statements that would blow up in Spark are refused at once; those that people write are not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.core import sql_sizes
from penstock.core.errors import InvalidRequest
from penstock.core.sql.sizes import (
    DEPTH_MAX,
    EXPANDED_MAX,
    GROUPING_SETS_MAX,
    IN_COMPUTED_MAX,
    IN_MAX,
    PIPES_MAX,
    REPLACED_MAX,
    TABLES_MAX,
    UNIONS_MAX,
)
from penstock.core.sql_sizes import NESTING_MAX, TEXT_MAX, TOKENS_MAX, statement_tokens
from penstock.core.sql_text import Token, each_token
from penstock.indexing.batch.sql.ingest_statement import parse_ingest
from penstock.spark.sql.query_statement import read_statement

# Each counts as a parenthesis and a query.
QUERIES_MAX = NESTING_MAX // 2
DAY = "DATE '2020-01-01'"


def nest(levels: int, join: str = "FROM c{n} a JOIN c{n} b ON a.x = b.x") -> str:
    """Return WITH names of which each refers to the one before twice."""
    parts = ["c0 AS (SELECT x FROM t)"]
    parts += [f"c{n + 1} AS (SELECT a.x {join.format(n=n)})" for n in range(levels)]
    return f"WITH {', '.join(parts)} SELECT x FROM c{levels}"


def nest_expression(levels: int, select: str, start: str = "SELECT id AS a FROM t") -> str:
    """Return subqueries of which each refers to the columns of the one within it."""
    query = start
    for _ in range(levels):
        query = select.format(q=query)
    return query


def double(levels: int, expression: str = "a{n}+a{n}") -> str:
    """Return columns of which each refers to the one before twice."""
    return ", ".join(f"{expression.format(n=n)} AS a{n + 1}" for n in range(levels))


def cube(count: int, word: str = "CUBE") -> str:
    return f"{word}({', '.join(f'id + {n}' for n in range(count))})"


def with_twice(levels: int, query: str, columns: str = "") -> str:
    """Return WITH names, each with the query {q} over the one before."""
    parts = ["c0(a) AS (SELECT id FROM t)"]
    parts += [f"c{n + 1}{columns} AS ({query.format(q=f'c{n}')})" for n in range(levels)]
    return f"WITH {', '.join(parts)} SELECT a FROM c{levels}"


WORDS = f"more than ({EXPANDED_MAX}|{REPLACED_MAX}) words .*line 1, column"
SETS = f"more than {GROUPING_SETS_MAX} grouping sets, line 1, column"
DEPTH = f"more than {DEPTH_MAX} nested operators, line 1, column"
BLOWS_UP = {
    "aliases": ("SELECT 1 AS a0, " + double(40), WORDS),
    "aliases of a table": ("SELECT id a0, " + double(40) + " FROM t WHERE id > 0", WORDS),
    "aliases without AS": ("SELECT 1 a0, " + double(40).replace(" AS", ""), WORDS),
    "aliases in functions": ("SELECT 1 AS a0, " + double(40, "abs(a{n}) * (a{n} + 1)"), WORDS),
    "aliases in CASE": ("SELECT 1 AS a0, " + double(40, "CASE WHEN a{n} THEN `A{n}` END"), WORDS),
    "aliases compared": ("SELECT 1 AS a0, " + double(40, "a{n} IS DISTINCT FROM a{n}"), WORDS),
    "aliases beside a column that is a keyword": (
        "SELECT 1 AS a0, " + double(40, "a{n} + offset + a{n}"),
        WORDS,
    ),
    "columns of subqueries": (nest_expression(40, "SELECT a+a AS a FROM ({q})"), WORDS),
    "fields": (nest_expression(40, "SELECT struct(a.x, t.a) AS a FROM ({q}) AS t"), WORDS),
    "renamed columns": (nest_expression(40, "SELECT a+a FROM ({q}) AS t(a)"), WORDS),
    "columns in parentheses": (nest_expression(25, "SELECT a+a FROM (({q})) t(a)"), WORDS),
    "columns that are passed on": (
        nest_expression(30, "SELECT * FROM (SELECT a+a AS a, 1 AS b FROM ({q}) JOIN u AS a)"),
        WORDS,
    ),
    "columns of a union": (
        nest_expression(40, "SELECT 1 AS a UNION ALL SELECT a+a FROM ({q})"),
        WORDS,
    ),
    "columns of WITH": (with_twice(40, "SELECT a+a AS a FROM {q}"), WORDS),
    "columns named by WITH": (with_twice(40, "SELECT a+a FROM {q}", "(a)"), WORDS),
    "columns of a table of WITH": (with_twice(40, "SELECT b+b AS a FROM {q} AS x(b)"), WORDS),
    "columns of WITH after another": (with_twice(40, "SELECT a+a AS a FROM offset, {q}"), WORDS),
    "subqueries beside each other": (
        "SELECT * FROM (SELECT 1 AS a0)"
        + "".join(f" JOIN LATERAL (SELECT a{n}+a{n} AS a{n + 1})" for n in range(40)),
        WORDS,
    ),
    "columns of a long list": (
        "SELECT 1 AS a0, " + double(12) + ", " + ", ".join(f"a12 AS b{n}" for n in range(50)),
        f"a query has more than {EXPANDED_MAX} words",
    ),
    "conditions": (
        nest_expression(40, "SELECT a+a AS a FROM ({q}) WHERE a > 1"),
        f"an expression has more than {REPLACED_MAX} words",
    ),
    "EXTEND": (
        "TABLE t |> EXTEND 1 AS a0"
        + "".join(f" |> EXTEND a{n}+a{n} AS a{n + 1}" for n in range(40)),
        WORDS,
    ),
    "SET": ("TABLE t" + " |> SET a = a+a" * 40, WORDS),
    "EXTEND after a union": (
        "TABLE t" + " |> EXTEND a+a AS a |> UNION ALL (TABLE u)" * 30,
        WORDS,
    ),
    "cube": (f"SELECT 1 FROM t GROUP BY {cube(18)}", SETS),
    "cubes": (f"SELECT 1 FROM t GROUP BY {cube(7)}, {cube(7)}", SETS),
    "cube after a column that is a keyword": (
        f"SELECT 1 FROM t GROUP BY offset, a | b, {cube(18)}",
        SETS,
    ),
    "rollups": (f"SELECT 1 FROM t GROUP BY {', '.join([cube(20, 'ROLLUP')] * 3)}", SETS),
    "sets": (
        f"SELECT 1 FROM t GROUP BY GROUPING SETS ({', '.join(['(a, b)'] * 4_097)})",
        SETS,
    ),
    "cubes in sets": (f"SELECT 1 FROM t GROUP BY GROUPING SETS ({cube(11)}, {cube(12)})", SETS),
    "WITH CUBE": ("SELECT 1 FROM t GROUP BY a, b, c, d, e, f, g, h, i, j, k, l, m WITH CUBE", SETS),
    "NOT": ("SELECT " + "NOT " * 400 + "true", DEPTH),
    "minus": ("SELECT " + "- " * 400 + "1", DEPTH),
    "exclamation marks": ("SELECT " + "!" * 400 + "true", DEPTH),
    "very many signs": ("SELECT " + "- " * 30_000 + "1", f"deeper than {NESTING_MAX} levels"),
    "zones": ("SELECT a" + " AT TIME ZONE 'UTC'" * 700, DEPTH),
    "lateral views": ("SELECT 1 FROM t" + " LATERAL VIEW explode(a) b AS a" * 700, DEPTH),
    "columns of lateral views": (
        "SELECT 1 FROM t" + " LATERAL VIEW explode(array(a, a)) b AS a" * 40,
        WORDS,
    ),
    "rows written in the query": (
        "SELECT 1 FROM " + ", ".join(["(VALUES (1)), range(2)"] * 300),
        f"more than {TABLES_MAX} tables",
    ),
    "plus": ("SELECT 1" + "+1" * 400, DEPTH),
    "concatenation": ("SELECT a" + "||b" * 400, DEPTH),
    "casts": ("SELECT a" + "::int" * 700, DEPTH),
    "brackets": ("SELECT a" + "[0]" * 700, DEPTH),
    "dots": ("SELECT a" + ".a" * 700, DEPTH),
    "plus in parentheses": ("SELECT " + "(" * 90 + "1" + "+1+1+1+1)" * 90, DEPTH),
    "unions": (
        " UNION ALL ".join(["SELECT 1"] * 402),
        f"more than {UNIONS_MAX} consecutive set operators .*line 1, column",
    ),
    "many pipes": (
        "TABLE t" + " |> EXTEND 1 AS a" * 2_000,
        f"more than {PIPES_MAX} pipes .*line 1, column",
    ),
    "text": ("SELECT '" + "x" * TEXT_MAX + "'", f"over the limit of {TEXT_MAX}"),
    "tokens": ("SELECT " + "1+" * 60_000 + "1", "more than 100000 words and signs"),
    "parentheses": ("SELECT " + "(" * 300 + "1" + ")" * 300, f"deeper than {NESTING_MAX} levels"),
    "cases": (
        "SELECT " + "CASE WHEN a THEN " * 300 + "1" + " END" * 300,
        f"deeper than {NESTING_MAX} levels",
    ),
    "parentheses with a column that is called end": (
        "SELECT " + "(end + " * 300 + "1" + ")" * 300,
        f"deeper than {NESTING_MAX} levels",
    ),
    "queries": (
        "SELECT a FROM (" * (QUERIES_MAX + 1) + "TABLE t" + ")" * (QUERIES_MAX + 1),
        f"nested deeper than {NESTING_MAX} levels, line 1, column",
    ),
    "queries with a column that is called end": (
        "SELECT end FROM (" * 300 + "TABLE t" + ")" * 300,
        f"nested deeper than {NESTING_MAX} levels",
    ),
    "operators between arguments that are called end": (
        "SELECT " + " + ".join(["abs(end, 1)"] * 1_000) + " FROM t",
        DEPTH,
    ),
    "in": (
        f"SELECT 1 WHERE 1 IN ({','.join('1' for _ in range(IN_MAX + 1))})",
        f"IN has more than {IN_MAX} elements, line 1",
    ),
    "in of expressions": (
        f"SELECT 1 WHERE 1 IN ({','.join('a + 1' for _ in range(IN_COMPUTED_MAX + 1))})",
        f"IN has more than {IN_COMPUTED_MAX} elements that are not constants, line 1",
    ),
    "in of columns": (
        f"SELECT 1 WHERE 1 IN ({','.join('abs(a)' for _ in range(IN_COMPUTED_MAX + 1))})",
        f"IN has more than {IN_COMPUTED_MAX} elements that are not constants, line 1",
    ),
    "names twice": (nest(12), f"more than {TABLES_MAX} tables .*line 1, column"),
    "names with commas": (nest(12, "FROM c{n} a, c{n} b"), f"more than {TABLES_MAX} tables"),
    "names in subqueries": (
        nest(12, "FROM (SELECT x FROM c{n}) a WHERE x IN (SELECT x FROM c{n})"),
        f"more than {TABLES_MAX} tables",
    ),
    "names in a union": (
        nest(12, "FROM c{n} a UNION ALL (SELECT x FROM (c{n} CROSS JOIN `C{n}`))"),
        f"more than {TABLES_MAX} tables",
    ),
    "names without AS": (nest(12).replace(" AS (", " ("), f"more than {TABLES_MAX} tables"),
    "names with columns": (nest(12).replace(" AS (", " (x) ("), f"more than {TABLES_MAX} tables"),
    "names of recursion": (
        nest(12).replace(" AS (", " MAX RECURSION LEVEL 2 AS ("),
        f"more than {TABLES_MAX} tables",
    ),
    "a name that is defined again inside": (
        nest(7).replace("c6 AS (", "z AS (WITH c5 AS (SELECT 1) TABLE c5), c6 AS (")
        + " a, c7, c7, c7, c7",
        f"more than {TABLES_MAX} tables",
    ),
    "pipes": (
        nest(12)
        .replace("SELECT a.x FROM", "TABLE")
        .replace(" a JOIN", " |> AS a |> WHERE true |> JOIN"),
        f"more than {TABLES_MAX} tables",
    ),
    "TABLE in a union": (
        "WITH c0 AS (TABLE t), "
        + ", ".join(f"c{n + 1} AS (TABLE c{n} UNION ALL TABLE c{n})" for n in range(12))
        + " TABLE c12",
        f"more than {TABLES_MAX} tables",
    ),
    "tables": ("SELECT 1 FROM t" + " JOIN t" * TABLES_MAX, f"more than {TABLES_MAX} tables"),
}


@pytest.mark.parametrize("name", BLOWS_UP)
def test_it_is_refused_with_the_limit_and_the_place(name: str) -> None:
    sql, message = BLOWS_UP[name]
    with pytest.raises(InvalidRequest, match=message):
        read_statement(sql)


@pytest.mark.parametrize("name", sorted(set(BLOWS_UP) - {"text"}))
def test_a_task_is_refused_when_it_is_posted(name: str) -> None:
    sql, message = BLOWS_UP[name]
    with pytest.raises(InvalidRequest, match=message):
        parse_ingest(f"INSERT INTO d {sql} PARTITIONED BY ALL")


@pytest.mark.parametrize(
    "sql",
    [
        nest(7),
        "SELECT " + ", ".join(f"c{n}" for n in range(2_000)) + " FROM t",
        f"SELECT 1 WHERE 1 IN ({','.join('1' for _ in range(IN_MAX))})",
        f"SELECT 1 WHERE 1.5 IN ({','.join('-1.5' for _ in range(IN_MAX))})",
        f"SELECT 1 WHERE (a, b) IN ({','.join('(1, 2)' for _ in range(IN_MAX))}) AND c IN (a, b)",
        f"SELECT 1 WHERE t IN ({', '.join([DAY] * IN_MAX)})",
        f"SELECT 1 WHERE t IN (SELECT {','.join('a' for _ in range(900))} FROM t)",
        "SELECT * FROM (VALUES " + ", ".join(f"({n}, 'x')" for n in range(3_000)) + ") AS v(a, b)",
        "SELECT " + ", ".join(["EXTRACT(day FROM t)"] * 1_000) + " FROM t",
        "SELECT " + "(" * 150 + "1" + ")" * 150,
        # The deepest that may be: Python counts each level with several calls.
        "SELECT a FROM (" * (QUERIES_MAX - 1) + "TABLE t" + ")" * (QUERIES_MAX - 1),
        "SELECT " + ", ".join(f"t.end + {n}" for n in range(1_000)) + " FROM t",
        # A column that has the name of a WITH query does not count as a table.
        "WITH "
        + ", ".join(f"day{n} AS (SELECT day, day, day, day FROM t)" for n in range(100))
        + " SELECT day, day1, day2 FROM day1",
        # Names that are used once or twice, in long lists and some levels, as BI tools write.
        "SELECT "
        + ", ".join(f"c{n} AS a{n}, a{n} + a{n} AS b{n}" for n in range(2_000))
        + " FROM t",
        nest_expression(60, "SELECT round(a, 2) AS a, b, c AS d FROM ({q}) AS t"),
        nest_expression(
            10,
            "SELECT CASE WHEN a IS NULL THEN 0 ELSE a END AS a, * FROM ({q}) t JOIN u ON t.a = u.a",
        ),
        nest_expression(
            6,
            "SELECT a, sum(b) AS b, avg(b) / max(b) AS c FROM ({q}) t GROUP BY a HAVING sum(b) > 1",
        ),
        "SELECT 1 AS a0, " + ", ".join(f"a{n} + 1 AS a{n + 1}" for n in range(250)),
        "SELECT 1 AS a0, " + double(12),
        with_twice(50, "SELECT a + 1 AS a FROM {q}"),
        "TABLE t |> WHERE a > 1 |> EXTEND a + a AS b |> AGGREGATE sum(b) AS c GROUP BY a",
        f"SELECT 1 FROM t GROUP BY {cube(12)}",
        f"SELECT 1 FROM t GROUP BY a, {cube(4)}, {cube(63, 'ROLLUP')} HAVING count(*) > 1",
        f"SELECT 1 FROM (SELECT 1 FROM t GROUP BY {cube(10)}) GROUP BY {cube(10)}",
        f"SELECT 1 FROM t GROUP BY {cube(10)} UNION SELECT 1 FROM t GROUP BY {cube(10)}",
        "SELECT 1 FROM t GROUP BY a, b, c WITH ROLLUP",
        "SELECT 1 WHERE " + " AND ".join(f"a <> {n}" for n in range(5_000)),
        "SELECT 1 WHERE " + " OR ".join(f"(a = {n} AND NOT b >= -{n})" for n in range(5_000)),
        "SELECT CASE " + " ".join(f"WHEN a = {n} THEN {n}" for n in range(5_000)) + " END",
        "SELECT " + " + ".join(f"t.c{n}" for n in range(300)) + " FROM t",
        "SELECT " + " || ', ' || ".join(f"c{n}" for n in range(150)) + " FROM t",
        "SELECT " + ", ".join(f"a + b * -c / {n}.5 AS d{n}" for n in range(1_000)) + " FROM t",
        " UNION ALL ".join(f"SELECT {n} AS a" for n in range(366)),
        "TABLE t" + " |> WHERE a <> 1" * 80,
        "SELECT sum(x) OVER w FROM t WINDOW w AS (PARTITION BY a, b ORDER BY c)",
    ],
)
def test_what_people_write_is_not_refused_for_its_size(sql: str) -> None:
    assert read_statement(sql).is_query


@pytest.mark.parametrize(
    ("sql", "message", "most"),
    [
        ("SELECT " + "(" * 200_000 + ")" * 200_000, "nested deeper", NESTING_MAX + 2),
        ("SELECT " + "[(" * 200_000, "nested deeper", NESTING_MAX + 2),
        ("SELECT " + "1+" * 400_000, "words and signs", TOKENS_MAX + 1),
    ],
)
def test_a_statement_is_taken_apart_up_to_its_limit_alone(
    monkeypatch: pytest.MonkeyPatch, sql: str, message: str, most: int
) -> None:
    """Several such statements at once kept all threads of the router waiting for seconds."""
    made = 0

    def counted(text: str) -> Iterator[Token]:
        nonlocal made
        for token in each_token(text):
            made += 1
            yield token

    monkeypatch.setattr(sql_sizes, "each_token", counted)
    for read in (statement_tokens, read_statement, parse_ingest):
        made = 0
        with pytest.raises(InvalidRequest, match=message):
            read(sql)
        assert made == most
