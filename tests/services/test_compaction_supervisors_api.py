"""Supervisors of compaction over the API: Druid's paths and shapes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.core.intervals import Interval
from penstock.segments.segment import Segment
from penstock.storage.metadata import PublishRequest
from tests.harness.access_kit import author_who_claims
from tests.services.overlord_kit import Api, OverlordWorld

P = "/druid/indexer/v1"
ONE = f"{P}/supervisor/autocompact__comp"
CONFIG = f"{P}/compaction/config/datasources/comp"
SPEC = {"type": "autocompact", "spec": {"dataSource": "comp", "skipOffsetFromLatest": "PT1H"}}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverlordWorld]:
    made = OverlordWorld(tmp_path_factory.mktemp("overlord")).start()
    for day in (1, 5):
        segment = Segment(
            datasource="comp",
            interval=Interval.parse(f"2024-01-0{day}/2024-01-0{day + 1}"),
            version="2024-02-01T00:00:00.000Z",
            load_spec={"type": "local", "path": "/p"},
            total_rows=3,
        )
        assert made.metadata.publish(PublishRequest(f"t{day}", "comp", (segment.to_row(),))).ok
    yield made
    made.close()


@pytest.fixture
def api(world: OverlordWorld) -> Iterator[Api]:
    answer = world.api.post(f"{P}/supervisor", json=SPEC)
    assert answer.json() == {"id": "autocompact__comp", "modified": True, "restarted": False}
    yield world.api
    if world.api.get(CONFIG).status_code == 200:
        world.api.delete(CONFIG)


def test_it_stands_in_the_lists(api: Api) -> None:
    assert api.get(f"{P}/supervisor").json() == ["autocompact__comp"]
    (entry,) = api.get(f"{P}/supervisor?state=true").json()
    assert (entry["state"], entry["healthy"], entry["dataSource"]) == ("RUNNING", True, "comp")
    (entry,) = api.get(f"{P}/supervisor?full").json()
    assert entry["spec"]["spec"]["skipOffsetFromLatest"] == "PT1H"
    (entry,) = api.get(f"{P}/supervisor?system").json()
    assert (entry["type"], entry["source"]) == ("autocompact", "")
    assert api.get(ONE).json()["spec"] == api.get(CONFIG).json()


def test_its_status_is_druids_snapshot(api: Api) -> None:
    status = api.get(f"{ONE}/status").json()
    assert status["id"] == "autocompact__comp"
    payload = status["payload"]
    assert (payload["dataSource"], payload["scheduleStatus"]) == ("comp", "RUNNING")
    assert payload["segmentCountAwaitingCompaction"] == payload["segmentCountSkipped"] == 1
    snapshot = api.get(f"{P}/compaction/status/datasources/comp").json()
    assert snapshot.items() <= payload.items()
    assert api.get(f"{ONE}/health").json() == {"healthy": True}
    assert api.post(f"{ONE}/suspend").json()["suspended"] is True
    payload = api.get(f"{ONE}/status").json()["payload"]
    assert (payload["scheduleStatus"], payload["state"]) == ("NOT_ENABLED", "SUSPENDED")
    # What waits for it to be resumed is shown.
    assert payload["segmentCountAwaitingCompaction"] == payload["segmentCountSkipped"] == 1
    (shown,) = api.get(f"{P}/compaction/status/datasources").json()["latestStatus"]
    assert shown["scheduleStatus"] == "NOT_ENABLED"
    assert shown.items() <= payload.items()
    assert api.get(f"{ONE}/health").status_code == 200
    pending = api.post(f"{P}/compaction/simulate", json={}).json()["compactionStates"]["PENDING"]
    assert pending["rows"] == []
    assert api.post(f"{ONE}/suspend").status_code == 400
    assert api.post(f"{ONE}/resume").json()["suspended"] is False


def test_its_configuration_is_changed_and_removed_either_way(api: Api) -> None:
    changed = {"dataSource": "comp", "skipOffsetFromLatest": "PT2H"}
    headers = {"X-Druid-Author": "me"}
    assert api.post(CONFIG, json=changed, headers=headers).json() == {"success": True}
    assert api.get(ONE).json()["spec"]["skipOffsetFromLatest"] == "PT2H"
    entry = api.get(f"{CONFIG}/history").json()[0]
    assert (entry["auditInfo"]["author"], entry["compactionConfig"]) == (
        author_who_claims("me"),
        api.get(CONFIG).json(),
    )
    assert api.post(f"{ONE}/terminate").json() == {"id": "autocompact__comp"}
    assert api.get(CONFIG).status_code == api.get(ONE).status_code == 404
    ended = api.get(f"{ONE}/history").json()[0]["spec"]
    assert (ended["type"], ended["dataSources"]) == ("NoopSupervisorSpec", ["comp"])
    api.post(f"{P}/supervisor", json=SPEC)
    assert api.delete(CONFIG).json() == {"success": True}
    assert api.get(ONE).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "stats", None),
        ("GET", "parseErrors", None),
        ("POST", "reset", None),
        ("POST", "resetToLatestAndBackfill", None),
        ("POST", "taskGroups/handoff", {"taskGroupIds": [0]}),
        (
            *("POST", "resetOffsets"),
            {"partitions": {"stream": "s", "partitionOffsetMap": {"0": 1}}},
        ),
    ],
)
def test_what_reads_no_stream_has_none_of_this(
    api: Api, method: str, path: str, body: object
) -> None:
    answer = api(method, f"{ONE}/{path}", **({} if body is None else {"json": body}))
    assert answer.status_code == 400
    assert "of type autocompact: it reads no stream" in answer.json()["error"]


def test_a_wrong_one_is_refused_and_changes_nothing(api: Api) -> None:
    wrong = {**SPEC, "spec": {"dataSource": "comp", "skipOffset": "PT2H"}}
    answer = api.post(f"{P}/supervisor", json=wrong)
    assert answer.status_code == 400
    assert "spec.skipOffset" in answer.json()["error"]
    assert api.get(CONFIG).json()["skipOffsetFromLatest"] == "PT1H"
