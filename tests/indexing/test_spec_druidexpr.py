"""Druid's expressions: text and tree, which dialect a text is, and what Spark is given."""

from __future__ import annotations

import tracemalloc
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.core.sql.checked_expression import check_expression
from penstock.indexing.specs.druid_expressions import (
    Binary,
    Expression,
    FunctionCall,
    Literal,
    Name,
    Unary,
    as_spark_sql,
    as_text,
    is_druids,
    parse,
    translate,
)
from tests.kits.calls_kit import count_calls

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x08\x0c"), max_size=8)
LITERALS = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
).map(Literal)
FUNCTIONS = st.sampled_from(["concat", "lower", "case_searched", "timestamp_floor", "f"])
OPERATORS = ["||", "&&", "==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "^"]
TREES: st.SearchStrategy[Expression] = st.recursive(
    LITERALS | TEXT.filter(bool).map(Name),
    lambda inner: st.one_of(
        st.builds(Binary, st.sampled_from(OPERATORS), inner, inner),
        st.builds(Unary, st.sampled_from("-!"), inner),
        st.builds(FunctionCall, FUNCTIONS, st.lists(inner, max_size=4).map(tuple)),
    ),
    max_leaves=20,
)


@given(TREES)
def test_a_tree_survives_its_text(tree: Expression) -> None:
    assert repr(parse(as_text(tree))) == repr(tree)


@given(TREES)
@example(Name("\\"))
@example(Unary("-", Literal(-1)))
def test_what_is_translated_can_be_judged_by_the_check_of_expressions(tree: Expression) -> None:
    try:
        sql = translate(tree)
    except InvalidRequest:
        return
    check_expression(sql)


@given(st.one_of(st.text(max_size=60), st.text("()'\"\\+-*/^!<>=&|%,.[]ae10 \n", max_size=60)))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (parse, as_spark_sql):
        try:
            read(text)
        except InvalidRequest:
            continue


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("1 + 2 * x", "(1) + ((2) * (x))"),
        ("2 ^ 3 ^ 2", "(2) ^ ((3) ^ (2))"),
        ("a - b - c", "((a) - (b)) - (c)"),
        ("!a && b || c", "((!(a)) && (b)) || (c)"),
        ("-x + -1", "(-(x)) + (-1)"),
        ("a == 1 && b != 'x'", "((a) == (1)) && ((b) != ('x'))"),
        ('"two words" > .5', '("two words") > (0.5)'),
        (r"'it\'s' + 'A'", r"('it\'s') + ('A')"),
        ("CONCAT(a, null)", "concat(a, null)"),
    ],
)
def test_operators_bind_as_in_druid(text: str, tree: str) -> None:
    assert as_text(parse(text)) == tree


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("x > 1 && y == 'a'", """(("x" > 1L) AND ("y" = 'a'))"""),
        ("x > 1 || !(y < 2) && z <= 3", """(("x" > 1L) OR ((NOT ("y" < 2L)) AND ("z" <= 3L)))"""),
        ("cast(x, 'LONG') / 2", '(CAST("x" AS BIGINT) DIV 2L)'),
        ("cast(x, 'DOUBLE') / 2", '(CAST("x" AS DOUBLE) / 2L)'),
        ("strlen(x) ^ 2", 'CAST(POWER(LENGTH("x"), 2L) AS BIGINT)'),
        ("'a' + strlen(x)", """CONCAT('a', LENGTH("x"))"""),
        ("strlen(substring(x, 0, 3))", 'LENGTH(SUBSTRING("x", 1, 3))'),
        ("strlen(substring(x, 2, -1))", 'LENGTH(SUBSTRING("x", 3))'),
        ("case_searched(x > 1, 'a', 'b')", """(CASE WHEN ("x" > 1L) THEN 'a' ELSE 'b' END)"""),
        ("case_searched(x > 1, 'a')", """(CASE WHEN ("x" > 1L) THEN 'a' END)"""),
        (
            "case_simple(x, 'a', 1, 'b', 2, 3)",
            """(CASE WHEN "x" = 'a' THEN 1L WHEN "x" = 'b' THEN 2L ELSE 3L END)""",
        ),
        ("if(strlen(x) > 0, x, null)", '(CASE WHEN (LENGTH("x") > 0L) THEN "x" ELSE NULL END)'),
        ("strlen(nvl(x, 'it\\'s'))", r"""LENGTH(COALESCE("x", 'it\'s'))"""),
        ("strlen(x) > 0 && like(x, 'a%')", """((LENGTH("x") > 0L) AND ("x" LIKE 'a%'))"""),
        ("strpos(x, 'b')", """(INSTR("x", 'b') - 1)"""),
        (
            "strlen(regexp_extract(x, '(a)b', 1))",
            """LENGTH((CASE WHEN "x" RLIKE '(a)b' THEN REGEXP_EXTRACT("x", '(a)b', 1) END))""",
        ),
        (
            # To Spark a name in another case is the same.
            "timestamp_floor(__Time, 'PT1H')",
            "({0} - PMOD({0} - 0L, 3600000L))".format('CAST(UNIX_MILLIS("__Time") AS BIGINT)'),
        ),
        (
            "timestamp_floor(__time, 'PT1H')",
            "({0} - PMOD({0} - 0L, 3600000L))".format('CAST(UNIX_MILLIS("__time") AS BIGINT)'),
        ),
        (
            "timestamp_floor(t, 'P1M', null, 'UTC')",
            "UNIX_MILLIS(DATE_TRUNC('MONTH', TIMESTAMP_MILLIS(CAST(\"t\" AS BIGINT))))",
        ),
        (
            "timestamp_extract(t, 'hour')",
            'CAST(HOUR(TIMESTAMP_MILLIS(CAST("t" AS BIGINT))) AS BIGINT)',
        ),
        (
            "timestamp_parse(x, 'yyyy-MM-dd')",
            """UNIX_MILLIS(TO_TIMESTAMP("x", 'yyyy-MM-dd'))""",
        ),
        (
            'timestamp_format(t, "q")',
            None,
        ),
    ],
)
def test_what_spark_is_given(text: str, sql: str | None) -> None:
    assert is_druids(text)
    if sql is None:
        with pytest.raises(InvalidRequest):
            as_spark_sql(text)
        return
    condition = sql.startswith("((")
    assert as_spark_sql(text, condition=condition) == sql


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("n < 2 || s == 'bb'", """(("n" < 2L) OR ("s" = 'bb'))"""),
        ("n < 1 || m >= 2", '(("n" < 1L) OR ("m" >= 2L))'),
        ("(n < 2)||(s != 'b')", """(("n" < 2L) OR ("s" <> 'b'))"""),
        ("isnull(a) || b > 2", '(("a" IS NULL) OR ("b" > 2L))'),
        ("!isnull(a) || like(b, 'x%')", """((NOT ("a" IS NULL)) OR ("b" LIKE 'x%'))"""),
    ],
)
def test_conditions_are_joined_and_no_texts(text: str, sql: str) -> None:
    assert as_spark_sql(text, condition=True) == sql


