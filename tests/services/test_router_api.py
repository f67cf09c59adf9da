"""The router's API against a fake SQL service, and a real overlord's stand-in over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import gc
import json
import re
import socket
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote, unquote

import httpx
import pyarrow as pa
import pytest
from starlette.concurrency import run_in_threadpool

from penstock.core.errors import (
    Conflict,
    Dependency,
    InvalidRequest,
    MetadataUnavailable,
    PenstockError,
)
from penstock.core.intervals import Interval
from penstock.core.metrics import MetricRegistry
from penstock.core.waits import DependencyWait
from penstock.indexing.engine import EngineUnavailable
from penstock.segments.segment import Segment
from penstock.services import json_client
from penstock.services.api import sql
from penstock.services.api.asgi import application
from penstock.services.api.router import (
    RouterParts,
    RouterRoutes,
)
from penstock.services.api.sql import LARGE_MAX, RUNNING_MAX, SqlRoutes
from penstock.services.api.sql_request import SqlRequest
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.metrics_text import metrics_text
from penstock.services.options.option_values import HostPort
from penstock.services.readiness import ReadyState
from penstock.spark.projections.selector import ProjectionOptions
from penstock.spark.sql import answer_files
from penstock.spark.sql.answer_files import AnswerFolder
from penstock.spark.sql.service import LargeAnswer, RegisteredQuery, SqlQuery, SqlResult
from penstock.storage.metadata import PublishRequest, SegmentRow
from penstock.testing.clock import VirtualClock
from reference.metrics import differences
from tests.harness.access_kit import with_token
from tests.harness.event_kit import KeptEvents
from tests.harness.metadata_kit import open_metadata
from tests.kits.answers_kit import check_answer
from tests.services.places_kit import FixedPlaces

SQL = "/druid/v2/sql"


class FakeSql:
    """Answers with its query's text and parameters, or raises."""

    def __init__(self) -> None:
        self.error: PenstockError | None = None
        self.queries: list[SqlQuery] = []
        self.registered_ids: set[str] = set()
        self.came: asyncio.Queue[str] = asyncio.Queue()

    @contextmanager
    def registered(self, query: SqlQuery) -> Iterator[RegisteredQuery]:
        if query.query_id in self.registered_ids:
            raise Conflict(f"a query with the id {query.query_id!r} is running")
        self.registered_ids.add(query.query_id)
        self.came.put_nowait(query.query_id)
        try:
            yield RegisteredQuery(lambda: self.query(query), lambda: self.end(query))
        finally:
            self.registered_ids.remove(query.query_id)

    def query(self, query: SqlQuery) -> SqlResult:
        self.queries.append(query)
        if self.error:
            raise self.error
        used = query.projections.use
        return SqlResult(
            pa.table({"sql": [query.sql]}), ("string",), truncated=False, projection=used
        )

    def timeout_ms(self, query: SqlQuery) -> int:
        return query.timeout_ms or 300_000

    def end(self, query: SqlQuery) -> None:
        """Cancel one registered query."""

    def cancel(self, query_id: str) -> bool:
        return query_id in self.registered_ids


class Rig:
    def __init__(self, folder: Path, token: str | None = None) -> None:
        self.clock = VirtualClock()
        self.store = open_metadata(folder, self.clock)
        self.sql = FakeSql()
        self.ready = True
        # Nothing listens there: the port of a protocol (tcpmux) that is obsolete.
        self.broker = FixedPlaces(HostPort("127.0.0.1", 1))
        metrics = MetricRegistry()
        parts = RouterParts(
            self.store,
            LeaseDirectory(self.store.leases),
            HostPort("127.0.0.1", 8888),
            self.broker,
            self._state,
            self.clock,
            mistakes=lambda expressions: ["is odd" if "odd" in one else "" for one in expressions],
        )
        routes = [
            *SqlRoutes(self.sql, metrics, KeptEvents(), self.clock).routes(),
            *RouterRoutes(parts).routes(),
        ]
        self.app = application(
            routes,
            access=with_token(token),
            metrics=lambda: metrics_text([metrics.snapshot]),
            body_bytes_max=999,
            ready=self._state,
        )

    def _state(self) -> ReadyState:
        wait = DependencyWait(Dependency.SPARK, "answer a query", 1, 3, "Spark is away")
        return ReadyState("router", () if self.ready else (wait,))

    async def ask(self, method: str, path: str, **more: object) -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:
            answer = await client.request(method, path, **more)  # type: ignore[arg-type]
        kind = answer.headers.get("content-type", "")
        check_answer(method, path, answer.status_code, kind, answer.content)
        return answer


