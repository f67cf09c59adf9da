"""The broker under NSQ's TCP protocol: client and broker on this machine, each a process.

The targets are what nsqd does on two cores of this kind, its client included. Redis Streams and
NATS JetStream, where they are installed, run in the same minute with clients made alike, and so do
the limits: loopback TCP that carries the same bytes, a file that takes them, and fsyncs.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import socket
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import nsqload, peers
from benchmarks.processes import (
    CLIENTS,
    Broker,
    Child,
    fsyncs_per_second,
    push_loopback,
    rate,
    serve_loopback,
    written_per_second,
)
from benchmarks.table import Row, against, print_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.sharedctypes import Synchronized

SECONDS = float(os.environ.get("PENSTOCK_BENCH_SECONDS", "4"))
BODY = b"x" * 200
BATCH = 200
BACKLOG = int(os.environ.get("PENSTOCK_BENCH_BACKLOG", "1000000"))
PUBLISHERS = (1, 16, 64)
RATE_PER_S = 1_000
NSQD = {
    "MPUB": 300_000,
    "PUB pipelined": 115_000,
    "PUB": 30_000,
    "SUB+FIN": 300_000,
    "SUB+FIN disk": 160_000,
    "durable": 1_500,
}


def run() -> list[Row]:
    """Measure."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        found: list[peers.Kind] = [
            kind for kind in (peers.Redis, peers.Nats) if kind.is_installed()
        ]
        with Child(Broker(str(folder / "topics"))) as (port, _):
            rows = [
                *_publishing(port, folder, found),
                *_one_by_one(port, folder, found),
                *_durable(port, folder),
                *_backlog(port, folder, found),
                *_fan_out(port, folder),
                *_from_memory(port),
                *_latency(port),
            ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return rows


# -- publishing


def _publishing(port: int, folder: Path, found: Sequence[peers.Kind]) -> list[Row]:
    batch = nsqload.mpub("t", BODY, BATCH)
    many = _publish(port, batch, 1, 4) * BATCH
    pipelined = _publish(port, nsqload.pub("p", BODY) * 100, 100, 2) * 100
    with Child(serve_loopback) as (echo, _):
        loopback = rate(lambda stop: push_loopback(echo, batch, stop), SECONDS) * BATCH
    written = written_per_second(folder, BODY * BATCH) / len(BODY)
    rows = [
        against("MPUB of 200 x 200 B", many, "messages/s", "nsqd", NSQD["MPUB"], ">= 1"),
        against("", many, "messages/s", "loopback TCP", loopback),
        against("", many, "messages/s", "writing a file", written),
        against(
            "PUB, 200 under way", pipelined, "messages/s", "nsqd", NSQD["PUB pipelined"], ">= 1"
        ),
    ]
    for kind in found:
        with kind(folder / kind.__name__) as peer:
            theirs = _publish_to(peer, 200, 2) * 200
        shutil.rmtree(folder / kind.__name__)
        rows += [
            against("MPUB of 200 x 200 B", many, "messages/s", f"{kind.name}, 200 at once", theirs),
            against("PUB, 200 under way", pipelined, "messages/s", kind.name, theirs),
        ]
    return rows


def _one_by_one(port: int, folder: Path, found: Sequence[peers.Kind]) -> list[Row]:
    one = _publish(port, nsqload.pub("o", BODY), 1, 1)
    with Child(serve_loopback) as (echo, _):
        # Processes, as the publishers are: threads would wait for each other.
        loopback = _in_processes(_ping, echo, nsqload.pub("o", BODY), SECONDS)
    name = f"PUB, one by one, {CLIENTS} clients"
    rows = [
        against(name, one, "messages/s", "nsqd", NSQD["PUB"]),
        against("", one, "messages/s", "loopback TCP", loopback),
    ]
    for kind in found:
        with kind(folder / kind.__name__) as peer:
            rows.append(against("", one, "messages/s", kind.name, _publish_to(peer, 1, 1)))
        shutil.rmtree(folder / kind.__name__)
    return rows


def _durable(port: int, folder: Path) -> list[Row]:
    rows = []
    sent = nsqload.mpub("d", BODY, BATCH)
    for publishers in PUBLISHERS:
        fsyncs = fsyncs_per_second(folder)
        ours = BATCH * _with_threads(
            publishers, partial(nsqload.publish, port, sent, 1, 1, SECONDS, durable=True)
        )
        aim = ">= 50" if publishers == max(PUBLISHERS) else ""
        name = f"durable MPUB of 200, {publishers} publishers"
        rows.append(against(name, ours, "messages/s", "nsqd", NSQD["durable"], aim))
        rows.append(against("", ours / BATCH, "MPUB/s", "fsyncs of a file", fsyncs))
        if peers.Redis.is_installed():
            with peers.Redis(folder / "redis", durable=True) as peer:
                load = peer.load(BODY, BATCH, 1)
                theirs = BATCH * _with_threads(
                    publishers, partial(peers.publish, peer.port, load, SECONDS)
                )
            shutil.rmtree(folder / "redis")
            rows.append(against("", ours, "messages/s", peers.Redis.name, theirs))
    return rows


# -- consuming


def _backlog(port: int, folder: Path, found: Sequence[peers.Kind]) -> list[Row]:
    _make_channels(port, "behind", 1)
    _fill(port, "behind", BACKLOG)
    # Before it is consumed: then what everybody has goes.
    copies = _disk_bytes(folder / "topics" / "behind") / (BACKLOG * len(BODY))
    ours = _consume(port, "behind", BACKLOG, 1)
    name = f"SUB+FIN, {BACKLOG:,} behind"
    rows = [
        against(name, ours, "messages/s", "nsqd", NSQD["SUB+FIN disk"], ">= 1"),
        against("on disk for it", copies, "copies", "bodies", 1.0, "<= 1.1"),
    ]
    for kind in found:
        total = BACKLOG // 4  # they take their time
        with kind(folder / kind.__name__) as peer:
            peer.fill(BODY, total)
            done = multiprocessing.get_context("spawn").Value("q", 0)
            theirs = _timed(kind.consume, [(peer.port, total, done)] * CLIENTS, [done], total)
        shutil.rmtree(folder / kind.__name__)
        rows.append(against(name, ours, "messages/s", f"{kind.name}, {total:,}", theirs))
    return rows


def _fan_out(port: int, folder: Path) -> list[Row]:
    rows = []
    messages = BACKLOG // 10
    for channels in (1, 5, 20):
        topic = f"fan{channels}"
        _make_channels(port, topic, channels)
        _fill(port, topic, messages)
        place = folder / "topics" / topic
        before = _disk_bytes(place)
        delivered = _consume(port, topic, messages, channels)
        # Channels have written their journals meanwhile; or consumed log files have gone.
        copies = max(before, _disk_bytes(place)) / (messages * len(BODY))
        rows += [
            Row(f"SUB+FIN, {channels} channels of a topic", delivered, "deliveries/s"),
            against("on disk for them", copies, "copies", "bodies", 1.0, "<= 1.1"),
        ]
    return rows


def _from_memory(port: int) -> list[Row]:
    """Messages that were published a moment ago, again and again: few at a time are in memory."""
    rates = []
    for turn in range(5):
        _make_channels(port, f"memory{turn}", 1)
        _fill(port, f"memory{turn}", 10_000)
        rates.append(_consume(port, f"memory{turn}", 10_000, 1))
    median = statistics.median(rates)
    return [
        against(
            "SUB+FIN from memory, 10,000", median, "messages/s", "nsqd", NSQD["SUB+FIN"], ">= 1"
        )
    ]


def _latency(port: int) -> list[Row]:
    """From before a PUB is sent to the arrival of the message at a consumer."""
    consumer, producer = nsqload.connect(port), nsqload.connect(port)
    consumer.sendall(b"SUB latency c\nRDY 100\n")
    nsqload.take(consumer, nsqload.OK_BYTES)
    with Child(serve_loopback) as (echo, _), socket.create_connection(("127.0.0.1", echo)) as plain:
        sent = nsqload.pub("latency", BODY)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.sendall(len(sent).to_bytes(4, "big"))
        ours, limit = [], []
        begin = time.perf_counter()
        for number in range(int(RATE_PER_S * SECONDS)):
            if (wait := begin + number / RATE_PER_S - time.perf_counter()) > 0:
                time.sleep(wait)
            at = time.perf_counter()
            producer.sendall(sent)
            data = b""
            while len(data) < 34 + len(BODY):
                data += consumer.recv(65_536)
            ours.append(time.perf_counter() - at)
            consumer.sendall(b"FIN %s\n" % data[18:34])
            nsqload.take(producer, nsqload.OK_BYTES)
            at = time.perf_counter()
            plain.sendall(sent)
            plain.recv(1)
            limit.append(time.perf_counter() - at)
    return [
        against(
            f"PUB to consumer at {RATE_PER_S}/s, p{part}",
            *(_percentile(ours, part), "µs", "loopback, there and back", _percentile(limit, part)),
        )
        for part in (50, 99)
    ]


# -- the clients


def _publish(port: int, sent: bytes, answers: int, under_way: int) -> float:
    return _in_processes(nsqload.publish, port, sent, answers, under_way, SECONDS)


def _publish_to(peer: peers.Peer, batch: int, under_way: int) -> float:
    return _in_processes(peers.publish, peer.port, peer.load(BODY, batch, under_way), SECONDS)


def _in_processes(work: Callable[..., int], *arguments: object) -> float:
    """Return how often all clients together get through in a second."""
    with ProcessPoolExecutor(CLIENTS, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(abs, range(CLIENTS)))  # they are there before time counts
        begin = time.perf_counter()
        counts = [pool.submit(work, *arguments) for _ in range(CLIENTS)]
        return sum(count.result() for count in counts) / (time.perf_counter() - begin)


def _with_threads(count: int, work: Callable[[], int]) -> float:
    """Return the same for clients that wait for fsyncs, and do next to nothing."""
    with ThreadPoolExecutor(count) as pool:
        begin = time.perf_counter()
        counts = [pool.submit(work) for _ in range(count)]
        return sum(one.result() for one in counts) / (time.perf_counter() - begin)


def _ping(port: int, sent: bytes, seconds: float) -> int:
    """Send bytes to the loopback server, and wait for its answer each time."""
    count = 0
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(len(sent).to_bytes(4, "big"))
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            connection.sendall(sent)
            connection.recv(1)
            count += 1
    return count


def _make_channels(port: int, topic: str, channels: int) -> None:
    for channel in range(channels):
        connection = nsqload.connect(port)
        connection.sendall(b"SUB %s c%d\n" % (topic.encode(), channel))
        nsqload.take(connection, nsqload.OK_BYTES)
        connection.close()


def _fill(port: int, topic: str, messages: int) -> None:
    sent = nsqload.mpub(topic, BODY, 1_000)
    connection = nsqload.connect(port)
    for _ in range(messages // 1_000):
        connection.sendall(sent)
        nsqload.take(connection, nsqload.OK_BYTES)
    connection.close()


def _consume(port: int, topic: str, messages: int, channels: int) -> float:
    context = multiprocessing.get_context("spawn")
    counts = [context.Value("q", 0) for _ in range(channels)]
    arguments = [
        (port, topic, messages, counts[half::2], half) for half in range(min(CLIENTS, channels))
    ]
    return _timed(_consume_channels, arguments, counts, messages * channels)


def _timed(
    work: Callable[..., None],
    arguments: Sequence[tuple[object, ...]],
    counts: list[Synchronized[int]],
    total: int,
) -> float:
    """Return the rate of processes that count, from the first message to the last."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=each) for each in arguments]
    for process in processes:
        process.start()
    begin, first = 0.0, 0
    while (done := sum(count.value for count in counts)) < total:
        if not first and done:
            begin, first = time.perf_counter(), done
        time.sleep(0.001)
    found = (total - first) / (time.perf_counter() - begin)
    for process in processes:
        process.join()
    return found


def _consume_channels(
    port: int, topic: str, messages: int, counts: list[Synchronized[int]], half: int
) -> None:
    with ThreadPoolExecutor(len(counts)) as pool:
        for index, count in enumerate(counts):
            channel = f"c{half + CLIENTS * index}"
            pool.submit(nsqload.consume, port, topic, channel, len(BODY), messages, count)


def _disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _percentile(times_s: list[float], part: int) -> float:
    return sorted(times_s)[len(times_s) * part // 100] * 1e6


if __name__ == "__main__":
    print_rows(run())
