"""Spark's Python daemons: each is there as long as it has workers, and not for ever."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock.spark.connect.pythondaemon import LOOKS, Idleness

WAIT_S = 60


def number(read: bytes) -> int:
    (value,) = struct.unpack("!i", read)
    assert isinstance(value, int)
    return value


@pytest.fixture
def daemon() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.spark.connect.pythondaemon", "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHON_WORKER_FACTORY_SECRET": "secret"},
    )
    with process:
        yield process
        process.kill()


def fork_worker(port: int) -> socket.socket:
    """Have the daemon fork a worker, which waits for the secret."""
    worker = socket.create_connection(("127.0.0.1", port), WAIT_S)
    assert number(worker.recv(4, socket.MSG_WAITALL)) > 0
    return worker


def test_it_is_time_to_end_after_some_looks_in_a_row_without_a_worker() -> None:
    idleness = Idleness(3)
    looks = [False, False, True, False, False, False]
    told = [idleness.seen(has_workers=has_workers) for has_workers in looks]
    assert told == [False, False, False, False, False, True]


def test_a_daemon_stays_while_it_has_workers_and_ends_when_it_has_none(
    daemon: subprocess.Popen[bytes],
) -> None:
    assert daemon.stdout is not None
    port = number(daemon.stdout.read(4))
    workers = [fork_worker(port)]
    for _ in range(2 * LOOKS):
        daemon.send_signal(signal.SIGALRM)  # As its timer does: a look.
        workers.append(fork_worker(port))
    assert daemon.poll() is None
    for worker in workers:
        worker.close()
    # The workers end soon, and each look from then on finds none.
    for _ in range(100 * WAIT_S):
        daemon.send_signal(signal.SIGALRM)
        try:
            daemon.wait(0.01)
        except subprocess.TimeoutExpired:
            continue
        break
    assert daemon.returncode is not None
    with pytest.raises(ConnectionRefusedError):  # What Spark takes for: start it again.
        socket.create_connection(("127.0.0.1", port), WAIT_S)
