"""The page on Druid has a line for every route that runs and every kind, and no other."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Interval
from penstock.indexing.actions import action_from_json
from penstock.indexing.lockbox.task_locks import LockGranularity, LockType, TaskLock
from penstock.indexing.specs.aggregators import Aggregator, AggregatorType
from penstock.indexing.specs.batch.batch_task_specs import BATCH_TASK_TYPES, parse_batch_task
from penstock.indexing.worker.peon_task import IngestionReport, IngestionState
from penstock.segments.segment import Segment
from penstock.segments.shard_spec import ShardKind
from penstock.services.api.indexer.request_parts import PREFIX
from penstock.services.api.indexer.task_json import lock_to_json
from penstock.services.api.sql_request import SqlRequest
from penstock.services.options.table import option_entries
from reference.compatibility import STATUSES, Section, sections
from reference.pages import ROOT
from tests.kits.druid_page_kit import METHODS, endpoints, lines
from tests.services.overlord_kit import OverlordWorld, supervisor_spec
from tests.services.routes_kit import running_routes

SERVED = [one for one in endpoints() if one.line.here != "absent"]
REFUSED = [one for one in endpoints() if one.line.here == "absent"]
DAY = Interval.parse("2024-01-01/2024-01-02")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, str]]:
    """Every method and path that an application of ours serves."""
    return running_routes(tmp_path_factory.mktemp("page"))


def test_every_route_has_a_line_and_every_line_a_route(running: set[tuple[str, str]]) -> None:
    told = [one.key for one in SERVED]
    assert sorted(running - set(told)) == []
    assert sorted(set(told) - running) == []
    assert len(told) == len(set(told))


def test_what_is_refused_is_not_served(running: set[tuple[str, str]]) -> None:
    assert [one.key for one in REFUSED if one.key in running] == []


def test_lines_say_what_is_here_and_what_to_do_instead() -> None:
    assert {one.method for one in endpoints()} <= METHODS
    assert [line.place for line in lines() if line.here not in STATUSES] == []
    assert [line.place for line in lines() if line.here == "absent" and not line.told] == []


def test_keys_of_the_context_without_effect_are_accepted() -> None:
    (found,) = [one for one in sections("druid") if one.title == "Context of SQL queries"]
    names = [
        name
        for feature in found.features
        if feature.status == "no effect"
        for name in re.findall(r"`(\w+)`", feature.cells[0])
    ]
    assert len(names) > 10
    body = {"query": "SELECT 1", "context": dict.fromkeys(names, "true")}
    assert SqlRequest(body).query == SqlRequest({"query": "SELECT 1"}).query


def of_kinds(head: str, section: str) -> dict[str, str]:
    """(kind: what is here) of the lines of a table whose first column names kinds."""
    return {
        kind: line.here
        for line in lines()
        if line.head == head and line.section == section
        for kind in line.cells[0].replace("`", "").split(", ")
    }


def test_every_type_of_a_task_has_a_line() -> None:
    told = of_kinds("type", "Types of tasks")
    assert {kind for kind, here in told.items() if here != "absent"} == set(BATCH_TASK_TYPES)
    for kind in told.keys() - set(BATCH_TASK_TYPES):
        with pytest.raises(InvalidRequest, match="is not supported here: "):
            parse_batch_task({"type": kind})


def test_every_action_has_a_line() -> None:
    told = of_kinds("action", "Tasks: `/druid/indexer/v1`")
    with pytest.raises(InvalidRequest) as caught:
        action_from_json({"type": "none"})
    known = str(caught.value).partition("use one of ")[2].split(", ")
    assert {kind for kind, here in told.items() if here != "absent"} == set(known)


def test_an_action_is_known_or_refused_as_its_line_says() -> None:
    for kind, here in of_kinds("action", "Tasks: `/druid/indexer/v1`").items():
        text = ""
        try:
            action_from_json({"type": kind})
        except InvalidRequest as error:
            text = str(error)
        assert ("unknown action" in text) == (here == "absent"), kind


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
    at_times = lags | {"shortOfSlots", "skippedFiles", "tasksWaitFor", "boundedOffsets"}
    told = of_kinds("key", "The status of a supervisor").keys()
    assert told == payload.keys() | at_times
    assert of_kinds("task key", "The status of a supervisor").keys() == task.keys()


def test_settings_name_options_that_exist() -> None:
    options = {one.flag for one in option_entries()}
    [settings, _] = [one for one in sections("druid") if one.title == "Settings"]
    cells = " ".join(cell for one in settings.features for cell in one.cells)
    named = set(re.findall(r"`(--[a-z-]+)`", cells))
    assert named - options == set()
    assert "--task-queue-size" in named


@pytest.mark.parametrize("name", ["druid", "nsq"])
def test_every_feature_has_a_status_and_a_test(name: str) -> None:
    for section in sections(name):
        for one in section.features:
            place = f"{section.title}: {one.cells[0]}"
            assert (ROOT / one.test).is_file(), place
            assert one.status in STATUSES or section.title == "Settings", place
            assert one.text or one.status != "absent", place


# They compare all lines of a kind with the code.
WALKING = {f"tests/services/test_druid_{name}.py" for name in ("fields", "page", "paths")}
NAMED = {"endpoint", "field", "kind", "action", "type", "key", "task key", "shard spec", "body"}


@pytest.mark.parametrize(
    "section",
    [one for one in sections("druid") if one.head in NAMED],
    ids=lambda one: f"{one.title}-{one.head}".replace("`", ""),
)
def test_the_test_of_a_row_is_about_it(section: Section) -> None:
    """It names the field, the kind or the last part of the path, or it walks over all lines."""
    lost = []
    for one in section.features:
        cell = one.cells[0]
        if section.head == "endpoint":
            path = re.sub(r"\{[^}]*\}", "", cell.partition("?")[0].partition(" ")[2])
            names = re.findall(r"\w+", path)[-1:]
        else:
            names = re.findall(r"`([^`]+)`", cell.partition(":")[2]) or re.findall(
                r"`([^`]+)`", cell
            )
        text = (ROOT / one.test).read_text()
        if names and one.test not in WALKING and not any(name in text for name in names):
            lost.append((cell, one.test))
    assert lost == []


def test_every_aggregator_has_a_line() -> None:
    told = of_kinds("kind", "`metricsSpec`")
    known = set(get_args(AggregatorType))
    assert {kind for kind, here in told.items() if here != "absent"} == known
    for kind in told.keys() - known:
        with pytest.raises(ValueError, match=f"{kind} is not supported yet"):
            Aggregator.model_validate({"type": kind, "name": "m", "fieldName": "f"})
