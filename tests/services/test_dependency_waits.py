"""The waits of a task reach its status, its supervisor's, `why`, readiness and the metrics."""

from __future__ import annotations

import dataclasses
import http.server
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import Dependency, PenstockError, Unavailable
from penstock.core.http_errors import error_body, error_from
from penstock.core.waits import DependencyWait, merged, waits_from_json
from penstock.indexing.batch.batch_ports import BatchPorts
from penstock.indexing.batch.task_kinds import batch_kinds
from penstock.indexing.engine import EngineFailure, EngineUnavailable
from penstock.indexing.task.task_folder import TaskFolder
from penstock.indexing.task_spec import TaskSpec, parse_task
from penstock.indexing.worker.peon_task import TaskKinds
from penstock.segments.deep_storage import DeepStore
from penstock.services.api.broker_port import HttpBrokerPort
from penstock.services.api.process_clients import HttpActionClient
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import PenstockOptions
from penstock.services.readiness import Readiness
from penstock.services.roles.peon import PeonRole
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.storage.disk import OsFileSystem
from penstock.storage.metadata import MetadataStore
from penstock.testing.clock import VirtualClock
from tests.harness.engine_kit import FakeBatchEngine
from tests.indexing.batch_kit import index, lines
from tests.services.overlord_kit import OverlordWorld, noop, served, supervisor_spec
from tests.services.places_kit import Overlords
from tests.services.start_kit import Start

P = "/druid/indexer/v1"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[OverlordWorld]:
    made = OverlordWorld(tmp_path).start()
    yield made
    made.close()


def tell(world: OverlordWorld, task_id: str, *waits: DependencyWait) -> None:
    """Have a peon report what it waits for, as `roles.peon` does."""
    content = {"waits": [one.to_json() for one in waits]}
    Path(world.peons[task_id].folder, "waits.json").write_text(json.dumps(content))
    world.worker.check(task_id)


def wait_for(
    world: OverlordWorld, tries: int, dependency: Dependency = Dependency.STORAGE
) -> DependencyWait:
    return DependencyWait(dependency, "publish", world.clock.now_ms(), tries, "503 Slow Down")


def test_a_task_names_its_dependency_everywhere_until_it_is_back(world: OverlordWorld) -> None:
    api = world.api
    api.post(f"{P}/task", json=noop("t"))
    world.runs("t")
    status = lambda: api.get(f"{P}/task/t/status").json()["status"]  # noqa: E731
    assert "waits" not in status()
    wait = wait_for(world, 4)
    tell(world, "t", wait)
    world.until(lambda: "waits" in status())
    assert status()["waits"] == [wait.to_json()]
    (listed,) = api.get(f"{P}/tasks").json()
    assert listed["waits"] == [wait.to_json()]
    (reason,) = api.get(f"{P}/task/t/why").json()["waits"]
    assert reason["kind"] == "dependency"
    assert "deep storage since" in reason["text"]
    assert "4 tries (publish): 503 Slow Down" in reason["text"]
    # Both report it, and the router merges their reports.
    reported = [replace(wait, owner="task t")]
    assert world.overlord.waits() == world.worker.waits() == reported
    assert merged([world.overlord.waits(), world.worker.waits()]) == reported
    tell(world, "t")
    world.until(lambda: "waits" not in status())
    assert "waits" not in api.get(f"{P}/tasks").json()[0]
    assert world.overlord.waits() == []
    world.end("t")


@pytest.mark.parametrize(
    "dependency", [Dependency.STORAGE, Dependency.METADATA, Dependency.SPARK, Dependency.BROKER]
)
def test_a_supervisor_is_unhealthy_while_its_tasks_wait_for_long(
    world: OverlordWorld, dependency: Dependency
) -> None:
    api = world.api
    api.post(f"{P}/supervisor", json=supervisor_spec())
    world.until(lambda: bool(world.peons))
    (task_id,) = world.peons
    world.runs(task_id)

    def listed() -> dict[str, object]:
        (one,) = api.get(f"{P}/supervisor?state=true").json()
        return dict(one)

    wait = wait_for(world, 1, dependency)
    tell(world, task_id, wait)
    world.until(lambda: listed()["waits"] == [wait.to_json()])
    assert listed()["healthy"], "one failure is not an outage"
    tell(world, task_id, DependencyWait(wait.dependency, wait.work, wait.since_ms, 9, wait.error))
    world.until(lambda: not listed()["healthy"])
    found = listed()
    assert found["state"] == "UNHEALTHY_TASKS"
    assert found["detailedState"] == f"WAITING_FOR_{dependency.name}"
    assert found["waits"][0]["tries"] == 9
    payload = api.get(f"{P}/supervisor/flights/status").json()["payload"]
    assert payload["waits"] == found["waits"]
    assert not payload["healthy"]
    tell(world, task_id)
    world.until(lambda: bool(listed()["healthy"]))
    assert not str(listed()["detailedState"]).startswith("WAITING_FOR_")
    assert listed()["waits"] == []


