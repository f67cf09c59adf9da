"""Overlord, worker and peon APIs, and our clients of them, over real HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.broker.broker_client import BrokerClient
from penstock.core.clock import SystemClock
from penstock.core.errors import (
    Conflict,
    InvalidRequest,
    LockRevoked,
    NotFound,
    NotReachable,
    PenstockError,
    Unauthenticated,
    Unavailable,
)
from penstock.core.intervals import Interval
from penstock.indexing.actions import LockRelease
from penstock.indexing.ports import (
    HistoryPlace,
    TaskLocation,
    TaskPhase,
    TaskReport,
    TaskState,
    Throughput,
    WorkerChanges,
    WorkerReport,
    WorkerTask,
)
from penstock.indexing.specs import parse_data_schema
from penstock.indexing.task import TaskResult
from penstock.indexing.task_log import LogPart
from penstock.indexing.task_spec import StreamTaskSpec, TaskSpec, parse_task, parse_task_spec
from penstock.indexing.worker.log_store import LogStore, TaskLogs
from penstock.indexing.worker.peon_task import IngestionReport, IngestionState
from penstock.services.api import peon
from penstock.services.api.asgi import application
from penstock.services.api.indexer.tasks import TaskRoutes
from penstock.services.api.peon import PeonRoutes
from penstock.services.api.process_clients import (
    HttpActionClient,
    HttpTaskClient,
    HttpWorkerClient,
    WorkerLocator,
)
from penstock.services.api.worker import WorkerRoutes
from penstock.services.host.process import listen
from penstock.services.http_server import HttpServer
from penstock.services.json_client import JsonClient
from penstock.services.membership.leases import Announcement, LeaseAnnouncer, LeaseDirectory
from penstock.services.options.option_values import HostPort
from penstock.storage.disk import OsFileSystem
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import rules_with, with_token
from tests.harness.mailbox_kit import StepLanes
from tests.services.places_kit import FixedPlaces, Overlords

T = TypeVar("T")
TOKEN = "s"


def done(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future


def failed(error: Exception) -> Future[None]:
    future: Future[None] = Future()
    future.set_exception(error)
    return future


DAY = "2024-01-01T00:00:00.000Z/2024-01-02T00:00:00.000Z"


class Served:
    """Serves routes on a free port."""

    def __init__(self, routes: list) -> None:
        listener = listen(HostPort("127.0.0.1", 0), "--http")
        self.address = HostPort("127.0.0.1", listener.getsockname()[1])
        self._server = HttpServer(
            application(routes, access=with_token(TOKEN), rules=rules_with(routes)), listener
        )
        self._server.start()

    def stop(self) -> None:
        self._server.stop()


@pytest.fixture
def serve() -> Iterator:
    running: list[Served] = []

    def start(routes: list) -> HostPort:
        running.append(Served(routes))
        return running[-1].address

    yield start
    for one in running:
        one.stop()


REPORT = TaskReport(
    phase=TaskPhase.READING,
    current={0: 5, 1: 7},
    persisted={0: 4, 1: 7},
    end=None,
    checkpoints={0: {0: 1, 1: 2}},
    counts={"processed": 9},
    error="waits",
    throughput=Throughput(per_second=12.5, idle=0.75),
)


class FakePeonTask:
    """Any task, as its process sees it."""

    def run(self) -> TaskResult:
        raise AssertionError("nobody runs it here")

    def stop(self) -> None:
        pass

    def report(self) -> IngestionReport:
        return IngestionReport(
            IngestionState.BUILD_SEGMENTS,
            {"buildSegments": {"processed": 9}},
            {"buildSegments": [{"input": "x"}]},
        )


class FakeTask:
    started_ms = 1_356_998_400_000

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.refuse: Exception | None = None

    def report(self) -> Future[TaskReport]:
        return done(REPORT)

    def pause(self) -> Future[dict[int, int]]:
        if self.refuse:
            return failed(self.refuse)
        self.calls.append("pause")
        return done({0: 5, 1: 7})

    def resume(self) -> Future[None]:
        self.calls.append("resume")
        return done(None)

    def set_end_offsets(self, end: dict[int, int], *, finish: bool) -> Future[None]:
        if self.refuse:
            return failed(self.refuse)
        self.calls.append((end, finish))
        return done(None)


def test_a_peon_is_steered_over_http(serve) -> None:
    task, stopped = FakeTask(), threading.Event()
    routes = PeonRoutes("a task", FakePeonTask(), stopped.set, task, context={"team": "a"})
    address = serve(routes.routes())
    location = TaskLocation(address.host, address.port)
    client = HttpTaskClient(lambda _task_id: location, lambda _: TOKEN)
    assert client.report("a task") == REPORT
    assert client.pause("a task") == {0: 5, 1: 7}
    client.resume("a task")
    client.set_end_offsets("a task", {0: 6, 1: 7}, finish=True)
    client.set_end_offsets("a task", {0: 6, 1: 7}, finish=False)
    assert task.calls == ["pause", "resume", ({0: 6, 1: 7}, True), ({0: 6, 1: 7}, False)]
    for error in (InvalidRequest("too low"), Conflict("agreed")):
        task.refuse = error
        with pytest.raises(type(error), match=str(error)):
            client.set_end_offsets("a task", {0: 0}, finish=True)
    with pytest.raises(Conflict, match="agreed"):
        client.pause("a task")
    api = JsonClient(address.url, token=TOKEN)
    chat = "/druid/worker/v1/chat/a%20task"
    # Druid's status for a task that only publishes any more.
    assert api.relay("POST", f"{chat}/pause", b"", {})[0] == 409
    assert api.get(f"{chat}/offsets/current") == {"0": 5, "1": 7}
    assert api.get(f"{chat}/offsets/end") is None
    assert api.get(f"{chat}/time/start") == "2013-01-01T00:00:00.000Z"
    assert api.get(f"{chat}/checkpoints") == {"0": {"0": 1, "1": 2}}
    assert api.get(f"{chat}/rowStats") == {
        "totals": {"buildSegments": {"processed": 9}},
        "movingAverages": {},
    }
    assert api.get(f"{chat}/unparseableEvents") == {"buildSegments": [{"input": "x"}]}
    live = api.get(f"{chat}/liveReports")
    assert live == FakePeonTask().report().to_json("a task", {"team": "a"})
    assert api.post(f"{chat}/stop") == {}
    assert stopped.is_set()


def test_a_task_that_is_long_in_pausing_is_asked_again(serve, monkeypatch) -> None:
    task, asked = FakeTask(), list[Future[dict[int, int]]]()
    monkeypatch.setattr(peon, "PAUSE_ANSWER_S", 0.01)

    def pause() -> Future[dict[int, int]]:
        asked.append(done({0: 5}) if len(asked) == 2 else Future())
        return asked[-1]

    monkeypatch.setattr(task, "pause", pause)
    address = serve(PeonRoutes("t", FakePeonTask(), lambda: None, task).routes())
    location = TaskLocation(address.host, address.port)
    assert HttpTaskClient(lambda _: location, lambda _: TOKEN).pause("t") == {0: 5}
    assert len(asked) == 3
    # It will pause: nobody has taken that back.
    assert not any(one.cancelled() for one in asked)
    api = JsonClient(address.url, token=TOKEN)
    assert api.relay("POST", "/druid/worker/v1/chat/t/pause", b"", {})[0] == 202
    with pytest.raises(Unavailable, match="has not paused within 4 s"):
        HttpTaskClient(lambda _: location, lambda _: TOKEN).within(4_000).pause("t")
    assert len(asked) == 6


def test_an_answer_is_waited_for_as_long_as_is_said(serve) -> None:
    answers = threading.Event()

    def silent(_request: Request) -> Response:
        answers.wait()
        return Response(b"{}")

    address = serve([Route("/{path:path}", silent)])
    client = HttpTaskClient(lambda _: TaskLocation(address.host, address.port), lambda _: TOKEN)
    try:
        with pytest.raises(NotReachable):
            client.within(20).report("t")
    finally:
        answers.set()


def test_a_task_of_any_kind_shows_its_report_and_no_offsets(serve) -> None:
    address = serve(PeonRoutes("t", FakePeonTask(), lambda: None).routes())
    api = JsonClient(address.url, token=TOKEN)
    assert isinstance(api.get("/druid/worker/v1/chat/t/liveReports"), dict)
    with pytest.raises(NotFound):
        api.get("/druid/worker/v1/chat/t/status")


def test_another_task_at_the_same_port_is_not_steered(serve) -> None:
    task = FakeTask()
    address = serve(PeonRoutes("t2", FakePeonTask(), lambda: None, task).routes())
    client = HttpTaskClient(lambda _: TaskLocation(address.host, address.port), lambda _: TOKEN)
    with pytest.raises(NotFound, match="t1 does not run in this process"):
        client.pause("t1")
    assert not task.calls


def test_a_peon_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        HttpTaskClient(lambda _: None).report("t")
    with pytest.raises(NotReachable):
        HttpTaskClient(lambda _: TaskLocation("127.0.0.1", 1)).report("t")


@pytest.mark.parametrize(
    "body", [b'{"tasks": ', b"\xff\xfe", b"[]", b"{}", b'{"capacity": 1, "tasks": [7]}', b"null"]
)
def test_something_else_at_an_address_is_nobody_there(serve, body) -> None:
    # Whatever else these calls raised would end the overlord's mailbox.
    def answer(_request: Request) -> Response:
        return Response(body, media_type="application/json")

    address = serve([Route("/{path:path}", answer, methods=["GET", "POST"])])
    tasks = HttpTaskClient(lambda _: TaskLocation(address.host, address.port), lambda _: TOKEN)
    for call in (HttpWorkerClient("w", address, TOKEN).report, lambda: tasks.report("t")):
        with pytest.raises(Unavailable):
            call()


def task_spec(task_id: str = "t") -> StreamTaskSpec:
    schema = parse_data_schema(
        {
            "dataSource": "x",
            "timestampSpec": {"column": "time", "format": "iso"},
            "dimensionsSpec": {"dimensions": ["a"]},
            "granularitySpec": {"segmentGranularity": "DAY", "rollup": False},
        }
    )
    value = {
        "type": "index_penstock",
        "id": task_id,
        "groupId": 0,
        "supervisorId": "x",
        "baseSequenceName": "b",
        "dataSchema": schema.model_dump(mode="json", by_alias=True),
        "tuningConfig": {"type": "penstock"},
        "topic": "x",
        "deadLetterTopic": "x.dead-letter",
        "startOffsets": {"0": 3},
    }
    return parse_task_spec(value)


class FakeWorker:
    def __init__(self) -> None:
        self.error: PenstockError | None = None
        self.tasks: list[TaskSpec] = []
        self.shut_down: list[str] = []
        self.enabled = True

    def report(self) -> WorkerReport:
        ended = WorkerTask("e", TaskState.FAILED, None, "it died", 12)
        running = WorkerTask("r", TaskState.RUNNING, TaskLocation("h", 9))
        return WorkerReport(3, (ended, running), self.enabled, "big", "1")

    def changes(self, after: HistoryPlace, wait_ms: int) -> Future[WorkerChanges]:
        if after.counter < 0:
            return done(WorkerChanges(HistoryPlace(4, 7), reset=True, report=self.report()))
        task = WorkerTask("e", TaskState.FAILED, None, f"waited {wait_ms}", 12)
        return done(WorkerChanges(HistoryPlace(5, 8), tasks=(task,), removed=("r",)))

    def assign(self, task: TaskSpec) -> None:
        if self.error:
            raise self.error
        self.tasks.append(task)

    def shutdown(self, task_id: str) -> None:
        self.shut_down.append(task_id)

    def set_enabled(self, enabled: bool) -> None:
        self.enabled = enabled


@pytest.fixture
def worker_api(serve, tmp_path: Path) -> tuple[FakeWorker, HostPort]:
    folder = tmp_path / "tasks" / "t"
    (folder / "attempt" / "1").mkdir(parents=True)
    (folder / "log").write_bytes(b"0123456789\xff")
    (folder / "attempt" / "1" / "report.json").write_text('{"a": 1}')
    store = LogStore(str(tmp_path / "kept"))
    logs = TaskLogs([str(tmp_path / "tasks")], OsFileSystem(), store, StepLanes())
    worker = FakeWorker()
    places = FixedPlaces(HostPort("h", 5), HostPort("b", 4))
    routes = WorkerRoutes("h:1", worker, logs, places, places).routes()
    return worker, serve(routes)


def test_a_worker_over_http(worker_api) -> None:
    worker, address = worker_api
    client = HttpWorkerClient("w", address, TOKEN)
    assert client.report() == worker.report()
    client.assign(task_spec())
    client.assign(parse_task({"type": "noop", "id": "n"}))
    assert worker.tasks == [task_spec(), parse_task({"type": "noop", "id": "n"})]
    worker.error = Conflict("all slots are taken")
    with pytest.raises(Conflict, match="slots"):
        client.assign(task_spec())
    client.shutdown("t")
    assert worker.shut_down == ["t"]
    locator = WorkerLocator(address, token=TOKEN)
    assert locator.overlord() == HostPort("h", 5)
    assert locator.broker_url() == "https://b:4"
    assert WorkerLocator(address, HostPort("c", 3), TOKEN).broker_url() == "https://c:3"
    api = JsonClient(address.url, token=TOKEN)
    with pytest.raises(InvalidRequest):
        api.post("/druid-internal/v1/worker/assignTask", {"id": "t"})


def test_a_worker_takes_tasks_as_large_as_it_is_told(serve) -> None:
    worker = FakeWorker()
    large = {"type": "noop", "id": "n", "context": {"note": "x" * 1_000_000}}
    for bytes_max, is_taken in ((1_000_000, False), (1_100_000, True)):
        places = FixedPlaces()
        routes = WorkerRoutes("h:1", worker, None, places, places, bytes_max)  # type: ignore[arg-type]
        client = HttpWorkerClient("w", serve(routes.routes()), TOKEN)
        if is_taken:
            client.assign(parse_task(large))
        else:
            with pytest.raises(InvalidRequest, match="more than the 1000000"):
                client.assign(parse_task(large))
    assert [task.id for task in worker.tasks] == ["n"]


def test_logs_and_reports_over_http(worker_api) -> None:
    client = HttpWorkerClient("w", worker_api[1], TOKEN)
    assert client.read_log("t", 4) == LogPart(b"456789\xff", 4, 11)
    assert client.read_log("t", -3) == LogPart(b"89\xff", 8, 11)
    assert client.read_log("t", 2, 3) == LogPart(b"234", 2, 11)
    assert client.read_log("t", 99) == LogPart(b"", 11, 11)
    assert client.read_report("t") == b'{"a": 1}'
    for read in (client.read_log, client.read_report):
        with pytest.raises(NotFound, match="task u"):
            read("u")
    with pytest.raises(InvalidRequest, match="bytes: "):
        client.read_log("t", 0, 1 << 30)


def test_what_changed_at_a_worker_over_http(worker_api) -> None:
    worker, address = worker_api
    client = HttpWorkerClient("w", address, TOKEN)
    first = client.changes(HistoryPlace(), 0)
    assert first == worker.changes(HistoryPlace(), 0).result()
    assert client.changes(first.place, 9) == worker.changes(first.place, 9).result()
    with pytest.raises(InvalidRequest, match="timeout: "):
        client.changes(first.place, -1)


def test_a_worker_is_disabled_and_enabled_over_http(worker_api) -> None:
    api = JsonClient(worker_api[1].url, token=TOKEN)
    assert api.get("/druid/worker/v1/enabled") == {"h:1": True}
    assert api.post("/druid/worker/v1/disable") == {"h:1": "disabled"}
    assert api.get("/druid/worker/v1/enabled") == {"h:1": False}
    assert api.post("/druid/worker/v1/enable") == {"h:1": "enabled"}
    assert api.get("/druid/worker/v1/enabled") == {"h:1": True}
    assert api.get("/druid/worker/v1/tasks") == ["e", "r"]


class FakeOverlord:
    """Only what the routes under test ask for."""

    def __init__(self) -> None:
        self.error: PenstockError | None = None
        self.actions: list[tuple[str, object]] = []
        self.workers: list[str | None] = []
        self.task_service = None

    def perform_action(self, task_id: str, action: object, worker: str | None = None) -> object:
        self.actions.append((task_id, action))
        self.workers.append(worker)
        if self.error:
            raise self.error


class FakeLeases:
    def __init__(self) -> None:
        self.rows: list = []

    def list(self, service: str | None = None) -> list:
        return [row for row in self.rows if row.service == service]

    def renew(self, *args: object, **more: object) -> None:
        self.rows.append((args, more))

    def drop(self, *args: object) -> None:
        self.rows.append(("drop", *args))


def overlord_routes(overlord: FakeOverlord) -> list:
    return TaskRoutes(overlord, None, SystemClock()).routes()  # type: ignore[arg-type]


def test_actions_reach_the_overlord_and_its_answer_the_task(serve) -> None:
    overlord = FakeOverlord()
    address = serve(overlord_routes(overlord))
    client = HttpActionClient("t", Overlords(address), TOKEN, "w")
    assert client.perform(LockRelease(Interval.parse(DAY))) is None
    action = {"type": "lockRelease", "interval": DAY}
    assert overlord.actions == [("t", action)]
    assert overlord.workers == ["w"]
    overlord.error = LockRevoked("task t is not active")
    with pytest.raises(LockRevoked):
        client.perform(LockRelease(Interval.parse(DAY)))


def test_an_action_finds_the_overlord_anew_each_time(serve) -> None:
    overlord = FakeOverlord()
    places = Overlords(HostPort("127.0.0.1", 1), serve(overlord_routes(overlord)))
    client = HttpActionClient("t", places, TOKEN)
    with pytest.raises(Unavailable):
        client.perform(LockRelease(Interval.parse(DAY)))  # tried again by whoever asked
    client.perform(LockRelease(Interval.parse(DAY)))
    assert len(overlord.actions) == 1


def test_an_action_that_another_server_gets_is_tried_again(serve) -> None:
    """After a restart a role of the same Penstock may have the port that the overlord had."""
    overlord = FakeOverlord()
    places = Overlords(serve([]), serve(overlord_routes(overlord)))
    client = HttpActionClient("t", places, TOKEN)
    with pytest.raises(Unavailable, match="another server listens at"):
        client.perform(LockRelease(Interval.parse(DAY)))
    client.perform(LockRelease(Interval.parse(DAY)))
    assert len(overlord.actions) == 1


def test_a_lease_is_renewed_until_it_is_dropped() -> None:
    leases, clock = FakeLeases(), VirtualClock()
    announcer = LeaseAnnouncer(leases, Announcement("worker", "w", HostPort("h", 1)), clock)
    announcer.start()
    assert leases.rows[0][0] == ("worker", "w")
    announcer.stop()
    assert leases.rows[-1] == ("drop", "worker", "w")


def test_nobody_with_a_lease_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="no overlord"):
        LeaseDirectory(FakeLeases()).find("overlord")


def test_a_token_that_no_longer_counts_is_tried_again(serve) -> None:
    """The next request has another token; a task or an assignment must not fail meanwhile."""

    def refuse(_request: Request) -> Response:
        text = "the token of process:router was made at"
        error = {"error": text, "errorCode": "unauthorized", "errorMessage": text}
        return JSONResponse(error, status_code=401)

    address = serve([Route("/{path:path}", refuse, methods=["GET", "POST"])])

    def fresh() -> str:
        return TOKEN

    tasks = HttpTaskClient(lambda _: TaskLocation(address.host, address.port), lambda _: TOKEN)
    actions = HttpActionClient("t", Overlords(address), fresh)
    with (
        BrokerClient(address.url, token=fresh) as broker,
        pytest.raises(Unavailable, match="the token of process:router was made at"),
    ):
        broker.offsets("clicks")
    for call in (
        HttpWorkerClient("w", address, fresh).report,
        lambda: HttpWorkerClient("w", address, fresh).assign(task_spec()),
        lambda: tasks.report("t"),
        lambda: actions.perform(LockRelease(Interval.parse(DAY))),
        WorkerLocator(address, token=fresh).overlord,
    ):
        with pytest.raises(Unavailable):
            call()
    with pytest.raises(Unauthenticated):
        HttpWorkerClient("w", address, TOKEN).report()
