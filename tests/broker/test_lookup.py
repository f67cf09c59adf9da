"""The broker as an nsqlookupd: what clients and nsqadmin ask of one."""

from __future__ import annotations

import dataclasses
import json
import socket

import pytest

from penstock.broker.lookupd.announcer import LookupOptions
from penstock.broker.options import BrokerOptions
from tests.broker.broker_kit import RunningBroker
from tests.broker.v2_kit import V2


@pytest.fixture
def options(options: BrokerOptions) -> BrokerOptions:
    return dataclasses.replace(options, tcp_port=0)


def ask(broker: RunningBroker, target: str) -> dict[str, object]:
    answer = broker.ask("GET", target)
    assert answer.status == 200, answer
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    document: dict[str, object] = json.loads(answer.body)
    return document


def make(broker: RunningBroker, *topics: str) -> None:
    for topic in topics:
        assert broker.ask("POST", f"/topic/create?topic={topic}").status == 200


def test_a_topic_is_found_with_its_channels_and_where_to_connect(broker: RunningBroker) -> None:
    make(broker, "t")
    for channel in ("b", "a"):
        broker.ask("POST", f"/channel/create?topic=t&channel={channel}")
    port = broker.server.broker.tcp_port
    found = ask(broker, "/lookup?topic=t")
    producer = {
        "remote_address": f"127.0.0.1:{port}",
        "hostname": socket.gethostname(),
        "broadcast_address": "127.0.0.1",
        "tcp_port": port,
        "http_port": broker.server.http_port,
        "version": "1.3.0",
        "topology_zone": "",
        "topology_region": "",
    }
    assert found == {"channels": ["a", "b"], "producers": [producer]}
    assert ask(broker, "/channels?topic=t") == {"channels": ["a", "b"]}
    with V2(port) as client:
        client.subscribe("t", "a")


def test_the_topics_and_the_node(broker: RunningBroker) -> None:
    assert ask(broker, "/topics") == {"topics": []}
    make(broker, "b", "a")
    assert ask(broker, "/topics") == {"topics": ["a", "b"]}
    nodes = ask(broker, "/nodes")["producers"]
    assert isinstance(nodes, list)
    assert len(nodes) == 1
    assert nodes[0]["topics"] == ["a", "b"]
    assert nodes[0]["tombstones"] == [False, False]
    assert nodes[0]["tcp_port"] == broker.server.broker.tcp_port
    broker.ask("POST", "/channel/create?topic=a&channel=c")
    assert set(ask(broker, "/debug")) == {"client::", "topic:a:", "topic:b:", "channel:a:c"}


def test_what_is_not_there(broker: RunningBroker) -> None:
    for target, status, code in [
        ("/lookup", 400, "MISSING_ARG_TOPIC"),
        ("/channels", 400, "MISSING_ARG_TOPIC"),
        ("/lookup?topic=none", 404, "TOPIC_NOT_FOUND"),
        ("/lookup?topic=../../etc", 404, "TOPIC_NOT_FOUND"),
    ]:
        answer = broker.ask("GET", target)
        assert (answer.status, json.loads(answer.body)) == (status, {"message": code})
    assert ask(broker, "/channels?topic=none") == {"channels": []}


def test_clients_that_wait_for_a_topic_get_no_hint(broker: RunningBroker) -> None:
    """They repeat the request: a search for a similar name would block the event loop each time."""
    make(broker, "sales")
    hint = "x-penstock-detail"
    assert "did you mean 'sales'" in broker.ask("GET", "/offsets?topic=salse").headers[hint]
    assert "did you mean" not in broker.ask("GET", "/lookup?topic=salse").headers[hint]


def test_clients_are_told_the_address_that_was_configured(options: BrokerOptions) -> None:
    lookup = LookupOptions(
        broadcast_address="nsq.example", broadcast_tcp_port=14150, broadcast_http_port=14151
    )
    with RunningBroker(dataclasses.replace(options, lookup=lookup)) as broker:
        make(broker, "t")
        producers = ask(broker, "/lookup?topic=t")["producers"]
        assert isinstance(producers, list)
        found = producers[0]
        assert found["broadcast_address"] == "nsq.example"
        assert (found["tcp_port"], found["http_port"]) == (14150, 14151)
