"""What Druid's clients see of supervisors: every route, one by one."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from penstock.indexing.overlord.term import SlotDemand, slot_demand
from penstock.indexing.ports import TaskPhase, TaskReport, Throughput
from tests.services.overlord_kit import Api, OverlordWorld, supervisor_spec

if TYPE_CHECKING:
    from penstock.indexing.supervisor import Supervisor

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
    assert set(entry) == {
        "id",
        "type",
        "dataSource",
        "state",
        "detailedState",
        "healthy",
        "suspended",
        "waits",
        "aggregateLag",
    }
    assert entry["type"] == "penstock"
    (full,) = api.get(f"{S}?full").json()
    assert full["spec"] == api.get(f"{S}/flights").json()
    (system,) = api.get(f"{S}?system").json()
    assert system["type"] == "penstock"
    assert system["source"] == "flights"
    assert '"ioConfig"' in system["specString"]
    world.until(lambda: bool(world.peons))
    shown = api.get(f"{S}/flights/status").json()
    assert (shown["id"], set(shown)) == ("flights", {"id", "generationTime", "payload"})
    payload = shown["payload"]
    assert payload["type"] == "penstock"
    assert {"dataSource", "stream", "activeTasks", "aggregateLag", "suspended"} <= set(payload)
    handed_off = api.post(f"{S}/flights/taskGroups/handoff", json={"taskGroupIds": [0]})
    assert (handed_off.status_code, handed_off.json()) == (202, {})
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


def test_server_priorities_of_replicas_are_given_back_and_shown(
    world: OverlordWorld, api: Api
) -> None:
    spec = supervisor_spec()
    io = spec["spec"]["ioConfig"]
    wrong = api.post(S, json=spec | {"spec": spec["spec"] | {"ioConfig": io | prioritized({})}})
    assert wrong.status_code == 400
    assert "spec.ioConfig.serverPriorityToReplicas: must not be empty" in wrong.json()["error"]
    io |= prioritized({"2": 1, "-1": 1})
    assert api.post(S, json=spec).status_code == 200
    given = api.get(f"{S}/flights").json()
    assert given["spec"]["ioConfig"]["replicas"] == 2
    assert given["spec"]["ioConfig"]["serverPriorityToReplicas"] == {"2": 1, "-1": 1}
    again = api.post(f"{S}?skipRestartIfUnmodified=true", json=given).json()
    assert again == {"id": "flights", "modified": False, "restarted": False}
    world.until(lambda: len(shown_priorities(api)) == 2)
    assert sorted(shown_priorities(api).values()) == [-1, 2]
    for task_id, priority in shown_priorities(api).items():
        payload = api.get(f"/druid/indexer/v1/task/{task_id}").json()["payload"]
        assert payload["serverPriority"] == priority


def prioritized(counts: Mapping[str, int]) -> dict[str, object]:
    return {"serverPriorityToReplicas": dict(counts)}


def shown_priorities(api: Api) -> dict[str, int]:
    tasks = api.get(f"{S}/flights/status").json()["payload"]["activeTasks"]
    return {task["id"]: task["serverPriority"] for task in tasks}


def test_supervisors_that_take_all_slots_say_so_wherever_one_looks(
    world: OverlordWorld, api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    api.post(S, json=supervisor_spec("first"))
    world.until(lambda: len(world.peons) == 1)
    assert "shortOfSlots" not in api.get(f"{S}/first/status").json()["payload"]
    with caplog.at_level(logging.WARNING):
        assert api.post(S, json=supervisor_spec("second")).status_code == 200
    text = "2 supervisors need 2 slots for reading tasks, and up to 4 while"
    assert any(text in one.getMessage() for one in caplog.records)
    world.until(lambda: len(world.peons) == 2)
    api.post("/druid/indexer/v1/task", json={"type": "noop", "id": "starved", "runTime": 1})
    world.until(lambda: world.state("starved") == "PENDING")
    (wait,) = api.get("/druid/indexer/v1/task/starved/why").json()["waits"]
    assert "all of its 2 slots are taken" in wait["text"]
    assert text in wait["text"]
    short = api.get(f"{S}/first/status").json()["payload"]["shortOfSlots"]
    assert text in short
    assert "at all times batch tasks wait. To fix it, give workers more slots" in short
    assert api.get(f"{S}/second/health").json() == {"healthy": True, "shortOfSlots": short}
    assert {one["shortOfSlots"] for one in api.get(f"{S}?state=true").json()} == {short}
    assert api.post(f"{S}/second/suspend").status_code == 200
    world.until(lambda: "shortOfSlots" not in api.get(f"{S}/first/status").json()["payload"])


def test_a_supervisor_says_why_its_tasks_do_not_run(world: OverlordWorld, api: Api) -> None:
    name = "worker:8091"
    assert api.post(f"/druid/indexer/v1/worker/{name}/disable").json() == {name: "disabled"}
    world.until(
        lambda: any(
            one["worker"]["disabled"] for one in api.get("/druid/indexer/v1/workers").json()
        )
    )
    api.post(S, json=supervisor_spec())
    world.until(lambda: bool(api.get(f"{S}/flights/status").json()["payload"].get("tasksWaitFor")))
    (text,) = api.get(f"{S}/flights/status").json()["payload"]["tasksWaitFor"]
    reason = "it is disabled: enable it, or wait for others"
    assert text == f"a worker with a free slot: w: {reason}"
    assert api.post(f"/druid/indexer/v1/worker/{name}/enable").json() == {name: "enabled"}
    world.until(lambda: bool(world.peons))
    world.until(lambda: "tasksWaitFor" not in api.get(f"{S}/flights/status").json()["payload"])


@pytest.mark.parametrize(
    ("supervisors", "reading", "capacity", "says"),
    [
        (0, 0, 4, ""),
        (2, 2, 4, ""),
        (1, 3, 4, "1 supervisor needs 3 slots for reading tasks, and up to 6 while the tasks"),
        (1, 1, 1, "1 supervisor needs 1 slot for reading tasks, and up to 2 while the tasks"),
        (3, 3, 4, "while their tasks publish batch tasks wait"),
        (4, 4, 4, "at all times batch tasks wait"),
        (9, 9, 0, ""),  # without a worker something else is wrong
    ],
)
def test_when_supervisors_want_too_many_slots(
    supervisors: int, reading: int, capacity: int, says: str
) -> None:
    shortage = SlotDemand(supervisors, reading, capacity).shortage
    assert bool(shortage) == bool(says)
    assert says in shortage


@pytest.mark.parametrize(
    ("state", "partitions", "wanted"),
    [
        ("CONNECTING_TO_STREAM", 0, 6),  # all that it may have may be there
        ("RUNNING", 2, 4),  # a group has a stream partition at least
        ("RUNNING", 8, 6),
        *((state, 8, 0) for state in ("SUSPENDED", "STOPPING", "IDLE", "COMPLETED")),
    ],
)
def test_how_many_slots_a_supervisor_wants(state: str, partitions: int, wanted: int) -> None:
    latest: tuple[dict[int, int], None] = (dict.fromkeys(range(partitions), 5), None)
    standing = SimpleNamespace(state=state, latest=lambda: latest)
    io = SimpleNamespace(task_count=3, replicas=2)
    one = SimpleNamespace(snapshot=standing, spec=SimpleNamespace(io=io))
    found = slot_demand([cast("Supervisor", one)] * 2, 9)
    assert found == SlotDemand(2 if wanted else 0, 2 * wanted, 9)


def test_health_is_a_status_too(world: OverlordWorld, api: Api) -> None:
    api.post(S, json=supervisor_spec())
    world.until(lambda: bool(world.peons))
    answer = api.get(f"{S}/flights/health")
    assert (answer.status_code, answer.json()) == (200, {"healthy": True})
    ends = world.topics.ends.pop("flights")
    world.until(lambda: api.get(f"{S}/flights/health").status_code == 503)
    assert api.get(f"{S}/flights/health").json() == {"healthy": False}
    world.topics.ends["flights"] = ends
    world.until(lambda: api.get(f"{S}/flights/health").status_code == 200)


def reading(unparseable: int, samples: Sequence[Mapping[str, str | int]]) -> TaskReport:
    return TaskReport(
        phase=TaskPhase.READING,
        current={0: 7, 1: 5},
        persisted={0: 6, 1: 5},
        end=None,
        checkpoints={0: {0: 0, 1: 0}},
        counts={
            "processed": 5,
            "processedBytes": 1_234,
            "unparseable": unparseable,
            "thrownAwayLate": 1,
            "thrownAwayEarly": 2,
            "thrownAwayFiltered": 3,
        },
        averages={
            "1m": {"processed": 0.5, "thrownAwayLate": 0.25, "thrownAwayFiltered": 0.5},
            "5m": {},
            "15m": {},
        },
        unparseable=samples,
        throughput=Throughput(per_second=2.5, idle=0.75),
    )


def test_what_tasks_count_and_cannot_parse_is_shown_by_group_and_task(
    world: OverlordWorld, api: Api
) -> None:
    api.post(S, json=supervisor_spec())
    world.until(lambda: bool(world.peons))
    assert api.get(f"{S}/flights/stats").json() == {}
    (task,) = world.peons
    sample = {"partition": 0, "offset": 3, "reason": "no JSON", "input": "{"}
    world.reports[task] = reading(1, [sample])
    world.until(lambda: api.get(f"{S}/flights/stats").json() != {})
    # As Druid names them, also where nothing was counted yet.
    nothing = {
        "processed": 0,
        "processedBytes": 0,
        "processedWithError": 0,
        "thrownAway": 0,
        "unparseable": 0,
    }
    assert api.get(f"{S}/flights/stats").json() == {
        "0": {
            task: {
                "movingAverages": {
                    "buildSegments": {
                        "1m": {
                            **nothing,
                            "processed": 0.5,
                            "thrownAway": 0.75,
                            "thrownAwayLate": 0.25,
                            "thrownAwayFiltered": 0.5,
                        },
                        "5m": nothing,
                        "15m": nothing,
                    }
                },
                "totals": {
                    "buildSegments": {
                        "processed": 5,
                        "processedBytes": 1_234,
                        "processedWithError": 0,
                        "thrownAway": 6,
                        "thrownAwayLate": 1,
                        "thrownAwayEarly": 2,
                        "thrownAwayFiltered": 3,
                        "unparseable": 1,
                    }
                },
                "autoscalerMetrics": {"pollIdleRatio": 0.75, "perSecond": 2.5},
            }
        }
    }
    assert api.get(f"{S}/flights/parseErrors").json() == {"0": {task: [sample]}}


def test_what_lies_before_the_latest_messages_is_left_to_another_supervisor(
    world: OverlordWorld, api: Api
) -> None:
    spec = supervisor_spec(context={"useConcurrentLocks": True})
    io = spec["spec"]["ioConfig"]  # type: ignore[index]
    io["useEarliestOffset"] = False
    api.post(S, json=spec)
    world.until(lambda: bool(world.peons))
    refused = api.post(f"{S}/flights/resetToLatestAndBackfill")
    assert refused.status_code == 400
    assert "published all messages" in refused.json()["error"]
    world.topics.ends["flights"] = {0: 9, 1: 5}

    def seen() -> bool:
        payload = api.get(f"{S}/flights/status").json()["payload"]
        return bool(payload["latestOffsets"] == {"0": 9, "1": 5})

    world.until(seen)
    answer = api.post(f"{S}/flights/resetToLatestAndBackfill?backfillTaskCount=2")
    assert answer.status_code == 200, answer.text
    other = answer.json()["backfillSupervisorId"]
    assert answer.json() == {"id": "flights", "backfillSupervisorId": other}
    assert other.startswith("flights_backfill_")
    made = api.get(f"{S}/{other}").json()["spec"]["ioConfig"]
    assert made["taskCount"] == 2
    assert made["boundedStreamConfig"] == {
        "startSequenceNumbers": {"0": 7},
        "endSequenceNumbers": {"0": 9},
    }
    world.until(lambda: world.metadata.offsets("flights") == {0: 9, 1: 5})


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
        ("/flights/resetOffsets", offsets({}), 400, "at least one stream partition"),
        ("/flights/resetOffsets", offsets({"0": 1.5}), 400, "partitionOffsetMap"),
        ("/flights/resetOffsets", offsets({"a": 1}), 400, "partitionOffsetMap"),
        ("/flights/resetOffsets", offsets({"0": 1}, "other"), 400, "reads flights, not other"),
        ("/flights/resetOffsets", [], 400, "JSON object"),
        ("/flights/taskGroups/handoff", {}, 400, "taskGroupIds"),
        ("/flights/taskGroups/handoff", {"taskGroupIds": []}, 400, "at least one"),
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


def test_supervisors_that_need_attention_come_first(world: OverlordWorld, api: Api) -> None:
    for name in ("calm", "flights", "late"):
        assert api.post(S, json=supervisor_spec(name)).status_code == 200
    assert api.post(f"{S}/flights/suspend").status_code == 200
    world.until(lambda: api.get(f"{S}/calm/status").json()["payload"].get("aggregateLag"))
    first = {"order": "attention", "sums": "true"}
    found = api.get("/penstock/v1/supervisors", params={**first, "limit": 2}).json()
    sums = found["sums"]
    assert (sums["supervisors"], sums["suspended"], found["found"]) == (3, 1, 3)
    assert len(found["supervisors"]) == 2
    every = api.get("/penstock/v1/supervisors", params={"order": "attention"}).json()["supervisors"]
    assert sums["lag"] == sum(one["aggregateLag"] for one in every)
    attention = [(one["healthy"], not one["waits"], -one["aggregateLag"]) for one in every]
    assert attention == sorted(attention)
    named = api.get("/penstock/v1/supervisors", params={**first, "search": "FLI"}).json()
    assert [one["id"] for one in named["supervisors"]] == ["flights"]
    assert named["sums"]["supervisors"] == 3, "a search does not change the sums"
