"""Rows a second into published segments, beside a plain PySpark job that reads the same JSON.

Runs the real `penstock up` in a temporary folder, and the plain job on its Spark, in turns (see
`turns`).

A stream's messages are in its topic when its supervisor is submitted: its time is from there until
their offsets are committed with the segments, so it holds the start of the task, its batches, a
hand-off that is asked for when all is read, the merge, the push to deep storage and the publish. A
batch task's time is from its submission to its end.

``--rows N`` sets how many rows, ``--rounds N`` how often, ``--only stream`` or ``--only batch``
measures one way; the data is that of `ingest`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx

from benchmarks.ingest import (
    BATCH,
    PARTITIONS,
    ROWS,
    flights,
    ingest_plainly,
    rolled_schema,
    schema,
)
from benchmarks.table import Row, print_rows
from benchmarks.turns import ROUNDS, in_turns
from penstock.broker.broker_client import BrokerClient
from penstock.core.clock import SystemClock
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.server_process import ServerProcess
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions

if TYPE_CHECKING:
    from penstock.indexing.specs import DataSchema

AIM: Final = ">= 1.5"
PATIENCE_S: Final = 300.0
# Each question takes the API 4 ms of a core: asked every 30 ms, a fifteenth of both is measured.
ASK_EVERY_S: Final = 0.1
INDEXER: Final = "/druid/indexer/v1"


class Bench:
    """A running Penstock, and a Spark session of its own on its Spark."""

    def __init__(self, folder: Path, messages: list[bytes]) -> None:
        self.folder = folder
        self._messages = messages
        self._clock = SystemClock()
        self._pause = threading.Condition()
        self._data = DataFolder(folder / "data")
        self._server = ServerProcess(self._data, self._clock)
        self._names = 0
        self._opened = contextlib.ExitStack()

    def begin(self) -> None:
        """Start Penstock and wait until it is ready."""
        self._opened.callback(self._server.stop)
        self._server.start()
        self._server.wait_ready()
        self._api = self._opened.enter_context(httpx.Client(base_url=self._server.http, timeout=60))
        given = json.loads(self._data.children_options.read_text())
        conf = {"spark.sql.ansi.enabled": "false"}
        self._plain = SparkSessions(SparkSessionOptions(given["spark_connect"], conf=conf))
        self._opened.callback(self._plain.close)

    def end(self) -> None:
        """Let go of it, the last first, and stop it."""
        self._opened.close()

    def plainly(self, *, rolled: bool) -> float:
        """Run the plain job and return its seconds."""
        with self._plain.use() as spark:
            return ingest_plainly(spark, self.folder, len(self._messages), rolled=rolled)

    def stream(self, *, rolled: bool) -> float:
        """Have a supervisor read a topic, and return the seconds until all of it is published."""
        name, asked = self._named(rolled=rolled)
        with BrokerClient(self._server.broker_http) as broker:
            broker.create_topic(name, PARTITIONS)
            for start in range(0, len(self._messages), BATCH):
                part = start // BATCH % PARTITIONS
                broker.publish(name, self._messages[start : start + BATCH], partition=part)
        io = {"topic": name, "startDelay": "PT0S", "useEarliestOffset": True}
        spec = {"type": "penstock", "spec": {"dataSchema": asked, "ioConfig": io}}
        began_s = time.perf_counter()
        self._post("supervisor", spec)
        one = f"supervisor/{name}"
        self._until(lambda: self._read_of(one) == len(self._messages))
        self._post(f"{one}/taskGroups/handoff", {"taskGroupIds": [0]})
        self._until(lambda: _total(self._status(one)["committedOffsets"]) == len(self._messages))
        took_s = time.perf_counter() - began_s
        self._check(name, rolled=rolled)
        # The next round has the machine for itself.
        self._post(f"{one}/terminate")
        return took_s

    def batch(self, *, rolled: bool) -> float:
        """Have a task read a file, and return the seconds until it has published."""
        name, asked = self._named(rolled=rolled)
        io = {
            "type": "index_parallel",
            "inputSource": {"type": "local", "files": [str(self.folder / "plain.json")]},
            "inputFormat": {"type": "json"},
        }
        tuning = {"type": "index_parallel", "partitionsSpec": {"type": "hashed"}} if rolled else {}
        spec = {"dataSchema": asked, "ioConfig": io, "tuningConfig": tuning}
        began_s = time.perf_counter()
        task = self._post("task", {"type": "index_parallel", "spec": spec})["task"]
        self._until(lambda: self._get(f"task/{task}/status")["status"]["status"] != "RUNNING")
        took_s = time.perf_counter() - began_s
        self._check(name, rolled=rolled)
        return took_s

    def _named(self, *, rolled: bool) -> tuple[str, dict[str, object]]:
        self._names += 1
        name = f"published{self._names}"
        asked: DataSchema = rolled_schema() if rolled else schema()
        return name, asked.model_dump(mode="json", by_alias=True) | {"dataSource": name}

    def _check(self, name: str, *, rolled: bool) -> None:
        found = self._api.get(f"/druid/coordinator/v1/metadata/datasources/{name}/segments?full")
        rows = sum(segment["totalRows"] for segment in found.raise_for_status().json())
        wanted = len(self._messages)
        assert 0 < rows < wanted if rolled else rows == wanted, (name, rows)

    def _status(self, one: str) -> dict[str, Any]:
        found: dict[str, Any] = self._get(f"{one}/status")["payload"]
        return found

    def _read_of(self, one: str) -> int:
        return sum(_total(task["currentOffsets"]) for task in self._status(one)["activeTasks"])

    def _get(self, path: str) -> dict[str, Any]:
        return _said(self._api.get(f"{INDEXER}/{path}"))

    def _post(self, path: str, body: object = None) -> dict[str, Any]:
        return _said(self._api.post(f"{INDEXER}/{path}", json=body))

    def _until(self, is_so: Callable[[], bool]) -> None:
        deadline_s = self._clock.monotonic_s() + PATIENCE_S
        while not is_so():
            if self._clock.monotonic_s() > deadline_s:
                raise SystemExit(f"not done within {PATIENCE_S:.0f} s; see {self._data.log}")
            with self._pause:
                self._clock.wait(self._pause, ASK_EVERY_S)


def _said(answer: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def _total(offsets: dict[str, int]) -> int:
    return sum(offsets.values())


def run(rows: int = ROWS, rounds: int = ROUNDS, only: str = "") -> list[Row]:
    """Run Penstock, measure, stop it."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        messages = flights(rows)
        (folder / "plain.json").write_bytes(b"\n".join(messages) + b"\n")
        bench = Bench(folder, messages)
        try:
            bench.begin()
            ways = (("stream", bench.stream), ("batch of JSON", bench.batch))
            return [
                _against(bench, what, ours, rows, rounds, rolled=rolled)
                for what, ours in ways
                if what.startswith(only)
                for rolled in (False, True)
            ]
        finally:
            bench.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _against(
    bench: Bench, what: str, ours: Callable[..., float], rows: int, rounds: int, *, rolled: bool
) -> Row:
    return in_turns(
        f"{what} into published segments{', rolled up' if rolled else ''}",
        rows,
        lambda: ours(rolled=rolled),
        lambda: bench.plainly(rolled=rolled),
        rounds=rounds,
        aim=AIM,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", choices=("stream", "batch"), default="")
    given = parser.parse_args()
    print_rows(run(given.rows, given.rounds, given.only))
