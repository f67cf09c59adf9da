"""PutDatasource: a real broker, and an overlord's answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson
import pytest

from penstock.broker.options import BrokerOptions
from penstock.core.errors import Dependency
from penstock.flow.processor import PropertyValue
from penstock.flow.processors.topics.put_datasource import PutDatasource
from penstock.testing.flow import ProcessorRunner
from tests.broker.broker_kit import RunningBroker
from tests.kits.this_host_kit import this_host_listed

JSON_SPEC = {"ioConfig": {"topic": "rides", "inputFormat": {"type": "json"}}}
ANSWERS: dict[str, tuple[int, bytes]] = {
    "rides": (200, orjson.dumps({"type": "penstock", "spec": JSON_SPEC})),
    "bare": (200, orjson.dumps(JSON_SPEC)),
    "csv": (200, orjson.dumps({"ioConfig": {"topic": "t", "inputFormat": {"type": "csv"}}})),
    "odd": (200, b"[]"),
    "own": (200, orjson.dumps({"spec": {**JSON_SPEC, "dataSchema": {"dataSource": "own"}}})),
    "foreign": (200, orjson.dumps({"spec": {**JSON_SPEC, "dataSchema": {"dataSource": "pay"}}})),
    "none": (200, b"<html>"),
    "busy": (503, b""),
    "closed": (401, b'{"error": "no"}'),
}


@pytest.fixture(autouse=True)
def servers_of_this_host() -> Iterator[None]:
    """Allow servers of tests."""
    with this_host_listed():
        yield


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = ANSWERS.get(self.path.rpartition("/")[2], (404, b"{}"))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def overlord() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        serving.join()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("broker")
    with RunningBroker(BrokerOptions(folder=str(folder), http_port=0)) as running:
        yield running


def runner_of(
    broker: RunningBroker, overlord: str, **more: PropertyValue
) -> ProcessorRunner[PutDatasource]:
    properties = {"broker_url": broker.url, "overlord_url": overlord, "datasource": "${to}", **more}
    return ProcessorRunner(PutDatasource, properties)


def test_records_go_to_the_topic_that_the_supervisor_reads(
    broker: RunningBroker, overlord: str
) -> None:
    with runner_of(broker, overlord) as runner:
        runner.enqueue(b'{"n": 1}\n{"n": 2}\n', to="rides")
        runner.enqueue(b'{"n": 3}', to="bare")
        runner.enqueue(b'{"n": 4}', to="own")
        runner.run_until_idle()
        assert runner.counts() == {"success": 3}
        stored = sorted(message for part in broker.stored("rides") for message in part)
        assert stored == [b'{"n": %d}' % number for number in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("datasource", "message"),
    [
        ("missing", "has no supervisor"),
        ("csv", "reads csv"),
        ("odd", "does not read a topic"),
        ("foreign", "the supervisor 'foreign' writes the datasource 'pay'"),
        ("none", "does not read a topic"),
        ("", "is empty for this FlowFile"),
        ("a" * 70_000, "too many for a URL"),
    ],
)
def test_what_no_supervisor_reads_fails(
    broker: RunningBroker, overlord: str, datasource: str, message: str
) -> None:
    with runner_of(broker, overlord) as runner:
        runner.enqueue(b"{}", to=datasource)
        runner.run()
        assert message in runner.sent("failure")[0].attributes["error.reason"]


@pytest.mark.parametrize(
    ("datasource", "text"),
    [
        ("busy", "busy was answered 503"),
        ("closed", "a token, and it is missing or wrong: set the property overlord_token"),
        ("away", "check that it is running"),
    ],
)
def test_records_wait_while_the_overlord_does_not_say(
    broker: RunningBroker,
    overlord: str,
    caplog: pytest.LogCaptureFixture,
    datasource: str,
    text: str,
) -> None:
    url = "http://127.0.0.1:1" if datasource == "away" else overlord
    with runner_of(broker, url) as runner:
        runner.enqueue(b"{}", to=datasource)
        runner.run()
        assert runner.yielded_ms
        reported = runner.unavailable
        assert reported is not None
        assert reported.dependency is Dependency.OVERLORD
        assert runner.counts() == {}
        assert text in caplog.text
        runner.restart({"broker_url": broker.url, "overlord_url": overlord, "datasource": "rides"})
        runner.run()
        assert runner.counts() == {"success": 1}
