"""Spark dies in the middle of a batch task: the next attempt is right, and orphans are found."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest
from batchkit import external, local, request, rows_of
from held_file import HeldFile, held_file
from pydantic import JsonValue
from sparkserver import start_server

from penstock.indexing.batch.engine import BatchRequest, CombinedInput
from penstock.indexing.engine import EngineUnavailable
from penstock.segments.deep_storage import DeepStore
from penstock.spark.batch.engine import SparkBatchEngine
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.connect.server import SparkServer
from penstock.spark.connect.session import SparkSessionOptions, SparkSessions

# Spark is started twice and cold twice: forty seconds alone, minutes on a machine that is busy.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

WAIT_S = 240
LATER_MS = 2**52
PARTS: dict[str, JsonValue] = {
    "dimensionsSpec": {"dimensions": ["name", {"type": "long", "name": "size"}]}
}


def lines(count: int) -> bytes:
    rows = ({"at": f"2013-0{i % 3 + 1}-05", "name": f"n{i % 5}", "size": i} for i in range(count))
    return b"\n".join(map(orjson.dumps, rows)) + b"\n"


def orphans(store: DeepStore, known: list[str]) -> list[str]:
    specs = [store.load_spec_of(uri) for uri in known]
    return sorted(map(store.location, store.list_orphans(specs, modified_before_ms=LATER_MS)))


@pytest.fixture
def file() -> Iterator[HeldFile]:
    with held_file(lines(500)) as made:
        yield made


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SparkServer]:
    """A Spark that may be killed."""
    server = start_server(tmp_path / "server")
    yield server
    server.stop(0.2)


@pytest.fixture
def engines(server: SparkServer) -> Iterator[Callable[[], SparkBatchEngine]]:
    """Make engines, each with a Spark session of its own."""
    options = SparkBatchOptions(split_bytes_min=4_000, parallelism=2)
    made: list[SparkBatchEngine] = []

    def make() -> SparkBatchEngine:
        sessions = SparkSessions(SparkSessionOptions(server.remote))
        made.append(SparkBatchEngine(sessions, options))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def test_a_killed_spark_costs_an_attempt_and_leaves_orphans_alone(
    tmp_path: Path,
    server: SparkServer,
    engines: Callable[[], SparkBatchEngine],
    file: HeldFile,
) -> None:
    batch, idle = engines(), engines()
    idle._sessions.reach()  # as a warm process does, and then waits for its task
    store = DeepStore(str(tmp_path / "deep"))
    (tmp_path / "a.json").write_bytes(lines(1_000))
    last = file.url("b.json")
    both = CombinedInput((local(tmp_path / "a.json"), external({"type": "fsspec", "uris": [last]})))

    def attempt(name: str) -> BatchRequest:
        return request(store.attempt_folder("things", "task", name), both, PARTS)

    outcome: list[BaseException] = []

    def run() -> None:
        try:
            batch.write(attempt("first"))
        except EngineUnavailable as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert file.asked.wait(WAIT_S)  # a worker is at the last file
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    thread.join(WAIT_S)
    file.may_go_on.set()
    assert len(outcome) == 1
    remote = server.remote
    server.start()
    assert server.wait_ready(WAIT_S) == remote
    # It has asked nothing meanwhile, and learns only now that its session is lost.
    result = idle.write(attempt("second"))
    assert result.counts.processed == len(rows_of(result)) == 1_500
    known = [file.data.path for file in result.files]
    left = {str(path) for path in (tmp_path / "deep").rglob("*") if path.is_file()}
    assert left - set(known) == set(orphans(store, known))
    assert batch.write(attempt("third")).counts == result.counts
