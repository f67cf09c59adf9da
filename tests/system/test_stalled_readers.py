"""Clients that read one byte of a large answer and stop, and a router that is killed meanwhile."""

from __future__ import annotations

import json
import select
import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from load_kit import Rig, running_rig

from penstock.services.sql_client import ask

pytestmark = [pytest.mark.system, pytest.mark.timeout(420)]

CLIENTS = 50
WIDE = "SELECT id, repeat(concat('row ', id, ' '), 80) AS text FROM range(0, 20000, 1, 2)"


def ask_and_stop(rig: Rig) -> socket.socket:
    """Send a query, and read nothing."""
    address = urlsplit(rig.server.http)
    body = json.dumps({"query": WIDE, "resultFormat": "arrayLines"}).encode()
    client = socket.create_connection((address.hostname, address.port), 60)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    head = f"POST /druid/v2/sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    return client


def files(rig: Rig, folder: Path) -> list[Path]:
    return [path for path in (folder / "tmp/answers").glob("*/*/*") if path.is_file()]


def test_readers_that_stall_cost_nobody_else_and_a_killed_router_leaves_no_files(
    tmp_path: Path, shared_spark: str
) -> None:
    folder = tmp_path / "data"
    variables = {"PENSTOCK_SPARK_CONNECT": shared_spark}
    with running_rig(folder, variables) as rig, ExitStack() as clients:
        stalled = [clients.enter_context(ask_and_stop(rig)) for _ in range(CLIENTS)]
        begun: set[int] = set()

        def all_began() -> bool:
            ready, _, _ = select.select(
                [one for one in stalled if one.fileno() not in begun], [], [], 1
            )
            for one in ready:
                assert one.recv(1) == b"H"
                begun.add(one.fileno())
            return len(begun) == CLIENTS

        rig.until("a first byte for each client", all_began)
        assert ask(rig.api, "SELECT 1").rows == [[1]]
        assert files(rig, folder), "their answers wait in files"
        rig.kill("router")
        rig.until("the next router", lambda: ask(rig.api, "SELECT 2").rows == [[2]])
        assert files(rig, folder) == []
        rows = ask(rig.api, WIDE).rows
        assert len(rows) == 20_000
        assert rows[-1][0] == 19_999
        rig.until("the end of the answer's files", lambda: not files(rig, folder))
