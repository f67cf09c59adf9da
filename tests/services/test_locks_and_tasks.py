"""`/penstock/v1/tasks` and `/penstock/v1/locks`: what they list, for whom, and how much."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.access_kit import AccessFolderKit, as_principal
from tests.services.overlord_kit import Api, OverlordWorld, noop, routed

P, OWN = "/druid/indexer/v1", "/penstock/v1"
DAY = "2024-01-01T00:00:00.000Z/2024-01-02T00:00:00.000Z"
RULES = """
[roles.reader]
allow = ["read datasource:why"]
[roles.watcher]
allow = ["read task:waiter"]
[roles.writer]
allow = ["write datasource:other"]
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverlordWorld]:
    """Two tasks that hold locks and run, two that wait for the lock of one, and ended ones."""
    made = OverlordWorld(tmp_path_factory.mktemp("overlord"), slots=2).start()
    for name, error in (("good", ""), ("bad", "it broke")):
        made.api.post(f"{P}/task", json=noop(name, "why"))
        made.runs(name)
        made.end(name, error)
    for name, datasource in (("holder", "why"), ("apart", "other")):
        submit(made.api, name, datasource)
        made.runs(name)
    for name in ("waiter", "second"):
        submit(made.api, name, "why")
    locks = f"{OWN}/locks"
    made.until(lambda: "heldBy" in made.api.get(locks, params={"datasource": "why"}).text)
    yield made
    made.close()


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> AccessFolderKit:
    return AccessFolderKit(tmp_path_factory.mktemp("rules") / "access", RULES)


@pytest.fixture(scope="module")
def guarded(world: OverlordWorld, kit: AccessFolderKit) -> Iterator[Api]:
    api = Api(world.make_app(access=kit.control))
    yield api
    api.close()


def submit(api: Api, task_id: str, datasource: str) -> None:
    kill = {"type": "kill", "dataSource": datasource, "interval": "2024-01-01/2024-01-02"}
    assert api.post(f"{P}/task", json={**kill, "id": task_id}).status_code == 200


def ids(answer: dict[str, list[dict[str, object]]]) -> list[object]:
    return [one["id"] for one in answer["tasks"]]


def test_locks_name_their_tasks_and_those_who_wait(world: OverlordWorld) -> None:
    found = world.api.get(f"{OWN}/locks").json()
    assert [(one["dataSource"], one["taskIds"]) for one in found["locks"]] == [
        ("other", ["apart"]),
        ("why", ["holder"]),
    ]
    assert found["locks"][1]["interval"] == DAY
    assert found["locks"][1]["tasks"] == 1
    assert not found["hasMoreLocks"]
    assert found["waitingTasks"] == 2
    # The second one waits in line behind the first, for the same lock.
    waiting = {one["task"]: one["requests"] for one in found["waiting"]}
    request = {"type": "KILL", "interval": DAY, "heldBy": ["holder"]}
    request["type"] = waiting["waiter"][0]["type"]
    assert waiting == {"waiter": [request], "second": [request]}


def test_lists_are_bounded(world: OverlordWorld) -> None:
    found = world.api.get(f"{OWN}/locks", params={"limit": 1}).json()
    assert len(found["locks"]) == len(found["waiting"]) == 1
    assert found["hasMoreLocks"]
    assert found["waitingTasks"] == 2
    only = world.api.get(f"{OWN}/locks", params={"datasource": "other"}).json()
    assert len(only["locks"]) == 1
    assert not only["waiting"]
    tasks = world.api.get(f"{OWN}/tasks", params={"limit": 1}).json()
    assert len(tasks["tasks"]) == 2  # one active, one ended
    assert tasks["activeFound"] == 4
    assert tasks["hasMoreEnded"]
    assert tasks["counts"] == {"waiting": 2, "pending": 0, "running": 2}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, {"second", "waiter", "apart", "holder", "bad", "good"}),
        ({"state": "failed"}, {"bad"}),
        ({"state": "waiting,failed"}, {"second", "waiter", "bad"}),
        ({"state": "success", "search": "GOO"}, {"good"}),
        ({"search": "oth"}, {"apart"}),
        ({"search": "%"}, set()),
        ({"datasource": "other"}, {"apart"}),
        ({"state": "running", "search": "hold"}, {"holder"}),
    ],
)
def test_tasks_are_found(world: OverlordWorld, params: dict[str, str], expected: set[str]) -> None:
    found = world.api.get(f"{OWN}/tasks", params=params).json()
    assert set(ids(found)) == expected


