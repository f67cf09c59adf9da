"""The real `penstock up`: events in, SQL out, each process killed once, each event counted once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.broker.client import BrokerClient
from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError, Unavailable
from penstock.services.demo.chaos import processes_of
from penstock.services.demo.server import DemoServer
from penstock.services.host.datafolder import DataFolder
from penstock.services.httpclient import JsonClient
from penstock.services.sqlclient import ask

pytestmark = [pytest.mark.system, pytest.mark.timeout(420)]

EVENTS = 5_000
BATCH = 250
SPEC = {
    "type": "penstock",
    "spec": {
        "dataSchema": {
            "dataSource": "system",
            "timestampSpec": {"column": "time", "format": "millis"},
            "dimensionsSpec": {"dimensions": [{"type": "long", "name": "seq"}, "kind"]},
            "granularitySpec": {"segmentGranularity": "DAY", "rollup": False},
        },
        "ioConfig": {
            "topic": "system",
            "taskDuration": "PT10M",
            "period": "PT1S",
            "startDelay": "PT0S",
            "useEarliestOffset": True,
        },
        "tuningConfig": {"type": "penstock"},
    },
}
# 2013-01-01T00:00:00Z
START_MS = 1_356_998_400_000


class Rig:
    """A running Penstock, and waiting for what it will be."""

    def __init__(self, folder: Path) -> None:
        self.clock = SystemClock()
        self.folder = DataFolder(folder)
        self.server = DemoServer(self.folder, self.clock)
        self._pause = threading.Condition()

    def api(self) -> JsonClient:
        return JsonClient(self.server.http, timeout_s=30)

    def until(self, what: str, condition: Callable[[], bool], timeout_s: float = 120) -> None:
        """Wait for a condition; what is not reachable just now is not there yet."""
        deadline_s = self.clock.monotonic_s() + timeout_s
        last: object = None
        while self.clock.monotonic_s() < deadline_s:
            self.server.keep_running()
            try:
                if condition():
                    return
            except PenstockError as error:
                last = error
            with self._pause:
                self.clock.wait(self._pause, 0.2)
        lines = "\n".join(self.server.lines)
        pytest.fail(f"{what}: not within {timeout_s} s; last: {last}\n{lines}")

    def retried(self, work: Callable[[], None]) -> None:
        def done() -> bool:
            try:
                work()
            except Unavailable:
                return False
            return True

        self.until("an answer", done)

    def publish(self, first: int, end: int) -> None:
        with BrokerClient(self.server.broker_http, timeout_s=15) as broker:
            for at in range(first, end, BATCH):
                batch = [
                    json.dumps({"time": START_MS + seq, "seq": seq, "kind": "x"}).encode()
                    for seq in range(at, at + BATCH)
                ]

                def send(batch: list[bytes] = batch, at: int = at) -> None:
                    partition = (at // BATCH) % 2
                    number = at // BATCH + 1
                    broker.publish("system", batch, partition=partition, producer=("rig", number))

                self.retried(send)

    def counts(self) -> list[object]:
        sql = 'SELECT count(*), count(DISTINCT seq), min(seq), max(seq) FROM "system"'
        return list(ask(self.api(), sql).rows[0])

    def kill(self, name: str) -> None:
        assert self.server.pid is not None
        victims = [one for one in processes_of(self.server.pid) if one.name == name]
        assert victims, f"no {name} runs"
        os.kill(victims[0].pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("up") / "data")
    made.server.start()
    try:
        made.server.wait_ready()
        with BrokerClient(made.server.broker_http) as broker:
            broker.create_topic("system", 2)
        made.api().post("/druid/indexer/v1/supervisor", SPEC)
        yield made
    finally:
        made.server.stop()


VICTIMS = ("broker", "overlord", "worker", "peon", "router", "spark", "launcher")
PART = EVENTS // (len(VICTIMS) + 1) // BATCH * BATCH


def test_events_are_in_sql_soon(rig: Rig) -> None:
    rig.publish(0, PART)
    rig.until("the first events", lambda: rig.counts() == [PART, PART, 0, PART - 1])


@pytest.mark.parametrize("name", VICTIMS)
def test_a_kill_loses_and_doubles_nothing(rig: Rig, name: str) -> None:
    first = PART * (VICTIMS.index(name) + 1)
    end = EVENTS if name == VICTIMS[-1] else first + PART
    rig.until("a running peon", lambda: "peon" in {one.name for one in processes_of(pid(rig))})
    rig.publish(first, first + BATCH)
    rig.kill(name)
    rig.publish(first + BATCH, end)
    rig.until(f"all events after the death of the {name}", lambda: rig.counts()[0] >= end)
    assert rig.counts() == [end, end, 0, end - 1]


def pid(rig: Rig) -> int:
    found = rig.server.pid
    if found is None:
        raise Unavailable("the launcher is being started again")
    return found


def test_hand_off_publishes_segments_with_every_event(rig: Rig) -> None:
    base = "/druid/coordinator/v1/metadata/datasources/system"

    def published() -> bool:
        groups = {"taskGroupIds": [0]}
        rig.api().post("/druid/indexer/v1/supervisor/system/taskGroups/handoff", groups)
        found = rig.api().get(base)
        assert isinstance(found, dict)
        return sum(one["totalRows"] for one in found["segments"]) >= EVENTS

    rig.until("the publish", published)
    assert rig.counts() == [EVENTS, EVENTS, 0, EVENTS - 1]


def test_a_topic_that_is_made_again_is_read_from_its_start(rig: Rig) -> None:
    """It grows longer than the committed offsets of the old one before anybody looks."""
    (before, *_) = rig.counts()
    assert isinstance(before, int)
    with BrokerClient(rig.server.broker_http) as broker:
        broker.delete_topic("system")
        broker.create_topic("system", 2)
    end = EVENTS + before + 2 * BATCH
    rig.publish(EVENTS, end)
    total = before + end - EVENTS
    rig.until("the events of both", lambda: rig.counts()[0] >= total)
    assert rig.counts() == [total, total, 0, end - 1]


def test_a_second_one_on_the_folder_is_refused_with_the_first_ones_number(rig: Rig) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "up", "--data-dir", str(rig.folder.path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert f"process {rig.server.pid}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_refused(rig: Rig, tmp_path: Path) -> None:
    port = rig.server.http.rpartition(":")[2]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "penstock", "up", "--data-dir", str(tmp_path / "other")),
            *("--http", f"127.0.0.1:{port}"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert f"port {port} on 127.0.0.1 is taken" in done.stderr
    assert "Traceback" not in done.stderr
