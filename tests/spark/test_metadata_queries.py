"""Statements over metadata tables: those that tools send, and what any query may do with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from penstock.core.access.access_control import AccessControl
from penstock.core.access.row_rules import ALL_ROWS, RowRules
from penstock.core.clock import SystemClock
from penstock.core.errors import Forbidden, InvalidRequest, Unavailable
from penstock.core.sql.checked_query import CheckedQuery, checked_query
from penstock.core.sql.metadata_reads import MetadataRead
from penstock.core.sql.metadata_tables import METADATA_TABLES
from penstock.services.api.avatica.messages import (
    GetCatalogs,
    GetColumns,
    GetSchemas,
    GetTables,
    GetTableTypes,
    MetadataRequest,
)
from penstock.services.api.avatica.metadata_queries import metadata_query
from penstock.services.api.request_access import RequestAccess
from penstock.services.api.system_tables import SystemTables
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.options.option_values import HostPort
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.sql import metadata_rows, query_statement
from penstock.spark.sql.answer_files import AnswerFolder
from penstock.spark.sql.limited_tables import SqlReader
from penstock.spark.sql.metadata_rows import MetadataRows
from penstock.spark.sql.service import SqlQuery, SqlService
from tests.spark.data_folder_kit import FEBRUARY, DataFolder, table

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.services.membership.membership import BrokerFinder

pytestmark = pytest.mark.spark

TASKS = [
    {"task_id": "t1", "type": "index_penstock", "datasource": "clicks", "status": "RUNNING",
     "runner_status": "RUNNING", "duration": -1, "location": "h:1", "host": "h"},
    {"task_id": "t2", "type": "compact", "datasource": "views", "status": "FAILED",
     "runner_status": "NONE", "duration": 12, "error_msg": "Shutdown request from user"},
]  # fmt: skip
SUPERVISORS = [
    {"supervisor_id": "s1", "datasource": "clicks", "state": "RUNNING", "healthy": 1,
     "suspended": 0, "type": "penstock", "source": "clicks", "spec": "{}"},
]  # fmt: skip


class Source:
    """The tables of a data folder, with tasks and supervisors that the overlord would answer."""

    def __init__(self, data: DataFolder) -> None:
        owner = AccessControl.open()
        principal = owner.of_owner()
        assert principal is not None
        access = RequestAccess(owner, principal)
        broker = cast("BrokerFinder", SimpleNamespace(http=lambda: HostPort("127.0.0.1", 4151)))
        tables = SystemTables(data.store, LeaseDirectory(data.store.leases), broker)
        self.own = tables.seen_by(access, {}, list)
        self.reads: list[MetadataRead] = []

    def collect(self, read: MetadataRead, rows: MetadataRows) -> None:
        self.reads.append(read)
        given: Mapping[str, Sequence[Mapping[str, object]]] = {
            "tasks": TASKS,
            "supervisors": SUPERVISORS,
        }
        if (found := given.get(read.table.name)) is None:
            self.own.collect(read, rows)
            return
        names = [one.name for one in read.table.columns]
        rows.append({name: [one.get(name) for one in found] for name in names}, len(found))


@dataclass
class Rig:
    service: SqlService
    source: Source

    def rows(self, sql: str, reader: SqlReader | None = None, *parameters: str) -> list[Any]:
        query = SqlQuery(sql, parameters, reader=reader, metadata=self.source)
        result = self.service.query(query)
        return [tuple(one.values()) for one in result.table.to_pylist()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataFolder]:
    made = DataFolder(tmp_path_factory.mktemp("metadata"))
    numbers = pa.array([1, 2], pa.int64())
    times = ["2013-01-01", "2013-01-02"]
    made.publish("clicks", table(times, page=pa.array(["a", "b"]), n=numbers))
    made.publish("clicks", table(times, n=numbers), version="v2")  # hides the first
    made.publish("clicks", table(["2013-02-01"], n=numbers[:1]), FEBRUARY)
    made.publish("views", table(times, share=pa.array([0.5, 1.0]), flag=pa.array([True, False])))
    made.announce_together("views", [table(["2013-01-03"], n=numbers[:1])] * 2)
    made.store.leases.renew("overlord", "o", host="127.0.0.1", port=8090, ttl_ms=10**9)
    made.store.leases.renew("worker", "w", host="127.0.0.1", port=8091, ttl_ms=10**9)
    yield made
    made.close()


@pytest.fixture(scope="module")
def rig(
    sessions: SparkSessions, folder: DataFolder, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rig]:
    answers = AnswerFolder(tmp_path_factory.mktemp("answers"))
    service = SqlService(sessions, folder.source, SystemClock(), answers=answers)
    yield Rig(service, Source(folder))
    service.close()
    answers.close()


DATASOURCES_OF_CONSOLE = """SELECT
datasource,
COUNT(*) FILTER (WHERE is_active = 1) AS num_segments,
COUNT(*) FILTER (WHERE is_published = 1 AND is_overshadowed = 0 AND replication_factor = 0)
  AS num_zero_replica_segments,
