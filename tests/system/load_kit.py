"""A load of numbered events on a real Penstock, and what it must add up to."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pydantic import JsonValue

from penstock.broker.broker_client import BrokerClient
from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError, Unavailable
from penstock.services.demo.demo_run import KillTarget, processes_of
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.server_process import ServerProcess
from penstock.services.json_client import JsonClient
from penstock.services.sql_client import ask

TOPIC = "load"
PARTITIONS = 2
DAY = "2026-03-01"
HOURS = 4
HALF = f"{DAY}T00:00Z/{DAY}T02:00Z"
WHOLE = f"{DAY}T00:00Z/{DAY}T04:00Z"
START_MS = 1_772_323_200_000  # that day
HOUR_MS = 3_600_000


def stream_of_hours(
    topic: str,
    dimensions: dict[str, JsonValue],
    metrics: list[JsonValue],
    granularity: dict[str, JsonValue],
    **source: JsonValue,
) -> dict[str, JsonValue]:
    """Return the spec of a supervisor whose segments are of hours."""
    return {
        "type": "penstock",
        "spec": {
            "dataSchema": {
                "dataSource": topic,
                "timestampSpec": {"column": "time", "format": "millis"},
                "dimensionsSpec": dimensions,
                "metricsSpec": metrics,
                "granularitySpec": {"segmentGranularity": "HOUR", **granularity},
            },
            "ioConfig": {
                "topic": topic,
                "taskDuration": "PT10S",
                "period": "PT1S",
                "startDelay": "PT0S",
                "useEarliestOffset": True,
                **source,
            },
            "tuningConfig": {"type": "penstock"},
        },
        "context": {"useConcurrentLocks": True},
    }


SUPERVISOR = stream_of_hours(
    TOPIC,
    {
        "dimensions": [
            {"type": "long", "name": "seq"},
            {"type": "long", "name": "cents"},
            "kind",
        ]
    },
    [],
    {"rollup": False},
    taskDuration="PT20S",
)


def reindex(interval: str) -> dict[str, JsonValue]:
    """Return the task that replaces an interval by its own rows, marked as replaced."""
    schema: dict[str, JsonValue] = {
        "dataSource": TOPIC,
        "timestampSpec": {"column": "__time", "format": "millis"},
        "dimensionsSpec": {
            "dimensions": [
                {"type": "long", "name": "seq"},
                {"type": "long", "name": "cents"},
                "kind",
            ]
        },
        "transformSpec": {
            "transforms": [{"type": "expression", "name": "kind", "expression": "'replaced'"}]
        },
        "granularitySpec": {
            "segmentGranularity": "HOUR",
            "rollup": False,
            "intervals": [interval],
        },
    }
    return {
        "type": "index_parallel",
        "spec": {
            "dataSchema": schema,
            "ioConfig": {
                "inputSource": {"type": "druid", "dataSource": TOPIC, "interval": interval},
                "dropExisting": True,
            },
        },
        "context": {"useConcurrentLocks": True},
    }


def compaction(interval: str, datasource: str = TOPIC) -> dict[str, JsonValue]:
    """Return the task that writes an interval again, in fewer segments."""
    return {
        "type": "compact",
        "dataSource": datasource,
        "ioConfig": {
            "type": "compact",
            "inputSpec": {"type": "interval", "interval": interval},
            "dropExisting": True,
        },
        "context": {"useConcurrentLocks": True},
    }


def cents_of(numbers: np.ndarray) -> np.ndarray:
    """Return what an event carries: no two neighbours alike, so a swap shows in the sum."""
    cents: np.ndarray = (numbers * 7919) % 100_003
    return cents


def events(first: int, count: int) -> Sequence[bytes]:
    """Return numbered events, spread over the hours."""
    numbers = np.arange(first, first + count, dtype=np.int64)
    times = pa.array(START_MS + (numbers % HOURS) * HOUR_MS + numbers % HOUR_MS)
    parts = ('{"time": ', times, ', "seq": ', numbers, ', "cents": ', cents_of(numbers))
    texts = [p if isinstance(p, str) else pc.cast(pa.array(p), pa.string()) for p in parts]
    lines = pc.binary_join_element_wise(*texts, ', "kind": "new"}', "")
    return list(pc.cast(lines, pa.binary()).to_pylist())


class Rig:
    """A running Penstock that is started again when it was killed, and waiting for what it will be.

    Args:
        folder: Its data folder.
        variables: For its environment.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str] | None = None) -> None:
        self.clock = SystemClock()
        self.folder = folder
        self.server = ServerProcess(DataFolder(folder), self.clock, variables)
        self._pause = threading.Condition()
        self._starting = threading.Lock()

    @property
    def api(self) -> JsonClient:
        return JsonClient(self.server.http, timeout_s=60)

    def keep_running(self) -> None:
        """Start it again if it was killed; any thread of the test may ask."""
        with self._starting:
            self.server.keep_running()

    def wait(self, seconds: float) -> None:
        with self._pause:
            self.clock.wait(self._pause, seconds)

    def until(self, what: str, condition: Callable[[], bool], timeout_s: float = 240) -> None:
        """Wait for a condition; what is not reachable just now is not there yet."""
        deadline_s = self.clock.monotonic_s() + timeout_s
        last: object = None
        while (asked_s := self.clock.monotonic_s()) < deadline_s:
            self.keep_running()
            try:
                if condition():
                    return
            except PenstockError as error:
                last = error
            # A query takes what the work that is waited for would have.
            self.wait(min(3.0, max(0.3, 4 * (self.clock.monotonic_s() - asked_s))))
        lines = "\n".join(self.server.lines)
        pytest.fail(f"{what}: not within {timeout_s} s; last: {last}\n{lines}")

    def processes(self) -> list[KillTarget]:
        pid = self.server.pid
        if pid is None:
            raise Unavailable("the launcher is being started again")
        return processes_of(pid)

    def kill(self, name: str) -> None:
        """Kill all processes of a name, once there are any."""

        def found() -> bool:
            victims = [one for one in self.processes() if one.name == name]
            for one in victims:
                with suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)
            return bool(victims)

        self.until(f"a {name} to kill", found)

    def sums(self) -> tuple[object, ...]:
        """Return how many rows there are, how many numbers, and what they carry."""
        sql = f'SELECT count(*), count(DISTINCT seq), sum(cents) FROM "{TOPIC}"'
        return tuple(ask(self.api, sql).rows[0])

    def run_task(self, spec: Mapping[str, JsonValue], timeout_s: float = 240) -> str:
        """Submit a task and wait for its success; return its id."""
        known: list[str] = []

        def done() -> bool:
            if not known:
                answer = self.api.post("/druid/indexer/v1/task", dict(spec))
                assert isinstance(answer, dict)
                known.append(str(answer["task"]))
            answer = self.api.get(f"/druid/indexer/v1/task/{known[0]}/status")
            assert isinstance(answer, dict)
            status = answer["status"]
            assert status["statusCode"] != "FAILED", status
            return bool(status["statusCode"] == "SUCCESS")

        self.until(f"the end of a {spec['type']}", done, timeout_s)
        return known[0]

    def hand_over(self, datasource: str = TOPIC) -> None:
        """Have the tasks publish what they have read."""
        path = f"/druid/indexer/v1/supervisor/{datasource}/taskGroups/handoff"

        def asked() -> bool:
            self.api.post(path, {"taskGroupIds": [0]})
            return True

        self.until("a hand-over", asked)

    def has_segments(self) -> bool:
        """Tell whether the half that is replaced has segments."""
        path = f"/druid/coordinator/v1/metadata/datasources/{TOPIC}"
        found = self.api.get(path)
        assert isinstance(found, dict)
        starts = {one["interval"].partition("/")[0] for one in found["segments"]}
        return {f"{DAY}T00:00:00.000Z", f"{DAY}T01:00:00.000Z"} <= starts

    def is_published(self, datasource: str = TOPIC) -> bool:
        """Tell whether nothing is left that running tasks show and did not publish."""
        shown = str(self.api.get("/metrics"))
        found = re.findall(rf'penstock_announced_rows{{datasource="{datasource}"}} (\S+)', shown)
        return all(float(rows) == 0 for rows in found)


