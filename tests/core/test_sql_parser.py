"""Text of Spark SQL becomes a tree, or is refused with its place."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.core.sql import tree
from penstock.core.sql.checked_query import checked_query, tables_of
from penstock.core.sql.parser import Parser
from penstock.core.sql.shapes import Shape, shape
from penstock.core.sql.token_reader import NESTING_MAX
from penstock.core.sql.writer import written
from tests.kits.sql_corpus_kit import clauses
from tests.kits.sql_generator_kit import Generator


def parse_query(sql: str) -> tree.Query:
    parser = Parser(sql)
    return parser.whole(parser.query)


def parse_expression(sql: str) -> tree.Expression:
    parser = Parser(sql)
    return parser.whole(parser.expression)


def generated(sql: str) -> str:
    parser = Parser(sql)
    return Generator(parser.tokens).text(parser.whole(parser.query))


def of_expression(sql: str) -> str:
    parser = Parser(sql)
    return Generator(parser.tokens).text(parser.whole(parser.expression))


@pytest.mark.parametrize("sql", clauses())
def test_what_a_tree_is_written_as_has_the_same_tree(sql: str) -> None:
    once = generated(sql)
    assert generated(once) == once


@pytest.mark.parametrize(
    ("sql", "meaning"),
    [
        ("a + b * c - d", "((a + (b * c)) - d)"),
        ("a OR b AND NOT c = d", "(a OR (b AND (NOT (c = d))))"),
        ("NOT a IS NULL", "(NOT (a IS NULL))"),
        ("a = b IS NULL", "((a = b) IS NULL)"),
        ("a BETWEEN b AND c AND d", "((a BETWEEN b AND c) AND d)"),
        ("a NOT IN (1, 2) OR b", "((a NOT IN (1, 2)) OR b)"),
        ("-a * b", "((- a) * b)"),
        ("a | b ^ c & d << e + f", "(a | (b ^ (c & (d << (e + f)))))"),
        ("a >> b >>> c", "((a >> b) >>> c)"),
        ("a < b = c", "((a < b) = c)"),
        ("a || b + c", "((a || b) + c)"),
        ("a::INT + 1", "(CAST(a AS INT) + 1)"),
        ("x -> x + 1 > 2", "`x` -> ((x + 1) > 2)"),
        ("a[0].b", "a[0].`b`"),
        ("! a", "(NOT a)"),
    ],
)
def test_operators_are_applied_in_their_order(sql: str, meaning: str) -> None:
    assert of_expression(sql) == meaning


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("", "ends too early, line 1, column 1: expected SELECT"),
        ("SELECT", "ends too early, line 1, column 7: expected an expression"),
        ("SELECT a FROM t WHERE", "ends too early, line 1, column 22: expected an expression"),
        ("SELECT a FROM t where group by a", "GROUP.* is not expected|group is not expected"),
        (
            "SELECT a,\n  FROM t",
            "FROM is not expected, line 2, column 3: expected a name; a name is",
        ),
        ("SELECT a FROM t t u", "u is not expected, line 1, column 19: expected the end"),
        ("SELECT 1 + ) FROM t", r"\) is not expected, line 1, column 12: expected an expression"),
        ("SELECT CAST(a AS 1)", "1 is not expected, line 1, column 18: expected a type"),
        ("SELECT 1a", "1a is not a number, line 1, column 8: a name that begins with a digit"),
        ("FROM t SELECT a", "FROM is not expected, line 1, column 1: expected SELECT"),
        ("SELECT * FROM a JOIN", "ends too early, line 1, column 21: expected a name"),
        ("SELECT a FROM t; DROP TABLE t", "; is not expected, line 1, column 16"),
        (
            "SELECT TRANSFORM(a) USING 'cat' AS (b) FROM t",
            "USING is not expected, line 1, column 21",
        ),
        ("SELECT * FROM t VERSION AS OF 1", "AS is not expected, line 1, column 25"),
        ("SELECT a FROM café", "café has characters other than a to z"),
        ("SELECT " + "(" * 300 + "1" + ")" * 300, f"nested deeper than {NESTING_MAX} levels"),
    ],
)
def test_what_is_no_query_is_refused_with_its_place(sql: str, error: str) -> None:
    with pytest.raises(InvalidRequest, match=error):
        parse_query(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a FROM t WHERE",
        "SELECT a FROM t\n  where -- why\n GROUP BY a",
        "SELECT a FROM t GROUP",
        "SELECT a FROM t WHERE b > 1 LIMIT",
        "SELECT a FROM t WHERE LIMIT 5",
        "SELECT * FROM (SELECT a FROM t WHERE) ORDER BY a",
        "SELECT a FROM (SELECT 1 AS a) HAVING UNION SELECT 2",
        'SELECT a FROM "t" WHERE, u',
        "SELECT a FROM t WHERE JOIN u ON true",
        "SELECT a FROM t ORDER LIMIT 5",
        "SELECT 'a' LIMIT",
    ],
)
def test_the_keyword_of_a_clause_alone_is_no_alias(sql: str) -> None:
    with pytest.raises(InvalidRequest, match=r"is not expected|ends too early"):
        parse_query(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT max(offset), min(limit) FROM t WHERE offset > 1 GROUP BY order ORDER BY offset",
        "SELECT offset, limit, order FROM t WHERE a = limit ORDER BY a, limit LIMIT 5 OFFSET 2",
        "SELECT a AS order FROM t WHERE (b) HAVING (c) LIMIT ALL",
        'SELECT t."where", "where" FROM t "where"',
        "SELECT 'WHERE' FROM t GROUP BY ALL",
        "SELECT t.limit FROM t WHERE NOT t.order",
        "SELECT a FROM t |> WHERE a > 1 |> LIMIT 5",
        "SELECT count(*) FILTER (WHERE a > 1) OVER (PARTITION BY b ORDER BY offset) FROM t",
        "SELECT values, set, t.end + 1, date, first, key FROM t",
    ],
)
def test_columns_may_have_the_names_of_clauses(sql: str) -> None:
    once = generated(sql)
    assert generated(once) == once


def test_a_text_after_an_expression_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="FROM is not expected, line 1, column 3"):
        parse_expression("a FROM t")


def test_long_chains_are_one_node() -> None:
    root = parse_expression(" AND ".join(f"a{number} > 1" for number in range(20_000)))
    assert isinstance(root, tree.Operation)
    assert len(root.operands) == 20_000
    assert sum(1 for _ in tree.walk(root)) == 1 + 3 * 20_000


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        (
            "SELECT a FROM Clicks, views v JOIN (SELECT * FROM pages) USING (id)",
            "clicks views pages",
        ),
        ("WITH a AS (SELECT * FROM x), b AS (TABLE a) SELECT * FROM A, b, c", "x c"),
        ("WITH a AS (SELECT * FROM a) SELECT * FROM a", "a"),
        ("WITH RECURSIVE a AS (SELECT * FROM a) SELECT * FROM a", ""),
        ("SELECT * FROM (WITH a AS (SELECT 1) SELECT * FROM a), a", "a"),
        ("SELECT (SELECT max(n) FROM s), EXISTS (TABLE t), n IN (SELECT n FROM u)", "s t u"),
        ("WITH a AS (SELECT 1) SELECT * FROM d.a", "d.a"),
        ("SELECT a.b.c, 'FROM t', `x y` FROM `x y`", "x y"),
        ("TABLE t |> JOIN u USING (n) |> UNION ALL TABLE v", "t u v"),
        ("SELECT * FROM explode(array(1)), range(3)", ""),
    ],
)
def test_tables_are_those_that_with_does_not_define(sql: str, names: str) -> None:
    found = sorted(".".join(table.parts).lower() for table in tables_of(parse_query(sql)))
    expected = ["x y"] if names == "x y" else sorted(names.split())
    assert found == expected


def test_many_definitions_take_memory_in_proportion() -> None:
    count = 3_000
    defined = ", ".join(f"a{at} AS (SELECT 1 FROM a{at}, b)" for at in range(count))
    root = parse_query(f"WITH {defined} SELECT 1 FROM A{count - 1}")
    tracemalloc.start()
    found = tables_of(root)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 2 * count
    assert most < 8_000_000  # a set for each definition: 200 MB


def test_a_statement_is_repeated_at_its_places_without_comments() -> None:
    sql = "SELECT a, -- one\n  /* two\n three */ 'x''y' FROM t"
    parser = Parser(sql)
    text = written(sql, parser.tokens, parser.whole(parser.query))
    assert text == "SELECT a,       \n        \n          'x''y' FROM t"
    assert [*map(len, text.split("\n"))] == [*map(len, sql.split("\n"))]


def test_a_part_of_a_statement_is_replaced() -> None:
    sql = "SELECT time_floor(a,\n 'P1D') AS d FROM t"
    parser = Parser(sql)
    root = parser.whole(parser.query)
    (call,) = (one for one in tree.walk(root) if isinstance(one, tree.Call))
    replaced = {call.start: (call.end, "date_trunc('DAY', a)")}
    text = written(sql, parser.tokens, root, replaced)
    assert text == "SELECT date_trunc('DAY', a)\n AS d FROM t"


WORDS = """
    SELECT FROM WHERE GROUP BY HAVING ORDER LIMIT ( ) , . * + - > = a b t 1 'x' AND OR NOT IN IS
    NULL CASE WHEN THEN END CAST AS INT JOIN ON USING UNION ALL VALUES WITH TABLE OVER [ ] -> => ::
    ? INTERVAL DAY DATE EXISTS |> EXTEND /*+ */ LATERAL VIEW PIVOT FOR EXTRACT DISTINCT
    """
PIECES = st.sampled_from(sorted(set(WORDS.split())))


@given(st.lists(PIECES, max_size=30))
def test_any_words_are_a_query_or_refused(words: list[str]) -> None:
    sql = " ".join(words)
    try:
        root = parse_query(sql)
    except InvalidRequest:
        return
    assert generated(generated(sql)) == generated(sql)
    assert all(0 <= one.start <= one.end for one in tree.walk(root))


@pytest.mark.parametrize(
    ("call", "meaning"),
    [
        ("TIME_SHIFT(t, 'P1D', 1)", "(t + INTERVAL '1' DAY)"),
        ("TIME_PARSE('2026-11-20T08:10:05')", "TIMESTAMP '2026-11-20T08:10:05.000Z'"),
        (
            "TIME_CEIL(t, 'P1M')",
            "(date_trunc('MONTH', (t - INTERVAL 1 MICROSECOND)) + INTERVAL '1' MONTH)",
        ),
        (
            "TIME_FLOOR(t, 'P2M')",
            (
                "(date_trunc('MONTH', t)"
                " - make_ym_interval(0, pmod((year(t) - 1970) * 12 + month(t) - 1, 2)))"
            ),
        ),
    ],
)
def test_translated_calls_are_operands(call: str, meaning: str) -> None:
    assert checked_query(f"SELECT a - {call} FROM x").text == f"SELECT a - {meaning} FROM x"


def test_a_unit_is_that_of_the_only_argument() -> None:
    sql = "SELECT FLOOR(t, DAY TO HOUR) FROM x"
    assert checked_query(sql).text == sql


def test_translations_that_repeat_their_arguments_are_bounded() -> None:
    sql = "t"
    for _ in range(100):
        sql = f"TIME_FLOOR({sql}, 'PT5M')"  # twice as long with each level
    with pytest.raises(InvalidRequest, match="more than 200000 characters in Spark SQL, line 1"):
        checked_query(f"SELECT {sql} FROM x")


def test_a_translation_is_not_deeper_than_a_statement_may_be() -> None:
    sql = "a"
    for _ in range(85):
        sql = f"BITWISE_AND({sql}, 1)"  # two parentheses for each level
    with pytest.raises(InvalidRequest, match="after Druid's functions are written in Spark SQL"):
        checked_query(f"SELECT {sql} FROM x")


@pytest.mark.parametrize(
    "call",
    [
        "TIME_FLOOR(?, 'PT5M')",
        "DS_HLL(?)",
        "BITWISE_AND(a, TIME_CEIL(?, 'PT5M'))",
        "MV_PREPEND(?, MV_APPEND(a, ?))",
    ],
)
def test_a_translation_keeps_the_positions_of_parameters(call: str) -> None:
    with pytest.raises(
        InvalidRequest, match=r"\? is not possible in (TIME|DS_HLL|MV_PREPEND).*line 1, column"
    ):
        checked_query(f"SELECT {call} FROM x WHERE b = ?")
    kept = checked_query("SELECT TIME_FLOOR(?, 'P1D'), STRPOS(a, '?') FROM x WHERE b = ?")
    assert kept.text.count("?") == 3
    checked_query("SELECT MV_PREPEND(?, a), MV_APPEND(MV_APPEND(a, ?), ?) FROM x")


def test_a_raw_text_in_double_quotes_is_a_text_as_in_spark() -> None:
    found = parse_expression('r"a"')
    assert isinstance(found, tree.Text)
    assert found.value == "a"
    assert isinstance(parse_expression('"a"'), tree.Name)


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("b - TIME_SHIFT(a, 'P1D', 1)", "b - (a + INTERVAL '1' DAY)"),
        ("TIME_SHIFT(a, 'P1D', 1)::DATE", "(a + INTERVAL '1' DAY)::DATE"),
        ("b - TIME_FLOOR(a, 'PT1S')", "b - (date_trunc('SECOND', a))"),
        (
            "b - TIME_CEIL(a, 'P1D')",
            "b - (date_trunc('DAY', (a - INTERVAL 1 MICROSECOND)) + INTERVAL '86400' SECOND)",
        ),
    ],
)
def test_a_translated_call_stays_one_operand(sql: str, text: str) -> None:
    assert checked_query(f"SELECT {sql}").text == f"SELECT {text}"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("TIME_IN_INTERVAL(", ", '2020/2021')"),
        ("TIME_FLOOR(", ", 'P2M')"),
        ("TIME_CEIL(", ", 'PT3H')"),
        ("IPV4_PARSE(", ")"),
    ],
)
def test_nested_translations_do_not_grow_without_a_limit(before: str, after: str) -> None:
    for depth in (2, 60):
        sql = "SELECT " + before * depth + "a" + after * depth
        if depth == 2:
            assert len(checked_query(sql).text) < 20_000
            continue
        with pytest.raises(
            InvalidRequest, match=r"more than 200000 characters in Spark SQL, line 1"
        ):
            checked_query(sql)


def test_parentheses_around_a_long_query_are_not_searched_again_at_each_level() -> None:
    class CountingParser(Parser):
        looked_at = 0

        def _word(self, ahead: int = 0) -> str:
            self.looked_at += 1
            return super()._word(ahead)

    counts = []
    for depth in (1, 60):
        query = f"SELECT {', '.join('a' * 1_000)}"
        parser = CountingParser(f"SELECT 1 FROM {'(' * depth}({query}) x{') x' * depth}")
        parser.whole(parser.query)
        counts.append(parser.looked_at)
    assert counts[1] < 2 * counts[0]


class CountingParser(Parser):
    """Counts the expressions that it reads."""

    count = 0

    def expression(self) -> tree.Expression:
        self.count += 1
        return super().expression()


@pytest.mark.parametrize("innermost", ["1", "1, 2"])
def test_arrays_within_each_other_are_read_once(innermost: str) -> None:
    levels = 12
    parser = CountingParser(f"SELECT {'ARRAY[' * levels}{innermost}{']' * levels}")
    parser.whole(parser.query)
    assert parser.count <= levels + 2


@pytest.mark.parametrize("index", ["a AND b", "NOT a", "a IS NULL"])
def test_an_index_is_no_condition(index: str) -> None:
    checked_query(f"SELECT array[({index})]")
    with pytest.raises(InvalidRequest, match="column"):
        checked_query(f"SELECT array[{index}]")


def test_the_definitions_of_a_long_with_share_their_names() -> None:
    names = [f"a{number}" for number in range(2_000)]
    sql = f"WITH {', '.join(f'{name} AS (TABLE a0)' for name in names)} TABLE a1999"
    root = parse_query(sql)
    tracemalloc.start()
    try:
        tables = tables_of(root)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [one.parts for one in tables] == [("a0",)]  # the first one does not see itself
    assert peak_bytes < 5_000_000


@pytest.mark.parametrize(
    ("sql", "remedy"),
    [
        ("SELECT a:b.c FROM t", "get_json_object or variant_get"),
        ("SELECT :a", "get_json_object or variant_get"),
        ("SELECT 1; SELECT 2", "write only one statement"),
        ("SELECT 1 a\nUPDATE", "replace the time chunks"),
        ("SELECT a b '{\"p\": 1}'", "a text is not expected, line 1, column 12"),
    ],
)
def test_errors_have_the_remedy_for_what_is_not_expected(sql: str, remedy: str) -> None:
    with pytest.raises(InvalidRequest, match="not expected, line") as refused:
        checked_query(sql)
    assert remedy in str(refused.value)


@pytest.mark.parametrize(
    "word", ["\u017felect", "SELECT a \u017fort BY 1", "SELECT \u0663", "\uff33ELECT 1"]
)
def test_words_that_only_look_like_keywords_are_refused(word: str) -> None:
    with pytest.raises(InvalidRequest, match="characters other than"):
        checked_query(word)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("a + 1", "(A)+(1)", True),
        ("a + 1 + 2", "a + (1 + 2)", False),
        ("a + 1", "1 + a", False),
        ("NOT a == 1", "! (a = 1)", True),
        ("lower(t.a)", "LOWER(`a`)", True),
        ("lower(u.a)", "lower(a)", False),
        ("CAST(a AS DECIMAL(3, 1))", "a::decimal(3,1)", True),
        ("CAST(a AS DECIMAL(3, 1))", "CAST(a AS DECIMAL(3, 2))", False),
        ("'a' 'b'", "'ab'", True),
        (r"'a\n'", r"'a\t'", False),
        ("1.0", "1", False),
        ("1L", "1l", True),
        ("(a AS b)", "(a AS c)", False),
        ("a BETWEEN 1 AND 2", "a NOT BETWEEN 1 AND 2", False),
        ("count(DISTINCT a)", "count(a)", False),
    ],
)
def test_expressions_of_one_shape(one: str, other: str, is_same: bool) -> None:
    def shape_of(sql: str) -> Shape:
        parser = Parser(sql)
        return shape(parser.whole(parser.expression), parser.tokens, "t")

    assert (shape_of(one) == shape_of(other)) is is_same
    assert (hash(shape_of(one)) == hash(shape_of(other))) is is_same
