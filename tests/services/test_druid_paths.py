"""Every path that Druid's clients know is served, or the page on compatibility says otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.kits.druid_page_kit import endpoints
from tests.services.overlord_kit import Api, OverlordWorld, routed

INDEXER = """
POST /task; GET /task/x; GET /task/x/status; GET /task/x/log; GET /task/x/reports
POST /task/x/shutdown; POST /datasources/x/shutdownAllTasks; POST /taskStatus
GET /tasks; GET /waitingTasks; GET /pendingTasks; GET /runningTasks; GET /completeTasks
GET /leader; GET /isLeader; POST /lockedIntervals/v2; POST /activeLocks
GET /workers; GET /totalWorkerCapacity; GET /scaling; GET /worker; POST /worker
GET /worker/history; POST /worker/x/enable; POST /worker/x/disable
DELETE /pendingSegments/x; POST /action
POST /datasources/x; DELETE /datasources/x; POST /datasources/x/markUsed
POST /datasources/x/markUnused; POST /datasources/x/segments/y; DELETE /datasources/x/segments/y
GET /compaction/config/cluster; POST /compaction/config/cluster
GET /compaction/config/datasources; GET /compaction/config/datasources/x
POST /compaction/config/datasources/x; DELETE /compaction/config/datasources/x
GET /compaction/config/datasources/x/history; GET /compaction/status/datasources
GET /compaction/status/datasources/x; POST /compaction/simulate
GET /compaction/isSupervisorEnabled
POST /supervisor; GET /supervisor; GET /supervisor/x; GET /supervisor/x/status
GET /supervisor/x/health; GET /supervisor/x/stats; GET /supervisor/x/parseErrors
GET /supervisor/history; GET /supervisor/x/history; POST /supervisor/x/suspend
POST /supervisor/x/resume; POST /supervisor/x/terminate; POST /supervisor/x/shutdown
POST /supervisor/x/reset; POST /supervisor/x/resetOffsets
POST /supervisor/x/resetToLatestAndBackfill; POST /supervisor/x/taskGroups/handoff
POST /supervisor/suspendAll; POST /supervisor/resumeAll; POST /supervisor/terminateAll
"""
COORDINATOR = """
GET /leader; GET /isLeader; GET /rules; GET /rules/x; POST /rules/x; GET /rules/history
GET /rules/x/history; GET /metadata/datasources; GET /metadata/datasources/x
GET /metadata/datasources/x/segments; GET /metadata/datasources/x/segments/y
GET /metadata/datasources/x/unusedSegments
GET /datasources; GET /datasources/x; GET /datasources/x/intervals
GET /datasources/x/intervals/2024-01-01_P1D; GET /datasources/x/segments
GET /datasources/x/segments/y; GET /datasources/x/loadstatus; GET /loadstatus; GET /config
POST /datasources/x/markUsed; POST /datasources/x/markUnused; DELETE /datasources/x; GET /servers
"""
OTHERS = """
POST /v2/sql; POST /v2/sql/task; DELETE /v2/sql/x
POST /v2; DELETE /v2/x; GET /v2/datasources; GET /v2/datasources/x
"""
EVERYWHERE = ["/status", "/status/health", "/status/properties", "/status/selfDiscovered/status"]
# Of a task's process and of a server that holds segments: no router has them.
ELSEWHERE = ("/druid/worker/", "/druid-internal/")
ABSENT = [
    (one.method, one.path.replace("{}", "x"))
    for one in endpoints()
    if one.line.here == "absent" and not one.path.startswith(ELSEWHERE)
]


def listed(text: str, prefix: str) -> list[tuple[str, str]]:
    entries = [entry.split() for line in text.splitlines() for entry in line.split(";") if entry]
    return [(method, prefix + path) for method, path in entries]


PATHS = [
    *listed(INDEXER, "/druid/indexer/v1"),
    *listed(COORDINATOR, "/druid/coordinator/v1"),
    *listed(OTHERS, "/druid"),
    *(("GET", path) for path in EVERYWHERE),
]


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    world = OverlordWorld(tmp_path_factory.mktemp("paths")).start()
    service = SimpleNamespace(cancel=lambda _id: False)
    with routed(world, service) as made:  # type: ignore[arg-type]
        yield made
    world.close()


def test_the_page_has_a_line_for_each_of_them() -> None:
    """Names of what is looked for stand where the page has parameters."""
    told = {one.key for one in endpoints() if one.line.here != "absent"}
    named = re.compile(r"(?<=/)(x|y|2024-01-01_P1D)(?=/|$)")
    asked = {(method, named.sub("{}", path)) for method, path in PATHS}
    assert asked - told == set()


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_a_path_is_served(router: Api, method: str, path: str) -> None:
    answer = router(method, path)
    assert answer.status_code < 500
    assert "is not served here" not in answer.text


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_a_path_is_served_with_a_slash_at_its_end(router: Api, method: str, path: str) -> None:
    """As in Druid: its SQL clients ask `/druid/v2/sql/`."""
    answer = router(method, f"{path}/")
    assert answer.status_code < 500
    assert not answer.is_redirect
    assert "is not served here" not in answer.text


def test_an_escaped_slash_is_part_of_a_name(router: Api) -> None:
    answer = router.get("/druid/indexer/v1/supervisor/a%2F/")
    assert (answer.status_code, "a/" in answer.text) == (404, True)


@pytest.mark.parametrize(("method", "path"), ABSENT)
def test_a_path_is_told_to_be_absent(router: Api, method: str, path: str) -> None:
    answer = router(method, path)
    assert answer.status_code in (404, 405)
    # What to do instead follows.
    assert f"{method} {path} is not served here: " in answer.json()["error"]
    assert "use another method" not in answer.text
    assert router(method, f"{path}/").text == answer.text
