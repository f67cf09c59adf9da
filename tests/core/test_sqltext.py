"""What may stand in an expression from outside."""

from __future__ import annotations

import tracemalloc

import pytest

from penstock.core.errors import InvalidRequest
from penstock.core.sql.checked_expression import check_expression
from penstock.core.sql.checked_query import checked_query
from penstock.core.sql_text import tokens


@pytest.mark.parametrize(
    "expression",
    [
        "upper(page)",
        "reflect",
        "'reflect(' || \"java_method\"",
        '"select" + upper(table)',
        "transform(items, x -> x + 1)",
        "over + (over)",
        "trim(BOTH 'x' FROM page)",
        "trim(FROM page) || substring(upper(page) FROM 2) || extract(DAY FROM __time)",
        "(from IS DISTINCT FROM page) AND (from) <> abs(from + 1)",
        "a -- reflect('x')",
        "a -- \\\n reflect('x')",
        "a /* /* */ reflect('x') */",
        "(" * 150 + "a" + ")" * 150,
        "select + where * join",
        "on IN (having, 1) AND with IS NOT NULL",
    ],
)
def test_what_only_computes_passes(expression: str) -> None:
    check_expression(expression)


@pytest.mark.parametrize(
    ("expression", "place"),
    [
        ("reflect('a', 'b')", "line 1, column 1"),
        ("Java_Method /* why */ ('a', 'b')", "line 1, column 1"),
        ("1 +\n  builtin.`try_reflect`('a', 'b')", "line 2, column 11"),
        ("identifier('refl' || 'ect')('a')", "line 1, column 28"),
        ("identifier('refl' || 'ect')", "line 1, column 1"),
        ("a IN (SELECT b FROM c)", "line 1, column 7"),
        ("exists(with a as (select 1) select 2)", "line 1, column 8"),
        ("(table b)", "line 1, column 2"),
        ("(FROM text.`/a` |> AGGREGATE max(value))", "line 1, column 11"),
        ("EXISTS (FROM `text`.`/a`)", "line 1, column 20"),
        ("a IN (FROM (VALUES 1))", "line 1, column 20"),
        ("upper(explode(split(a, ',')))", "line 1, column 7"),
        ("(map a using 'cat')", "line 1, column 8"),
        ("row_number() OVER (ORDER BY a)", "line 1, column 14"),
        ("sum(a) ignore nulls over /* all */ ()", "line 1, column 21"),
        ("1 /* /*+ */+ reflect('a', 'b') -- */", "line 1, column 14"),
        ("1 /* /*+ */, reflect('a', 'b') -- */", "line 1, column 12"),
        ("1 -- \\\r\n+ reflect('a', 'b')", "line 2, column 3"),
        ("'open", "line 1, column 1"),
        ("(" * 161 + "1" + ")" * 161, "line 1, column 162"),
        ("a[upper(" * 81 + "a" + ")]" * 81, "nested deeper"),
        ("a = ?", "line 1, column 5"),
        ("nothing(a)", "no function nothing, line 1, column 1"),
        ("1 /* open", "line 1, column 3"),
        ("1" * 100_001, "several columns"),
    ],
)
def test_what_leaves_the_row_or_sql_is_refused(expression: str, place: str) -> None:
    with pytest.raises(InvalidRequest, match=place):
        check_expression(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "from_json(a, 'a INT, b ARRAY<STRUCT<c: STRING>>', map('mode', 'FAILFAST')).a",
        "from_json(a || '{', '`a b` INT')",
        "from_json(lower(a, (b)), /* why */ '')",
        "from_csv(a, schema_of_csv('1,2'), map('sep', ';'))",
        "from_json(a, SCHEMA_OF_JSON('{\"a\": 1}', map('allowComments', 'true')))",
        "from_xml(a, schema_of_xml('<a/>'))",
        "variant_get(a, '$.b', 'ARRAY<INT>')",
        "try_variant_get(a, '$.b', schema_of_variant(parse_json('1')))",
        "variant_get(a, '{')",
        "to_json(a)",
        "from_json + '{'",
    ],
)
def test_plain_schemas_pass(expression: str) -> None:
    check_expression(expression)


