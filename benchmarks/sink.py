"""Rows a second that Spark writes into a datasource, beside a batch task and other writers.

Runs the real `penstock up` in a temporary folder. Spark reads one Parquet file of departures (the
data of `ingest`, without a useful order) and writes its rows, in turns with a peer (see `turns`):

- an `index_parallel` task of Penstock that reads the same file, from its submission to its end;
- Spark's own Parquet writer, which neither sorts the rows nor divides them by time;
- Delta's writer of the package `deltalake`, from the same file, on its own threads; it is left out
  if the package is not installed.

All jobs of Spark run on Penstock's Spark. The write ends when its rows are published.
``--rows N`` sets how many rows, ``--rounds N`` how often.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.ingest import DOUBLES, LONGS, TEXTS, flights, schema
from benchmarks.table import Row, print_rows
from benchmarks.turns import ROUNDS, in_turns
from penstock.core.clock import SystemClock
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.server_process import ServerProcess
from penstock.spark import register
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS: Final = 1_000_000
AIM: Final = ">= 0.8"
PATIENCE_S: Final = 300.0
ASK_EVERY_S: Final = 0.1
_INDEXER: Final = "/druid/indexer/v1"
_SOURCE: Final = "rows.parquet"


class SinkBench:
    """A running Penstock, and a Spark session of its own on its Spark."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder = folder
        self._rows = rows
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
        self._sessions = SparkSessions(SparkSessionOptions(given["spark_connect"]))
        self._opened.callback(self._sessions.close)

    def end(self) -> None:
        """Let go of it, the last first, and stop it."""
        self._opened.close()

    def write(self) -> float:
        """Write the rows into a new datasource, and return the seconds until they are published."""
        name = self._name()
        with self._sessions.use() as spark:
            register(spark)
            began_s = time.perf_counter()
            rows = spark.read.parquet(str(self.folder / _SOURCE))
            rows.write.format("penstock").options(
                url=self._server.http, datasource=name, segmentGranularity="month"
            ).mode("append").save()
            took_s = time.perf_counter() - began_s
        self._check(name)
        return took_s

    def task(self) -> float:
        """Have a task read the file, and return the seconds until it has published."""
        name = self._name()
        asked = schema().model_dump(mode="json", by_alias=True)
        asked |= {"dataSource": name, "timestampSpec": {"column": "__time", "format": "auto"}}
        io = {
            "type": "index_parallel",
            "inputSource": {"type": "local", "files": [str(self.folder / _SOURCE)]},
            "inputFormat": {"type": "parquet"},
        }
        began_s = time.perf_counter()
        body = {"type": "index_parallel", "spec": {"dataSchema": asked, "ioConfig": io}}
        answer = self._api.post(f"{_INDEXER}/task", json=body).raise_for_status()
        path = f"{_INDEXER}/task/{answer.json()['task']}/status"
        self._until(lambda: self._api.get(path).json()["status"]["status"] != "RUNNING")
        took_s = time.perf_counter() - began_s
        self._check(name)
        return took_s

    def parquet(self) -> float:
        """Write the rows with Spark's own writer, and return the seconds."""
        out = self.folder / "plain"
        with self._sessions.use() as spark:
            began_s = time.perf_counter()
            rows = spark.read.parquet(str(self.folder / _SOURCE))
            rows.write.option("compression", "zstd").parquet(str(out))
            took_s = time.perf_counter() - began_s
        assert sum(pq.read_metadata(one).num_rows for one in out.rglob("*.parquet")) == self._rows
        shutil.rmtree(out)
        return took_s

    def delta(self, write: Callable[..., object]) -> float:
        """Write the rows as a Delta table, and return the seconds."""
        out = self.folder / "delta"
        began_s = time.perf_counter()
        write(str(out), pq.read_table(self.folder / _SOURCE))
        took_s = time.perf_counter() - began_s
        shutil.rmtree(out)
        return took_s

    def _name(self) -> str:
        self._names += 1
        return f"written{self._names}"

    def _check(self, name: str) -> None:
        found = self._api.get(f"/druid/coordinator/v1/metadata/datasources/{name}/segments?full")
        segments: list[dict[str, Any]] = found.raise_for_status().json()
        assert sum(one["totalRows"] for one in segments) == self._rows, name

    def _until(self, is_so: Callable[[], bool]) -> None:
        deadline_s = self._clock.monotonic_s() + PATIENCE_S
        while not is_so():
            if self._clock.monotonic_s() > deadline_s:
                raise SystemExit(f"not done within {PATIENCE_S:.0f} s; see {self._data.log}")
            with self._pause:
                self._clock.wait(self._pause, ASK_EVERY_S)


def departures(rows: int) -> pa.Table:
    """Return the rows with the types of the datasource."""
    lines = b"\n".join(flights(rows))
    columns = dict.fromkeys(["time_hour", *TEXTS], pa.string())
    columns |= dict.fromkeys(LONGS, pa.int64()) | dict.fromkeys(DOUBLES, pa.float64())
    reader = importlib.import_module("pyarrow.json")
    text = pa.schema(columns)
    options = reader.ParseOptions(explicit_schema=text, unexpected_field_behavior="ignore")
    table = reader.read_json(io.BytesIO(lines), parse_options=options)
    times = table.column("time_hour").cast(pa.timestamp("us", tz="UTC"))
    return table.set_column(0, "__time", times)


def run(rows: int = ROWS, rounds: int = ROUNDS) -> list[Row]:
    """Run Penstock, measure, stop it."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        pq.write_table(departures(rows), folder / _SOURCE, row_group_size=128 << 10)
        bench = SinkBench(folder, rows)
        try:
            bench.begin()
            peers = [("a task", bench.task, AIM), ("Spark's Parquet writer", bench.parquet, "")]
            try:
                write = importlib.import_module("deltalake").write_deltalake
                peers.append(("Delta's writer", lambda: bench.delta(write), ""))
            except ImportError:
                print("  Delta is left out: pip install deltalake", file=sys.stderr)
            return [
                in_turns(
                    f"Spark into a datasource, beside {peer}",
                    *(rows, bench.write, other),
                    rounds=rounds,
                    aim=aim,
                    peer=peer,
                )
                for peer, other, aim in peers
            ]
        finally:
            bench.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    print_rows(run(given.rows, given.rounds))
