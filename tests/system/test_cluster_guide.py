"""The guide to a cluster, typed in order: PostgreSQL, an emulated S3, Spark with two workers.

Then copies of segments are made, while the S3 hangs and the router is killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError
from penstock.services.host.data_folder import DataFolder, segment_cache_folder
from penstock.services.json_client import JsonClient
from tests.kits.hostile_client_kit import (
    LOOPBACK,
    answers_to,
    family,
    handshake,
    ports_of,
    rpc_without_handshake,
    was_accepted,
    was_refused,
)
from tests.kits.ports_kit import kept_port
from tests.storage.postgres_server_kit import require_binaries, running_server
from tests.system.serving_kit import until
from tests.system.walking_kit import ROOT, Walk, commands_of

if TYPE_CHECKING:
    import s3fs

pytestmark = [pytest.mark.system, pytest.mark.postgres]

SPARK_HOME = Path(pyspark.__path__[0])
GUIDE = "howto/use-a-spark-cluster.md"
PATIENCE_S = 300.0
EMULATOR = 0  # the terminal of the S3, which is the first
# Ports that ask for the secret: those of the master, two workers, the driver's RPC and its blocks,
# and the blocks of two executors.
ASKING = 7
PAGES = 3  # of the master and two workers
KINDS = ("master.Master", "worker.Worker", "SparkConnectServer", "CoarseGrainedExecutorBackend")
EXPECTED = {
    "penstock sql 'SELECT page": r"/ +1",
    "penstock segment list": r"clicks_2026-11-21",
    "penstock sql 'SELECT sum": r"\b12\b",
}


class Terminals:
    """What a reader leaves running in terminals of their own."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = {**os.environ, **variables}
        self._running: list[subprocess.Popen[bytes]] = []
        self._clock = SystemClock()
        self._pause = threading.Condition()

    def signal(self, number: int, code: int) -> None:
        """Send a signal to one of them, by its number in the order of their start."""
        self._running[number].send_signal(code)

    def open(self, *command: str) -> Path:
        """Run a command; return the file of what it prints."""
        output = self._folder / f"terminal-{len(self._running)}.out"
        with output.open("wb") as file:
            self._running.append(
                subprocess.Popen(
                    command,
                    cwd=self._folder,
                    env=self._environment,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            )
        return output

    @property
    def pids(self) -> list[int]:
        """Everything that runs in the terminals."""
        return [pid for process in self._running for pid in family(process.pid)]

    def until_prints(self, output: Path, text: str) -> None:
        deadline_s = self._clock.monotonic_s() + PATIENCE_S
        while text not in output.read_text(errors="replace"):
            shown = output.read_text(errors="replace")[-3000:]
            assert self._running[-1].poll() is None, shown
            assert self._clock.monotonic_s() < deadline_s, shown
            with self._pause:
                self._clock.wait(self._pause, 0.2)

    def close(self) -> None:
        for process in self._running:
            process.terminate()
        for process in reversed(self._running):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def terminals(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Terminals, dict[str, str]]]:
    binaries = require_binaries()
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        pytest.skip("no Java that Spark's own scripts find")
    folder = tmp_path_factory.mktemp("cluster")
    with running_server(binaries) as database, kept_port() as s3:
        variables = {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3}",
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            # As for Penstock's own: these JVMs live for a minute.
            "JDK_JAVA_OPTIONS": os.environ["PENSTOCK_SPARK_JAVA_OPTIONS"],
            "PENSTOCK_DATA_DIR": str(folder / "data"),
            "PENSTOCK_METADATA_URL": database.empty_database(),
        }
        made = Terminals(folder, variables)
        try:
            emulator = made.open(
                sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(s3)
            )
            made.until_prints(emulator, "Running on")
            yield made, variables
        finally:
            made.signal(EMULATOR, signal.SIGCONT)
            made.close()


def make_secret(folder: Path) -> None:
    """Run the lines of the guide that write the files with the secret."""
    [lines] = re.findall(
        r"```\n(umask 077\n.*?)```", (ROOT / "docs" / GUIDE).read_text(), re.DOTALL
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["sh", "-ec", lines], cwd=folder, env={**os.environ, "PATH": path}, check=True)


def connect_port(data: Path) -> int:
    """Return the port of Spark Connect, which asks for a token."""
    settings = (DataFolder(data).run / "spark.properties").read_text()
    return int(settings.partition("connect.grpc.binding.port ")[2].partition("\n")[0])