@pytest.fixture
def rig(tmp_path: Path):
    made = Rig(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


pytestmark = pytest.mark.anyio


async def test_a_query_is_answered_in_the_wanted_format(rig: Rig) -> None:
    answer = await rig.ask("POST", SQL, json={"query": "SELECT 1"})
    assert answer.status_code == 200
    assert answer.json() == [{"sql": "SELECT 1"}]
    assert answer.headers["X-Druid-SQL-Query-Id"]
    body = {
        "query": "SELECT ?",
        "resultFormat": "csv",
        "header": True,
        "typesHeader": True,
        "sqlTypesHeader": True,
        "parameters": [{"type": "VARCHAR", "value": "x"}, 2, None],
        "context": {
            "sqlQueryId": "mine",
            "sqlOuterLimit": 10,
            "timeout": 500,
            "sqlTimeZone": "Etc/UTC",
        },
    }
    answer = await rig.ask("POST", SQL, json=body)
    assert answer.text == "sql\nSTRING\nVARCHAR\nSELECT ?\n\n"
    assert answer.headers["X-Druid-SQL-Query-Id"] == "mine"
    assert rig.sql.queries[-1] == SqlQuery(
        "SELECT ?", ["x", 2, None], "mine", 10, 500, arrived_s=0.0
    )
    assert "X-Penstock-Projection" not in answer.headers
    answer = await rig.ask("POST", SQL, content="SELECT 3", headers={"content-type": "text/plain"})
    assert answer.json() == [{"sql": "SELECT 3"}]


async def test_the_router_serves_the_description_of_the_api(rig: Rig) -> None:
    answer = await rig.ask("GET", "/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    assert "/druid/v2/sql" in answer.json()["paths"]


async def test_what_is_said_of_projections_goes_there_and_back(rig: Rig) -> None:
    for context, wish in (
        ({}, ProjectionOptions()),
        ({"useProjection": None, "forceProjections": False}, ProjectionOptions()),
        ({"useProjection": "each hour"}, ProjectionOptions(use="each hour")),
        ({"forceProjections": True, "useProjection": "ü"}, ProjectionOptions("ü", force=True)),
        ({"noProjections": "true"}, ProjectionOptions(none=True)),
    ):
        answer = await rig.ask("POST", SQL, json={"query": "SELECT 1", "context": context})
        assert rig.sql.queries[-1].projections == wish
        assert unquote(answer.headers.get("X-Penstock-Projection", "")) == wish.use


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("nonsense", "not valid JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "query: must be the text"),
        ('{"query": " "}', "query: must be the text"),
        ('{"query": "SELECT 1", "resultFormat": "xml"}', "resultFormat"),
        ('{"query": "SELECT 1", "header": "yes"}', "header: must be true or false"),
        ('{"query": "SELECT 1", "typesHeader": true}', "typesHeader: needs header"),
        ('{"query": "SELECT 1", "sqlTypesHeader": 1}', "sqlTypesHeader: must be true or false"),
        ('{"query": "SELECT 1", "parameters": {}}', "parameters: must be a list"),
        ('{"query": "SELECT ?", "parameters": [{"value": [1]}]}', "parameters\\[0\\]"),
        (
            '{"query": "SELECT ?", "parameters": [{"type": "INTEGER", "value": "x"}]}',
            "parameters\\[0\\].value: 'x' is not of the type INTEGER",
        ),
        (
            '{"query": "SELECT ?", "parameters": [{"type": "bigint", "value": true}]}',
            "parameters\\[0\\].value: True is not of the type BIGINT",
        ),
        (
            '{"query": "SELECT ?", "parameters": [{"type": "TIMESTAMP", "value": "noon"}]}',
            "parameters\\[0\\].value: 'noon' is not an ISO 8601 time",
        ),
        (
            '{"query": "SELECT ?", "parameters": [{"type": "DATE", "value": 253402300800000}]}',
            "parameters\\[0\\].value: 253402300800000 ms is outside",
        ),
        (
            '{"query": "SELECT ?", "parameters": [{"type": "TEXT", "value": "x"}]}',
            "parameters\\[0\\].type: unknown type 'TEXT': use one of VARCHAR",
        ),
        (
            '{"query": "SELECT ?, \'?\', ?", "parameters": [1]}',
            "parameters: the statement has 2 .*, and 1 parameter is given: .* request body",
        ),
        (
            '{"query": "SELECT ?"}',
            "and 0 parameters are given: .* in the field parameters of the request body",
        ),
        ('{"query": "SELECT 1", "context": {"timeout": "soon"}}', "'soon' is not .* milliseconds"),
        ('{"query": "SELECT 1", "context": {"sqlQueryId": "\\u20ac"}}', "sqlQueryId: '€' cannot"),
        ('{"query": "SELECT 1", "context": {"sqlQueryId": "a\\r\\nX: 1"}}', "visible ASCII"),
        ('{"query": "SELECT 1", "context": {"sqlQueryId": "\\u0000"}}', "visible ASCII"),
        ('{"query": "SELECT 1", "context": {"sqlQueryId": {"a": 1}}}', "visible ASCII"),
        (f'{{"query": "SELECT 1", "context": {{"sqlQueryId": "{"x" * 256}"}}}}', "1 to 255"),
        ('{"query": "SELECT 1", "context": {"sqlTimeZone": "Mars/X"}}', "sqlTimeZone: 'Mars/X' is"),
        ('{"query": "SELECT 1", "context": {"sqlTimeZone": ["UTC"]}}', "from_utc_timestamp"),
        ('{"query": "SELECT 1", "context": {"useProjection": 1}}', "must be the name"),
        ('{"query": "SELECT 1", "context": {"forceProjections": "yes"}}', "must be true or false"),
        (
            '{"query": "SELECT 1", "context": {"noProjections": true, "useProjection": "p"}}',
            "noProjections: .* contradict it",
        ),
    ],
)
async def test_bad_requests_are_refused_in_druids_shape(rig: Rig, body: str, message: str) -> None:
    answer = await rig.ask("POST", SQL, content=body)
    assert answer.status_code == 400
    error = answer.json()
    assert error["error"] == "druidException"
    assert error["category"] == "INVALID_INPUT"
    assert re.search(message, error["errorMessage"])
    assert not rig.sql.queries


@pytest.mark.parametrize(
    ("error", "status", "persona"),
    [
        (InvalidRequest("no column x"), 400, "USER"),
        (EngineUnavailable("Spark is starting"), 503, "OPERATOR"),
        (PenstockError("it broke"), 500, "OPERATOR"),
    ],
)
async def test_failures_have_a_status_each(
    rig: Rig, error: PenstockError, status: int, persona: str
) -> None:
    rig.sql.error = error
    answer = await rig.ask("POST", SQL, json={"query": "SELECT x"})
    assert answer.status_code == status
    assert answer.json()["persona"] == persona
    assert answer.json()["errorMessage"] == str(error)


async def ask_and_leave(rig: Rig, leave: threading.Event) -> int:
    """Ask a query whose client goes away when `leave` is set; return the status of the answer."""
    body = b'{"query": "SELECT 1", "context": {"sqlQueryId": "mine"}}'
    messages = iter([{"type": "http.request", "body": body}, {"type": "http.disconnect"}])
    statuses = []

    async def receive() -> dict[str, object]:
        message = next(messages)
        if message["type"] == "http.disconnect":
            await run_in_threadpool(leave.wait, 10)
        return message

    async def send(message: dict[str, object]) -> None:
        statuses.append(message.get("status"))

    scope = {
        "type": "http",
        "method": "POST",
        "path": SQL,
        "query_string": b"",
        "headers": [],
    }
    await rig.app(scope, receive, send)  # type: ignore[arg-type]
    return int(statuses[0])


class Hanging:
    """Queries that hang until they are let go."""

    def __init__(self, rig: Rig) -> None:
        self.let_go = threading.Event()
        self.all_turns_taken = threading.Event()
        self.running: list[str] = []
        rig.sql.query = self.query  # type: ignore[method-assign]

    def query(self, query: SqlQuery) -> SqlResult:
        self.running.append(query.query_id)
        if len(self.running) == RUNNING_MAX:
            self.all_turns_taken.set()
        assert self.let_go.wait(120)
        return SqlResult(pa.table({"a": [1]}), ("int",), truncated=False)


async def test_queries_that_hang_keep_nobody_from_the_rest(rig: Rig) -> None:
    hanging = Hanging(rig)
    try:
        asked = [
            asyncio.create_task(rig.ask("POST", SQL, json={"query": "SELECT 1"}))
            for _ in range(RUNNING_MAX + 20)
        ]
        assert await asyncio.to_thread(hanging.all_turns_taken.wait, 120)
        async with asyncio.timeout(120):
            assert (await rig.ask("DELETE", f"{SQL}/{hanging.running[0]}")).status_code == 202
            assert (await rig.ask("DELETE", f"{SQL}/unknown")).status_code == 404
            assert (await rig.ask("GET", "/metrics")).status_code == 200
        assert len(hanging.running) == RUNNING_MAX
    finally:
        hanging.let_go.set()
    assert {(await one).status_code for one in asked} == {200}
    assert len(hanging.running) == RUNNING_MAX + 20


async def test_the_client_has_an_answer_when_the_time_is_over(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that run and ignore it, and one that waits for its turn; all of it counts."""
    monkeypatch.setattr(sql, "OVERDUE_S", 0.2)
    hanging = Hanging(rig)
    body = {"query": "SELECT 1", "context": {"timeout": 1}}
    try:
        asked = [
            asyncio.create_task(rig.ask("POST", SQL, json={"query": "SELECT 1"}))
            for _ in range(RUNNING_MAX - 1)
        ]
        runs = asyncio.create_task(rig.ask("POST", SQL, json=body))
        assert await asyncio.to_thread(hanging.all_turns_taken.wait, 120)
        waits = asyncio.create_task(rig.ask("POST", SQL, json=body))
        async with asyncio.timeout(120):
            told = [(await one).json()["errorMessage"] for one in (runs, waits)]
    finally:
        hanging.let_go.set()
    assert "it took longer than 1 ms, and Spark has not stopped" in told[0]
    assert f"did not begin within 1 ms, because {RUNNING_MAX} others run" in told[1]
    assert {(await one).status_code for one in asked} == {200}
    assert len(hanging.running) == RUNNING_MAX


async def test_no_query_runs_whose_client_cannot_be_watched(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_name: str, job: Coroutine[object, object, object]) -> None:
        job.close()
        raise MemoryError

    monkeypatch.setattr(sql, "start_job", fail)
    with pytest.raises(MemoryError):
        await rig.ask("POST", SQL, json={"query": "SELECT 1"})
    for _ in range(10):  # a task that was started would run now
        await asyncio.sleep(0)
    assert rig.sql.came.empty()


async def test_a_query_that_could_not_be_cancelled_fails_alone(rig: Rig) -> None:
    """Its exception would end the router if it reached the event loop."""
    begun, let_go, uncaught = threading.Event(), threading.Event(), []

    def query(_query: SqlQuery) -> SqlResult:
        begun.set()
        assert let_go.wait(120)
        raise KeyError("a bug")

    def end(_query: SqlQuery) -> None:
        raise RuntimeError("can't start new thread")

    rig.sql.query, rig.sql.end = query, end  # type: ignore[method-assign]
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: uncaught.append(context))
    with contextlib.suppress(RuntimeError):
        await ask_and_leave(rig, begun)
    let_go.set()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=120)
    assert not rig.sql.registered_ids
    gc.collect()
    assert uncaught == []


async def test_a_statement_over_a_limit_is_refused_before_it_is_taken_apart(rig: Rig) -> None:
    with pytest.raises(InvalidRequest, match="characters, over the limit of 1000000"):
        SqlRequest({"query": "SELECT 1" + " " * 1_000_000})
    for values, told in (["x" * 500_001] * 2, "1000000 characters"), ([0] * 100_001, "can have"):
        with pytest.raises(InvalidRequest, match=told):
            SqlRequest({"query": "SELECT ?, ?", "parameters": values})


async def test_a_query_whose_client_went_away_before_its_turn_never_runs(rig: Rig) -> None:
    hanging, leave = Hanging(rig), threading.Event()
    leave.set()
    try:
        asked = [
            asyncio.create_task(rig.ask("POST", SQL, json={"query": "SELECT 1"}))
            for _ in range(RUNNING_MAX)
        ]
        assert await asyncio.to_thread(hanging.all_turns_taken.wait, 120)
        assert await ask_and_leave(rig, leave) == 503
    finally:
        hanging.let_go.set()
    for one in asked:
        await one
    assert "mine" not in hanging.running


async def test_a_query_that_is_cancelled_before_its_turn_never_runs(rig: Rig) -> None:
    hanging = Hanging(rig)
    mine = {"query": "SELECT 1", "context": {"sqlQueryId": "mine"}}
    try:
        asked = [
            asyncio.create_task(rig.ask("POST", SQL, json={"query": "SELECT 1"}))
            for _ in range(RUNNING_MAX)
        ]
        assert await asyncio.to_thread(hanging.all_turns_taken.wait, 120)
        waits = asyncio.create_task(rig.ask("POST", SQL, json=mine))
        async with asyncio.timeout(120):
            while await rig.sql.came.get() != "mine":
                pass
            listed = (await rig.ask("GET", "/penstock/v1/queries")).json()
            assert [one["state"] for one in listed] == ["RUNNING"] * RUNNING_MAX + ["WAITING"]
            assert listed[-1]["queryId"] == "mine"
            assert listed[-1]["statement"] == "SELECT 1"
            assert listed[-1]["reason"] == f"{RUNNING_MAX} others run"
            assert (await rig.ask("DELETE", f"{SQL}/mine")).status_code == 202
            answer = await waits
        assert answer.status_code == 500
        assert answer.json()["errorMessage"] == "the query did not begin: it was cancelled"
        assert (await rig.ask("DELETE", f"{SQL}/mine")).status_code == 404
    finally:
        hanging.let_go.set()
    for one in asked:
        assert (await one).status_code == 200
    assert "mine" not in hanging.running
    assert (await rig.ask("GET", "/penstock/v1/queries")).json() == []


@pytest.mark.parametrize("query_id", ["a/b", "/", "a/", "//a", "a?b#c%2F"])
async def test_a_query_is_cancelled_whatever_characters_its_id_has(rig: Rig, query_id: str) -> None:
    rig.sql.registered_ids.add(query_id)
    path = f"{SQL}/{quote(query_id, safe='')}"
    assert (await rig.ask("DELETE", path)).status_code == 202
    assert (await rig.ask("DELETE", f"{path}x")).status_code == 404


async def test_a_query_leaves_another_one_of_its_id_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked up by its id, which the client gives: its end cancelled the other one."""
    hanging = Hanging(rig)
    mine = {"query": "SELECT 1", "context": {"sqlQueryId": "mine"}}

    async def out_of_time(tasks: Sequence[asyncio.Future[object]], **_: object) -> None:
        """Return before the query has begun, as if reading the statement took all of its time."""

    try:
        asked = [
            asyncio.create_task(rig.ask("POST", SQL, json={"query": "SELECT 1"}))
            for _ in range(RUNNING_MAX)
        ]
        assert await asyncio.to_thread(hanging.all_turns_taken.wait, 120)
        waits = asyncio.create_task(rig.ask("POST", SQL, json=mine))
        async with asyncio.timeout(120):
            while await rig.sql.came.get() != "mine":
                pass
            answer = await rig.ask("POST", SQL, json=mine)
            assert answer.status_code == 400
            assert "a query with the id 'mine' is running" in answer.json()["errorMessage"]
            with monkeypatch.context() as patched:
                replaced = SimpleNamespace(**{**vars(asyncio), "wait": out_of_time})
                patched.setattr(sql, "asyncio", replaced)
                answer = await rig.ask("POST", SQL, json=mine)
            told = answer.json()["errorMessage"]
            assert "did not begin within 300000 ms, because the router was busy" in told
    finally:
        hanging.let_go.set()
    for one in (*asked, waits):
        assert (await one).status_code == 200
    assert hanging.running.count("mine") == 1


async def test_a_query_whose_client_went_away_is_cancelled(rig: Rig) -> None:
    asked, cancelled = threading.Event(), threading.Event()

    def query(_query: SqlQuery) -> SqlResult:
        asked.set()
        assert cancelled.wait(120)
        raise PenstockError("it was cancelled")

    def end(query: SqlQuery) -> None:
        assert query.query_id == "mine"
        cancelled.set()

    rig.sql.query = query  # type: ignore[method-assign]
    rig.sql.end = end  # type: ignore[method-assign]
    await ask_and_leave(rig, asked)
    assert cancelled.is_set()


class LargeAnswers:
    """Queries of "large" have large answers, whose writing waits until it is let go."""

    def __init__(self, rig: Rig, folder: AnswerFolder) -> None:
        self.let_go = threading.Event()
        self.begun = threading.Semaphore(0)
        self.folder = folder
        self.writing, self.most_writing = 0, 0
        self._fake = rig.sql
        rig.sql.registered = self.registered  # type: ignore[method-assign, assignment]

    @contextmanager
    def registered(self, query: SqlQuery) -> Iterator[RegisteredQuery]:
        self._fake.came.put_nowait(query.query_id)
        yield RegisteredQuery(partial(self.run, query), lambda: None)

    def run(self, query: SqlQuery) -> SqlResult | LargeAnswer:
        if "large" in query.sql:
            return LargeAnswer(self.write)
        return SqlResult(pa.table({"a": [1]}), ("int",), truncated=False)

    def write(self) -> SqlResult:
        self.writing += 1
        self.most_writing = max(self.writing, self.most_writing)
        self.begun.release()
        assert self.let_go.wait(120)
        self.writing -= 1
        rows = self.folder.write(pa.table({"a": range(20_000)}))
        return SqlResult(rows, ("bigint",), truncated=False)

    def files(self) -> list[Path]:
        return [path for path in self.folder.root.glob("*/*") if path.name != "lock"]


@pytest.fixture
def large(rig: Rig, tmp_path: Path) -> Iterator[LargeAnswers]:
    folder = AnswerFolder(tmp_path / "answers")
    made = LargeAnswers(rig, folder)
    yield made
    made.let_go.set()
    folder.close()


async def test_large_answers_take_turns_and_keep_small_ones_waiting_for_nothing(
    rig: Rig, large: LargeAnswers
) -> None:
    asked = [
        asyncio.create_task(rig.ask("POST", SQL, json={"query": "large"}))
        for _ in range(RUNNING_MAX + LARGE_MAX + 1)
    ]
    for _ in range(LARGE_MAX):
        assert await asyncio.to_thread(large.begun.acquire, timeout=120)
    async with asyncio.timeout(120):
        assert (await rig.ask("POST", SQL, json={"query": "small"})).json() == [{"a": 1}]
    large.let_go.set()
    [answer] = {(await one).content for one in asked}
    assert json.loads(answer) == [{"a": number} for number in range(20_000)]
    assert large.most_writing == LARGE_MAX
    assert large.files() == []
    metrics = (await rig.ask("GET", "/metrics")).text
    assert f"penstock_sql_large_answers_total {len(asked)}" in metrics
    assert list(differences(metrics)) == []
    assert "penstock_sql_abandoned_total 0" in metrics


async def test_a_large_answer_that_waits_for_its_turn_is_cancelled(
    rig: Rig, large: LargeAnswers
) -> None:
    mine = {"query": "large", "context": {"sqlQueryId": "mine"}}
    asked = [
        asyncio.create_task(rig.ask("POST", SQL, json={"query": "large"})) for _ in range(LARGE_MAX)
    ]
    for _ in range(LARGE_MAX):
        assert await asyncio.to_thread(large.begun.acquire, timeout=120)
    waits = asyncio.create_task(rig.ask("POST", SQL, json=mine))
    async with asyncio.timeout(120):
        while (await rig.ask("DELETE", f"{SQL}/mine")).status_code != 202:
            pass
        assert (await waits).json()["errorMessage"].endswith("it was cancelled")
    large.let_go.set()
    for one in asked:
        assert (await one).status_code == 200


async def test_the_files_of_an_answer_go_when_its_client_leaves(
    rig: Rig, large: LargeAnswers
) -> None:
    large.let_go.set()
    leaving = asyncio.Event()
    body = b'{"query": "large"}'
    messages = iter([{"type": "http.request", "body": body}])

    async def receive() -> dict[str, object]:
        for message in messages:
            return message
        await leaving.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, object]) -> None:
        if message["type"] == "http.response.body":
            assert large.files()
            leaving.set()
            await asyncio.Event().wait()  # the client reads nothing

    scope = {"type": "http", "method": "POST", "path": SQL, "query_string": b"", "headers": []}
    async with asyncio.timeout(120):
        await rig.app(scope, receive, send)  # type: ignore[arg-type]
    assert large.files() == []
    assert "penstock_sql_abandoned_total 1" in (await rig.ask("GET", "/metrics")).text


