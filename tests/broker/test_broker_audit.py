"""Records of the broker in the audit: each change has an end, and a connection one for each use."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.broker.options import BrokerOptions
from penstock.core.access.audit import AuditOptions
from tests.broker.broker_access_kit import Installation, bearer
from tests.broker.broker_kit import RunningBroker
from tests.broker.test_tcp_auth import authenticate
from tests.broker.v2_kit import V2

PATIENCE_S = 120


class Rig:
    """A broker whose records are kept."""

    def __init__(self, folder: Path, running: RunningBroker, made: Installation) -> None:
        self.running = running
        self.token = made.token("ci", "admin")
        self.records: list[dict[str, object]] = []
        self.made = made
        self.folder = folder

    def ends(self, count: int) -> list[dict[str, object]]:
        """Wait for records of the end: a client notices its end before the broker."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            found = [one for one in self.records if one["event"] == "end"]
            if len(found) >= count or time.monotonic() > until_s:
                assert len(found) == count, self.records
                return found
            time.sleep(0.01)


class Keeps(logging.Handler):
    def __init__(self, records: list[dict[str, object]]) -> None:
        super().__init__()
        self.kept = records

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append(json.loads(record.getMessage()))


@contextmanager
def served(folder: Path, *, everything: bool) -> Iterator[Rig]:
    made = Installation(folder / "access", audit=AuditOptions("", records_everything=everything))
    options = BrokerOptions(folder=str(folder / "topics"), http_port=0, tcp_port=0)
    logger = logging.getLogger("penstock.audit")
    with RunningBroker(options, access=made.control) as running:
        rig = Rig(folder, running, made)
        handler, level = Keeps(rig.records), logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            yield rig
        finally:
            logger.setLevel(level)
            logger.removeHandler(handler)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with served(tmp_path_factory.mktemp("all"), everything=True) as rig:
        yield rig


@pytest.fixture(autouse=True)
def _forget(request: pytest.FixtureRequest) -> None:
    if "everything" in request.fixturenames:
        request.getfixturevalue("everything").records.clear()


def test_a_connection_has_one_record_for_each_topic_with_its_messages(everything: Rig) -> None:
    with V2(everything.running.server.broker.tcp_port) as client:
        authenticate(client, everything.token.encode())
        for _ in range(200):
            client.publish("clicks", b"x")
        client.publish("orders", b"x", b"y")
    ends = everything.ends(2)
    assert [(one["resource"], one["messages"]) for one in ends] == [
        ("topic:clicks", 200),
        ("topic:orders", 2),
    ]
    begins = [one for one in everything.records if one["event"] == "decision"]
    assert [one["request"] for one in begins] == [one["request"] for one in ends]
    for one in ends:
        assert (one["principal"], one["action"], one["allowed"]) == ("token:ci", "write", True)
        assert isinstance(one["duration_ms"], float)
        assert one["origin"]


def test_a_consumer_has_one_record_with_the_messages_that_it_received(everything: Rig) -> None:
    port = everything.running.server.broker.tcp_port
    with V2(port) as client:
        authenticate(client, everything.token.encode())
        client.publish("read", b"a", b"b")
        client.subscribe("read", "c", ready=10)
        assert {client.message().body, client.message().body} == {b"a", b"b"}
    ends = everything.ends(2)
    assert [(one["resource"], one["messages"]) for one in ends] == [
        ("topic:read", 2),
        ("channel:read/c", 2),
    ]


def test_a_new_generation_of_rules_begins_no_second_use(everything: Rig) -> None:
    with V2(everything.running.server.broker.tcp_port) as client:
        authenticate(client, everything.token.encode())
        client.publish("clicks", b"x")
        everything.made.rules("[roles.other]\nallow = []\n")
        client.publish("clicks", b"x")
    (end,) = everything.ends(1)
    assert end["messages"] == 2


def test_reads_of_a_connection_over_http_are_counted(everything: Rig) -> None:
    connection = everything.running.connect()
    for path in ("/pub?topic=t", "/pub?topic=t", "/stats?format=json"):
        method, body = ("POST", b"x") if path.startswith("/pub") else ("GET", None)
        connection.request(method, path, body, bearer(everything.token))
        assert connection.getresponse().read()
    connection.close()
    ends = everything.ends(1)
    assert [(one["resource"], one["requests"]) for one in ends] == [("topic:t", 2)]


def test_each_change_over_http_has_an_end_with_its_status(tmp_path: Path) -> None:
    with served(tmp_path, everything=False) as rig:
        connection = rig.running.connect()
        connection.request("POST", "/pub?topic=t", b"x", bearer(rig.token))
        assert connection.getresponse().read() == b"OK"
        statuses = []
        for path in ("/topic/empty?topic=t", "/topic/empty?topic=t", "/topic/empty?topic=none"):
            connection.request("POST", path, headers=bearer(rig.token))
            answer = connection.getresponse()
            answer.read()
            statuses.append(answer.status)
        ends = rig.ends(3)
        connection.close()
    assert statuses == [200, 200, 404]
    assert [(one["resource"], one["status"]) for one in ends] == [
        ("topic:t", 200),
        ("topic:t", 200),
        ("topic:none", 404),
    ]
    assert len({one["request"] for one in ends}) == 3
    assert all(isinstance(one["duration_ms"], float) for one in ends)
    assert len(rig.records) == 6  # publishes are not recorded


def test_two_principals_of_one_connection_have_their_own_records(everything: Rig) -> None:
    other = everything.made.token("other", "publisher")
    connection = everything.running.connect()
    for token in (everything.token, everything.token, other):
        connection.request("POST", "/pub?topic=t", b"x", bearer(token))
        assert connection.getresponse().read() == b"OK"
    connection.close()
    ends = everything.ends(2)
    assert [(one["principal"], one["requests"]) for one in ends] == [
        ("token:ci", 2),
        ("token:other", 1),
    ]
