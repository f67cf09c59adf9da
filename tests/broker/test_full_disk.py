"""A small disk of its own fills up: publishing is refused, consuming goes on, and it recovers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.options import BrokerOptions
from penstock.storage.queue.disk_queue import DiskQueueOptions
from tests.broker.broker_kit import RunningBroker
from tests.broker.v2_kit import V2, batch, sized

SIZE_BYTES = 8 << 20
BODY = b"x" * 1000
QUEUE = DiskQueueOptions(max_bytes_per_file=500_000)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def options(options: BrokerOptions) -> BrokerOptions:
    return replace(options, tcp_port=0, min_free_bytes=2 << 20, retention_interval_ms=50)


@pytest.fixture
def on_disk(options: BrokerOptions, disk: Path) -> BrokerOptions:
    return replace(options, folder=str(disk / "topics"))


class Meter:
    """Says how much is free, and how often it was asked."""

    def __init__(self, options: BrokerOptions) -> None:
        self._disk = Path(options.folder).parent
        self.asked = 0

    def __call__(self) -> int:
        self.asked += 1
        return shutil.disk_usage(self._disk).free


def start(options: BrokerOptions, meter: Meter | None = None) -> RunningBroker:
    return RunningBroker(options, QUEUE, free_bytes=meter or Meter(options))


class Publisher:
    """Publishes numbered messages, ten at a time, and remembers which were acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: list[bytes] = []
        self._number = 0

    def fill(self, port: int) -> str:
        """Publish until it is refused; returns how. A disk that is slow just now is no end."""
        refusal = "does not keep up"
        while "does not keep up" in refusal:
            refusal = self._fill(port)
        return refusal

    def _fill(self, port: int) -> str:
        with V2(port) as line:
            while True:
                bodies = [b"%d " % (self._number + n) + BODY for n in range(10)]
                self._number += 10
                line.send(b"MPUB t\n", batch(*bodies))
                frame = line.frame()
                assert frame is not None
                if frame.kind == 1:
                    assert line.closed()
                    return frame.data.decode()
                self.acknowledged += bodies


def take(port: int, count: int) -> list[bytes]:
    """Take and finish so many messages."""
    bodies = []
    with V2(port) as line:
        line.subscribe("t", "c", ready=100)
        for _ in range(count):
            message = line.message()
            bodies.append(message.body)
            line.finish(message.id)
        line.finish(b"f" * 16)
        assert line.error().startswith("E_FIN_FAILED")  # so the others were heard
    return bodies


def test_a_nearly_full_disk_refuses_and_recovers_as_it_is_consumed(on_disk: BrokerOptions) -> None:
    publisher, meter = Publisher(), Meter(on_disk)
    with start(on_disk, meter) as broker:
        port = broker.server.broker.tcp_port
        with V2(port) as line:
            line.subscribe("t", "c", ready=0)
        for _ in range(3):
            before = len(publisher.acknowledged)
            assert publisher.fill(port).startswith("E_MPUB_FAILED MPUB failed")
            large = b"\n".join([BODY] * 20)
            while (answer := broker.ask("POST", "/mpub?topic=t", large)).status == 200:
                # The last file of the round before went only now.
                publisher.acknowledged += [BODY] * 20
            assert answer.status == 503
            assert shutil.disk_usage(Path(on_disk.folder)).free > 1 << 20
            expected = publisher.acknowledged[before:]
            assert len(expected) > 1000
            assert take(port, len(expected)) == expected
            # Until what is consumed is deleted, by itself; all of it, or the next round may begin
            # with the room of the first file that went.
            while len(list(Path(on_disk.folder).glob("t/0/*.log"))) > 2:
                pass
            # And until it was seen: what is free is measured now and then.
            asked = meter.asked
            while broker.ask("GET", "/ping").status != 200 or meter.asked == asked:
                pass


def test_at_the_limit_health_and_publishing_agree_and_tell_clients_no_path(
    options: BrokerOptions, tmp_path: Path
) -> None:
    free = [3 << 20]
    with RunningBroker(options, QUEUE, free_bytes=lambda: free[0]) as broker:
        port = broker.server.broker.tcp_port
        broker.ask("POST", "/pub?topic=t", b"first")
        answers = []
        # What is taken between two measurements counts, so that the limit is met inside of one.
        for _ in range(3 << 10):
            healthy = broker.ask("GET", "/ping")
            answer = broker.ask("POST", "/pub?topic=t", BODY)
            answers.append((healthy.status, answer.status))
            if answer.status != 200:
                break
            free[0] -= len(BODY) << 8
        # The measurement may have been renewed between the two, once.
        assert set(answers) <= {(200, 200), (200, 503), (500, 503)}
        health = broker.ask("GET", "/ping")
        assert health.status == 500
        with V2(port) as line:
            line.send(b"PUB t\n", sized(BODY))
            refusal = line.error()
        assert refusal.startswith("E_PUB_FAILED PUB failed the disk of the data folder has")
        shown = [refusal, health.body.decode(), answer.headers["x-penstock-detail"]]
        for text in shown:
            assert str(tmp_path) not in text
            assert "--topic-retention" in text
            assert "min_free_bytes" not in text


def test_a_disk_that_somebody_else_fills_costs_nothing_that_was_acknowledged(
    on_disk: BrokerOptions, disk: Path
) -> None:
    publisher = Publisher()
    options = replace(on_disk, min_free_bytes=0)
    with start(options) as broker:
        port = broker.server.broker.tcp_port
        with V2(port) as line:
            line.subscribe("t", "c", ready=0)
            line.publish("t", b"first")
        filler = disk / "filler"
        fill(filler)
        assert publisher.fill(port).startswith("E_MPUB_FAILED MPUB failed")
        assert broker.ask("POST", "/pub?topic=t", BODY * 10).status == 503
        assert take(port, 1) == [b"first"]  # its journal has no room, and waits
        filler.unlink()
        publisher.fill(port)
        assert len(publisher.acknowledged) > 1000
    # Stopped and started again on a disk that is full to the last byte.
    with start(options) as broker:
        port = broker.server.broker.tcp_port
        assert publisher.fill(port).startswith("E_MPUB_FAILED MPUB failed")
        expected = publisher.acknowledged
        assert take(port, len(expected)) == expected
        while broker.ask("POST", "/pub?topic=t", b"last").status != 200:
            pass  # until what is consumed is deleted, by itself
    with start(options) as broker:
        assert take(broker.server.broker.tcp_port, 1) == [b"last"]


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return
