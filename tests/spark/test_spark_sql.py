"""SQL over the visible segments, on a real Spark."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import penstock.spark.views
from penstock.core.clock import SystemClock
from penstock.core.errors import Conflict, InvalidRequest, StorageUnavailable
from penstock.core.intervals import Interval
from penstock.core.sql_text import tokens
from penstock.indexing.engine import EngineFailure, EngineUnavailable
from penstock.indexing.specs.rows.declared_projections import DeclaredProjections
from penstock.segments.remote_files import RemoteFiles
from penstock.segments.segment_cache import SegmentCache
from penstock.spark.connect.running_calls import RunningCall
from penstock.spark.connect.spark_sessions import SparkDiskFull, SparkSessions
from penstock.spark.sql.query_statement import Statement
from penstock.spark.sql.service import SQL_CONF, SqlOptions, SqlQuery, SqlResult, SqlService
from penstock.spark.tables import Feeder, TableFile, Tables, TableSource
from penstock.spark.tables.local_segments import LocalSegments, named_files
from tests.spark.data_folder_kit import FEBRUARY, JANUARY, DataFolder, table
from tests.spark.table_kit import GivenTables

pytestmark = pytest.mark.spark

# Never ends, in as many parts as there are cores: nothing else gets one until it was stopped.
ENDLESS = "SELECT sum(id % 7) FROM range(0, 1000000000000000, 1, 2)"


@pytest.fixture(scope="module")
def sql(sessions: SparkSessions, data: DataFolder) -> Iterator[SqlService]:
    service = SqlService(sessions, data.source, SystemClock())
    yield service
    service.close()


def ask(sql: SqlService, statement: str, *parameters: str | float | None) -> list[tuple]:
    return rows(sql.query(SqlQuery(statement, parameters)))


def rows(result: SqlResult) -> list[tuple]:
    return [tuple(row.values()) for row in result.table.to_pylist()]


def ints(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int64())


class FixedTables:
    """Tables that a test sets, one after the other; the last one stays."""

    def __init__(self, *later: Mapping[str, tuple[TableFile, ...]]) -> None:
        self.later = [Tables(number, files) for number, files in enumerate(later)]
        self.supervisors: dict[str, list[Feeder]] = {}
        self.dropped: set[str] = set()

    def revision(self) -> int:
        return self.later[0].revision

    def feeders(self, datasource: str) -> list[Feeder]:
        return self.supervisors.get(datasource, [])

    def is_dropped(self, datasource: str) -> bool:
        return datasource in self.dropped

    def projections(self, datasource: str) -> list[DeclaredProjections]:
        return []

    def tables(self) -> Tables:
        return self.later.pop(0) if len(self.later) > 1 else self.later[0]


# names


def test_names_may_be_anything(sql: SqlService, data: DataFolder) -> None:
    odd = table(["2013-01-01"], **{"count": ints(3), "a b": ints(4), 'q"`': ints(5)})
    for name in ("my table", "with-hyphen", 'quote"d', "back`tick", "Größe", "select"):
        data.publish(name, odd)
        quoted = name.replace('"', '""')
        assert ask(sql, f'SELECT "count", "a b", "q""`" FROM "{quoted}"') == [(3, 4, 5)]
    assert ask(sql, "SELECT `count` + `A B` FROM `back``tick`") == [(7,)]
    assert ask(sql, 'SELECT COUNT(*) AS "count" FROM "MY TABLE"') == [(1,)]
    assert ask(sql, 'WITH t AS (TABLE "my table") SELECT "count" FROM t') == [(3,)]


def test_single_quotes_are_text_and_double_quotes_are_names(sql: SqlService) -> None:
    assert ask(sql, """SELECT 'it''s' AS "x y", '"' AS z""") == [("it's", '"')]
    with pytest.raises(InvalidRequest, match="UNRESOLVED_COLUMN"):
        ask(sql, 'SELECT "text"')


# rows


def test_ansi_rules(sql: SqlService) -> None:
    for statement, message in {
        "SELECT 1 / 0": "DIVIDE_BY_ZERO",
        "SELECT CAST('x' AS BIGINT)": "CAST_INVALID_INPUT",
        "SELECT 9223372036854775807 + 1": "ARITHMETIC_OVERFLOW",
    }.items():
        with pytest.raises(InvalidRequest, match=message):
            ask(sql, statement)
    assert ask(sql, "SELECT try_divide(1, 0), TIMESTAMP '2013-01-01 00:00:00Z' > '2012'") == [
        (None, True)
    ]


def test_types_go_with_the_rows(sql: SqlService, data: DataFolder) -> None:
    data.publish("typed", table(["2013-01-01T00:00:00.123Z"], n=ints(1), s=pa.array(["x"])))
    result = sql.query(SqlQuery("SELECT *, n / 2 AS half FROM typed"))
    assert result.column_types == ("timestamp", "bigint", "string", "double")
    assert result.table.column_names == ["__time", "n", "s", "half"]
    assert result.table["__time"][0].as_py().isoformat() == "2013-01-01T00:00:00.123000+00:00"


def test_what_is_hidden_does_not_count(sql: SqlService, data: DataFolder) -> None:
    days = [f"2013-01-{day:02}" for day in range(1, 32)]
    data.publish("shadow", table(days, n=ints(*range(31))), version="v1")
    count = "SELECT count(*), sum(n) FROM shadow"
    assert ask(sql, count) == [(31, sum(range(31)))]
    two_days = Interval.parse("2013-01-10/2013-01-12")
    data.publish("shadow", table(["2013-01-10"], n=ints(100)), two_days, version="v2")
    assert ask(sql, count) == [(30, sum(range(31)) - 9 - 10 + 100)]
    assert ask(
        sql, "SELECT n FROM shadow WHERE __time >= '2013-01-10' ORDER BY __time LIMIT 2"
    ) == [
        (100,),
        (11,),
    ]
    data.publish("shadow", table(["2013-01-05"], n=ints(7)), version="v3")
    assert ask(sql, count) == [(1, 7)]


def test_columns_that_come_later_or_change_their_type(sql: SqlService, data: DataFolder) -> None:
    data.publish("grown", table(["2013-01-01"], n=ints(1), v=ints(5)))
    later = table(["2013-02-01"], n=pa.array([0.5]), V=pa.array(["text"]), more=pa.array([True]))
    data.publish("grown", later, FEBRUARY)
    result = sql.query(SqlQuery("SELECT n, v, more FROM grown ORDER BY __time"))
    assert rows(result) == [(1.0, "5", None), (0.5, "text", True)]
    assert result.column_types == ("double", "string", "boolean")


def test_rows_that_running_tasks_show_count(sql: SqlService, data: DataFolder) -> None:
    data.announce("fresh", table(["2013-01-02"], n=ints(2)))
    assert ask(sql, "SELECT n FROM fresh") == [(2,)]
    data.publish("fresh", table(["2013-01-01"], n=ints(1)))
    data.announce("fresh", table(["2013-02-01"], n=ints(3)), FEBRUARY)
    assert ask(sql, "SELECT n FROM fresh ORDER BY n") == [(1,), (2,), (3,)]


def test_several_datasources_in_one_query(sql: SqlService, data: DataFolder) -> None:
    data.publish("left-side", table(["2013-01-01"], k=ints(1), a=pa.array(["x"])))
    data.publish("right-side", table(["2013-01-01"], k=ints(1), b=pa.array(["y"])))
    joined = 'SELECT l.a, r.b FROM "left-side" l JOIN "right-side" r USING (k)'
    assert ask(sql, joined) == [("x", "y")]


def test_a_view_is_made_again_only_when_its_files_change(
    sql: SqlService, data: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    original = penstock.spark.views.table

    def counted(session: object, files: tuple[TableFile, ...]) -> object:
        made.append(len(files))
        return original(session, files)

    monkeypatch.setattr(penstock.spark.views, "table", counted)
    data.publish("steady", table(["2013-01-01"], n=ints(1)))
    ask(sql, "SELECT * FROM steady")
    ask(sql, "SELECT * FROM steady")
    data.publish("other", table(["2013-01-01"], n=ints(1)))
    ask(sql, "SELECT * FROM steady")
    assert made == [1]
    data.publish("steady", table(["2013-01-02"], n=ints(2)), number=1)
    assert ask(sql, "SELECT count(*) FROM steady") == [(2,)]
    assert made == [1, 2]


def test_files_that_the_jvm_has_no_driver_for_are_read_by_workers(
    sessions: SparkSessions, data: DataFolder
) -> None:
    """A store whose name fsspec knows and Spark does not, as s3 without its jars."""
    data.publish("afar", table(["2013-01-01", "2013-01-02"], n=ints(1, 2)), FEBRUARY)
    near = data.source.tables().of("afar")
    clip = Interval.parse("2013-01-02/2013-01-03")
    far = tuple(replace(file, path=f"local://{file.path}") for file in near)
    columns = (*near[0].columns, ("absent", "bigint"))
    with sessions.use() as spark:
        whole = penstock.spark.views.table(spark, far, columns)
        assert [tuple(row)[1:] for row in whole.sort("n").collect()] == [(1, None), (2, None)]
        cut = [replace(file, clip=clip) for file in far]
        assert [row["n"] for row in penstock.spark.views.table(spark, cut).collect()] == [2]


def test_queries_read_copies_of_files_of_a_remote_store(
    sessions: SparkSessions, data: DataFolder, tmp_path: Path
) -> None:
    data.publish("copied", table(["2013-01-01", "2013-01-02"], n=ints(1, 2)), FEBRUARY)
    near = data.source.tables().of("copied")
    root = "local:///"
    far = tuple(replace(file, path=f"local://{file.path}") for file in near)
    source = GivenTables({"copied": far})
    cache = SegmentCache(
        *(tmp_path / "cache", sum(file.size_bytes for file in far), root.rstrip("/")),
        *(RemoteFiles("local:///"), lambda: named_files(source), SystemClock()),
    )
    cache.start()
    service = SqlService(sessions, source, SystemClock(), segments=LocalSegments(cache))
    try:
        assert ask(service, "SELECT sum(n) FROM copied") == [(3,)]
        (copy,) = (tmp_path / "cache").glob("*.parquet")
        copy.write_bytes(b"PAR1".ljust(copy.stat().st_size - 4, b"x") + b"PAR1")
        assert ask(service, "SELECT sum(n) + 1 FROM copied") == [(4,)]
        copy.unlink()
        assert ask(service, "SELECT sum(n) + 2 FROM copied") == [(5,)]
        assert copy.read_bytes() == Path(near[0].path).read_bytes()
        copy.unlink()
        elsewhere = LocalSegments(cache, lambda: False)
        other = SqlService(sessions, source, SystemClock(), segments=elsewhere)
        assert ask(other, "SELECT sum(n) FROM copied") == [(3,)]
        other.close()
        assert not copy.exists()
    finally:
        service.close()
        cache.stop()


def test_a_datasource_that_is_gone_is_no_table_any_more(sql: SqlService, data: DataFolder) -> None:
    segment = data.publish("short-lived", table(["2013-01-01"]))
    assert ask(sql, 'SELECT count(*) FROM "short-lived"') == [(1,)]
    data.store.segments.mark_unused([str(segment.id)])
    with pytest.raises(Conflict, match='all segments of "short-lived" are unused'):
        ask(sql, 'SELECT count(*) FROM "short-lived"')


# what is refused


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO guarded SELECT 1",
        "CREATE TABLE x (a INT)",
        "CREATE OR REPLACE TEMP VIEW guarded AS SELECT 1",
        "DROP VIEW guarded",
        "SET spark.sql.ansi.enabled = false",
        "RESET",
        "CACHE TABLE guarded",
        "REFRESH TABLE guarded",
        "USE default",
        "ADD JAR '/tmp/x.jar'",
        "SELECT * FROM parquet.`/etc`",
        'SELECT * FROM "csv"."/etc/passwd"',
        "SELECT reflect('java.lang.System', 'getenv', 'HOME')",
        "SELECT java_method('java.lang.System', 'getenv', 'HOME')",
        "SELECT try_reflect('java.lang.System', 'getenv', 'HOME')",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP VIEW guarded",
        "/* */ DROP VIEW guarded -- SELECT",
        "-- SELECT\nDROP VIEW guarded",
        "SELECT /*+ x */ 1 */ DROP VIEW guarded",
        "SELECT '\\' ; DROP VIEW guarded --'",
        "WITH a AS (SELECT 1) INSERT INTO guarded SELECT * FROM a",
        "EXPLAIN DROP VIEW guarded",
    ],
)
def test_only_reading_is_possible(sql: SqlService, data: DataFolder, statement: str) -> None:
    if "guarded" not in data.source.tables().files:
        data.publish("guarded", table(["2013-01-01"], n=ints(1)))
    before = ask(sql, "SELECT * FROM guarded")
    if statement.startswith("SELECT '\\'"):
        assert len(ask(sql, statement)) == 1  # one text, as Spark reads it
    else:
        with pytest.raises(InvalidRequest) as refusal:
            ask(sql, statement)
        assert "\n\tat " not in str(refusal.value)
    assert ask(sql, "SELECT * FROM guarded") == before


def test_statements_about_tables(sql: SqlService, data: DataFolder) -> None:
    data.publish("described", table(["2013-01-01"], n=ints(1)))
    assert ("described",) in [row[1:2] for row in ask(sql, "SHOW TABLES")]
    assert [row[:2] for row in ask(sql, "DESCRIBE described")] == [
        ("__time", "timestamp"),
        ("n", "bigint"),
    ]
    assert "Scan parquet" in ask(sql, "EXPLAIN SELECT * FROM described")[0][0]


def test_explain_analyze_measures_the_operators(sql: SqlService, data: DataFolder) -> None:
    data.publish("measured", table(["2013-01-01", "2013-01-02", "2013-01-02"], n=ints(1, 2, 3)))
    statement = "SELECT __time, sum(n) FROM measured WHERE n > 1 GROUP BY 1"
    result = sql.query(SqlQuery(f"EXPLAIN ANALYZE {statement}"))
    found = result.table.to_pylist()
    assert [one["id"] for one in found if one["parent"] is None] == [found[0]["id"]]
    known = set()
    for one in found:  # parents come first
        assert one["parent"] is None or one["parent"] in known
        known.add(one["id"])
    scan = next(one for one in found if "Scan parquet" in one["operator"])
    assert scan["rows"] == 3
    assert scan["bytes"] > 0
    groups = next(one for one in found if one["operator"] == "HashAggregate")
    assert groups["rows"] == 1
    assert any(one["ms"] is not None for one in found)
    with pytest.raises(InvalidRequest, match="DIVIDE_BY_ZERO"):
        ask(sql, "EXPLAIN ANALYZE SELECT 1 / 0 * n FROM measured")
    with pytest.raises(InvalidRequest, match="select fewer columns"):
        ask(sql, "EXPLAIN ANALYZE SELECT repeat('x', 20000) FROM measured")


@pytest.mark.parametrize(
    ("statement", "parts"),
    [
        ("SELEC 1", ["SELEC is not allowed, line 1, column 1", "a query begins with"]),
        ("SELECT 1 +", ["the statement ends too early, line 1, column 11: expected"]),
        ("SELECT 1,\n  1 / 0", ["DIVIDE_BY_ZERO", "line 2, column 3"]),
        ("SELECT 1\n  FROM located WHERE >", ["> is not expected, line 2, column 22: expected"]),
        ("SELECT nn FROM located", ["UNRESOLVED_COLUMN", "`n`", "line 1, column 8"]),
        ("DESCRIBE QUERY\n SELECT nn FROM located", ["`n`", "line 2, column 9"]),
        ("SELECT nosuch(n) FROM located", ["Spark SQL has no function nosuch, line 1, column 8"]),
        ("SELECT n FROM located GROUP BY 2", ["GROUP_BY_POS_OUT_OF_RANGE"]),
    ],
)
def test_errors_say_where(
    sql: SqlService, data: DataFolder, statement: str, parts: list[str]
) -> None:
    if "located" not in data.source.tables().files:
        data.publish("located", table(["2013-01-01"], n=ints(1)))
    with pytest.raises(InvalidRequest) as caught:
        ask(sql, statement)
    text = str(caught.value)
    assert [part for part in parts if part not in text] == [], text
    assert "\n\tat " not in text
    assert "stacktrace" not in text
    assert " pos " not in text
    assert ", position " not in text


@pytest.mark.parametrize(
    ("statement", "parts"),
    [
        (
            "SELECT *\nFROM `line 3, pos 4`",
            ["view `line 3, pos 4` cannot be found", " (line 2, column 6). Datasources"],
        ),
        (
            "SELECT cast('line 9 position 9' AS int)",
            [
                "value 'line 9 position 9' of",
                "(line 1, column 8) ==\nSELECT cast('line 9 position 9'",
            ],
        ),
        (
            "SELECT cast(concat('a', ' line 12, pos ', 5) AS int)",
            ["value 'a line 12, pos 5' of", "(line 1, column 8)"],
        ),
        ("SELECT raise_error('boom at line 3, pos 4')", ["boom at line 3, pos 4 SQLSTATE"]),
        ("SELECT `a; line 3 pos 4` FROM range(1)", ["`a; line 3 pos 4` can", "; line 1, column 8"]),
        (
            "SELECT 1 + cast(\n'a SQLSTATE: 22018\n\n== SQL (line 9, position 9) =='\nAS int)",
            [
                "'a SQLSTATE: 22018\n\n== SQL (line 9, position 9) ==' of",
                "== SQL (line 1, column 12)",
            ],
        ),
    ],
)
def test_names_and_values_that_look_like_places_are_told_unchanged(
    sql: SqlService, statement: str, parts: list[str]
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ask(sql, statement)
    text = str(caught.value)
    assert [part for part in parts if part not in text] == [], text


def test_a_parameter_that_looks_like_a_place_is_told_unchanged(sql: SqlService) -> None:
    value = "line 9 position 9\n\nb"
    with pytest.raises(InvalidRequest) as caught:
        sql.query(SqlQuery("SELECT cast(?\n\nAS int)", (value,)))
    text = str(caught.value)
    assert f"The value '{value}' of" in text
    assert "\n== SQL ==\n" in text
    assert "^" not in text


def test_no_place_is_told_where_spark_got_another_text(sql: SqlService, data: DataFolder) -> None:
    for name in ("placed", "caf\u00e9"):
        data.publish(name, table(["2013-01-01"], n=ints(1)))
    for statement, parameters in (
        ("SELECT ?, nn FROM placed", ("a value that is longer than its mark",)),
        ("DESCRIBE\n  nowhere", ()),  # Penstock composes commands from their words
        ('SELECT * FROM "cafe\u0301" WHERE nn = 1', ()),  # the stored name is shorter
        ('SELECT 1 / 0 FROM "cafe\u0301"', ()),
    ):
        with pytest.raises(InvalidRequest) as caught:
            sql.query(SqlQuery(statement, parameters))
        text = str(caught.value)
        assert re.search("UNRESOLVED_COLUMN|cannot be found|DIVIDE_BY", text), text
        assert [part for part in ("line ", "^", "\n)") if part in text] == [], text


@pytest.mark.parametrize("piece", ["FAILED_READ_FILE", "File /", "Path does not exist:/"])
def test_an_error_that_repeats_a_long_statement_is_read_at_once(
    sql: SqlService, piece: str
) -> None:
    """Spark repeats the statement; reading 300 kB of it took a minute of all threads."""
    text = piece * (300_000 // len(piece))
    with pytest.raises(InvalidRequest, match=r"^\[UNRESOLVED_COLUMN"):
        ask(sql, f"SELECT '{text}', nothing")


def test_an_unknown_table_is_answered_with_the_known_ones(sessions: SparkSessions) -> None:
    file = TableFile("/nowhere.parquet", (("__time", "timestamp"),), JANUARY)
    source = FixedTables({"flights": (file,), "a-b": (file,), "hidden": ()}, {})
    service = SqlService(sessions, source, SystemClock())
    try:
        with pytest.raises(InvalidRequest) as caught:
            ask(service, "SELECT *\nFROM flihgts")
        assert "`flihgts` cannot be found" in str(caught.value)
        assert "(line 2, column 6)" in str(caught.value)
        assert str(caught.value).endswith("Datasources with data: none yet")
        source.later = [Tables(7, {"flights": (file,), "a-b": (file,), "hidden": ()})]
        with pytest.raises(InvalidRequest, match=r'Datasources with data: "a-b", "flights"$'):
            ask(service, "SELECT * FROM hidden")
        source.supervisors = {"new one": [Feeder("s", suspended=False)]}
        with pytest.raises(Conflict, match="supervisor s exists and its first rows will follow"):
            ask(service, 'SELECT * FROM "new one", hidden')
        source.dropped = {"gone"}
        with pytest.raises(Conflict, match='all segments of "gone" are unused'):
            ask(service, "SELECT * FROM gone")
    finally:
        service.close()


def test_a_damaged_file_is_named_and_never_read_as_no_rows(
    sql: SqlService, data: DataFolder
) -> None:
    data.publish("cut", table(["2013-01-01"], n=ints(1)))
    path = Path(data.source.tables().of("cut")[0].path)
    whole = path.read_bytes()

    def fails() -> str:
        with pytest.raises(EngineFailure) as caught:
            ask(sql, "SELECT sum(n) FROM cut")
        assert "disable its segment with penstock segment disable" in str(caught.value)
        return str(caught.value).split(": ")[0]

    assert ask(sql, "SELECT sum(n) FROM cut") == [(1,)]
    path.write_bytes(whole[:40])
    assert fails() == f"{path} cannot be read"
    path.write_bytes(b"")
    assert fails() == f"{path} has 0 bytes, not {len(whole)}"
    path.unlink()
    assert fails() == f"{path} is missing"
    path.write_bytes(whole)
    assert ask(sql, "SELECT sum(n) FROM cut") == [(1,)]


def test_a_damaged_file_of_a_task_is_mended_by_its_end(sql: SqlService, data: DataFolder) -> None:
    path = data.announce("of_a_task", table(["2013-01-01"], n=ints(1)))
    whole = path.read_bytes()
    assert ask(sql, "SELECT sum(n) FROM of_a_task") == [(1,)]
    path.write_bytes(whole[:4] + bytes(len(whole) - 4))
    with pytest.raises(EngineFailure, match="End the task with penstock task stop"):
        ask(sql, "SELECT sum(n) FROM of_a_task")
    path.unlink()
    with pytest.raises(EngineFailure, match="is missing: it belongs to the running task"):
        ask(sql, "SELECT sum(n) FROM of_a_task")


# parameters and limits


def test_parameters_are_values_and_never_text(sql: SqlService) -> None:
    evil = "x' OR 1=1 --"
    assert ask(sql, "SELECT ?, ? + 1, ?, ?", evil, 41, None, 1.5) == [(evil, 42, None, 1.5)]
    with pytest.raises(InvalidRequest, match="UNBOUND_SQL_PARAMETER"):
        ask(sql, "SELECT ?, ?", 1)


def test_the_row_limit_cuts_and_says_so(sql: SqlService) -> None:
    exact = sql.query(SqlQuery("SELECT id FROM range(10)", row_limit=10))
    assert (exact.table.num_rows, exact.truncated) == (10, False)
    cut = sql.query(SqlQuery("SELECT id FROM range(10) ORDER BY id", row_limit=3))
    assert (rows(cut), cut.truncated) == ([(0,), (1,), (2,)], True)
    empty = sql.query(SqlQuery("SELECT id FROM range(0)", row_limit=3))
    assert (empty.table.num_rows, empty.truncated, empty.column_types) == (0, False, ("bigint",))


def test_the_services_row_limit_is_the_largest(sessions: SparkSessions) -> None:
    service = SqlService(sessions, FixedTables({}), SystemClock(), SqlOptions(row_limit=2))
    try:
        result = service.query(SqlQuery("SELECT id FROM range(10)", row_limit=1_000))
        assert (result.table.num_rows, result.truncated) == (2, True)
    finally:
        service.close()


def test_a_query_that_takes_too_long_is_stopped(sql: SqlService) -> None:
    with pytest.raises(EngineFailure, match="it took longer than 300 ms; select less"):
        sql.query(SqlQuery(ENDLESS, timeout_ms=300))
    assert ask(sql, "SELECT 1") == [(1,)]


class ToldTables(FixedTables):
    """No tables; tells a test of each query that asks for them, and so can be stopped."""

    def __init__(self) -> None:
        super().__init__({})
        self.asked = threading.Semaphore(0)

    def tables(self) -> Tables:
        self.asked.release()
        return super().tables()


SUBQUERY = f"SELECT count(*) FROM range(10) WHERE id > ({ENDLESS})"
SUMS = f"({ENDLESS} GROUP BY id % 3) AS sums (id)"
BROADCAST = f"SELECT /*+ BROADCAST(sums) */ count(*) FROM range(10) AS few JOIN {SUMS} USING (id)"


@pytest.mark.parametrize("statement", [ENDLESS, SUBQUERY, BROADCAST])
def test_what_was_cancelled_gives_its_cores_back(sessions: SparkSessions, statement: str) -> None:
    """Spark begins some of a query after it was interrupted, which must end, too."""
    tables = ToldTables()
    service = SqlService(sessions, tables, SystemClock())
    try:
        with ThreadPoolExecutor(2) as pool:
            # Each a little later, so that planning is cut in many places.
            for turn in range(5):
                queries = [SqlQuery(statement, query_id=name) for name in ("one", "other")]
                runs = [pool.submit(service.query, query) for query in queries]
                assert all(tables.asked.acquire(timeout=120) for _ in runs)
                for _ in range(4 * turn):
                    assert sessions.get().range(1).schema  # needs no core
                for query, run in zip(queries, runs, strict=True):
                    assert service.cancel(query.query_id)
                    with pytest.raises(EngineFailure, match="it was cancelled"):
                        run.result()
                assert ask(service, "SELECT count(*) FROM range(0, 100, 1, 2)") == [(100,)]
                assert tables.asked.acquire(timeout=120)
    finally:
        service.close()


def test_cancelling_ends_one_query_alone(sessions: SparkSessions) -> None:
    tables = ToldTables()
    service = SqlService(sessions, tables, SystemClock())
    try:
        assert not service.cancel("mine")
        with ThreadPoolExecutor(2) as pool:
            mine = pool.submit(service.query, SqlQuery(ENDLESS, query_id="mine"))
            other = pool.submit(service.query, SqlQuery(ENDLESS, query_id="other"))
            assert all(tables.asked.acquire(timeout=120) for _ in (mine, other))
            assert service.cancel("mine")
            with pytest.raises(EngineFailure, match="it was cancelled"):
                mine.result()
            with pytest.raises(Conflict, match="a query with the id 'other' is running"):
                service.query(SqlQuery("SELECT 1", query_id="other"))
            assert service.cancel("other")
            with pytest.raises(EngineFailure, match="it was cancelled"):
                other.result()
        assert not service.cancel("mine")
    finally:
        service.close()


def test_a_query_may_be_cancelled_before_it_runs(sessions: SparkSessions) -> None:
    service = SqlService(sessions, FixedTables({}), SystemClock())
    try:
        with service.registered(SqlQuery(ENDLESS, query_id="mine")) as registered:
            with pytest.raises(Conflict, match="a query with the id 'mine' is running"):
                service.query(SqlQuery("SELECT 1", query_id="mine"))
            assert service.cancel("mine")
            with pytest.raises(EngineFailure, match="the query did not end: it was cancelled"):
                registered.run()
        assert not service.cancel("mine")
    finally:
        service.close()


def test_a_stop_lets_queries_end_then_ends_those_that_do_not_and_refuses_new_ones(
    sessions: SparkSessions,
) -> None:
    tables = ToldTables()
    service = SqlService(sessions, tables, SystemClock())
    try:
        with ThreadPoolExecutor(1) as pool:
            endless = pool.submit(service.query, SqlQuery(ENDLESS, query_id="endless"))
            assert tables.asked.acquire(timeout=120)
            service.finish(0.01)
            with pytest.raises(EngineUnavailable, match="Penstock was stopped; try again"):
                ask(service, "SELECT 1")
            told = "^the query did not end: Penstock was stopped; try again after its restart$"
            with pytest.raises(EngineUnavailable, match=told):
                endless.result()
        service.finish(60)  # nothing runs
    finally:
        service.close()


class FullDisk(ToldTables):
    """Fails as a query does whose rows have no room on Spark's disk."""

    def tables(self) -> Tables:
        super().tables()
        raise SparkDiskFull("a disk that Spark writes to is full")