@contextmanager
def running_rig(folder: Path, variables: Mapping[str, str] | None = None) -> Iterator[Rig]:
    """Run one; ready when the block begins, stopped at its end."""
    made = Rig(folder, variables)
    made.server.start()
    try:
        made.server.wait_ready()
        yield made
    finally:
        made.server.stop()


class Load:
    """Publishes events at a steady rate on a thread; what was acknowledged is counted.

    A batch without an answer is sent again under its number, so it is there once.

    Args:
        rig: Where to.
        rate_per_s: So many events, in ten batches.
        topic: Which topic.
        make: Makes so many messages from a number on.
    """

    def __init__(
        self,
        rig: Rig,
        rate_per_s: int,
        topic: str = TOPIC,
        make: Callable[[int, int], Sequence[bytes]] = events,
    ) -> None:
        self._rig = rig
        self._topic = topic
        self._make = make
        self._batch = max(1, rate_per_s // 10)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.refusals: dict[str, int] = {}
        self.acknowledged = 0
        self.longest_gap_s = 0.0  # between two acknowledged publishes
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def sums(self) -> tuple[int, int, int]:
        """Return what `Rig.sums` must be."""
        numbers = np.arange(self.acknowledged, dtype=np.int64)
        return self.acknowledged, self.acknowledged, int(cents_of(numbers).sum())

    def _run(self) -> None:
        try:
            self._publish()
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it again
            self.error = error

    def _publish(self) -> None:
        rig, turn = self._rig, 0
        started_s = rig.clock.monotonic_s()
        last_s: float | None = None
        while not self._stop.is_set():
            late_s = rig.clock.monotonic_s() - started_s - turn / 10
            if late_s < 0 and self._stop.wait(-late_s):
                return
            batch = self._make(turn * self._batch, self._batch)
            self._send(batch, turn)
            turn += 1
            self.acknowledged += self._batch
            now_s = rig.clock.monotonic_s()
            if last_s is not None:
                self.longest_gap_s = max(self.longest_gap_s, now_s - last_s)
            last_s = now_s

    def _send(self, batch: Sequence[bytes], turn: int) -> None:
        """Send until it is acknowledged, also after the test has said stop."""
        while True:
            try:
                with BrokerClient(self._rig.server.broker_http, timeout_s=15) as broker:
                    broker.publish(
                        self._topic,
                        batch,
                        partition=turn % PARTITIONS,
                        durable=True,
                        producer=("load", turn + 1),
                    )
            except Unavailable as error:
                name = str(error)[:60]
                self.refusals[name] = self.refusals.get(name, 0) + 1
                self._rig.keep_running()
                self._rig.wait(0.2)
            else:
                return
