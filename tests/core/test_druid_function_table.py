"""Each of Druid's functions is accepted or refused, as the table says; other calls are refused."""

from __future__ import annotations

import pytest

from penstock.core.errors import InvalidRequest
from penstock.core.sql.checked_expression import check_expression
from penstock.core.sql.checked_query import checked_query
from penstock.core.sql.druid_function_table import EVENTS, FUNCTIONS, GROUPS
from penstock.core.sql.druid_functions import DRUID_FUNCTIONS
from penstock.core.sql.druid_hints import remedy_of
from penstock.core.sql.functions import FUNCTIONS as OF_SPARK

MS = "unix_millis(x)"


def list_of(column: str) -> str:
    """Return the values of a column in Spark SQL: a text that is not a list is one value."""
    one = f"CASE WHEN {column} IS NOT NULL THEN array({column}) END"
    return f"coalesce(from_json({column}, 'ARRAY<STRING>'), {one})"


LIST = list_of("`1`")
SLICE = f"transform(sequence(0, 0), `~1` -> get({LIST}, `~1`))"
# What tools write instead of Druid's functions.
OF_TOOLS = {"APPROX_DISTINCT"}
# Druid's documentation, page "All Druid SQL functions", and PI.
OF_DRUID = """
    ABS ACOS ANY_VALUE APPROX_COUNT_DISTINCT APPROX_COUNT_DISTINCT_BUILTIN
    APPROX_COUNT_DISTINCT_DS_HLL APPROX_COUNT_DISTINCT_DS_THETA APPROX_QUANTILE APPROX_QUANTILE_DS
    APPROX_QUANTILE_FIXED_BUCKETS ARRAY ARRAY_AGG ARRAY_APPEND ARRAY_CONCAT ARRAY_CONCAT_AGG
    ARRAY_CONTAINS ARRAY_LENGTH ARRAY_OFFSET ARRAY_OFFSET_OF ARRAY_ORDINAL ARRAY_ORDINAL_OF
    ARRAY_OVERLAP ARRAY_PREPEND ARRAY_SLICE ARRAY_TO_MV ARRAY_TO_STRING ASIN ATAN ATAN2 AVG BIT_AND
    BIT_OR BIT_XOR BITWISE_AND BITWISE_COMPLEMENT BITWISE_CONVERT_DOUBLE_TO_LONG_BITS
    BITWISE_CONVERT_LONG_BITS_TO_DOUBLE BITWISE_OR BITWISE_SHIFT_LEFT BITWISE_SHIFT_RIGHT
    BITWISE_XOR BLOOM_FILTER BLOOM_FILTER_TEST BTRIM CASE CAST CEIL CHAR_LENGTH CHARACTER_LENGTH
    COALESCE CONCAT CONTAINS_STRING COS COT COUNT CUME_DIST CURRENT_DATE CURRENT_TIMESTAMP
    DATE_TRUNC DECODE_BASE64_COMPLEX DECODE_BASE64_UTF8 DEGREES DENSE_RANK DIV DS_CDF
    DS_GET_QUANTILE DS_GET_QUANTILES DS_HISTOGRAM DS_HLL DS_QUANTILE_SUMMARY DS_QUANTILES_SKETCH
    DS_RANK DS_THETA DS_TUPLE_DOUBLES DS_TUPLE_DOUBLES_INTERSECT
    DS_TUPLE_DOUBLES_METRICS_SUM_ESTIMATE DS_TUPLE_DOUBLES_NOT DS_TUPLE_DOUBLES_UNION EARLIEST
    EARLIEST_BY EXP EXTRACT FIRST_VALUE FLOOR GREATEST GROUPING HLL_SKETCH_ESTIMATE
    HLL_SKETCH_ESTIMATE_WITH_ERROR_BOUNDS HLL_SKETCH_TO_STRING HLL_SKETCH_UNION
    HUMAN_READABLE_BINARY_BYTE_FORMAT HUMAN_READABLE_DECIMAL_BYTE_FORMAT
    HUMAN_READABLE_DECIMAL_FORMAT ICONTAINS_STRING IPV4_MATCH IPV4_PARSE IPV4_STRINGIFY IPV6_MATCH
    JSON_KEYS JSON_MERGE JSON_OBJECT JSON_PATHS JSON_QUERY JSON_QUERY_ARRAY JSON_VALUE LAG
    LAST_VALUE LATEST LATEST_BY LEAD LEAST LEFT LENGTH LISTAGG LN LOG10 LOOKUP LOWER LPAD LTRIM MAX
    MILLIS_TO_TIMESTAMP MIN MOD MV_APPEND MV_CONCAT MV_CONTAINS MV_FILTER_NONE MV_FILTER_ONLY
    MV_LENGTH MV_OFFSET MV_OFFSET_OF MV_ORDINAL MV_ORDINAL_OF MV_OVERLAP MV_PREPEND MV_SLICE
    MV_TO_ARRAY MV_TO_STRING NTILE NULLIF NVL PARSE_JSON PARSE_LONG PERCENT_RANK PI POSITION POWER
    RADIANS RANK REGEXP_EXTRACT REGEXP_LIKE REGEXP_REPLACE REPEAT REPLACE REVERSE RIGHT ROUND
    ROW_NUMBER RPAD RTRIM SAFE_DIVIDE SCALAR_IN_ARRAY SIN SQRT STDDEV STDDEV_POP STDDEV_SAMP
    STRING_AGG STRING_FORMAT STRING_TO_ARRAY STRING_TO_MV STRLEN STRPOS SUBSTR SUBSTRING SUM TAN
    TDIGEST_GENERATE_SKETCH TDIGEST_QUANTILE TEXTCAT THETA_SKETCH_ESTIMATE
    THETA_SKETCH_ESTIMATE_WITH_ERROR_BOUNDS THETA_SKETCH_INTERSECT THETA_SKETCH_NOT
    THETA_SKETCH_UNION TIME_CEIL TIME_EXTRACT TIME_FLOOR TIME_FORMAT TIME_IN_INTERVAL TIME_PARSE
    TIME_SHIFT TIMESTAMP_TO_MILLIS TIMESTAMPADD TIMESTAMPDIFF TO_JSON_STRING TRIM TRUNC TRUNCATE
    TRY_PARSE_JSON UNNEST UPPER VAR_POP VAR_SAMP VARIANCE
"""


