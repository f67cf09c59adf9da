"""Cost of access control for a publish, in processor time of the broker.

Three brokers serve the same requests in turn, a third of a second each: one lets everyone in
without a check of credentials, one knows its own user from the kernel, and one has 10,000 tokens,
of which the client sends one that will expire. The first is what the others are compared with.
Processor time is compared instead of rates, because the rate of one client depends on what else the
machine does.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from benchmarks.processes import Child, running_s
from benchmarks.table import Row, print_rows
from penstock.broker.options import BrokerOptions
from penstock.broker.server import run_broker
from penstock.core.access.access_control import AccessControl
from penstock.core.access.bearer_tokens import new_token
from penstock.core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

SECONDS = float(os.environ.get("PENSTOCK_BENCH_SECONDS", "0.33"))
ROUNDS = 31
TOKENS = 10_000
ROLES = 1_000
AIM = "<= 1.03"
MESSAGE = b'{"time_hour":"2013-01-01T12:00:00Z","flight":17,"dest":"IAH"}'.ljust(300, b"x")
PIPELINED = 50


class _Serving:
    """A broker with one kind of access control, as a picklable callable."""

    def __init__(self, folder: Path, *, is_open: bool) -> None:
        self._folder = folder
        self._is_open = is_open

    def __call__(self, report: Connection) -> None:
        options = BrokerOptions(folder=str(self._folder / "topics"), http_port=0, tcp_port=0)
        access = AccessControl(self._folder / "access", SystemClock())
        run_broker(
            options,
            access=AccessControl.open() if self._is_open else access,
            on_ready=lambda server: report.send(server.http_port),
        )


def add_credentials(folder: Path) -> str:
    """Add tokens and roles, and return one of the tokens."""
    own = new_token()
    expires = int(time.time() * 1000) + 3_600_000
    tokens = {
        token.id: {
            "name": f"token-{number}",
            "sha256": token.digest.hex(),
            "roles": [f"team-{number % ROLES}", "viewer", "analyst"],
            "expires": expires,
        }
        for number, token in enumerate([own, *(new_token() for _ in range(TOKENS - 1))])
    }
    access = folder / "access"
    access.mkdir(mode=0o700)
    credentials = access / "credentials.json"
    credentials.write_bytes(msgspec.json.encode({"format": 1, "users": {}, "tokens": tokens}))
    credentials.chmod(0o600)
    (access / "access.toml").write_text(
        "".join(
            f'[roles.team-{number}]\nallow = ["read,write topic:t{number}-*", "write topic:t"]\n'
            f'deny = ["* topic:t{number}-secret"]\n'
            for number in range(ROLES)
        )
    )
    return own.text


def _over_http(port: int, token: str) -> Callable[[], int]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    headers = {"Authorization": f"Bearer {token}"} if token else {}

    def push() -> int:
        connection.request("POST", "/pub?topic=t", MESSAGE, headers)
        answer = connection.getresponse()
        assert answer.read() == b"OK", answer.status
        return 1

    return push


def _over_tcp(port: int, token: str) -> Callable[[], int]:
    asking = http.client.HTTPConnection("127.0.0.1", port)
    asking.request("GET", "/info", headers={"Authorization": f"Bearer {token}"} if token else {})
    tcp_port = json.loads(asking.getresponse().read())["tcp_port"]
    asking.close()
    connection = socket.create_connection(("127.0.0.1", tcp_port))
    connection.sendall(b"  V2")
    if token:
        connection.sendall(b"AUTH\n" + struct.pack(">i", len(token)) + token.encode())
        assert b"token-0" in connection.recv(4096)
    body = struct.pack(">i", len(MESSAGE)) + MESSAGE
    # NOP between them: consecutive commands for one topic are executed as one.
    sent = (b"PUB t\n" + body + b"NOP\n") * PIPELINED

    def push() -> int:
        connection.sendall(sent)
        size = PIPELINED * len(struct.pack(">ii", 0, 0) + b"OK")
        while size:
            size -= len(connection.recv(size))
        return PIPELINED

    return push


KINDS = ("open", "owner", "token")
PUBLISHES = (
    ("one message each, HTTP", _over_http),
    ("PUB, 50 pipelined, TCP", _over_tcp),
)


def run() -> list[Row]:
    """Measure."""
    rows: list[Row] = []
    with ExitStack() as stack:
        served, tokens = {}, dict.fromkeys(KINDS, "")
        for kind in KINDS:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-")))
            if kind == "token":
                tokens[kind] = add_credentials(folder)
            served[kind] = stack.enter_context(Child(_Serving(folder, is_open=kind == "open")))
        for name, connect in PUBLISHES:
            pushes = {kind: connect(served[kind][0], tokens[kind]) for kind in KINDS}
            for push in pushes.values():
                _count(push, 0.3)
            costs: dict[str, list[float]] = {kind: [] for kind in KINDS}
            for number in range(ROUNDS):
                # Each kind is first, second and last equally often.
                turn = number % len(KINDS)
                for kind in (*KINDS[turn:], *KINDS[:turn]):
                    before = running_s(served[kind][1])
                    count = _count(pushes[kind], SECONDS)
                    costs[kind].append((running_s(served[kind][1]) - before) / count * 1e6)
            without = sorted(costs["open"])[ROUNDS // 2]
            for kind in KINDS[1:]:
                # Of the same round, because the speed of the machine changes.
                ratios = sorted(a / b for a, b in zip(costs[kind], costs["open"], strict=True))
                ours = sorted(costs[kind])[ROUNDS // 2]
                ratio = ratios[ROUNDS // 2]
                rows.append(Row(f"{name}: {kind}", ours, "µs", "no check", without, ratio, AIM))
    return rows


def _count(push: Callable[[], int], seconds: float) -> int:
    end, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        count += push()
    return count


if __name__ == "__main__":
    print_rows(run())
