"""Statements that the compiler of the fast path covers, and its reasons for leaving others."""

from __future__ import annotations

import json
import re
import tracemalloc
from itertools import pairwise
from pathlib import Path

import duckdb
import pytest

from penstock.core.sql.checked_query import checked_query
from penstock.fastpath.compiled_query import CompiledQuery, NotCompiled
from penstock.fastpath.compiler import NODES_MAX, compile_query
from tests.kits import fast_rows_kit
from tests.kits.fast_rows_kit import write_rows
from tests.kits.fast_statements_kit import statement_of
from tests.kits.sql_corpus_kit import clauses

COLUMNS = (
    ("__time", "timestamp"),
    ("channel", "string"),
    ("page", "string"),
    ("added", "bigint"),
    ("price", "double"),
    ("ratio", "float"),
    ("flag", "boolean"),
    ("cost", "decimal(9,2)"),
    ("sketch", "binary"),
    ('a "quoted" {name}?', "string"),
)
DAY_MS = 86_400_000
JANUARY_MS = 1_767_225_600_000  # 2026-01-01


def compiled(sql: str, *parameters: object) -> CompiledQuery:
    return compile_query(checked_query(sql).root, "wiki", COLUMNS, parameters)


def reason(sql: str, *parameters: object) -> str:
    with pytest.raises(NotCompiled) as raised:
        compiled(sql, *parameters)
    return raised.value.reason


def test_a_count_reads_no_columns() -> None:
    found = compiled("SELECT count(*) FROM wiki")

    assert found.read == ()
    assert found.columns == (("count(1)", "bigint"),)
    assert found.datasource == "wiki"


def test_groups_have_the_names_and_types_of_spark() -> None:
    found = compiled(
        "SELECT CHANNEL, date_trunc('HOUR', __time), sum(added), avg(added) AS mean, max(ratio)"
        " FROM wiki GROUP BY 1, 2 ORDER BY mean DESC LIMIT 10"
    )

    assert found.columns == (
        ("CHANNEL", "string"),
        ("date_trunc(HOUR, __time)", "timestamp"),
        ("sum(added)", "bigint"),
        ("mean", "double"),
        ("max(ratio)", "float"),
    )
    assert found.orders
    assert [name for name, _ in found.read] == ["__time", "channel", "added", "ratio"]


@pytest.mark.parametrize(
    ("item", "name", "type_"),
    [
        ("-added", "(- added)", "bigint"),
        ("- 5", "-5", "int"),
        ("added * 2 / 3", "((added * 2) / 3)", "double"),
        ("wiki.Added", "Added", "bigint"),
        ("CAST(added AS DOUBLE)", "added", "double"),
        ("(added)", "added", "bigint"),
        ("CASE WHEN flag THEN 1 ELSE added END", "CASE WHEN flag THEN 1 ELSE added END", "bigint"),
        ("added BETWEEN 1 AND 2", "between(added, 1, 2)", "boolean"),
        ("channel NOT LIKE 'a%'", "(NOT channel LIKE a%)", "boolean"),
        ("flag IS NOT TRUE", "(NOT (flag <=> true))", "boolean"),
        ("price * 0.50", "(price * 0.50)", "double"),
        ("substr(channel, 1, 2)", "substr(channel, 1, 2)", "string"),
        ("length(channel)", "length(channel)", "int"),
        ("substr(channel, 2)", "substr(channel, 2, 2147483647)", "string"),
        ("unix_millis(__time)", "unix_millis(__time)", "bigint"),
        ("ratio + added", "(ratio + added)", "double"),
        ("2147483648", "2147483648", "bigint"),
        ("DATE '2026-01-01'", "DATE '2026-01-01'", "date"),
        ("0.50", "0.50", "decimal(2,2)"),
        ("cost + 1", "(cost + 1)", "decimal(10,2)"),
        ("added * 0.5", "(added * 0.5)", "decimal(22,1)"),
        ("cost / 3", "(cost / 3)", "decimal(13,6)"),
        ("cost * price", "(cost * price)", "double"),
        ("coalesce(cost, added)", "coalesce(cost, added)", "decimal(22,2)"),
        ("CAST(added AS DECIMAL(20, 2))", "added", "decimal(20,2)"),
        ("CAST(price AS BIGINT)", "price", "bigint"),
        ("round(price, 2)", "round(price, 2)", "double"),
        ("round(cost, 1)", "round(cost, 1)", "decimal(9,1)"),
        ("floor(price)", "FLOOR(price)", "bigint"),
        ("ceil(cost)", "CEIL(cost)", "decimal(8,0)"),
        ("upper(channel)", "upper(channel)", "string"),
        ("channel ILIKE 'a%'", "ilike(channel, a%)", "boolean"),
        ("channel LIKE 'a!%' ESCAPE '!'", "channel LIKE a!% ESCAPE '!'", "boolean"),
        ("nullif(price, 0)", "nullif(price, 0)", "double"),
        ("locate('a', channel)", "locate(a, channel, 1)", "int"),
        ("position('a' IN channel)", "locate(a, channel, 1)", "int"),
        ("date_format(__time, 'yyyy-MM')", "date_format(__time, yyyy-MM)", "string"),
        ("extract(DAYOFWEEK_ISO FROM __time)", "extract(DAYOFWEEK_ISO FROM __time)", "int"),
        ("try_divide(added, 2)", "try_divide(added, 2)", "double"),
        ("sum(cost)", "sum(cost)", "decimal(19,2)"),
        ("avg(cost)", "avg(cost)", "decimal(13,6)"),
        ("LATEST(channel)", "max_by(channel, __time)", "string"),
        ("any_value(price)", "any_value(price)", "double"),
        ("bool_or(flag)", "bool_or(flag)", "boolean"),
        ("count(DISTINCT channel, page)", "count(DISTINCT channel, page)", "bigint"),
    ],
)
def test_results_without_alias_have_names_of_spark(item: str, name: str, type_: str) -> None:
    assert compiled(f"SELECT {item} FROM wiki").columns == ((name, type_),)


