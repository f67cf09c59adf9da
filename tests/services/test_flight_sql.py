"""Flight SQL with ADBC's driver, over the HTTP API with stub answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import adbc_driver_flightsql.dbapi as adbc
import pyarrow as pa
import pytest
from pyarrow import flight

from penstock.core.access.access_control import AccessControl
from penstock.core.access.credentials import CredentialFile
from penstock.core.access.passwords import hash_password
from penstock.core.clock import SystemClock
from penstock.core.errors import Forbidden, InvalidRequest, Unavailable
from penstock.core.metrics import MetricRegistry
from penstock.services.api.asgi import application
from penstock.services.api.login import LoginRoutes
from penstock.services.api.sql import SqlRoutes
from penstock.services.flight import flight_server, messages
from penstock.services.flight.flight_server import FlightSqlServer
from penstock.services.flight.messages import read_message, written_message
from penstock.services.flight.queries import AskedStatement
from penstock.services.host.process import listen
from penstock.services.http_server import HttpServer
from penstock.services.options.option_values import HostPort
from penstock.spark.sql.service import RegisteredQuery, SqlQuery, SqlResult
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import AccessFolderKit
from tests.harness.event_kit import KeptEvents

if TYPE_CHECKING:
    from penstock.spark.sql.fetcher import RowSource

MANY = pa.table({"n": pa.array(range(200_000), pa.int64()), "t": ["x"] * 200_000})
DESCRIBED = pa.table({"col_name": ["n", "d"], "data_type": ["bigint", "decimal(10,2)"]})
TABLES = pa.table(
    {
        "catalog_name": ["druid", "druid"],
        "db_schema_name": ["druid", "druid"],
        "table_name": ["clicks", "empty"],
        "table_type": ["TABLE", "TABLE"],
    }
)
COLUMNS = pa.table(
    {
        "TABLE_SCHEMA": ["druid"] * 2,
        "TABLE_NAME": ["clicks"] * 2,
        "COLUMN_NAME": ["__time", "page"],
        "DATA_TYPE": ["TIMESTAMP", "VARCHAR"],
    }
)


class HalfRows:
    """Rows of an answer whose second half cannot be read."""

    schema, num_rows, nbytes = MANY.schema, MANY.num_rows, MANY.nbytes

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        yield from MANY.slice(0, 100_000).to_batches()
        raise OSError("/secret/file is gone")


class StubSql:
    """Answers by the statement; one with `wait` until it is cancelled."""

    def __init__(self) -> None:
        self.queries: list[SqlQuery] = []
        self.came, self.cancelled = threading.Event(), threading.Event()

    @contextmanager
    def registered(self, query: SqlQuery) -> Iterator[RegisteredQuery]:
        self.queries.append(query)
        yield RegisteredQuery(lambda: self._answer(query), self.cancelled.set)

    def _answer(self, query: SqlQuery) -> SqlResult:
        sql, table = query.sql, MANY
        if "wait" in sql:
            self.came.set()
            assert self.cancelled.wait(120)
            raise InvalidRequest("it was cancelled")
        if "wrong" in sql:
            place = sql.index("wrong") + 1
            raise InvalidRequest(f"no column wrong, line 1, column {place}")
        if "forbidden" in sql:
            raise Forbidden("you may read no datasource")
        if "away" in sql:
            raise Unavailable("Spark is away")
        if sql.startswith("DESCRIBE"):
            table = DESCRIBED
        elif "half" in sql:
            return SqlResult(cast("RowSource", HalfRows()), ("", ""), truncated=False)
        elif "cut" in sql:
            return SqlResult(MANY, ("", ""), truncated=True)
        elif "FROM INFORMATION_SCHEMA.TABLES" in sql:
            table = TABLES
        elif "FROM INFORMATION_SCHEMA.SCHEMATA" in sql:
            names = [one for one in ("catalog_name", "db_schema_name") if f"AS {one}" in sql]
            table = TABLES.select(names).slice(0, 1)
        elif "INFORMATION_SCHEMA.COLUMNS" in sql:
            table = COLUMNS
        return SqlResult(table, ("",) * table.num_columns, truncated=False)

    def timeout_ms(self, _query: SqlQuery) -> int:
        return 60_000

    def cancel(self, _query_id: str) -> bool:
        self.cancelled.set()
        return True


class Rig:
    def __init__(self, access: AccessControl) -> None:
        self.sql = StubSql()
        queries = SqlRoutes(self.sql, MetricRegistry(), KeptEvents(), VirtualClock())
        routes = [*queries.routes(), *LoginRoutes().routes()]
        app = application(routes, access=access)
        self.http = HttpServer(app, listen(HostPort("127.0.0.1", 0), "--http"))
        self.http.start()
        self.flight = FlightSqlServer(
            HostPort("127.0.0.1", 0), f"http://127.0.0.1:{self.http.port}"
        )
        self.flight.start()
        self.address = f"grpc://127.0.0.1:{self.flight.port}"

    def connect(self, **more: str) -> adbc.Connection:
        return adbc.connect(self.address, db_kwargs=more, autocommit=True)

    def close(self) -> None:
        self.sql.cancelled.set()
        self.flight.stop()
        self.http.stop()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with closing(Rig(AccessControl.open())) as made:
        yield made


def test_rows_arrive_as_arrow(rig: Rig) -> None:
    with rig.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT * FROM many")
        assert cursor.fetch_arrow_table().equals(MANY)
    assert rig.sql.queries[-1].sql == "SELECT * FROM many"


def test_parameters_are_values(rig: Rig) -> None:
    with rig.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT n FROM many WHERE a = ? AND b = ?", ("x'; --", 5))
        assert cursor.fetchone() == (0, "x")
    assert list(rig.sql.queries[-1].parameters) == ["x'; --", 5]
    assert any(one.sql.startswith("DESCRIBE QUERY ") for one in rig.sql.queries)


def test_tables_and_their_columns(rig: Rig) -> None:
    with rig.connect() as connection:
        found = connection.adbc_get_objects(depth="columns").read_all().to_pylist()
        (catalog,) = [one for one in found if one["catalog_name"] == "druid"]
        (schema,) = catalog["catalog_db_schemas"]
        columns = {
            table["table_name"]: [one["column_name"] for one in table["table_columns"]]
            for table in schema["db_schema_tables"]
        }
        assert columns == {"clicks": ["__time", "page"], "empty": []}
        assert connection.adbc_get_info()["vendor_name"] == "Penstock"


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("wrong", "no column wrong, line 1, column 8"),
        ("forbidden", "you may read no datasource"),
        ("away", "Spark is away"),
        ("cut", "more rows than the limit"),
    ],
)
def test_errors_say_what_is_wrong(rig: Rig, word: str, text: str) -> None:
    with (
        rig.connect() as connection,
        connection.cursor() as cursor,
        pytest.raises(adbc.Error, match=text) as caught,
    ):
        cursor.execute(f"SELECT {word}")
    assert "Traceback" not in str(caught.value)


def test_credentials_are_those_of_the_http_api(tmp_path: Path) -> None:
    kit = AccessFolderKit(tmp_path / "access")
    file = CredentialFile(kit.folder / "credentials.json", SystemClock())
    file.add_user("ann", hash_password("secret-enough"), ("analyst",))
    token = file.add_token("ci", ("analyst",), None, None).text
    kit.control.refresh()
    ways = {
        "user:ann": {"username": "ann", "password": "secret-enough"},
        "token:ci": {"adbc.flight.sql.authorization_header": f"Bearer {token}"},
    }
    with closing(Rig(kit.control)) as rig:
        for principal, credential in ways.items():
            with rig.connect(**credential) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT 1")
                cursor.fetchone()
            assert rig.sql.queries[-1].principal == principal
        count = len(rig.sql.queries)
        for wrong in ({}, {"username": "ann", "password": "wrong"}):
            with pytest.raises(adbc.Error, match=r"(?i)unauthenticated") as caught:  # noqa: SIM117
                with rig.connect(**wrong) as connection, connection.cursor() as cursor:
                    cursor.execute("SELECT 1")
            assert "give the driver a user and a password" in str(caught.value)
        assert len(rig.sql.queries) == count


def test_calls_of_one_principal_leave_places_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_server, "CALLS_OF_ONE_MAX", 1)
    kit = AccessFolderKit(tmp_path / "access")
    file = CredentialFile(kit.folder / "credentials.json", SystemClock())
    tokens = {name: file.add_token(name, ("analyst",), None, None).text for name in ("a", "b")}
    kit.control.refresh()

    with closing(Rig(kit.control)) as made, ThreadPoolExecutor(1) as threads:

        def read(name: str, sql: str) -> int:
            header = {"adbc.flight.sql.authorization_header": f"Bearer {tokens[name]}"}
            with made.connect(**header) as connection, connection.cursor() as cursor:
                cursor.execute(sql)
                return int(cursor.fetch_arrow_table().num_rows)

        waits = threads.submit(read, "a", "SELECT wait")
        assert made.sql.came.wait(120)
        with pytest.raises(adbc.Error, match="1 calls of yours run"):
            read("a", "SELECT 1")
        assert read("b", "SELECT 1") == MANY.num_rows
        made.sql.cancelled.set()
        with pytest.raises(adbc.Error, match="cancelled"):
            waits.result(120)
        assert read("a", "SELECT 1") == MANY.num_rows


def test_an_answer_that_ends_early_is_an_error_without_a_trace(rig: Rig) -> None:
    handle = AskedStatement("SELECT half").to_handle()
    ticket = flight.Ticket(written_message(messages.TICKET, statement_handle=handle))
    with pytest.raises(flight.FlightError) as caught:
        flight.connect(rig.address).do_get(ticket).read_all()
    text = str(caught.value)
    assert "does not answer" in text
    assert "Traceback" not in text
    assert ".py" not in text
    assert "secret" not in text


def test_a_query_whose_client_leaves_is_cancelled(rig: Rig) -> None:
    client = flight.connect(rig.address)
    command = written_message(messages.STATEMENT, query="SELECT wait")
    info = client.get_flight_info(flight.FlightDescriptor.for_command(command))
    ticket = info.endpoints[0].ticket
    for timeout_s in (0.5, 5, 60):  # the first ones may end before the query has begun
        with pytest.raises((flight.FlightTimedOutError, flight.FlightCancelledError)):
            client.do_get(ticket, flight.FlightCallOptions(timeout=timeout_s)).read_all()
        if rig.sql.came.wait(10):
            break
    assert rig.sql.came.wait(60)
    assert rig.sql.cancelled.wait(60)


@pytest.mark.parametrize(
    "command",
    [
        b"",
        b"\xff\xff",
        written_message(messages.CREATED),
        written_message(messages.TICKET, statement_handle=b"{}"),
        written_message(messages.PREPARED, prepared_statement_handle=b"[]"),
        written_message(messages.PREPARED, prepared_statement_handle=b'{"sql": 1}'),
        written_message(messages.STATEMENT).replace(b"StatementQuery", b"StatementQuerz"),
    ],
)
def test_other_commands_are_refused(rig: Rig, command: bytes) -> None:
    client = flight.connect(rig.address)
    count = len(rig.sql.queries)
    with pytest.raises(flight.FlightError) as caught:
        client.get_flight_info(flight.FlightDescriptor.for_command(command))
    assert "Traceback" not in str(caught.value)
    with pytest.raises(flight.FlightError):
        client.do_get(flight.Ticket(command)).read_all()
    assert len(rig.sql.queries) == count


def test_messages_are_read_as_they_are_written() -> None:
    for kind, values in (
        (messages.STATEMENT, {"query": "SELECT 1"}),
        (messages.TABLES, {"catalog": "", "table_types": ["a", "b"], "include_schema": True}),
        (messages.SQL_INFO, {"info": [1, 2]}),
    ):
        found = read_message(written_message(kind, **values), kind)  # type: ignore[arg-type]
        assert found.kind == kind
        assert {name: found.values[name] for name in values} == values
    none = read_message(written_message(messages.TABLES), messages.TABLES)
    assert none.text_or_none("catalog") is None
    assert AskedStatement.of_handle(AskedStatement("x", [1, None]).to_handle()).sql == "x"


def test_other_users_of_the_host_are_not_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing is configured, a wrong credential of the own user counts as none."""
    with closing(Rig(AccessControl(None, SystemClock()))) as rig:
        with rig.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        monkeypatch.setattr(flight_server, "peer_user_id", lambda _client, _server: 12_345)
        count = len(rig.sql.queries)
        command = written_message(messages.STATEMENT, query="SELECT 1")
        descriptor = flight.FlightDescriptor.for_command(command)
        handle = AskedStatement("SELECT 1").to_handle()
        ticket = flight.Ticket(written_message(messages.TICKET, statement_handle=handle))
        prepared = written_message(messages.PREPARED, prepared_statement_handle=handle)
        create = flight.Action("CreatePreparedStatement", written_message(messages.CREATE))
        for shown in (None, b"Bearer nonsense", b"x"):
            headers = [] if shown is None else [(b"authorization", shown)]
            options = flight.FlightCallOptions(headers=headers)
            client = flight.connect(rig.address)
            for call in (
                lambda: client.get_flight_info(descriptor, options),  # noqa: B023
                lambda: client.do_get(ticket, options).read_all(),  # noqa: B023
                lambda: list(client.do_action(create, options)),  # noqa: B023
                lambda: put(client, prepared, options),  # noqa: B023
            ):
                with pytest.raises(flight.FlightUnauthenticatedError):
                    call()
        assert len(rig.sql.queries) == count


def put(
    client: flight.FlightClient, command: bytes, options: flight.FlightCallOptions, count: int = 1
) -> bytes:
    schema = pa.schema([("a", pa.string())])
    descriptor = flight.FlightDescriptor.for_command(command)
    writer, reader = client.do_put(descriptor, schema, options)
    with writer:
        for _ in range(count):
            writer.write_batch(pa.record_batch([["x"]], schema))
        writer.done_writing()
        found = reader.read()
        return b"" if found is None else found.to_pybytes()


def test_what_a_client_sends_has_bounds(rig: Rig) -> None:
    client = flight.connect(rig.address)
    options = flight.FlightCallOptions()
    handle = AskedStatement("SELECT ?").to_handle()
    prepared = written_message(messages.PREPARED, prepared_statement_handle=handle)
    assert b'"x"' in put(client, prepared, options)
    with pytest.raises(flight.FlightError, match="one row"):
        put(client, prepared, options, 2)
    for sql in ("SELECT 1" + " " * (5 << 20),):
        command = written_message(messages.STATEMENT, query=sql)
        with pytest.raises(flight.FlightError, match=r"characters|long"):
            client.get_flight_info(flight.FlightDescriptor.for_command(command))
