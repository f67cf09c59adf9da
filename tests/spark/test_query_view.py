"""The JVM of queries in its view, as `penstock up` starts it: a query exceeds its memory."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.indexing.engine import EngineUnavailable
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.host_plan import HostPlan
from penstock.services.host.process import spawn
from penstock.services.host.query_limits import excess_reason
from penstock.services.options.option_values import HostPort, java_options
from penstock.services.options.table import PenstockOptions
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.sql.service import SqlOptions, SqlQuery, SqlService
from tests.spark.table_kit import GivenTables

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

WAIT_S = 240.0
# Enough for a JVM without work, and less than its heap.
LIMIT_BYTES = 1_200 << 20
HEAP = "4g"
HOG = "SELECT size(collect_list(concat('text ', id))) FROM range(0, 40000000, 1, 2)"


class Queries:
    """The JVM of queries of a host whose other processes are not started."""

    def __init__(self, folder: Path) -> None:
        loopback, clock = HostPort("127.0.0.1", 0), SystemClock()
        options = PenstockOptions(
            data_dir=folder,
            query_memory=HEAP,
            spark_master="local[2]",
            spark_java_options=java_options(os.environ["PENSTOCK_SPARK_JAVA_OPTIONS"]),
            http=loopback,
            broker_http=loopback,
            broker_tcp=loopback,
        )
        self.folder = DataFolder(folder)
        for path in (self.folder.run, self.folder.log, self.folder.tmp, self.folder.tasks):
            path.mkdir(parents=True, exist_ok=True)
        self._plan = HostPlan(options, self.folder, os.environ, clock)
        self._plan.open()
        isolation = self._plan.isolation
        assert isolation is not None
        self.text = isolation.text
        if isolation.plan is not None:
            limited = replace(isolation.plan, memory_bytes=LIMIT_BYTES)
            self._plan.isolation = replace(isolation, plan=limited)
        self._child = next(one for one in self._plan.children() if one.name == "queries")
        self.process: subprocess.Popen[bytes] | None = None
        self._sessions = SparkSessions(SparkSessionOptions(self._plan.options.query_connect or ""))
        bounds = SqlOptions(limit_reason=partial(excess_reason, self.folder, clock))
        self._sql = SqlService(self._sessions, GivenTables(), clock, bounds)

    def start(self) -> None:
        output = self.folder.log / "queries.out"
        self.process = spawn(self._child.command(-1), output)

    def rows(self, sql: str) -> list[dict[str, object]]:
        found: list[dict[str, object]] = self._sql.query(SqlQuery(sql)).table.to_pylist()
        return found

    def rows_once_ready(self, sql: str) -> list[dict[str, object]]:
        until_s = time.monotonic() + WAIT_S
        while True:
            try:
                return self.rows(sql)
            except EngineUnavailable:
                assert time.monotonic() < until_s
                time.sleep(0.1)

    def close(self) -> None:
        self._sql.close()
        self._sessions.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait(WAIT_S)
        self._plan.close()


@pytest.fixture
def queries(tmp_path: Path) -> Iterator[Queries]:
    made = Queries(tmp_path)
    try:
        if "queries run isolated" not in made.text:
            pytest.skip(made.text)
        made.start()
        yield made
    finally:
        made.close()


def test_a_query_that_exceeds_the_memory_fails_with_the_reason_and_later_ones_succeed(
    queries: Queries,
) -> None:
    assert queries.rows_once_ready("SELECT 1 AS one") == [{"one": 1}]
    process = queries.process
    assert process is not None
    with pytest.raises(EngineUnavailable) as failed:
        queries.rows(HOG)
    reason = "queries together used more than their 1.2 GiB of this host's memory"
    assert f"{reason}: select less at once" in str(failed.value)
    assert process.wait(WAIT_S) == -signal.SIGKILL
    assert reason in (queries.folder.log / "queries.out").read_text()
    queries.start()
    assert queries.rows_once_ready("SELECT 2 AS two") == [{"two": 2}]
