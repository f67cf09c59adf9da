"""NSQ's TCP protocol: publishing and consuming, client and broker on this machine.

The targets are what nsqd does on two cores of this kind, its client included. The limits, measured
in the same run, are loopback TCP that carries the same bytes, and fsyncs of a file.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import struct
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import nsqload
from benchmarks.broker import Child, _push_loopback, _rate, _serve_loopback
from benchmarks.table import Row, against, print_rows
from penstock.broker.options import BrokerOptions
from penstock.broker.server import run_broker
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    import socket
    from multiprocessing.connection import Connection
    from multiprocessing.sharedctypes import Synchronized

SECONDS = float(os.environ.get("PENSTOCK_BENCH_SECONDS", "4"))
BODY = b"x" * 200
BATCH = 200
BACKLOG = 1_000_000
NSQD = {
    "MPUB": 300_000,
    "PUB pipelined": 115_000,
    "SUB+FIN": 300_000,
    "SUB+FIN disk": 160_000,
    "durable": 1_500,
}


def run() -> list[Row]:
    """Measure."""
    folder = tempfile.mkdtemp(prefix="penstock-bench-")
    batch = nsqload.mpub("t", BODY, BATCH)
    try:
        with Child(_serve_loopback) as (port, _):
            limit = _rate(lambda stop: _push_loopback(port, batch, stop)) / 1_000 * BATCH
        with Child(_serve(folder)) as (port, _):
            rows = [*_publishing(port, limit), *_durable(port, folder), *_consuming(port, folder)]
            rows += _latency(port)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return rows


def _publishing(port: int, limit: float) -> list[Row]:
    batch = nsqload.mpub("t", BODY, BATCH)
    many = _publish(port, batch, 1, 4, 2) * BATCH
    pipelined = _publish(port, nsqload.pub("p", BODY) * 100, 100, 2, 2) * 100
    one = _publish(port, nsqload.pub("o", BODY), 1, 1, 2)
    return [
        against("MPUB of 200 x 200 B", many, "messages/s", "nsqd", NSQD["MPUB"], ">= 1"),
        against("", many, "messages/s", "loopback TCP", limit),
        against(
            "PUB, 200 under way", pipelined, "messages/s", "nsqd", NSQD["PUB pipelined"], ">= 1"
        ),
        Row("PUB, one by one, 2 clients", one, "messages/s"),
    ]


def _durable(port: int, folder: str) -> list[Row]:
    fsyncs = _fsyncs_per_second(folder)
    rows = []
    for publishers in (1, 16, 64):
        rate = (
            _publish(port, nsqload.mpub("d", BODY, BATCH), 1, 1, publishers, durable=True) * BATCH
        )
        aim = ">= 50" if publishers == 64 else ""
        name = f"durable MPUB of 200, {publishers} publishers"
        rows.append(against(name, rate, "messages/s", "nsqd", NSQD["durable"], aim))
    rows.append(Row("fsync of a small write", fsyncs, "per s"))
    return rows


def _consuming(port: int, folder: str) -> list[Row]:
    rows = []
    for channels in (1, 5, 20):
        topic = f"fan{channels}"
        connection = nsqload.connect(port)
        for channel in range(channels):
            other = nsqload.connect(port)
            other.sendall(b"SUB %s c%d\n" % (topic.encode(), channel))
            nsqload.take(other, nsqload.OK_BYTES)
            other.close()
        messages = BACKLOG if channels == 1 else BACKLOG // 10
        _fill(connection, topic, messages)
        rate = _consume(port, topic, messages, channels)
        copies = _disk_bytes(Path(folder) / topic) / (messages * len(BODY))
        if channels == 1:
            name, aim = "SUB+FIN, 1,000,000 behind", NSQD["SUB+FIN disk"]
            rows.append(against(name, rate, "messages/s", "nsqd", aim, ">= 1"))
        else:
            rows.append(Row(f"SUB+FIN to {channels} channels", rate, "deliveries/s"))
        rows.append(
            against(f"disk for {channels} channels", copies, "copies", "bodies", 1.0, "<= 1.15")
        )
    connection = nsqload.connect(port)
    _fill(connection, "memory", 10_000)
    rate = _consume(port, "memory", 10_000, 1)
    rows.append(
        against("SUB+FIN from memory, 10,000", rate, "messages/s", "nsqd", NSQD["SUB+FIN"], ">= 1")
    )
    return rows


def _latency(port: int) -> list[Row]:
    """From PUB to the message at a consumer, 1,000 a second."""
    consumer, producer = nsqload.connect(port), nsqload.connect(port)
    consumer.sendall(b"SUB latency c\nRDY 100\n")
    nsqload.take(consumer, nsqload.OK_BYTES)
    times = []
    begin = time.perf_counter()
    for n in range(2_000):
        while time.perf_counter() < begin + n / 1_000:
            pass
        sent = time.perf_counter()
        producer.sendall(nsqload.pub("latency", BODY))
        data = b""
        while len(data) < 34 + len(BODY):
            data += consumer.recv(65_536)
        times.append(time.perf_counter() - sent)
        consumer.sendall(b"FIN %s\n" % data[18:34])
        nsqload.take(producer, nsqload.OK_BYTES)
    times.sort()
    return [
        Row("PUB to consumer at 1,000/s, p50", statistics.median(times) * 1e6, "µs"),
        Row("PUB to consumer at 1,000/s, p99", times[len(times) * 99 // 100] * 1e6, "µs"),
    ]


# -- the clients


def _publish(
    port: int, sent: bytes, answers: int, under_way: int, clients: int, *, durable: bool = False
) -> float:
    """Return how many of the bytes go through in a second."""
    context = multiprocessing.get_context("spawn")
    # Many clients that wait for fsyncs are threads: they do next to nothing.
    pool = ThreadPoolExecutor(clients) if durable else ProcessPoolExecutor(clients, context)
    with pool:
        # Both processes are there before time counts.
        list(pool.map(abs, range(clients)))
        begin = time.perf_counter()
        counts = [
            pool.submit(nsqload.publish, port, sent, answers, under_way, SECONDS, durable=durable)
            for _ in range(clients)
        ]
        total = sum(count.result() for count in counts)
        return total / (time.perf_counter() - begin)


def _fill(connection: socket.socket, topic: str, messages: int) -> None:
    sent = nsqload.mpub(topic, BODY, 1_000)
    for _ in range(messages // 1_000):
        connection.sendall(sent)
        nsqload.take(connection, nsqload.OK_BYTES)


def _consume(port: int, topic: str, messages: int, channels: int) -> float:
    context = multiprocessing.get_context("spawn")
    counts = [context.Value("q", 0) for _ in range(channels)]
    processes = [
        context.Process(
            target=_consume_channels, args=(port, topic, messages, counts[half::2], half)
        )
        for half in range(min(2, channels))
    ]
    for process in processes:
        process.start()
    begin = None
    while (done := sum(count.value for count in counts)) < messages * channels:
        if begin is None and done:
            begin = time.perf_counter()
        time.sleep(0.002)
    rate = messages * channels / (time.perf_counter() - (begin or 0.0))
    for process in processes:
        process.join()
    return rate


def _consume_channels(
    port: int, topic: str, messages: int, counts: list[Synchronized[int]], half: int
) -> None:
    with ThreadPoolExecutor(len(counts)) as pool:
        for index, count in enumerate(counts):
            channel = f"c{half + 2 * index}"
            pool.submit(nsqload.consume, port, topic, channel, len(BODY), messages, count)


# -- the server, and limits


class _serve:  # noqa: N801
    """Serves a broker on a folder, as a picklable callable."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __call__(self, report: Connection) -> None:
        options = BrokerOptions(folder=self._folder, http_port=0, tcp_port=0)
        try:
            run_broker(options, on_ready=lambda server: report.send(server.broker.tcp_port))
        except PenstockError as error:
            raise SystemExit(str(error)) from error


def _fsyncs_per_second(folder: str) -> float:
    path = Path(folder) / "fsync"
    with path.open("wb", buffering=0) as file:
        begin = time.perf_counter()
        for _ in range(200):
            file.write(struct.pack(">q", 0) * 16)
            os.fsync(file.fileno())
        rate = 200 / (time.perf_counter() - begin)
    path.unlink()
    return rate


def _disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    print_rows(run())
