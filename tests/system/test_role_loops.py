"""Every role as a process of its own, which find each other, and whose loops nothing blocks.

Everything is used once: pages, endpoints of Druid and of flows, queries, a stream and its task.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from penstock.broker.broker_client import BrokerClient
from penstock.core.access.access_control import AccessControl
from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError
from penstock.services.json_client import JsonClient
from penstock.services.membership.leases import LeaseDirectory, LeaseView
from penstock.services.membership.membership import BrokerFinder
from penstock.services.options.table import PenstockOptions
from penstock.storage.metadata import MetadataStore
from tests.kits.druid_page_kit import endpoints
from tests.kits.this_host_kit import LISTED
from tests.loops import loop_audit_kit
from tests.loops.flow_uses_kit import use_flows
from tests.loops.sql_uses_kit import use_sql

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

pytestmark = pytest.mark.system

SPEC = {
    "type": "penstock",
    "spec": {
        "dataSchema": {
            "dataSource": "clicks",
            "timestampSpec": {"column": "time", "format": "millis"},
            "dimensionsSpec": {"dimensions": ["page"]},
            "granularitySpec": {"segmentGranularity": "DAY", "rollup": False},
        },
        "ioConfig": {"topic": "clicks", "taskDuration": "PT10M", "startDelay": "PT0S"},
        "tuningConfig": {"type": "penstock"},
    },
}
EVENT = b'{"time": 1700000000000, "page": "a"}'
# What is asked of each API beside the endpoints of Druid.
PAGES = {
    "overlord": (
        *("/status", "/status/health", "/status/properties", "/metrics", "/nothing"),
        *("/druid/indexer/v1/tasks", "/druid/indexer/v1/workers", "/druid/indexer/v1/leader"),
        *("/druid/indexer/v1/supervisor", "/druid/indexer/v1/supervisor/clicks/status"),
    ),
    "worker": (
        *("/status", "/metrics", "/druid/worker/v1/tasks", "/druid/worker/v1/enabled"),
        *("/druid-internal/v1/leader", "/druid-internal/v1/broker"),
    ),
    "router": (
        *("/status", "/metrics", "/druid/indexer/v1/tasks", "/flow"),
        "/druid/coordinator/v1/metadata/datasources",
    ),
    "flow": ("/status", "/metrics", "/flow", "/flow/metrics"),
}
# What is asked of a peon, of its task.
TASK_PAGES = (
    *("liveReports", "rowStats", "unparseableEvents", "status", "time/start"),
    *("offsets/current", "offsets/end", "checkpoints", "nothing"),
)
TASK_VERBS = ("pause", "resume")


class Roles:
    """Processes in one data folder, with ports of their own and one Spark."""

    def __init__(self, folder: Path, spark: str, report: Path, stack: ExitStack) -> None:
        self.folder, self._spark, self._report, self._stack = folder, spark, report, stack
        self._running: dict[str, subprocess.Popen[str]] = {}

    def start(self, role: str, *options: str) -> None:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "penstock", "server", role, "--http", "127.0.0.1:0"),
                *("--data-dir", str(self.folder), *options),
            ],
            stderr=subprocess.DEVNULL,
            env=os.environ
            | loop_audit_kit.variables(self._report)
            | {"PENSTOCK_SPARK_CONNECT": self._spark, "PENSTOCK_REACHABLE_HOSTS": LISTED},
            text=True,
        )
        self._running[role] = self._stack.enter_context(process)
        self._stack.callback(process.send_signal, signal.SIGTERM)

    def start_broker(self) -> None:
        self.start("broker", "--broker-http", "127.0.0.1:0", "--broker-tcp", "127.0.0.1:0")

    def kill(self, role: str) -> None:
        self._running[role].kill()
        self._running[role].wait()


def until(what: str, condition: Callable[[], T | None]) -> T:
    clock, pause = SystemClock(), threading.Condition()
    deadline_s, last = clock.monotonic_s() + 240, ""
    while clock.monotonic_s() < deadline_s:
        try:
            if found := condition():
                return found
        except (PenstockError, OSError, ValueError) as error:
            last = repr(error)
        with pause:
            clock.wait(pause, 0.2)
    pytest.fail(f"{what}: {last}")


def test_roles_find_a_broker_on_any_port_and_nothing_blocks_their_loops(
    tmp_path: Path, shared_spark: str
) -> None:
    report = tmp_path / "found"
    report.touch()
    with ExitStack() as stack:
        roles = Roles(tmp_path / "data", shared_spark, report, stack)
        for role in ("overlord", "worker", "router"):
            roles.start(role)
        roles.start("flow", "--provenance-topic", "lineage")
        until("metadata", (roles.folder / "metadata.db").exists)
        store = stack.enter_context(_store(roles.folder))
        directory = LeaseDirectory(LeaseView(store.leases, SystemClock()))
        apis = {
            role: JsonClient(until(role, lambda role=role: directory.find(role)).url, timeout_s=30)
            for role in PAGES
        }
        overlord = apis["overlord"]
        until("a leader", lambda: overlord.post("/druid/indexer/v1/supervisor", SPEC))

        def status() -> dict[str, object]:
            found = overlord.get("/druid/indexer/v1/supervisor/clicks/status")
            assert isinstance(found, dict)
            return found["payload"]

        until("the advice", lambda: "--broker-http" in json.dumps(status()))
        roles.start_broker()
        finder = BrokerFinder(PenstockOptions(data_dir=roles.folder), directory)
        first = until("a broker", finder.http)
        with BrokerClient(first.url) as broker:
            broker.create_topic("clicks", 1)
            broker.publish("clicks", [EVENT])
        until("the stream", lambda: (status().get("latestOffsets") or {}).get("0") == 1)
        assert finder.tcp().port not in (first.port, 0, 4150)
        # It is killed and comes back elsewhere.
        roles.kill("broker")
        roles.start_broker()
        second = until("another broker", lambda: (found := finder.http()) != first and found)
        with BrokerClient(second.url) as broker:
            broker.publish("clicks", [EVENT])
        until("the stream again", lambda: (status().get("latestOffsets") or {}).get("0") == 2)
        until("the router", lambda: _broker_of(apis["router"]) == second.url)
        _use_a_peon(overlord, roles.folder)
        # Through the router, whose loop passes the requests on.
        use_flows(apis["router"], JsonClient(second.url), finder.tcp().port, tmp_path, until)
        use_sql(apis["router"].base_url, "clicks", until)
        _use_endpoints(apis)
        for role, pages in PAGES.items():
            stats = apis[role].get("/stats")
            assert isinstance(stats, dict)
            assert stats["loop_stall_ms"]["http"]["max"] > 0
            for page in pages:
                _ask(apis[role], "GET", page)
    assert loop_audit_kit.found_in(report) == []


def _use_endpoints(apis: Mapping[str, JsonClient]) -> None:
    """Ask for each endpoint of Druid, of what there is and of what there is not."""
    # Those that end something come last.
    every = sorted({one.key for one in endpoints()}, key=lambda key: (_ends(*key), key))
    for method, path in every:
        role = "worker" if path.startswith(("/druid/worker/", "/druid-internal/")) else "router"
        for name in ("nothing", "clicks"):
            for body in (b"",) if method == "GET" else (b"", b"{}", b"[]"):
                _ask(apis[role], method, path.replace("{}", name), body)


def _ends(method: str, path: str) -> bool:
    verbs = ("suspend", "terminate", "shutdown", "handoff", "reset", "disable", "Unused")
    return method == "DELETE" or any(verb in path for verb in verbs)


def _ask(api: JsonClient, method: str, path: str, body: bytes = b"") -> None:
    try:
        api.request(method, path, body)
    except PenstockError as error:
        print(method, path, repr(error))  # many of them are refused: they are asked all the same


def _use_a_peon(overlord: JsonClient, folder: Path) -> None:
    """Ask for each page of a task, whose peon is audited as its worker is."""

    def running() -> tuple[str, str] | None:
        tasks = overlord.get("/druid/indexer/v1/runningTasks")
        assert isinstance(tasks, list)
        for task in tasks:
            place = task["location"]
            if place["host"]:
                return task["id"], f"http://{place['host']}:{place['port']}"
        return None

    task_id, url = until("a running task", running)
    bearer = AccessControl(folder / "access", SystemClock()).key.peon_bearer(task_id)
    peon = JsonClient(url, token=bearer, timeout_s=30)
    for method, pages in (("GET", TASK_PAGES), ("POST", TASK_VERBS)):
        for page in pages:
            _ask(peon, method, f"/druid/worker/v1/chat/{task_id}/{page}")
    stats = peon.get("/stats")
    assert isinstance(stats, dict)
    assert stats["loop_stall_ms"]["http"]["max"] > 0


def _broker_of(router: JsonClient) -> object:
    status = router.get("/status")
    assert isinstance(status, dict)
    return status["broker_http"]


def _store(folder: Path) -> closing[MetadataStore]:
    options = PenstockOptions(data_dir=folder)
    return closing(MetadataStore.open(options.metadata_address, clock=SystemClock()))