def test_a_star_is_all_columns() -> None:
    columns = COLUMNS[:5]
    query = checked_query("SELECT * FROM druid.wiki LIMIT 5 OFFSET 2").root

    found = compile_query(query, "wiki", columns)

    assert found.columns == columns
    assert found.sql.endswith(" LIMIT 5 OFFSET 2")


@pytest.mark.parametrize(
    ("where", "start_ms", "end_ms"),
    [
        ("__time >= TIMESTAMP '2026-01-01'", JANUARY_MS, None),
        ("__time > '2026-01-01'", JANUARY_MS, None),
        ("__time >= TIMESTAMPADD(year, -1, TIMESTAMP '2027-01-01')", JANUARY_MS, None),
        ("CAST(__time AS TIMESTAMP) >= TIMESTAMP '2026-01-01'", JANUARY_MS, None),
        ("__time > to_timestamp('2026-01-01T00:00:00.000Z')", JANUARY_MS, None),
        ("__time < MILLIS_TO_TIMESTAMP(1767225600000)", None, JANUARY_MS),
        (
            "DATE '2026-01-01' <= __time AND __time < DATE '2026-01-02'",
            JANUARY_MS,
            JANUARY_MS + DAY_MS,
        ),
        ("__time = TIMESTAMP '2026-01-01 00:00:00.001'", JANUARY_MS + 1, JANUARY_MS + 2),
        (
            "__time BETWEEN TIMESTAMP '2026-01-01' AND TIMESTAMP '2026-01-02' AND channel = 'a'",
            JANUARY_MS,
            JANUARY_MS + DAY_MS + 1,
        ),
        ("TIME_IN_INTERVAL(__time, '2026-01-01/P1D')", JANUARY_MS, JANUARY_MS + DAY_MS),
        ("__time >= TIMESTAMP '2026-01-02' - INTERVAL '1' DAY", JANUARY_MS, None),
        ("__time >= '2026-01-01' OR channel = 'a'", None, None),
        ("NOT __time >= '2026-01-01'", None, None),
        ("channel = 'a'", None, None),
    ],
)  # fmt: skip
def test_conditions_on_time_bound_the_files(
    where: str, start_ms: int | None, end_ms: int | None
) -> None:
    found = compiled(f"SELECT count(*) FROM wiki WHERE {where}")

    assert (found.start_ms, found.end_ms) == (start_ms, end_ms)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1", "no table"),
        ("SELECT w.page FROM wiki w JOIN wiki v ON w.page = v.page", "join"),
        ("SELECT page FROM (SELECT page FROM wiki LIMIT 5)", "derived"),
        ("SELECT a FROM (SELECT added + 1 AS a FROM wiki)", "error in a derived relation"),
        ("SELECT a FROM (SELECT page AS a, channel AS A FROM wiki)", "case variants"),
        ("SELECT a FROM (SELECT page AS a, page AS b FROM wiki) GROUP BY b", "name"),
        ("WITH a AS (SELECT 1) SELECT page FROM wiki", "with"),
        ("WITH a AS (SELECT page FROM wiki LIMIT 1) SELECT page FROM a", "derived"),
        ("WITH a(b) AS (SELECT page FROM wiki) SELECT b FROM a", "with"),
        ("SELECT page FROM wiki UNION ALL SELECT page FROM wiki", "setoperation"),
        ("SELECT page FROM other", "datasource"),
        ("SELECT page FROM wiki TABLESAMPLE (10 PERCENT)", "sample"),
        ("SELECT row_number() OVER (ORDER BY page) FROM wiki", "window"),
        ("SELECT page FROM wiki WHERE page IN (SELECT channel FROM wiki)", "subquery"),
        ("SELECT page, count(*) FROM wiki GROUP BY ROLLUP (page)", "grouping sets"),
        ("SELECT first(page, channel) FROM wiki", "number of arguments"),
        ("SELECT max_by(page, added + 1) FROM wiki", "error in a comparison"),
        ("SELECT CAST(CAST('ab' AS BIGINT) AS STRING) FROM wiki", "error of constants"),
        ("SELECT added + CAST('1' AS BIGINT) FROM wiki", "error of constants"),
        ("SELECT avg(DISTINCT price) FROM wiki", "aggregate of distinct values"),
        ("SELECT stddev(added) FROM wiki", "aggregate"),
        ("SELECT approx_count_distinct(page, 0.01) FROM wiki", "number of arguments"),
        ("SELECT reverse(page) FROM wiki", "function"),
        ("SELECT round(price, -1) FROM wiki", "places of a rounded number"),
        ("SELECT date_format(__time, 'MMM') FROM wiki", "pattern"),
        ("SELECT -0::DOUBLE FROM wiki", "operator"),
        ("SELECT first_value(page) IGNORE NULLS FROM wiki", "name of a result"),
        ("SELECT date_format(__time, 'MMMM yyyy') FROM wiki", "pattern"),
        ("SELECT date_format(__time, 'dddd') FROM wiki", "pattern"),
        ("SELECT date_format(__time, 'yyyyyyyy') FROM wiki", "pattern"),
        ("SELECT date_format(__time, 'HH''T''''Z''') FROM wiki", "pattern"),
        ("SELECT page LIKE 'a!b' ESCAPE '!' FROM wiki", "pattern"),
        ("SELECT CAST(price AS STRING) FROM wiki", "cast"),
        ("SELECT CAST(price AS DECIMAL(10, 2)) FROM wiki", "cast"),
        ("SELECT CAST(added AS INT) > 5 FROM wiki", "error in a comparison"),
        ("SELECT cost % 2 FROM wiki", "operator"),
        ("SELECT cost * CAST(added AS DECIMAL(38, 2)) FROM wiki", "digits of a decimal"),
        ("SELECT sum(CAST(added AS DECIMAL(38, 2))) FROM wiki", "digits of a decimal"),
        ("SELECT bool_or(DISTINCT flag) FROM wiki", "aggregate of distinct values"),
        ("SELECT TRY_CAST(page AS TIMESTAMP) FROM wiki", "cast"),
        ("SELECT regexp_extract(page, '^a$', 0) FROM wiki", "argument that is not constant"),
        ("SELECT regexp_extract('00', '^([0-9]+)+$', 0) FROM wiki", "pattern"),
        ("SELECT n FROM (SELECT approx_count_distinct(page) AS n FROM wiki)", "derived"),
        ("SELECT sum(sum(added)) FROM wiki", "aggregate of an aggregate"),
        ("SELECT TRY_CAST(page AS BIGINT) FROM wiki", "cast"),
        ("SELECT page FROM wiki WHERE page = 1", "types of operands"),
        ("SELECT page FROM wiki WHERE page = NULL", "null"),
        ("SELECT page FROM wiki WHERE price IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)",
         "types of operands"),
        ("SELECT page FROM wiki WHERE page LIKE 'a\\\\_b'", "text with escapes"),
        ("SELECT page FROM wiki WHERE page RLIKE 'a'", "operator"),
        ("SELECT page FROM wiki WHERE __time > CURRENT_TIMESTAMP", "current time"),
        ("SELECT page FROM wiki WHERE __time > '2026-1-1'", "time as text"),
        ("SELECT page FROM wiki WHERE __time > TIMESTAMP '2026-02-30'", "time as text"),
        ("SELECT page FROM wiki WHERE __time > TIMESTAMP '2026-02-03 10:00:00 Europe/Paris'",
         "time as text"),
        ("SELECT page FROM wiki WHERE __time = TIMESTAMP '1582-10-10'",
         "day between two calendars"),
        ("SELECT page FROM wiki WHERE 10 / added > 1", "error in a comparison"),
        ("SELECT page FROM wiki WHERE contains(CAST(added + 1 AS STRING), '5')",
         "error in a condition"),
        ("SELECT page FROM wiki WHERE contains(CAST(added + 1 AS STRING), '5') OR flag",
         "error below AND or OR"),
        ("SELECT added + 1 > 5 FROM wiki", "error in a comparison"),
        ("SELECT added + 1 > 5.5 FROM wiki", "error in a comparison"),
        ("SELECT added + 1 IN (1, 2) FROM wiki", "error in a comparison"),
        ("SELECT added + 1 BETWEEN 1 AND 2 FROM wiki", "error in a comparison"),
        ("SELECT added + 1 FROM wiki LIMIT 5", "error beside a limit"),
        ("SELECT page FROM wiki ORDER BY added + 1", "error in an order"),
        ("SELECT count(added + 1) FROM wiki", "error in a test for null"),
        ("SELECT (added + 1) IS NULL FROM wiki", "error in a test for null"),
        ("SELECT missing FROM wiki", "name"),
        ("SELECT page FROM wiki WHERE (flag)", "condition"),
        ("SELECT page.x FROM wiki", "qualified name"),
        ("SELECT sketch FROM wiki", "type of a column"),
        ("SELECT page, added FROM wiki GROUP BY page", "name"),
        ("SELECT DISTINCT page FROM wiki ORDER BY added", "order of distinct rows"),
        ("SELECT page FROM wiki GROUP BY page HAVING max(added) > 1 ORDER BY sum(added)",
         "order beside having"),
        ("SELECT sum(added) AS added FROM wiki HAVING added > 1", "ambiguous name"),
        ("SELECT added + 1 AS price FROM wiki ORDER BY -price", "ambiguous name"),
        ("SELECT page AS a, channel AS A FROM wiki ORDER BY a", "ambiguous name"),
        ("SELECT page FROM wiki ORDER BY 2", "position of a column"),
        ("SELECT page FROM wiki SORT BY page", "sort by"),
        ("SELECT /*+ REPARTITION(3) */ page FROM wiki", "hint"),
        ("SELECT added > 1 AND added > 2 AND added > 3 AND added > 4 FROM wiki",
         "name of a result"),
        ("SELECT page FROM wiki LIMIT 1 + 1", "limit"),
        ("SELECT NULL FROM wiki", "type of a result"),
        ("SELECT page FROM wiki WHERE page = ?", "parameter"),
    ],
)  # fmt: skip
def test_other_statements_are_left_to_spark(sql: str, expected: str) -> None:
    assert reason(sql) == expected


