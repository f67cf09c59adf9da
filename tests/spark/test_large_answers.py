"""Large answers on a real Spark whose heap could not hold them, and clients that do not read."""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.broker.http_server.guard import HttpGuard
from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest
from penstock.core.metrics import MetricRegistry
from penstock.indexing.engine import EngineFailure, EngineUnavailable
from penstock.services.api.asgi import application
from penstock.services.api.sql import PATH, SqlRoutes
from penstock.services.host.process import listen
from penstock.services.http_server import HttpServer, api_error
from penstock.services.metrics_text import metrics_text
from penstock.services.options.option_values import HostPort
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.sql import fetcher
from penstock.spark.sql.answer_files import AnswerFolder, SpilledRows, SpillTarget
from penstock.spark.sql.fetcher import ROWS_AT_ONCE
from penstock.spark.sql.service import LargeAnswer, SqlQuery, SqlService
from tests.harness.access_kit import rules_with, with_token
from tests.harness.event_kit import KeptEvents
from tests.kits.spark_server_kit import start_server
from tests.spark.test_spark_sql import FixedTables

pytestmark = pytest.mark.spark

# Spark needs nearly all of it itself.
HEAP = "512m"
# Rows of a kilobyte. Spark would hold them several times: 300,000 of them end its JVM, as do
# 10,000 for each of 50 clients.
WIDE = "SELECT id, repeat(concat('row ', id, ' '), 80) AS text FROM range(0, {rows}, 1, 4)"
ROWS = 300_000
ROWS_OF_CLIENT = 10_000
CLIENTS = 50
FEW_AT_ONCE = 30
PROCESS_BYTES_MAX = 400 << 20


