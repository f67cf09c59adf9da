"""How long it takes until an event is in a SQL answer after `kill -9` of each process.

Runs the real `penstock up` in a temporary folder. For each process in turn: it is killed, an
event is published at once, again and again until that is acknowledged, and SQL is asked until it
counts it. The time is from the kill to that answer, so it holds the restart, the way of the
event, and what stood in between. An event without a kill goes first, for comparison; the launcher
comes last, and is started again at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path

import httpx

from benchmarks.latency import spec
from benchmarks.table import Row, print_rows
from penstock.broker.broker_client import BrokerClient
from penstock.core.clock import SystemClock
from penstock.core.errors import Unavailable
from penstock.services.demo.demo_run import processes_of
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.server_process import ServerProcess

VICTIMS = ("broker", "overlord", "worker", "peon", "router", "flow", "spark", "launcher")
NAME = "recovery"
PATIENCE_S = 180.0
AIM_S = 30.0
QUICK_S = 5.0
SETTLING_EVENTS_MAX = 10


class Bench:
    """A running Penstock with a stream into it."""

    def __init__(self, folder: Path) -> None:
        self.clock = SystemClock()
        self.server = ServerProcess(DataFolder(folder), self.clock)
        self._pause = threading.Condition()
        self._sent = 0

    def begin(self) -> None:
        """Start it, with a topic and a supervisor, and wait for the first event."""
        self.server.start()
        self.server.wait_ready()
        with BrokerClient(self.server.broker_http) as broker:
            broker.create_topic(NAME, 1)
        supervisors = f"{self.server.http}/druid/indexer/v1/supervisor"
        httpx.post(supervisors, json=spec(NAME), timeout=30).raise_for_status()
        self.event_to_answer()

    def kill(self, name: str) -> None:
        """Kill what has this name."""
        assert self.server.pid is not None
        victims = [one.pid for one in processes_of(self.server.pid) if one.name == name]
        if not victims:
            raise SystemExit(f"no {name} runs that could be killed")
        for pid in victims:
            # A spare peon may have ended by itself meanwhile.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def event_to_answer(self) -> float:
        """Publish an event and return how long it took until SQL counted it, in seconds."""
        started_s = self.clock.monotonic_s()
        while not self._publish():
            self._wait(started_s)
        while not self._is_counted():
            self._wait(started_s)
        return self.clock.monotonic_s() - started_s

    def settle(self) -> None:
        """Publish events until three in a row were quick; give up after many, on a slow machine."""
        quick = 0
        for _ in range(SETTLING_EVENTS_MAX):
            quick = quick + 1 if self.event_to_answer() < QUICK_S else 0
            if quick == 3:
                return

    def _wait(self, started_s: float) -> None:
        if self.clock.monotonic_s() > started_s + PATIENCE_S:
            raise SystemExit(f"no recovery within {PATIENCE_S:.0f} s")
        self.server.keep_running()
        with self._pause:
            self.clock.wait(self._pause, 0.05)

    def _publish(self) -> bool:
        event = {"time": self.clock.now_ms(), "seq": self._sent, "page": "/", "country": "CH"}
        # The number makes it one event, however often it is sent.
        number = self._sent + 1
        try:
            with BrokerClient(self.server.broker_http, timeout_s=10) as broker:
                broker.publish(
                    NAME, [json.dumps(event).encode()], partition=0, producer=("bench", number)
                )
        except Unavailable:
            return False
        self._sent = number
        return True

    def _is_counted(self) -> bool:
        query = {"query": f"SELECT count(*) AS n FROM {NAME}", "resultFormat": "array"}
        try:
            answer = httpx.post(f"{self.server.http}/druid/v2/sql", json=query, timeout=30)
        except httpx.HTTPError:
            return False
        return answer.status_code == 200 and answer.json()[0][0] == self._sent


def run(victims: tuple[str, ...] = VICTIMS) -> list[Row]:
    """Run Penstock, measure, stop it."""
    with tempfile.TemporaryDirectory(prefix="penstock-recovery-") as name:
        bench = Bench(Path(name) / "data")
        try:
            bench.begin()
            bench.settle()
            plain_s = bench.event_to_answer()
            rows = [Row("event to SQL answer, nothing killed", plain_s, "s")]
            for victim in victims:
                bench.settle()
                bench.kill(victim)
                taken_s = bench.event_to_answer()
                print(f"{victim}: {taken_s:.1f} s", file=sys.stderr, flush=True)
                what = f"event to SQL answer after kill -9 of the {victim}"
                rows.append(Row(what, taken_s, "s", "aim", AIM_S, taken_s / AIM_S, "< 1"))
        finally:
            bench.server.stop()
    return rows


if __name__ == "__main__":
    print_rows(run())