def written(call: str) -> str:
    """A call in Spark SQL, as the only column of a query."""
    text = checked_query(f"SELECT {call} FROM events").text
    return text.removeprefix("SELECT").removesuffix("FROM events").strip()


def refusal(call: str) -> str:
    with pytest.raises(InvalidRequest) as refused:
        written(call)
    return str(refused.value)


@pytest.mark.parametrize(
    "name", [name for name, one in FUNCTIONS.items() if one.value or one.state == "absent"]
)
def test_a_function_is_in_the_state_of_the_table(name: str) -> None:
    one = FUNCTIONS[name]
    begun = f"{EVENTS} {'' if one.example.startswith('SELECT') else 'SELECT '}"
    statement = f"{begun}{one.example}{'' if 'FROM events' in one.example else ' FROM events'}"
    if one.state == "absent":
        with pytest.raises(InvalidRequest) as refused:
            checked_query(statement)
        said = str(refused.value)
        line = begun.count("\n") + 1
        assert said.startswith(f"Spark SQL has no function {name}, line {line}, column ")
        assert said.endswith(f"{name} is a function of Druid's SQL. {remedy_of(one)}")
        assert one.note or one.sql
        return
    found = checked_query(statement)
    assert found.is_translated or one.state != "translated"
    assert not one.sql


