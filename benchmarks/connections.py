"""Ten thousand consumers that wait: what their connections and heartbeats cost a broker.

Each has said who it is, has subscribed and is ready for a message; nothing is published. The client
answers heartbeats and does nothing else. Processor time is taken over a whole heartbeat interval.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import struct
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Self

from benchmarks import nsqload
from benchmarks.processes import Broker, Child, cpu_s, resident_mib
from benchmarks.table import Row, against, print_rows
from penstock.broker.file_limits import raise_descriptor_limit

if TYPE_CHECKING:
    import socket

CONNECTIONS = int(os.environ.get("PENSTOCK_BENCH_CONNECTIONS", "10000"))
CHANNELS = 100
INTERVAL_S = 30.0
_HELLO = json.dumps({"client_id": "bench", "feature_negotiation": True}).encode()
_HEARTBEAT_BYTES = 8 + len(b"_heartbeat_")


def run() -> list[Row]:
    """Measure."""
    raise_descriptor_limit()
    folder = tempfile.mkdtemp(prefix="penstock-bench-")
    try:
        with Child(Broker(folder)) as (port, pid):
            empty = resident_mib(pid)
            with Consumers(port) as consumers:
                begin = time.perf_counter()
                consumers.connect(CONNECTIONS)
                connecting_s = time.perf_counter() - begin
                time.sleep(2.0)
                before, beats = cpu_s(pid), consumers.beats
                time.sleep(INTERVAL_S)
                busy = (cpu_s(pid) - before) / INTERVAL_S * 100
                beats = consumers.beats - beats
                resident = resident_mib(pid)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    name = f"{CONNECTIONS:,} idle consumers"
    return [
        against(f"{name}: processor", busy, "%", "aim", 1.0, "< 1"),
        Row("heartbeats answered", beats / INTERVAL_S, "per s"),
        Row("processor for each heartbeat", busy / 100 * INTERVAL_S / max(1, beats) * 1e6, "µs"),
        against("memory", resident, "MiB", "aim", 400.0, "< 1"),
        Row("memory without them", empty, "MiB"),
        Row("connect, identify, subscribe", CONNECTIONS / connecting_s, "per s"),
    ]


class Consumers:
    """Consumers that answer heartbeats, on one thread."""

    def __init__(self, port: int) -> None:
        self.beats = 0
        self._port = port
        self._sockets: dict[int, socket.socket] = {}
        self._epoll = select.epoll()
        self._stop = False
        self._thread = threading.Thread(target=self._answer)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._thread.join()
        for consumer in self._sockets.values():
            consumer.close()

    def connect(self, count: int) -> None:
        """Connect, identify and subscribe."""
        hello = b"IDENTIFY\n" + struct.pack(">i", len(_HELLO)) + _HELLO
        for number in range(count):
            consumer = nsqload.connect(self._port)
            consumer.sendall(hello)
            size, _ = struct.unpack(">ii", consumer.recv(8))
            nsqload.take(consumer, size - 4)
            consumer.sendall(b"SUB idle%d c\nRDY 1\n" % (number % CHANNELS))
            nsqload.take(consumer, nsqload.OK_BYTES)
            self._sockets[consumer.fileno()] = consumer
            self._epoll.register(consumer.fileno(), select.EPOLLIN)

    def _answer(self) -> None:
        while not self._stop:
            for fd, _ in self._epoll.poll(0.2, 4096):
                if len(self._sockets[fd].recv(4096)) == _HEARTBEAT_BYTES:
                    self._sockets[fd].sendall(b"NOP\n")
                    self.beats += 1


if __name__ == "__main__":
    print_rows(run())
