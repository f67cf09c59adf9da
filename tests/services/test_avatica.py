"""Avatica's JSON protocol, as Druid's JDBC driver speaks it: requests with their answers."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import decimal
import gc
import json
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.middleware import Middleware
from starlette.types import Message, Receive, Scope, Send

from penstock.core.access.credentials import CredentialFile
from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest, PenstockError
from penstock.core.metrics import MetricRegistry
from penstock.services.api.asgi import application
from penstock.services.api.avatica import connections, logins
from penstock.services.api.avatica.connections import (
    CONNECTIONS_MAX,
    IDLE_S,
    LARGE_RESULTS_MAX,
    STATEMENTS_MAX,
    Frames,
)
from penstock.services.api.avatica.logins import BODY_BYTES_MAX, HELD_BYTES_MAX, AvaticaLogins
from penstock.services.api.avatica.messages import read_request
from penstock.services.api.avatica.routes import PATH, AvaticaRoutes
from penstock.services.api.sql import SqlRoutes
from penstock.spark.sql.answer_files import AnswerFolder, used_bytes
from penstock.spark.sql.service import RegisteredQuery, SqlQuery, SqlResult
from penstock.testing.clock import VirtualClock
from tests.broker.broker_access_kit import hash_once
from tests.harness.access_kit import AccessFolderKit, as_principal
from tests.harness.event_kit import KeptEvents
from tests.services.overlord_kit import Api

NUMBERS = pa.table({"n": pa.array(range(12), pa.int64())})
NOON = dt.datetime(1969, 12, 31, 12, 0, 0, 1_500, dt.UTC)
EVERY_TYPE = pa.table(
    {
        "yes": [True, None],
        "small": pa.array([1, None], pa.int8()),
        "whole": pa.array([2, None], pa.int32()),
        "long": pa.array([2**62, None], pa.int64()),
        "real": [0.5, None],
        "exact": pa.array([decimal.Decimal("1.25"), None], pa.decimal128(10, 2)),
        "text": ["<script>", None],
        "time": pa.array([NOON, None], pa.timestamp("us", "UTC")),
        "day": pa.array([dt.date(1969, 12, 31), None], pa.date32()),
        "list": [[1, 2], None],
        "bytes": pa.array([b"\xff", None], pa.binary()),
    }
)
DESCRIBED = pa.table(
    {"col_name": ["n", "t", "d"], "data_type": ["bigint", "timestamp", "decimal(10,2)"]}
)


class StubSql:
    """Answers by the statement."""

    def __init__(self) -> None:
        self.queries: list[SqlQuery] = []
        self.large: pa.Table | None = None
        self.folder: AnswerFolder | None = None
        self.started = threading.Semaphore(0)
        self.released = threading.Event()

    @contextmanager
    def registered(self, query: SqlQuery) -> Iterator[RegisteredQuery]:
        self.queries.append(query)
        yield RegisteredQuery(lambda: self._answer(query), lambda: None)

    def _answer(self, query: SqlQuery) -> SqlResult:
        table = NUMBERS
        if "held" in query.sql:
            self.started.release()
            assert self.released.wait(120)
        if self.folder is not None:
            return SqlResult(self.folder.write(table), ("bigint",), truncated=False)
        if "wrong" in query.sql:
            place = query.sql.index("wrong") + 1
            raise InvalidRequest(f"no column wrong, line 1, column {place}")
        if query.sql.startswith("DESCRIBE"):
            table = DESCRIBED
        elif "every" in query.sql:
            table = EVERY_TYPE
        elif "cut" in query.sql or "COLUMNS" in query.sql:
            return SqlResult(self.large or NUMBERS, ("bigint",), truncated=True)
        return SqlResult(table, ("",) * table.num_columns, truncated=False)

    def timeout_ms(self, _query: SqlQuery) -> int:
        return 60_000

    def cancel(self, _query_id: str) -> bool:
        return False


class Driver:
    """Sends the requests of one principal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.access = AccessFolderKit(folder).control
        self.clock = VirtualClock()
        self.sql = StubSql()
        queries = SqlRoutes(self.sql, MetricRegistry(), KeptEvents(), self.clock)
        routes = AvaticaRoutes(queries, self.clock).routes()
        logins = Middleware(AvaticaLogins, access=self.access, clock=self.clock)
        self.api = Api(application(routes, access=self.access, outside=[logins]))

    def __call__(self, kind: str, connection: str = "c", **fields: object) -> dict[str, object]:
        return self.send({"request": kind, "connectionId": connection, **fields})

    def send(
        self,
        request: object,
        status: int = 200,
        principal: str = "user:ann",
        role: str = "analyst",
    ) -> dict[str, object]:
        headers = as_principal(self.access, principal, role)
        # As the driver: not as application/json.
        headers["Content-Type"] = "application/octet-stream"
        answer = self.api.post(f"{PATH}/", content=json.dumps(request), headers=headers)
        assert answer.status_code == status, answer.text
        body: dict[str, object] = answer.json()
        assert body.pop("rpcMetadata")
        return body

    def unknown(self, kind: str, connection: str, **fields: object) -> dict[str, object]:
        """Send a request without a credential of HTTP."""
        request = {"request": kind, "connectionId": connection, **fields}
        body: dict[str, object] = self.api.post(PATH, content=json.dumps(request)).json()
        return body

    def refused(self, kind: str, connection: str = "c", **fields: object) -> tuple[object, object]:
        """Return the number and the text of an error."""
        request = {"request": kind, "connectionId": connection, **fields}
        body = self.send(request, 500)
        assert body["response"] == "error"
        assert body["exceptions"] == [body["errorMessage"]]
        return body["errorCode"], body["errorMessage"]

    def statement(self, connection: str = "c") -> object:
        self("openConnection", connection, info={"user": "x", "password": "y"})
        return self("createStatement", connection)["statementId"]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path / "access")
    with closing(made.api):
        yield made