COUNT(*) FILTER (WHERE is_published = 1 AND is_overshadowed = 0 AND is_available = 0
  AND replication_factor > 0) AS num_segments_to_load,
COUNT(*) FILTER (WHERE is_available = 1 AND is_active = 0) AS num_segments_to_drop,
MIN("num_rows") FILTER (WHERE is_available = 1 AND is_realtime = 0) AS min_segment_rows,
AVG("num_rows") FILTER (WHERE is_available = 1 AND is_realtime = 0) AS avg_segment_rows,
COUNT(*) FILTER (WHERE is_active = 1 AND "start" LIKE '%-01T00:00:00.000Z'
  AND "end" LIKE '%-01T00:00:00.000Z') AS month_aligned_segments,
SUM("num_rows") FILTER (WHERE is_active = 1) AS total_rows,
CASE WHEN SUM("num_rows") FILTER (WHERE is_available = 1) <> 0
  THEN (SUM("size") FILTER (WHERE is_available = 1) > 0) END AS has_size
FROM sys.segments
GROUP BY datasource
ORDER BY datasource"""
TASKS_OF_CONSOLE = """WITH tasks AS (SELECT
  "task_id", "group_id", "type", "datasource", "created_time", "location", "duration", "error_msg",
  CASE
    WHEN "error_msg" = 'Shutdown request from user' THEN 'CANCELED'
    WHEN "status" = 'RUNNING' THEN "runner_status" ELSE "status" END AS "status"
  FROM sys.tasks
)
SELECT "task_id", "status", "duration" FROM tasks
ORDER BY (CASE "status" WHEN 'RUNNING' THEN 4 WHEN 'PENDING' THEN 3 WHEN 'WAITING' THEN 2
  ELSE 1 END) DESC, "created_time" DESC"""
SERVERS_OF_CONSOLE = """SELECT
  "server" AS "service", "server_type" AS "service_type", "tier", "host", "plaintext_port",
  "tls_port", "curr_size", "max_size", "is_leader"
FROM sys.servers
ORDER BY (CASE "server_type" WHEN 'coordinator' THEN 8 WHEN 'overlord' THEN 7
  WHEN 'router' THEN 6 WHEN 'broker' THEN 5 WHEN 'middle_manager' THEN 3 ELSE 1 END) DESC,
  "service" DESC"""
TABLES_OF_JDBC = """SELECT
  TABLE_CATALOG AS TABLE_CAT,
  TABLE_SCHEMA AS TABLE_SCHEM,
  TABLE_NAME AS TABLE_NAME,
  TABLE_TYPE AS TABLE_TYPE,
  CAST(NULL AS VARCHAR) AS REMARKS
FROM
  INFORMATION_SCHEMA.TABLES
WHERE TABLES.TABLE_SCHEMA LIKE 'dru%' AND TABLES.TABLE_TYPE IN ('TABLE', 'VIEW')
ORDER BY
  TABLE_TYPE, TABLE_CAT, TABLE_SCHEM, TABLE_NAME
