"""A query that takes all memory ends the Spark of queries; the task beside it never notices."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError, Unavailable
from penstock.services.demo.server import DemoServer
from penstock.services.host.datafolder import DataFolder
from penstock.services.httpclient import JsonClient
from penstock.services.sqlclient import ask

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

WAIT_S = 120
ROWS = 500
# One array of sixteen gigabytes, which no limit of Spark's own refuses.
RUNAWAY = "SELECT max(n) FROM (SELECT explode(sequence(1L, id + 2000000000)) AS n FROM range(1))"


class Holding(http.server.ThreadingHTTPServer):
    """Serves one file, but keeps who reads it waiting until it may go on."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked = threading.Event()
        self.may_go_on = threading.Event()


class Answer(http.server.BaseHTTPRequestHandler):
    content = b"".join(
        json.dumps({"time": "2013-01-01", "number": number}).encode() + b"\n"
        for number in range(ROWS)
    )

    def do_HEAD(self) -> None:
        self._begin()

    def do_GET(self) -> None:
        assert isinstance(self.server, Holding)
        self.server.asked.set()
        self.server.may_go_on.wait(WAIT_S)
        self._begin()
        self.wfile.write(self.content)

    def _begin(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()

    def log_message(self, *_said: object) -> None:
        """Say nothing."""


@pytest.fixture
def file() -> Iterator[Holding]:
    with Holding() as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.may_go_on.set()
        made.shutdown()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DemoServer]:
    variables = {"PENSTOCK_QUERY_MEMORY": "512m", "PENSTOCK_SPARK_MEMORY": "1g"}
    made = DemoServer(DataFolder(tmp_path / "data"), SystemClock(), variables)
    made.start()
    try:
        made.wait_ready()
        yield made
    finally:
        made.stop()


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
    server: DemoServer, file: Holding, tmp_path: Path
) -> None:
    api = JsonClient(server.http, timeout_s=WAIT_S)
    given = api.post("/druid/indexer/v1/task", task(f"http://127.0.0.1:{file.server_address[1]}/a"))
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