def test_a_query_and_its_rows_in_frames(driver: Driver) -> None:
    """The requests of the driver for `executeQuery`, with a fetch size of 5."""
    assert driver("openConnection", info={}) == {"response": "openConnection"}
    synchronized = driver("connectionSync", connProps={"connProps": "connPropsImpl"})
    assert synchronized["connProps"]["readOnly"] is True  # type: ignore[index]
    assert driver("createStatement") == {
        "response": "createStatement",
        "connectionId": "c",
        "statementId": 1,
    }
    executed = driver(
        "prepareAndExecute",
        statementId=1,
        sql="SELECT n FROM numbers",
        maxRowsTotal=-1,
        maxRowsInFirstFrame=5,
    )
    assert executed["response"] == "executeResults"
    assert executed["missingStatement"] is False
    (result,) = executed["resultSets"]  # type: ignore[misc]
    assert (result["statementId"], result["updateCount"]) == (1, -1)
    assert result["firstFrame"] == {"offset": 0, "done": False, "rows": [[n] for n in range(5)]}
    (column,) = result["signature"]["columns"]
    assert (column["label"], column["columnClassName"]) == ("n", "java.lang.Long")
    assert column["type"] == {"type": "scalar", "id": -5, "name": "BIGINT", "rep": "LONG"}
    fetched = driver("fetch", statementId=1, offset=5, fetchMaxRowCount=5)
    assert fetched["frame"] == {"offset": 5, "done": False, "rows": [[n] for n in range(5, 10)]}
    # The answer was lost.
    assert driver("fetch", statementId=1, offset=5, fetchMaxRowCount=5) == fetched
    last = driver("fetch", statementId=1, offset=10, fetchMaxRowCount=5)
    assert last["frame"] == {"offset": 10, "done": True, "rows": [[10], [11]]}
    after = driver("fetch", statementId=1, offset=12, fetchMaxRowCount=5)
    assert after["frame"] == {"offset": 12, "done": True, "rows": []}
    assert driver("closeStatement", statementId=1) == {"response": "closeStatement"}
    assert driver("fetch", statementId=1, offset=0)["missingStatement"] is True
    assert driver("closeConnection") == {"response": "closeConnection"}
    assert driver.refused("createStatement")[0] == 1


