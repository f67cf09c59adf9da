"""The HTTP API of flows, as a client sees it."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from starlette.applications import Starlette

from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import InvalidRequest, Unavailable
from penstock.flow.controller.applied_flow import AppliedFlow
from penstock.flow.controller.controller import FlowController
from penstock.flow.graph.flow_model import Flow
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.processors.builtin import BUILTIN
from penstock.flow.user_modules import FlowModules
from penstock.flow.write_guard import WriteGuard
from penstock.services.api.asgi import application
from penstock.services.api.flow import FlowRoutes
from penstock.services.options.table import PenstockOptions
from penstock.services.roles.flow import own_places, program_places
from penstock.storage.disk import OsFileSystem
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import with_token
from tests.kits.answers_kit import check_answer

FLOW = """
name: api
processors:
  Make: {type: GenerateFlowFile, properties: {batch_size: 3}}
  Log: {type: LogAttribute, auto_terminated: success}
connections:
  - {from: Make.success, to: Log}
"""


class ApiClient:
    """Calls an application without a network."""

    def __init__(self, app: Starlette) -> None:
        self._app = app

    def request(
        self,
        method: str,
        path: str,
        *,
        content: str | bytes | None = None,
        params: dict[str, str] | None = None,
    ) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://flow") as client:
                return await client.request(method, path, content=content, params=params)

        answer = asyncio.run(ask())
        kind = answer.headers.get("content-type", "")
        check_answer(method, path, answer.status_code, kind, answer.content)
        return answer

    def get(self, path: str, **rest: Any) -> httpx.Response:
        return self.request("GET", path, **rest)

    def post(self, path: str, **rest: Any) -> httpx.Response:
        return self.request("POST", path, **rest)

    def put(self, path: str, **rest: Any) -> httpx.Response:
        return self.request("PUT", path, **rest)


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[FlowController]:
    numbers = itertools.count()
    controller = FlowController.open(
        str(tmp_path),
        fs=OsFileSystem(),
        clock=SystemClock(),
        registry=ProcessorRegistry(BUILTIN),
        new_uuid=lambda: f"u{next(numbers)}",
        environment={},
    )
    yield controller
    controller.close()


def served(flow: FlowController, clock: Clock) -> ApiClient:
    routes = FlowRoutes(lambda: flow, clock)
    return ApiClient(application(routes.routes(), access=with_token(None)))


@pytest.fixture
def client(flow: FlowController) -> ApiClient:
    return served(flow, SystemClock())


def put(client: ApiClient, text: str = FLOW, **parameters: str) -> dict[str, object]:
    answer = client.put("/flow", content=text, params=parameters)
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


def test_a_flow_is_applied_shown_and_run(client: ApiClient) -> None:
    assert client.get("/flow").json()["revision"] == 0
    dry = put(client, dryRun="true")
    assert dry["revision"] == 0
    assert [change["text"] for change in dry["changes"]][-1] == "+ connection Make.success → Log"
    assert put(client)["revision"] == 1
    shown = client.get("/flow").json()
    assert shown["flow"]["name"] == "api"
    assert client.get("/flow", params={"format": "yaml"}).text.startswith("format: 1\nname: api\n")
    ran = client.post("/flow/run-once", params={"target": "Make"}).json()
    assert (len(ran["ran"]), ran["refused"]) == (1, [])
    status = client.get("/flow/status").json()
    assert [one["waits"] for one in status["components"]] == [[]] * len(status["components"])
    [connection] = status["connections"]
    assert connection["queued"] == 3
    started = client.post("/flow/start").json()["started"]
    assert len(started) == 2
    stopped = client.post("/flow/stop", params={"target": "Log"}).json()["stopped"]
    assert len(stopped) == 1


def test_comments_of_a_file_are_kept(client: ApiClient) -> None:
    put(client)
    text = f"# Our flow\n{FLOW}# token: hunter2\n"
    assert put(client, text, dryRun="true")["commentsChanged"] is True
    answer = put(client, text)
    assert (answer["revision"], answer["changes"], answer["commentsChanged"]) == (2, [], True)
    assert put(client, text)["revision"] == 2
    shown = client.get("/flow", params={"format": "yaml"}).text
    assert shown.startswith("# Our flow\nformat: 1\nname: api\n")
    assert shown.endswith("# token: (left out)\n")
    assert put(client, shown)["commentsChanged"] is False
    put(client)
    assert "#" not in client.get("/flow", params={"format": "yaml"}).text


def test_a_check_refuses_the_comments_that_an_apply_refuses(client: ApiClient) -> None:
    text = f"{FLOW}#{'x' * (1 << 18)}\n"
    for answer in (
        client.post("/flow/validate", content=text),
        client.put("/flow", content=text, params={"dryRun": "true"}),
    ):
        assert (answer.status_code, "comments" in answer.json()["error"]) == (400, True)


def test_queues_are_listed_counted_and_dropped(client: ApiClient) -> None:
    put(client)
    client.post("/flow/run-once", params={"target": "Make"})
    connection = {"connection": "Make.success -> Log"}
    listed = client.get("/flow/queue", params=connection).json()
    assert listed["queued"] == 3
    uuids = [one["attributes"]["uuid"] for one in listed["flowFiles"]]
    one = {**connection, "attribute": "uuid", "value": uuids[0]}
    assert len(client.get("/flow/queue", params=one).json()["flowFiles"]) == 1
    counted = client.get("/flow/queue/count", params={**connection, "attribute": "uuid"}).json()
    assert counted["values"] == 3
    drop = client.post("/flow/queue/drop", params=one).json()
    while drop["state"] in {"waiting", "dropping"}:
        drop = client.get("/flow/queue/drop", params={"request": drop["request"]}).json()
    assert (drop["state"], drop["dropped"]) == ("complete", 1)
    assert client.get("/flow/queue", params=connection).json()["queued"] == 2


def test_a_drop_of_a_process_that_ended_is_not_that_of_the_next_one(flow: FlowController) -> None:
    clock = VirtualClock()
    connection = {"connection": "Make.success -> Log"}
    former = served(flow, clock)
    put(former)
    number = former.post("/flow/queue/drop", params=connection).json()["request"]
    clock.advance(1)
    restarted = served(flow, clock)
    assert restarted.post("/flow/queue/drop", params=connection).status_code == 200
    drop = restarted.get("/flow/queue/drop", params={"request": str(number)})
    assert drop.status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "/flow/queue", 400, "connection"),
        ("GET", "/flow/queue?connection=none", 404, "unknown connection 'none'"),
        ("GET", "/flow/queue?connection=Make.success -> Log&limit=0", 400, "limit"),
        ("GET", "/flow/queue?connection=x&limt=1", 400, "unknown parameter 'limt'"),
        ("GET", "/flow/queue/drop?request=7", 404, "no drop request 7"),
        ("GET", "/flow/queue/drop?request=-1", 400, "request"),
        ("POST", "/flow/start?target=Nobody", 404, "Nobody"),
        ("POST", "/flow/run-once", 400, "target"),
        ("POST", "/flow/terminate?target=Nobody", 404, "Nobody"),
        ("POST", "/flow/terminate?target=/", 400, "nothing in / is stopping"),
        ("GET", "/flow/component?target=Nobody", 404, "Nobody"),
        ("GET", "/flow/component?target=/", 404, "is a group"),
        ("GET", "/flow/state?target=Nobody", 404, "Nobody"),
        ("GET", "/flow/queue?connection=Make.success -> Log&skip=10001", 400, "skip"),
        ("GET", "/flow/queue?connection=Make.success -> Log&attribute=a&skip=1", 400, "no order"),
        ("GET", "/flow/queue/content?connection=Make.success -> Log", 400, "flowFile"),
        ("GET", "/flow/queue/content?connection=Make.success -> Log&flowFile=9", 404, "FlowFile 9"),
        ("PUT", "/flow?revision=9", 400, "at revision 1, not 9"),
        ("PUT", "/flow?revision=x", 400, "revision"),
        ("PUT", "/flow?dryRun=maybe", 400, "dryRun"),
        ("DELETE", "/flow", 405, "DELETE"),
        ("GET", "/flow/bulletins?after=x", 400, "after"),
    ],
)
def test_what_is_wrong_is_named(
    client: ApiClient, method: str, path: str, status: int, says: str
) -> None:
    put(client)
    body = FLOW.replace("batch_size: 3", "batch_size: 4") if method == "PUT" else None
    answer = client.request(method, path, content=body)
    assert answer.status_code == status
    assert says in answer.json()["error"]
    assert client.get("/flow").json()["revision"] == 1


def test_problems_of_a_flow_have_places(client: ApiClient) -> None:
    wrong = FLOW.replace("LogAttribute", "LogAtribute")
    for method, path in (("PUT", "/flow"), ("POST", "/flow/validate")):
        answer = client.request(method, path, content=wrong, params={"file": "my.yaml"})
        assert answer.status_code == 400
        [problem] = [one for one in answer.json()["problems"] if "LogAtribute" in one["message"]]
        assert (problem["file"], problem["line"]) == ("my.yaml", 5)
        assert "LogAttribute" in problem["message"]
    asked = {"dryRun": "true", "reportInvalid": "true"}
    reported = client.put("/flow", content=wrong, params={"file": "my.yaml", **asked})
    assert (reported.status_code, reported.json()) == (200, answer.json())
    assert client.put("/flow", content=wrong, params={"reportInvalid": "true"}).status_code == 400
    assert client.post("/flow/validate", content=FLOW).json() == {"valid": True, "name": "api"}
    assert client.put("/flow", content=b"\xff\xfe{").status_code == 400
    assert client.put("/flow", content="").status_code == 400


def test_every_endpoint_is_described(client: ApiClient) -> None:
    described = client.get("/flow/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    assert {"/flow", "/flow/status", "/flow/queue", "/flow/queue/drop"} <= set(described["paths"])
    for path, operations in described["paths"].items():
        for method in operations:
            assert client.request(method.upper(), path).status_code != 405, path


def test_it_says_so_while_there_is_no_flow() -> None:
    def none() -> FlowController:
        raise Unavailable("not yet")

    client = ApiClient(
        application(FlowRoutes(none, SystemClock()).routes(), access=with_token(None))
    )
    assert client.get("/flow/status").status_code == 503


@pytest.mark.parametrize("text", ["0" * 19 + "1999", "9" * 5_000, "-1", "1001", "٣"])
def test_numbers_are_within_their_bounds_however_they_are_written(
    client: ApiClient, text: str
) -> None:
    put(client)
    asked = {"connection": "Make.success -> Log", "limit": text}
    answer = client.get("/flow/queue", params=asked)
    assert answer.status_code == 400
    assert "not a whole number from 1 to 1000" in answer.json()["error"]


def test_commands_that_wait_take_no_thread_of_those_who_look_on() -> None:
    stuck = threading.Event()

    class Stuck:
        """A controller with a processor that does not stop until it is terminated."""

        applied = AppliedFlow(Flow(name="stuck"))

        def stop(self, target: str | None) -> list[str]:
            assert stuck.wait(120)
            return [str(target)]

        def terminate(self, _target: str) -> dict[str, str]:
            stuck.set()
            return {}

    routes = FlowRoutes(lambda: cast("FlowController", Stuck()), SystemClock())
    app = application(routes.routes(), access=with_token(None))

    async def ask() -> tuple[list[httpx.Response], list[httpx.Response]]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://flow") as client:
            calls = [asyncio.create_task(client.post("/flow/stop?target=a")) for _ in range(45)]
            refused = [await one for one in itertools.islice(asyncio.as_completed(calls), 37)]
            assert (await client.get("/flow/openapi.json")).status_code == 200
            assert (await client.post("/flow/terminate?target=a")).status_code == 200
            return refused, [one for one in await asyncio.gather(*calls) if one not in refused]

    refused, stopped = asyncio.run(ask())
    assert {one.status_code for one in refused} == {503}
    assert "busy" in refused[0].json()["error"]
    assert [one.json() for one in stopped] == [{"stopped": ["a"]}] * 8


EVIL = """
import pathlib
from penstock.flow.processor import Processor
pathlib.Path({marker!r}).write_text("imported")
class Evil(Processor):
    def on_trigger(self, context, session): ...
    def key(self, flowfile): return 0