def test_each_function_stands_in_the_table_once() -> None:
    assert len(FUNCTIONS) == sum(map(len, GROUPS.values()))
    assert FUNCTIONS.keys() == {*OF_DRUID.split(), *OF_TOOLS, "FLOOR(… TO …)", "CEIL(… TO …)"}
    assert FUNCTIONS.keys() > DRUID_FUNCTIONS
    for title in GROUPS:
        assert sorted(GROUPS[title]) == list(GROUPS[title]), title


def test_functions_that_spark_lacks_are_translated_or_refused() -> None:
    works = {name for name, one in FUNCTIONS.items() if one.state in {"works", "differs"}}
    assert {one for one in works if one.lower() not in OF_SPARK} <= DRUID_FUNCTIONS


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("TIME_FLOOR(t.x, 'P1D')", "(date_trunc('DAY', t . x))"),
        ("TIME_FLOOR(x, 'PT5M')", f"(timestamp_millis({MS} - pmod({MS}, 300000)))"),
        ("TIME_PARSE('2024-01-15')", "TIMESTAMP '2024-01-15T00:00:00.000Z'"),
        ("LATEST(t.x)", "max_by(t . x, `t`.`__time`)"),
        ("LATEST(x, 100) FILTER (WHERE y > 1)", "max_by(x, `__time`) FILTER (WHERE y > 1)"),
        ("APPROX_DISTINCT(x)", "approx_count_distinct(x)"),
        ("TRUNC(x, 2)", "(CAST(CAST(x * 100.0D AS BIGINT) AS DOUBLE) / 100.0D)"),
        ("TRUNC(x, 'MONTH')", "TRUNC(x, 'MONTH')"),
        ("ANY_VALUE(x, true)", "ANY_VALUE(x, true)"),
        ("ARRAY[1, x]", "array(1, x)"),
        ("array[x]", "array[x]"),
        ('"array"[1]', '"array"[1]'),
        ("MV_LENGTH(tags)", f"size({list_of('tags')})"),
        ("ARRAY_CONCAT(n, ARRAY[1.5, 2])", "concat(from_json(n, 'ARRAY<DOUBLE>'), array(1.5, 2))"),
        ("JSON_VALUE(json, '$.')", "get_json_object(json, '$')"),
        ("THETA_SKETCH_INTERSECT(a, b, c)", "theta_intersection(theta_intersection(a, b), c)"),
        ("DS_TUPLE_DOUBLES(k, m, 5000)", "tuple_sketch_agg_double(k, CAST(m AS DOUBLE), 13)"),
        ("DS_TUPLE_DOUBLES(sketch)", "tuple_union_agg_double(sketch)"),
        # The column `1` is not the variable of the lambda function.
        (
            "MV_SLICE(`1`, 0, 1)",
            f"CASE WHEN size({LIST}) >= 0 THEN {SLICE} END",
        ),
    ],
)  # fmt: skip
def test_a_call_is_written_in_spark_sql(call: str, text: str) -> None:
    assert written(call) == text