def test_columns_that_differ_in_case_are_left_to_spark() -> None:
    query = checked_query("SELECT city FROM wiki").root

    with pytest.raises(NotCompiled, match="case variants"):
        compile_query(query, "wiki", (("City", "string"), ("city", "string")))


def test_names_with_other_letters_must_be_written_exactly() -> None:
    columns = (("größe", "bigint"),)

    assert compile_query(
        checked_query('SELECT "größe" FROM wiki').root, "wiki", columns
    ).read == columns  # fmt: skip
    with pytest.raises(NotCompiled, match="name"):
        compile_query(checked_query('SELECT "GRÖSSE" FROM wiki').root, "wiki", columns)
    with pytest.raises(NotCompiled, match="case of a name"):
        compile_query(checked_query('SELECT "GRÖßE" FROM wiki').root, "wiki", columns)


HOSTILE = "x'); COPY (SELECT 1) TO '/tmp/canary'; --"


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT count(*) FROM wiki WHERE page = '{HOSTILE.replace(chr(39), '')}'",
        f'SELECT page AS "{HOSTILE}" FROM wiki ORDER BY "{HOSTILE}"',
        f"SELECT page, '{HOSTILE.replace(chr(39), '')}' AS t FROM wiki",
        f'SELECT "{HOSTILE}".page FROM wiki AS "{HOSTILE}"',
        f"SELECT count(*) FROM wiki WHERE page LIKE '%{HOSTILE.replace(chr(39), '')}'",
        f"SELECT concat(page, '{HOSTILE.replace(chr(39), '')}') AS t FROM wiki GROUP BY 1",
    ],
)  # fmt: skip
def test_no_text_of_the_statement_is_in_the_sql(sql: str) -> None:
    found = compiled(sql)

    assert "canary" not in found.sql
    assert "COPY" not in found.sql
    assert re.sub(r'rows\."(?:page|channel)"', "", found.sql).count('"') == 0


