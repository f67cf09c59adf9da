"""The waits of a task reach its status, its supervisor's, `why`, readiness and the metrics."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from overlord_kit import OverlordWorld, noop, supervisor_spec

from penstock.core.clock import SystemClock
from penstock.core.errors import Dependency, PenstockError, Unavailable
from penstock.core.waits import DependencyWait
from penstock.indexing.engine import EngineUnavailable
from penstock.segments.deep_storage import DeepStore
from penstock.services.api.broker_port import HttpBrokerPort
from penstock.services.api.process_clients import HttpActionClient
from penstock.services.http_errors import error_body, error_from
from penstock.services.options.values import HostPort
from penstock.spark.connect.session import SparkSessionOptions, SparkSessions
from penstock.storage.metadata import MetadataStore

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


def storage_wait(world: OverlordWorld, tries: int) -> DependencyWait:
    now_ms = world.clock.now_ms()
    return DependencyWait(Dependency.STORAGE, "publish", now_ms, tries, "s3://b: 503 Slow Down")


def test_a_task_names_its_dependency_everywhere_until_it_is_back(world: OverlordWorld) -> None:
    api = world.api
    api.post(f"{P}/task", json=noop("t"))
    world.runs("t")
    status = lambda: api.get(f"{P}/task/t/status").json()["status"]  # noqa: E731
    assert "waits" not in status()
    wait = storage_wait(world, 4)
    tell(world, "t", wait)
    world.until(lambda: "waits" in status())
    assert status()["waits"] == [wait.to_json()]
    (listed,) = api.get(f"{P}/tasks").json()
    assert listed["waits"] == [wait.to_json()]
    (reason,) = api.get(f"{P}/task/t/why").json()["waits"]
    assert reason["kind"] == "dependency"
    assert "deep storage since" in reason["text"]
    assert "4 tries (publish): s3://b: 503 Slow Down" in reason["text"]
    assert world.overlord.waits() == [wait]
    tell(world, "t")
    world.until(lambda: "waits" not in status())
    assert "waits" not in api.get(f"{P}/tasks").json()[0]
    assert world.overlord.waits() == []
    world.end("t")


def test_a_supervisor_is_unhealthy_while_its_tasks_wait_for_long(world: OverlordWorld) -> None:
    api = world.api
    api.post(f"{P}/supervisor", json=supervisor_spec())
    world.until(lambda: bool(world.peons))
    (task_id,) = world.peons
    world.runs(task_id)

    def listed() -> dict[str, object]:
        (one,) = api.get(f"{P}/supervisor?state=true").json()
        return dict(one)

    wait = storage_wait(world, 1)
    tell(world, task_id, wait)
    world.until(lambda: listed()["waits"] == [wait.to_json()])
    assert listed()["healthy"], "one failure is not an outage"
    tell(world, task_id, DependencyWait(wait.dependency, wait.work, wait.since_ms, 9, wait.error))
    world.until(lambda: not listed()["healthy"])
    found = listed()
    assert found["state"] == "UNHEALTHY_TASKS"
    assert found["detailedState"] == "WAITING_FOR_STORAGE"
    assert found["waits"][0]["tries"] == 9
    payload = api.get(f"{P}/supervisor/flights/status").json()["payload"]
    assert payload["waits"] == found["waits"]
    assert not payload["healthy"]
    tell(world, task_id)
    world.until(lambda: bool(listed()["healthy"]))
    assert listed()["detailedState"] != "WAITING_FOR_STORAGE"
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
        assert [one.dependency for one in world.overlord.waits()] == [Dependency.BROKER]
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
    actions = HttpActionClient("t", lambda: HostPort("127.0.0.1", port))

    class Action:
        def to_json(self) -> dict[str, object]:
            return {}

    assert dependency_of(lambda: actions.perform(Action())) is Dependency.OVERLORD  # type: ignore[arg-type]
    sessions = SparkSessions(SparkSessionOptions(f"sc://127.0.0.1:{port}"))
    assert dependency_of(sessions.get) is Dependency.SPARK
    assert EngineUnavailable("x").dependency is Dependency.SPARK


class Failing(http.server.BaseHTTPRequestHandler):
    """An object store of S3's protocol that answers 503 to everything."""

    def do_GET(self) -> None:
        self.send_response(503, "Slow Down")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_an_object_store_that_answers_503_is_the_deep_storage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s3fs = pytest.importorskip("s3fs")
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
        store = DeepStore("s3://lake/segments")
        assert dependency_of(store.probe) is Dependency.STORAGE
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.mark.postgres
def test_a_metadata_store_that_does_not_answer_names_itself(tmp_path: Path) -> None:
    url = f"postgresql+psycopg://nobody@127.0.0.1:{closed_port()}/nothing"
    with pytest.raises(PenstockError) as refusal:
        MetadataStore.open(url, clock=SystemClock())
    assert isinstance(refusal.value, Unavailable)
    assert refusal.value.dependency is Dependency.METADATA
