"""Spark ends in the midst of work: the next attempts are right, and a batch's orphans are found.

The tests share a Spark of their own, which each of them ends and starts again.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.connect.shell.progress import StageInfo

from penstock.core.clock import SystemClock
from penstock.indexing.batch.batch_engine import BatchRequest, CombinedInput
from penstock.indexing.engine import EngineUnavailable
from penstock.segments.deep_storage import DeepStore
from penstock.spark.batch.input import file_finder
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.batch.spark_batch_engine import SparkBatchEngine
from penstock.spark.connect.running_calls import RunningCall
from penstock.spark.connect.spark_server import SparkServer, SparkServerOptions
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.connect.unstoppable_work import stuck_reason
from penstock.spark.spark_engine import SparkEngine
from tests.client.held_file_kit import HeldFile, held_file
from tests.kits.spark_server_kit import server_options
from tests.spark.conftest import MakeTopic
from tests.spark.spark_batch_kit import PARTS, external, lines, local, orphans, request, rows_of
from tests.spark.test_spark_lost import Gate, check, in_background, messages
from tests.spark.test_spark_lost import request as persist_request

# Spark is started three times and used cold twice: minutes on a machine that is busy.
pytestmark = pytest.mark.spark

WAIT_S = 240
UNSTOPPABLE = (
    "SELECT count(*), sum(hash(a.id, b.id, c.id))"
    " FROM range(100000) a, range(100000) b, range(100000) c"
)


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldFile]:
    """A file that a worker waits for. Users may not name its scheme; workers can open it."""
    monkeypatch.setattr(file_finder, "check_readable", lambda *_: None)
    with held_file(lines(500)) as made:
        yield made


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> SparkServerOptions:
    return replace(server_options(tmp_path_factory.mktemp("killed")), master="local[4]")


@pytest.fixture(scope="module")
def server(options: SparkServerOptions) -> Iterator[SparkServer]:
    """A Spark that may be killed, and soon reports ended work that does not end."""
    soon = {"spark.task.reaper.pollingInterval": "100ms", "spark.task.reaper.killTimeout": "1s"}
    server = SparkServer(replace(options, conf=soon), SystemClock(), os.environ)
    server.start()
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
    make_topic: MakeTopic,
    server: SparkServer,
    engines: Callable[[], SparkBatchEngine],
    file: HeldFile,
) -> None:
    """A stream's task and a batch task are in the midst of their work."""
    server.wait_ready(WAIT_S)
    stream = SparkEngine(SparkSessions(SparkSessionOptions(server.remote)))
    batch, idle = engines(), engines()
    idle._sessions.reach()  # as a warm process does, and then waits for its task
    store = DeepStore(str(tmp_path / "deep"))
    (tmp_path / "a.json").write_bytes(lines(1_000))
    last = file.url("b.json")
    both = CombinedInput((local(tmp_path / "a.json"), external({"type": "fsspec", "uris": [last]})))
    ranges = make_topic(messages())
    gate = Gate(ranges)

    def attempt(name: str) -> BatchRequest:
        return request(store.attempt_folder("things", "task", name), both, PARTS)

    with (
        ThreadPoolExecutor(1) as pool,
        in_background(stream, persist_request(tmp_path / "first", ranges)) as outcome,
    ):
        ended = pool.submit(batch.write, attempt("first"))
        assert file.asked.wait(WAIT_S)  # a worker is at the last file
        writer = gate.await_reader()
        gate.put_back()
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        assert isinstance(ended.exception(WAIT_S), EngineUnavailable)
    os.close(writer)
    file.may_go_on.set()
    assert isinstance(outcome[0], EngineUnavailable)
    with pytest.raises(EngineUnavailable, match="nothing answers at sc://localhost:"):
        stream.persist(persist_request(tmp_path / "second", ranges))
    remote = server.remote
    server.start()
    assert server.wait_ready(WAIT_S) == remote
    check(stream.persist(persist_request(tmp_path / "third", ranges)))
    assert not list((tmp_path / "first").rglob("*.parquet"))
    stream.close()
    # It has asked nothing meanwhile, and learns only now that its session is lost.
    result = idle.write(attempt("second"))
    assert result.counts.processed == len(rows_of(result)) == 1_500
    known = [file.data.path for file in result.files]
    left = {str(path) for path in (tmp_path / "deep").rglob("*") if path.is_file()}
    assert left - set(known) == set(orphans(store, known))
    assert batch.write(attempt("third")).counts == result.counts


def test_ended_work_that_does_not_end_is_told(
    options: SparkServerOptions, server: SparkServer
) -> None:
    """Spark cannot stop a join that makes very many rows of a few."""
    server.wait_ready(WAIT_S)
    assert stuck_reason(options.run_folder) == ""
    sessions = SparkSessions(SparkSessionOptions(server.remote))
    clock, pause = SystemClock(), threading.Condition()
    running, joining = RunningCall(), threading.Semaphore(0)

    def progress(*, stages: Iterable[StageInfo], inflight_tasks: int, **_: object) -> None:
        # Spark can still stop the stage of the rows to join, and a task that has just begun.
        if inflight_tasks and any(stage.done for stage in stages):
            joining.release()

    with ThreadPoolExecutor(1) as pool, sessions.use() as spark:
        spark.registerProgressHandler(progress)

        def run() -> None:
            with running.tagged(spark):
                spark.sql(UNSTOPPABLE).toArrow()

        ended = pool.submit(run)
        for _ in range(3):
            assert joining.acquire(timeout=WAIT_S)
        running.stop("it was cancelled")
        assert ended.exception(WAIT_S) is not None
        running.end()
    until_s = clock.monotonic_s() + WAIT_S
    while not stuck_reason(options.run_folder) and clock.monotonic_s() < until_s:
        with pause:
            clock.wait(pause, 0.1)
    assert "did not stop within" in stuck_reason(options.run_folder)
    server.start()  # in place of the one that is stuck
    assert stuck_reason(options.run_folder) == ""
