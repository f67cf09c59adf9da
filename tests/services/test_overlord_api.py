"""What Druid's clients see of tasks, workers and supervisors, and of an overlord that is away."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from penstock.core.errors import NotFound
from penstock.services.api.asgi import application
from penstock.services.api.clients import LeasedWorkers
from penstock.services.api.overlord import ACTION_BYTES_MAX, SupervisorRoutes, TaskRoutes
from penstock.services.api.router import RouterParts, RouterRoutes
from penstock.services.config import Address
from penstock.services.leases import Directory
from penstock.storage.metadata import MetadataStore
from penstock.testing.clock import VirtualClock

PREFIX = "/druid/indexer/v1"

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def done(value: object) -> Future[object]:
    future: Future[object] = Future()
    future.set_result(value)
    return future


class FakeOverlord:
    """Two supervisors' worth of answers."""

    def __init__(self) -> None:
        self.resets: list[tuple[str, Mapping[int, int] | None]] = []
        self.limits: list[int | None] = []
        self.submitted: list[bytes] = []

    def submit_supervisor(self, raw: bytes) -> Future[object]:
        self.submitted.append(raw)
        return done("x")

    @property
    def desk(self) -> FakeOverlord:
        return self

    def workers(self) -> Future[object]:
        return done(
            [SimpleNamespace(name="w", capacity=4), SimpleNamespace(name="unlisted", capacity=2)]
        )

    def active_tasks(self) -> Mapping[str, object]:
        return {
            "t1": SimpleNamespace(worker="w"),
            "t2": SimpleNamespace(worker=None),
        }

    def tasks(self, *, limit: int | None = None, **_: object) -> list[object]:
        self.limits.append(limit)
        return []

    def supervisor_spec(self, supervisor_id: str) -> Future[object]:
        if supervisor_id != "x":
            raise NotFound(f"there is no supervisor {supervisor_id!r}")
        return done(SimpleNamespace(io=SimpleNamespace(topic="flights")))

    def reset(self, supervisor_id: str, offsets: Mapping[int, int] | None = None) -> Future[object]:
        self.resets.append((supervisor_id, offsets))
        return done(None)


class Leases:
    def list(self, service: str | None = None) -> list[object]:
        return [SimpleNamespace(instance="w", host="h", port=1, expires_ms=1)]


async def ask(app: object, method: str, path: str, **more: object) -> httpx.Response:
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:
        return await client.request(method, path, **more)  # type: ignore[arg-type]


@pytest.fixture
def overlord() -> FakeOverlord:
    return FakeOverlord()


@pytest.fixture
def app(overlord: FakeOverlord) -> object:
    workers = LeasedWorkers(Directory(Leases()))  # type: ignore[arg-type]
    routes = [
        *TaskRoutes(overlord, workers, "http://h:1").routes(),  # type: ignore[arg-type]
        *SupervisorRoutes(overlord).routes(),  # type: ignore[arg-type]
    ]
    return application(routes, body_bytes_max=ACTION_BYTES_MAX)


async def test_workers_have_what_druids_have(app: object) -> None:
    (found,) = (await ask(app, "GET", f"{PREFIX}/workers")).json()
    assert found["worker"] == {
        "scheme": "http",
        "host": "h:1",
        "ip": "h",
        "name": "w",
        "capacity": 4,
        "version": "0",
        "category": "_default_worker_category",
        "disabled": False,
    }
    assert found["currCapacityUsed"] == 1
    assert found["runningTasks"] == ["t1"]
    assert found["blacklistedUntil"] is None
    assert (await ask(app, "GET", f"{PREFIX}/totalWorkerCapacity")).json() == {
        "currentClusterCapacity": 6,
        "maximumCapacityWithAutoScale": 6,
        "usedClusterCapacity": 1,
    }


async def test_a_number_of_tasks_has_to_be_one(app: object, overlord: FakeOverlord) -> None:
    answer = await ask(app, "GET", f"{PREFIX}/tasks?state=complete&max=-1")
    assert answer.status_code == 400
    assert overlord.limits == []
    await ask(app, "GET", f"{PREFIX}/completeTasks?n=5")
    assert overlord.limits == [5]


async def test_a_spec_is_judged_as_it_was_sent(app: object, overlord: FakeOverlord) -> None:
    twice = b'{"type": "penstock", "type": "kafka"}'
    answer = await ask(app, "POST", f"{PREFIX}/supervisor", content=twice)
    assert answer.json() == {"id": "x"}
    assert overlord.submitted == [twice]


def offsets_body(offsets: object, stream: str = "flights") -> dict[str, object]:
    partitions = {"type": "end", "stream": stream, "partitionOffsetMap": offsets}
    return {"type": "kafka", "partitions": partitions}


async def test_offsets_are_set_in_druids_shape(app: object, overlord: FakeOverlord) -> None:
    path = f"{PREFIX}/supervisor/x/resetOffsets"
    answer = await ask(app, "POST", path, json=offsets_body({"0": 5, "1": 7}))
    assert answer.json() == {"id": "x"}
    assert overlord.resets == [("x", {0: 5, 1: 7})]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "partitions"),
        (offsets_body({}), "one stream partition at least"),
        (offsets_body({"0": 1.5}), "partitionOffsetMap"),
        (offsets_body({"0": -1}), "partitionOffsetMap"),
        (offsets_body({"a": 1}), "partitionOffsetMap"),
        (offsets_body({"0": 1}, "other"), "reads flights, not other"),
    ],
)
async def test_offsets_that_mean_nothing_are_refused(
    app: object, overlord: FakeOverlord, body: object, says: str
) -> None:
    answer = await ask(app, "POST", f"{PREFIX}/supervisor/x/resetOffsets", json=body)
    assert answer.status_code == 400
    assert says in answer.json()["error"]
    assert overlord.resets == []


async def test_what_is_not_served_is_said_in_json(app: object) -> None:
    answer = await ask(app, "GET", f"{PREFIX}/lockedIntervals")
    assert answer.status_code == 404
    assert answer.json()["error"].startswith(f"GET {PREFIX}/lockedIntervals is not served here")
    assert (await ask(app, "PUT", f"{PREFIX}/supervisor")).status_code == 405


async def test_an_overlord_that_does_not_answer_is_named(tmp_path: Path) -> None:
    store = MetadataStore.open(f"sqlite:///{tmp_path}/m.db", clock=VirtualClock())
    store.leases.renew("overlord", "o", host="127.0.0.1", port=1, ttl_ms=1_000)
    address = Address("127.0.0.1", 1)
    parts = RouterParts(store, Directory(store.leases), address, address, lambda: True)
    answer = await ask(application(RouterRoutes(parts).routes()), "GET", f"{PREFIX}/tasks")
    store.close()
    assert answer.status_code == 503
    assert answer.json()["error"].startswith("the overlord does not answer")
    assert json.loads(answer.text)["errorCode"] == "unavailable"
