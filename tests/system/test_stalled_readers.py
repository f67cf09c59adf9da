"""Clients that read one byte of a large answer and stop, and a router that is killed meanwhile."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.services.demo.demo_run import processes_of
from penstock.services.json_client import JsonClient
from penstock.services.sql_client import ask
from penstock.testing.server import LocalPenstock
from tests.system.serving_kit import files_in, until

pytestmark = pytest.mark.system

CLIENTS = 50
WAIT_S = 240
WIDE = "SELECT id, repeat(concat('row ', id, ' '), 80) AS text FROM range(0, 20000, 1, 2)"


def ask_and_stop(url: str) -> socket.socket:
    """Send a query, and read nothing."""
    address = urlsplit(url)
    body = json.dumps({"query": WIDE, "resultFormat": "arrayLines"}).encode()
    client = socket.create_connection((address.hostname, address.port), 60)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    head = f"POST /druid/v2/sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    return client


def files(folder: Path) -> list[Path]:
    """Return the files of answers; those of a router itself are one folder above."""
    answers = folder / "tmp/answers"
    return [path for path in files_in(answers) if len(path.relative_to(answers).parts) == 3]


def test_readers_that_stall_cost_nobody_else_and_a_killed_router_leaves_no_files(
    shared_penstock: LocalPenstock,
) -> None:
    folder, url = shared_penstock.folder, shared_penstock.api_url
    api = JsonClient(url, timeout_s=60)
    with ExitStack() as clients:
        stalled = [clients.enter_context(ask_and_stop(url)) for _ in range(CLIENTS)]
        begun: set[int] = set()

        def all_began() -> bool:
            ready, _, _ = select.select(
                [one for one in stalled if one.fileno() not in begun], [], [], 1
            )
            for one in ready:
                assert one.recv(1) == b"H"
                begun.add(one.fileno())
            return len(begun) == CLIENTS

        until("a first byte for each client", all_began, WAIT_S)
        assert ask(api, "SELECT 1").rows == [[1]]
        assert files(folder), "their answers wait in files"
        assert shared_penstock.pid is not None
        # A process that it starts has its name for a moment, and comes after it.
        router = next(one for one in processes_of(shared_penstock.pid) if one.name == "router")
        os.kill(router.pid, signal.SIGKILL)
        until("the next router", lambda: ask(api, "SELECT 2").rows == [[2]], WAIT_S)
        assert files(folder) == []
        rows = ask(api, WIDE).rows
        assert len(rows) == 20_000
        assert rows[-1][0] == 19_999
        until("the end of the answer's files", lambda: not files(folder), WAIT_S)