def test_values_of_every_type(driver: Driver) -> None:
    number = driver.statement()
    executed = driver("prepareAndExecute", statementId=number, sql="SELECT * FROM every")
    (result,) = executed["resultSets"]  # type: ignore[misc]
    row, nulls = result["firstFrame"]["rows"]
    exact = [True, 1, 2, 2**62, 0.5, 1.25, "<script>", -43_199_999, -1, "[1,2]", "/w=="]
    assert row == exact
    assert nulls == [None] * len(exact)
    types = [one["type"]["name"] for one in result["signature"]["columns"]]
    assert types == [
        *("BOOLEAN", "TINYINT", "INTEGER", "BIGINT", "DOUBLE", "DECIMAL", "VARCHAR"),
        *("TIMESTAMP", "DATE", "VARCHAR", "VARCHAR"),
    ]


def test_a_prepared_statement_with_parameters(driver: Driver) -> None:
    driver("openConnection")
    sql = "SELECT n FROM numbers WHERE a = ? AND t > ? AND d = ?"
    prepared = driver("prepare", sql=sql, maxRowsTotal=4)["statement"]
    assert [one["columnName"] for one in prepared["signature"]["columns"]] == ["n", "t", "d"]  # type: ignore[index]
    assert len(prepared["signature"]["parameters"]) == 3  # type: ignore[index]
    assert driver.sql.queries[-1].sql == f"DESCRIBE QUERY {sql}"
    values = [
        {"type": "STRING", "value": "x'; --"},
        {"type": "JAVA_SQL_TIMESTAMP", "value": -1},
        {"type": "PRIMITIVE_DOUBLE", "value": 1},
    ]
    handle = {"connectionId": "c", "id": prepared["id"], "signature": None}  # type: ignore[index]
    request = {"request": "execute", "statementHandle": handle, "parameterValues": values}
    for _ in range(2):
        (result,) = driver.send({**request, "maxRowCount": 100})["resultSets"]  # type: ignore[misc]
        assert result["firstFrame"] == {"offset": 0, "done": True, "rows": [[0], [1], [2], [3]]}
    asked = driver.sql.queries[-1]
    assert asked.row_limit == 4
    before_1970 = dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, dt.UTC)
    assert list(asked.parameters) == ["x'; --", before_1970, 1]


@pytest.mark.parametrize(
    "value",
    [
        {"type": "LONG", "value": "1"},
        {"type": "LONG", "value": True},
        {"type": "LONG", "value": 0.5},
        {"type": "LONG", "value": 2**63},
        {"type": "STRING", "value": 1},
        {"type": "ARRAY", "value": [1]},
        {"type": "JAVA_SQL_DATE", "value": 10**12},
    ],
)
def test_values_of_another_type_are_refused(driver: Driver, value: dict[str, object]) -> None:
    driver("openConnection")
    driver("prepare", sql="SELECT ?")
    count = len(driver.sql.queries)
    handle = {"connectionId": "c", "id": 1}
    request = {"request": "execute", "statementHandle": handle, "parameterValues": [value]}
    body = driver.send(request, 500)
    assert "parameterValues[0]" in str(body["errorMessage"])
    assert len(driver.sql.queries) == count


@pytest.mark.parametrize(
    ("kind", "fields", "table", "values"),
    [
        ("getCatalogs", {}, "SCHEMATA", []),
        ("getTableTypes", {}, "TABLES", []),
        ("getSchemas", {"schemaPattern": "dr%"}, "SCHEMATA", ["dr%"]),
        (
            "getTables",
            {"catalog": "druid", "tableNamePattern": "'; --", "typeList": ["TABLE", "VIEW"]},
            "TABLES",
            ["druid", "'; --", "TABLE", "VIEW"],
        ),
        ("getTables", {"typeList": []}, "TABLES", []),
        ("getColumns", {"tableNamePattern": "a", "columnNamePattern": "%"}, "COLUMNS", ["a", "%"]),
    ],
)
def test_questions_about_tables_are_statements(
    driver: Driver, kind: str, fields: dict[str, object], table: str, values: list[str]
) -> None:
    driver("openConnection")
    body = driver(kind, **fields)
    assert (body["response"], body["ownStatement"]) == ("resultSet", True)
    assert body["firstFrame"]["done"] is True  # type: ignore[index]
    asked = driver.sql.queries[-1]
    assert f"FROM INFORMATION_SCHEMA.{table}" in asked.sql
    assert list(asked.parameters) == values
    assert asked.sql.count("?") == len(values)
    assert asked.reader is not None, "the rights of the principal hold"