class Rig:
    """A Spark with a small heap, and a router's API of SQL before it."""

    def __init__(self, folder: Path) -> None:
        self.spark = start_server(folder, HEAP)
        self.sessions = SparkSessions(SparkSessionOptions(self.spark.remote))
        self.answers = AnswerFolder(folder / "answers")
        self.service = SqlService(
            self.sessions, FixedTables({}), SystemClock(), answers=self.answers
        )
        self.metrics = MetricRegistry()
        clock = SystemClock()
        routes = SqlRoutes(self.service, self.metrics, KeptEvents(), clock).routes()
        listener = listen(HostPort("127.0.0.1", 0), "--http")
        self.port = listener.getsockname()[1]
        self.guard = HttpGuard(error_body=api_error)
        self._http = HttpServer(
            application(routes, access=with_token(None), rules=rules_with(routes)),
            listener,
            self.guard,
        )
        self._http.start()

    def close(self) -> None:
        self._http.stop()
        self.service.close()
        self.sessions.close()
        self.answers.close()
        self.spark.stop(0.2)

    def ask(self, sql: str, **more: object) -> bytes:
        body = json.dumps({"query": sql, "resultFormat": "arrayLines", **more}).encode()
        url = f"http://127.0.0.1:{self.port}{PATH}"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return bytes(answer.read())

    def ask_and_not_read(self, sql: str, query_id: str) -> socket.socket:
        body = json.dumps({"query": sql, "context": {"sqlQueryId": query_id}}).encode()
        client = socket.create_connection(("127.0.0.1", self.port), 60)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        return client

    def metric(self, name: str) -> int:
        found = re.search(
            rf"^{name} (\S+)$", metrics_text([self.metrics.snapshot]).decode(), re.MULTILINE
        )
        return int(float(found[1])) if found else 0

    def files(self) -> list[Path]:
        return [path for path in self.answers.root.glob("*/*") if path.name != "lock"]

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.02)

    def is_quiet(self) -> bool:
        """Whether no query runs, no files are left, and the cores of Spark are free."""
        if self.service._running or self.files():
            return False
        return self.ask("SELECT count(*) FROM range(0, 100, 1, 2)") == b"[100]\n\n"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("a b#ü%20%,large"))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def same_jvm(rig: Rig) -> Iterator[None]:
    """None of the tests may end the JVM."""
    rig.guard.reading_timeout_s = 60
    before = rig.spark.pid
    yield
    assert rig.spark.poll() is None
    assert rig.spark.pid == before


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some rows are a large answer."""
    monkeypatch.setattr(fetcher, "ROWS_AT_ONCE", FEW_AT_ONCE)


def test_a_large_answer_has_all_its_rows_in_order(rig: Rig) -> None:
    lines = rig.ask(WIDE.format(rows=ROWS) + " ORDER BY id DESC").splitlines()
    assert lines.pop() == b""
    assert len(lines) == ROWS
    for at in (0, 1, ROWS // 2, ROWS - 1):
        number = ROWS - 1 - at
        assert json.loads(lines[at]) == [number, f"row {number} " * 80]
    assert rig.metric("penstock_sql_large_answers_total") >= 1
    rig.until(rig.is_quiet)


@pytest.mark.parametrize(
    "column",
    [
        "array(" * 150 + "id" + ")" * 150,
        "named_struct('a', " * 50 + "id" + ")" * 50,
        "map('a', " * 60 + "id" + ")" * 60,
        "map('a', " * 40 + "id" + ")" * 40,
        f"from_json('[]', '{'array<' * 400}int{'>' * 400}')",
    ],
)
@pytest.mark.parametrize("rows", [1, FEW_AT_ONCE * 2])
def test_a_type_of_too_many_levels_is_refused_with_the_remedy(
    rig: Rig, few_at_once: None, column: str, rows: int
) -> None:
    with pytest.raises(urllib.error.HTTPError) as raised:
        rig.ask(f"SELECT {column} AS a FROM range({rows})")
    assert raised.value.code == 400
    text = raised.value.read().decode()
    assert "cast it to another" in text or "CAST(… AS STRING)" in text
    lines = rig.ask(f"SELECT CAST({column} AS STRING) AS a FROM range({rows})").splitlines()
    assert len(lines) == rows + 1


@pytest.mark.parametrize(
    ("begin", "end", "levels"), [("array(", ")", 45), ("named_struct('a', ", ")", 30)]
)
def test_a_type_of_many_levels_is_sent(
    rig: Rig, few_at_once: None, begin: str, end: str, levels: int
) -> None:
    column = begin * levels + "id" + end * levels
    for rows in (1, FEW_AT_ONCE * 2):
        lines = rig.ask(f"SELECT {column} AS a FROM range({rows})").splitlines()
        assert len(lines) == rows + 1


def test_the_row_limit_cuts_a_large_answer(rig: Rig) -> None:
    result = rig.service.query(
        SqlQuery("SELECT id FROM range(100000) ORDER BY id", row_limit=9_999)
    )
    assert isinstance(result.rows, SpilledRows)
    assert result.truncated
    assert result.table.column("id").to_pylist() == list(range(9_999))
    result.close()
    whole = rig.service.query(SqlQuery("SELECT id FROM range(9999)", row_limit=9_999))
    assert (whole.rows.num_rows, whole.truncated) == (9_999, False)
    whole.close()


def is_large(rig: Rig, sql: str, row_limit: int | None = None) -> bool:
    with rig.service.registered(SqlQuery(sql, row_limit=row_limit)) as registered:
        return isinstance(registered.run(), LargeAnswer)


@pytest.mark.parametrize(
    ("sql", "large"),
    [
        (f"SELECT id FROM range({ROWS_AT_ONCE})", False),
        (f"SELECT id FROM range({ROWS_AT_ONCE + 1})", True),
        (f"SELECT id, 'x' FROM range({ROWS_AT_ONCE})", False),
        ("SELECT id, 'x' FROM range(100000) ORDER BY id DESC LIMIT 100", False),
    ],
)
def test_what_is_fetched_at_once(rig: Rig, sql: str, *, large: bool) -> None:
    assert is_large(rig, sql) == large


def test_the_row_limit_of_a_query_decides_too(rig: Rig) -> None:
    assert not is_large(rig, "SELECT id FROM range(100000)", row_limit=ROWS_AT_ONCE)


def test_a_range_stands_for_a_sequence_that_is_refused_for_its_size(rig: Rig) -> None:
    """The manual of operations and the changelog name it."""
    with pytest.raises(InvalidRequest, match="sequence"):
        rig.service.query(SqlQuery("SELECT count(n) FROM (SELECT explode(sequence(1, 5000000)) n)"))
    numbers = "(SELECT id AS n FROM range(1, 5000001))"
    found = rig.service.query(SqlQuery(f"SELECT min(n) AS a, max(n) AS b FROM {numbers}"))
    assert found.table.to_pylist() == [{"a": 1, "b": 5_000_000}]
    found.close()


LONG = "SELECT id, repeat(concat(id, '.'), 60000 + CAST(id % 7 AS INT)) AS text FROM range({rows})"


def test_rows_that_are_long_go_through_files_however_few_they_are(rig: Rig) -> None:
    """Spark held 1,000 rows of 300 kB several times at once, which ended its JVM."""
    sql = LONG.format(rows=1_000)
    for _ in range(2):
        lines = rig.ask(sql).splitlines()
        assert lines.pop() == b""
        assert [int(line[1 : line.index(b",")]) for line in lines] == list(range(1_000))
        assert json.loads(lines[999])[1] == "999." * (60_000 + 999 % 7)
    # It is remembered, so that it does not run twice each time.
    assert (sql, 1_000_000, "") in rig.service._large
    rig.until(rig.is_quiet)


@pytest.mark.parametrize(
    ("columns", "large"),
    [
        ("repeat(concat(id), 16384)", False),
        ("repeat(concat(id), 16385)", True),
        ("id AS c, id AS c, repeat(concat(id), 16385) AS c", True),
        ("NULL AS a, repeat(concat(id), 8193) AS b, id, repeat(concat(id), 8192) AS b", True),
        ("NULL AS a, repeat(concat(id), 8192) AS b, id, repeat(concat(id), 8192) AS b", False),
        ("CAST(repeat(concat(id), 16385) AS BINARY)", True),
        ("array_repeat(id, 20000)", True),
        ("named_struct('a', map(1, repeat(concat(id), 20000)))", True),
        ("array(id), map(id, id), named_struct('a', id), NULL", False),
    ],
)
def test_how_long_a_row_may_be_that_is_fetched_at_once(
    rig: Rig, columns: str, *, large: bool
) -> None:
    sql = f"SELECT {columns} FROM range(10)"
    assert is_large(rig, sql) == large
    result = rig.service.query(SqlQuery(sql))
    assert len(result.table.columns) == len(result.column_types)
    assert result.rows.num_rows == 10
    result.close()


def test_a_text_that_says_a_row_is_long_is_an_error_of_its_user(rig: Rig) -> None:
    with pytest.raises(InvalidRequest, match="penstock: a row is too long"):
        rig.service.query(SqlQuery(f"SELECT raise_error('{fetcher._LONG_ROW}'), 'x'"))


def test_many_columns_are_few_rows(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "VALUES_AT_ONCE", 30)
    assert not is_large(rig, "SELECT id, id + 1, id + 2 FROM range(10)")
    assert is_large(rig, "SELECT id, id + 1, id + 3 FROM range(11)")
    assert not is_large(rig, "SELECT id, id + 4, id + 3 FROM range(11)", row_limit=10)


TYPES = """
SELECT 'x' AS text, 1 AS i, 2L AS l, 1.5D AS d, 1.5F AS f, 1.50 AS dec, true AS b, X'00ff' AS raw,
    TIMESTAMP '2013-01-01 05:00:00.123456' AS t, TIMESTAMP_NTZ '2013-01-01 05:00:00' AS ntz,
    DATE '2013-01-01' AS day, INTERVAL '1' DAY AS took, NULL AS nothing,
    array('a', NULL) AS list, map('k', 1) AS map, named_struct('a', 1, 'b', array(1.5D)) AS o,
    1 AS same, 2 AS same