async def test_the_files_of_an_answer_go_when_it_cannot_be_sent(
    rig: Rig, large: LargeAnswers
) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    result = SqlResult(large.folder.write(twice), ("int", "int"), truncated=False)
    large.write = lambda: result  # type: ignore[method-assign]
    assert (await rig.ask("POST", SQL, json={"query": "large"})).status_code == 400
    assert large.files() == []


async def test_files_of_answers_are_deleted_off_the_event_loop(
    rig: Rig, large: LargeAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting thousands of files, or one on a slow disk, kept all other clients waiting."""
    loop_thread, deleting = threading.get_ident(), []
    deleted = threading.Semaphore(0)
    delete_answer = answer_files.delete_answer

    def delete(folder: Path) -> None:
        deleting.append(threading.get_ident())
        delete_answer(folder)
        deleted.release()

    monkeypatch.setattr(answer_files, "delete_answer", delete)
    large.let_go.set()
    assert (await rig.ask("POST", SQL, json={"query": "large"})).status_code == 200
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    result = SqlResult(large.folder.write(twice), ("int", "int"), truncated=False)
    with monkeypatch.context() as patched:
        patched.setattr(large, "write", lambda: result)
        assert (await rig.ask("POST", SQL, json={"query": "large"})).status_code == 400
    assert len(deleting) == 2
    # Nobody waits any more for an answer that comes after its time is over.
    late: asyncio.Future[SqlResult] = asyncio.get_running_loop().create_future()
    late.add_done_callback(sql._drop)
    rows = large.folder.write(pa.table({"a": [1]}))
    late.set_result(SqlResult(rows, ("int",), truncated=False))
    for _ in range(3):
        assert await asyncio.to_thread(deleted.acquire, timeout=120)
    assert loop_thread not in deleting
    assert large.files() == []


async def test_columns_of_one_name_are_not_lost_in_objects(rig: Rig) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    rig.sql.query = lambda _query: SqlResult(twice, ("int", "int"), truncated=False)  # type: ignore[method-assign]
    answer = await rig.ask("POST", SQL, json={"query": "SELECT 1 a, 2 a"})
    assert answer.status_code == 400
    assert "2 columns of the answer are named 'a'" in answer.json()["errorMessage"]
    answer = await rig.ask("POST", SQL, json={"query": "SELECT 1 a, 2 a", "resultFormat": "array"})
    assert answer.json() == [[1, 2]]


async def test_segments_are_read_from_the_metadata(rig: Rig) -> None:
    base = "/druid/coordinator/v1/metadata/datasources"
    assert (await rig.ask("GET", base)).json() == []
    assert (await rig.ask("GET", f"{base}/x/segments")).status_code == 404
    month = Interval.parse("2013-01-01/2013-02-01")
    segment = Segment("x", month, "v1", {"type": "local"}, total_rows=5).to_json()
    row = SegmentRow("x_id", "x", month, "v1", 0, 1, segment)
    assert rig.store.publish(PublishRequest("task", "x", (row,))).ok
    assert (await rig.ask("GET", base)).json() == ["x"]
    assert (await rig.ask("GET", f"{base}/x/segments")).json() == ["x_id"]
    assert (await rig.ask("GET", f"{base}/x/segments?full")).json() == [segment]
    found = (await rig.ask("GET", f"{base}/x")).json()
    assert found["segments"] == [segment]
    assert found["announcedRows"] == 0


@pytest.mark.parametrize("kind", ["supervisor", "task"])
async def test_a_spec_with_an_odd_expression_is_refused_before_the_overlord(
    rig: Rig, kind: str
) -> None:
    transforms = [{"type": "expression", "name": "x", "expression": "odd"}]
    spec = {"spec": {"dataSchema": {"transformSpec": {"transforms": transforms}}}}
    answer = await rig.ask("POST", f"/druid/indexer/v1/{kind}", json=spec)
    assert answer.status_code == 400
    place = "spec.dataSchema.transformSpec.transforms[0].expression"
    assert answer.json()["error"].endswith(f"{place}: is odd")
    transforms[0]["expression"] = "fine"
    answer = await rig.ask("POST", f"/druid/indexer/v1/{kind}", json=spec)
    assert "no overlord is running" in answer.json()["error"]


async def test_without_an_overlord_its_paths_say_so(rig: Rig) -> None:
    answer = await rig.ask("GET", "/druid/indexer/v1/tasks")
    assert answer.status_code == 503
    assert "no overlord is running" in answer.json()["error"]


@pytest.mark.parametrize("path", ["/druid/indexer/v1/tasks?state=running", "/status"])
async def test_an_overlord_whose_answer_is_too_large_is_not_called_away(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(json_client, "_ANSWER_BYTES_MAX", 10)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as peer:
                peer.recv(65_536)
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n" + b"1" * 11)

        thread = threading.Thread(target=serve)
        thread.start()
        port = server.getsockname()[1]
        rig.store.leases.renew("overlord", "o", host="127.0.0.1", port=port, ttl_ms=60_000)
        answer = await rig.ask("GET", path)
        thread.join()
    too_large = "was answered with more than 10 bytes"
    if path == "/status":
        wanted = f"overlord 127.0.0.1:{port}: GET http://127.0.0.1:{port}/status/ready {too_large}"
        assert any(reason.startswith(wanted) for reason in answer.json()["reasons"])
    else:
        assert answer.status_code == 400
        assert answer.json()["error"].startswith(f"GET {path} {too_large}")


async def test_status_lists_what_has_a_lease(rig: Rig) -> None:
    rig.store.leases.renew("worker", "w1", host="h", port=1, ttl_ms=1_000)
    status = (await rig.ask("GET", "/status")).json()
    worker, broker = status["services"]
    assert (worker["service"], worker["instance"], worker["address"]) == ("worker", "w1", "h:1")
    assert broker["service"] == "broker"
    # No server has this address, and no overlord runs: the status reports both.
    assert not status["ready"]
    assert not worker["ready"]
    assert "does not answer" in worker["reasons"][0]
    assert "no overlord is announced" in status["reasons"]
    assert {one["dependency"] for one in status["waits"]} == {"worker", "broker"}
    again = (await rig.ask("GET", "/status")).json()
    assert {one["tries"] for one in again["waits"]} == {2}
    assert status["broker_http"] == "http://127.0.0.1:1"
    rig.clock.advance(2)
    after = (await rig.ask("GET", "/status")).json()
    assert [one["service"] for one in after["services"]] == ["broker"]
    # Nobody asks the worker any more, so nothing waits for it.
    assert [one["dependency"] for one in after["waits"]] == ["broker"]


async def test_status_answers_although_no_process_was_ever_found(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise MetadataUnavailable("the database does not answer")

    monkeypatch.setattr(rig.store.leases, "list", away)
    monkeypatch.setattr(rig.broker, "http", away)
    answer = await rig.ask("GET", "/status")
    assert answer.status_code == 200
    status = answer.json()
    assert not status["ready"]
    assert status["services"] == []
    assert [one["dependency"] for one in status["waits"]] == ["metadata store"]


@pytest.mark.parametrize(
    ("kind", "value", "bound"),
    [
        ("TIMESTAMP", 1_442_059_200_000, dt.datetime(2015, 9, 12, 12, tzinfo=dt.UTC)),
        ("timestamp", 1, dt.datetime(1970, 1, 1, 0, 0, 0, 1_000, tzinfo=dt.UTC)),
        ("TIMESTAMP", -1_000, dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.UTC)),
        ("TIMESTAMP", "2015-09-12 12:00:00", dt.datetime(2015, 9, 12, 12, tzinfo=dt.UTC)),
        ("TIMESTAMP", "2015-09-12T14:00:00+02:00", dt.datetime(2015, 9, 12, 12, tzinfo=dt.UTC)),
        ("TIMESTAMP", None, None),
        ("DATE", 1_442_059_200_000, dt.date(2015, 9, 12)),
        ("DATE", "2015-09-12", dt.date(2015, 9, 12)),
        ("BIGINT", 1_442_059_200_000, 1_442_059_200_000),
    ],
)
async def test_times_of_parameters_are_milliseconds_or_text(
    rig: Rig, kind: str, value: object, bound: object
) -> None:
    parameters = [{"type": kind, "value": value}]
    answer = await rig.ask("POST", SQL, json={"query": "SELECT ?", "parameters": parameters})
    assert answer.status_code == 200
    assert rig.sql.queries[-1].parameters == [bound]


async def test_status_without_the_metadata_shows_what_was_known(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.store.leases.renew("worker", "w1", host="h", port=1, ttl_ms=60_000)
    await rig.ask("GET", "/status")
    away = MetadataUnavailable("postgresql://db: connection refused: see to the database server")

    def fail(*_: object) -> None:
        raise away

    monkeypatch.setattr(LeaseDirectory, "all", fail)
    answer = await rig.ask("GET", "/status")
    assert answer.status_code == 200
    status = answer.json()
    assert [one["service"] for one in status["services"]] == ["worker", "broker"]
    (wait,) = [one for one in status["waits"] if one["dependency"] == "metadata store"]
    assert (wait["error"], wait["tries"]) == (str(away), 4), "one for each kind of process"
    assert not status["ready"]


async def test_health_readiness_and_metrics(rig: Rig) -> None:
    assert (await rig.ask("GET", "/status/health")).json() is True
    assert (await rig.ask("GET", "/status/ready")).status_code == 200
    rig.ready = False
    refused = await rig.ask("GET", "/status/ready")
    assert refused.status_code == 503
    assert refused.json()["ready"] is False
    (wait,) = refused.json()["waits"]
    assert (wait["dependency"], wait["tries"], wait["error"]) == ("Spark", 3, "Spark is away")
    assert (await rig.ask("GET", "/status/health")).json() is True
    await rig.ask("POST", SQL, json={"query": "SELECT 1"})
    assert "penstock_sql_seconds_count 1" in (await rig.ask("GET", "/metrics")).text


async def test_bodies_have_a_limit(rig: Rig) -> None:
    answer = await rig.ask("POST", SQL, content=b"x" * 1_000)
    assert answer.status_code == 413
    assert "larger than 999 bytes" in answer.json()["error"]
    assert "send less at once" in answer.json()["error"]

    async def stream():
        for _ in range(3):
            yield b"x" * 400

    answer = await rig.ask("POST", SQL, content=stream())
    assert answer.status_code == 413
    assert "larger than 999 bytes" in json.dumps(answer.json())


async def test_the_token_opens_everything_but_health(tmp_path: Path) -> None:
    rig = Rig(tmp_path, token="secret")
    try:
        assert (await rig.ask("GET", "/status/health")).status_code == 200
        rig.ready = False
        assert (await rig.ask("GET", "/status/ready")).json() == {"ready": False}
        refused = await rig.ask("GET", "/status")
        assert refused.status_code == 401
        assert refused.headers["WWW-Authenticate"].startswith("Bearer, Basic ")
        good = {"Authorization": "Bearer secret"}
        assert (await rig.ask("GET", "/status", headers=good)).status_code == 200
        told = await rig.ask("GET", "/status/ready", headers=good)
        assert "Spark is away" in told.json()["reasons"][0]
        bad = {"Authorization": "Bearer secrets"}
        assert (await rig.ask("GET", "/metrics", headers=bad)).status_code == 401
    finally:
        rig.store.close()
