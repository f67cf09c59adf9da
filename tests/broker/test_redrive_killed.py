"""A real broker process, killed with -9 while two users redrive its dead letters."""

from __future__ import annotations

import json
import random
import signal
import threading
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.broker.test_broker_killed import Process
from tests.broker.test_redrive import letter, order

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system

COUNT, KILLS = 1_500, 3


def post(url: str, body: bytes = b"") -> bytes:
    request = urllib.request.Request(url, body, method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: bytes = answer.read()
    return found


def redrive_all(url: str) -> None:
    """Redrive a few at a time until none is left, whatever fails in between."""
    offset = 0
    while offset < COUNT:
        # A killed broker cuts the connection, or refuses it until it is back.
        with suppress(OSError, ValueError):
            path = f"/topic/redrive?topic=dead&count=20&offset={offset}"
            offset = json.loads(post(url + path))["next_offset"]


def test_each_is_published_once_through_kills(tmp_path: Path, port_of_restarts: int) -> None:
    process = Process(tmp_path, port_of_restarts)
    post(f"{process.url}/topic/create?topic=orders")
    for start in range(0, COUNT, 500):
        bodies = b"\n".join(letter(number) for number in range(start, start + 500))
        post(f"{process.url}/mpub?topic=dead&durable=1", bodies)
    rng = random.Random(7)
    with ThreadPoolExecutor(2) as users:
        redriving = [users.submit(redrive_all, process.url) for _ in range(2)]
        for _ in range(KILLS):
            threading.Event().wait(rng.uniform(0.05, 0.3))
            process.end(signal.SIGKILL)
            process = Process(tmp_path, port_of_restarts)
        for one in redriving:
            one.result(120)
    found: Counter[bytes] = Counter()
    offset = 0
    while offset < COUNT:
        path = f"/peek?topic=orders&count=1000&offset={offset}"
        with urllib.request.urlopen(process.url + path) as answer:
            peeked = json.loads(answer.read())
        found.update(one["body"].encode() for one in peeked["messages"])
        offset = max(peeked["next_offset"], offset + 1)
    process.end(signal.SIGTERM)
    assert found == Counter(map(order, range(COUNT)))