def test_a_broker_that_is_away_is_named_with_since_and_tries(
    world: OverlordWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = world.api
    api.post(f"{P}/supervisor", json=supervisor_spec())
    world.until(lambda: bool(world.peons))
    away = Unavailable("the broker does not answer", dependency=Dependency.BROKER)

    def fail(*_: object, **__: object) -> None:
        raise away

    with monkeypatch.context() as patch:
        patch.setattr(world.topics, "available", fail)

        def waits() -> list[dict[str, object]]:
            (one,) = api.get(f"{P}/supervisor?state=true").json()
            return list(one["waits"])

        world.until(lambda: bool(waits()) and int(str(waits()[0]["tries"])) > 3)
        (wait,) = waits()
        assert (wait["dependency"], wait["error"]) == ("broker", str(away))
        (told,) = world.overlord.waits()
        assert (told.dependency, told.owner) == (Dependency.BROKER, "supervisor flights")
    world.until(lambda: not waits())


def test_the_dependency_crosses_http() -> None:
    error = Unavailable("away", dependency=Dependency.METADATA)
    body = error_body(error)
    back = error_from(503, body["errorCode"], str(body["error"]), body["dependency"])
    assert isinstance(back, Unavailable)
    assert back.dependency is Dependency.METADATA
    assert "dependency" not in error_body(Unavailable("others hold the lock"))
    unknown = error_from(503, "unavailable", "x", "a fairy")
    assert isinstance(unknown, Unavailable)
    assert unknown.dependency is Dependency.OTHER


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def dependency_of(failing: object) -> Dependency:
    with pytest.raises(Unavailable) as refusal:
        failing()  # type: ignore[operator]
    return refusal.value.dependency


def test_clients_of_processes_that_are_away_name_them() -> None:
    port = closed_port()
    broker = HttpBrokerPort(lambda: f"http://127.0.0.1:{port}")
    assert dependency_of(lambda: broker.available("t")) is Dependency.BROKER
    actions = HttpActionClient("t", Overlords(HostPort("127.0.0.1", port)))

    class Action:
        def to_json(self) -> dict[str, object]:
            return {}

    assert dependency_of(lambda: actions.perform(Action())) is Dependency.OVERLORD  # type: ignore[arg-type]
    sessions = SparkSessions(SparkSessionOptions(f"sc://127.0.0.1:{port}"))
    assert dependency_of(sessions.get) is Dependency.SPARK
    assert EngineUnavailable("x").dependency is Dependency.SPARK


class Failing(http.server.BaseHTTPRequestHandler):
    """An empty object store of S3's protocol that answers 503 to everything until it recovers."""

    is_back = threading.Event()

    def do_GET(self) -> None:
        body = b"<ListBucketResult/>" if self.command == "GET" else b""
        self.send_response(*((200 if body else 404,) if self.is_back.is_set() else (503, "Slow")))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def failing_storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a deep storage that answers 503 to everything."""
    s3fs = pytest.importorskip("s3fs")
    Failing.is_back.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Failing)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        yield "s3://lake/segments"
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.shutdown()
        server.server_close()
        thread.join(120)


def test_an_object_store_that_answers_503_is_the_deep_storage(failing_storage: str) -> None:
    assert dependency_of(DeepStore(failing_storage).probe) is Dependency.STORAGE


class PeonInThisProcess:
    """A peon of `roles.peon` for one batch task, without its process, its port and Spark.

    The task reaches the deep storage before its engine writes.

    Args:
        world: The worker and the overlord that it belongs to.
        task_id: Its task.
        overlord: Address of the overlord.
        storage: Address of the deep storage.
    """

    def __init__(
        self, world: OverlordWorld, task_id: str, overlord: HostPort, storage: str
    ) -> None:
        self.notices = 0
        self._world, self._task_id = world, task_id
        self._folder = world.peons[task_id].folder
        options = PenstockOptions(
            data_dir=world.folder, deep_storage=storage, spark_connect="sc://127.0.0.1:1"
        )
        self.role = PeonRole(options, overlord, "w", world.clock, self._notify)
        self.role._folder = Path(self._folder)
        self.role._locator = SimpleNamespace(overlord=lambda: overlord)
        self._engine = FakeBatchEngine(self._refuse)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        Failing.is_back.set()
        self._world.until(lambda: not self._thread.is_alive())
        self.role.close()

    def _refuse(self, _moment: str) -> None:
        raise EngineFailure("this engine writes nothing")

    def _notify(self) -> None:
        self.notices += 1
        self._world.worker.check(self._task_id)

    def _ports(self, spec: TaskSpec) -> BatchPorts:
        return dataclasses.replace(self.role._batch_ports(spec), engine=self._engine)

    def _run(self) -> None:
        folder = TaskFolder(self._folder, OsFileSystem())
        spec = parse_task(folder.read_json("task.json"))
        task = TaskKinds(batch_kinds(self._ports)).find(spec.type).make(spec, folder)
        self.result = task.run()


def metrics_of(world: OverlordWorld) -> dict[str, float]:
    """Return the failed tries by dependency, as the overlord's ``/metrics`` has them."""
    readiness = Readiness("overlord", [], world.clock, Start(), world.overlord.waits)
    samples = [one for one in readiness.samples() if one.name == "penstock_waiting_tries"]
    return {dict(one.labels)["dependency"]: one.value for one in samples if one.value}


def test_storage_that_answers_503_is_named_from_the_task_to_the_metric(
    world: OverlordWorld, failing_storage: str
) -> None:
    """A task of the peon's own kinds and ports, its worker, the overlord and its API."""
    api, task = world.api, {**index(lines((1, "x", 1))), "id": "t"}
    api.post(f"{P}/task", json=task)
    world.runs("t")

    def waits() -> list[dict[str, object]]:
        return list(api.get(f"{P}/task/t/status").json()["status"].get("waits", []))

    with (
        served(world) as overlord,
        PeonInThisProcess(world, "t", overlord, failing_storage) as peon,
    ):
        world.until(lambda: bool(waits()) and int(str(waits()[0]["tries"])) >= 3)
        (wait,) = waits()
        assert wait["dependency"] == "deep storage"
        assert "Service Unavailable" in str(wait["error"])
        assert Path(world.peons["t"].folder, "waits.json").stat().st_mode & 0o077 == 0
        (listed,) = api.get(f"{P}/tasks").json()
        assert listed["waits"][0]["dependency"] == "deep storage"
        (reason,) = api.get(f"{P}/task/t/why").json()["waits"]
        assert reason["kind"] == "dependency"
        assert "deep storage since" in reason["text"]
        assert [one.dependency for one in world.overlord.waits()] == [Dependency.STORAGE]
        assert metrics_of(world).keys() == {"deep storage"}
        assert metrics_of(world)["deep storage"] >= 3
        assert peon.notices >= 3
        Failing.is_back.set()
        world.until(lambda: not waits())
    assert metrics_of(world) == {}
    assert "this engine writes nothing" in peon.result.error
    world.end("t", peon.result.error)


def test_tasks_of_both_kinds_report_their_waits_to_the_worker(tmp_path: Path) -> None:
    told: list[int] = []
    options = PenstockOptions(data_dir=tmp_path, spark_connect="sc://127.0.0.1:1")
    role = PeonRole(
        options, HostPort("127.0.0.1", 1), "w", VirtualClock(), lambda: told.append(len(told))
    )
    role._folder = tmp_path
    wait = DependencyWait(Dependency.SPARK, "connect", 5, 2, "nothing answers")
    spec = parse_task(noop("t"))
    ports = (role._stream_ports(spec), role._batch_ports(spec))  # type: ignore[arg-type]
    for number, one in enumerate(ports, 1):
        for waits in ((wait,), ()):
            one.waits_changed(waits)
            content = json.loads((tmp_path / "waits.json").read_text())
            assert waits_from_json(content["waits"]) == waits
        assert len(told) == 2 * number
    shutil.rmtree(tmp_path)
    ports[0].waits_changed((wait,))  # a full disk, or a folder that is gone, does not end a task
    assert len(told) == 4
    role.close()


@pytest.mark.postgres
def test_a_metadata_store_that_does_not_answer_names_itself(tmp_path: Path) -> None:
    url = f"postgresql+psycopg://nobody@127.0.0.1:{closed_port()}/nothing"
    with pytest.raises(PenstockError) as refusal:
        MetadataStore.open(url, clock=SystemClock())
    assert isinstance(refusal.value, Unavailable)
    assert refusal.value.dependency is Dependency.METADATA
