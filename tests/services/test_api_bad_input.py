"""Requests with wrong bodies, ids, methods and tokens, at every path that Druid's clients know.

Each is answered with a status of the 4xx and JSON that says shortly what is wrong; what there is
stays as it was. What single paths say of single mistakes stands in their own tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import httpx
import pytest

from penstock.core.intervals import Interval
from penstock.segments.segment import Segment
from penstock.services.api.sql import SqlPort
from penstock.storage.metadata import PublishRequest
from tests.services.overlord_kit import Api, OverlordWorld, noop, routed, supervisor_spec
from tests.services.test_druid_paths import COORDINATOR, INDEXER, OTHERS, listed

P = "/druid/indexer/v1"
OVERLORD = listed(INDEXER, P)
ROUTER = [*listed(COORDINATOR, "/druid/coordinator/v1"), *listed(OTHERS, "/druid")]
# These take no body, whatever is sent.
WITHOUT_BODY = (
    *("/shutdown", "/shutdownAllTasks", "/enable", "/disable", "/suspend", "/resume"),
    *("/terminate", "/reset", "/resetToLatestAndBackfill", "/suspendAll", "/resumeAll"),
    *("/terminateAll", "/datasources/x", "/segments/y"),
)
BODIES = [
    *(b"", b"nothing", b"null", b"3", b'"x"', b"[1]", b'{"a":', b"\xff\xfe", b"[" * 5_000),
    *(b'{"type":[],"task":3,"query":3,"interval":"x","segmentIds":3,"rules":3}',),
    *(b'{"type":"autocompact","spec":[]}', b'{"type":"compact","dataSource":"x","ioConfig":[]}'),
    *(b'{"partitions":[],"taskGroupIds":["x"],"dataSource":["x"],"selectStrategy":"x"}',),
    *(b'{"compactionTaskSlotRatio":"x","inputSpec":"x","engine":3}',),
]
IDS = ["nobody", "%2e%2e", "a%00b", "%ff", "%F0%9F%98%80", "a%2Fb", "'; drop table x", "x" * 3_000]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverlordWorld]:
    """One with a segment, a task, and supervisors of both kinds, none of them named x."""
    made = OverlordWorld(tmp_path_factory.mktemp("overlord")).start()
    segment = Segment(
        datasource="d",
        interval=Interval.parse("2024-01-01/2024-01-02"),
        version="2024-02-01T00:00:00.000Z",
        load_spec={"type": "local", "path": "/p"},
    )
    assert made.metadata.publish(PublishRequest("t", "d", (segment.to_row(),))).ok
    compaction = {"type": "autocompact", "spec": {"dataSource": "d"}}
    for path, body in (
        ("task", noop("n")),
        ("supervisor", supervisor_spec(suspended=True)),
        ("supervisor", compaction),
    ):
        assert made.api.post(f"{P}/{path}", json=body).status_code == 200
    made.runs("n")
    yield made
    made.close()


@pytest.fixture(scope="module")
def router(world: OverlordWorld) -> Iterator[Api]:
    with routed(world, cast("SqlPort", SimpleNamespace(cancel=lambda _id: False))) as made:
        yield made


def state(world: OverlordWorld) -> object:
    """What there is, as its users see it."""
    asked = ("tasks", "supervisor?full", "compaction/config/datasources", "worker")
    return (
        [world.api.get(f"{P}/{path}").json() for path in asked],
        [world.api.get(f"{P}/supervisor/history").json()],
        [row.id for row in world.metadata.snapshot("d").segments],
        world.metadata.rules.every(),
    )


def refused(answer: httpx.Response) -> str:
    """Return what is told of something that was refused."""
    assert 400 <= answer.status_code < 500, (answer.request.url, answer.text)
    told = answer.json()
    text = str(told.get("errorMessage") or told.get("error") or told)
    assert 0 < len(text) < 10_000
    assert "Traceback" not in text
    return text


def takes_body(method: str, path: str) -> bool:
    return method == "POST" and not path.endswith(WITHOUT_BODY)


def test_wrong_bodies(world: OverlordWorld, router: Api) -> None:
    before = state(world)
    asked = [(world.api, one) for one in OVERLORD] + [(router, one) for one in ROUTER]
    for api, (method, path) in asked:
        if not takes_body(method, path):
            continue
        for body in BODIES:
            if body == b"" and path.endswith("/simulate"):
                continue  # it asks what the configuration that is set would do
            refused(api(method, path, content=body))
    assert state(world) == before


def test_wrong_ids(world: OverlordWorld) -> None:
    before = state(world)
    for method, path in OVERLORD:
        if "/x" not in path or path.endswith("/history") or path == f"{P}/task/x/shutdown":
            continue  # a history may be empty, and Druid answers a shutdown of any task
        for wrong in IDS:
            asked = path.replace("/x", f"/{wrong}", 1)
            answer = world.api(method, asked)
            if path == f"{P}/datasources/x" and answer.status_code == 200:
                assert answer.json()["numChangedSegments"] == 0
            else:
                refused(answer)
    assert state(world) == before


def test_other_methods(world: OverlordWorld) -> None:
    before = state(world)
    served: dict[str, set[str]] = {}
    for method, path in OVERLORD:
        served.setdefault(path, set()).add(method)
    for path, methods in served.items():
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - methods:
            answer = world.api(method, path)
            if method == "GET" and path.endswith("All"):
                assert "no supervisor" in refused(answer)  # it may be the id of one
            else:
                assert answer.status_code == 405
                assert "use another method" in refused(answer)
    assert state(world) == before


def test_other_methods_at_a_router(world: OverlordWorld, router: Api) -> None:
    before = state(world)
    for path in {path for _, path in ROUTER} - {"/druid/coordinator/v1/datasources/x"}:
        for method in {"POST", "PUT", "PATCH", "DELETE"} - {m for m, at in ROUTER if at == path}:
            answer = router(method, path)
            assert 400 <= answer.status_code < 500, (method, path, answer.text)
    assert state(world) == before


def test_wrong_tokens(world: OverlordWorld) -> None:
    guarded = Api(world.make_app(token="secret"))
    shown = (None, b"Bearer wrong", b"Bearer secret2", b"Bearer ", b"Basic c2VjcmV0", b"\xff")
    for method, path in OVERLORD:
        for text in shown:
            headers = {} if text is None else {"Authorization": text}
            answer = guarded(method, path, headers=headers)
            assert answer.status_code == 401
            assert "Authorization" in refused(answer)
    guarded.close()