def test_hostile_values_of_parameters_stay_parameters() -> None:
    found = compiled("SELECT count(*) FROM wiki WHERE page = ? AND added > ?", HOSTILE, 5)

    assert found.parameters == (HOSTILE, 5)
    assert "canary" not in found.sql


def test_names_of_columns_are_quoted() -> None:
    found = compiled('SELECT "a ""quoted"" {name}?" AS a FROM wiki')

    assert found.sql == 'SELECT rows."a ""quoted"" {name}?" AS c0 FROM rows'


@pytest.mark.parametrize("name", ["a\0b", "a\nb"])
def test_names_with_control_characters_are_left_to_spark(name: str) -> None:
    query = checked_query("SELECT * FROM wiki").root

    with pytest.raises(NotCompiled, match="name of a column"):
        compile_query(query, "wiki", ((name, "string"),))


def test_doubled_quotes_are_one() -> None:
    assert compiled("SELECT count(*) FROM wiki WHERE page = 'O''Hara'").parameters == ("O'Hara",)
    assert compiled("SELECT 'it''s' FROM wiki").columns == (("it's", "string"),)
    assert reason(r"SELECT count(*) FROM wiki WHERE page = 'O''Ha\ra'") == "text with escapes"


def test_equal_values_are_one_parameter() -> None:
    found = compiled("SELECT sum(CASE WHEN page = 'a' THEN added ELSE 0 END) AS s FROM wiki")

    assert found.parameters == ("a", 0)


