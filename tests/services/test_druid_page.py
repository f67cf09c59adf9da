"""docs/druid-compatibility.md has a line for every route that runs and every kind, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast, get_args

import pytest
from druid_page_kit import HERE, METHODS, PAGE, endpoints, lines, without_names
from event_kit import KeptEvents
from overlord_kit import OverlordWorld, ready, supervisor_spec
from places_kit import FixedPlaces
from starlette.routing import BaseRoute, Route

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Interval
from penstock.core.metrics import MetricRegistry
from penstock.indexing.actions import action_from_json
from penstock.indexing.lockbox.task_locks import LockGranularity, LockType, TaskLock
from penstock.indexing.specs.aggregators import Aggregator, AggregatorType
from penstock.indexing.specs.batch.batch_task_specs import BATCH_TASK_TYPES, parse_batch_task
from penstock.indexing.task_log import TaskLogReader
from penstock.indexing.worker.peon_task import IngestionReport, IngestionState, PeonTask
from penstock.segments.segment import Segment
from penstock.segments.shard_spec import ShardKind
from penstock.services.api.asgi import application
from penstock.services.api.indexer.request_parts import PREFIX
from penstock.services.api.indexer.task_json import lock_to_json
from penstock.services.api.peon import PeonRoutes, TaskControl
from penstock.services.api.router import RouterParts, RouterRoutes, TableRoutes
from penstock.services.api.sql import SqlPort, SqlRoutes
from penstock.services.api.worker import WorkerPort, WorkerRoutes
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.options.option_values import HostPort
from penstock.services.roles.router import routes_of
from penstock.spark.tables import TableSource

SERVED = [one for one in endpoints() if one.line.here != "refused"]
REFUSED = [one for one in endpoints() if one.line.here == "refused"]
NOBODY = SimpleNamespace()
CONFIGURATION = PAGE.with_name("configuration.md")
DAY = Interval.parse("2024-01-01/2024-01-02")
COORDINATOR = "/druid/coordinator/v1"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[set[tuple[str, str]]]:
    """Every method and path that an application of ours serves."""
    world = OverlordWorld(tmp_path_factory.mktemp("page"))
    overlord = keys(world.app.routes)
    directory, address = LeaseDirectory(world.metadata.leases), HostPort("127.0.0.1", 1)
    places = FixedPlaces(address)
    parts = RouterParts(world.metadata, directory, address, places, ready, world.clock)
    sql = SqlRoutes(cast("SqlPort", NOBODY), MetricRegistry(), KeptEvents(), world.clock)
    tables = TableRoutes(cast("TableSource", NOBODY))
    router = keys(routes_of(sql, RouterRoutes(parts), tables))
    worker = WorkerRoutes(
        "w",
        cast("WorkerPort", NOBODY),
        cast("TaskLogReader", NOBODY),
        places,
        places,
    )
    peon = PeonRoutes(
        "t", cast("PeonTask", NOBODY), lambda: None, cast("TaskControl", NOBODY)
    ).routes()
    every = keys(application([]).routes)
    yield overlord | passed_on(router, overlord) | keys(worker.routes()) | keys(peon) | every
    world.close()


def keys(routes: list[BaseRoute]) -> set[tuple[str, str]]:
    found = [route for route in routes if isinstance(route, Route)]
    return {
        (method, without_names(route.path))
        for route in found
        for method in (route.methods or ())
        if method != "HEAD"
    }


def passed_on(router: set[tuple[str, str]], overlord: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """What a router serves, with the overlord's paths in place of those that it passes on to it."""
    every, marking = "/druid/indexer/{}", COORDINATOR + "/datasources/{}"
    own = {key for key in router if key[1] != every and (key[0] == "GET" or key[1] != marking)}
    return own | {
        (method, COORDINATOR + path.removeprefix(PREFIX))
        for method, path in overlord
        if (method, marking) in router and path.startswith(PREFIX + "/datasources/")
    }


def test_every_route_has_a_line_and_every_line_a_route(running: set[tuple[str, str]]) -> None:
    told = [one.key for one in SERVED]
    assert sorted(running - set(told)) == []
    assert sorted(set(told) - running) == []
    assert len(told) == len(set(told))


def test_what_is_refused_is_not_served(running: set[tuple[str, str]]) -> None:
    assert [one.key for one in REFUSED if one.key in running] == []


