"""The real flow service with five processors under load, killed with -9 again and again.

Five kills; ``PENSTOCK_FLOW_KILLS=50`` makes it fifty.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError
from penstock.core.uuids import RandomUuids
from penstock.flow.controller.controller import FlowController
from penstock.flow.processor_state import decode_state
from penstock.services.json_client import JsonClient
from penstock.services.processors import registry_for
from penstock.storage.disk import OsFileSystem
from penstock.storage.metadata import MetadataStore
from penstock.storage.sqlite_urls import sqlite_url

KILLS = int(os.environ.get("PENSTOCK_FLOW_KILLS", "5"))
HERE = Path(__file__).parent

pytestmark = [pytest.mark.system, pytest.mark.timeout(900 + 20 * KILLS)]

# Thresholds so small that kills meet swapping, and several threads where that keeps the counts.
FLOW = """
name: killed
processors:
  Make: {type: "flow_kill_processors:Numbers"}
  Mark: {type: UpdateAttribute, properties: {seen: "by ${last}"}, concurrent_tasks: 2}
  Route:
    type: RouteOnAttribute
    properties: {even: "${last:matches('[02468]')}", odd: "${last:matches('[13579]')}"}
    auto_terminated: [unmatched]
  Append: {type: "flow_kill_processors:Append", concurrent_tasks: 2}
  End: {type: "flow_kill_processors:Tally"}
funnels: [never]
connections:
  - {from: Make.success, to: Mark, swap_threshold: 100, back_pressure_count: 600}
  - {from: Mark.success, to: Route, swap_threshold: 100, prioritizers: [NewestFlowFileFirstPrioritizer]}
  - {from: Route.even, to: Append, swap_threshold: 100}
  - {from: Route.odd, to: Append, name: odd ones, swap_threshold: 100, back_pressure_count: 300}
  - {from: Append.success, to: End, swap_threshold: 100}
  - {from: Mark.failure, to: never}
  - {from: Route.failure, to: never}
  - {from: never, to: End}
"""  # noqa: E501


class Service:
    """A flow service and its successors on one data folder."""

    def __init__(self, folder: Path, *, keeps_count: bool = False) -> None:
        self.folder = folder
        self.keeps_count = keeps_count  # of unexpected ends
        self.pause = threading.Event()
        self.found: list[str] = []
        self.log = (folder.parent / "flow.log").open("ab")

    def spawn(self) -> None:
        command = [sys.executable, "-m", "penstock", "server", "flow", "--data-dir"]
        self.process = subprocess.Popen(
            [*command, str(self.folder), "--http", "127.0.0.1:0", "--flow-modules", str(HERE)],
            stdout=self.log,
            stderr=self.log,
        )

    def start(self) -> None:
        if not self.keeps_count:
            # Many ends in a row would leave the components stopped; these come from outside.
            (self.folder / "run/flow-ends").unlink(missing_ok=True)
        self.spawn()
        self.client = self.wait(self.reach)
        status = self.status()
        events = status["events"]
        assert isinstance(events, list)
        self.found += [str(event["kind"]) for event in events]

    def reach(self) -> JsonClient | None:
        """Return a client of the one that runs now; a lease may be a predecessor's."""
        assert self.process.poll() is None, (self.folder.parent / "flow.log").read_text()[-3000:]
        if not (self.folder / "format.json").exists():
            return None  # the metadata of a new folder would not be its own
        with suppress(PenstockError):
            store = MetadataStore.open(
                sqlite_url(f"{self.folder}/metadata.db"), clock=SystemClock()
            )
            try:
                rows = store.leases.list("flow")
            finally:
                store.close()
            for row in rows:
                client = JsonClient(f"http://{row.host}:{row.port}", timeout_s=30)
                with suppress(PenstockError):
                    client.get("/flow")
                    return client
        return None

    def wait(self, condition: Callable[[], JsonClient | None]) -> JsonClient:
        end_s = time.monotonic() + 180
        while (found := condition()) is None:
            assert time.monotonic() < end_s, (self.folder.parent / "flow.log").read_text()[-3000:]
            self.pause.wait(0.05)
        return found

    def status(self) -> dict[str, object]:
        status = self.client.get("/flow/status")
        assert isinstance(status, dict)
        return status

    def queued(self) -> int:
        connections = self.status()["connections"]
        assert isinstance(connections, list)
        return sum(one["queued"] for one in connections)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(180) == 0


def test_nothing_is_lost_or_doubled_when_it_is_killed(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    service = Service(tmp_path / "data")
    try:
        service.start()
        service.client.request("PUT", "/flow", FLOW.encode())
        service.client.post("/flow/start")
        for _ in range(KILLS):
            service.pause.wait(chance.choice([chance.uniform(0, 0.2), chance.uniform(0.2, 1.5)]))
            service.kill()
            while chance.random() < 0.2:  # while it starts, too
                service.spawn()
                service.pause.wait(chance.uniform(0.3, 2.0))
                service.kill()
            service.start()
        shown = service.client.get("/flow/metrics")
        assert 'penstock_flow_processor_runs_total{processor="Make"}' in str(shown)
        service.client.post("/flow/stop", query={"target": "Make"})
        end_s = time.monotonic() + 240
        while service.queued():
            assert time.monotonic() < end_s, service.status()
            service.pause.wait(0.1)
        service.end()
    finally:
        service.process.kill()
        service.process.wait()
        service.log.close()
    # What belongs to a commit that never was is thrown away; of what was committed nothing is lost.
    # A kill may also come amid a write, of which the first pages are there then.
    assert set(service.found) <= {"content-orphaned", "swap-file-unknown", "journal-torn"}
    made, end = look(tmp_path / "data")
    assert made > 0
    assert end == {
        "count": made,
        "sum": sum(range(made)),
        "squares": sum(n * n for n in range(made)),
        "wrong": 0,
    }
    left = [path for path in (tmp_path / "data/flow/content").rglob("*") if path.is_file()]
    assert [path.name for path in left if not path.name.endswith("lock")] == []
    print(f"{KILLS} kills, {made} FlowFiles; starts found {sorted(service.found)}")


def look(data: Path) -> tuple[int, dict[str, int]]:
    """Open what the service left, and return how many were made, and what the end counted."""
    controller = FlowController.open(
        str(data / "flow"),
        fs=OsFileSystem(),
        clock=SystemClock(),
        registry=registry_for([str(HERE)]),
        new_uuid=RandomUuids(),
        environment={},
    )
    try:
        status = controller.status()
        assert not controller.events
        assert status.repository.flowfiles == status.repository.swapped_flowfiles == 0
        assert status.content.resources == status.content.orphans_deleted == 0
        ids = {one.name: one.id for one in status.components}
        states = {
            name: decode_state(name, controller._repository.state(one)) for name, one in ids.items()
        }
    finally:
        controller.close()
    return int(states["Make"]["made"]), {name: int(one) for name, one in states["End"].items()}
