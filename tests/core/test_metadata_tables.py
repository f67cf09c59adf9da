"""Metadata tables in statements: their names, what a query needs of them, and who refuses them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.core.sql.checked_query import checked_query
from penstock.core.sql.metadata_reads import MetadataRead
from penstock.core.sql.metadata_tables import METADATA_TABLES

# Druid's documentation, page "SQL metadata tables", and the signatures in its source: names that
# begin with # are BIGINT, all others VARCHAR.
OF_DRUID = {
    "INFORMATION_SCHEMA.SCHEMATA": """
        CATALOG_NAME SCHEMA_NAME SCHEMA_OWNER DEFAULT_CHARACTER_SET_CATALOG
        DEFAULT_CHARACTER_SET_SCHEMA DEFAULT_CHARACTER_SET_NAME SQL_PATH""",
    "INFORMATION_SCHEMA.TABLES": """
        TABLE_CATALOG TABLE_SCHEMA TABLE_NAME TABLE_TYPE IS_JOINABLE IS_BROADCAST""",
    "INFORMATION_SCHEMA.COLUMNS": """
        TABLE_CATALOG TABLE_SCHEMA TABLE_NAME COLUMN_NAME #ORDINAL_POSITION COLUMN_DEFAULT
        IS_NULLABLE DATA_TYPE #CHARACTER_MAXIMUM_LENGTH #CHARACTER_OCTET_LENGTH #NUMERIC_PRECISION
        #NUMERIC_PRECISION_RADIX #NUMERIC_SCALE #DATETIME_PRECISION CHARACTER_SET_NAME
        COLLATION_NAME #JDBC_TYPE""",
    "INFORMATION_SCHEMA.ROUTINES": """
        ROUTINE_CATALOG ROUTINE_SCHEMA ROUTINE_NAME ROUTINE_TYPE IS_AGGREGATOR SIGNATURES""",
    "sys.segments": """
        segment_id datasource start end #size version #partition_num #num_replicas #num_rows
        #is_active #is_published #is_available #is_realtime #is_overshadowed shard_spec dimensions
        metrics projections last_compaction_state #replication_factor""",
    "sys.servers": """
        server host #plaintext_port #tls_port server_type tier #curr_size #max_size #is_leader
        start_time version build_revision labels #available_processors #total_memory""",
    "sys.server_segments": "server segment_id",
    "sys.tasks": """
        task_id group_id type datasource created_time queue_insertion_time status runner_status
        #duration location host #plaintext_port #tls_port error_msg""",
    "sys.supervisors": """
        supervisor_id datasource state detailed_state #healthy type source #suspended spec""",
    "sys.queries": "id engine state info",
}


def test_names_and_types_are_those_of_druid() -> None:
    found = {
        one.full_name: [("#" if column.is_number else "") + column.name for column in one.columns]
        for one in METADATA_TABLES.values()
    }
    assert found == {name: text.split() for name, text in OF_DRUID.items()}


def text_of(sql: str) -> str:
    return checked_query(sql, has_metadata=True).text


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("SELECT 1 FROM sys.segments", "SELECT 1 FROM `sys/segments` AS `segments`"),
        ('SELECT 1 FROM "SYS"."Segments"', "SELECT 1 FROM `sys/segments` AS `Segments`"),
        (
            "SELECT TABLES.TABLE_NAME FROM INFORMATION_SCHEMA.TABLES",
            "SELECT TABLES.TABLE_NAME FROM `information_schema/tables` AS `TABLES`",
        ),
        ("SELECT s.size FROM sys.segments s", "SELECT s.size FROM `sys/segments` s"),
        ("TABLE sys.tasks", "TABLE `sys/tasks`"),
        (
            "SELECT sys.segments.size, sys.segments.* FROM sys.segments",
            "SELECT segments.size, segments.* FROM `sys/segments` AS `segments`",
        ),
        (
            "SELECT 1 FROM sys.tasks TABLESAMPLE (5 ROWS) WHERE TRUE",
            "SELECT 1 FROM `sys/tasks` TABLESAMPLE ( 5 ROWS ) AS `tasks` WHERE TRUE",
        ),
        (
            'SELECT "druid"."clicks"."n" AS "n" FROM "druid"."clicks"',
            'SELECT "clicks"."n" AS "n" FROM "clicks"',
        ),
        # Without such a table, these are fields of columns.
        ("SELECT sys.segments.size FROM clicks", "SELECT sys.segments.size FROM clicks"),
        ("SELECT CAST(a AS VARCHAR) FROM t", "SELECT CAST(a AS STRING) FROM t"),
        ("SELECT CAST(a AS VARCHAR(3)) FROM t", "SELECT CAST(a AS VARCHAR(3)) FROM t"),
    ],
)
def test_spark_gets_names_that_it_knows(sql: str, text: str) -> None:
    assert text_of(sql) == text