def test_lines_say_what_is_here_and_what_to_do_instead() -> None:
    assert {one.method for one in endpoints()} <= METHODS
    assert [line.place for line in lines() if line.here not in HERE] == []
    assert [line.place for line in lines() if line.here == "refused" and not line.told] == []


def of_kinds(head: str, section: str) -> dict[str, str]:
    """(kind: what is here) of the lines of a table whose first column names kinds."""
    return {
        kind: line.here
        for line in lines()
        if head in line.cells and line.section == section
        for kind in line.cells[head].replace("`", "").split(", ")
    }


def test_every_type_of_a_task_has_a_line() -> None:
    told = of_kinds("type", "Tasks")
    assert {kind for kind, here in told.items() if here != "refused"} == set(BATCH_TASK_TYPES)
    for kind in told.keys() - set(BATCH_TASK_TYPES):
        with pytest.raises(InvalidRequest, match="is not supported here: "):
            parse_batch_task({"type": kind})


def test_every_action_has_a_line() -> None:
    told = of_kinds("action", "Tasks: `/druid/indexer/v1`")
    with pytest.raises(InvalidRequest) as caught:
        action_from_json({"type": "none"})
    known = str(caught.value).partition("use one of ")[2].split(", ")
    assert {kind for kind, here in told.items() if here != "refused"} == set(known)


def test_every_kind_of_a_shard_spec_has_a_line() -> None:
    assert of_kinds("shard spec", "A segment").keys() == set(get_args(ShardKind))


def test_every_key_of_a_segment_has_a_line() -> None:
    segment = Segment(
        *("d", DAY, "v", {"type": "local"}),
        upgraded_from="u",
        projections=("p",),
        last_compaction_state={"a": 1},
        indexing_state_fingerprint="f",
        cluster_groups={"a": 1},
        rollup={"a": 1},
    )
    assert of_kinds("key", "A segment").keys() == segment.to_json().keys()


def test_every_key_of_a_lock_has_a_line() -> None:
    lock = TaskLock(
        *(LockGranularity.SEGMENT, LockType.EXCLUSIVE, "g", "d", DAY, "v", 50),
        partition_number=1,
    )
    assert of_kinds("key", "A lock").keys() == lock_to_json(lock, []).keys()


def test_every_key_of_a_report_has_a_line() -> None:
    report = IngestionReport(IngestionState.COMPLETED).to_json("t")["ingestionStatsAndErrors"]
    assert isinstance(report, dict)
    assert isinstance(report["payload"], dict)
    assert of_kinds("key", "The report of a task").keys() == report["payload"].keys()


def test_every_key_of_tasks_workers_and_supervisors_has_a_line(tmp_path: Path) -> None:
    with closing(OverlordWorld(tmp_path).start()) as world:
        world.api.post(f"{PREFIX}/supervisor", json=supervisor_spec())
        world.until(lambda: bool(world.peons))
        payload = world.api.get(f"{PREFIX}/supervisor/flights/status").json()["payload"]
        (task,) = payload["activeTasks"]
        status = world.api.get(f"{PREFIX}/task/{task['id']}/status").json()["status"]
        (worker,) = world.api.get(f"{PREFIX}/workers").json()
    assert of_kinds("key", "The status of a task").keys() == status.keys() | {"waits"}
    assert of_kinds("key", "A worker").keys() == worker.keys()
    lags = {"minimumLagMillis", "aggregateLagMillis", "maxLagMillis"}
    at_times = lags | {"shortOfSlots", "skippedFiles", "tasksWaitFor"}
    told = of_kinds("key", "The status of a supervisor").keys()
    assert told == payload.keys() | at_times
    assert of_kinds("task key", "The status of a supervisor").keys() == task.keys()


def test_settings_name_options_that_there_are() -> None:
    options = set(re.findall(r"^\| `(--[a-z-]+)`", CONFIGURATION.read_text(), re.MULTILINE))
    settings = PAGE.read_text().partition("## Settings")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(--[a-z-]+)`", settings))
    assert named - options == set()
    assert "--task-queue-size" in named


def test_every_aggregator_has_a_line() -> None:
    told = of_kinds("kind", "`metricsSpec`")
    known = set(get_args(AggregatorType))
    assert {kind for kind, here in told.items() if here != "refused"} == known
    for kind in told.keys() - known:
        with pytest.raises(ValueError, match=f"{kind} is not supported yet"):
            Aggregator.model_validate({"type": kind, "name": "m", "fieldName": "f"})