FROM range(0, 3, 1, 1)
"""


def test_both_ways_give_the_same_types_and_values(rig: Rig) -> None:
    at_once = rig.service.query(SqlQuery(TYPES))
    in_files = rig.service.query(SqlQuery(TYPES, is_large=True))
    assert isinstance(at_once.rows, pa.Table)
    assert isinstance(in_files.rows, SpilledRows)
    assert in_files.rows.schema.names == at_once.rows.schema.names
    assert in_files.rows.schema.types == at_once.rows.schema.types
    assert in_files.column_types == at_once.column_types
    assert in_files.table.columns == at_once.table.columns
    empty = rig.service.query(SqlQuery(TYPES + " WHERE id > 9", is_large=True))
    assert empty.table.num_rows == 0
    assert empty.rows.schema.types == at_once.rows.schema.types


def test_an_answer_is_refused_that_its_files_cannot_hold(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = SqlQuery("SELECT id, uuid() FROM range(50000)")
    monkeypatch.setattr(fetcher, "SpillTarget", partial(SpillTarget, bytes_max=100_000))
    with pytest.raises(EngineFailure, match="the answer has more than 2048 MiB, compressed"):
        rig.service.query(query)
    full = partial(SpillTarget, checked_every_bytes=0, free_bytes_min=1 << 60)
    monkeypatch.setattr(fetcher, "SpillTarget", full)
    with pytest.raises(EngineUnavailable, match="leave no room for this one"):
        rig.service.query(query)
    assert rig.files() == []


def test_workers_that_do_not_share_the_folder_send_answers_through_spark(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def elsewhere(folder: str, root: str, rows_max: int) -> SpillTarget:
        return SpillTarget(f"{folder}/not there", root, rows_max)

    monkeypatch.setattr(fetcher, "SpillTarget", elsewhere)
    result = rig.service.query(SqlQuery("SELECT id FROM range(0, 20000, 1, 4) ORDER BY id"))
    assert result.table.column("id").to_pylist() == list(range(20_000))
    assert "Python workers do not see" in caplog.text
    assert rig.files() == []


def test_a_client_that_reads_nothing_and_leaves_cancels_its_query(rig: Rig) -> None:
    abandoned = rig.metric("penstock_sql_abandoned_total")
    with rig.ask_and_not_read(WIDE.format(rows=ROWS), "leaves"):
        rig.until(lambda: bool(rig.files()))
    rig.until(lambda: rig.metric("penstock_sql_abandoned_total") > abandoned)
    rig.until(rig.is_quiet)


def test_a_client_that_stalls_while_its_answer_is_sent_is_cut_off(rig: Rig) -> None:
    rig.guard.reading_timeout_s = 0.2
    abandoned, stalled = (
        rig.metric("penstock_sql_abandoned_total"),
        rig.guard.refused["not_reading"],
    )
    with rig.ask_and_not_read(WIDE.format(rows=100_000), "stalls"):
        rig.until(lambda: rig.guard.refused["not_reading"] > stalled)
        rig.until(lambda: rig.metric("penstock_sql_abandoned_total") > abandoned)
        rig.until(rig.is_quiet)


def test_fifty_clients_that_do_not_read_cost_nobody_else_anything(rig: Rig) -> None:
    """Half of them leave, half of them stall, while others ask, and a task uses Spark."""
    rig.guard.reading_timeout_s = 0.5
    abandoned = rig.metric("penstock_sql_abandoned_total")
    before = peak_bytes(reset=True)
    with ExitStack() as clients, ExitStack() as leaving:
        for number in range(CLIENTS):
            owner = leaving if number % 2 else clients
            asked = rig.ask_and_not_read(WIDE.format(rows=ROWS_OF_CLIENT), f"client-{number}")
            owner.enter_context(asked)
        for number in range(10):
            assert rig.ask(f"SELECT {number}, 'x'") == f'[{number},"x"]\n\n'.encode()
        with rig.sessions.use() as spark:
            # As a task does: its rows pass through Python workers.
            numbers = spark.range(0, 1_000, 1, 2)
            assert numbers.mapInArrow(lambda batches: batches, "id bigint").count() == 1_000
        leaving.close()
        rig.until(lambda: rig.metric("penstock_sql_abandoned_total") - abandoned >= CLIENTS)
        rig.until(rig.is_quiet)
    assert peak_bytes() - before < PROCESS_BYTES_MAX


def peak_bytes(*, reset: bool = False) -> int:
    """Return the most memory that this process has had since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) << 10
