"""What Druid's clients see of rules and segments, of SQL that writes, and of every process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock.core.intervals import Interval
from penstock.segments.segment import Segment
from penstock.storage.metadata import PublishRequest
from tests.harness.access_kit import author_who_claims
from tests.services.overlord_kit import Api, OverlordWorld, noop, routed

C = "/druid/coordinator/v1"
DAY = "2024-01-01T00:00:00.000Z/2024-01-02T00:00:00.000Z"
OLD, NEW = "2024-01-01T00:00:00.000Z", "2024-01-02T00:00:00.000Z"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverlordWorld]:
    made = OverlordWorld(tmp_path_factory.mktemp("router")).start()
    for version in (OLD, NEW):
        segment = Segment(
            datasource="web",
            interval=Interval.parse(DAY),
            version=version,
            load_spec={"type": "local", "path": "/p"},
            size=10,
            total_rows=3,
        )
        request = PublishRequest(f"t{version}", "web", (segment.to_row(),))
        assert made.metadata.publish(request).ok
    yield made
    made.close()


@pytest.fixture(scope="module")
def router(world: OverlordWorld) -> Iterator[Api]:
    # No query of these tests comes as far as Spark.
    with routed(world, None) as made:  # type: ignore[arg-type]
        yield made


def test_rules_are_set_shown_and_remembered(router: Api) -> None:
    forever = [{"type": "loadForever"}]
    assert [one["type"] for one in router.get(f"{C}/rules").json()["_default"]] == ["loadForever"]
    assert router.get(f"{C}/rules/web").json() == []
    rules = [{"type": "dropBeforeByPeriod", "period": "P30D"}]
    headers = {"X-Druid-Author": "me", "X-Druid-Comment": "less"}
    assert router.post(f"{C}/rules/web", json=rules, headers=headers).status_code == 200
    assert router.get(f"{C}/rules/web").json() == rules
    full = router.get(f"{C}/rules/web?full").json()
    assert [one["type"] for one in full] == ["dropBeforeByPeriod", "loadForever"]
    assert router.post(f"{C}/rules/_default", json=forever).status_code == 200
    assert set(router.get(f"{C}/rules").json()) == {"_default", "web"}
    (entry,) = router.get(f"{C}/rules/web/history").json()
    assert entry["auditInfo"] == {"author": author_who_claims("me"), "comment": "less", "ip": ""}
    assert entry["payload"] == rules
    assert len(router.get(f"{C}/rules/history?count=10").json()) == 2
    wrong = router.post(f"{C}/rules/web", json=[{"type": "dropForevr"}])
    assert wrong.status_code == 400
    assert "dropForever" in wrong.json()["error"]


def test_datasources_and_their_segments(router: Api) -> None:
    base = f"{C}/metadata/datasources"
    ids = [f"web_{DAY.replace('/', '_')}_{version}" for version in (OLD, NEW)]
    assert router.get(base).json() == ["web"]
    assert router.get(f"{base}?full").json()[0]["name"] == "web"
    assert len(router.get(f"{base}/web").json()["segments"]) == 2
    assert sorted(router.get(f"{base}/web/segments").json()) == ids
    assert router.get(f"{base}/web/segments?full").json()[0]["dataSource"] == "web"
    shown = router.get(f"{base}/web/segments/{ids[0]}").json()
    assert shown["used"] is True
    assert shown["metadata"]["version"] == OLD
    (piece,) = router.get("/penstock/v1/datasources/web/timeline").json()
    assert piece == {
        "interval": DAY,
        "segment": ids[1],
        "version": NEW,
        "partition": 0,
        "rows": 3,
        "bytes": 10,
        "clipped": False,
    }
    assert router.get(f"{C}/loadstatus").json() == {"web": 100.0}
    assert router.get(f"{C}/loadstatus?simple").json() == {"web": 0}
    assert router.get(f"{C}/loadstatus?full").json() == {"_default_tier": {"web": 0}}
    one = f"{C}/datasources/web/loadstatus?forceMetadataRefresh=true"
    assert router.get(one).json() == {"web": 100.0}
    assert router.get(f"{C}/config").json() == {}


def test_what_is_loaded_is_what_is_used(router: Api) -> None:
    base = f"{C}/datasources"
    ids = [f"web_{DAY.replace('/', '_')}_{version}" for version in (OLD, NEW)]
    start, end = DAY.split("/")
    sizes = {"size": 20, "replicatedSize": 20}
    counts = {
        "tiers": {"_default_tier": {**sizes, "segmentCount": 2}},
        "segments": {**sizes, "count": 2, "minTime": start, "maxTime": end},
    }
    assert router.get(base).json() == ["web"]
    assert router.get(f"{base}?simple").json() == [{"name": "web", "properties": counts}]
    (full,) = router.get(f"{base}?full").json()
    assert (full["name"], len(full["segments"])) == ("web", 2)
    assert router.get(f"{base}/web").json() == counts
    assert router.get(f"{base}/web?full").json() == full
    assert sorted(router.get(f"{base}/web/segments").json()) == ids
    assert router.get(f"{base}/web/segments?full").json() == full["segments"]
    shown = router.get(f"{base}/web/segments/{ids[1]}").json()
    assert (shown["metadata"]["version"], shown["servers"]) == (NEW, [])
    assert router.get(f"{base}/web/intervals").json() == [DAY]
    assert router.get(f"{base}/web/intervals?simple").json() == {DAY: {"size": 20, "count": 2}}
    assert set(router.get(f"{base}/web/intervals?full").json()[DAY]) == set(ids)
    assert router.get(f"{base}/web/intervals/2024-01-01_P1M").json() == ids[::-1]
    assert router.get(f"{base}/web/intervals/2024-01-01_P1M?simple").json()[DAY]["count"] == 2
    for none in ("none", "none/segments", "web/segments/none", "web/intervals/2023-01-01_P1D"):
        answer = router.get(f"{base}/{none}")
        assert (answer.status_code, answer.content) == (204, b"")
    assert router.get(f"{base}/web/intervals/today").status_code == 400


def test_a_router_stands_for_the_coordinator_that_leads(router: Api) -> None:
    assert router.get(f"{C}/leader").text.startswith("http://127.0.0.1:")
    assert router.get(f"{C}/isLeader").json() == {"leader": True}
    assert router.get(f"{C}/servers").json() == []


def test_segments_are_marked_by_the_paths_of_either(router: Api) -> None:
    name = f"web_{DAY.replace('/', '_')}_{NEW}"
    body = {"segmentIds": [name]}
    changed = {"numChangedSegments": 1, "segmentStateChanged": True}
    assert router.post(f"{C}/datasources/web/markUnused", json=body).json() == changed
    assert name not in router.get(f"{C}/datasources/web/segments").json()
    assert router.post(f"{C}/datasources/web/segments/{name}").json() == changed


@pytest.mark.parametrize(
    "path",
    [
        f"{C}/metadata/datasources/none",
        f"{C}/metadata/datasources/none/segments",
        f"{C}/metadata/datasources/web/segments/none",
        f"{C}/datasources/none/loadstatus",
        "/penstock/v1/datasources/none/timeline",
        "/penstock/v1/datasources/none/segments/timeline",
    ],
)
def test_what_is_not_there(router: Api, path: str) -> None:
    answer = router.get(path)
    assert answer.status_code == 404
    assert "none" in answer.json()["error"]


def test_every_process_tells_that_it_is_there(world: OverlordWorld, router: Api) -> None:
    for api in (world.api, router):
        assert api.get("/status").json()["version"] == penstock.__version__
        assert api.get("/status/health").json() is True
        assert api.get("/status/properties").json()["penstock.version"] == penstock.__version__
        assert api.get("/status/selfDiscovered/status").json() == {"selfDiscovered": True}
        assert api.get("/status/selfDiscovered").status_code == 200


INSERT = "INSERT INTO web SELECT __time, a FROM other PARTITIONED BY DAY"


def test_sql_that_writes_becomes_a_task(world: OverlordWorld, router: Api) -> None:
    body = {"query": INSERT, "context": {"priority": 60}}
    answer = router.post("/druid/v2/sql/task", json=body)
    assert answer.status_code == 202
    started = answer.json()
    assert started["state"] == "RUNNING"
    payload = router.get(f"/druid/indexer/v1/task/{started['taskId']}").json()["payload"]
    assert payload["type"] == "query_controller"
    assert payload["sql"] == INSERT
    assert payload["context"] == {"priority": 60}
    router.post(f"/druid/indexer/v1/task/{started['taskId']}/shutdown")


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/druid/v2/sql", {"query": INSERT}, "POST it to /druid/v2/sql/task"),
        ("/druid/v2/sql/task", {"query": "SELECT 1"}, "only INSERT and REPLACE"),
        ("/druid/v2/sql/task", {"query": "INSERT INTO web SELECT 1"}, "PARTITIONED BY"),
        ("/druid/v2/sql/task", {"query": INSERT, "parameters": [1]}, "do not support parameters"),
        ("/druid/v2/sql/task", {"query": 1}, "query: must be the text"),
        ("/druid/v2/sql/task", {"query": INSERT, "context": 1}, "context: "),
        ("/druid/v2/sql/task", [], "JSON object"),
    ],
)
def test_sql_that_is_no_task(router: Api, path: str, body: object, says: str) -> None:
    answer = router.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"] == "druidException"
    assert says in answer.json()["errorMessage"]


def test_requests_go_through_with_who_asks_and_where_a_log_is(
    world: OverlordWorld, router: Api
) -> None:
    router.post("/druid/indexer/v1/task", json=noop("through"))
    world.runs("through")
    log = router.get("/druid/indexer/v1/task/through/log?offset=-8")
    assert log.text == "through\n"
    assert log.headers["X-Penstock-Log-Offset"] == "11"
    config = {"dataSource": "web"}
    path = "/druid/indexer/v1/compaction/config/datasources/web"
    router.post(path, json=config, headers={"X-Druid-Author": "me"})
    assert router.get(f"{path}/history").json()[0]["auditInfo"]["author"] == author_who_claims("me")
    world.end("through")


def test_unused_segments_are_listed_with_the_time_since_when(router: Api) -> None:
    path = f"{C}/metadata/datasources/web/unusedSegments"
    old = f"web_{DAY.replace('/', '_')}_{OLD}"
    marking = f"{C}/datasources/web"
    assert router.get(path).json() == []
    assert router.post(f"{marking}/markUnused", json={"segmentIds": [old]}).status_code == 200
    try:
        (one,) = router.get(path).json()
        assert one["dataSegment"]["identifier"] == old
        assert one["used"] is False
        assert one["usedStatusLastUpdatedDate"] >= one["createdDate"]
        assert router.get(f"{path}?interval={DAY}&limit=5").json() == [one]
        assert router.get(f"{path}?interval=2023-01-01/P1D").json() == []
        assert router.get(f"{path}?limit=0").status_code == 400
    finally:
        router.post(f"{marking}/segments/{old}")
