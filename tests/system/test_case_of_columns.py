"""Events with columns that differ in case alone: from a topic to answers, also after a compaction.

The events come in three lots, of which only the last one has both columns; all are in one hour.
"""

from __future__ import annotations

import json

import pytest

from penstock.core.errors import PenstockError
from penstock.services.json_client import JsonClient
from penstock.services.sql_client import ask
from penstock.testing.server import LocalPenstock
from tests.system.serving_kit import until

pytestmark = pytest.mark.system

WAIT_S = 120
DAY = "2026-11-21T00:00:00.000Z/2026-11-22T00:00:00.000Z"
LOTS = [
    [{"City": "Bern"}, {"City": "Chur"}],
    [{"city": "bern"}],
    [{"City": "Genf", "city": "genf"}],
]
FOUND = [["Bern", None], ["Chur", None], ["Genf", "genf"], [None, "bern"]]
QUERY = 'SELECT "City", "city" FROM trips ORDER BY "City" NULLS LAST, "city"'


def schema(datasource: str) -> dict[str, object]:
    return {
        "dataSource": datasource,
        "timestampSpec": {"column": "time"},
        "dimensionsSpec": {"useSchemaDiscovery": True},
        "granularitySpec": {"segmentGranularity": "HOUR", "rollup": False},
    }


def answered(api: JsonClient, query: str) -> list[list[object]]:
    return [list(row) for row in ask(api, query).rows]


def segments(api: JsonClient, datasource: str) -> list[dict[str, object]]:
    found = api.get(f"/druid/coordinator/v1/datasources/{datasource}/segments?full")
    return found if isinstance(found, list) else []  # nobody knows the datasource yet


def end_of(api: JsonClient, path: str, body: dict[str, object]) -> str:
    given = api.post(path, body)
    assert isinstance(given, dict)
    name = str(given.get("task") or given["taskId"])

    def status() -> str:
        found = api.get(f"/druid/indexer/v1/task/{name}/status")
        assert isinstance(found, dict)
        return str(found["status"]["statusCode"])

    until(f"the end of {name}", lambda: status() != "RUNNING", WAIT_S)
    return status()


def test_both_columns_are_kept_to_the_end(shared_penstock: LocalPenstock) -> None:
    api = JsonClient(shared_penstock.api_url, timeout_s=WAIT_S)
    broker = JsonClient(shared_penstock.http_url, timeout_s=WAIT_S)
    broker.post("/topic/create", query={"topic": "trips"})
    spec = {
        "dataSchema": schema("trips"),
        "ioConfig": {"topic": "trips", "taskDuration": "PT10M", "useEarliestOffset": True},
        "tuningConfig": {"type": "penstock"},
    }
    api.post("/druid/indexer/v1/supervisor", {"type": "penstock", "spec": spec})
    # Each lot is persisted, and so shown, by itself.
    for number, lot in enumerate(LOTS, 1):
        for event in lot:
            body = {"time": f"2026-11-21T10:0{number}:00Z", **event}
            broker.post("/pub", body, {"topic": "trips"})
        seen = sum(len(one) for one in LOTS[:number])
        until(
            f"lot {number}",
            lambda seen=seen: answered(api, "SELECT count(*) FROM trips") == [[seen]],  # type: ignore[misc]
        )
    until("all columns", lambda: answered(api, QUERY) == FOUND)
    api.post("/druid/indexer/v1/supervisor/trips/suspend")
    until("the hand-over", lambda: len(segments(api, "trips")) == 1, WAIT_S)
    assert answered(api, QUERY) == FOUND
    with pytest.raises(PenstockError, match=r'"CITY" .*may be "City" or "city" of "trips"'):
        ask(api, "SELECT CITY FROM trips")
    # Another segment, in which the case of the column changed, is compacted with the first.
    rows = json.dumps({"time": "2026-11-21T11:00:00Z", "City": "Thun"})
    index = {
        "type": "index_parallel",
        "spec": {
            "dataSchema": schema("trips"),
            "ioConfig": {
                "inputSource": {"type": "inline", "data": rows},
                "inputFormat": {"type": "json"},
                "appendToExisting": True,
            },
        },
    }
    assert end_of(api, "/druid/indexer/v1/task", index) == "SUCCESS"
    compact = {
        "type": "compact",
        "dataSource": "trips",
        "ioConfig": {"inputSpec": {"type": "interval", "interval": "2026-11-21/2026-11-22"}},
        "granularitySpec": {"segmentGranularity": "DAY"},
    }
    assert end_of(api, "/druid/indexer/v1/task", compact) == "SUCCESS"
    # Those of hours are used until the coordinator marks them.
    days = (one for one in segments(api, "trips") if one["interval"] == DAY)
    assert [one["dimensions"] for one in days] == ["City,city"]
    found = sorted([*FOUND, ["Thun", None]], key=lambda row: (row[0] is None, row[0]))
    assert answered(api, QUERY) == found
    # And copied by a statement.
    statement = "REPLACE INTO copies OVERWRITE ALL SELECT * FROM trips PARTITIONED BY DAY"
    assert end_of(api, "/druid/v2/sql/task", {"query": statement}) == "SUCCESS"
    until(
        "the copies",
        lambda: answered(api, QUERY.replace("trips", "copies")) == found,
    )