def test_ended_tasks_are_of_the_time_asked_for(world: OverlordWorld) -> None:
    params = {"state": "failed", "endedWithinSeconds": "3600"}
    assert ids(world.api.get(f"{OWN}/tasks", params=params).json()) == ["bad"]
    world.clock.advance(2.0)
    params["endedWithinSeconds"] = "1"
    assert ids(world.api.get(f"{OWN}/tasks", params=params).json()) == []


def test_wrong_parameters_are_refused(world: OverlordWorld) -> None:
    answer = world.api.get(f"{OWN}/tasks", params={"state": "lost"})
    assert answer.status_code == 400
    assert "use waiting, pending, running, success, failed" in answer.json()["error"]
    for path in ("tasks", "locks"):
        assert world.api.get(f"{OWN}/{path}", params={"limit": "0"}).status_code == 400


@pytest.mark.parametrize(
    ("role", "locks", "waiting"),
    [
        ("reader", [("why", ["holder"])], {"waiter", "second"}),
        ("watcher", [], {"waiter"}),
        ("writer", [("other", ["apart"])], set()),
        ("consumer", [], set()),
    ],
)
def test_locks_are_those_of_readable_datasources_and_own_tasks(
    guarded: Api,
    kit: AccessFolderKit,
    role: str,
    locks: list[tuple[str, list[str]]],
    waiting: set[str],
) -> None:
    headers = as_principal(kit.control, "user:u", role)
    found = guarded.get(f"{OWN}/locks", headers=headers).json()
    assert [(one["dataSource"], one["taskIds"]) for one in found["locks"]] == locks
    assert {one["task"] for one in found["waiting"]} == waiting
    assert found["waitingTasks"] == len(waiting)
    assert guarded.get(f"{OWN}/locks").status_code == 401


@pytest.mark.parametrize(
    ("role", "tasks", "waits"),
    [("reader", set(), 0), ("watcher", {"waiter"}, 1), ("writer", {"apart"}, 0)],
)
def test_tasks_are_those_whose_state_one_may_see(
    guarded: Api, kit: AccessFolderKit, role: str, tasks: set[str], waits: int
) -> None:
    headers = as_principal(kit.control, "user:u", role)
    found = guarded.get(f"{OWN}/tasks", headers=headers).json()
    assert set(ids(found)) == tasks
    assert found["counts"]["waiting"] == waits


def test_the_router_forwards_both(world: OverlordWorld) -> None:
    class NoSql:
        """Answers no query."""

    with routed(world, NoSql()) as router:  # type: ignore[arg-type]
        for path in ("tasks", "locks"):
            assert router.get(f"{OWN}/{path}").json() == world.api.get(f"{OWN}/{path}").json()


def test_a_limited_principal_finds_its_tasks_among_many(guarded: Api, kit: AccessFolderKit) -> None:
    kit.write(RULES + '[roles.one]\nallow = ["read task:good"]\n')
    kit.control.refresh()
    headers = as_principal(kit.control, "user:u", "one")
    found = guarded.get(f"{OWN}/tasks", headers=headers, params={"limit": "1"}).json()
    assert ids(found) == ["good"]  # the newer one is not counted against the limit
    assert not found["hasMoreEnded"]


def test_a_folder_without_tasks(tmp_path: Path) -> None:
    empty = OverlordWorld(tmp_path).start()
    assert empty.api.get(f"{OWN}/locks").json()["locks"] == []
    assert empty.api.get(f"{OWN}/tasks").json()["tasks"] == []
    empty.close()