def test_on_a_full_disk_a_query_is_not_tried_again(sessions: SparkSessions) -> None:
    """It took as long once more, often beyond its time limit, and then nobody named the disk."""
    tables = FullDisk()
    service = SqlService(sessions, tables, SystemClock())
    try:
        with pytest.raises(SparkDiskFull, match=r"is full$"):
            ask(service, "SELECT 1")
    finally:
        service.close()
    assert tables.asked.acquire(blocking=False)
    assert not tables.asked.acquire(blocking=False)


# files that go away


def test_a_file_that_went_away_is_looked_for_once_more(
    sessions: SparkSessions, data: DataFolder
) -> None:
    data.publish("moved", table(["2013-01-01"], n=ints(1)))
    (there,) = data.source.tables().of("moved")
    gone = replace(there, path=there.path + ".gone")
    source: TableSource = FixedTables({"moved": (gone,)}, {"moved": (there,)})
    service = SqlService(sessions, source, SystemClock())
    try:
        assert ask(service, "SELECT n FROM moved") == [(1,)]
    finally:
        service.close()


def test_files_may_be_replaced_more_often_than_once_during_a_query(
    sessions: SparkSessions, data: DataFolder
) -> None:
    data.publish("busy", table(["2013-01-01"], n=ints(1)))
    (there,) = data.source.tables().of("busy")
    gone = [replace(there, path=there.path.replace(".parquet", f"{n}.parquet")) for n in range(4)]
    # Each attempt lists the files, and once more after it has failed.
    listings = [{"busy": (gone[(n + 1) // 2],)} for n in range(6)]
    source: TableSource = FixedTables(*listings, {"busy": (there,)})
    service = SqlService(sessions, source, SystemClock())
    try:
        assert ask(service, "SELECT n FROM busy") == [(1,)]
    finally:
        service.close()


def test_a_file_that_stays_away_is_no_matter_of_memory(
    sessions: SparkSessions, data: DataFolder
) -> None:
    data.publish("away", table(["2013-01-01"], n=ints(1)))
    (there,) = data.source.tables().of("away")
    # Named as in a store of which Spark tells in other words than of files of this host.
    gone = replace(there, path=there.path.replace(".parquet", ".gone"))
    source: TableSource = FixedTables(*[{"away": (gone,)}] * 4)
    service = SqlService(sessions, source, SystemClock())
    try:
        with pytest.raises(EngineUnavailable, match="was deleted during the query") as caught:
            ask(service, "SELECT n FROM away")
        assert "memory" not in str(caught.value)
    finally:
        service.close()


def test_a_file_that_goes_away_under_a_view(sessions: SparkSessions, data: DataFolder) -> None:
    first = data.publish("swapped", table(["2013-01-01"], n=ints(1)))
    service = SqlService(sessions, data.source, SystemClock())
    file = data.file(first)
    try:
        assert ask(service, "SELECT n FROM swapped") == [(1,)]
        file.unlink()
        with pytest.raises(EngineFailure, match="is missing: restore the file"):
            ask(service, "SELECT n FROM swapped")
        data.publish("swapped", table(["2013-01-01"], n=ints(2)), version="v2")
        assert ask(service, "SELECT n FROM swapped") == [(2,)]
    finally:
        service.close()


def test_a_deep_storage_whose_folder_is_away_is_said_and_no_segment_is_blamed(
    sessions: SparkSessions, data: DataFolder
) -> None:
    data.publish("unmounted", table(["2013-01-01"], n=ints(1)))
    service = SqlService(sessions, data.source, SystemClock())
    root = Path(data.deep_storage)
    try:
        for asked_before in (False, True):
            if asked_before:
                assert ask(service, "SELECT n FROM unmounted") == [(1,)]
            root.rename(root.with_name("away"))
            try:
                text = f"^the deep storage folder {root} is missing: mount it"
                with pytest.raises(StorageUnavailable, match=text) as caught:
                    ask(service, "SELECT n FROM unmounted")
            finally:
                root.with_name("away").rename(root)
            assert "segment disable" not in str(caught.value)
    finally:
        service.close()


@pytest.mark.parametrize(("is_probe", "blames"), [(False, True), (True, False)])
def test_a_probe_that_finds_spark_lost_blames_no_query(
    sessions: SparkSessions, monkeypatch: pytest.MonkeyPatch, is_probe: bool, blames: bool
) -> None:
    service = SqlService(sessions, FixedTables({}), SystemClock())

    def lose(
        _service: SqlService, _query: SqlQuery, _statement: Statement, run: RunningCall
    ) -> None:
        run.session = sessions.get()
        raise EngineUnavailable("Spark was lost")

    monkeypatch.setattr(SqlService, "_run", lose)
    try:
        with pytest.raises(EngineUnavailable, match="Spark was lost") as caught:
            service.query(SqlQuery("SELECT 1", is_probe=is_probe))
    finally:
        service.close()
    assert ("more memory than Spark has" in str(caught.value)) is blames


def test_text_and_comments_end_where_spark_ends_them(sessions: SparkSessions) -> None:
    """Else what is checked is not what runs: a forbidden call hid in what was no comment."""
    pieces = ["/*", "/*+", "*/", "\\\r\n", "+", "--", "\\", "\r", "\n", "'", '"', "`", " "]
    pieces += [", 4 d", "/", "*", "r"]
    dice = random.Random(5)
    odds = ["/* /*+ */ , 4 d -- */", "--\\\r\n, 4 d", "--\\\n, 4 d", "/* /* */ , 4 d */"]
    compared = 0
    with sessions.with_conf(SQL_CONF).use() as spark:
        for _ in range(250):
            begin, end = dice.choice([("/*", "*/"), ("/*", "-- */"), ("--", ""), ("", "")])
            odds.append(begin + "".join(dice.choices(pieces, k=dice.randint(1, 7))) + end)
        for odd in odds:
            sql = f"SELECT 1 a, 2 b {odd}\n, 3 c"
            try:
                wanted = sum(token.text == "," for token in tokens(sql)) + 1
                found = len(spark.sql(sql).columns)
            except (InvalidRequest, PySparkException):
                continue
            assert found == wanted, repr(sql)
            compared += 1
    assert compared > 80


def test_names_that_differ_in_case_alone_show_no_rows_of_each_other(
    sessions: SparkSessions, tmp_path: Path
) -> None:
    data = DataFolder(tmp_path)
    rows = table(["2013-01-01T00:00:00Z"], n=ints(1))
    for name in ("Twin", "twin", "single"):
        data.publish(name, rows, JANUARY)
    service = SqlService(sessions, data.source, SystemClock())
    try:
        with pytest.raises(InvalidRequest, match='"Twin" and "twin" differ only in case'):
            ask(service, "SELECT SUM(n) FROM twin")
        # Others are answered, whatever words they have.
        assert ask(service, "SELECT SUM(n) AS twin FROM single") == [(1,)]
    finally:
        service.close()
        data.close()
