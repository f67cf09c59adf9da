"""Hostile names at every route and in every spec that takes a name, and names of older releases."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from penstock.core.intervals import Interval
from penstock.core.names import TASK
from penstock.core.printable import HIDDEN
from penstock.segments.segment import Segment
from penstock.services.backup.rebuild import named_file
from penstock.storage.metadata import PublishRequest
from tests.services.overlord_kit import Api, OverlordWorld, noop, routed, supervisor_spec

P = "/druid/indexer/v1"
C = "/druid/coordinator/v1"
DAY = "2024-01-01/2024-01-02"
NFC, NFD = "Caf\u00e9", "Cafe\u0301"
FOREVER = [{"type": "loadForever"}]
# As they stand in a path. Those that hold a slash name no route at all.
IN_PATHS = (
    *("%2e%2e", "%2e", ".hidden", "a%2Fb", "a%5Cb", "%1B%5B31mred", "a%0Ab", "a%00b", "%7F"),
    *("%C2%9B2J", "%E2%80%AEevil", "a%E2%80%A8b", "%ff%fe", "%20a", "a%20", "x" * 10_000),
)
HOSTILE = (
    *("..", ".", "a/b", "a\\b", "\x1b[31mred", "a\nb", "a\x00b", "\x9b2J", "\u202eevil"),
    *("a\u2028b", "\ufffd", " a", "", "x" * 10_000),
)
NAMED = ("datasource", "supervisor_id", "task_id", "host")
BODIES: dict[str, object] = {
    "/markUsed": {"interval": DAY},
    "/markUnused": {"interval": DAY},
    "/resetOffsets": {"partitions": {"partitionOffsetMap": {"0": 1}}},
    "/taskGroups/handoff": {"taskGroupIds": [1]},
    "/backfill": {"partitionOffsetRanges": {"0": [0, 1]}},
    "/rules/{datasource}": FOREVER,
    "/rules/preview": FOREVER,
    "/compaction/config/datasources/{datasource}": {"dataSource": "d"},
}


def segment(name: str) -> Segment:
    return Segment(
        datasource=name,
        interval=Interval.parse(DAY),
        version="2024-02-01T00:00:00.000Z",
        load_spec={"type": "local", "path": "/p"},
        total_rows=3,
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverlordWorld]:
    made = OverlordWorld(tmp_path_factory.mktemp("names")).start()
    assert made.metadata.publish(PublishRequest("t", "d", (segment("d").to_row(),))).ok
    assert made.api.post(f"{P}/supervisor", json=supervisor_spec(suspended=True)).is_success
    yield made
    made.close()


@pytest.fixture(scope="module")
def router(world: OverlordWorld) -> Iterator[Api]:
    # No query of these tests comes as far as Spark.
    with routed(world, None) as made:  # type: ignore[arg-type]
        yield made


def named_routes(app: Starlette) -> list[tuple[str, str]]:
    """Every method and path with a name in it."""
    found = {
        (method, route.path)
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or ())
        if method != "HEAD" and any(f"{{{name}" in route.path for name in NAMED)
    }
    return sorted(found)


def filled(path: str, name: str) -> str:
    path = re.sub(rf"{{({'|'.join(NAMED)})(:path)?}}", lambda _: name, path)
    path = path.replace("{interval:path}", DAY.replace("/", "_"))
    return re.sub(r"{\w+(:path)?}", "x", path)


def state(world: OverlordWorld) -> object:
    store = world.metadata
    asked = ("tasks", "supervisor?full", "compaction/config/datasources", "worker", "workers")
    return (
        [world.api.get(f"{P}/{path}").json() for path in asked],
        [row.id for row in store.snapshot().segments],
        store.rules.every(),
        list(store.audit.list(limit=1_000)),
    )


def refused(answer: httpx.Response) -> str:
    assert 400 <= answer.status_code < 500, (str(answer.request.url)[:200], answer.text[:200])
    told = answer.json()
    text = str(told.get("errorMessage") or told.get("error") or told)
    assert not re.search(f"(?!\n)[{HIDDEN}]", text), repr(text)
    assert len(text) < 25_000
    return text


def test_every_route_refuses_hostile_names_and_changes_nothing(
    world: OverlordWorld, router: Api
) -> None:
    before = state(world)
    routes = [(world.api, one) for one in named_routes(world.app)]
    routes += [(router, one) for one in named_routes(router.app)]
    assert len(routes) > 40
    for api, (method, path) in routes:
        body = next((body for end, body in BODIES.items() if path.endswith(end)), None)
        content = b"" if body is None else json.dumps(body).encode()
        for name in IN_PATHS:
            query = f"?interval={DAY}" if "pendingSegments" in path else ""
            more = {} if method in {"GET", "DELETE"} else {"content": content}
            told = refused(api(method, filled(path, name) + query, **more))
            if len(name) < 100 and "%2F" not in name:
                assert "is not a valid " in told, (path, name, told)
    assert state(world) == before


def specs(name: str) -> Iterator[tuple[str, object]]:
    """Every spec with a name in each of its places."""
    supervisor = f"{P}/supervisor"
    yield supervisor, supervisor_spec(name)
    yield supervisor, supervisor_spec(id=name)
    yield supervisor, {"type": "autocompact", "spec": {"dataSource": name}}
    task = f"{P}/task"
    yield task, noop("n", name)
    if name:  # an empty id is none
        yield task, noop(name)
    yield task, {"type": "kill", "dataSource": name, "interval": DAY}
    yield task, {"type": "compact", "dataSource": name, "interval": DAY}
    for source, target in ((name, "d"), ("d", name)):
        schema = {"dataSource": target, "timestampSpec": {"column": "t"}}
        reads = {"type": "druid", "dataSource": source, "interval": DAY}
        io = {"type": "index_parallel", "inputSource": reads}
        yield task, {"type": "index_parallel", "spec": {"dataSchema": schema, "ioConfig": io}}
    yield f"{P}/compaction/config/datasources/d", {"dataSource": name}
    for path in ("lockedIntervals/v2", "activeLocks"):
        yield f"{P}/{path}", [{"datasource": name, "priority": 0}]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: repr(name)[:20])
def test_every_spec_refuses_hostile_names_and_changes_nothing(
    world: OverlordWorld, router: Api, name: str
) -> None:
    before = state(world)
    for path, spec in specs(name):
        told = refused(world.api.post(path, json=spec))
        assert "is not a valid " in told or not name
    for verb in ("INSERT INTO", "REPLACE INTO"):
        statement = f'{verb} "{name}" SELECT 1 AS __time PARTITIONED BY ALL'
        refused(router.post("/druid/v2/sql/task", json={"query": statement}))
    tiers = [{"type": "loadForever", "tieredReplicants": {name: 1}}]
    refused(router.post(f"{C}/rules/d", json=tiers))
    assert state(world) == before


@pytest.mark.parametrize("name", TASK.taken)
def test_no_task_has_the_name_of_a_file_of_the_worker(world: OverlordWorld, name: str) -> None:
    before = state(world)
    told = refused(world.api.post(f"{P}/task", json=noop(name)))
    assert f"'{name}' is not a valid task id: Penstock has a file of this name" in told
    for path in ("status", "log", "reports"):
        assert world.api.get(f"{P}/task/{name}/{path}").status_code == 404
    assert state(world) == before


def test_a_half_of_a_surrogate_pair_is_no_json(world: OverlordWorld) -> None:
    before = state(world)
    body = b'{"type": "noop", "id": "n", "dataSource": "a\\ud800"}'
    assert world.api.post(f"{P}/task", content=body).status_code == 400
    assert state(world) == before


def test_names_are_compared_in_normal_form(world: OverlordWorld, router: Api) -> None:
    both = [quote(NFC), quote(NFD)]
    assert router.post(f"{C}/rules/{both[1]}", json=FOREVER).is_success
    assert NFC in world.metadata.rules.every()
    assert NFD not in world.metadata.rules.every()
    for name in both:
        assert router.get(f"{C}/rules/{name}").json()[0]["type"] == "loadForever"
        assert len(router.get(f"{C}/rules/{name}/history").json()) == 1
    config = f"{P}/compaction/config/datasources"
    assert world.api.post(f"{config}/{both[0]}", json={"dataSource": NFD}).is_success
    assert [world.api.get(f"{config}/{one}").json()["dataSource"] for one in both] == [NFC] * 2
    assert world.api.delete(f"{config}/{both[1]}").is_success
    assert world.api.get(f"{config}/{both[0]}").status_code == 404
    made = world.api.post(f"{P}/supervisor", json=supervisor_spec(NFD, suspended=True))
    assert made.json()["id"] == NFC
    again = world.api.post(f"{P}/supervisor", json=supervisor_spec(NFC, suspended=True))
    assert again.json()["id"] == NFC
    status = [world.api.get(f"{P}/supervisor/{one}/status").json()["id"] for one in both]
    assert status == [NFC, NFC]
    assert world.api.post(f"{P}/supervisor/{both[1]}/terminate").json() == {"id": NFC}
    assert (
        world.api.post(f"{P}/task", json=noop(f"task {NFD}", NFD)).json()["task"] == f"task {NFC}"
    )
    task = world.api.get(f"{P}/task/task%20{both[1]}").json()
    assert task["payload"]["dataSource"] == NFC
    listed = world.api.get(f"{P}/tasks", params={"datasource": NFD}).json()
    assert [one["id"] for one in listed] == [f"task {NFC}"]
    assert world.metadata.publish(PublishRequest("u", NFC, (segment(NFC).to_row(),))).ok
    for name in both:
        shown = router.get(f"{C}/metadata/datasources/{name}").json()
        assert shown["name"] == NFC
    marked = world.api.post(f"{P}/datasources/{both[1]}/markUnused", json={"interval": DAY})
    assert marked.json()["numChangedSegments"] == 1


def test_rules_of_names_that_an_older_release_took_can_be_listed_and_removed(
    world: OverlordWorld, router: Api
) -> None:
    kept = world.metadata.rules
    before = kept.every()
    old = ["..", "\x1b[31m", "a\x00b", "\u202eb", "\ufffd", "x" * 5_000]
    for name in old:
        kept.put(name, FOREVER)
    assert set(old) <= set(router.get(f"{C}/rules").json())
    for name in old:
        path = f"{C}/rules/{quote(name, safe='').replace('.', '%2e')}"
        assert router.get(path).json()[0]["type"] == "loadForever"
        assert "is not a valid datasource" in refused(router.post(path, json=FOREVER))
        assert router.post(path, json=[]).is_success
        assert name not in kept.every()
        refused(router.get(path))
    assert kept.every() == before


def test_what_an_older_release_stored_in_another_form_keeps_its_spelling(
    world: OverlordWorld, router: Api
) -> None:
    old = f"old {NFD}"
    assert world.metadata.publish(PublishRequest("v", old, (segment(old).to_row(),))).ok
    path = quote(old)
    assert router.get(f"{C}/metadata/datasources/{path}").json()["name"] == old
    assert router.post(f"{C}/rules/{path}", json=FOREVER).is_success
    assert old in world.metadata.rules.every()
    made = world.api.post(f"{P}/supervisor", json=supervisor_spec(old, suspended=True))
    assert made.json()["id"] == old
    marked = world.api.delete(f"{P}/datasources/{path}")
    assert marked.json()["numChangedSegments"] == 1
    assert world.api.post(f"{P}/supervisor/{path}/terminate").json() == {"id": old}
    assert router.post(f"{C}/rules/{path}", json=[]).is_success


def test_segments_of_a_name_that_no_datasource_has_are_not_restored() -> None:
    tail = "2024-01-01T00_00_00.000Z_2024-01-02T00_00_00.000Z/v/0/u/part.parquet"
    for folder, name in (("web", "web"), ("~e9~", "é")):
        found = named_file(f"{folder}/{tail}", 0)
        assert found is not None
        assert found.datasource == name
    for folder in ("~2e~.", "~1b~red", "a~2f~b", "~0~", "~d800~", "~202e~"):
        assert named_file(f"{folder}/{tail}", 0) is None
