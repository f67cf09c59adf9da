"""Publishing over HTTP: binary batches of 1,000 events of some 300 bytes, client and broker on this
machine, each a process.

The peer is a bare uvicorn handler that reads the same bodies and drops them; the limit is loopback
TCP that carries them with one byte of answer each.
"""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import tempfile
import threading
from typing import TYPE_CHECKING

import uvicorn

from benchmarks.processes import Child, push_loopback, rate, resident_mib, serve_loopback
from benchmarks.table import Row, against, print_rows
from penstock.broker.message_bodies import encode_binary
from penstock.broker.options import BrokerOptions
from penstock.broker.server import run_broker
from penstock.storage.queue.disk_queue import DiskQueueOptions

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from starlette.types import Receive, Scope, Send

BATCH = 1_000
SECONDS = float(os.environ.get("PENSTOCK_BENCH_SECONDS", "4"))


def run() -> list[Row]:
    """Measure."""
    messages = [
        (b'{"time_hour":"2013-01-01T%02d:00:00Z","flight":%d,"dest":"IAH",' % (n % 24, n)).ljust(
            260 + n % 80, b"x"
        )
        for n in range(BATCH)
    ]
    body = encode_binary(messages)
    with Child(serve_loopback) as (port, _):
        limit = rate(lambda stop: push_loopback(port, body, stop), SECONDS) * BATCH
    with Child(_serve_dropping) as (port, _):
        peer = (
            rate(lambda stop: _push_http(port, body, "/mpub?topic=t&binary=true", stop), SECONDS)
            * BATCH
        )
    with Child(_serve_broker) as (port, pid):
        idle = resident_mib(pid)
        target = "/mpub?topic=flights&binary=true"
        ours = rate(lambda stop: _push_http(port, body, target, stop), SECONDS) * BATCH
        durable = (
            rate(lambda stop: _push_http(port, body, target + "&durable=1", stop), SECONDS) * BATCH
        )
        small = rate(lambda stop: _push_http(port, messages[0], "/pub?topic=small", stop), SECONDS)
        loaded = resident_mib(pid)
    return [
        against("publish, batches of 1,000", ours, "events/s", "target", 300_000, ">= 1"),
        against("", ours, "events/s", "handler that drops", peer),
        against("", ours, "events/s", "loopback TCP", limit),
        against("publish, durable=1", durable, "events/s", "without", ours),
        Row("publish, one message each", small, "events/s"),
        against("broker memory, idle", idle, "MiB", "target", 150, "< 1"),
        against("broker memory, after load", loaded, "MiB", "target", 150, "< 1"),
    ]


def _push_http(port: int, body: bytes, target: str, stop: threading.Event) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    count = 0
    while not stop.is_set():
        connection.request("POST", target, body)
        response = connection.getresponse()
        assert response.read() == b"OK", response.status
        count += 1
    connection.close()
    return count


async def _drop(_scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"OK"})


def _serve_dropping(report: Connection) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    report.send(listener.getsockname()[1])
    config = uvicorn.Config(
        _drop, http="httptools", loop="uvloop", lifespan="off", log_config=None, access_log=False
    )
    uvicorn.Server(config).run(sockets=[listener])


def _serve_broker(report: Connection) -> None:
    folder = tempfile.mkdtemp(prefix="penstock-bench-")
    options = BrokerOptions(folder=folder, http_port=0, default_partitions=2)
    kept = DiskQueueOptions(retention_bytes=1 << 30)
    try:
        run_broker(options, kept, on_ready=lambda server: report.send(server.http_port))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    print_rows(run())
