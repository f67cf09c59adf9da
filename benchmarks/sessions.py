"""How long a new Spark session takes to its first row of Python, and what it holds of the memory.

As tasks and queries make them, against sessions as Spark's own client makes them: each of those has
a Python daemon and workers of its own. One server, warm, both kinds in turn.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.ingest import served_spark
from benchmarks.table import Row, against, print_rows
from penstock.services.demo.demo_run import processes_of
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

    MakeSession = Callable[[str], contextlib.AbstractContextManager[SparkSession]]

SESSIONS = 6
ROWS = 1_000


def run() -> list[Row]:
    """Measure and return the rows."""
    # A plain session's Python daemon runs in a folder of its own, in which it would not find the
    # Unix sockets of Penstock's sessions.
    conf = {"spark.python.unix.domain.socket.enabled": "false"}
    with served_spark(conf) as (_, server, remote):
        pid = server.pid
        assert pid is not None
        for make in (own, plain):  # the JVM's classes
            with make(remote) as session:
                session.range(ROWS).toArrow()
        peers, peer_mb = measure(plain, remote, pid)
        ours, our_mb = measure(own, remote, pid)
    name = "workers of its own"
    return [
        against("a new session's first rows of Python", ours * 1000, "ms", name, peers * 1000),
        against("Python workers of six sessions", our_mb, "MB", name, peer_mb),
    ]


@contextlib.contextmanager
def own(remote: str) -> Iterator[SparkSession]:
    """A session as tasks and queries make it."""
    sessions = SparkSessions(SparkSessionOptions(remote))
    with sessions.use() as session:
        yield session
    sessions.close()


@contextlib.contextmanager
def plain(remote: str) -> Iterator[SparkSession]:
    """A session as PySpark makes it."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - behind the light client's own import

    session = SparkSession.builder.remote(remote).create()
    yield session
    session.stop()


def measure(make: MakeSession, remote: str, server: int) -> tuple[float, float]:
    """Return the median seconds to the first rows, and what Python takes below Spark, in MB."""
    before_mb = python_mb(server)
    times = []
    for _ in range(SESSIONS):
        started = time.perf_counter()
        with make(remote) as session:
            first_rows(session)
            times.append(time.perf_counter() - started)
    return statistics.median(times), python_mb(server) - before_mb


def first_rows(session: SparkSession) -> None:
    """Have Python workers pass rows on."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    session.range(ROWS).mapInArrow(work, "id long").toArrow()


def python_mb(server: int) -> float:
    """Return the memory of the daemons and workers below a server, what they share counted once."""
    found = 0
    for process in processes_of(server):
        if process.name == "spark's python":
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
                found += int(text.partition("\nPss:")[2].split()[0])
    return found / 1024


if __name__ == "__main__":
    print_rows(run())