def test_values_that_python_takes_for_equal_are_not() -> None:
    found = compiled("SELECT 1 AS a, 1L AS b, 1D AS c, TRUE AS d, 0D AS e, -0D AS f FROM wiki")

    assert [repr(one) for one in found.parameters] == ["1", "1.0", "True", "0.0", "-0.0"]


@pytest.mark.parametrize(
    ("value", "type_"),
    [(5, "int"), (1 << 40, "bigint"), (0.5, "double"), ("a", "string"), (True, "boolean")],
)
def test_parameters_have_the_types_of_sparks_client(value: object, type_: str) -> None:
    assert compiled("SELECT ? AS a FROM wiki", value).columns == (("a", type_),)


@pytest.mark.parametrize("now", ["CURRENT_TIMESTAMP", "current_timestamp()", "now()"])
def test_the_current_time_is_a_value(now: str) -> None:
    root = checked_query(f"SELECT count(*) FROM wiki WHERE __time >= {now} - INTERVAL '1' DAY").root

    found = compile_query(root, "wiki", COLUMNS, now_us=(JANUARY_MS + DAY_MS) * 1_000)

    assert found.parameters == (JANUARY_MS * 1_000,)
    assert found.start_ms == JANUARY_MS


def test_texts_that_are_no_unicode_are_left_to_spark() -> None:
    assert reason("SELECT ? AS a FROM wiki", "\ud800") == "text"
    assert reason("SELECT ? AS a FROM wiki", "a\0b") == "text"


def test_long_statements_are_left_to_spark() -> None:
    some = ", ".join(str(number) for number in range(100))
    many = ", ".join(str(number) for number in range(NODES_MAX))

    assert compiled(f"SELECT count(*) FROM wiki WHERE added IN ({some})").columns
    assert reason(f"SELECT count(*) FROM wiki WHERE added IN ({many})") == "size"
    for text in ("a" * 1_000_000, "ö" * 500_000):
        assert reason("SELECT count(*) FROM wiki WHERE page = ?", text) == "size"
    assert compiled("SELECT count(*) FROM wiki WHERE page = ?", "a" * 900_000).parameters


