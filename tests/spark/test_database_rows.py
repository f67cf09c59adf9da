"""Rows of a real PostgreSQL become Parquet with their types; what goes wrong is told with a mend.

Without Spark: the process of a task alone reads databases.
"""

from __future__ import annotations

import datetime as dt
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import orjson
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue, TypeAdapter

from penstock.core.errors import InvalidRequest, NotFound
from penstock.indexing.engine import InputUnavailable
from penstock.indexing.specs.sources.databases import DatabaseInput
from penstock.spark.batch.input.columnar import FOUND_AS
from penstock.spark.batch.input.database_rows import fetch_rows
from tests.kits.this_host_kit import this_host_listed
from tests.storage.reading_database_kit import PASSWORD, ReadDatabase

pytestmark = pytest.mark.postgres

MIB = 1 << 20


@pytest.fixture(autouse=True)
def servers_of_this_host() -> Iterator[None]:
    """Allow servers of tests."""
    with this_host_listed():
        yield


def nothing() -> None:
    """Go on."""


class Reading:
    """Reads inputs into a folder of the test."""

    def __init__(self, database: ReadDatabase, folder: Path) -> None:
        self.database = database
        self.folder = folder
        self._made = 0

    def tables(
        self,
        *sqls: str,
        check: Callable[[], None] = nothing,
        bytes_max: int = 64 * MIB,
        row_bytes_max: int = 16 * MIB,
        password: str = PASSWORD,
        **more: JsonValue,
    ) -> list[pa.Table]:
        source = self.database.source(*sqls, **more)
        wanted = TypeAdapter(DatabaseInput).validate_python(source)
        found = fetch_rows(
            wanted,
            password,
            self._new_file,
            bytes_max=bytes_max,
            row_bytes_max=row_bytes_max,
            check=check,
        )
        return [pq.read_table(one.path) for one in found]

    def row(self, sql: str) -> dict[str, object]:
        (table,) = self.tables(sql)
        (row,) = table.to_pylist()
        return dict(row)

    def _new_file(self, name: str) -> Path:
        self._made += 1
        return self.folder / f"{self._made}-{name}"


@pytest.fixture
def reading(database: ReadDatabase, tmp_path: Path) -> Reading:
    return Reading(database, tmp_path)


@pytest.fixture
def things(database: ReadDatabase) -> Iterator[str]:
    database.execute("CREATE TABLE things (n int PRIMARY KEY)")
    yield "things"
    database.execute("DROP TABLE things")


@pytest.mark.parametrize(
    ("expression", "value", "type_"),
    [
        ("true", True, pa.bool_()),
        ("7::int2", 7, pa.int64()),
        ("-2147483648", -(2**31), pa.int64()),
        ("9223372036854775807", 2**63 - 1, pa.int64()),
        ("0.1::float4", 0.1, pa.float64()),
        ("1e300::float8", 1e300, pa.float64()),
        ("'-Infinity'::float8", float("-inf"), pa.float64()),
        ("12.50::numeric(10, 2)", "12.50", pa.string()),
        ("123456789012345678901234567890.123", "123456789012345678901234567890.123", pa.string()),
        ("'NaN'::numeric", "NaN", pa.string()),
        ("'a, \"b\"\n''c'''", "a, \"b\"\n'c'", pa.string()),
        ("''", "", pa.string()),
        ("'é😀'::varchar", "é😀", pa.string()),
        ("U&'\\FEFFa'", "\ufeffa", pa.string()),  # where text begins it could be a mark
        ("U&'\\FEFF'", "\ufeff", pa.string()),
        ("'ab'::char(3)", "ab ", pa.string()),
        ("'t'", "t", pa.string()),
        ("date '2026-02-28'", dt.date(2026, 2, 28), pa.date32()),
        (
            "timestamp '2026-02-28 23:59:59.123456'",
            dt.datetime.fromisoformat("2026-02-28T23:59:59.123456"),
            pa.timestamp("us"),
        ),
        (
            "timestamptz '2026-02-28 23:00:00+05:30'",
            dt.datetime(2026, 2, 28, 17, 30, tzinfo=dt.UTC),
            pa.timestamp("us", "UTC"),
        ),
        ("time '10:11:12.5'", "10:11:12.5", pa.string()),
        ("interval '1 day 2 hours'", "P1DT2H", pa.string()),
        ("'00000000-0000-0000-0000-00000000000a'::uuid",
         "00000000-0000-0000-0000-00000000000a", pa.string()),
        ("inet '10.0.0.1'", "10.0.0.1", pa.string()),
        ("'\\x00ff'::bytea", "AP8=", pa.string()),
        ("decode(repeat('ff', 100), 'hex')", "/" * 133 + "w==", pa.string()),
        ("'{\"a\": [1,\n 2]}'::json", '{"a": [1,\n 2]}', pa.string()),
        ("'{\"a\": [1, 2]}'::jsonb", '{"a": [1, 2]}', pa.string()),
        ("ARRAY[1, NULL, 3]", [1, None, 3], pa.list_(pa.int64())),
        ("ARRAY[]::int8[]", [], pa.list_(pa.int64())),
        ("ARRAY[0.5, 2]", [0.5, 2.0], pa.list_(pa.float64())),
        ("ARRAY['a\"b', NULL, 'c\nd']", ['a"b', None, "c\nd"], pa.list_(pa.string())),
        ("ARRAY[true, false]", [True, False], pa.list_(pa.bool_())),
        ("ARRAY[date '2026-01-02']", ["2026-01-02"], pa.list_(pa.string())),
        ("ROW(1, 'x')", '{"f1":1,"f2":"x"}', pa.string()),
        ("ARRAY['{\"a\":1}'::jsonb]", '[{"a": 1}]', pa.string()),
        ("int4range(1, 5)", "[1,5)", pa.string()),
    ],
)  # fmt: skip
def test_values_keep_their_types(
    reading: Reading, expression: str, value: object, type_: pa.DataType
) -> None:
    (table,) = reading.tables(f"SELECT {expression} AS v UNION ALL SELECT NULL")
    assert table.schema.field("v").type == type_
    assert table.column("v").to_pylist() == [value, None]
    # Beside others, too: a row of one null is an empty line.
    beside = reading.row(f"SELECT 1 AS a, {expression} AS v, NULL AS b")
    assert beside == {"a": 1, "v": value, "b": None}