@pytest.mark.parametrize(
    "schema",
    [
        """'{"type":"udt","pyClass":"a.B","serializedClass":"x","sqlType":"string"}'""",
        "' \t[{'",
        "'\\{'",
        "'\\u007b'",
        "'\\173'",
        "'a' ' INT'",
        "'a INT' || ''",
        "('a INT')",
        "'it''s'",
        "r'a INT'",
        "R'a INT'",
        "X'7B'",
        "STRING 'a INT'",
        "'a INT'::STRING",
        "'a INT' COLLATE UTF8_BINARY",
        '"a INT"',
        "`a INT`",
        "a",
        "?",
        ":a",
        "concat('a', ' INT')",
        "unbase64('ew==')",
        "schema_of_json",
        "schema_of_json('1') || '{'",
        "concat(schema_of_json('1'))",
        "upper(schema_of_json('1'))",
        "schema => 'a INT'",
        "CASE WHEN true THEN 'a INT' END",
    ],
)
def test_schemas_that_could_be_json_are_refused(schema: str) -> None:
    for call in (
        "from_json(a, {})",
        "From_CSV(lower(a, 'b INT'), {}, map('a', 'b'))",
        "from_xml(a, {})",
        "try_variant_get(a, '$', {})",
        "variant_get(a, '$', {})",
    ):
        text = call.replace("{}", schema)
        refused = r"(the schema .* is not allowed|is not expected|must be written as .*), line 1,"
        with pytest.raises(InvalidRequest, match=refused):
            check_expression(text)


def test_the_schema_of_a_nested_call_is_checked() -> None:
    json = '\'{"type": "struct"}\''
    for text in (
        f"from_json(to_json(from_csv(a, {json})), 'a INT')",
        f"from_json(a::MAP<STRING, STRING>, {json})",
        f"builtin.from_json(a[1], {json})",
        f"\"FROM_JSON\" (CASE WHEN a IN (1, 2) THEN '(' END, {json})",
        f"from_json(a, schema_of_xml(from_json(b, {json})))",
    ):
        with pytest.raises(InvalidRequest, match=r"schema .* of from_(json|csv)"):
            check_expression(text)


def test_tokens_say_where_they_stand() -> None:
    found = tokens("""upper("a""b") -- c\n'text'""")
    assert [(t.text, t.name, t.position, t.is_text) for t in found] == [
        ("UPPER", "upper", 0, False),
        ("(", "", 5, False),
        ("", 'a"b', 6, False),
        (")", "", 12, False),
        ("", "", 19, True),
    ]


@pytest.mark.parametrize("text", ["'" + r"it''s\n" * 40_000 + "'", '"' + 'a""' * 80_000 + '"'])
def test_a_long_text_costs_its_size_and_no_state_for_each_character(text: str) -> None:
    tracemalloc.start()
    try:
        (found,) = tokens(text)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.raw == text
    assert peak_bytes < 4 * len(text)


@pytest.mark.parametrize(
    "name",
    [
        "PYTHON_WOR\N{KELVIN SIGN}ER_LOGS",
        "input_file_bloc\N{KELVIN SIGN}_start",
        "STAC\N{KELVIN SIGN}",
    ],
)
def test_a_forbidden_name_is_known_in_the_case_in_which_spark_looks_it_up(name: str) -> None:
    with pytest.raises(InvalidRequest, match="not allowed"):
        check_expression(f'"{name}"()')


@pytest.mark.parametrize("text", ["'${a}'", "'${ ${${env:X}'", "'${}}'", "/* ${x} ${y:z} */ 1"])
def test_variables_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="variable of the host"):
        check_expression(text)


@pytest.mark.parametrize("text", ["'${}'", "'${ a}'", "'${a'", "'$ {a}'", "'}${'"])
def test_what_is_no_variable_passes(text: str) -> None:
    check_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("'" + "${" * 499_000 + "'", id="open braces"),
        pytest.param("\n" * 900_000 + "abs(a)," * 20_000 + "1", id="calls behind many lines"),
        pytest.param(
            "from_json(" * 150 + "greatest(" + "a," * 100_000 + "1)" + ", 'a INT')" * 150,
            id="nested calls",
        ),
    ],
)
def test_a_long_statement_is_checked_in_one_pass(text: str) -> None:
    """Without it the check holds all threads of the process for minutes."""
    checked_query(f"SELECT {text}")
