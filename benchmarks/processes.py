"""Processes that are measured, and the limits that this machine sets: loopback TCP, disk."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.broker.options import BrokerOptions
from penstock.broker.server import run_broker

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

CLIENTS = 2


class Child:
    """A child process that reports its port."""

    def __init__(self, serve: Callable[[Connection], None]) -> None:
        here, there = multiprocessing.Pipe()
        self._here = here
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=serve, args=(there,), daemon=True)

    def __enter__(self) -> tuple[int, int]:
        self._process.start()
        assert self._process.pid is not None
        return self._here.recv(), self._process.pid

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()


class Broker:
    """Serves NSQ's protocol from a folder, as a picklable callable that reports its port."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __call__(self, report: Connection) -> None:
        """Run until the process is ended."""
        options = BrokerOptions(folder=self._folder, http_port=0, tcp_port=0)
        run_broker(options, on_ready=lambda server: report.send(server.broker.tcp_port))


def rate(push: Callable[[threading.Event], int], seconds: float) -> float:
    """Return how often two threads together get through in a second."""
    stop = threading.Event()
    counts: list[int] = []
    threads = [threading.Thread(target=lambda: counts.append(push(stop))) for _ in range(CLIENTS)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begin)


def push_loopback(port: int, body: bytes, stop: threading.Event) -> int:
    """Send bytes and wait for one byte of answer, again and again."""
    count = 0
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(len(body).to_bytes(4, "big"))
        while not stop.is_set():
            connection.sendall(body)
            connection.recv(1)
            count += 1
    return count


def serve_loopback(report: Connection) -> None:
    """Take what `push_loopback` sends."""
    listener = socket.create_server(("127.0.0.1", 0))
    report.send(listener.getsockname()[1])

    def serve(connection: socket.socket) -> None:
        size = int.from_bytes(connection.recv(4), "big")
        buffer = memoryview(bytearray(size))
        while True:
            got = 0
            while got < size:
                read = connection.recv_into(buffer[got:])
                if not read:
                    return
                got += read
            connection.sendall(b"k")

    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


def fsyncs_per_second(folder: Path, seconds: float = 1.0) -> float:
    """Return how many small writes can be fsynced one after the other."""
    path = folder / "fsync"
    count = 0
    with path.open("wb", buffering=0) as file:
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            file.write(b"x" * 128)
            os.fsync(file.fileno())
            count += 1
        found = count / (time.perf_counter() - begin)
    path.unlink()
    return found


def written_per_second(folder: Path, block: bytes, total: int = 512 << 20) -> float:
    """Return how many bytes go to a file in a second, block after block, without an fsync."""
    path = folder / "written"
    with path.open("wb", buffering=0) as file:
        begin = time.perf_counter()
        for _ in range(total // len(block)):
            file.write(block)
        found = total // len(block) * len(block) / (time.perf_counter() - begin)
    path.unlink()
    return found


def resident_mib(pid: int) -> float:
    """Return what a process has in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def peak_mib() -> float:
    """Return the most memory that this process held since it began.

    Not `ru_maxrss`, which begins with what the parent held when it started this process.
    """
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def cpu_s(pid: int) -> float:
    """Return the processor time that a process took."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def running_s(pid: int) -> float:
    """Return the processor time of the threads that a process has, to the nanosecond.

    For short measurements: `cpu_s` counts in hundredths of a second, but also ended threads.
    """
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((one / "schedstat").read_text().split()[0]) for one in threads) / 1e9