def test_a_name_of_a_metadata_table_is_none_of_a_datasource() -> None:
    found = checked_query("SELECT 1 FROM sys.segments, segments s2, druid.tasks", has_metadata=True)
    assert found.tables == {"segments", "tasks"}
    assert [one.table.full_name for one in found.metadata] == ["sys.segments"]
    own = checked_query(
        "WITH tasks AS (SELECT 1 FROM sys.tasks) SELECT * FROM tasks", 0, has_metadata=True
    )
    assert not own.tables


def read_of(sql: str) -> MetadataRead:
    (found,) = checked_query(sql, has_metadata=True).metadata
    return found


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT size FROM sys.segments WHERE Datasource = 'a'", {"size", "datasource"}),
        ("SELECT count(*) FROM sys.segments", set()),
        ('SELECT count(*) FROM sys.segments ORDER BY max("END")', {"end"}),
        ("SELECT 1 FROM sys.segments s JOIN (SELECT 1 AS version) USING (version)", {"version"}),
        ("SELECT (SELECT max(s.num_rows) FROM sys.segments s WHERE s.size = t.x) FROM t",
         {"num_rows", "size"}),
        ("SELECT count(s.*) FROM sys.segments s", None),
        ("SELECT count(DISTINCT *) FROM sys.segments", None),
        ("SELECT hash(*) FROM sys.segments", None),
        ("SELECT * EXCEPT (size) FROM sys.segments", None),
        ("TABLE sys.segments", None),
        ("SELECT a FROM sys.segments AS s (a)", None),
        ("SELECT a FROM (sys.segments) AS s (a)", None),
        ("SELECT 1 FROM sys.segments NATURAL JOIN t", None),
        ("SELECT 1 FROM sys.segments |> WHERE size > 1", None),
        ("SELECT 1 FROM sys.segments PIVOT (sum(size) FOR version IN ('a'))", None),
    ],
)  # fmt: skip
def test_columns_that_a_query_cannot_mean_are_not_needed(
    sql: str, columns: set[str] | None
) -> None:
    every = {one.name for one in METADATA_TABLES["sys", "segments"].columns}
    assert read_of(sql).columns == (every if columns is None else columns)


@pytest.mark.parametrize(
    ("where", "keys"),
    [
        ("datasource = 'a'", {"a"}),
        ("'a' = \"DATASOURCE\" AND is_active = 1", {"a"}),
        ("(size > 1 AND (segments.datasource IN ('a', 'b')))", {"a", "b"}),
        ("datasource = 'it''s'", None),  # the parser does not read escapes
        ("datasource IN ('a', 'b') AND datasource = 'c'", {"a", "b"}),  # more than necessary
        ("datasource = 'a' OR size = 1", None),
        ("NOT datasource = 'a'", None),
        ("datasource NOT IN ('a')", None),
        ("datasource IN ('a', version)", None),
        ("datasource IN (SELECT 'a')", None),
        ("datasource <> 'a'", None),
        ("lower(datasource) = 'a'", None),
        ("datasource = 'a' COLLATE UTF8_LCASE", None),
        ("datasource = 'a' = TRUE", None),
        ("t.datasource = 'a'", None),
        ("datasource = version", None),
        ("datasource LIKE 'a'", None),
    ],
)
def test_rows_that_no_condition_allows_are_not_needed(where: str, keys: set[str] | None) -> None:
    assert read_of(f"SELECT 1 FROM sys.segments WHERE {where}").keys == keys


@pytest.mark.parametrize(
    ("sql", "keys"),
    [
        ("SELECT 1 FROM sys.segments", None),
        ("SELECT 1 FROM sys.segments s WHERE s.datasource = 'a'", {"a"}),
        ("SELECT 1 FROM sys.segments s WHERE segments.datasource = 'a'", None),
        ("SELECT 1 FROM sys.segments, t WHERE datasource = 'a'", None),
        ("SELECT 1 FROM sys.segments s LEFT JOIN t ON datasource = 'a' WHERE s.size = 1", None),
        ("SELECT 1 FROM sys.segments TABLESAMPLE (5 ROWS) WHERE datasource = 'a'", None),
        ("SELECT 1 FROM sys.segments AS s (datasource) WHERE datasource = 'a'", None),
        (
            (
                "SELECT 1 FROM sys.segments WHERE datasource = 'a'"
                " UNION SELECT 1 FROM sys.segments WHERE datasource = 'b'"
            ),
            {"a", "b"},
        ),
        (
            (
                "SELECT 1 FROM sys.segments WHERE datasource = 'a'"
                " AND size = (SELECT max(size) FROM sys.segments)"
            ),
            None,
        ),
        (
            "SELECT (SELECT 1 FROM sys.segments WHERE t.datasource = 'a') FROM t",
            None,
        ),
        ("SELECT 1 FROM INFORMATION_SCHEMA.COLUMNS WHERE TABLE_NAME = 'a'", {"a"}),
        ("SELECT 1 FROM sys.tasks WHERE datasource = 'a'", None),
    ],
)
def test_every_place_of_a_table_must_have_the_condition(sql: str, keys: set[str] | None) -> None:
    assert read_of(sql).keys == keys


