"""A real broker process, killed with -9 while it is published to; and ended in order."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from penstock.broker.broker_client import BrokerClient
from penstock.core.errors import Unavailable
from penstock.storage.queue.disk_queue import DiskQueue

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system

PROGRAM = """
import sys
from penstock.broker.options import BrokerOptions
from penstock.broker.server import run_broker
from penstock.core.errors import PenstockError
from penstock.storage.queue.disk_queue import DiskQueueOptions

options = BrokerOptions(folder=sys.argv[1], http_port=int(sys.argv[2]), min_free_bytes=0)
try:
    run_broker(options, DiskQueueOptions(max_bytes_per_file=100_000),
               on_ready=lambda server: print(server.http_port, flush=True))
except PenstockError as error:
    sys.exit(str(error))
"""


class Process:
    """A broker process."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline() or 0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def end(self, number: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=120)
        return self.process.returncode, errors


def stored(folder: Path, partitions: int) -> list[bytes]:
    messages: list[bytes] = []
    for number in range(partitions):
        with DiskQueue.open(f"{folder}/t/{number}") as queue:
            for block in queue.read(queue.earliest, 1 << 40):
                messages += block.messages.to_pylist()
            assert queue.verify().messages_lost == 0
    return messages


class Publishers:
    """Threads that publish until all their batches are acknowledged, through any kills."""

    def __init__(self, url: str, count: int, batches: int) -> None:
        self.acknowledged = 0
        self.repeats = 0
        self.once: set[bytes] = set()
        self.at_least_once: set[bytes] = set()
        self._changed = threading.Condition()
        self._pool = ThreadPoolExecutor(2 * count)
        self._back = threading.Event()
        self._back.set()
        self._running = [
            self._pool.submit(self._publish, url, number, batches, named)
            for number in range(count)
            for named in (True, False)
        ]

    def _publish(self, url: str, number: int, batches: int, named: bool) -> None:
        with BrokerClient(url) as client:
            for sequence in range(batches):
                batch = [b"%d %d %d %d" % (named, number, sequence, n) for n in range(20)]
                while True:
                    try:
                        client.publish(
                            "t",
                            batch,
                            partition=sequence % 2,
                            durable=sequence % 7 == 0,
                            producer=(f"p{number}", sequence) if named else None,
                        )
                        break
                    except Unavailable:
                        self._back.wait(120)
                        self.repeats += named
                with self._changed:
                    (self.once if named else self.at_least_once).update(batch)
                    self.acknowledged += 1
                    self._changed.notify_all()

    def wait_for(self, acknowledged: int) -> bool:
        """Return False when they are through."""
        with self._changed:
            return (
                self._changed.wait_for(
                    lambda: self.acknowledged >= acknowledged or self.through, timeout=120
                )
                and not self.through
            )

    @property
    def through(self) -> bool:
        return all(publisher.done() for publisher in self._running)

    def pause(self) -> None:
        self._back.clear()

    def go_on(self) -> None:
        self._back.set()

    def join(self) -> None:
        for publisher in self._running:
            publisher.result(120)
        self._pool.shutdown()


def test_what_was_acknowledged_is_there_and_with_a_producer_once(
    tmp_path: Path, port_of_restarts: int
) -> None:
    folder = tmp_path / "topics"
    broker = Process(folder, port_of_restarts)
    with BrokerClient(broker.url) as client:
        client.create_topic("t", partitions=2)
    publishers = Publishers(broker.url, count=3, batches=120)
    chance = random.Random(7)
    acknowledged = 0
    for _ in range(5):
        acknowledged += chance.randint(20, 120)
        publishers.wait_for(acknowledged)
        publishers.pause()
        broker.end(signal.SIGKILL)
        broker = Process(folder, port_of_restarts)
        publishers.go_on()
    publishers.join()
    assert broker.end(signal.SIGTERM) == (0, "")
    counts = Counter(stored(folder, 2))
    assert set(counts) == publishers.once | publishers.at_least_once
    assert {message for message, count in counts.items() if count > 1} & publishers.once == set()


def test_a_stop_waits_for_running_requests_and_leaves_everything_synced(tmp_path: Path) -> None:
    folder = tmp_path / "topics"
    broker = Process(folder)
    with BrokerClient(broker.url) as client:
        client.publish("t", [b"a", b"b"])
    assert broker.end(signal.SIGTERM) == (0, "")
    assert stored(folder, 1) == [b"a", b"b"]


def test_a_second_broker_says_what_is_wrong(tmp_path: Path) -> None:
    folder = tmp_path / "topics"
    broker = Process(folder)
    for other, port, words in (
        (folder, 0, "has it open"),
        (tmp_path / "other", broker.port, f"port {broker.port} of 127.0.0.1 is taken"),
    ):
        second = Process(other, port)
        _, errors = second.process.communicate(timeout=120)
        assert second.process.returncode == 1
        assert words in errors
        assert "Traceback" not in errors
    assert broker.end(signal.SIGINT) == (0, "")
