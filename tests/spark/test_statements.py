"""Only statements that read reach Spark."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.core.sql import tree
from penstock.spark.sql.query_statement import read_statement, with_stored_names
from penstock.spark.sql_guard import (
    error_without_places,
    place_in,
    relocated_error,
    without_paths,
)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "select 1;",
        "  -- why\n/* and /* how */ */ SELECT 1",
        'SELECT "insert into x" FROM "drop table"',
        "SELECT 'it''s; DROP TABLE x', r'\\', '\\''",
        "(SELECT 1) UNION ALL (SELECT 2)",
        "VALUES (1), (2)",
        "TABLE flights",
        "WITH a AS (SELECT 1), b(x, y) AS (SELECT 1, 2) SELECT * FROM a, b",
        'WITH "as" AS (SELECT ")") (SELECT * FROM "as")',
        "WITH a (SELECT 1) SELECT * FROM a",
        "WITH RECURSIVE t(n) MAX RECURSION LEVEL 9 AS (SELECT 1) SELECT * FROM t",
        "WITH RECURSIVE t(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM t) SELECT * FROM t",
        "SELECT transform(array(1), x -> x + 1)",
        "SELECT * FROM a JOIN b USING (id)",
        "SELECT /*+ BROADCAST(a) */ * FROM a",
        "SELECT reflect FROM t",
        "SELECT from_xml(a, 'b INT', map('rowTag', 'item', 'mode', 'FAILFAST'))",
        "SELECT builtin.upper(a), '$\\{env:HOME}', '$1' FROM t",
        'SELECT "a""b", `c``d` FROM t',
    ],
)
def test_queries_pass(sql: str) -> None:
    assert read_statement(sql).is_query


@pytest.mark.parametrize(
    "sql",
    [
        "EXPLAIN SELECT 1",
        "explain formatted with a as (select 1) select * from a",
        "SHOW TABLES",
        "DESCRIBE TABLE flights",
        "DESC flights",
    ],
)
def test_statements_about_tables_pass(sql: str) -> None:
    assert not read_statement(sql).is_query


@pytest.mark.parametrize(
    ("sql", "place"),
    [
        ("INSERT INTO x SELECT 1", "line 1, column 1"),
        ("\n  drop table x", "line 2, column 3"),
        ("CREATE TABLE x AS SELECT 1", "line 1, column 1"),
        ("WITH a AS (SELECT 1)\nINSERT INTO x SELECT * FROM a", "line 2, column 1"),
        ("WITH a AS (SELECT 1), b AS (SELECT 2) DELETE FROM x", "line 1, column 39"),
        ("WITH a (SELECT 1) INSERT INTO t SELECT stack(1, 2) AS (b)", "line 1, column 19"),
        ("FROM a INSERT INTO b SELECT *", "line 1, column 1"),
        ("EXPLAIN INSERT INTO x SELECT 1", "line 1, column 9"),
        ("SET spark.sql.ansi.enabled = false", "line 1, column 1"),
        ("CACHE TABLE x", "line 1, column 1"),
        ("ADD JAR x", "line 1, column 1"),
        ("BEGIN SELECT 1; END", "line 1, column 1"),
        ("EXECUTE IMMEDIATE 'select 1'", "line 1, column 1"),
        ("/* SELECT 1 */ TRUNCATE TABLE x", "line 1, column 16"),
        ("SELECT java_method('a', 'b')", "line 1, column 8"),
        ("SELECT `reflect` ('a', 'b')", "line 1, column 8"),
        ('SELECT system.builtin."try_reflect"(1)', "line 1, column 23"),
        ("SELECT IDENTIFIER('refl' || 'ect')", "line 1, column 8"),
        ("SELECT IDENTIFIER('refl' || 'ect')('a')", "line 1, column 35"),
        ("SELECT * FROM (SELECT TRANSFORM(a) USING 'cat' AS (b) FROM t)", "line 1, column 36"),
        ("SELECT TRANSFORM(1) USING ? AS (x string)", "line 1, column 21"),
        ("FROM t MAP a USING 'id' AS b", "line 1, column 1"),
        ("SELECT * FROM (FROM t REDUCE a USING :x AS b)", "line 1, column 16"),
        ("SELECT '${env:HOME}'", "line 1, column 9"),
        ("SELECT 1 --${system:line.separator} x", "line 1, column 12"),
        ("SELECT input_file_name()", "line 1, column 8"),
        ("SELECT default.f(1)", "line 1, column 16"),
        ("SELECT from_xml(a, 'b INT', map('rowValidationXSDPath', 'x'))", "line 1, column 8"),
        ("SELECT from_xml(a, 'b INT', map(concat('row', 'Tag'), 'x'))", "line 1, column 8"),
        ("SELECT schema_of_xml(a, map('row' 'ValidationXSDPath', 'x'))", "line 1, column 8"),
        ("SELECT from_json('{}', ?)", "line 1, column 24"),
        ("EXPLAIN SELECT a, from_csv(b,\n '{}')", "line 2, column 2"),
        ("DESCRIBE EXTENDED EXTENDED EXTENDED x AS JSON", "line 1, column 19"),
        ("DESC x EXTENDED", "line 1, column 8"),
        ("DESCRIBE TABLE FORMATTED formatted x", "line 1, column 26"),
        ("SELECT 1) ; DROP VIEW x --", "line 1, column 9"),
        ("SELECT 1; SELECT 2", "line 1, column 9"),
        ("SHOW CREATE TABLE x", "line 1, column 6"),
        ("DESCRIBE DIRECTORY '/a' USING csv SELECT n", "line 1, column 10"),
        ("DESCRIBE x USING csv", "line 1, column 12"),
        ("\u017fHOW TABLES", "line 1, column 1"),
        ("DESCRIBE DATABASE EXTENDED x", "line 1, column 10"),
        ("EXPLAIN SHOW TABLES", "line 1, column 9"),
        ("SELECT 'open", "line 1, column 8"),
        ("SELECT $$text$$", "line 1, column 8"),
        ("SELECT 1 /* open", "line 1, column 10"),
    ],
)
def test_everything_else_is_refused_with_its_place(sql: str, place: str) -> None:
    with pytest.raises(InvalidRequest, match=place):
        read_statement(sql)


@pytest.mark.parametrize(
    "table",
    [
        "TABLE(EXTERN('{\"p\":\"hush\"}', '{}'))",
        "table ( /* */ extern(?) ) (a VARCHAR)",
        "TABLE(EXTERN('{}' AS '{\"p\":\"hush\"}'))",
    ],
)
def test_files_are_read_by_tasks_alone(table: str) -> None:
    with pytest.raises(InvalidRequest, match=r"(?s)line 1, column .* INSERT INTO") as caught:
        read_statement(f"SELECT * FROM {table}")
    assert "hush" not in str(caught.value)
    assert read_statement("SELECT extern FROM t AS extern (a)").is_query


@pytest.mark.parametrize(
    ("sql", "remedy"),
    [
        ("INSERT INTO x SELECT 1", "pass it to penstock sql, or POST it to /druid/v2/sql/task"),
        ("WITH a AS (SELECT 1) REPLACE INTO x SELECT 1", "/druid/v2/sql/task"),
        ("SELEC 1", "line 1, column 1: did you mean SELECT[?] a query begins with"),
        ("EXPLAIN SLECT 1", "line 1, column 9: did you mean SELECT[?]"),
        ("repalce into x select 1", "did you mean REPLACE[?]"),
        ("DROP TABLE x", "penstock segment mark-unused"),
        ("DELETE FROM x", "replace the time chunks that contain them: REPLACE INTO"),
        ("ALTER TABLE x ADD COLUMN y INT", "new rows have the columns and types of the spec"),
        ("CREATE TABLE x AS SELECT 1", "the first rows create a datasource: use INSERT INTO"),
        ("GRANT x", "column 1: a query begins with .* INSERT INTO and REPLACE INTO write rows"),
    ],
)
def test_a_refused_statement_names_the_way_that_exists(sql: str, remedy: str) -> None:
    with pytest.raises(InvalidRequest, match=remedy):
        read_statement(sql)


@pytest.mark.parametrize(
    "sql",
    ["DELETE FROM x WHERE y = 1", "update x set y = 1", "MERGE INTO x USING z", "TRUNCATE TABLE x"],
)
def test_who_wants_to_change_rows_is_told_how(sql: str) -> None:
    with pytest.raises(InvalidRequest, match="REPLACE INTO … OVERWRITE"):
        read_statement(sql)


@pytest.mark.parametrize("sql", ["", " ;; ", "-- nothing", "WITH a AS (SELECT 1)", "EXPLAIN"])
def test_what_is_no_statement_is_refused(sql: str) -> None:
    with pytest.raises(InvalidRequest):
        read_statement(sql)


def test_an_explanation_has_no_paths_and_a_long_one_is_searched_once() -> None:
    plan = "Scan parquet [a] Location: InMemoryFileIndex(1 paths)[file:/data/x], ReadSchema: a"
    assert "/data" not in without_paths(plan)
    assert without_paths("s3a://bucket/x y") == "… y"
    long = "a." * 450_000
    assert without_paths(long) == long


def test_names_of_datasources_are_spelt_as_they_are_stored() -> None:
    nfc, nfd = "Caf\u00e9", "Cafe\u0301"
    known = {nfc, "web"}
    for sql, spelt in (
        (f'SELECT 1 FROM "{nfd}"', f'SELECT 1 FROM "{nfc}"'),
        (f"SELECT `{nfd}`.x FROM `{nfd}`", f"SELECT `{nfc}`.x FROM `{nfc}`"),
        (f'SELECT 1 FROM web JOIN "{nfd}" USING (x)', f'SELECT 1 FROM web JOIN "{nfc}" USING (x)'),
        (f'DESCRIBE "{nfd}"', f'DESCRIBE "{nfc}"'),
        # Columns and texts are compared as they are.
        (f"SELECT \"{nfd}\", '{nfd}' FROM web", f"SELECT \"{nfd}\", '{nfd}' FROM web"),
        (f'SELECT 1 FROM "{nfd}x"', f'SELECT 1 FROM "{nfd}x"'),
    ):
        assert with_stored_names(sql, known) == spelt
    old = f'SELECT 1 FROM "{nfd}"'
    assert with_stored_names(old, {nfc, nfd}) == old


@pytest.mark.parametrize(
    ("sql", "command"),
    [
        ("DESCRIBE EXTENDED x", "DESCRIBE x"),
        ("describe table formatted x y", "describe table x y"),
        ("DESC FUNCTION EXTENDED upper", "DESC FUNCTION EXTENDED upper"),
        ('DESCRIBE EXTENDED "extended" "formatted"', 'DESCRIBE "extended" "formatted"'),
    ],
)
def test_a_described_table_shows_no_place(sql: str, command: str) -> None:
    assert read_statement(sql).command == command


@pytest.mark.parametrize(
    ("said", "told", "without"),
    [
        ("[P] near 'x'. (line 2, pos 7)", "[P] near 'x'. (line 1, column 8)", "[P] near 'x'."),
        ("[U] no `a`; line 3 pos 0;", "[U] no `a`; line 2, column 1;", "[U] no `a`;"),
        ("== SQL (line 3, position 3) ==", "== SQL (line 2, column 3) ==", "== SQL =="),
        ("near ')' (line 4, pos 0)", "near ')' (line 2, column 7)", "near ')'"),
        (
            "at or near ')' (line 4, pos 0)\n\n== SQL ==\n(\nSELECT 1\nFROM x\n)\n^^^\n",
            "at or near end of input (line 2, column 7)\n\n== SQL ==\nSELECT 1\nFROM x",
            "at or near end of input\n\n== SQL ==\nSELECT 1\nFROM x",
        ),
        (
            "near 'x' (line 3, pos 5)\n\n== SQL ==\n(\nSELECT 1\nFROM x\n-----^^^\n)\n",
            "near 'x' (line 2, column 6)\n\n== SQL ==\nSELECT 1\nFROM x\n-----^^^",
            "near 'x'\n\n== SQL ==\nSELECT 1\nFROM x",
        ),
        (
            "== SQL (line 3, position 6) ==\nFROM x\n     ^\n",
            "== SQL (line 2, column 6) ==\nFROM x\n     ^\n",
            "== SQL ==\nFROM x",
        ),
        ("the outline 1 position", "the outline 1 position", "the outline 1 position"),
    ],
)
def test_places_are_lines_and_columns_of_the_users_text(said: str, told: str, without: str) -> None:
    """Spark counts `pos` from 0 and `position` from 1, and its text has a line before the query."""
    assert relocated_error(said, "SELECT 1\nFROM x") == told
    assert error_without_places(said, "SELECT 1\nFROM x") == without
    shown = relocated_error("(line 1, pos 4)", "a + + b", first_line=1)
    assert shown == "(line 1, column 5)"


# Parts of names and values that look like what Spark writes about places.
_PARTS = (
    *(
        "line 3, pos 4",
        "line 9 position 9",
        "; line 3 pos 4",
        " (line 3, pos 4)",
        ";",
        ")",
        "'",
        "`",
    ),
    *("SQLSTATE: 22018", " SQLSTATE: 42601 (line 3, pos 4)", " SQLSTATE: 42703; line 2 pos 7"),
    *("\n", "\n\n== SQL ==\n", "\n== SQL (line 9, position 9) ==\n", "\n(\n", "\n)", "^^^", "x"),
)


def _marked(sql: str) -> str:
    return "".join(f"\n{line}\n{'^' * len(line)}" for line in sql.split("\n")).rstrip("\n")


@given(st.lists(st.sampled_from(_PARTS), max_size=8).map("".join))
def test_names_and_values_that_look_like_places_are_unchanged(value: str) -> None:
    raised = f"[USER_RAISED_EXCEPTION] {value} SQLSTATE: P0001"
    assert relocated_error(raised, "SELECT 1") == error_without_places(raised, "SELECT 1") == raised

    before = f"[UNRESOLVED_COLUMN] no column with name `{value}`. SQLSTATE: 42703"
    found = relocated_error(f"{before}; line 3 pos 6", "SELECT 1\nFROM x")
    assert found == f"{before}; line 2, column 7"
    assert place_in(found) == "line 2, column 7"
    assert error_without_places(f"{before}; line 3 pos 6", "SELECT 1\nFROM x") == before

    query = f"SELECT cast('{value}' AS int) FROM x"
    before = f"[CAST_INVALID_INPUT] The value '{value}' is malformed. SQLSTATE: 22018\n== SQL"
    said = f"{before} (line 2, position 8) =={_marked(query)}"
    assert relocated_error(said, query) == f"{before} (line 1, column 8) =={_marked(query)}"
    assert error_without_places(said, query) == f"{before} ==\n{query}"

    query = f"SELECT b c\n, '{value}'"
    before = "[PARSE_SYNTAX_ERROR] Syntax error at or near 'c'. SQLSTATE: 42601"
    marked = query.replace("b c", "b c\n---------^^^", 1)
    said = f"{before} (line 2, pos 9)\n\n== SQL ==\n(\n{marked}\n)"
    assert relocated_error(said, query) == f"{before} (line 1, column 10)\n\n== SQL ==\n{marked}"
    assert error_without_places(said, query) == f"{before}\n\n== SQL ==\n{query}"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a FROM t;",
        "EXPLAIN /* why */ SELECT\n a -- b\n FROM t",
        "DESCRIBE QUERY SELECT a FROM t",
        "SELECT STRLEN(a), TIME_FLOOR(__time, 'PT1H') FROM druid.t",
        "SELECT a FROM druid.t",
    ],
)
def test_a_statement_has_the_tree_of_the_text_that_spark_gets(sql: str) -> None:
    statement = read_statement(sql)
    assert statement.checked is not None
    assert statement.root is statement.checked.root
    assert statement.checked.text == statement.query
    calls = set()
    for node in tree.walk(statement.checked.root):
        for token in statement.checked.tokens[node.start : node.end]:
            assert statement.query[token.position :].startswith(token.raw)
        if isinstance(node, tree.Call):
            calls.add(node.name[-1])
        if isinstance(node, tree.Table):
            assert node.parts == ("t",)
    assert calls <= {"length", "date_trunc"}


def test_a_command_has_no_tree() -> None:
    assert read_statement("SHOW TABLES").root is None
