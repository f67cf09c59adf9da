"""`/penstock/v1/supervisors`: pages of the list, the lag of the last hour, and chosen backfills."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.access_kit import AccessFolderKit, as_principal
from tests.services.overlord_kit import Api, OverlordWorld, routed, supervisor_spec

S, OWN = "/druid/indexer/v1/supervisor", "/penstock/v1/supervisors"
APPENDS = {"useConcurrentLocks": True}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverlordWorld]:
    """Five supervisors: one reads, one was suspended, one has no topic, and two compact."""
    made = OverlordWorld(tmp_path_factory.mktemp("lists"), slots=4).start()
    for name in ("reads", "rests", "lost"):
        assert made.api.post(S, json=supervisor_spec(name, context=APPENDS)).status_code == 200
    lost = supervisor_spec("lost", context=APPENDS)
    lost["spec"]["ioConfig"]["topic"] = "none"  # type: ignore[index]
    made.api.post(f"{S}/lost/terminate")
    made.until(lambda: made.api.get(f"{S}/lost").status_code == 404)
    assert made.api.post(S, json=lost).status_code == 200
    for name in ("reads", "wide"):
        spec = {"type": "autocompact", "spec": {"dataSource": name}}
        assert made.api.post(S, json=spec).status_code == 200
    assert made.api.post(f"{S}/rests/suspend").status_code == 200
    made.until(lambda: state(made, "lost") == "UNABLE_TO_CONNECT_TO_STREAM")
    made.until(lambda: bool(made.peons) and len(lag(made, "reads")["times"]) > 2)
    yield made
    made.close()


def state(world: OverlordWorld, name: str) -> object:
    return world.api.get(f"{S}/{name}/status").json()["payload"]["detailedState"]


def lag(world: OverlordWorld, name: str) -> Any:
    answer = world.api.get(f"{OWN}/{name}/lag")
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    ("params", "found", "expected"),
    [
        ({}, 5, ["autocompact__reads", "autocompact__wide", "lost", "reads", "rests"]),
        ({"skip": 1, "limit": 2}, 5, ["autocompact__wide", "lost"]),
        ({"skip": 9}, 5, []),
        ({"search": "READ"}, 2, ["autocompact__reads", "reads"]),
        ({"search": "%"}, 0, []),
        ({"state": "suspended"}, 1, ["rests"]),
        ({"state": "unhealthy"}, 1, ["lost"]),
        ({"state": "healthy", "limit": 1}, 3, ["autocompact__reads"]),
        ({"order": "lag", "limit": 1}, 5, ["reads"]),
        ({"order": "attention", "limit": 2}, 5, ["lost", "reads"]),
        ({"sums": "true", "skip": 3}, 5, ["reads", "rests"]),
        ({"sums": "true", "state": "unhealthy", "search": "l"}, 1, ["lost"]),
    ],
)
def test_a_page_has_what_was_asked_for(
    world: OverlordWorld, params: dict[str, str], found: int, expected: list[str]
) -> None:
    answer = world.api.get(OWN, params=params).json()
    assert answer["found"] == found
    assert [one["id"] for one in answer["supervisors"]] == expected


@pytest.mark.parametrize(
    ("params", "place"),
    [({"state": "x"}, "state"), ({"order": "x"}, "order"), ({"skip": -1}, "skip")],
)
def test_an_invalid_parameter_is_named(
    world: OverlordWorld, params: dict[str, str], place: str
) -> None:
    answer = world.api.get(OWN, params=params)
    assert answer.status_code == 400
    assert place in answer.json()["error"]


def test_the_lag_is_kept_over_time(world: OverlordWorld) -> None:
    found = lag(world, "reads")
    assert found["everyMs"] == 10_000
    assert set(found["messages"]) == {12}
    times, oldest = found["times"], found["oldestMs"]
    assert min(b - a for a, b in itertools.pairwise(times)) >= 10_000
    # Nothing is read, so the oldest message is as old as the first poll.
    assert oldest == [time - times[0] for time in times]
    assert world.api.get(f"{OWN}/autocompact__wide/lag").status_code == 400
    assert world.api.get(f"{OWN}/nobody/lag").status_code == 404


def test_a_chosen_range_is_read_by_a_second_supervisor(world: OverlordWorld) -> None:
    ranges = {"partitionOffsetRanges": {"0": [2, 5], "1": [3, 3]}}
    answer = world.api.post(f"{OWN}/reads/backfill?backfillTaskCount=2", json=ranges)
    assert answer.status_code == 200, answer.text
    other = answer.json()["backfillSupervisorId"]
    assert other.startswith("reads_backfill_")
    made = world.api.get(f"{S}/{other}").json()
    assert made["suspended"] is False
    assert made["spec"]["dataSchema"]["dataSource"] == "reads"
    assert made["spec"]["ioConfig"]["taskCount"] == 2
    assert made["spec"]["ioConfig"]["boundedStreamConfig"] == {
        "startSequenceNumbers": {"0": 2},
        "endSequenceNumbers": {"0": 5},
    }
    world.until(lambda: any(other in task for task in world.peons))
    world.api.post(f"{S}/{other}/terminate")
    assert world.api.get(f"{OWN}/{other}/lag").status_code == 200


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "partitionOffsetRanges: must be a JSON object"),
        ({"partitionOffsetRanges": {"x": [1, 2]}}, "not the number of a stream partition"),
        ({"partitionOffsetRanges": {"0": [1]}}, "a list of two offsets"),
        ({"partitionOffsetRanges": {"0": [3, 2]}}, "the larger one last"),
        ({"partitionOffsetRanges": {"0": [True, 2]}}, "two whole numbers"),
        ({"partitionOffsetRanges": {"0": [2, 2]}}, "there are no messages in these ranges"),
        ({"partitionOffsetRanges": {"0": [2, 8]}}, "partition 0 holds offsets 0 to 7"),
        ({"partitionOffsetRanges": {"5": [0, 1]}}, "has no stream partition 5: use one of 0, 1"),
    ],
)
def test_ranges_that_cannot_be_read_change_nothing(
    world: OverlordWorld, body: dict[str, object], text: str
) -> None:
    before = world.api.get(S).json()
    answer = world.api.post(f"{OWN}/reads/backfill", json=body)
    assert answer.status_code == 400
    assert text in answer.json()["error"]
    assert world.api.get(S).json() == before


def test_two_supervisors_at_once_need_concurrent_locks(world: OverlordWorld) -> None:
    ranges = {"partitionOffsetRanges": {"0": [0, 1]}}
    assert world.api.post(S, json=supervisor_spec("alone")).status_code == 200
    unseen = world.api.post(f"{OWN}/alone/backfill", json=ranges)
    assert unseen.status_code == 503
    assert "has not seen its stream yet" in unseen.json()["error"]
    world.until(lambda: bool(lag(world, "alone")["times"]))
    refused = world.api.post(f"{OWN}/alone/backfill", json=ranges)
    assert refused.status_code == 400
    assert "set useConcurrentLocks" in refused.json()["error"]
    world.api.post(f"{S}/alone/suspend")
    made = world.api.post(f"{OWN}/alone/backfill", json=ranges)
    assert made.status_code == 200, made.text
    for name in ("alone", made.json()["backfillSupervisorId"]):
        world.api.post(f"{S}/{name}/terminate")


def test_a_second_tab_learns_what_the_first_one_did(world: OverlordWorld) -> None:
    assert world.api.post(S, json=supervisor_spec("tabs")).status_code == 200
    assert world.api.post(f"{S}/tabs/suspend").status_code == 200
    again = world.api.post(f"{S}/tabs/suspend")
    assert (again.status_code, "already suspended" in again.text) == (400, True)
    assert world.api.post(f"{S}/tabs/reset").status_code == 200
    assert world.api.post(f"{S}/tabs/terminate").status_code == 200
    world.until(lambda: world.api.get(f"{S}/tabs").status_code == 404)
    for command in ("reset", "resume", "terminate"):
        answer = world.api.post(f"{S}/tabs/{command}")
        assert (answer.status_code, "there is no supervisor" in answer.text) == (404, True)


def test_only_what_a_principal_may_see_is_listed(world: OverlordWorld, tmp_path: Path) -> None:
    roles = '[roles.some]\nallow = ["read supervisor:re*"]\n'
    kit = AccessFolderKit(tmp_path / "access", roles + '[principals]\n"user:amy" = ["some"]\n')
    api = Api(world.make_app(access=kit.control))
    headers = as_principal(kit.control, "user:amy", "some")
    found = api.get(OWN, headers=headers).json()
    shown = {one["id"] for one in found["supervisors"]}
    assert {"reads", "rests"} <= shown
    assert not shown & {"lost", "autocompact__reads"}
    assert found["found"] == len(shown)
    assert api.get(f"{OWN}/reads/lag", headers=headers).status_code == 200
    assert api.get(f"{OWN}/lost/lag", headers=headers).status_code == 403
    ranges = {"partitionOffsetRanges": {"0": [0, 1]}}
    assert api.post(f"{OWN}/reads/backfill", headers=headers, json=ranges).status_code == 403
    api.close()


def test_the_router_forwards_them(world: OverlordWorld) -> None:
    with routed(world, None) as api:  # type: ignore[arg-type]
        assert api.get(OWN).json()["found"] >= 5
        assert api.get(f"{OWN}/reads/lag").json()["id"] == "reads"
        assert api.post(f"{OWN}/reads/backfill", json={}).status_code == 400
