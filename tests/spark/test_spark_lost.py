"""Spark dies: the same request, made again, gives the same result, and nothing half done shows."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import pyarrow.parquet as pq
import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest, Unavailable
from penstock.indexing.engine import (
    EngineUnavailable,
    PersistRequest,
    PersistResult,
    RowCounts,
    TopicRange,
)
from penstock.indexing.specs import parse_data_schema
from penstock.services.host.liveness import greet
from penstock.spark.connect.java import VECTOR_MODULE
from penstock.spark.connect.spark_server import SparkServer
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.pipeline import ENGINE_CONF
from penstock.spark.spark_engine import SparkEngine
from tests.kits.spark_server_kit import server_options
from tests.spark.conftest import MakeTopic

# Some start a Spark of their own: half a minute alone, minutes on a machine that is busy.

WAIT_S = 240


class Gate:
    """Stands in for a log file, so that a worker waits when it opens it."""

    def __init__(self, ranges: tuple[TopicRange, ...]) -> None:
        [self._file] = Path(ranges[1].folder).glob("*.log")
        self._aside = self._file.with_suffix(".aside")
        self._file.rename(self._aside)
        os.mkfifo(self._file)

    def await_reader(self) -> int:
        """Return when a worker has come to the file; it is let in then."""
        # Opening for writing waits for a reader, and lets it in; there is nothing to read yet.
        return os.open(self._file, os.O_WRONLY)

    def put_back(self) -> None:
        """Let those who come later find the file as it was."""
        self._aside.rename(self._file)


def request(folder: Path, ranges: tuple[TopicRange, ...]) -> PersistRequest:
    schema = parse_data_schema(
        {
            "dataSource": "things",
            "timestampSpec": {"column": "at"},
            "dimensionsSpec": {"dimensions": [{"type": "long", "name": "n"}]},
            "granularitySpec": {"segmentGranularity": "day", "rollup": False},
        }
    )
    return PersistRequest(
        "task", "things", ranges, schema, str(folder / "out"), str(folder / "bad")
    )


def messages() -> list[bytes]:
    return [orjson.dumps({"at": "2013-01-01", "n": n}) for n in range(40)] + [b"bad"]


def check(result: PersistResult) -> None:
    assert result.counts == RowCounts(
        processed=40, unparseable=1, read_bytes=sum(len(one) for one in messages())
    )
    assert len(result.bad_files) == 1
    numbers = [n for file in result.files for n in pq.read_table(file.path)["n"].to_pylist()]
    assert sorted(numbers) == list(range(40))


@contextlib.contextmanager
def in_background(engine: SparkEngine, wanted: PersistRequest) -> Iterator[list[object]]:
    """Run a request on another thread; the list gets its result or its error."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(engine.persist(wanted))
        except EngineUnavailable as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield outcome
    finally:
        thread.join(WAIT_S)
        assert not thread.is_alive()


@pytest.mark.spark
def test_a_killed_python_worker_costs_nothing(
    engine: SparkEngine, spark_server: SparkServer, make_topic: MakeTopic, tmp_path: Path
) -> None:
    ranges = make_topic(messages())
    gate = Gate(ranges)
    with in_background(engine, request(tmp_path, ranges)) as outcome:
        writer = gate.await_reader()
        gate.put_back()
        assert spark_server.pid is not None
        for worker in grandchildren(spark_server.pid):
            with contextlib.suppress(ProcessLookupError):  # an idle one may end by itself
                os.kill(worker, signal.SIGKILL)
        os.close(writer)
    assert isinstance(outcome[0], PersistResult)
    check(outcome[0])


def grandchildren(pid: int) -> list[int]:
    """Return the workers that Spark's Python daemon has forked."""
    return [worker for daemon in children(pid) for worker in children(daemon)]


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == pid:
                found.append(int(entry.name))
    return found


def fake_java(folder: Path, script: str) -> dict[str, str]:
    """Return an environment whose Java is a script."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    (folder / "release").write_text(f'JAVA_VERSION="21"\nMODULES="{VECTOR_MODULE}"\n')
    return {"PATH": os.environ["PATH"], "JAVA_HOME": str(folder)}


def test_a_jvm_that_ends_at_start_tells_why(tmp_path: Path) -> None:
    environment = fake_java(tmp_path / "java", "echo no room for the heap >&2; exit 3")
    server = SparkServer(server_options(tmp_path), SystemClock(), environment)
    server.start()
    with pytest.raises(Unavailable, match=r"ended with code 3 at start:\nno room for the heap"):
        server.wait_ready(WAIT_S)
    server.stop()


def test_a_jvm_that_does_not_listen_in_time(tmp_path: Path) -> None:
    environment = fake_java(tmp_path / "java", "exec sleep 1000")
    server = SparkServer(server_options(tmp_path), SystemClock(), environment)
    server.start()
    with pytest.raises(Unavailable, match="did not answer within 0 s"):
        server.wait_ready(0.01)
    server.stop()
    assert server.poll() is not None


@pytest.mark.skipif(not Path("/usr/bin/setpriv").exists(), reason="needs setpriv of util-linux")
def test_the_jvm_dies_with_its_parent(tmp_path: Path) -> None:
    environment = fake_java(tmp_path / "java", "exec sleep 1000")
    script = f"""
import os, sys
from pathlib import Path
from penstock.core.clock import SystemClock
from penstock.spark.connect.spark_server import SparkServer, SparkServerOptions
folders = [Path({str(tmp_path)!r}) / name for name in ("run", "log", "tmp", "cache")]
server = SparkServer(SparkServerOptions(*folders), SystemClock(), {environment!r})
server.start()
print(server.pid, flush=True)
sys.stdin.read()
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        java = os.pidfd_open(pid)
        # Between its fork and what setpriv asks of the kernel a child outlives its parent; the next
        # start kills such a leftover.
        clock, pause = SystemClock(), threading.Condition()
        with pause:
            while Path(f"/proc/{pid}/comm").read_text().strip() != "sleep":
                clock.wait(pause, 0.05)
        parent.kill()
        poll = select.poll()
        poll.register(java, select.POLLIN)
        assert poll.poll(WAIT_S * 1000)
        os.close(java)


def test_nothing_listens(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"sc://localhost:{taken.getsockname()[1]}/;token=secret"
        with pytest.raises(EngineUnavailable, match="nothing answers") as refusal:
            SparkSessions(SparkSessionOptions(address)).get()
    assert "secret" not in str(refusal.value)


def test_an_address_must_be_given() -> None:
    with pytest.raises(InvalidRequest, match="sc://host:port"):
        SparkSessionOptions("")


def test_one_warm_session_serves_streams_and_batches() -> None:
    sessions = SparkSessions(SparkSessionOptions("sc://localhost:1", conf=ENGINE_CONF))
    assert sessions.with_conf(ENGINE_CONF) is sessions
    assert sessions.with_conf({"spark.sql.ansi.enabled": "true"}) is not sessions


def heard(port: int, wait_s: float) -> bool | None:
    greeting = greet(port)
    assert greeting is not None
    select.select([greeting._socket], [], [], wait_s)
    answered = greeting.answered()
    greeting.close()
    return answered


def test_a_jvm_gives_a_sign_of_life_unless_it_hangs(spark_server: SparkServer) -> None:
    port = urlsplit(spark_server.remote).port
    assert port is not None
    assert heard(port, WAIT_S) is True
    pid = spark_server.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        os.waitpid(pid, os.WUNTRACED)  # returns when the last of its threads has stopped
        assert heard(port, 0.3) is None
    finally:
        os.kill(pid, signal.SIGCONT)
    assert heard(port, WAIT_S) is True