def test_types_of_the_database_itself(reading: Reading, database: ReadDatabase) -> None:
    database.execute("CREATE TYPE mood AS ENUM ('good', 'bad')")
    database.execute("CREATE TYPE point3 AS (x int, y text)")
    database.execute("CREATE DOMAIN cents AS int CHECK (VALUE >= 0)")
    try:
        row = reading.row(
            "SELECT 'bad'::mood AS a, ARRAY['good']::mood[] AS b, (1, 'z')::point3 AS c,"
            " ARRAY[(1, 'z')]::point3[] AS d, 5::cents AS e"
        )
        assert row == {
            "a": "bad", "b": ["good"], "c": '{"x":1,"y":"z"}', "d": '[{"x":1,"y":"z"}]', "e": 5
        }  # fmt: skip
    finally:
        database.execute("DROP TYPE mood, point3")
        database.execute("DROP DOMAIN cents")


def test_what_is_text_here_says_what_it_is(reading: Reading) -> None:
    (table,) = reading.tables(
        "SELECT 1::numeric AS a, 1::numeric(18) AS b, 1::numeric(19) AS c, '1'::json AS d, '1' AS e"
    )
    told = {field.name: (field.metadata or {}).get(FOUND_AS) for field in table.schema}
    assert told == {"a": b"double", "b": b"long", "c": b"double", "d": b"json", "e": None}


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("timestamp 'infinity'", "infinity"),
        ("date '-infinity'", "infinity"),
        ("timestamptz '0044-03-15 12:00:00+00 BC'", "BC"),
        ("ARRAY[[1, 2], [3, 4]]", "select to_json"),
        ("ARRAY['NaN'::float8]", "select to_json"),
    ],
)
def test_what_no_column_holds_is_told_and_becomes_no_null(
    reading: Reading, expression: str, told: str
) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(told)) as caught:
        reading.tables("SELECT 1", f"SELECT 1 AS a, {expression} AS odd")
    assert "sqls[1] of the database 127.0.0.1" in str(caught.value)
    assert "the column 'odd'" in str(caught.value)


def test_names_of_columns(reading: Reading) -> None:
    odd = 'SELECT 1 AS "A b", 2 AS "é\'""", 3 AS "{}", 4 AS "c1"'
    assert list(reading.row(odd)) == ["A b", "é'\"", "{}", "c1"]
    (folded,) = reading.tables('SELECT 1 AS "Shop", 2 AS cents', foldCase=True)
    assert folded.column_names == ["shop", "cents"]
    with pytest.raises(InvalidRequest, match=r"two columns are named 'a'.*AS"):
        reading.tables("SELECT 1 AS a, 2 AS a")
    with pytest.raises(InvalidRequest, match=r"two columns are named 'a'.*AS"):
        reading.tables('SELECT 1 AS a, 2 AS "A"', foldCase=True)


