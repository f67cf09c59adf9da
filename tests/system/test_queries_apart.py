"""A query that takes all memory ends the Spark of queries; the task beside it never notices."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from held_file import HeldFile, held_file

from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError, Unavailable
from penstock.services.demo.server import DemoServer
from penstock.services.httpclient import JsonClient
from penstock.services.sqlclient import ask

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

WAIT_S = 120
ROWS = 500
# One array of sixteen gigabytes, which no limit of Spark's own refuses.
RUNAWAY = "SELECT max(n) FROM (SELECT explode(sequence(1L, id + 2000000000)) AS n FROM range(1))"


def rows() -> bytes:
    lines = ({"time": "2013-01-01", "number": number} for number in range(ROWS))
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@pytest.fixture
def file() -> Iterator[HeldFile]:
    with held_file(rows()) as made:
        yield made


def task(url: str) -> dict[str, object]:
    return {
        "type": "index_parallel",
        "spec": {
            "dataSchema": {
                "dataSource": "held",
                "timestampSpec": {"column": "time"},
                "dimensionsSpec": {"dimensions": [{"type": "long", "name": "number"}]},
                "granularitySpec": {"segmentGranularity": "DAY", "rollup": False},
            },
            "ioConfig": {
                "type": "index_parallel",
                "inputSource": {"type": "http", "uris": [url]},
                "inputFormat": {"type": "json"},
            },
        },
    }


def until(what: str, condition: Callable[[], bool]) -> None:
    """Wait for a condition; what is not reachable just now is not there yet."""
    clock, pause = SystemClock(), threading.Condition()
    deadline_s = clock.monotonic_s() + WAIT_S
    while clock.monotonic_s() < deadline_s:
        with contextlib.suppress(PenstockError):
            if condition():
                return
        with pause:
            clock.wait(pause, 0.2)
    pytest.fail(what)


def test_a_query_that_takes_all_memory_does_not_end_a_task(
    server: DemoServer, file: HeldFile, tmp_path: Path
) -> None:
    api = JsonClient(server.http, timeout_s=WAIT_S)
    given = api.post("/druid/indexer/v1/task", task(file.url("a")))
    assert isinstance(given, dict)
    assert file.asked.wait(WAIT_S)
    with pytest.raises(Unavailable, match="more memory than Spark has"):
        ask(api, RUNAWAY)

    def children() -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = json.loads(
            (tmp_path / "data" / "run" / "children.json").read_text()
        )
        return found

    until("the end of the queries' Spark", lambda: children()["queries"]["restarts"] == 1)
    file.may_go_on.set()

    def status() -> object:
        found = api.get(f"/druid/indexer/v1/task/{given['task']}/status")
        assert isinstance(found, dict)
        return found["status"]["statusCode"]

    until("the end of the task", lambda: status() != "RUNNING")
    assert status() == "SUCCESS"
    assert children()["spark"]["restarts"] == 0
    count = 'SELECT count(*) FROM "held"'
    until("an answer", lambda: list(ask(api, count).rows[0]) == [ROWS])
