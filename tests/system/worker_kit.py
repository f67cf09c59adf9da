"""A worker as a real process, its peons and its spares, for tests that kill them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError
from penstock.indexing.ports import TaskState, WorkerTask
from penstock.indexing.task_spec import parse_task
from penstock.services.api.process_clients import HttpWorkerClient
from penstock.services.host.fork_server import FORK_SERVER_NAME, FORKED_NAME
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.roles.peon_start import PEON_NAME
from penstock.storage.metadata import MetadataStore
from penstock.storage.sqlite_urls import sqlite_url

T = TypeVar("T")

WAIT_S = 120.0


def wait_for(what: str, ask: Callable[[], T | None]) -> T:
    """Return the first answer that is something."""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        try:
            found = ask()
        except PenstockError:
            found = None
        if found:
            return found
        # It looks at processes, which tell nobody; more often it would take their processor time.
        time.sleep(0.1)
    raise AssertionError(f"no {what} within {WAIT_S:g} s")


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def peon_processes(worker: int) -> set[int]:
    """The peons and spares of a worker."""
    return _children_named(worker, {PEON_NAME, FORKED_NAME})


def fork_servers(worker: int) -> set[int]:
    """The fork server of a worker, in a set."""
    return _children_named(worker, {FORK_SERVER_NAME})


def _children_named(parent: int, names: set[str]) -> set[int]:
    found = set()
    for process in Path("/proc").iterdir():
        try:
            if not process.name.isdecimal():
                continue
            own = (process / "stat").read_text().rpartition(")")[2].split()[1]
            name = (process / "comm").read_text().strip()
        except OSError:
            continue
        if int(own) == parent and name in names and is_alive(int(process.name)):
            found.add(int(process.name))
    return found


class RealWorker:
    """A worker's process on a data folder; it may be killed and started again."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.data = folder / "data"
        self.output = folder / "worker.out"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._store: MetadataStore | None = None

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start a process and wait for nothing."""
        argv = [sys.executable, "-m", "penstock", "server", "worker"]
        # Its tasks need no Spark, so nobody finds out that none is there.
        argv += ["--spark-connect", "sc://localhost:1"]
        with self.output.open("ab") as output:
            return subprocess.Popen(
                [*argv, "--data-dir", str(self.data), *self._options],
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._process = self.spawn()
        # Another client each time: the lease may still be the old one's.
        wait_for("worker", lambda: self.client.report())  # noqa: PLW0108

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    @property
    def client(self) -> HttpWorkerClient:
        """Its API."""
        wait_for("metadata", (self.data / "metadata.db").exists)
        if self._store is None:
            url = sqlite_url(self.data / "metadata.db")
            self._store = MetadataStore.open(url, clock=SystemClock())
        return HttpWorkerClient("w", LeaseDirectory(self._store.leases).find("worker"))

    def noop(self, task_id: str, run_time_ms: int) -> None:
        """Have it run a task that only sleeps."""
        self.client.assign(parse_task({"type": "noop", "id": task_id, "runTime": run_time_ms}))

    def task(self, task_id: str) -> WorkerTask | None:
        """How a task stands."""
        return next((one for one in self.client.report().tasks if one.id == task_id), None)

    def ended(self, task_id: str) -> WorkerTask:
        """Wait for the end of a task."""

        def ask() -> WorkerTask | None:
            task = self.task(task_id)
            return task if task is not None and task.state.complete else None

        return wait_for(f"end of {task_id}", ask)

    def running(self, task_id: str) -> int:
        """Wait until a task says where it answers; return the process that runs it."""

        def answers() -> bool:
            task = self.task(task_id)
            return task is not None and (task.location is not None or task.state.complete)

        wait_for(f"location of {task_id}", answers)
        # It answers a moment before it begins; until then its death loses nothing.
        begun = self.data / "tasks" / task_id / "attempt" / "1" / "begun.json"
        wait_for(f"begin of {task_id}", begun.exists)
        lines = self.output.read_text().splitlines()
        line = next(one for one in reversed(lines) if f"task {task_id} runs in the" in one)
        return int(line.rpartition(" ")[2])

    def spare(self) -> int:
        """Wait for a spare and return its process."""

        def ask() -> int | None:
            text = self.output.read_text()
            return next(
                (p for p in peon_processes(self.pid) if f" process {p}\n" not in text), None
            )

        return wait_for("spare", ask)

    def fork_server(self) -> int:
        """Wait for the fork server and return its process."""
        return wait_for("fork server", lambda: next(iter(fork_servers(self.pid)), None))

    def kill(self) -> None:
        """End it as a power cut would, as far as processes go; its peons must go with it."""
        peons = peon_processes(self.pid) | fork_servers(self.pid)
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        wait_for("end of the peons", lambda: not any(is_alive(pid) for pid in peons))

    def stop(self) -> int:
        """End it in order and return its exit code."""
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(WAIT_S)
        if self._store is not None:
            self._store.close()
            self._store = None
        return code


def freeze(pid: int) -> None:
    """Have a process hear nothing any more, SIGTERM neither."""
    os.kill(pid, signal.SIGSTOP)


__all__ = [
    "RealWorker",
    "TaskState",
    "fork_servers",
    "freeze",
    "is_alive",
    "peon_processes",
    "wait_for",
]
