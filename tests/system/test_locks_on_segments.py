"""Locks on single segments with real Spark: an overwrite and an append of one day at once."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator

import pytest
from held_file import HeldFile, held_file

from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError
from penstock.services.demo.server import DemoServer
from penstock.services.httpclient import JsonClient
from penstock.services.sqlclient import ask

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

WAIT_S = 120
DAY = "2013-01-01/2013-01-02"
CONTEXT = {"forceTimeChunkLock": False}


def lines(name: str, *numbers: int) -> str:
    rows = ({"time": "2013-01-01T05:00:00Z", "name": name, "number": n} for n in numbers)
    return "\n".join(json.dumps(row) for row in rows)


@pytest.fixture
def file() -> Iterator[HeldFile]:
    with held_file(lines("over", *range(300)).encode()) as made:
        yield made


def task(source: dict[str, object], *, appends: bool) -> dict[str, object]:
    return {
        "type": "index_parallel",
        "context": CONTEXT,
        "spec": {
            "dataSchema": {
                "dataSource": "shared",
                "timestampSpec": {"column": "time"},
                "dimensionsSpec": {"dimensions": ["name", {"type": "long", "name": "number"}]},
                "granularitySpec": {
                    "segmentGranularity": "DAY",
                    "rollup": False,
                    "intervals": [DAY],
                },
            },
            "ioConfig": {
                "type": "index_parallel",
                "inputSource": source,
                "inputFormat": {"type": "json"},
                "appendToExisting": appends,
            },
            # Several segments, which are seen together.
            "tuningConfig": {
                "type": "index_parallel",
                "partitionsSpec": {"type": "dynamic", "maxRowsPerSegment": 100},
            },
        },
    }


def submit(api: JsonClient, value: dict[str, object]) -> str:
    given = api.post("/druid/indexer/v1/task", value)
    assert isinstance(given, dict)
    return str(given["task"])


def end_of(api: JsonClient, name: str) -> str:
    clock, pause = SystemClock(), threading.Condition()
    deadline_s = clock.monotonic_s() + WAIT_S
    while clock.monotonic_s() < deadline_s:
        with contextlib.suppress(PenstockError):
            found = api.get(f"/druid/indexer/v1/task/{name}/status")
            assert isinstance(found, dict)
            if found["status"]["statusCode"] != "RUNNING":
                return str(found["status"]["statusCode"])
        with pause:
            clock.wait(pause, 0.2)
    pytest.fail(f"{name} does not end")


def counts(api: JsonClient) -> list[list[object]]:
    query = 'SELECT name, count(*), sum(number) FROM "shared" GROUP BY name ORDER BY name'
    return [list(row) for row in ask(api, query).rows]


def segments(api: JsonClient) -> set[tuple[str, int]]:
    rows = api.get("/druid/coordinator/v1/datasources/shared/segments?full")
    assert isinstance(rows, list)
    return {(one["version"], one["shardSpec"].get("minorVersion", 0)) for one in rows}


def test_an_overwrite_and_an_append_of_one_day_run_at_once(
    server: DemoServer, file: HeldFile
) -> None:
    api = JsonClient(server.http, timeout_s=WAIT_S)
    first = {"type": "inline", "data": lines("first", *range(150))}
    assert end_of(api, submit(api, task(first, appends=True))) == "SUCCESS"
    over = submit(api, task({"type": "http", "uris": [file.url("a")]}, appends=False))
    assert file.asked.wait(WAIT_S)

    beside = {"type": "inline", "data": lines("beside", 7, 8)}
    assert end_of(api, submit(api, task(beside, appends=True))) == "SUCCESS"
    assert counts(api) == [["beside", 2, 15], ["first", 150, sum(range(150))]]

    file.may_go_on.set()
    assert end_of(api, over) == "SUCCESS"
    rows = [["beside", 2, 15], ["over", 300, sum(range(300))]]
    assert counts(api) == rows
    ((version, _), *_) = found = sorted(segments(api), key=lambda one: one[1])
    assert found[-1] == (version, 1), "it is of the version that was there"

    compact = {
        "type": "compact",
        "dataSource": "shared",
        "ioConfig": {"type": "compact", "inputSpec": {"type": "interval", "interval": DAY}},
        "context": CONTEXT,
    }
    assert end_of(api, submit(api, compact)) == "SUCCESS"
    assert counts(api) == rows
    assert (version, 2) in segments(api)