@pytest.mark.parametrize(
    "condition",
    ["NOT " * 290 + "flag", "(" * 130 + "flag" + ")" * 130, "NOT " * 290 + "max(flag)"],
)
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT page FROM wiki WHERE {}",
        "SELECT {} AS a FROM wiki GROUP BY flag",
        "SELECT page FROM wiki GROUP BY page HAVING {}",
        "SELECT page FROM wiki ORDER BY {}",
    ],
)
def test_deep_statements_are_left_to_spark(sql: str, condition: str) -> None:
    assert reason(sql.format(condition)) == "size"


def test_a_deep_statement_within_the_bound_is_compiled() -> None:
    deep = "NOT (added > 1 AND " * 30 + "flag" + ")" * 30

    assert compiled(f"SELECT page, {deep} AS a FROM wiki GROUP BY 1, 2 HAVING count(*) > 1").columns


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("9" * 4_400, "number"),
        ("-" + "9" * 4_400 + "L", "number"),
        ("9223372036854775808", "number"),
        ("price * 0." + "0" * 40 + "1", "number"),
        ("TIMESTAMP '2020-01-01' + INTERVAL 999999999 DAYS", "interval"),
        ("TIMESTAMP '2020-01-01' + INTERVAL 106740000 DAYS", "number"),
        ("TIMESTAMP '1910-01-01' - INTERVAL 106740000 DAYS", "number"),
        ("__time + INTERVAL 999999999 WEEKS", "interval"),
        ("?", "number"),
    ],
)
def test_numbers_out_of_the_range_of_their_type_are_left_to_spark(
    expression: str, expected: str
) -> None:
    value = 1 << 63
    assert reason(f"SELECT {expression} AS a FROM wiki", *([value] * expression.count("?"))) == (
        expected
    )
    if "INTERVAL" in expression:
        assert reason(f"SELECT page FROM wiki WHERE __time < {expression}") in {
            expected,
            "error in a comparison",
        }


def test_zeros_before_a_number_do_not_count() -> None:
    found = compiled("SELECT " + "0" * 5_000 + "7 AS a FROM wiki")

    assert found.parameters == (7,)


def test_expressions_that_would_double_are_left_to_spark() -> None:
    nested = "price"
    for _ in range(40):
        nested = f"(added / {nested})"

    assert reason(f"SELECT {nested} AS a FROM wiki") == "size"


def test_many_expressions_that_grow_take_little_memory() -> None:
    nested = "round(round(round(price)))"
    items = ", ".join(f"{nested} AS a{number}" for number in range(300))
    tracemalloc.start()
    try:
        assert reason(f"SELECT {items} FROM wiki") == "size"
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
    long = "upper(upper(upper(page || ?)))"
    assert reason(f"SELECT {long} AS a, count(*) FROM wiki GROUP BY 1", "ö" * 400_000) == "size"


def test_an_overflow_of_a_sum_is_checked_for_groups_that_are_left_out() -> None:
    found = compiled("SELECT page FROM wiki GROUP BY page HAVING sum(added) > 5 AND page > 'a'")

    assert "WHERE CASE WHEN COALESCE(" in found.sql
    assert found.sql.endswith("ELSE error('left to Spark: values of a group') END")


def test_every_clause_of_spark_is_compiled_or_refused() -> None:
    columns = (("n", "int"), ("s", "string"))
    reasons = set()
    for sql in clauses():
        checked = checked_query(sql)
        for table in checked.tables or {"t1"}:
            try:
                assert compile_query(checked.root, table, columns).columns
            except NotCompiled as error:
                reasons.add(error.reason)

    assert {"join", "pipe", "window", "grouping sets", "with"} <= reasons


def test_duckdb_understands_the_sql_of_generated_statements(tmp_path: Path) -> None:
    engine = duckdb.connect(config={"threads": 1})
    files = write_rows(3, tmp_path, is_plain=True).files
    paths = ", ".join(f"'{file.path}'" for file in files)
    engine.execute(f"CREATE VIEW rows AS SELECT * FROM read_parquet([{paths}])")
    compiled_count = 0
    for seed in range(2_000_000, 2_000_200):
        root = checked_query(statement_of(seed).sql).root
        try:
            query = compile_query(root, "wiki", fast_rows_kit.COLUMNS)
        except NotCompiled:
            continue
        compiled_count += 1
        try:
            names = [
                column[0] for column in engine.execute(query.sql, query.parameters).description
            ]
        except (duckdb.InvalidInputException, duckdb.OutOfRangeException):
            continue  # Spark answers
        assert names == [f"c{number}" for number in range(len(query.columns))]
    engine.close()

    assert compiled_count > 100


