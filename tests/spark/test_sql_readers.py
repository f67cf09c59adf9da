"""Queries of principals that may read some datasources: for them, the others do not exist."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.core.access.row_rules import ALL_ROWS
from penstock.core.clock import SystemClock
from penstock.core.errors import Forbidden, PenstockError, TooLargeForQuota
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.sql.limited_tables import SqlReader
from penstock.spark.sql.service import SqlQuery, SqlService
from tests.spark.data_folder_kit import DataFolder, table

pytestmark = pytest.mark.spark

SECRET, ABSENT = "payroll_secret", "payroll_absent"
SALARY = 987_654_321


def reader_of(rights: str, may_read: Callable[[str], bool]) -> SqlReader:
    return SqlReader(rights, lambda name: ALL_ROWS if may_read(name) else None)


ANALYST = reader_of("analysts", {"payroll_open", "payroll_Mixed"}.__contains__)
OTHERS = reader_of("others", {SECRET}.__contains__)
# `{}` is the name of the datasource.
STATEMENTS = (
    "SELECT * FROM {}",
    'SELECT * FROM "{}"',
    "SELECT salary FROM {}",
    "SELECT no_such_column FROM {}",
    "SELECT sallary FROM {} s",
    "TABLE {}",
    "SELECT (SELECT max(salary) FROM {}) AS m",
    "SELECT n FROM payroll_open WHERE n IN (SELECT salary FROM {})",
    "SELECT n FROM payroll_open o WHERE EXISTS (SELECT 1 FROM {} s WHERE s.salary > o.n)",
    "SELECT o.n FROM payroll_open o JOIN {} s ON s.salary = o.n",
    "SELECT o.n FROM payroll_open o LEFT JOIN {} USING (n)",
    "SELECT n FROM payroll_open UNION ALL SELECT salary FROM {}",
    "WITH t AS (SELECT * FROM {}) SELECT * FROM t",
    "WITH payroll_open AS (SELECT * FROM {}) SELECT * FROM payroll_open",
    "SELECT * FROM payroll_open, LATERAL (SELECT salary FROM {})",
    "SELECT {}.salary FROM payroll_open",
    "SELECT * FROM payroll_open TABLESAMPLE (10 ROWS) JOIN {}",
    "FROM {} |> SELECT salary",
    "EXPLAIN SELECT * FROM {}",
    "EXPLAIN EXTENDED SELECT salary FROM {}",
    "DESCRIBE {}",
    "DESCRIBE TABLE EXTENDED {}",
    "SHOW COLUMNS IN {}",
    "SELECT * FROM default.{}",
    "SELECT * FROM global_temp.{}",
    "SELECT /*+ BROADCAST({}) */ n FROM payroll_open",
    "SELECT CASE WHEN (SELECT count(*) FROM {}) > 0 THEN 1 ELSE 1/0 END",
    "SELECT n FROM payroll_open ORDER BY (SELECT max(salary) FROM {})",
    "SELECT n FROM payroll_open GROUP BY n HAVING n < (SELECT max(salary) FROM {})",
    "SELECT n FROM payroll_open LIMIT (SELECT count(*) FROM {})",
    "SELECT n FROM payroll_open INTERSECT SELECT salary FROM {}",
    "SELECT n FROM payroll_open EXCEPT SELECT salary FROM {}",
    "SELECT o.n FROM payroll_open o LEFT SEMI JOIN {} s ON s.salary > o.n",
    "SELECT o.n FROM payroll_open o LEFT ANTI JOIN {} s ON s.salary > o.n",
    "SELECT * FROM payroll_open NATURAL JOIN {}",
    "SELECT * FROM (TABLE {})",
    "SELECT * FROM VALUES ((SELECT max(salary) FROM {})) AS t(x)",
    "SELECT * FROM {} PIVOT (sum(salary) FOR __time IN (1))",
    "SELECT sum(n) OVER (ORDER BY (SELECT max(salary) FROM {})) FROM payroll_open",
    "WITH RECURSIVE t(x) AS (SELECT salary FROM {} UNION ALL SELECT x FROM t) SELECT * FROM t",
    "WITH a AS (SELECT 1 AS x), b AS (SELECT * FROM {}, a) SELECT * FROM b",
    "SELECT transform(array(1), x -> (SELECT max(salary) FROM {}))",
    "SELECT raise_error((SELECT max(salary) FROM {}))",
    "SELECT CAST((SELECT concat('x', max(salary)) FROM {}) AS INT)",
    "SELECT * FROM spark_catalog.default.{}",
    "SELECT * FROM {} VERSION AS OF 1",
    "SELECT * FROM {} TIMESTAMP AS OF '2020-01-01'",
    "SELECT * FROM IDENTIFIER('{}')",
    "SELECT * FROM parquet.`{}`",
    "SELECT struct({}.*) FROM payroll_open",
    "DESCRIBE QUERY SELECT * FROM {}",
    "DESC {} salary",
    "SHOW TBLPROPERTIES {}",
    "SHOW CREATE TABLE {}",
    "SHOW PARTITIONS {}",
    "SHOW TABLES LIKE '{}'",
    "SHOW TABLE EXTENDED LIKE '{}'",
    "SHOW VIEWS LIKE '{}'",
    "EXPLAIN CODEGEN SELECT * FROM {}",
    "EXPLAIN FORMATTED SELECT salary FROM {}",
    "EXPLAIN COST SELECT salary FROM {}",
    "CACHE TABLE {}",
    "REFRESH TABLE {}",
    "ANALYZE TABLE {} COMPUTE STATISTICS",
    "DROP VIEW {}",
    "CREATE VIEW v AS SELECT * FROM {}",
    "INSERT INTO payroll_open SELECT * FROM {}",
)


@pytest.fixture(scope="module")
def sql(sessions: SparkSessions, data: DataFolder) -> Iterator[SqlService]:
    data.publish("payroll_open", table(["2013-01-01"], n=pa.array([1], pa.int64())))
    data.publish(SECRET, table(["2013-01-01"], salary=pa.array([SALARY], pa.int64())))
    twins = {"Count": pa.array([1], pa.int64()), "count": pa.array([2], pa.int64())}
    data.publish("payroll_Mixed", table(["2013-01-01"], **twins))
    service = SqlService(sessions, data.source, SystemClock())
    # Others have used it before, so that their views exist.
    for reader in (None, OTHERS):
        found = service.query(SqlQuery(f"SELECT salary FROM {SECRET}", reader=reader))
        assert found.table.to_pylist() == [{"salary": SALARY}]
    yield service
    service.close()


def told(sql: SqlService, statement: str, reader: SqlReader | None = ANALYST) -> str:
    """The answer as text."""
    try:
        return str(sql.query(SqlQuery(statement, reader=reader)).table.to_pylist())
    except PenstockError as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.parametrize("spelling", [str, str.upper])
def test_a_datasource_that_may_not_be_read_is_like_one_that_does_not_exist(
    sql: SqlService, statement: str, spelling: type[str]
) -> None:
    secret = told(sql, statement.format(spelling(SECRET)))
    absent = told(sql, statement.format(spelling(ABSENT)))
    named = re.compile(f"{SECRET}|{ABSENT}", re.IGNORECASE)
    assert named.sub("X", secret) == named.sub("X", absent)
    assert str(SALARY) not in secret
    assert "salary" not in secret or "salary" in statement


def test_lists_and_messages_have_only_what_may_be_read(sql: SqlService) -> None:
    for statement in ("SHOW TABLES", "SHOW VIEWS", "SELECT * FROM no_such"):
        found = told(sql, statement)
        assert "payroll_open" in found
        assert "payroll_secret" not in found
    assert SECRET in told(sql, "SHOW TABLES", None)
    assert "payroll_open" not in told(sql, "SHOW TABLES", OTHERS)


def test_columns_that_differ_in_case_have_their_session_for_each_reader(sql: SqlService) -> None:
    assert told(sql, 'SELECT "Count", "count" FROM "payroll_Mixed"') == "[{'Count': 1, 'count': 2}]"
    assert "cannot be found" in told(sql, 'SELECT * FROM "payroll_Mixed"', OTHERS)
    both = f'SELECT "Count" FROM "payroll_Mixed" JOIN {SECRET}'
    assert "cannot be found" in told(sql, both)


def test_a_right_that_is_taken_away_ends_with_the_next_query(sql: SqlService) -> None:
    readable = {"payroll_open", SECRET}
    reader = reader_of("changing", lambda name: name in readable)
    assert str(SALARY) in told(sql, f"SELECT salary FROM {SECRET}", reader)
    readable.discard(SECRET)
    assert "cannot be found" in told(sql, f"SELECT salary FROM {SECRET}", reader)
    readable.add(SECRET)
    assert str(SALARY) in told(sql, f"SELECT salary FROM {SECRET}", reader)


def test_a_reader_of_nothing_cannot_use_spark(sql: SqlService) -> None:
    reader = reader_of("publishers", lambda _: False)
    with pytest.raises(Forbidden, match="you may read no datasource"):
        sql.query(SqlQuery("SELECT sum(id) FROM range(1000)", reader=reader))


def test_readers_do_not_disturb_one_another(sql: SqlService) -> None:
    """More of them than there are idle sessions."""
    readers = [
        reader_of(f"reader {number}", {"payroll_open" if number % 2 else SECRET}.__contains__)
        for number in range(20)
    ]

    def ask(reader: SqlReader) -> list[bool]:
        return [
            "cannot be found" in told(sql, statement, reader)
            for statement in ("SELECT n FROM payroll_open", f"SELECT salary FROM {SECRET}")
        ]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(ask, readers))
    assert found == [[False, True] if number % 2 else [True, False] for number in range(20)]


def test_a_quota_limits_the_files_that_a_query_reads(sql: SqlService) -> None:
    read_all = SqlQuery("SELECT n FROM payroll_open", reader=ANALYST, quota_bytes=1)
    with pytest.raises(TooLargeForQuota, match="the quota query_bytes allows 1 byte: select a"):
        sql.query(read_all)
    for statement in (
        "SELECT 1",
        "SELECT n FROM payroll_open WHERE __time < TIMESTAMP '2012-01-01'",
        "EXPLAIN SELECT n FROM payroll_open",
        "DESCRIBE payroll_open",
    ):
        sql.query(replace(read_all, sql=statement))
    found = sql.query(replace(read_all, quota_bytes=1 << 30))
    assert found.table.num_rows == 1