"""
COLUMNS_OF_JDBC = """SELECT
  TABLE_SCHEMA AS TABLE_SCHEM,
  COLUMN_NAME AS COLUMN_NAME,
  CAST(JDBC_TYPE AS INTEGER) AS DATA_TYPE,
  DATA_TYPE AS TYPE_NAME,
  -1 AS COLUMN_SIZE,
  CASE IS_NULLABLE WHEN 'YES' THEN 1 ELSE 0 END AS NULLABLE,
  COLUMN_DEFAULT AS COLUMN_DEF,
  CAST(ORDINAL_POSITION AS INTEGER) AS ORDINAL_POSITION,
  'NO' AS IS_AUTOINCREMENT
FROM
  INFORMATION_SCHEMA.COLUMNS
WHERE COLUMNS.TABLE_SCHEMA = 'druid' AND COLUMNS.TABLE_NAME LIKE 'view%'
ORDER BY
  TABLE_SCHEM, TABLE_NAME, ORDINAL_POSITION
"""
# What tools send, from their sources, with the rows that they get.
RECORDED: dict[str, tuple[str, Sequence[str], list[object]]] = {
    "pydruid: get_schema_names": (
        "SELECT SCHEMA_NAME FROM INFORMATION_SCHEMA.SCHEMATA", (),
        [("INFORMATION_SCHEMA",), ("druid",), ("lookup",), ("sys",)],
    ),
    "pydruid: has_table": (
        """
            SELECT COUNT(*) > 0 AS exists_
              FROM INFORMATION_SCHEMA.TABLES
             WHERE TABLE_NAME = 'clicks'
        """, (), [(True,)],
    ),
    "pydruid and Superset: get_table_names": (
        "SELECT TABLE_NAME FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = 'druid'", (),
        [("clicks",), ("views",)],
    ),
    "pydruid and Superset: get_columns": (
        """
            SELECT COLUMN_NAME,
                   DATA_TYPE,
                   IS_NULLABLE,
                   COLUMN_DEFAULT
              FROM INFORMATION_SCHEMA.COLUMNS
             WHERE TABLE_NAME = 'clicks'
         AND TABLE_SCHEMA = 'druid'""", (),
        [("__time", "TIMESTAMP", "NO", ""), ("n", "BIGINT", "YES", "")],
    ),
    "pydruid 0.6.9: get_columns": (
        """
            SELECT COLUMN_NAME,
                   JDBC_TYPE,
                   IS_NULLABLE,
                   COLUMN_DEFAULT
              FROM INFORMATION_SCHEMA.COLUMNS
             WHERE TABLE_NAME = 'clicks'
        """, (), [("__time", 93, "NO", ""), ("n", -5, "YES", "")],
    ),
    "Superset and Metabase: a preview": (
        ('SELECT "druid"."views"."share" AS "share" FROM "druid"."views" WHERE'
        ' "druid"."views"."share" > 0.7 LIMIT 101'), (), [(1.0,)],
    ),
    "Grafana's plugin: tables": (
        ("SELECT TABLE_SCHEMA, TABLE_NAME FROM INFORMATION_SCHEMA.TABLES"
        " WHERE TABLE_SCHEMA = ? ORDER BY TABLE_NAME"), ("druid",),
        [("druid", "clicks"), ("druid", "views")],
    ),
    "Grafana's plugin: columns": (
        ("SELECT COLUMN_NAME FROM INFORMATION_SCHEMA.COLUMNS WHERE TABLE_SCHEMA = ? AND"
        " TABLE_NAME = ?"), ("druid", "clicks"), [("__time",), ("n",)],
    ),
    "JDBC driver (DBeaver, Metabase): catalogs": (
        ("SELECT\n  DISTINCT CATALOG_NAME AS TABLE_CAT\nFROM\n  INFORMATION_SCHEMA.SCHEMATA\n"
        "ORDER BY\n  TABLE_CAT\n"), (), [("druid",)],
    ),
    "JDBC driver (DBeaver, Metabase): tables": (
        TABLES_OF_JDBC, (),
        [("druid", "druid", "clicks", "TABLE", None), ("druid", "druid", "views", "TABLE", None)],
    ),
    "JDBC driver (DBeaver, Metabase): table types": (
        (
            "SELECT\n  DISTINCT TABLE_TYPE AS TABLE_TYPE\nFROM\n  INFORMATION_SCHEMA.TABLES\n"
            "ORDER BY\n  TABLE_TYPE\n"
        ), (), [("SYSTEM_TABLE",), ("TABLE",)],
    ),
    "JDBC driver (DBeaver, Metabase): columns": (
        COLUMNS_OF_JDBC, (),
        [
            ("druid", "__time", 93, "TIMESTAMP", -1, 0, "", 0, "NO"),
            ("druid", "share", 8, "DOUBLE", -1, 1, "", 1, "NO"),
            ("druid", "flag", 16, "BOOLEAN", -1, 1, "", 2, "NO"),
            ("druid", "n", -5, "BIGINT", -1, 1, "", 3, "NO"),
        ],
    ),
    "Druid's console: datasources": (
        DATASOURCES_OF_CONSOLE, (),
        [
            ("clicks", 2, 0, 0, 0, 1, 1.5, 2, 3, True),
            ("views", 2, 0, 0, 0, 2, 2.0, 2, 4, True),
        ],
    ),
    "Druid's console: running tasks": (
        ('SELECT\n  "datasource", "type", COUNT(*) AS "num_running_tasks"\nFROM sys.tasks WHERE'
        " \"status\" = 'RUNNING' AND \"runner_status\" = 'RUNNING'\nGROUP BY 1, 2"), (),
        [("clicks", "index_penstock", 1)],
    ),
    "Druid's console: tasks": (
        TASKS_OF_CONSOLE, (), [("t1", "RUNNING", -1), ("t2", "CANCELED", 12)],
    ),
    "Druid's console: servers": (
        SERVERS_OF_CONSOLE, (),
        [
            ("127.0.0.1:8090", "overlord", None, "127.0.0.1", 8090, -1, 0, 0, 1),
            ("127.0.0.1:4151", "broker", None, "127.0.0.1", 4151, -1, 0, 0, None),
            ("127.0.0.1:8091", "middle_manager", None, "127.0.0.1", 8091, -1, 0, 0, None),
        ],
    ),
    "Druid's console: supervisors": (
        ('SELECT\n  COUNT(*) FILTER (WHERE "suspended" = 0) AS "running",\n'
        '  COUNT(*) FILTER (WHERE "suspended" = 1) AS "suspended"\nFROM sys.supervisors'), (),
        [(1, 0)],
    ),
    "Druid's documentation: segments by server": (
        """SELECT count(segments.segment_id) as num_segments from sys.segments as segments
        INNER JOIN sys.server_segments as server_segments
        ON segments.segment_id  = server_segments.segment_id
        INNER JOIN sys.servers as servers
        ON servers.server = server_segments.server
        WHERE segments.datasource = 'clicks'
        GROUP BY servers.server""", (), [],
    ),
    "Druid's documentation: aggregate functions": (
        ('SELECT "ROUTINE_NAME", "ROUTINE_TYPE" FROM "INFORMATION_SCHEMA"."ROUTINES"'
        " WHERE \"IS_AGGREGATOR\" = 'YES' AND ROUTINE_NAME IN ('SUM', 'ABS', 'LATEST_BY')"
        " ORDER BY 1"), (),
        [("LATEST_BY", "FUNCTION"), ("SUM", "FUNCTION")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("tool", RECORDED)
def test_recorded_statements_of_tools(rig: Rig, tool: str) -> None:
    sql, parameters, rows = RECORDED[tool]
    assert rig.rows(sql, None, *parameters) == rows


@pytest.mark.parametrize(
    ("question", "rows"),
    [
        (GetCatalogs("c"), [("druid",)]),
        (GetTableTypes("c"), [("SYSTEM_TABLE",), ("TABLE",)]),
        (GetSchemas("c", "druid", "s%"), [("sys", "druid")]),
        (GetTables("c", "druid", "druid", "v%", ["TABLE"]), [("druid", "druid", "views", "TABLE")]),
        (GetTables("c", None, "sys", "task_"), [("druid", "sys", "tasks", "SYSTEM_TABLE")]),
        (GetColumns("c", None, "druid", "clicks", "n"), [("druid", "druid", "clicks", "n", -5)]),
    ],
)
def test_questions_of_drivers_have_their_answers(
    rig: Rig, question: MetadataRequest, rows: list[tuple[object, ...]]
) -> None:
    sql, values = metadata_query(question)
    found = rig.rows(sql, None, *values)
    assert [one[: len(rows[0])] for one in found] == rows


STATEMENTS = (
    "SELECT count(*) FROM sys.segments WHERE datasource = 'clicks'",
    "SELECT * FROM sys.segments ORDER BY segment_id",
    "TABLE sys.tasks",
    "SELECT s.datasource, t.status FROM sys.segments s JOIN sys.tasks t USING (datasource)",
    "SELECT * FROM sys.tasks NATURAL JOIN (VALUES ('t1', 7)) AS v (task_id, k)",
    (
        "SELECT max(version) FROM sys.segments WHERE size > (SELECT min(size) FROM sys.segments"
        " WHERE datasource = 'views')"
    ),
    (
        "SELECT datasource FROM sys.segments WHERE datasource = 'clicks'"
        " UNION ALL SELECT datasource FROM sys.segments WHERE datasource IN ('views', 'none')"
    ),
    (
        "SELECT d.x, (SELECT count(*) FROM sys.segments WHERE sys.segments.datasource = d.x)"
        " FROM (VALUES ('clicks'), ('views')) AS d (x)"
    ),
    (
        "SELECT t.TABLE_NAME, count(c.COLUMN_NAME) FROM INFORMATION_SCHEMA.TABLES t LEFT JOIN"
        " INFORMATION_SCHEMA.COLUMNS c ON c.TABLE_NAME = t.TABLE_NAME WHERE t.TABLE_NAME <> 'x'"
        " GROUP BY 1 ORDER BY 1"
    ),
    "SELECT n, (SELECT count(*) FROM sys.segments) AS k FROM clicks ORDER BY n",
    "SELECT a, b FROM (SELECT segment_id, size FROM sys.segments) AS s (a, b) ORDER BY a",
    "SELECT count(*) FROM sys.segments |> AGGREGATE count(*) AS n",
    "SELECT row_number() OVER (PARTITION BY datasource ORDER BY segment_id) FROM sys.segments",
    "WITH segments AS (SELECT * FROM sys.segments) SELECT count(DISTINCT *) FROM segments",
)


@pytest.mark.parametrize("sql", STATEMENTS)
def test_what_a_query_does_not_need_never_changes_its_answer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    spared = rig.rows(sql)

    def whole(*given: Any, **options: Any) -> CheckedQuery:
        found = checked_query(*given, **options)
        every = (
            MetadataRead(one.table, frozenset(column.name for column in one.table.columns))
            for one in found.metadata
        )
        return replace(found, metadata=tuple(every))

    monkeypatch.setattr(query_statement, "checked_query", whole)
    assert sorted(map(repr, rig.rows(sql))) == sorted(map(repr, spared))


def test_segments_are_described_as_druid_does(rig: Rig) -> None:
    found = rig.rows(
        "SELECT segment_id, version, partition_num, num_rows, is_active, is_published,"
        " is_available, is_realtime, is_overshadowed, num_replicas, replication_factor,"
        " dimensions, metrics, shard_spec IS NOT NULL, size > 0 FROM sys.segments"
        " ORDER BY is_published, datasource, segment_id"
    )
    january, february = (
        "2013-01-01T00:00:00.000Z_2013-02-01T00:00:00.000Z",
        ("2013-02-01T00:00:00.000Z_2013-03-01T00:00:00.000Z"),
    )
    assert str(found[0][0]).startswith(f"views_{january}_sequence-")
    assert found[0][1:] == (None, None, 2, 1, 0, 1, 1, 0, 1, -1, None, None, False, True)
    assert found[1:] == [
        (f"clicks_{january}_v1", "v1", 0, 2, 0, 1, 0, 0, 1, 0, 0, "[]", "[]", True, True),
        (f"clicks_{january}_v2", "v2", 0, 2, 1, 1, 1, 0, 0, 1, 1, "[]", "[]", True, True),
        (f"clicks_{february}_v1", "v1", 0, 1, 1, 1, 1, 0, 0, 1, 1, "[]", "[]", True, True),
        (f"views_{january}_v1", "v1", 0, 2, 1, 1, 1, 0, 0, 1, 1, "[]", "[]", True, True),
    ]


@pytest.mark.parametrize("name", [one.full_name for one in METADATA_TABLES.values()])
def test_every_table_has_its_columns_and_types(rig: Rig, name: str) -> None:
    query = SqlQuery(f"SELECT * FROM {name} LIMIT 3", metadata=rig.source)
    found = rig.service.query(query)
    schema, _, table_name = name.lower().partition(".")
    columns = METADATA_TABLES[schema, table_name].columns
    assert found.table.column_names == [one.name for one in columns]
    assert found.column_types == tuple(one.spark_type for one in columns)


def test_many_rows_go_through_a_file_that_is_deleted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = rig.rows(STATEMENTS[1])
    monkeypatch.setattr(metadata_rows, "INLINE_BYTES_MAX", 100)
    made: list[Path] = []
    new_answer = AnswerFolder.new_answer

    def noted(self: AnswerFolder) -> Path:
        made.append(new_answer(self))
        return made[-1]

    monkeypatch.setattr(AnswerFolder, "new_answer", noted)
    assert rig.rows(STATEMENTS[1]) == wanted
    assert made
    assert not any(one.exists() for one in made)
    plan = rig.rows("EXPLAIN SELECT size FROM sys.segments")[0]
    assert "answers" not in str(plan)
    assert "view_" not in str(plan)


def test_a_principal_sees_its_datasources(rig: Rig) -> None:
    one = SqlReader("clicks only", lambda name: ALL_ROWS if name == "clicks" else None)
    names = "SELECT DISTINCT TABLE_NAME FROM INFORMATION_SCHEMA.{} WHERE TABLE_SCHEMA = 'druid'"
    assert rig.rows(names.format("TABLES"), one) == [("clicks",)]
    assert rig.rows(names.format("COLUMNS"), one) == [("clicks",)]
    none = SqlReader("nothing", lambda _name: None)
    assert rig.rows(names.format("TABLES"), none) == []
    assert rig.rows("SELECT count(*) > 5 FROM INFORMATION_SCHEMA.TABLES", none) == [(True,)]
    with pytest.raises(Forbidden, match="may read no datasource"):
        rig.rows("SELECT 1", none)


def test_without_a_source_sys_cannot_be_read(rig: Rig) -> None:
    with pytest.raises(Unavailable, match=r"sys\.tasks cannot be read here"):
        rig.service.query(SqlQuery("SELECT 1 FROM sys.tasks"))


def test_commands_know_only_datasources(rig: Rig) -> None:
    with pytest.raises(InvalidRequest, match=r"select its columns from INFORMATION_SCHEMA"):
        rig.rows("DESCRIBE sys.segments")
    described = rig.rows("DESCRIBE QUERY SELECT size AS s FROM sys.segments")
    assert described == [("s", "bigint", None)]


def test_an_unknown_column_is_reported_with_those_that_exist(rig: Rig) -> None:
    with pytest.raises(InvalidRequest, match=r"`seize`.*`size`") as caught:
        rig.rows("SELECT seize FROM sys.segments")
    assert "view_" not in str(caught.value)
    assert "sys/" not in str(caught.value)


def test_lists_of_datasources_stay_as_they_are(rig: Rig) -> None:
    rig.rows("SELECT count(*) FROM sys.segments")
    assert [one[1] for one in rig.rows("SHOW TABLES")] == ["clicks", "views"]


def test_a_filtered_principal_sees_names_and_columns(rig: Rig) -> None:
    limited = SqlReader("filtered", lambda _name: RowRules("n > 1"))
    sql = "SELECT COLUMN_NAME FROM INFORMATION_SCHEMA.COLUMNS WHERE TABLE_NAME = 'clicks'"
    assert rig.rows(sql, limited) == [("__time",), ("n",)]
    joined = "SELECT c.n FROM clicks c JOIN INFORMATION_SCHEMA.TABLES ON TABLE_NAME = 'clicks'"
    assert rig.rows(joined, limited) == [(2,)]
