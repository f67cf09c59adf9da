"""A real process one of whose threads dies: it ends with its exit code, and starts again whole."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.broker.broker_client import BrokerClient
from penstock.core.errors import PenstockError
from penstock.services.host.restart_policy import RESTART_REQUESTED

pytestmark = pytest.mark.system

SERVES = re.compile(r"broker serves (http://127\.0\.0\.1:\d+)")


@contextmanager
def broker(folder: Path, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run a broker in a folder; the block begins when it serves."""
    variables = {
        "PYTHONPATH": str(Path(__file__).parent / "dying"),
        "PENSTOCK_TEST_DIES": f"sync timer={log.with_name('order')}",
    }
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "penstock", "server", "broker", "--data-dir", str(folder)),
            *("--broker-http", "127.0.0.1:0", "--broker-tcp", "127.0.0.1:0"),
        ],
        stdout=writer,
        stderr=writer,
        env=os.environ | variables,
    )
    os.close(writer)
    try:
        with os.fdopen(reader, encoding="utf-8") as lines, log.open("w") as copy:
            for line in lines:
                copy.write(line)
                if found := SERVES.search(line):
                    break
            else:
                pytest.fail(f"the broker ended: {log.read_text()}")
            yield process, found[1]
            process.wait(180)
            copy.write(lines.read())
    finally:
        process.kill()
        process.wait()


def test_a_broker_whose_sync_timer_dies_ends_and_starts_again(tmp_path: Path) -> None:
    log, order = tmp_path / "log", tmp_path / "order"
    with broker(tmp_path / "data", log) as (process, url), BrokerClient(url) as client:
        client.publish("events", [b"before"])
        order.touch()
        while process.poll() is None:
            try:
                client.publish("events", [b"after"])  # wakes the thread
            except PenstockError:
                break
    assert process.returncode == RESTART_REQUESTED
    assert "sync timer ended unexpectedly (MemoryError())" in log.read_text()
    order.unlink()
    with broker(tmp_path / "data", log) as (process, url), BrokerClient(url) as client:
        assert client.offsets("events", durable=True).partitions[0].latest >= 1
        process.terminate()
    assert process.returncode == 0
