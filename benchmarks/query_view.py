"""Cost of the view of queries, and of the process that forwards connections into it.

Two JVMs of queries run as `penstock up` starts them: one in its view, where this host allows it,
and one without. Three clients, each a process of its own, run the same queries in turns: over the
forwarded port of the first JVM, in the network of its view and so without the forwarder, and at the
second JVM. The first two show the cost of the forwarder, and the last two that of the view, with
the differences of two JVMs. Medians are of the rounds.

Penstock passes answers of up to 2,000 rows over the connection, and larger ones in files. The
stream of a million rows is more than a query passes.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks.processes import cpu_s
from benchmarks.table import Row, print_rows
from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.host_plan import HostPlan
from penstock.services.host.process import spawn
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import PenstockOptions
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.sql.service import SqlQuery, SqlService
from penstock.spark.tables import Feeder, Tables

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

    from penstock.indexing.specs.rows.declared_projections import DeclaredProjections

ROUNDS: Final = int(os.environ.get("PENSTOCK_BENCH_ROUNDS", "9"))
WARM_UP_ROUNDS: Final = 3
READY_S: Final = 120.0
ONE_ROW: Final = "SELECT count(*) AS n, sum(id) AS total FROM range(0, 1000, 1, 2)"
TEXT: Final = "repeat(concat('row ', id, ' '), {times}) AS text"
PAGE: Final = f"SELECT id, {TEXT} FROM range(0, {{rows}}, 1, 2)"
AIM: Final = "<= 1.03"


class _NoTables:
    """A source of tables that has none: the queries here make their rows themselves."""

    def revision(self) -> int:
        return 1

    def tables(self) -> Tables:
        return Tables(1, {})

    def feeders(self, datasource: str) -> Sequence[Feeder]:
        del datasource
        return ()

    def is_dropped(self, datasource: str) -> bool:
        del datasource
        return False

    def projections(self, datasource: str) -> Sequence[DeclaredProjections]:
        del datasource
        return ()


class _Queries:
    """A JVM of queries."""

    def __init__(self, folder: Path, *, is_isolated: bool) -> None:
        self._stack = ExitStack()
        port = HostPort("127.0.0.1", 0)
        options = PenstockOptions(
            data_dir=folder, query_memory="1g", http=port, broker_http=port, broker_tcp=port
        )
        data = DataFolder(folder)
        for path in (data.run, data.log, data.tmp, data.tasks):
            path.mkdir(parents=True, exist_ok=True)
        plan = HostPlan(options, data, os.environ, SystemClock())
        plan.open()
        self._stack.callback(plan.close)
        assert plan.isolation is not None
        if is_isolated and plan.isolation.plan is None:
            raise SystemExit(plan.isolation.text)
        if is_isolated:
            print(f"  {plan.isolation.text}", file=sys.stderr, flush=True)
        else:
            plan.isolation = replace(plan.isolation, plan=None)
        child = next(one for one in plan.children() if one.name == "queries")
        self.process = spawn(child.command(-1), data.log / "queries.out")
        self._stack.callback(self._end)
        assert plan.options.query_connect is not None
        self.address = plan.options.query_connect

    def close(self) -> None:
        """End the JVM."""
        self._stack.close()

    def _end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class _Client:
    """A process that runs queries on request, maybe in the network of another process."""

    def __init__(self, queries: _Queries, *, is_inside: bool) -> None:
        self._here, there = multiprocessing.Pipe()
        inside = queries.process.pid if is_inside else None
        self._process = multiprocessing.get_context("spawn").Process(
            target=_answer_requests, args=(there, queries.address, inside), daemon=True
        )
        self._process.start()
        assert self._here.recv() == "ready"

    def ms(self, sql: str, count: int, *, is_stream: bool) -> float:
        """Return the milliseconds of one of some equal queries, one after the other."""
        self._here.send((sql, count, is_stream))
        took: float = self._here.recv()
        return took

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join()


def _answer_requests(requests: Connection, address: str, inside: int | None) -> None:
    """Run queries until the process is ended."""
    if inside is not None:
        _enter_network(inside)
    sessions = SparkSessions(SparkSessionOptions(address))
    service = SqlService(sessions, _NoTables(), SystemClock())
    until_s = time.monotonic() + READY_S
    while True:
        try:
            service.query(SqlQuery(ONE_ROW))
            break
        except PenstockError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.1)
    requests.send("ready")
    while True:
        sql, count, is_stream = requests.recv()
        began_s = time.perf_counter()
        for _ in range(count):
            if is_stream:
                with sessions.use() as session:
                    assert session.sql(sql).toArrow().num_rows
            else:
                assert service.query(SqlQuery(sql)).table.num_rows
        requests.send((time.perf_counter() - began_s) / count * 1000)


def _enter_network(pid: int) -> None:
    """Move this process into the network of another one; it has one thread yet."""
    libc = ctypes.CDLL(None, use_errno=True)
    for kind in ("net",) if not os.geteuid() else ("user", "net"):
        with Path(f"/proc/{pid}/ns/{kind}").open() as file:
            if libc.setns(file.fileno(), 0):
                raise SystemExit(f"namespace {kind}: {os.strerror(ctypes.get_errno())}")


def run() -> list[Row]:
    """Measure."""
    rows = []
    with ExitStack() as stack:
        sides = []
        for is_isolated in (True, False):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-")))
            made = _Queries(folder, is_isolated=is_isolated)
            stack.callback(made.close)
            sides.append(made)
        view, plain = sides
        clients = {}
        for name, queries, is_inside in (
            ("plain", plain, False),
            ("forwarded", view, False),
            ("inside", view, True),
        ):
            clients[name] = _Client(queries, is_inside=is_inside)
            stack.callback(clients[name].close)
        for name, sql, count in (
            ("query of one row", ONE_ROW, 10),
            ("query of 2,000 rows, 18 MB", PAGE.format(times=1_000, rows=2_000), 2),
            ("stream of 1,000,000 rows, 120 MB", PAGE.format(times=10, rows=1_000_000), 1),
        ):
            before_s = cpu_s(view.process.pid)
            rows += _in_turns(name, clients, sql, count)
            rounds = ROUNDS + WARM_UP_ROUNDS
            used_ms = (cpu_s(view.process.pid) - before_s) / rounds / count * 1000
            rows.append(Row(".. processor time of the forwarder", used_ms, "ms"))
    return rows


def _in_turns(name: str, clients: dict[str, _Client], sql: str, count: int) -> list[Row]:
    names, rounds = list(clients), []
    for number in range(WARM_UP_ROUNDS + ROUNDS):
        # Each client is first, second and last equally often.
        turn = number % len(names)
        rounds.append(
            {
                one: clients[one].ms(sql, count, is_stream=name.startswith("stream"))
                for one in (*names[turn:], *names[:turn])
            }
        )
    counted = rounds[WARM_UP_ROUNDS:]

    def row(label: str, ours: str, peer_label: str, peer: str) -> Row:
        return Row(
            f"{name}: {label}",
            median(one[ours] for one in counted),
            "ms",
            peer_label,
            median(one[peer] for one in counted),
            median(one[ours] / one[peer] for one in counted),
            AIM if ours == "forwarded" and peer == "inside" else "",
        )

    return [
        row("forwarded", "forwarded", "not forwarded", "inside"),
        row("in a view", "inside", "without one", "plain"),
    ]


if __name__ == "__main__":
    print_rows(run())
