"""What Druid's clients see of supervisors: every route, one by one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from overlord_kit import Api, OverlordWorld, supervisor_spec

S = "/druid/indexer/v1/supervisor"


@pytest.fixture
def world(tmp_path) -> Iterator[OverlordWorld]:
    made = OverlordWorld(tmp_path).start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Iterator[Api]:
    made = OverlordWorld(tmp_path_factory.mktemp("other")).start()
    made.api.post(S, json=supervisor_spec())
    yield made.api
    made.close()


@pytest.fixture
def api(world: OverlordWorld) -> Api:
    return world.api


def test_a_supervisor_from_its_spec_to_its_end(world: OverlordWorld, api: Api) -> None:
    submitted = api.post(S, json=supervisor_spec()).json()
    assert submitted == {"id": "flights", "modified": True, "restarted": True}
    again = api.post(f"{S}?skipRestartIfUnmodified=true", json=supervisor_spec()).json()
    assert again == {"id": "flights", "modified": False, "restarted": False}
    assert api.get(S).json() == ["flights"]
    (entry,) = api.get(f"{S}?state=true").json()
    assert set(entry) == {"id", "dataSource", "state", "detailedState", "healthy", "suspended"}
    (full,) = api.get(f"{S}?full").json()
    assert full["spec"] == api.get(f"{S}/flights").json()
    (system,) = api.get(f"{S}?system").json()
    assert system["type"] == "penstock"
    assert system["source"] == "flights"
    assert '"ioConfig"' in system["specString"]
    world.until(lambda: bool(world.peons))
    payload = api.get(f"{S}/flights/status").json()["payload"]
    assert {"dataSource", "stream", "activeTasks", "aggregateLag", "suspended"} <= set(payload)
    assert api.get(f"{S}/flights/health").status_code in {200, 503}
    assert api.get(f"{S}/flights/stats").status_code == 200
    assert isinstance(api.get(f"{S}/flights/parseErrors").json(), dict)
    assert api.post(f"{S}/flights/taskGroups/handoff", json={"taskGroupIds": [0]}).json() == {}
    assert api.post(f"{S}/flights/suspend").json()["suspended"] is True
    assert "already suspended" in api.post(f"{S}/flights/suspend").json()["error"]
    assert api.post(f"{S}/flights/resume").json()["suspended"] is False
    assert api.post(f"{S}/flights/reset").json() == {"id": "flights"}
    assert api.post(f"{S}/flights/terminate").json() == {"id": "flights"}
    newest = api.get(f"{S}/flights/history?count=1").json()
    assert [set(one) for one in newest] == [{"spec", "version", "creationTime"}]
    assert newest[0]["spec"]["type"] == "NoopSupervisorSpec"
    assert "id" not in newest[0]["spec"]
    everything = api.get(f"{S}/history").json()
    assert len(everything["flights"]) == 4
    assert everything["flights"][1]["spec"]["suspended"] is False


def test_all_at_once(api: Api) -> None:
    for name in ("one", "two"):
        assert api.post(S, json=supervisor_spec(name)).status_code == 200
    done = {"status": "success"}

    def suspended() -> list[bool]:
        return [one["suspended"] for one in api.get(f"{S}?state=true").json()]

    assert api.post(f"{S}/suspendAll").json() == done
    assert suspended() == [True, True]
    assert api.post(f"{S}/suspendAll").json() == done
    assert api.post(f"{S}/resumeAll").json() == done
    assert suspended() == [False, False]
    assert api.post(f"{S}/terminateAll").json() == done
    assert len(api.get(f"{S}/history").json()) == 2


def test_a_spec_is_judged_as_it_was_sent(api: Api) -> None:
    answer = api.post(S, content=b'{"type": "penstock", "type": "kafka"}')
    assert answer.status_code == 400
    assert "type" in answer.json()["error"]


def offsets(given: object, stream: str = "flights") -> dict[str, object]:
    partitions = {"type": "end", "stream": stream, "partitionOffsetMap": given}
    return {"type": "kafka", "partitions": partitions}


def test_offsets_are_set_in_druids_shape(world: OverlordWorld, api: Api) -> None:
    api.post(S, json=supervisor_spec())
    world.until(lambda: bool(world.peons))
    answer = api.post(f"{S}/flights/resetOffsets", json=offsets({"0": 3, "1": 4}))
    assert answer.json() == {"id": "flights"}
    world.until(lambda: world.metadata.offsets("flights") == {0: 3, 1: 4})


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/flights/resetOffsets", {}, 400, "partitions"),
        ("/flights/resetOffsets", offsets({}), 400, "one stream partition at least"),
        ("/flights/resetOffsets", offsets({"0": 1.5}), 400, "partitionOffsetMap"),
        ("/flights/resetOffsets", offsets({"a": 1}), 400, "partitionOffsetMap"),
        ("/flights/resetOffsets", offsets({"0": 1}, "other"), 400, "reads flights, not other"),
        ("/flights/resetOffsets", [], 400, "JSON object"),
        ("/flights/taskGroups/handoff", {}, 400, "taskGroupIds"),
        ("/flights/taskGroups/handoff", {"taskGroupIds": []}, 400, "one at least"),
        ("/flights/taskGroups/handoff", {"taskGroupIds": ["a"]}, 400, "whole numbers"),
        ("/flights/resetToLatestAndBackfill?backfillTaskCount=0", None, 400, "below 1"),
        ("/nobody/taskGroups/handoff", {"taskGroupIds": [0]}, 404, "no supervisor 'nobody'"),
        *((f"/nobody/{verb}", None, 404, "no supervisor 'nobody'") for verb in (
            "suspend", "resume", "terminate", "shutdown", "reset", "resetToLatestAndBackfill"
        )),
    ],
)  # fmt: skip
def test_commands_that_cannot_be_done(
    other: Api, path: str, body: object, status: int, says: str
) -> None:
    answer = other.post(S + path, json=body)
    assert answer.status_code == status, answer.text
    assert says in answer.json()["error"]


@pytest.mark.parametrize("what", ["", "/status", "/health", "/stats", "/parseErrors", "/history"])
def test_a_supervisor_that_is_not_there(other: Api, what: str) -> None:
    answer = other.get(f"{S}/nobody{what}")
    assert answer.status_code == 404
    assert "nobody" in answer.json()["error"]
