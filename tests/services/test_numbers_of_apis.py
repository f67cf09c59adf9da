"""Numbers of any size in every parameter and every place of a body: no answer is a 500.

Those of a task's actions are in `tests/indexing/test_action_numbers.py`, those of the broker in
`tests/broker/test_bad_input_http.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.services.api
from penstock.core.errors import Unavailable
from penstock.core.intervals import Interval
from penstock.segments.segment import Segment
from penstock.services.api.asgi import application
from penstock.services.api.peon import PeonRoutes
from penstock.services.api.sql import SqlPort
from penstock.services.api.worker import WorkerRoutes
from penstock.services.options.option_values import HostPort
from penstock.storage.metadata import PublishRequest
from tests.harness.access_kit import with_token
from tests.kits.json_numbers_kit import Place, places, with_number
from tests.services.overlord_kit import Api, OverlordWorld, noop, routed, supervisor_spec
from tests.services.places_kit import FixedPlaces
from tests.services.test_druid_paths import COORDINATOR, INDEXER, OTHERS, listed
from tests.services.test_internal_apis import FakePeonTask, FakeTask, FakeWorker

P = "/druid/indexer/v1"
C = "/druid/coordinator/v1"
W = "/druid-internal/v1/worker"
CHAT = "/druid/worker/v1/chat/t"
DAY = "2024-01-01/2024-01-02"

PARAMETERS = (
    *("offset", "bytes", "counter", "hash", "timeout", "count", "limit", "max", "n"),
    *("backfillTaskCount", "cells", "endedWithinSeconds", "page", "revision", "skip"),
)
READS = re.compile(r'(?:integer|query_count)\(\s*request((?:,\s*"\w+")+)')

BIG = [(1 << bits) + more for bits in (31, 32, 63, 64) for more in (-1, 0, 1)]
Numbers = (
    st.sampled_from([*map(str, BIG), "9" * 30, "9" * 400, "9" * 4_400, "1e400", "1.5"])
    | st.integers().map(str)
).flatmap(lambda text: st.sampled_from([text, f"-{text}"] if text[0] != "-" else [text]))

SCHEMA = {
    "dataSource": "d",
    "timestampSpec": {"column": "t"},
    "dimensionsSpec": {"dimensions": ["a"]},
    "granularitySpec": {"segmentGranularity": "DAY"},
}
PARALLEL = {
    "type": "index_parallel",
    "context": {"priority": 5, "taskLockTimeout": 9, "subTaskTimeoutMillis": 9},
    "spec": {
        "dataSchema": SCHEMA,
        "ioConfig": {
            "type": "index_parallel",
            "inputSource": {"type": "inline", "data": "x"},
            "inputFormat": {"type": "csv", "columns": ["t", "a"], "skipHeaderRows": 1},
        },
        "tuningConfig": {
            "type": "index_parallel",
            "maxNumConcurrentSubTasks": 2,
            "maxParseExceptions": 3,
            "maxSavedParseExceptions": 4,
            "partitionsSpec": {"type": "hashed", "numShards": 3},
        },
    },
}
STREAM = supervisor_spec("numbers", suspended=True, context={"priority": 5})
STREAM["spec"]["tuningConfig"] = {  # type: ignore[index]
    "type": "penstock", "maxRowsPerSegment": 5, "maxTotalRows": 9, "maxParseExceptions": 3,
    "maxSavedParseExceptions": 3,
}  # fmt: skip
STREAM["spec"]["ioConfig"] |= {  # type: ignore[index]
    "taskCount": 1, "replicas": 1, "stopTaskCount": 1,
    "autoScalerConfig": {
        "enableTaskAutoScaler": True, "taskCountMin": 1, "taskCountMax": 3,
        "lagCollectionIntervalMillis": 5, "scaleOutThreshold": 6, "scaleInThreshold": 2,
    },
}  # fmt: skip
COMPACTION = {
    "dataSource": "d",
    "taskPriority": 5,
    "inputSegmentSizeBytes": 9,
    "tuningConfig": {"partitionsSpec": {"type": "dynamic", "maxRowsPerSegment": 5}},
}
BODIES: tuple[tuple[str, str, object], ...] = (
    ("overlord", f"{P}/task", noop("n", runTime=5, context={"priority": 5})),
    ("overlord", f"{P}/task", PARALLEL),
    ("overlord", f"{P}/task", {"type": "kill", "dataSource": "d", "interval": DAY, "limit": 5}),
    ("overlord", f"{P}/supervisor", STREAM),
    ("overlord", f"{P}/supervisor/flights/resetOffsets",
     {"partitions": {"type": "end", "partitionOffsetMap": {"0": 1}}}),
    ("overlord", "/penstock/v1/supervisors/flights/backfill",
     {"partitionOffsetRanges": {"0": [1, 2]}}),
    ("overlord", f"{P}/supervisor/flights/taskGroups/handoff", {"taskGroupIds": [1]}),
    ("overlord", f"{P}/lockedIntervals/v2", [{"datasource": "d", "priority": 0}]),
    ("overlord", f"{P}/activeLocks", [{"datasource": "d", "priority": 0}]),
    ("overlord", f"{P}/compaction/config/datasources/d", COMPACTION),
    ("overlord", f"{P}/compaction/config/cluster",
     {"compactionTaskSlotRatio": 0.1, "maxCompactionTaskSlots": 5}),
    ("overlord", f"{P}/worker", {"type": "default", "selectStrategy": {
        "type": "fillCapacity",
        "taskLimits": {"maxSlotCountByType": {"kill": 1}, "maxSlotRatioByType": {"kill": 0.5}}}}),
    ("router", f"{C}/rules/d", [{"type": "loadForever", "tieredReplicants": {"a": 1}}]),
    ("router", "/penstock/v1/datasources/d/rules/preview",
     [{"type": "loadForever", "tieredReplicants": {"a": 1}}]),
    ("router", "/druid/v2/sql", {
        "query": "SELECT ?", "parameters": [5, {"type": "BIGINT", "value": 5},
                                            {"type": "TIMESTAMP", "value": 5}],
        "context": {"sqlOuterLimit": 5, "timeout": 5, "priority": 3}}),
    ("router", "/druid/v2/sql/statements", {
        "query": "SELECT 1",
        "context": {"executionMode": "ASYNC", "rowsPerPage": 5, "timeout": 5}}),
    ("router", "/druid/v2", {
        "queryType": "topN", "dataSource": "d", "dimension": "a", "metric": "s", "threshold": 5,
        "intervals": ["2024/2025"], "granularity": {"type": "duration", "duration": 3600000},
        "aggregations": [{"type": "quantilesDoublesSketch", "name": "s", "fieldName": "a",
                          "k": 128}],
        "filter": {"type": "in", "dimension": "a", "values": [1, 2.5, "3"]},
        "postAggregations": [{"type": "constant", "name": "c", "value": 5}],
        "context": {"timeout": 5, "queryId": "q"}}),
    ("router", "/druid/v2/sql/task", {
        "query": "INSERT INTO d SELECT 1 AS __time PARTITIONED BY ALL",
        "context": {"rowsPerSegment": 5, "maxNumTasks": 2, "maxParseExceptions": 3,
                    "priority": 3}}),
    ("worker", f"{W}/assignTask", noop("n", runTime=5, context={"priority": 5})),
    ("peon", f"{CHAT}/offsets/end", {"0": 5}),
)  # fmt: skip

PLACES = [(number, place) for number, (_, _, body) in enumerate(BODIES) for place in places(body)]


class Apis:
    """The APIs of a cluster without Spark and broker."""

    def __init__(self, world: OverlordWorld, router: Api) -> None:
        found = FixedPlaces(HostPort("h", 5), HostPort("b", 4))
        worker = WorkerRoutes("h:1", FakeWorker(), world.log_store, found, found).routes()
        peon = PeonRoutes("t", FakePeonTask(), lambda: None, FakeTask(), context={}).routes()
        self.own = [Api(application(routes, access=with_token(None))) for routes in (worker, peon)]
        self.all = {"overlord": world.api, "router": router}
        self.all |= dict(zip(("worker", "peon"), self.own, strict=True))


@pytest.fixture(scope="module")
def apis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apis]:
    world = OverlordWorld(tmp_path_factory.mktemp("numbers")).start()
    segment = Segment(
        datasource="d",
        interval=Interval.parse(DAY),
        version="2024-02-01T00:00:00.000Z",
        load_spec={"type": "local", "path": "/p"},
    )
    assert world.metadata.publish(PublishRequest("t", "d", (segment.to_row(),))).ok
    assert world.api.post(f"{P}/supervisor", json=supervisor_spec(suspended=True)).is_success
    own = "/penstock/v1/supervisors/flights/lag"
    world.until(lambda: bool(world.api.get(own).json()["times"]))  # it has seen its stream

    def registered(_query: object) -> NoReturn:
        raise Unavailable("there is no Spark here")

    service = SimpleNamespace(
        cancel=lambda _id: False,
        timeout_ms=lambda query: min(query.timeout_ms or 300_000, 300_000),
        registered=registered,
    )
    with routed(world, cast("SqlPort", service)) as router:
        made = Apis(world, router)
        yield made
        for api in made.own:
            api.close()
    world.close()


def test_every_body_is_sound_as_it_is(apis: Apis) -> None:
    answers = [
        (path, apis.all[name].post(path, json=body))
        for name, path, body in BODIES
        if path not in {"/druid/v2/sql", "/druid/v2"}  # they need Spark
    ]
    assert [(path, one.text) for path, one in answers if not one.is_success] == []


@settings(max_examples=400)
@given(st.sampled_from(PLACES), Numbers, st.sampled_from(["number", "text", "key"]))
def test_no_number_in_a_body_is_a_fault_of_the_server(
    apis: Apis, place: tuple[int, Place], number: str, form: str
) -> None:
    name, path, body = BODIES[place[0]]
    content = with_number(body, place[1], number, form)
    answer = apis.all[name].post(path, content=content)
    assert answer.status_code != 500, (path, content[:400], answer.text)
    assert len(answer.text) < 20_000


def test_the_parameters_are_those_that_the_routes_read() -> None:
    (folder,) = penstock.services.api.__path__
    found: set[str] = set()
    for file in Path(folder).rglob("*.py"):
        for names in READS.findall(file.read_text()):
            found |= set(re.findall(r'"(\w+)"', names))
    assert found == set(PARAMETERS)


READING = [
    *(("overlord", path) for method, path in listed(INDEXER, P) if method == "GET"),
    *(("router", path) for method, path in listed(COORDINATOR, C) if method == "GET"),
    *(("router", path) for method, path in listed(OTHERS, "/druid") if method == "GET"),
    *(("worker", W), ("worker", "/druid/worker/v1/task/t/log")),
]


@settings(max_examples=300)
@given(st.sampled_from(READING), st.sampled_from(PARAMETERS), Numbers)
def test_no_number_in_a_parameter_is_a_fault_of_the_server(
    apis: Apis, place: tuple[str, str], parameter: str, number: str
) -> None:
    name, path = place
    answer = apis.all[name].get(path, params={parameter: number})
    assert answer.status_code != 500, (path, parameter, number[:50], answer.text)


@given(Numbers)
def test_a_number_of_tasks_is_taken_or_refused(apis: Apis, number: str) -> None:
    path = f"{P}/supervisor/flights/resetToLatestAndBackfill"
    answer = apis.all["overlord"].post(path, params={"backfillTaskCount": number})
    assert answer.status_code != 500, (number[:50], answer.text)
