"""Built-in processors on the real scheduler: sources are woken, and what they take arrives once."""

from __future__ import annotations

import http.client
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.broker.options import BrokerOptions
from penstock.core.clock import SystemClock
from penstock.flow.controller.controller import ControllerOptions, FlowController
from penstock.flow.graph.yaml_reader import read_flow
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.processors.builtin import BUILTIN
from penstock.storage.disk import OsFileSystem
from tests.broker.broker_kit import RunningBroker
from tests.kits.ports_kit import kept_port
from tests.kits.this_host_kit import this_host_listed

FLOW = """
name: through
processors:
  Listen: {{type: ListenHTTP, properties: {{port: "{port}", path: /in}}}}
  Files: {{type: GetFile, properties: {{folder: "{folder}", minimum_age: 0 sec}}}}
  Publish:
    type: PublishTopic
    properties: {{broker_url: "{broker}", topic: first}}
    auto_terminated: [success, failure]
  Consume:
    type: ConsumeTopic
    properties: {{addresses: "{tcp}", topic: first, channel: flow, content: lines}}
  Again:
    type: PublishTopic
    properties: {{broker_url: "{broker}", topic: second, message: line}}
    auto_terminated: [success, failure]
connections:
  - {{from: Listen.success, to: Publish}}
  - {{from: Files.success, to: Publish}}
  - {{from: Consume.success, to: Again}}
"""


@pytest.fixture(autouse=True)
def servers_of_this_host() -> Iterator[None]:
    """Allow servers of tests."""
    with this_host_listed():
        yield


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    options = BrokerOptions(folder=str(tmp_path / "topics"), http_port=0, tcp_port=0)
    with RunningBroker(options) as running:
        yield running


@pytest.fixture
def port() -> Iterator[int]:
    """A port for the processor that listens."""
    with kept_port() as kept:
        yield kept


def post(port: int, body: bytes) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("POST", "/in", body)
        return connection.getresponse().status
    finally:
        connection.close()


def test_what_comes_by_http_and_files_goes_through_topics_once(
    tmp_path: Path, broker: RunningBroker, port: int
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(50):
        (folder / f"{number}").write_bytes(b"file %d" % number)
        os.utime(folder / f"{number}", (1_700_000_000, 1_700_000_000))
    numbers = itertools.count()
    controller = FlowController.open(
        str(tmp_path / "flow"),
        fs=OsFileSystem(),
        clock=SystemClock(),
        registry=ProcessorRegistry(BUILTIN),
        new_uuid=lambda: f"u{next(numbers)}",
        environment={},
        options=ControllerOptions(stop_limit_s=10.0),
    )
    try:
        text = FLOW.format(
            port=port,
            folder=folder,
            broker=broker.url,
            tcp=f"127.0.0.1:{broker.server.broker.tcp_port}",
        )
        controller.apply(read_flow(text, "flow.yaml").flow)
        controller.start()
        wait_until(lambda: _listens(port))
        with ThreadPoolExecutor(4) as threads:
            answers = threads.map(lambda n: post(port, b"request %d" % n), range(50))
            assert set(answers) == {200}
        expected = sorted(b"%b %d" % (kind, n) for kind in (b"file", b"request") for n in range(50))
        wait_until(lambda: len(_stored(broker, "second")) >= 100)
        assert _stored(broker, "second") == expected
        assert _stored(broker, "first") == expected
        # A file is deleted after its FlowFile is committed.
        wait_until(lambda: not list(folder.iterdir()))
    finally:
        controller.close()


def _stored(broker: RunningBroker, topic: str) -> list[bytes]:
    answer = broker.ask("GET", f"/offsets?topic={topic}")
    if answer.status != 200:
        return []
    return sorted(message for partition in broker.stored(topic) for message in partition)


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def wait_until(condition: object) -> None:
    assert callable(condition)
    pause, end_s = threading.Event(), time.monotonic() + 120
    while time.monotonic() < end_s:
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come")