def test_what_needs_no_query(driver: Driver) -> None:
    number = driver.statement()
    assert driver("databaseProperties")["map"] == {}
    assert driver("getTypeInfo")["firstFrame"] == {"offset": 0, "done": True, "rows": []}
    assert driver("commit") == {"response": "commit"}
    assert driver("rollback") == {"response": "rollback"}
    lost = driver("syncResults", statementId=number, state={"type": "SQL"}, offset=3)
    assert (lost["moreResults"], lost["missingStatement"]) == (False, False)
    assert driver("fetch", statementId=number, offset=0)["missingResults"] is True
    assert driver.sql.queries == []


def test_errors_say_what_is_wrong(driver: Driver) -> None:
    number = driver.statement()
    wrong = driver.refused("prepareAndExecute", statementId=number, sql="SELECT wrong")
    assert wrong == (-1, "no column wrong, line 1, column 8")
    assert driver.refused("prepare", sql="SELECT wrong") == wrong
    for sql in ("INSERT INTO a SELECT 1 PARTITIONED BY ALL", ""):
        driver.refused("prepareAndExecute", statementId=number, sql=sql)
    driver("prepareAndExecute", statementId=number, sql="SELECT n")
    assert "forwards only" in str(driver.refused("fetch", statementId=number, offset=3)[1])
    assert "only reads" in str(driver.refused("executeBatch", statementId=number)[1])
    assert driver("prepareAndExecute", statementId=99, sql="SELECT n")["missingStatement"] is True


def test_connections_of_others_do_not_exist(driver: Driver) -> None:
    driver.statement()
    request = {"request": "createStatement", "connectionId": "c"}
    assert driver.send(request, 500, principal="user:bob")["errorCode"] == 1
    opened = {"request": "openConnection", "connectionId": "c"}
    driver.send(opened, principal="user:bob")
    driver.send({"request": "closeConnection", "connectionId": "c"}, principal="user:bob")
    assert driver("createStatement")["statementId"] == 2


def test_connections_and_statements_have_limits_and_expire(driver: Driver) -> None:
    for number in range(CONNECTIONS_MAX):
        driver("openConnection", f"c{number}")
    assert f"{CONNECTIONS_MAX} open" in str(driver.refused("openConnection", "more")[1])
    driver.send({"request": "openConnection", "connectionId": "x"}, principal="user:bob")
    assert "another id" in str(driver.refused("openConnection", "c0")[1])
    for _ in range(STATEMENTS_MAX):
        driver("createStatement", "c0")
    assert "close one" in str(driver.refused("createStatement", "c0")[1])
    driver.clock.advance(IDLE_S - 1)
    driver("commit", "c0")
    driver.clock.advance(2)
    driver("openConnection", "more")
    assert driver.refused("commit", "c1")[0] == 1
    assert driver("commit", "c0") == {"response": "commit"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"request":"none"}',
        b'{"request":"fetch","connectionId":"c","statementId":"x","offset":0}',
        b'{"request":"commit","connectionId":""}',
        b'{"request":"commit","connectionId":"' + b"c" * 256 + b'"}',
        b'{"request":"commit","connectionId":"\xff"}',
        b"\x0a\x3forg.apache.calcite.avatica.proto.Requests$OpenConnectionRequest",
        b"[" * 100_000,
    ],
)
def test_other_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_request(body)


@given(st.binary(max_size=200))
def test_no_body_raises_anything_else(body: bytes) -> None:
    with suppress(PenstockError):
        read_request(body)


