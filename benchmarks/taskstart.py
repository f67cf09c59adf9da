"""How long a task takes to start: from the assignment until it answers, against a cold start.

A real worker with a Spark Connect server. Three times are taken from outside, as an overlord sees
them: until the worker says RUNNING with a place, until the peon shows its first status there, and
from the end of its work until that is known. Warm is a task that takes a spare; forked, one whose
worker gave its spare to another task a moment before; cold, one of a worker without spares.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.ingest import served_spark
from benchmarks.table import Row, against, print_rows
from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError
from penstock.indexing.ports import HistoryPlace
from penstock.indexing.task_spec import parse_task
from penstock.services.api.process_clients import HttpWorkerClient, chat_path
from penstock.services.json_client import JsonClient
from penstock.services.membership.leases import LeaseDirectory
from penstock.storage.metadata import MetadataStore

if TYPE_CHECKING:
    from penstock.indexing.ports import TaskLocation
    from penstock.indexing.task_spec import TaskSpec

TASKS = 6
RUN_MS = 500
# A worker's first spare is there once the fork server has imported everything; the next ones, which
# connect to Spark, soon after one was taken.
WARM_S = 8.0
REFILL_S = 2.0
START_S = 60.0
AIM_S = 1.0


def run() -> list[Row]:
    """Measure and return the rows."""
    with served_spark() as (folder, _, remote):
        cold = measure(folder / "cold", remote, spares=0)
        warm = measure(folder / "warm", remote, spares=1)
        forked = measure(folder / "forked", remote, spares=1, ahead=True)
    names = ("a task answers", "its first status", "its end is known")
    rows = [
        against(f"{name}, warm", ours * 1000, "ms", "cold", peer * 1000)
        for name, ours, peer in zip(names, warm, cold, strict=True)
    ]
    rows += [
        against(f"{name}, forked", ours * 1000, "ms", "cold", peer * 1000)
        for name, ours, peer in zip(names, forked, cold, strict=True)
    ]
    return [*rows, against("a task answers, in a warm slot", warm[0], "s", "aim", AIM_S, "< 1")]


def measure(folder: Path, remote: str, *, spares: int, ahead: bool = False) -> tuple[float, ...]:
    """Return the medians of the three times, in seconds.

    Args:
        folder: For the worker's files.
        remote: Where Spark answers.
        spares: How many spares the worker has.
        ahead: Whether another task begins just before each that is measured.
    """
    folder.mkdir(parents=True)
    options = ["--data-dir", str(folder / "data"), "--http", "127.0.0.1:0"]
    options += ["--spark-connect", remote, "--worker-spares", str(spares)]
    with (folder / "out").open("wb") as output:
        worker = subprocess.Popen(
            [sys.executable, "-m", "penstock", "server", "worker", *options],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        client = find(folder / "data")
        times = []
        time.sleep(WARM_S if spares else 0.0)
        for number in range(TASKS):
            time.sleep(REFILL_S if spares else 0.5)
            if ahead:
                client.assign(noop(f"ahead{number}"))
            times.append(start_one(client, f"t{number}"))
        return tuple(statistics.median(column) for column in zip(*times, strict=True))
    finally:
        worker.terminate()
        worker.wait()


def find(data: Path) -> HttpWorkerClient:
    """Wait for the worker."""
    until_s = time.monotonic() + START_S
    while not (data / "metadata.db").exists():
        time.sleep(0.1)
    store = MetadataStore.open(f"sqlite:///{data / 'metadata.db'}", clock=SystemClock())
    while True:
        try:
            client = HttpWorkerClient("w", LeaseDirectory(store.leases).find("worker"))
            client.report()
        except PenstockError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.1)
        else:
            store.close()
            return client


def start_one(client: HttpWorkerClient, task_id: str) -> tuple[float, float, float]:
    """Return when a task answered, showed its status, and was known to have ended."""
    place = client.changes(HistoryPlace(), 0).place
    begin = time.perf_counter()
    client.assign(noop(task_id))
    answers = status = 0.0
    while True:
        told = client.changes(place, 10_000)
        place = told.place
        for task in told.tasks:
            if task.id != task_id:
                continue
            if task.location is not None and not answers:
                answers = time.perf_counter() - begin
                status = first_status(task.location, task_id, begin)
            if task.state.complete:
                ended = time.perf_counter() - begin
                return answers, status, ended - answers - RUN_MS / 1000


def noop(task_id: str) -> TaskSpec:
    """Return a task that only sleeps."""
    return parse_task({"type": "noop", "id": task_id, "runTime": RUN_MS})


def first_status(location: TaskLocation, task_id: str, begin: float) -> float:
    """Ask the peon for its report."""
    peon = JsonClient(f"http://{location.host}:{location.port}")
    peon.get(chat_path(task_id, "liveReports"))
    return time.perf_counter() - begin


if __name__ == "__main__":
    print_rows(run())