@pytest.mark.parametrize("text", ["a || b == 'xy'", "s != 'a' || 'b'", "a || (b == 1)"])
def test_what_could_be_either_is_told(text: str) -> None:
    with pytest.raises(InvalidRequest, match="but must be a condition: compare it"):
        as_spark_sql(text, condition=True)


def test_what_is_true_is_one_where_a_value_is_needed() -> None:
    assert as_spark_sql("notnull(x)") == 'CAST(("x" IS NOT NULL) AS BIGINT)'
    assert as_spark_sql("notnull(x)", condition=True) == '("x" IS NOT NULL)'


@pytest.mark.parametrize(
    "text",
    [
        "upper(x)",
        "a || b",
        "CAST(x AS BIGINT)",
        'cast("x" as decimal(10, 2))',
        "substring(x, 1, 2)",
        "x ^ 2",
        "CASE WHEN x > 1 THEN 'a' ELSE 'timestamp_floor(' END",
        "x & y",
        # Texts put together, though something is compared beside it.
        "a || b > 'm'",
        "(a || b) == 'x'",
        "concat(a || b) == 'x' AND c != 'y'",
        "a = 'x' || b",
        "a <=> b || c",
        "if(s == 'a', a || b, c)",
        "case when s == 'a' then a || b end",
        "a || '=='",
    ],
)
def test_what_spark_has_too_is_spark_sql_as_it_is(text: str) -> None:
    assert not is_druids(text)
    assert as_spark_sql(text) == text


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("lookup(x, 'names')", "join with a table"),
        ("strlen(x) / y", "div(strlen(x), y)"),
        ("a && b > 1", "compare it"),
        ("strln(strlen(x))", 'did you mean "strlen"?'),
        ("strlen(x, y)", "takes 1 arguments, not 2"),
        ("strlen([1, 2])", "arrays are not supported"),
        ("strlen(x -> x + 1)", "lambdas are not supported"),
        ("timestamp_floor(t, 'P1D', null, 'Europe/Paris')", "time zones other than UTC"),
        ("timestamp_floor(t, p)", "written out"),
        ("timestamp_floor(t, 'P2M')", "P1M, P3M and P1Y"),
        ("timestamp_extract(t, 'CENTURY')", "EPOCH"),
        ("timestamp_parse(x, 'YYYY-ww')", "date_format or to_timestamp"),
        ("strlen(x", "expected ), found the end, line 1, column 9"),
        ("strlen(99999999999999999999)", "does not fit into 64 bits"),
        ("cast(x, 'BYTES')", "LONG, DOUBLE, FLOAT, STRING"),
        ("mv_length(x)", "JSON text: use Spark's functions on from_json(column, 'ARRAY<STRING>')"),
        ("strlen(reflect('a', 'b'))", "not a supported function of Druid"),
        ("strlen(" + "(" * 200 + "x" + ")" * 201, "nested deeper than"),
        (
            r"strlen('\ud83d')",
            "half of a surrogate pair: write the whole character, line 1, column 8",
        ),
        (r'strlen("\ude00\ud83d")', "half of a surrogate pair"),
    ],
)
def test_what_has_no_exact_translation_is_refused_with_the_mend(text: str, hint: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        as_spark_sql(text)
    assert hint in str(caught.value)


def test_a_character_may_be_two_escapes() -> None:
    assert as_spark_sql(r"strlen('\ud83d\ude00')") == as_spark_sql("strlen('\U0001f600')")


@pytest.mark.parametrize("form", ["({} - 1)", "coalesce({}, 1)"])
def test_the_work_for_parts_within_each_other_grows_with_their_number(form: str) -> None:
    def calls(depth: int) -> int:
        text = "x"
        for _ in range(depth):
            text = form.format(text)
        return count_calls(partial(translate, parse(text)))

    assert calls(31) - calls(11) < 2.2 * (calls(21) - calls(11))


def test_a_long_subject_is_not_repeated_without_a_bound() -> None:
    """Each pair of a simple CASE repeats the subject, which has two thousand characters in SQL."""
    subject = "timestamp_ceil(" * 5 + "x" + ", 'P1D')" * 5
    node = parse(f"case_simple({subject}{', 1, 2' * 3_000})")
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="more than 100000 characters"):
            translate(node)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()