@given(
    st.lists(st.integers(0, 7), max_size=6),
    st.lists(st.integers(-1, 9), min_size=1, max_size=20),
    st.none() | st.integers(1, 20),
)
@pytest.mark.anyio
async def test_frames_have_every_row_once(
    batches: list[int], wanted: list[int], limit: int | None
) -> None:
    count = sum(batches)
    rows = pa.table({"n": pa.array(range(count), pa.int64())})
    parts, at = [], 0
    for size in batches:
        parts += rows.slice(at, size).to_batches()
        at += size
    table = pa.Table.from_batches(parts, rows.schema)
    frames = Frames(SqlResult(table, ("bigint",), truncated=False), limit)
    found: list[object] = []
    for size in [*wanted, *[0] * (count + 1)]:
        frame = await frames.at(len(found), size)
        assert size <= 0 or len(frame.rows) <= size
        found += [row[0] for row in frame.rows]
        if frame.is_last:
            break
    assert found == list(range(count if limit is None else min(count, limit)))
    assert connections.FRAME_ROWS_MAX == 5_000


def test_rows_are_for_the_rights_with_which_they_were_read(driver: Driver) -> None:
    number = driver.statement()
    driver("prepareAndExecute", statementId=number, sql="SELECT n", maxRowsInFirstFrame=5)
    request = {
        "request": "fetch",
        "connectionId": "c",
        "statementId": number,
        "offset": 5,
        "fetchMaxRowCount": 5,
    }
    body = driver.send(request, 500, role="publisher")
    assert (body["errorCode"], body["sqlState"]) == (2, "00002")
    assert driver.send(request)["missingResults"] is True


def test_an_answer_that_the_router_cut_is_an_error(driver: Driver) -> None:
    number = driver.statement()
    text = driver.refused("prepareAndExecute", statementId=number, sql="SELECT cut")[1]
    assert "more than 12 rows" in str(text)
    executed = driver("prepareAndExecute", statementId=number, sql="SELECT cut", maxRowsTotal=12)
    assert executed["missingStatement"] is False


def test_a_property_that_cannot_be_answered_is_left_out(driver: Driver) -> None:
    driver("openConnection")
    properties = {"autoCommit": 10**30, "schema": "x" * 256, "readOnly": False, "catalog": "druid"}
    for _ in range(2):
        shown = driver("connectionSync", connProps=properties)["connProps"]
        assert isinstance(shown, dict)
        assert [shown[name] for name in properties] == [True, None, False, "druid"]


def test_rows_of_a_connection_that_is_closed_meanwhile_are_deleted(
    driver: Driver, tmp_path: Path
) -> None:
    number = driver.statement()
    with closing(AnswerFolder(tmp_path / "answers")) as folder, ThreadPoolExecutor(1) as threads:
        driver.sql.folder = folder
        execute = partial(driver.refused, "prepareAndExecute", statementId=number)
        executed = threads.submit(execute, sql="SELECT held")
        assert driver.sql.started.acquire(timeout=120)
        driver("closeConnection")
        driver.sql.released.set()
        assert "closed or run again" in str(executed.result(120)[1])
        assert not used_bytes(folder.root)


def test_results_in_files_have_a_bound_also_if_they_end_together(
    driver: Driver, tmp_path: Path
) -> None:
    count = LARGE_RESULTS_MAX + 2
    for number in range(count):
        driver.statement(f"c{number}")
    with (
        closing(AnswerFolder(tmp_path / "answers")) as folder,
        ThreadPoolExecutor(count) as threads,
    ):
        driver.sql.folder = folder

        def executed(number: int) -> bool:
            request = {"request": "prepareAndExecute", "connectionId": f"c{number}"}
            headers = as_principal(driver.access, "user:ann", "analyst")
            content = json.dumps({**request, "statementId": 1, "sql": "SELECT held"})
            return driver.api.post(PATH, content=content, headers=headers).status_code == 200

        running = [threads.submit(executed, number) for number in range(count)]
        assert all(driver.sql.started.acquire(timeout=120) for _ in running)
        driver.sql.released.set()
        assert sum(one.result(120) for one in running) == LARGE_RESULTS_MAX


def test_an_answer_about_tables_has_a_bound(driver: Driver) -> None:
    driver("openConnection")
    driver.sql.large = pa.table({"n": pa.array(range(20_001), pa.int64())})
    assert "narrower pattern" in str(driver.refused("getColumns")[1])


ID = "0aa1b1d5-1111-4222-8333-944444444444"
ANN = {"user": "ann", "password": "secret-enough"}