"""


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a module that shows that it was imported, on the Python path."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "evil_module.py").write_text(EVIL.format(marker=str(tmp_path / "marker")))
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    monkeypatch.delitem(sys.modules, "evil_module", raising=False)
    return tmp_path / "marker"


EVIL_FLOWS = [
    "name: x\nprocessors:\n  A: {type: 'evil_module:Evil'}\n",
    FLOW + "  - {from: Log.failure, to: Log, prioritizers: 'evil_module:Evil'}\n",
]


@pytest.mark.parametrize("text", EVIL_FLOWS)
def test_a_module_that_is_not_listed_is_never_imported(
    client: ApiClient, evil: Path, text: str
) -> None:
    for method, path in (
        ("POST", "/flow/validate"),
        ("PUT", "/flow"),
        ("PUT", "/flow?dryRun=true"),
    ):
        answer = client.request(method, path, content=text)
        assert answer.status_code == 400
        assert "--flow-modules" in answer.text
    assert not evil.exists()


def test_a_listed_module_is_imported_at_apply_and_not_before(tmp_path: Path, evil: Path) -> None:
    numbers = itertools.count()
    controller = FlowController.open(
        str(tmp_path / "flow"),
        fs=OsFileSystem(),
        clock=SystemClock(),
        registry=ProcessorRegistry(BUILTIN, modules=FlowModules([str(tmp_path / "code")])),
        new_uuid=lambda: f"u{next(numbers)}",
        environment={},
    )
    try:
        client = ApiClient(
            application(
                FlowRoutes(lambda: controller, SystemClock()).routes(), access=with_token(None)
            )
        )
        assert client.post("/flow/validate", content=EVIL_FLOWS[0]).json()["valid"] is True
        put(client, EVIL_FLOWS[0], dryRun="true")
        assert not evil.exists()
        put(client, EVIL_FLOWS[0])
        assert evil.exists()
        # Its class is known now, so a validation checks its properties.
        wrong = EVIL_FLOWS[0].replace("}", ", properties: {no: 1}}")
        assert "no property 'no'" in client.post("/flow/validate", content=wrong).text
    finally:
        controller.close()


def test_files_of_penstock_outside_of_its_data_folder_are_kept_from_flows(tmp_path: Path) -> None:
    options = PenstockOptions(
        data_dir=tmp_path / "data",
        deep_storage=f"file://{tmp_path}/deep%20storage",
        task_logs="s3://bucket/logs",
        metadata_url=f"sqlite+pysqlite:///{tmp_path}/m%20d.db?timeout=9",
        token_file=tmp_path / "token",
        spark_secret_file=tmp_path / "secret",
        tls_key=tmp_path / "key.pem",
    )
    environment = {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PENSTOCK_CONFIG": str(tmp_path / "options.toml"),
    }
    kept = {str(one.relative_to(tmp_path)) for one in own_places(options, environment)}
    assert kept == {
        *("data", "deep storage", "m d.db", "m d.db-wal", "m d.db-shm", "token", "secret"),
        *("key.pem", "cache/penstock", "options.toml"),
        # Each may be a link to a folder on another disk.
        *(f"data/{part}" for part in ("topics", "flow", "tasks", "log", "run", "tmp", "secrets")),
        *("data/uploads", "data/segment-cache"),
        *("data/penstock.toml", "data/access", "data/tls"),
    }


def test_flows_do_not_change_which_programs_penstock_runs(tmp_path: Path) -> None:
    """A file that PutFile writes may be executable, and Spark is started again when it ends."""
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(java)
    environment = {
        "HOME": str(tmp_path / "home"),
        "PATH": f"{tmp_path}/home/.local/bin:{tmp_path}/bin",
        "JAVA_HOME": str(tmp_path / "java"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "keys"),
    }
    found = {one for one in program_places(environment) if tmp_path in one.parents}
    assert {str(one.relative_to(tmp_path)) for one in found} == {
        *("home/.local/bin", "bin", "jdk", "java", "home/.aws/config", "keys")
    }
    guard = WriteGuard()
    guard.set([], program_places(environment))
    with pytest.raises(InvalidRequest, match="decides which programs Penstock runs"):
        guard.check(str(tmp_path / "bin" / "setpriv"))