@pytest.mark.parametrize(
    "call",
    [
        "TIME_FLOOR(__time)",
        "TIME_FLOOR(__time, period)",
        "TIME_FLOOR(__time, 'fortnight')",
        "TIME_FLOOR(__time, 'PT0S')",
        "TIME_FLOOR(__time, 'P1M', TIMESTAMP '2024-01-15')",
        "TIME_FLOOR(__time, 'P1D', other)",
        "TIME_FLOOR(__time, 'P1D', NULL, 'Nowhere/City')",
        "TIME_FLOOR(__time, 'P1DT1H', NULL, 'Europe/Berlin')",
        "TIME_FLOOR(__time, 'P1D', NULL, 'UTC', 1)",
        "TIME_EXTRACT(__time, 'FORTNIGHT')",
        "TIME_PARSE(text, 'yy-MM-dd')",
        "TIME_PARSE(text, 'MM-dd')",
        "TIME_PARSE(text, 'yyyy hh')",
        "TIME_PARSE(text, 'yyyy[MM]')",
        "TIME_PARSE(text, 'xxxx-ww')",
        "TIME_FORMAT(__time, 'HH z', 'Europe/Berlin')",
        "TIME_FORMAT(__time, pattern)",
        "LATEST(x) OVER (ORDER BY y)",
        "LATEST(x, y)",
        "STRLEN(x) FILTER (WHERE y > 1)",
        "TIME_FLOOR(__time, 'P1D') FILTER (WHERE y > 1)",
        "MV_LENGTH(upper(x))",
        "MV_SLICE(tags, n, 2)",
        "MV_SLICE(tags, 2, 1)",
        "JSON_VALUE(json, path)",
        "JSON_VALUE(json, '$..a')",
        "TO_JSON_STRING(json)",
        "DS_HLL(x, n)",
        "DS_THETA(x, 4)",
        "DS_GET_QUANTILES(sketch, fraction)",
        "IPV4_MATCH(x, '1.2.3.4.5')",
        "PARSE_LONG('11', 2)",
        "UNNEST(tags)",
    ],
)
def test_a_call_that_is_not_translated_exactly_is_refused(call: str) -> None:
    name = call.partition("(")[0]
    said = refusal(call)
    assert said.startswith(f"Spark SQL has no function {name}, line 1, column 8: {name} is")
    assert f"such as {FUNCTIONS[name].example}" in said


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("JSON_OBJECT(KEY x VALUE 1)", "is not Spark SQL, line 1, column 8: write to_json("),
        ("JSON_VALUE(x, '$.a' RETURNING MAP<INT, INT>)", "write get_json_object(json, '$.a')"),
        ("STRLENN(x)", "did you mean STRLEN?"),
        ("mv_lenght(x)", "did you mean MV_LENGTH?"),
        ("substrin(x, 1)", "did you mean substring?"),
    ],
)  # fmt: skip
def test_a_form_or_name_that_is_unknown_has_a_remedy(call: str, says: str) -> None:
    assert says in refusal(call)


@pytest.mark.parametrize(
    "expression",
    ["ARRAY['a', 'b']", "JSON_OBJECT(KEY 'a' VALUE b)", "JSON_VALUE(a, '$.b' RETURNING BIGINT)"],
)
def test_expressions_that_spark_gets_as_written_have_no_forms_of_druid(expression: str) -> None:
    with pytest.raises(InvalidRequest, match="in this form is not Spark SQL"):
        check_expression(expression)


@pytest.mark.parametrize(
    "call",
    [
        "MV_LENGTH(java_method('java.lang.System', 'exit'))",
        "JSON_OBJECT(KEY 'a' VALUE reflect('java.lang.System', 'exit'))",
        "ARRAY['a', input_file_name()]",
        "LATEST(x) FILTER (WHERE java_method('java.lang.System', 'exit') = '')",
        "JSON_VALUE(xpath_string(x, 'a'), '$.a' RETURNING BIGINT)",
        "STRING_FORMAT(from_json('{}', '{\"type\": \"struct\"}'))",
    ],
)
def test_arguments_of_translated_calls_are_checked(call: str) -> None:
    assert "is not allowed" in refusal(call)


def test_texts_that_a_translation_joins_name_no_variable_of_the_host() -> None:
    assert "${env:HOME} is not allowed" in refusal("JSON_OBJECT(KEY '$' '{env:HOME}' VALUE 1)")


def test_lists_in_from_become_rows() -> None:
    for relation, text in (
        ("UNNEST(tags)", f"LATERAL explode({list_of('tags')})"),
        ("LATERAL UNNEST(tags)", f"LATERAL explode({list_of('tags')})"),
        ("UNNEST(ARRAY['a', 'b'])", "LATERAL explode(array('a', 'b'))"),
    ):
        found = checked_query(f"SELECT tag FROM events CROSS JOIN {relation} AS t (tag)")
        assert " ".join(found.text.split()).endswith(f"CROSS JOIN {text} AS t (tag)")
        assert found.tables == {"events"}