def test_a_query_in_parentheses_is_the_relation() -> None:
    found = compiled(
        "SELECT p, sum(n) AS s FROM (SELECT __time AS t, page AS p, added AS n FROM wiki"
        " WHERE __time < '2026-01-02') AS v WHERE v.t >= '2026-01-01' GROUP BY p"
    )

    assert [name for name, _ in found.read] == ["__time", "page", "added"]
    assert found.columns == (("p", "string"), ("s", "bigint"))
    assert (found.start_ms, found.end_ms) == (JANUARY_MS, JANUARY_MS + DAY_MS)


def test_definitions_are_queries_in_parentheses() -> None:
    found = compiled(
        "WITH wiki AS (SELECT page AS p, __time FROM wiki), v AS (SELECT p FROM wiki WHERE"
        " __time >= '2026-01-01') SELECT w.p, count(*) AS n FROM V AS w GROUP BY w.p"
    )

    assert found.sql.count("FROM (SELECT") == 3
    assert found.columns == (("p", "string"), ("n", "bigint"))
    assert found.start_ms == JANUARY_MS


def test_many_definitions_are_left_to_spark() -> None:
    names = [f"a{number}" for number in range(600)]
    many = ", ".join(
        f"{name} AS (SELECT page FROM {before})" for before, name in pairwise(["wiki", *names])
    )

    assert reason(f"WITH {many} SELECT page FROM {names[-1]}") == "size"


def test_times_of_a_constant_are_computed() -> None:
    found = compiled(
        "SELECT count(*) FROM wiki WHERE"
        " __time >= date_trunc('MONTH', TIMESTAMP '2026-03-31 10:00:00' - INTERVAL '1' MONTH)"
        " AND __time < TIME_FLOOR(TIMESTAMP '2026-02-01 00:04:00', 'PT5M')"
    )

    february_ms = JANUARY_MS + 31 * DAY_MS
    assert (found.start_ms, found.end_ms) == (february_ms, february_ms)


def test_every_recorded_statement_of_superset_is_compiled() -> None:
    recorded = Path(__file__).parents[1] / "conformance/recorded/superset.json"
    types = {"country": "string", "city": "string", "added": "bigint", "share": "double"}
    columns = (("__time", "timestamp"), *types.items())

    for statements in json.loads(recorded.read_text(encoding="utf-8")).values():
        for sql in statements:
            found = compile_query(checked_query(sql).root, "tool_edits", columns)
            assert found.start_ms, sql


def test_a_floor_of_a_time_is_one_division() -> None:
    found = compiled("SELECT TIME_FLOOR(__time, 'PT5M'), count(*) FROM wiki GROUP BY 1")

    assert found.sql.count("%") == 2
    assert found.columns[0] == (
        "timestamp_millis((unix_millis(__time) - pmod(unix_millis(__time), 300000)))",
        "timestamp",
    )


def test_errors_of_groups_are_raised_wherever_they_are_compared() -> None:
    found = compiled(
        "SELECT page, sum(added) + 1 > 5 AS a FROM wiki GROUP BY page"
        " HAVING count(flag) > 0 AND sum(added) / sum(price) > 1"
    )

    assert found.sql.count("<> 1234567890123456789") == 2


def test_a_group_has_rows() -> None:
    grouped = compiled("SELECT page FROM wiki GROUP BY page HAVING sum(price) / count(*) > 1")

    assert "division by zero" not in grouped.sql
    assert "division by zero" in compiled("SELECT sum(price) / count(*) AS m FROM wiki").sql


def test_the_page_lists_every_reason() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs/concepts/fast-engine.md").read_text(encoding="utf-8")
    modules = (
        *("aggregates", "casts", "compiler", "decimals", "expressions", "fragments"),
        *("functions", "literals", "number_functions"),
    )
    reasons = {
        reason
        for name in modules
        for reason in re.findall(
            r'NotCompiled\("([^"]+)"',
            (root / f"src/penstock/fastpath/{name}.py").read_text(encoding="utf-8"),
        )
    }

    assert len(reasons) > 50
    assert [reason for reason in sorted(reasons) if f"`{reason}`" not in page] == []
