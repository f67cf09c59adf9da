"""What Druid's clients see of tasks, workers, locks and segments: every route, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from overlord_kit import Api, OverlordWorld, noop

from penstock.services.api.asgi import application
from penstock.services.api.router import RouterParts, RouterRoutes
from penstock.services.config import Address
from penstock.services.leases import Directory
from penstock.storage.metadata import MetadataStore
from penstock.testing.clock import VirtualClock

P = "/druid/indexer/v1"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverlordWorld]:
    made = OverlordWorld(tmp_path_factory.mktemp("overlord")).start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def api(world: OverlordWorld) -> Api:
    return world.api


def submit(api: Api, task: dict[str, object]) -> httpx.Response:
    return api.post(f"{P}/task", json=task)


def test_a_task_is_submitted_runs_and_ends(world: OverlordWorld, api: Api) -> None:
    assert submit(api, noop("first")).json() == {"task": "first"}
    world.runs("first")
    status = api.get(f"{P}/task/first/status").json()
    created = status["status"].pop("createdTime")
    assert status == {
        "task": "first",
        "status": {
            "id": "first",
            "groupId": "first",
            "type": "noop",
            "queueInsertionTime": "1970-01-01T00:00:00.000Z",
            "statusCode": "RUNNING",
            "status": "RUNNING",
            "runnerStatusCode": "RUNNING",
            "duration": -1,
            "location": {"host": "h", "port": 9, "tlsPort": -1},
            "dataSource": "d",
            "errorMsg": None,
        },
    }
    (listed,) = api.get(f"{P}/runningTasks").json()
    assert listed == {**status["status"], "createdTime": created}
    world.end("first", "it broke")
    ended = api.get(f"{P}/task/first/status").json()["status"]
    assert ended["statusCode"] == ended["status"] == "FAILED"
    assert ended["runnerStatusCode"] == "NONE"
    assert ended["errorMsg"] == "it broke"
    assert ended["duration"] > 0
    assert api.get(f"{P}/runningTasks").json() == []
    assert api.get(f"{P}/completeTasks").json() == [ended]


def test_an_overlord_that_does_not_answer_is_named(tmp_path: Path) -> None:
    store = MetadataStore.open(f"sqlite:///{tmp_path}/m.db", clock=VirtualClock())
    store.leases.renew("overlord", "o", host="127.0.0.1", port=1, ttl_ms=1_000)
    address = Address("127.0.0.1", 1)
    parts = RouterParts(store, Directory(store.leases), address, address, lambda: True)
    router = Api(application(RouterRoutes(parts).routes()))
    answer = router.get(f"{P}/tasks")
    router.close()
    store.close()
    assert answer.status_code == 503
    assert answer.json()["error"].startswith("the overlord does not answer")
    assert answer.json()["errorCode"] == "unavailable"