def test_statements_of_all_forms_that_read(reading: Reading) -> None:
    tables = reading.tables(
        "VALUES (1), (2)",
        "WITH t AS (SELECT 3 AS n) SELECT * FROM t;",
        "(SELECT 4 AS n ORDER BY 1 LIMIT 1) -- a comment; ends it",
        "SELECT 5 AS n WHERE false ;; ",
        "SELECT 'it''s; not $1 %s %(x)s {}' AS n /* ) */",
    )
    assert [table.num_rows for table in tables] == [2, 1, 1, 0, 1]
    assert tables[3].schema.field("n").type == pa.int64()
    assert tables[4].to_pylist() == [{"n": "it's; not $1 %s %(x)s {}"}]


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELEC 1", r'syntax error at or near "SELEC" \(line 1, column 1, 42601\): correct'),
        ("SELECT 1,\n  nowhere FROM things", r'"nowhere" does not exist \(line 2, column 3'),
        ("SELECT * FROM absent", r'relation "absent" does not exist'),
        ("SELECT 1 / (n - n) FROM (VALUES (1)) AS t (n)", r"division by zero"),
        ("SELECT $1::int", "parameter"),
        ("SELECT 1; SELECT 2", "cannot insert multiple commands.*each statement an entry of sqls"),
        ("SELECT 1) AS a, (SELECT 2", "syntax error"),
        ("SELECT 1) TO STDOUT; DROP TABLE things; COPY (SELECT 1", "syntax error|multiple"),
        ("INSERT INTO things VALUES (1)", "it returns no rows"),
        ("INSERT INTO things VALUES (1) RETURNING n", "correct the statement, a SELECT"),
        ("WITH t AS (INSERT INTO things VALUES (1) RETURNING n) SELECT * FROM t", "modifying"),
        ("DROP TABLE things", "it returns no rows"),
        ("SELECT * INTO copies FROM things", "it returns no rows"),
        ("COMMIT", "it returns no rows"),
        ("SET TRANSACTION READ WRITE", "it returns no rows"),
        ("SELECT set_config('transaction_read_only', 'off', false)", "read-only|read-write"),
        ("SELECT n FROM things FOR UPDATE", "only read: write a SELECT"),
        ("SELECT nextval('numbers')", "only read: write a SELECT"),
        ("SELECT pg_read_file('/etc/passwd')", "permission denied .*: grant its user access"),
        ("SHOW timezone", "syntax error .*: correct the statement, a SELECT"),
        ("COPY things TO '/tmp/x'", "it returns no rows"),
        ("SELECT FROM things", "it returns no rows"),
    ],
)
def test_a_statement_that_does_not_only_read_is_refused_in_the_databases_words(
    reading: Reading, database: ReadDatabase, things: str, sql: str, told: str
) -> None:
    database.execute("CREATE SEQUENCE IF NOT EXISTS numbers")
    database.execute("GRANT ALL ON SEQUENCE numbers TO reader")
    with pytest.raises(InvalidRequest, match=told) as caught:
        reading.tables(f"SELECT count(*) FROM {things}", sql)
    assert "sqls[1] of the database 127.0.0.1:" in str(caught.value)
    assert database.owner.execute("SELECT count(*) FROM things").fetchone() == (0,)


def test_the_statements_of_an_input_see_one_state(
    reading: Reading, database: ReadDatabase, things: str
) -> None:
    asked = 0

    def check() -> None:
        nonlocal asked
        asked += 1
        database.execute(f"INSERT INTO {things} VALUES ({asked})")

    count = f"SELECT count(*) AS n FROM {things}"
    found = [table.to_pylist() for table in reading.tables(count, count, check=check)]
    assert asked > 2
    assert found[0] == found[1]