@pytest.fixture
def guarded(driver: Driver) -> Driver:
    """A router with a user."""
    file = CredentialFile(driver.folder / "credentials.json", SystemClock())
    file.add_user("ann", hash_once("secret-enough"), ("analyst",))
    driver.access.refresh()
    return driver


def test_a_driver_logs_in_when_it_opens_a_connection(guarded: Driver) -> None:
    """Metabase's driver has no other way."""
    assert guarded.unknown("openConnection", ID, info=ANN)["response"] == "openConnection"
    assert guarded.unknown("createStatement", ID)["statementId"] == 1
    sql = "SELECT n FROM numbers"
    guarded.unknown("prepareAndExecute", ID, statementId=1, sql=sql)
    assert guarded.sql.queries[-1].principal == "user:ann"
    prepared = guarded.unknown("prepare", ID, sql=sql)["statement"]
    # This request names its connection only in the handle.
    request = {"request": "execute", "statementHandle": prepared, "parameterValues": []}
    found = guarded.api.post(PATH, content=json.dumps(request)).json()
    assert found["response"] == "executeResults"
    assert guarded.unknown("closeConnection", ID)["response"] == "closeConnection"
    assert guarded.unknown("createStatement", ID)["errorCode"] == 1


@pytest.mark.parametrize(
    ("connection", "info", "code", "told"),
    [
        (ID, {**ANN, "password": "wrong"}, 2, "the user or the password is wrong"),
        (ID, {"user": "bob", "password": "x"}, 2, "the user or the password is wrong"),
        (ID, {"user": "ann"}, 2, "the user or the password is wrong or missing"),
        (ID, {"user": 1, "password": []}, 2, "the user or the password is wrong or missing"),
        ("c1", ANN, -1, "connectionId: the id of a connection that logs in"),
    ],
)
def test_a_login_is_refused(
    guarded: Driver, connection: str, info: object, code: int, told: str
) -> None:
    found = guarded.unknown("openConnection", connection, info=info)
    assert found["errorCode"] == code
    assert str(found["errorMessage"]).startswith(told)
    assert guarded.unknown("createStatement", connection)["errorCode"] == 1


def test_a_login_ends(guarded: Driver) -> None:
    file = CredentialFile(guarded.folder / "credentials.json", SystemClock())
    guarded.unknown("openConnection", ID, info=ANN)
    guarded.clock.advance(IDLE_S - 1)
    assert "statementId" in guarded.unknown("createStatement", ID)
    guarded.clock.advance(IDLE_S)
    assert guarded.unknown("createStatement", ID)["errorCode"] == 1
    guarded.unknown("openConnection", ID, info=ANN)
    file.set_password("ann", hash_once("another-one"))
    guarded.access.refresh()
    assert guarded.unknown("createStatement", ID)["errorCode"] == 2
    # A wrong password opens nothing, and closes no connection of others.
    other = ID.replace("0", "1")
    guarded.unknown("openConnection", other, info={**ANN, "password": "another-one"})
    assert guarded.unknown("openConnection", other, info=ANN)["errorCode"] == 2
    assert "statementId" in guarded.unknown("createStatement", other)
    large = "x" * BODY_BYTES_MAX
    # Not as a missing connection, which the driver would open again, and send the same request.
    refused = guarded.unknown("createStatement", other, padding=large)
    assert (refused["errorCode"], "more than 1 MiB" in str(refused)) == (-1, True)


def test_nobody_displaces_the_logins_of_others(
    guarded: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "LOGINS_MAX", CONNECTIONS_MAX + 1)
    file = CredentialFile(guarded.folder / "credentials.json", SystemClock())
    file.add_user("bob", hash_once("secret-enough"), ("analyst",))
    guarded.access.refresh()
    guarded.unknown("openConnection", ID, info=ANN)
    for number in range(2 * CONNECTIONS_MAX):
        other = f"{number:08}{ID[8:]}"
        opened = guarded.unknown("openConnection", other, info={**ANN, "user": "bob"})
        assert opened["response"] == "openConnection"
        # With another credential, the login of the connection is not forgotten.
        guarded.send({"request": "closeConnection", "connectionId": other}, principal="user:bob")
    assert "statementId" in guarded.unknown("createStatement", ID)


