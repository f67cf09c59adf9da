"""An overwrite and an append of one day run at once on real Spark, under locks on segments."""

from __future__ import annotations

import json

import pytest

from penstock.services.json_client import JsonClient
from penstock.services.sql_client import ask
from penstock.testing.server import LocalPenstock
from tests.client.held_file_kit import held_file
from tests.system.serving_kit import until

pytestmark = pytest.mark.system

WAIT_S = 120
DAY = "2013-01-01/2013-01-02"
CONTEXT = {"forceTimeChunkLock": False}


@pytest.fixture
def api(shared_penstock: LocalPenstock) -> JsonClient:
    return JsonClient(shared_penstock.api_url, timeout_s=WAIT_S)


def lines(name: str, *numbers: int) -> str:
    rows = ({"time": "2013-01-01T05:00:00Z", "name": name, "number": n} for n in numbers)
    return "\n".join(json.dumps(row) for row in rows)


def task(datasource: str, source: dict[str, object], **more: object) -> dict[str, object]:
    return {
        "type": "index_parallel",
        "context": CONTEXT,
        "spec": {
            "dataSchema": {
                "dataSource": datasource,
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
                **more,
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
    def status() -> str:
        found = api.get(f"/druid/indexer/v1/task/{name}/status")
        assert isinstance(found, dict)
        return str(found["status"]["statusCode"])

    until(f"the end of {name}", lambda: status() != "RUNNING")
    return status()


def counts(api: JsonClient) -> list[list[object]]:
    query = 'SELECT name, count(*), sum(number) FROM "shared" GROUP BY name ORDER BY name'
    return [list(row) for row in ask(api, query).rows]


def segments(api: JsonClient) -> set[tuple[str, int]]:
    rows = api.get("/druid/coordinator/v1/datasources/shared/segments?full")
    assert isinstance(rows, list)
    return {(one["version"], one["shardSpec"].get("minorVersion", 0)) for one in rows}


def test_an_overwrite_and_an_append_of_one_day_run_at_once(api: JsonClient) -> None:
    first = {"type": "inline", "data": lines("first", *range(150))}
    appended = task("shared", first, appendToExisting=True)
    assert end_of(api, submit(api, appended)) == "SUCCESS"
    with held_file(lines("over", *range(300)).encode()) as file:
        over = submit(api, task("shared", {"type": "http", "uris": [file.url("a")]}))
        assert file.asked.wait(WAIT_S)

        beside = {"type": "inline", "data": lines("beside", 7, 8)}
        appended = task("shared", beside, appendToExisting=True)
        assert end_of(api, submit(api, appended)) == "SUCCESS"
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