def test_a_user_who_is_refused_is_told_without_the_password(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the process has for itself stands in for nothing.
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv("PGUSER", "reader")
    for wrong, told in (
        ({"password": "other"}, "password authentication failed"),
        ({"user": "nobody"}, "password authentication failed"),
        ({"connectURI": reading.database.url.replace("/shop", "/absent")}, "does not exist"),
        ({"password": ""}, "is empty"),
    ):
        password = wrong.pop("password", PASSWORD)
        with pytest.raises(InvalidRequest, match=told) as caught:
            reading.tables("SELECT 1", password=password, **wrong)
        assert "hush" not in str(caught.value)
        assert "the database 127.0.0.1:" in str(caught.value)


def test_a_variable_of_the_process_neither_leads_elsewhere_nor_changes_what_is_read(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "SELECT current_setting('search_path') AS path"
    before = reading.row(path)
    for name, value in (
        ("PGHOSTADDR", "127.0.0.9"),  # where the password would go
        ("PGPORT", "1"),
        ("PGOPTIONS", "-c search_path=pg_catalog"),
        ("PGTARGETSESSIONATTRS", "standby"),
        ("PGLOADBALANCEHOSTS", "sometimes"),
        ("PGSSLNEGOTIATION", "direct"),
        ("PGCHANNELBINDING", "require"),  # which there is with TLS alone
        ("PGSSLMINPROTOCOLVERSION", "none"),
    ):
        monkeypatch.setenv(name, value)
        assert reading.row(path) == before


def test_a_server_that_is_not_there_may_come_back(reading: Reading) -> None:
    for url in ("jdbc:postgresql://127.0.0.1:1/shop", "jdbc:postgresql://absent.invalid/shop"):
        with pytest.raises(InputUnavailable, match="check the server, or correct"):
            reading.tables("SELECT 1", connectURI=url)


def test_a_server_that_ends_while_a_connection_is_made_may_come_back(reading: Reading) -> None:
    def end(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(8)
            connection.sendall(b"S")  # TLS may begin

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=end, args=[listening])
        thread.start()
        url = f"jdbc:postgresql://127.0.0.1:{listening.getsockname()[1]}/shop?sslmode=require"
        with pytest.raises(InputUnavailable, match="check the server"):
            reading.tables("SELECT 1", connectURI=url)
        thread.join()


def test_a_connection_that_is_cut_is_tried_again(reading: Reading) -> None:
    with pytest.raises(InputUnavailable, match="try again"):
        reading.tables("SELECT pg_terminate_backend(pg_backend_pid())")


def test_a_limit_of_time_is_named(reading: Reading, database: ReadDatabase, things: str) -> None:
    for name, sql in (
        ("statement_timeout", "SELECT pg_sleep(600)"),
        ("lock_timeout", f"SELECT * FROM {things}"),
    ):
        database.execute(f"ALTER ROLE reader SET {name} = 50")
        try:
            with database.owner.transaction():
                database.execute(f"LOCK TABLE {things}")
                with pytest.raises(InvalidRequest, match=f"a longer {name}"):
                    reading.tables(sql)
        finally:
            database.execute(f"ALTER ROLE reader RESET {name}")


def test_the_parameters_of_the_url_are_used(reading: Reading, database: ReadDatabase) -> None:
    database.execute("CREATE SCHEMA other CREATE TABLE hidden (n int)")
    database.execute(
        "GRANT USAGE ON SCHEMA other TO reader; GRANT SELECT ON other.hidden TO reader"
    )
    url = f"{database.url}?currentSchema=other&ApplicationName=the+shop&sslmode=disable"
    try:
        _, named = reading.tables(
            "SELECT n FROM hidden",
            "SELECT current_setting('application_name') AS a",
            connectURI=url,
        )
        assert named.to_pylist() == [{"a": "the shop"}]
    finally:
        database.execute("DROP SCHEMA other CASCADE")


def test_tls_is_what_the_url_asks_for(
    reading: Reading, database: ReadDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
    monkeypatch.setenv("HOME", str(tmp_path))

    def encrypted(query: str, host: str = "127.0.0.1") -> object:
        url = f"{database.url.replace('127.0.0.1', host)}{query}"
        (table,) = reading.tables(asked, connectURI=url)
        return table.column("ssl").to_pylist()

    assert encrypted("?sslmode=disable") == [False]
    assert encrypted("?sslmode=require") == [True]
    with pytest.raises(InvalidRequest, match=r"root certificate file .* does not exist"):
        encrypted("?ssl=true")
    authority = tmp_path / "authority.pem"
    database.authority.cert_pem.write_to_path(str(authority))
    monkeypatch.setenv("PGSSLROOTCERT", str(authority))
    assert encrypted("?ssl=true") == [True]
    assert encrypted("?sslmode=verify-ca", "localhost") == [True]
    with pytest.raises(InvalidRequest, match="does not match host name"):
        encrypted("?sslmode=verify-full", "localhost")


class Stopped(NotFound):
    """The reading should end."""


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT pg_sleep(600)",  # before its first row
        "SELECT repeat('x', 1000) AS x, generate_series(1, 1000000000) AS n",  # amid its rows
    ],
)
def test_a_reading_that_is_stopped_ends_the_statement(
    reading: Reading, database: ReadDatabase, sql: str
) -> None:
    def check() -> None:
        # Its own statement, and not the settings before it.
        if any("COPY" in one for one in database.running()):
            raise Stopped("enough")

    with pytest.raises(Stopped):
        reading.tables(sql, check=check)
    while database.running():
        pass


def test_a_process_that_is_killed_ends_the_statement(
    database: ReadDatabase, tmp_path: Path
) -> None:
    reading = subprocess.Popen(reader_of(database, "SELECT pg_sleep(600)", tmp_path))
    while not any("pg_sleep" in one for one in database.running()):
        assert reading.poll() is None
    reading.kill()
    reading.wait()
    while database.running():
        pass


def test_too_much_is_refused_before_it_is_held(reading: Reading) -> None:
    many = "SELECT repeat('x', 1000) AS x, generate_series(1, 1000000000) AS n"
    with pytest.raises(InvalidRequest, match=f"more than {MIB} bytes: split the statement"):
        reading.tables(many, bytes_max=MIB)
    with pytest.raises(InvalidRequest, match="a row has more than 1000 bytes: select less"):
        reading.tables("SELECT 1 AS x", "SELECT repeat('x', 1001) AS x", row_bytes_max=1000)


def reader_of(database: ReadDatabase, sql: str, folder: Path) -> list[str]:
    """Return a command that reads a statement, and tells rows and how its memory grew in KiB."""
    script = folder / "read.py"
    script.write_text(
        """
import resource, sys
from pathlib import Path
import orjson, pyarrow.parquet as pq, pyarrow.csv, psycopg
from penstock.core.guarded_connections import NETWORK_GUARD
from penstock.core.network_guard import NetworkGuard
from penstock.indexing.specs.sources.databases import DatabaseInput
from penstock.spark.batch.input.database_rows import fetch_rows
NETWORK_GUARD.set(NetworkGuard.of(["localhost:*"]))
wanted = DatabaseInput.model_validate(orjson.loads(sys.argv[1]))
password = wanted.database.connector_config.password
new_file = lambda name: Path(sys.argv[2]) / name
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(found,) = fetch_rows(
    wanted, password, new_file, bytes_max=1 << 30, row_bytes_max=1 << 20, check=lambda: None
)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(pq.ParquetFile(found.path).metadata.num_rows, after - before)
"""
    )
    source = orjson.dumps(database.source(sql)).decode()
    return [sys.executable, str(script), source, str(folder)]


def test_a_million_rows_are_held_a_part_at_a_time(database: ReadDatabase, tmp_path: Path) -> None:
    sql = "SELECT md5('a') || repeat('x', 400) AS t, generate_series(1, 1000000) AS n"
    done = subprocess.run(
        reader_of(database, sql, tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows, kib = map(int, done.stdout.split())
    assert rows == 1_000_000
    assert kib < 300 * 1024, "of 440 MB"


_NUMBERS = st.decimals(allow_nan=False, allow_infinity=False, places=5).filter(
    lambda number: abs(number) < Decimal(10) ** 40
)
_ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.floats(allow_nan=False),
        st.none() | _NUMBERS,
        st.none() | st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00")),
        st.none() | st.booleans(),
        st.none() | st.datetimes(timezones=st.just(dt.UTC)),
        st.none() | st.dates(),
        st.none() | st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=4),
        st.none()
        | st.lists(
            st.none()
            | st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00")),
            max_size=4,
        ),
    ),
    max_size=20,
)


@given(rows=_ROWS)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_rows_come_as_they_are(reading: Reading, rows: list[tuple[object, ...]]) -> None:
    owner = reading.database.owner
    owner.execute("DROP TABLE IF EXISTS drawn")
    owner.execute(
        "CREATE TABLE drawn (at int, a int8, b float8, c numeric, d text, e bool, f timestamptz,"
        " g date, h int8[], i text[])"
    )
    with owner.cursor() as cursor:
        command = "INSERT INTO drawn VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
        cursor.executemany(command, [(at, *row) for at, row in enumerate(rows)])
    (table,) = reading.tables("SELECT * FROM drawn ORDER BY at")
    found = [tuple(row.values())[1:] for row in table.to_pylist()]
    assert [(*row[:2], None if row[2] is None else Decimal(str(row[2])), *row[3:])
            for row in found] == rows  # fmt: skip


def test_the_driver_is_of_a_release_that_keeps_what_is_promised() -> None:
    """`sslcertmode` and `require_auth` keep what the process has for itself out of connections."""
    assert psycopg.pq.version() >= 160000