@pytest.mark.parametrize(
    "sql",
    [
        "WITH wiki AS (SELECT 1 AS x) SELECT * FROM druid.wiki",
        'WITH a AS (SELECT 1 AS x), WIKI AS (SELECT 2) SELECT 1 FROM a, "druid"."Wiki"',
        "WITH wiki AS (SELECT 1) SELECT (SELECT max(x) FROM druid.wiki)",
        "WITH wiki AS (SELECT 1), b AS (SELECT * FROM druid.wiki) SELECT * FROM b",
        "WITH RECURSIVE wiki AS (SELECT * FROM druid.wiki) SELECT * FROM wiki",
        "WITH `sys/tasks` AS (SELECT 1) SELECT * FROM sys.tasks",
    ],
)
def test_a_definition_does_not_take_the_place_of_a_table_with_a_schema(sql: str) -> None:
    with pytest.raises(InvalidRequest, match="is hidden by a definition of WITH, line 1, column"):
        text_of(sql)


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        (
            "WITH wiki AS (SELECT * FROM druid.wiki) SELECT * FROM wiki",
            "WITH wiki AS (SELECT * FROM wiki) SELECT * FROM wiki",
        ),
        (
            "WITH a AS (SELECT * FROM druid.b), b AS (SELECT 1) SELECT * FROM a, b",
            "WITH a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a, b",
        ),
        (
            "SELECT * FROM (WITH wiki AS (SELECT 1) SELECT * FROM wiki), druid.wiki",
            "SELECT * FROM (WITH wiki AS (SELECT 1) SELECT * FROM wiki), wiki",
        ),
    ],
)
def test_a_definition_elsewhere_hides_no_table(sql: str, text: str) -> None:
    assert text_of(sql) == text


NAMES = ("a", "b", "c")
VERSIONS = ("1", "a")

# A condition: its text, and for which datasources and versions it is true; None stands for null.
Condition = tuple[str, dict[tuple[str | None, str], bool | None]]
PLACES = [*itertools.product((*NAMES, None), VERSIONS)]


def equal(column: int, name: str, value: str, *, is_turned: bool) -> Condition:
    sides = [name, f"'{value}'"]
    text = " = ".join(reversed(sides) if is_turned else sides)
    return text, {at: None if at[column] is None else at[column] == value for at in PLACES}


def within(values: list[str], *, is_not: bool) -> Condition:
    listed = ", ".join(f"'{one}'" for one in values)
    text = f"datasource {'NOT ' if is_not else ''}IN ({listed})"
    return text, {at: None if at[0] is None else (at[0] in values) != is_not for at in PLACES}


def both(one: Condition, other: Condition, word: str) -> Condition:
    decisive = word == "OR"

    def join(left: bool | None, right: bool | None) -> bool | None:
        if decisive in (left, right):
            return decisive
        return None if None in (left, right) else not decisive

    text = f"({one[0]}) AND {other[0]}" if word == "AND" else f"({one[0]} OR {other[0]})"
    return text, {at: join(one[1][at], other[1][at]) for at in PLACES}


def negated(one: Condition) -> Condition:
    truth = {at: None if value is None else not value for at, value in one[1].items()}
    return f"(NOT ({one[0]}))", truth


ATOMS = st.one_of(
    st.builds(equal, st.just(0), st.just("datasource"), st.sampled_from(NAMES),
              is_turned=st.booleans()),
    st.builds(equal, st.just(0), st.just("s.DATASOURCE"), st.sampled_from(NAMES),
              is_turned=st.booleans()),
    st.builds(equal, st.just(1), st.just("version"), st.sampled_from(VERSIONS),
              is_turned=st.booleans()),
    st.builds(within, st.lists(st.sampled_from(NAMES), min_size=1), is_not=st.booleans()),
)  # fmt: skip
CONDITIONS = st.recursive(
    ATOMS,
    lambda inner: (
        st.builds(both, inner, inner, st.sampled_from(["AND", "OR"])) | st.builds(negated, inner)
    ),
    max_leaves=8,
)


@given(CONDITIONS)
def test_no_row_that_a_condition_allows_is_left_out(condition: Condition) -> None:
    text, truth = condition
    keys = read_of(f"SELECT 1 FROM sys.segments s WHERE {text}").keys
    allowed = {datasource for (datasource, _), value in truth.items() if value}
    assert keys is None or allowed <= keys


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        (
            "SELECT 1 FROM sys.segmens",
            "there is no table sys.segmens, line 1, column 15: did you mean sys.segments?",
        ),
        (
            "SELECT 1 FROM\n INFORMATION_SCHEMA.VIEWS",
            r"VIEWS, line 2, column 2: The tables of INFORMATION_SCHEMA are SCHEMATA, TABLES",
        ),
    ],
)
def test_a_table_that_does_not_exist_is_refused_with_the_others(sql: str, error: str) -> None:
    with pytest.raises(InvalidRequest, match=error):
        checked_query(sql, has_metadata=True)


@pytest.mark.parametrize("name", ["sys.tasks", "information_schema.TABLES"])
def test_only_queries_read_them(name: str) -> None:
    with pytest.raises(InvalidRequest, match="can only be read by queries, line 1, column 15"):
        checked_query(f"SELECT 1 FROM {name}")