def commands_by_pid(pids: Iterable[int]) -> dict[int, str]:
    """Return the command lines of those processes that have not ended meanwhile."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            found[pid] = Path(f"/proc/{pid}/cmdline").read_text()
    return found


def ports_refuse_another_user(pids: Callable[[], Sequence[int]], connect: int, secret: str) -> None:
    """Try the ports of Spark's processes as another user without the secret."""
    commands: dict[int, str] = {}

    def has_all_of_spark() -> bool:
        nonlocal commands
        commands = commands_by_pid(pids())
        found = [sum(kind in one for one in commands.values()) for kind in KINDS]
        return found == [1, 2, 1, 2]

    # A process that starts another one is listed twice for a moment.
    until("the processes of Spark", has_all_of_spark)
    assert not any(secret in command for command in commands.values())
    ports = ports_of(pid for pid, one in commands.items() if "org.apache.spark" in one)
    assert set(ports.values()) <= LOOPBACK
    others = ports.keys() - {connect}

    def said(message: bytes) -> dict[int, str]:
        answers = answers_to(message, others, answering=ASKING + PAGES)
        pages = [port for port, text in answers.items() if text.startswith("HTTP/1.1 400 ")]
        assert len(pages) == PAGES, answers
        return {port: text for port, text in answers.items() if port not in pages}

    for message in (rpc_without_handshake(), handshake("wrong")):
        refusals = said(message)
        assert len(refusals) == ASKING, refusals
        assert all(map(was_refused, refusals.values())), refusals
    answers = said(handshake(secret))  # so the refusals are for the secret alone
    assert all(map(was_accepted, answers.values())), answers


@dataclass(frozen=True)
class Cluster:
    """The cluster of the reader of the guide."""

    opened: Terminals
    store: s3fs.S3FileSystem
    folder: Path

    @property
    def data(self) -> DataFolder:
        return DataFolder(self.folder / "data")

    def rows(self) -> object:
        """Ask the fast engine, which reads copies of segments alone."""
        client = self.data.read_client_file() or {}
        context = {"engine": "fast", "useResultLevelCache": False}
        body = {"query": "SELECT page, sum(ms) AS ms FROM clicks GROUP BY page", "context": context}
        return JsonClient(str(client["http"])).post("/druid/v2/sql", body)


@pytest.fixture(scope="module")
def spark_ports() -> Iterator[tuple[int, int]]:
    """The ports of the master of Spark and of its page."""
    with kept_port() as master, kept_port() as page:
        yield master, page


@pytest.fixture(scope="module")
def cluster(terminals: tuple[Terminals, dict[str, str]], spark_ports: tuple[int, int]) -> Cluster:
    # Here, because every process of a test run would load it to find the tests.
    import s3fs

    opened, variables = terminals
    folder = Path(variables["PENSTOCK_DATA_DIR"]).parent
    store = s3fs.S3FileSystem(key="test", secret="test", endpoint_url=variables["AWS_ENDPOINT_URL"])
    store.mkdir("penstock")
    make_secret(folder)
    spark, console = spark_ports
    walk = Walk(folder, variables, EXPECTED)
    ports = ("--http", "127.0.0.1:0", "--broker-http", "127.0.0.1:0", "--broker-tcp", "127.0.0.1:0")
    for line in commands_of(GUIDE):
        command = line.replace(":7077", f":{spark}").replace("port 7077", f"port {spark}")
        command = command.replace("8080", str(console))
        program, *arguments = shlex.split(command)
        if program == "spark-class":
            output = opened.open(str(SPARK_HOME / "bin" / program), *arguments)
            opened.until_prints(output, "master" if "Master" in command else "registered with")
        elif arguments[0] == "up":
            output = opened.open(sys.executable, "-m", "penstock", *arguments, *ports)
            opened.until_prints(output, "ready after")
        else:
            walk.type(command)
    return Cluster(opened, store, folder)


def test_the_guide_to_a_cluster_works_as_it_is_written(cluster: Cluster) -> None:
    secret = (cluster.folder / "spark.secret").read_text().strip()
    ports_refuse_another_user(lambda: cluster.opened.pids, connect_port(cluster.data.path), secret)
    found = cluster.store.find("penstock/segments")
    assert [one for one in found if one.endswith(".parquet")]
    assert not (cluster.data.path / "segments").exists()


def test_copies_of_segments_are_whole_after_a_kill_during_their_fetch(cluster: Cluster) -> None:
    """The S3 does not answer while the router is killed, nor at the end."""
    folder = segment_cache_folder(cluster.data)
    expected = cluster.rows()
    [copy] = folder.glob("*.parquet")
    copy.unlink()
    cluster.opened.signal(EMULATOR, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(cluster.rows)
        until("a copy is begun", lambda: bool([*folder.glob(".*.tmp")]))
        os.kill(int(str(cluster.data.launcher_record()["router"]["pid"])), signal.SIGKILL)
        with pytest.raises(PenstockError):
            asked.result()
    assert [*folder.glob(".*.tmp")]
    cluster.opened.signal(EMULATOR, signal.SIGCONT)
    until("the router answers again", lambda: cluster.rows() == expected)
    assert [*folder.glob("*.parquet")] == [copy]
    assert not [*folder.glob(".*.tmp")]
    cluster.opened.signal(EMULATOR, signal.SIGSTOP)
    assert cluster.rows() == expected