def test_an_open_connection_keeps_no_password(guarded: Driver) -> None:
    file = CredentialFile(guarded.folder / "credentials.json", SystemClock())
    guarded.unknown("openConnection", ID, info=ANN)
    kept = [repr(one) for one in gc.get_objects() if type(one).__module__ == logins.__name__]
    assert "user='ann'" in str(kept)
    secret = ANN["password"]
    for form in (secret, base64.b64encode(f"ann:{secret}".encode()).decode()):
        assert form not in str(kept)
    file.remove_user("ann")
    guarded.access.refresh()
    assert guarded.unknown("createStatement", ID)["errorCode"] == 2
    file.add_user("ann", hash_once(secret), ())
    guarded.access.refresh()
    assert "statementId" in guarded.unknown("createStatement", ID)


def test_bodies_that_are_read_before_the_login_have_a_bound_together(guarded: Driver) -> None:
    """Clients that begin large bodies and never end them stay within the bound."""
    reached: list[int] = []

    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        reached.append(len((await receive())["body"]))

    middleware = AvaticaLogins(app, guarded.access, guarded.clock)
    answers: list[Message] = []
    waiting: list[asyncio.Task[None]] = []

    async def begin(last: bytes = b"") -> None:
        async def receive() -> Message:
            if last:
                return {"type": "http.request", "body": last, "more_body": False}
            if parts:
                return {"type": "http.request", "body": parts.pop(), "more_body": True}
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Message) -> None:
            answers.append(message)

        parts = [b" " * (BODY_BYTES_MAX // 2)] * 2
        scope = {"type": "http", "method": "POST", "path": PATH, "headers": []}
        waiting.append(asyncio.create_task(middleware(scope, receive, send)))
        await asyncio.sleep(0)

    async def story() -> None:
        for _ in range(40):
            await begin()
        held = [task for task in waiting if not task.done()]
        assert len(held) == HELD_BYTES_MAX // BODY_BYTES_MAX
        assert [one["status"] for one in answers if "status" in one] == [500] * (40 - len(held))
        assert b"try again later" in answers[-1]["body"]
        await begin(b"{}")
        assert reached == [2], "a login is read meanwhile"
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        await begin()  # what the others held is free again
        assert not waiting[-1].done()
        waiting[-1].cancel()

    asyncio.run(story())
    assert reached == [2]


def test_a_time_zone_of_the_driver_is_not_ignored(driver: Driver) -> None:
    """Metabase sends its report time zone."""
    assert driver("openConnection", info={"sqlTimeZone": "UTC"})
    code, told = driver.refused("openConnection", "other", info={"sqlTimeZone": "Asia/Tokyo"})
    assert code == -1
    assert str(told).startswith("info.sqlTimeZone: 'Asia/Tokyo' is not UTC")


def test_a_driver_chooses_the_engine_of_its_queries(driver: Driver) -> None:
    driver("openConnection", info={"engine": "fast"})
    number = driver("createStatement")["statementId"]
    driver("prepareAndExecute", statementId=number, sql="SELECT n FROM t")
    driver("prepare", sql="SELECT n FROM t")  # a description is Spark's, whatever the engine
    assert [one.engine for one in driver.sql.queries] == ["fast", ""]
    _, told = driver.refused("openConnection", "other", info={"engine": "msq-dart"})
    assert told == "info.engine: unknown engine 'msq-dart': use one of auto, spark, fast"


def test_an_open_result_keeps_its_rows_in_arrow_only() -> None:
    """As values of Python, short texts take twenty times the memory."""
    table = pa.table({f"t{column}": [f"{row % 90}" for row in range(5_000)] for column in range(9)})
    results = [Frames(SqlResult(table, ("string",) * 9, truncated=False), None) for _ in range(2)]

    async def first(frames: Frames) -> int:
        return len((await frames.at(0, 0)).rows)

    asyncio.run(first(results[0]))  # imports what it needs
    tracemalloc.start()
    try:
        assert asyncio.run(first(results[1])) == 5_000
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < table.nbytes
    finally:
        tracemalloc.stop()
