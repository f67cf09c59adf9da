"""A rolling restart of roles that run on their own, under a stream and a query each second.

Each role is stopped in order and started again by `penstock server ROLE`, and the next one follows
when the new process is ready. Refused publishes and queries are counted, gaps are measured and
printed; their length depends on the machine. On any machine these must hold: after it every
acknowledged event is counted exactly once, publishes fail only while the broker restarts and
queries only while the router or the broker does.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.broker.broker_client import BrokerClient
from penstock.core.errors import PenstockError
from penstock.services.json_client import JsonClient
from penstock.services.sql_client import ask
from tests.kits.ports_kit import kept_port
from tests.system.load_kit import PARTITIONS, SUPERVISOR, TOPIC, Load, Rig

pytestmark = pytest.mark.system

ROLES = ("broker", "overlord", "flow", "worker", "router")
ORDER = ("overlord", "worker", "flow", "router", "broker")
# The roles during whose restart queries may fail.
ANSWERING = {"router", "broker"}
RATE_PER_S = 200
PATIENCE_S = 300.0
# Not before all of them are known to fail for good; a restart takes seconds.
GAP_S_MAX = 120.0


@dataclass
class Place:
    """Stands for the launcher of `Rig`: where the API and the broker are."""

    http: str
    broker_http: str
    pid: int = 0

    def keep_running(self) -> bool:
        return False

    @property
    def lines(self) -> list[str]:
        return []


class Cluster(Rig):
    """The roles of one Penstock, each a process of its own.

    Args:
        folder: Folder of the data folder and of the outputs.
        spark: The address of Spark.
        ports: Ports that stay free while a role restarts.
    """

    def __init__(self, folder: Path, spark: str, ports: Mapping[str, int]) -> None:
        super().__init__(folder / "data")
        self._outputs = folder
        self._ports = ports
        self.server = Place(  # type: ignore[assignment]
            f"http://127.0.0.1:{self._ports['router']}", f"http://127.0.0.1:{self._ports['broker']}"
        )
        self._spark = spark
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._starts = 0

    def start(self, role: str) -> Path:
        """Start a role; its output is in a file of its own."""
        self._starts += 1
        output = self._outputs / f"{role}-{self._starts}.out"
        ports = self._ports
        options = {
            "--data-dir": str(self.folder),
            "--http": f"127.0.0.1:{ports['router'] if role == 'router' else 0}",
            "--broker-http": f"127.0.0.1:{ports['broker']}",
            "--broker-tcp": f"127.0.0.1:{ports['tcp']}",
        }
        argv = [sys.executable, "-m", "penstock", "server", role]
        with output.open("wb") as stream:
            self._processes[role] = subprocess.Popen(
                [*argv, *(part for option in options.items() for part in option)],
                stdout=stream,
                stderr=subprocess.STDOUT,
                # The address has the token of Spark in it.
                env=os.environ | {"PENSTOCK_SPARK_CONNECT": self._spark},
            )
        return output

    def await_ready(self, role: str, output: Path) -> None:
        """Wait until the role's process says that it is ready."""
        deadline_s = self.clock.monotonic_s() + PATIENCE_S
        told: object = None
        while self.clock.monotonic_s() < deadline_s:
            text = output.read_text(errors="replace")
            assert self._processes[role].poll() is None, text
            found = re.search(r"listens on (127\.0\.0\.1:\d+)", text)
            if found is not None:
                client = JsonClient(f"http://{found[1]}", timeout_s=10)
                try:
                    client.get("/status/ready")
                except PenstockError as error:
                    told = error
                else:
                    return
            self.wait(0.1)
        pytest.fail(f"{role} is not ready: {told}\n{output.read_text(errors='replace')[-3000:]}")

    def stop(self, role: str) -> None:
        """Stop a role in order."""
        process = self._processes[role]
        process.terminate()
        process.wait(PATIENCE_S)

    def close(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@dataclass
class Outages:
    """Failures of one kind of request: when, during the restart of which role, and why."""

    during: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    total: int = 0
    longest_gap_s: float = 0.0
    last_good_s: float | None = None

    def good(self, now_s: float) -> None:
        if self.last_good_s is not None:
            self.longest_gap_s = max(self.longest_gap_s, now_s - self.last_good_s)
        self.last_good_s = now_s

    def bad(self, role: str, error: Exception) -> None:
        self.during[role] = self.during.get(role, 0) + 1
        self.reasons[role] = str(error)[:200]


class Users:
    """Publishes small batches all the time and asks one query each second.

    Args:
        cluster: The roles.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stop = threading.Event()
        self.restarting = "nothing"
        self.queries = Outages()
        self.wrong: list[str] = []
        self._thread = threading.Thread(target=self._ask)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        clock, seen = self._cluster.clock, 0
        while not self._stop.wait(1.0):
            restarting = self.restarting
            self.queries.total += 1
            try:
                count = ask(self._cluster.api, f'SELECT count(*) FROM "{TOPIC}"').rows[0][0]
            except PenstockError as error:
                # A query may begin before a restart in which it fails.
                ended = self.restarting
                self.queries.bad(ended if ended in ANSWERING else restarting, error)
                continue
            self.queries.good(clock.monotonic_s())
            if not isinstance(count, int) or count < seen:
                self.wrong.append(f"{count} rows after {seen}, during {restarting}")
            else:
                seen = count


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, shared_spark: str) -> Iterator[Cluster]:
    with ExitStack() as stack:
        ports = {name: stack.enter_context(kept_port()) for name in ("router", "broker", "tcp")}
        made = Cluster(tmp_path_factory.mktemp("rolling"), shared_spark, ports)
        stack.callback(made.close)
        for role, output in [(role, made.start(role)) for role in ROLES]:
            made.await_ready(role, output)
        yield made


def test_a_rolling_restart_loses_and_doubles_nothing(cluster: Cluster) -> None:
    with BrokerClient(cluster.server.broker_http) as broker:
        broker.create_topic(TOPIC, PARTITIONS)
    cluster.api.post("/druid/indexer/v1/supervisor", SUPERVISOR)
    load, users = Load(cluster, RATE_PER_S), Users(cluster)
    load.start()
    try:
        cluster.until("the first rows", lambda: bool(cluster.sums()[0]))
        users.start()
        for role in ORDER:
            refused = dict(load.refusals)
            users.restarting = role
            begun_s = cluster.clock.monotonic_s()
            cluster.stop(role)
            stopped_s = cluster.clock.monotonic_s() - begun_s
            cluster.await_ready(role, cluster.start(role))
            took_s = cluster.clock.monotonic_s() - begun_s
            before = load.acknowledged
            cluster.until("publishes go on", lambda n=before: load.acknowledged > n)  # type: ignore[misc]
            answered = users.queries.last_good_s or 0.0
            cluster.until(
                "queries go on",
                lambda at=answered: (users.queries.last_good_s or 0.0) > at,  # type: ignore[misc]
            )
            users.restarting = "nothing"
            fresh = sum(load.refusals.values()) - sum(refused.values())
            print(
                f"{role}: stopped after {stopped_s:.1f} s, ready after {took_s:.1f} s; publishes"
                f" refused {fresh}, queries failed {users.queries.during.get(role, 0)}"
                f" ({users.queries.reasons.get(role, '')})",
                flush=True,
            )
            if role != "broker":
                assert fresh == 0, (role, load.refusals)
    finally:
        users.stop()
        load.stop()
    queries = users.queries
    print(
        f"{load.acknowledged} events, refused {load.refusals}, longest gap between two acknowledged"
        f" publishes {load.longest_gap_s:.1f} s; {queries.total} queries, failed {queries.during},"
        f" longest gap between two answers {queries.longest_gap_s:.1f} s"
    )
    cluster.until("all events", lambda: cluster.sums()[0] >= load.acknowledged, 300)  # type: ignore[operator]
    assert cluster.sums() == load.sums()
    cluster.hand_over()
    cluster.until("the hand-over", cluster.is_published, 300)
    assert cluster.sums() == load.sums()
    assert users.wrong == []
    assert set(queries.during) <= ANSWERING, queries
    assert queries.longest_gap_s < GAP_S_MAX
    # How long the broker is away depends on the machine; that it was measured does not.
    assert load.longest_gap_s > 0
