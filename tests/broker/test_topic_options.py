"""The options of a topic, over HTTP and TCP: what is told, kept, and obeyed without a restart."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.broker.channel.drop_policy import ChannelOptions
from penstock.broker.topics.options import TopicOptions
from tests.broker.broker_kit import RunningBroker
from tests.broker.v2_kit import V2, batch, sized

if TYPE_CHECKING:
    from penstock.broker.options import BrokerOptions


@pytest.fixture
def options(options: BrokerOptions) -> BrokerOptions:
    return dataclasses.replace(options, tcp_port=0)


def configure(broker: RunningBroker, query: str) -> dict[str, dict[str, object]]:
    answer = broker.ask("POST", f"/topic/configure?{query}")
    assert answer.status == 200, answer
    document: dict[str, dict[str, object]] = json.loads(answer.body)
    return document


def test_what_a_topic_is_told_is_kept_and_taken_back(options: BrokerOptions) -> None:
    options = dataclasses.replace(options, channels=ChannelOptions(max_attempts=7))
    with RunningBroker(options) as broker:
        broker.ask("POST", "/topic/create?topic=t")
        told = configure(broker, "topic=t&message_ttl_ms=5000&durable=true&when_full=drop_oldest")
        assert told["set"] == {"message_ttl_ms": 5000, "durable": True, "when_full": "drop_oldest"}
        assert told["options"]["max_attempts"] == 7
        configure(broker, "topic=t&max_attempts=3&durable=")
    with RunningBroker(options) as broker:
        told = json.loads(broker.ask("GET", "/topic/configure?topic=t").body)
        assert told == {
            "topic": "t",
            "options": {
                "max_attempts": 3,
                "dead_letter_topic": None,
                "message_ttl_ms": 5000,
                "requeue_on_disconnect": True,
                "max_bytes": 0,
                "when_full": "drop_oldest",
                "durable": False,
                "retention_ms": None,
                "retention_bytes": None,
            },
            "set": {"message_ttl_ms": 5000, "max_attempts": 3, "when_full": "drop_oldest"},
        }


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("", "MISSING_ARG_TOPIC"),
        ("topic=t&max_attempts=-1", "INVALID_MAX_ATTEMPTS"),
        ("topic=t&max_attempts=65536", "INVALID_MAX_ATTEMPTS"),
        ("topic=t&message_ttl_ms=1e3", "INVALID_MESSAGE_TTL_MS"),
        ("topic=t&durable=maybe", "INVALID_DURABLE"),
        ("topic=t&when_full=explode", "INVALID_WHEN_FULL"),
        ("topic=t&dead_letter_topic=a/b", "INVALID_DEAD_LETTER_TOPIC"),
        ("topic=t&dead_letter_topic=t", "INVALID_DEAD_LETTER_TOPIC"),
        ("topic=t&max_bytes=1000", "INVALID_MAX_BYTES"),
        ("topic=t&max_byte=10000000", "INVALID_OPTION"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    broker: RunningBroker, query: str, code: str
) -> None:
    broker.ask("POST", "/topic/create?topic=t")
    answer = broker.ask("POST", f"/topic/configure?{query}")
    assert (answer.status, json.loads(answer.body)) == (400, {"message": code})
    assert json.loads(broker.ask("GET", "/topic/configure?topic=t").body)["set"] == {}


def test_a_topic_that_is_not_there_has_no_options(broker: RunningBroker) -> None:
    for method in ("GET", "POST"):
        answer = broker.ask(method, "/topic/configure?topic=none&durable=1")
        assert (answer.status, json.loads(answer.body)["message"]) == (404, "TOPIC_NOT_FOUND")


def test_options_that_are_damaged_cost_themselves_and_no_messages(options: BrokerOptions) -> None:
    with RunningBroker(options) as broker:
        broker.ask("POST", "/pub?topic=t", b"kept")
        configure(broker, "topic=t&max_attempts=3")
        path = Path(broker.server.broker.topics.get("t").folder, "topic.json")
    path.write_text(path.read_text().replace('"max_attempts": 3', '"max_attempts": "many"'))
    with RunningBroker(options) as broker:
        assert broker.stored("t") == [[b"kept"]]
        assert broker.server.broker.topics.get("t").options == TopicOptions()


def syncs(broker: RunningBroker) -> int:
    return broker.server.broker.topics.get("t").queues[0].statistics().syncs


@pytest.mark.parametrize("way", ["topic", "client", "parameter"])
def test_a_durable_publish_is_answered_when_it_is_synced(
    broker: RunningBroker, client: V2, way: str
) -> None:
    broker.ask("POST", "/topic/create?topic=t")
    if way == "topic":
        configure(broker, "topic=t&durable=1")
    if way == "client":
        answer = json.loads(client.identify(feature_negotiation=True, durable=True))
        assert answer["durable"] is True
    queue = broker.server.broker.topics.get("t").queues[0]
    if way != "parameter":
        for count, command in enumerate(
            (b"PUB t\n" + sized(b"a"), b"MPUB t\n" + batch(b"b"), b"DPUB t 50\n" + sized(b"c"))
        ):
            assert client.ask(command) == b"OK"
            assert queue.durable == queue.latest == count + 1
    if way != "client":
        durable = "&durable=1" if way == "parameter" else ""
        for path in ("/pub", "/mpub"):
            assert broker.ask("POST", f"{path}?topic=t{durable}", b"x").body == b"OK"
            assert queue.durable == queue.latest


def test_publishers_share_the_fsync(broker: RunningBroker) -> None:
    broker.ask("POST", "/topic/create?topic=t")
    configure(broker, "topic=t&durable=1")
    clients = [V2(broker.server.broker.tcp_port) for _ in range(20)]
    before = syncs(broker)
    try:
        for _ in range(5):
            for client in clients:
                client.send(b"PUB t\n", sized(b"x"))
            for client in clients:
                assert client.answer() == b"OK"
    finally:
        for client in clients:
            client.close()
    assert syncs(broker) - before < 60, "100 publishes"
