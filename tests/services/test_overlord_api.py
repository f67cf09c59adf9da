"""What Druid's clients see of tasks, workers, locks and segments: every route, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from penstock.core.intervals import Interval, format_time
from penstock.segments.segment import Segment
from penstock.services.api.asgi import application
from penstock.services.api.router import RouterParts, RouterRoutes
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.options.option_values import HostPort
from penstock.storage.metadata import AllocateRequest, PublishRequest, SegmentRow
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import author_who_claims, with_token
from tests.harness.metadata_kit import open_metadata
from tests.services.overlord_kit import Api, OverlordWorld, noop, ready
from tests.services.places_kit import FixedPlaces

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
            "location": {"host": "h", "port": 9, "tlsPort": 9},
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
    store = open_metadata(tmp_path, VirtualClock())
    store.leases.renew("overlord", "o", host="127.0.0.1", port=1, ttl_ms=1_000)
    address = HostPort("127.0.0.1", 1)
    parts = RouterParts(
        store, LeaseDirectory(store.leases), address, FixedPlaces(address), ready, VirtualClock()
    )
    router = Api(application(RouterRoutes(parts).routes(), access=with_token(None)))
    answer = router.get(f"{P}/tasks")
    router.close()
    store.close()
    assert answer.status_code == 503
    assert answer.json()["error"].startswith("the overlord does not answer")
    assert answer.json()["errorCode"] == "unavailable"


def test_lists_have_states_filters_and_times(world: OverlordWorld, api: Api) -> None:
    for n in range(4):
        assert submit(api, noop(f"list{n}", "lists")).status_code == 200
    world.until(lambda: len(api.get(f"{P}/runningTasks?datasource=lists").json()) == 2)
    ids = lambda path: [one["id"] for one in api.get(f"{P}/{path}").json()]  # noqa: E731
    running = ids("runningTasks?datasource=lists")
    pending = ids("pendingTasks?datasource=lists")
    assert sorted(running + pending) == [f"list{n}" for n in range(4)]
    assert ids("waitingTasks?datasource=lists") == []
    assert ids("tasks?state=running&datasource=lists") == running
    assert sorted(ids("tasks?datasource=lists&type=noop")) == sorted(running + pending)
    log = f"{P}/task/{pending[0]}/log"
    assert [api.get(log).status_code, api.get(f"{log}?optional").status_code] == [404, 204]
    assert api.get(f"{P}/task/nobody/log?optional").status_code == 404
    assert ids("tasks?datasource=lists&type=compact") == []
    assert ids("tasks?datasource=lists&createdTimeInterval=2000-01-01_2000-01-02") == []
    assert ids("tasks?datasource=other") == []
    for task_id in running:
        world.end(task_id)
    complete = ids("tasks?state=complete&datasource=lists")
    assert sorted(complete) == sorted(running)
    assert ids("completeTasks?datasource=lists&n=1") == complete[:1]
    world.until(lambda: not api.get(f"{P}/pendingTasks?datasource=lists").json())
    assert api.post(f"{P}/datasources/lists/shutdownAllTasks").json() == {"dataSource": "lists"}
    world.until(lambda: len(ids("tasks?state=complete&datasource=lists")) == 4)
    assert api.post(f"{P}/datasources/lists/shutdownAllTasks").status_code == 404
    found = api.post(f"{P}/taskStatus", json=["list0", "list1", "nobody"]).json()
    assert set(found) == {"list0", "list1"}
    assert {"id", "status", "duration", "errorMsg", "location"} <= set(found["list0"])


def test_old_tasks_are_listed_when_their_time_is_named(tmp_path: Path) -> None:
    world = OverlordWorld(tmp_path).start()
    submit(world.api, noop("old"))
    world.runs("old")
    world.end("old")
    world.clock.advance(90_000)
    assert world.api.get(f"{P}/completeTasks").json() == []
    time = "createdTimeInterval=1970-01-01_2100-01-01"
    assert [one["id"] for one in world.api.get(f"{P}/tasks?{time}").json()] == ["old"]
    world.close()


def test_what_a_task_leaves_is_read_wherever_it_is(world: OverlordWorld, api: Api) -> None:
    submit(api, noop("logged"))
    world.runs("logged")
    world.live["logged"] = {"ingestionStatsAndErrors": {"taskId": "logged"}}
    assert api.get(f"{P}/task/logged/reports").json() == world.live["logged"]
    answer = api.get(f"{P}/task/logged/log")
    assert answer.text == "the log of logged\n"
    assert answer.headers["content-type"].startswith("text/plain")
    part = api.get(f"{P}/task/logged/log?offset=-7")
    assert part.text == "logged\n"
    assert part.headers["X-Penstock-Log-Offset"] == "11"
    assert part.headers["X-Penstock-Log-Size"] == "18"
    assert api.get(f"{P}/task/logged/log?offset=8").text == "of logged\n"
    payload = api.get(f"{P}/task/logged").json()
    assert payload["task"] == "logged"
    assert payload["payload"]["type"] == "noop"
    world.end("logged")
    assert api.get(f"{P}/task/logged/log").text == "the log of logged\n"
    world.log_store.put("logged", b"put away", b'{"a": 1}')
    assert api.get(f"{P}/task/logged/reports").json() == {"a": 1}


def test_a_long_log_comes_in_parts(world: OverlordWorld, api: Api) -> None:
    submit(api, noop("long"))
    world.runs("long")
    text = "0123456789abcdef" * 200_000
    (Path(world.peons["long"].folder) / "log").write_text(text)
    assert api.get(f"{P}/task/long/log").text == text
    assert api.get(f"{P}/task/long/log?offset={len(text) - 5}").text == text[-5:]
    world.end("long")


def test_why_a_task_waits_is_told(world: OverlordWorld, api: Api) -> None:
    kill = {"type": "kill", "dataSource": "why", "interval": "2024-01-01/2024-01-02"}
    submit(api, {**kill, "id": "holder"})
    world.runs("holder")
    submit(api, {**kill, "id": "waiter"})
    world.until(lambda: world.state("waiter") == "WAITING")
    world.until(lambda: "holder" in api.get(f"{P}/task/waiter/why").text)  # the lockbox answered
    answer = api.get(f"{P}/task/waiter/why").json()
    assert answer["task"] == "waiter"
    assert answer["status"]["runnerStatusCode"] == "WAITING"
    (wait,) = answer["waits"]
    assert wait["kind"] in {"locks", "line"}
    assert "holder" in wait["text"]
    assert api.get(f"{P}/task/holder/why").json()["waits"] == []
    asked = [{"datasource": "why", "priority": 0}, {"datasource": "none"}]
    locks = api.post(f"{P}/activeLocks", json=asked).json()["datasourceToLocks"]
    assert set(locks) == {"why"}
    assert locks["why"][0]["taskIds"] == ["holder"]
    assert locks["why"][0]["interval"] == "2024-01-01T00:00:00.000Z/2024-01-02T00:00:00.000Z"
    assert api.post(f"{P}/lockedIntervals/v2", json=asked).json() == {
        "why": ["2024-01-01T00:00:00.000Z/2024-01-02T00:00:00.000Z"]
    }
    high = [{"datasource": "why", "priority": 1_000}]
    assert api.post(f"{P}/lockedIntervals/v2", json=high).json() == {}
    assert api.post(f"{P}/task/waiter/shutdown").json() == {"task": "waiter"}
    assert api.post(f"{P}/task/nobody/shutdown").json() == {"task": "nobody"}
    world.until(lambda: world.state("waiter") == "NONE")
    assert api.get(f"{P}/task/waiter/why").json()["waits"] == []
    world.end("holder")


def test_why_says_of_a_running_task_that_it_tries_again(world: OverlordWorld, api: Api) -> None:
    submit(api, noop("again"))
    world.runs("again")
    assert api.get(f"{P}/task/again/why").json()["waits"] == []  # its peon does not answer
    told = {
        "failedWork": "writing segments",
        "failedTries": 4,
        "failedTriesMax": 20,
        "lastFailure": "the database db:5432/a cannot be opened",
        "nextTry": "2026-11-22T16:00:00.000Z",
    }
    world.live["again"] = {"ingestionStatsAndErrors": {"payload": told}}
    (wait,) = api.get(f"{P}/task/again/why").json()["waits"]
    assert wait["kind"] == "retry"
    assert wait["text"] == (
        "its next attempt of writing segments, at 2026-11-22T16:00:00.000Z: 4 failed; with 20 it"
        " fails; last reason: the database db:5432/a cannot be opened"
    )
    told["failedTriesMax"] = None
    (wait,) = api.get(f"{P}/task/again/why").json()["waits"]
    assert "4 failed, and it retries without a limit" in wait["text"]
    world.live["again"] = {"ingestionStatsAndErrors": {"payload": {}}}
    assert api.get(f"{P}/task/again/why").json()["waits"] == []
    world.end("again")


def test_workers_and_how_they_are_chosen(world: OverlordWorld, api: Api) -> None:
    world.until(lambda: bool(api.get(f"{P}/workers").json()))
    (found,) = api.get(f"{P}/workers").json()
    assert found["worker"] == {
        "scheme": "http",
        "host": "worker:8091",
        "ip": "worker",
        "name": "w",
        "capacity": 2,
        "version": "0",
        "category": "_default_worker_category",
        "disabled": False,
    }
    assert set(found) == {
        *("worker", "currCapacityUsed", "currParallelIndexCapacityUsed", "runningTasks"),
        *("currCapacityUsedByTaskType", "availabilityGroups", "lastCompletedTaskTime"),
        "blacklistedUntil",
    }
    assert api.get(f"{P}/totalWorkerCapacity").json() == {
        "currentClusterCapacity": 2,
        "maximumCapacityWithAutoScale": 2,
        "usedClusterCapacity": 0,
    }
    assert api.get(f"{P}/scaling").json() == []
    assert api.post(f"{P}/worker/worker:8091/disable").json() == {"worker:8091": "disabled"}
    disabled = lambda: api.get(f"{P}/workers").json()[0]["worker"]["disabled"]  # noqa: E731
    world.until(disabled)
    assert api.post(f"{P}/worker/w/enable").json() == {"worker:8091": "enabled"}
    world.until(lambda: not disabled())
    missing = api.post(f"{P}/worker/x:1/disable")
    assert missing.status_code == 404
    assert "worker:8091" in missing.json()["error"]
    strategy = {"selectStrategy": {"type": "fillCapacity"}}
    headers = {"X-Druid-Author": "me", "X-Druid-Comment": "fewer hosts"}
    assert api.post(f"{P}/worker", json=strategy, headers=headers).status_code == 200
    assert api.get(f"{P}/worker").json()["selectStrategy"]["type"] == "fillCapacity"
    (entry,) = api.get(f"{P}/worker/history?count=1").json()
    assert entry["auditInfo"] == {
        "author": author_who_claims("me"),
        "comment": "fewer hosts",
        "ip": "",
    }
    assert "fillCapacity" in entry["payload"]


def test_who_leads_is_told(world: OverlordWorld, api: Api) -> None:
    assert api.get(f"{P}/leader").text == "http://overlord:8090"
    assert api.get(f"{P}/isLeader").json() == {"leader": True}


def test_an_overlord_that_does_not_lead_answers_503(tmp_path: Path) -> None:
    world = OverlordWorld(tmp_path)
    assert world.api.get(f"{P}/isLeader").status_code == 404
    for path in ("tasks", "runningTasks", "completeTasks", "workers", "supervisor", "worker"):
        assert world.api.get(f"{P}/{path}").status_code == 503, path
    assert submit(world.api, noop("n")).status_code == 503
    assert world.api.get(f"{P}/compaction/config/datasources").status_code == 503
    assert world.api.delete(f"{P}/datasources/d").status_code == 503
    world.start().close()


def test_a_full_queue_answers_429(tmp_path: Path) -> None:
    world = OverlordWorld(tmp_path, max_tasks=1).start()
    assert submit(world.api, noop("a")).status_code == 200
    answer = submit(world.api, noop("b"))
    assert answer.status_code == 429
    assert answer.json()["category"] == "CAPACITY_EXCEEDED"
    assert "the maximum is 1" in answer.json()["errorMessage"]
    world.close()


def test_a_wrong_task_is_refused_in_druids_typed_form(api: Api) -> None:
    answer = submit(api, noop("typed"))
    assert answer.status_code == 200
    again = submit(api, noop("typed"))
    assert again.status_code == 400
    assert set(again.json()) == {
        *("error", "errorCode", "persona", "category", "errorMessage", "context")
    }
    assert again.json()["error"] == "druidException"
    assert "another id" in again.json()["errorMessage"]
    wrong = submit(api, {"type": "kill", "dataSource": "d", "intervall": "x"})
    assert wrong.status_code == 400
    assert "interval" in wrong.json()["errorMessage"]
    api.post(f"{P}/task/typed/shutdown")


def test_the_token_is_asked_for(world: OverlordWorld) -> None:
    guarded = Api(world.make_app(token="secret"))
    assert guarded.get(f"{P}/tasks").status_code == 401
    assert guarded.get(f"{P}/tasks", headers={"Authorization": "Bearer no"}).status_code == 401
    shown = {"Authorization": "Bearer secret"}
    assert guarded.get(f"{P}/tasks", headers=shown).status_code == 200
    guarded.close()


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("GET", "/tasks?state=odd", None, 400, "state: invalid state 'odd'"),
        ("GET", "/tasks?max=0", None, 400, "max: "),
        ("GET", "/completeTasks?n=x", None, 400, "n: 'x' is not a whole number"),
        ("GET", "/tasks?createdTimeInterval=now", None, 400, "createdTimeInterval: "),
        ("GET", "/task/nobody", None, 404, "no task 'nobody'"),
        ("GET", "/task/nobody/status", None, 404, "no task 'nobody'"),
        ("GET", "/task/nobody/why", None, 404, "no task 'nobody'"),
        ("GET", "/task/nobody/log", None, 404, "no task 'nobody'"),
        ("GET", "/task/nobody/log?offset=a", None, 400, "offset: "),
        ("GET", "/task/nobody/reports", None, 404, "no task 'nobody'"),
        ("POST", "/task", b"{", 400, "JSON"),
        ("POST", "/task", b"[1]", 400, "JSON object"),
        ("POST", "/taskStatus", b"[]", 400, "at least one text"),
        ("POST", "/taskStatus", b"{}", 400, "list of at least one text"),
        ("POST", "/taskStatus", b"[1]", 400, "[0]: must be a text"),
        ("POST", "/taskStatus", b"nothing", 400, "not valid JSON"),
        ("POST", "/action", b"{}", 400, "task: must name the task"),
        ("POST", "/action", b'{"task": "t", "action": {"type": "odd"}}', 400, "odd"),
        ("POST", "/activeLocks", b"[]", 400, "datasource"),
        ("POST", "/activeLocks", b"[1]", 400, "[0]: must be an object"),
        ("POST", "/lockedIntervals/v2", b"[{}]", 400, "[0].datasource"),
        ("POST", "/lockedIntervals/v2", b'[{"datasource":"d","priority":"x"}]', 400, "priority"),
        (
            *("POST", "/lockedIntervals/v2", b'[{"datasource":"d"},{"datasource":"d"}]'),
            *(400, "twice"),
        ),
        ("POST", "/worker", b'{"selectStrategy": {"type": "odd"}}', 400, "selectStrategy.type"),
        ("GET", "/worker/history?interval=x", None, 400, "interval: "),
        ("POST", "/datasources/d", b'{"interval": "2024/2025"}', 400, "/datasources/d/markUsed"),
        ("DELETE", "/datasources/d", b'{"interval": "2024/2025"}', 400, "datasources/d/markUnused"),
        ("DELETE", "/datasources/d?kill=true&interval=2024/2025", None, 400, "submit a kill task"),
        ("DELETE", "/datasources/d?interval=2024/2025", None, 400, "interval: this marks all"),
        ("POST", "/datasources/d/markUsed", b"{}", 400, "segmentIds or interval"),
        ("POST", "/datasources/d/markUsed", b'{"segmentIds": []}', 400, "at least one text"),
        ("POST", "/datasources/d/markUnused", b'{"interval": 3}', 400, "interval: "),
        ("POST", "/datasources/d/markUnused", b'{"segmentIds": ["s"]}', 404, "no segment s"),
        (
            *("POST", "/datasources/d/markUnused", b'{"segmentIds": ["s"], "versions": ["v"]}'),
            *(400, "versions: "),
        ),
        ("DELETE", "/datasources/d/segments/s", None, 404, "no segment s"),
        ("DELETE", "/pendingSegments/d", None, 400, "interval: "),
        ("GET", "/compaction/config/datasources/d", None, 404, "no compaction configuration"),
        ("DELETE", "/compaction/config/datasources/d", None, 404, "no compaction configuration"),
        ("GET", "/compaction/status/datasources/d", None, 404, "no compaction configuration"),
        (
            "POST",
            "/compaction/config/datasources/d",
            b'{"dataSource": "e"}',
            400,
            "but the path has",
        ),
        ("POST", "/compaction/config/datasources/d", b'{"dataSourc": "d"}', 400, "dataSource"),
        (
            *("POST", "/compaction/config/cluster", b'{"compactionTaskSlotRatio": 2}'),
            *(400, "at most"),
        ),
        ("GET", "/lockedIntervals", None, 404, "is not served here"),
        ("PUT", "/supervisor", b"{}", 405, "is not served here: use another method"),
        ("DELETE", "/task", None, 405, "is not served here"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    api: Api, method: str, path: str, body: bytes | None, status: int, says: str
) -> None:
    answer = api(method, P + path, content=body)
    assert answer.status_code == status, answer.text
    told = answer.json()
    assert says in str(told.get("errorMessage") or told["error"])


def test_a_body_that_is_too_large_is_refused(api: Api) -> None:
    answer = api.post(f"{P}/taskStatus", content=b" " * (16 << 20) + b"[]  ")
    assert answer.status_code == 413
    assert "send less" in answer.json()["error"]


DAY = "2024-01-01T00:00:00.000Z/2024-01-02T00:00:00.000Z"


def published(world: OverlordWorld, datasource: str, *versions: str) -> list[str]:
    """Publish a segment of one day for each version, the older ones as if appended before."""
    ids = []
    for version in versions:
        row = segment_row(datasource, DAY, version)
        outcome = world.metadata.publish(PublishRequest("t" + version, datasource, (row,)))
        assert outcome.ok, outcome.reason
        ids.append(row.id)
    return ids


def segment_row(datasource: str, interval: str, version: str) -> SegmentRow:
    return Segment(
        datasource=datasource,
        interval=Interval.parse(interval),
        version=version,
        load_spec={"type": "local", "path": "/p"},
        dimensions=("a",),
        metrics=(),
        size=10,
    ).to_row()


def test_segments_are_taken_out_and_brought_back(world: OverlordWorld, api: Api) -> None:
    old, new = published(world, "seg", "2024-01-01T00:00:00.000Z", "2024-01-02T00:00:00.000Z")
    base = f"{P}/datasources/seg"
    none = {"numChangedSegments": 0, "segmentStateChanged": False}
    one = {"numChangedSegments": 1, "segmentStateChanged": True}
    assert api.delete(base).json() == {"numChangedSegments": 2, "segmentStateChanged": True}
    assert api.delete(base).json() == none
    assert api.post(base, json={}).json() == one  # the older one is hidden by the newer
    assert api.post(f"{base}/segments/{old}").json() == none
    assert api.delete(f"{base}/segments/{new}").json() == one
    assert api.post(f"{base}/segments/{old}").json() == one
    assert api.post(f"{base}/markUnused", json={"interval": DAY}).json() == one
    versions = {"interval": DAY, "versions": ["2024-01-01T00:00:00.000Z"]}
    assert api.post(f"{base}/markUsed", json=versions).json() == one
    assert api.post(f"{base}/markUnused", json={"segmentIds": [old]}).json() == one
    assert api.post(f"{base}/markUsed", json={"segmentIds": [old, new]}).json() == one
    assert [row.id for row in world.metadata.snapshot("seg").segments] == [new]


def test_places_that_nobody_publishes_in_are_freed(world: OverlordWorld, api: Api) -> None:
    request = AllocateRequest("pend", Interval.parse(DAY), "s", "2024-01-01T00:00:00.000Z")
    world.metadata.allocate_segments([request])
    world.clock.advance(ms=1)  # What is allocated from now on is left alone.
    path = f"{P}/pendingSegments/pend"
    assert api.delete(f"{path}?interval=2000-01-01_2000-01-02").json() == {"numDeleted": 0}
    submit(api, noop("busy", "pend"))
    refused = api.delete(f"{path}?interval=1970-01-01/2100-01-01")
    assert refused.status_code == 400
    assert "task busy" in refused.json()["error"]
    api.post(f"{P}/task/busy/shutdown")
    world.until(lambda: world.state("busy") == "NONE")
    assert api.delete(f"{path}?interval=1970-01-01/2100-01-01").json() == {"numDeleted": 1}


def test_places_are_kept_for_a_task_that_began_by_a_clock_ahead(
    world: OverlordWorld, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(api, noop("ahead", "early"))
    ahead = world.clock.now_ms
    monkeypatch.setattr(world.clock, "now_ms", lambda: ahead() - 3_600_000)
    request = AllocateRequest("early", Interval.parse(DAY), "s", "2024-01-01T00:00:00.000Z")
    world.metadata.allocate_segments([request])
    before = format_time(ahead() - 1_800_000)
    refused = api.delete(f"{P}/pendingSegments/early?interval=1970-01-01/{before}")
    assert refused.status_code == 400
    assert "task ahead" in refused.json()["error"]


def test_a_path_that_is_not_there_is_named_and_nothing_else(api: Api) -> None:
    answer = api.get(f"{P}/supervisors")
    assert answer.status_code == 404
    assert answer.json()["error"] == f"GET {P}/supervisors is not served here"


def test_compaction_is_configured_and_its_state_shown(world: OverlordWorld, api: Api) -> None:
    base = f"{P}/compaction"
    assert api.get(f"{base}/isSupervisorEnabled").json() is True
    assert api.get(f"{base}/config/datasources").json() == {"compactionConfigs": []}
    cluster = {"compactionTaskSlotRatio": 0.5, "maxCompactionTaskSlots": 3}
    assert api.post(f"{base}/config/cluster", json=cluster).json() == {"success": True}
    assert api.get(f"{base}/config/cluster").json() == cluster
    published(world, "comp", "2024-01-01T00:00:00.000Z")
    newest = segment_row("comp", "2024-01-05/2024-01-06", "2024-01-05T00:00:00.000Z")
    assert world.metadata.publish(PublishRequest("newest", "comp", (newest,))).ok
    config = {"dataSource": "comp", "skipOffsetFromLatest": "PT1H"}
    one = f"{base}/config/datasources/comp"
    headers = {"X-Druid-Author": "me"}
    assert api.post(one, json=config, headers=headers).json() == {"success": True}
    assert api.get(one).json()["skipOffsetFromLatest"] == "PT1H"
    (entry,) = api.get(f"{one}/history").json()
    assert entry["auditInfo"]["author"] == author_who_claims("me")
    assert entry["compactionConfig"]["dataSource"] == "comp"
    status = api.get(f"{base}/status/datasources/comp").json()
    assert status["dataSource"] == "comp"
    assert status["scheduleStatus"] == "RUNNING"
    assert status["segmentCountAwaitingCompaction"] == 1
    assert status["bytesAwaitingCompaction"] == 10
    assert status["intervalCountCompacted"] == 0
    assert status["segmentCountSkipped"] == 1
    assert api.get(f"{base}/status/datasources").json() == {"latestStatus": [status]}
    simulated = api.post(f"{base}/simulate", json={}).json()["compactionStates"]
    assert simulated["PENDING"]["rows"] == [["comp", DAY]]
    assert api.delete(one).json() == {"success": True}
    assert api.get(one).status_code == 404
    assert len(api.get(f"{one}/history").json()) == 2


def test_an_action_of_a_task_is_done(world: OverlordWorld, api: Api) -> None:
    submit(api, noop("acts"))
    body = {"task": "acts", "action": {"type": "lockList"}}
    assert api.post(f"{P}/action", json=body).json() == {"result": []}
    gone = api.post(f"{P}/action", json={**body, "task": "nobody"})
    assert gone.status_code == 400
    assert gone.json()["errorCode"] == "lockRevoked"
    api.post(f"{P}/task/acts/shutdown")
