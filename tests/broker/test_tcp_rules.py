"""What a channel was told, obeyed over NSQ's protocol, through restarts and kill -9."""

from __future__ import annotations

import dataclasses
import json
import signal
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.broker_client import BrokerClient, Requests
from tests.broker.broker_kit import RunningBroker
from tests.broker.broker_process_kit import BrokerProcess
from tests.broker.v2_kit import V2, sized

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.broker.options import BrokerOptions

HOUR = 3_600_000


@pytest.fixture
def options(options: BrokerOptions) -> BrokerOptions:
    return dataclasses.replace(options, tcp_port=0)


def connect(broker: RunningBroker) -> V2:
    return V2(broker.server.broker.tcp_port)


def configure(broker: RunningBroker, query: str) -> None:
    broker.ask("POST", "/topic/create?topic=t")
    assert broker.ask("POST", f"/topic/configure?topic=t&{query}").status == 200


def requeue(client: V2, attempts: int, delay_ms: int = 0) -> None:
    message = client.message()
    assert message.attempts == attempts
    client.send(b"REQ %s %d\n" % (message.id, delay_ms))


def test_attempts_go_on_over_a_restart_and_end_in_the_dead_letter_topic(
    options: BrokerOptions,
) -> None:
    with RunningBroker(options) as broker:
        configure(broker, "max_attempts=4&dead_letter_topic=dead")
        with connect(broker) as client:
            client.publish("t", b"bad", b"good")
            client.subscribe("t", "c", ready=1)
            requeue(client, 1)
            requeue(client, 2)
            assert client.message().attempts == 3
    with RunningBroker(options) as broker:
        with connect(broker) as client, connect(broker) as undertaker:
            client.subscribe("t", "c", ready=2)
            # By now it takes turns with the other, so that either may come first.
            found = {message.body: message for message in (client.message(), client.message())}
            assert {body: found[body].attempts for body in found} == {b"bad": 4, b"good": 1}
            client.send(b"REQ %s 0\n" % found[b"bad"].id)
            undertaker.subscribe("dead", "all", ready=1)
            message = undertaker.message()
            assert (message.body, message.attempts) == (b"bad", 1)
        topics = broker.server.broker.topics
        counters = topics.get("t").channels["c"].counters
        # A dead letter may be delivered before it is durable, but counts only then.
        while not counters.dead_lettered:
            time.sleep(0.001)
        assert topics.get("dead").queues[0].durable == 1
    with RunningBroker(options) as broker:
        channel = broker.server.broker.topics.get("t").channels["c"]
        assert channel.counts().ready == 1, "the dead one is done with, the good one was in flight"


def test_without_a_dead_letter_topic_they_are_dropped_and_counted(options: BrokerOptions) -> None:
    with RunningBroker(options) as broker:
        configure(broker, "max_attempts=1")
        with connect(broker) as client:
            client.publish("t", b"bad", b"good")
            client.subscribe("t", "c", ready=1)
            requeue(client, 1)
            assert client.message().body == b"good"
        document = json.loads(broker.ask("GET", "/stats?format=json").body)
        (channel,) = document["topics"][0]["channels"]
        assert (channel["messages_given_up"], channel["messages_dead_lettered"]) == (1, 0)
        # More attempts from now on, without a restart.
        configure(broker, "max_attempts=")
        with connect(broker) as client:
            client.subscribe("t", "c", ready=1)
            requeue(client, 2)
            requeue(client, 3)


def test_old_messages_are_not_delivered(options: BrokerOptions) -> None:
    with RunningBroker(options) as broker:
        configure(broker, "message_ttl_ms=1")
        with connect(broker) as client:
            client.publish("t", b"old")
            published_ms = broker.server.broker.topics.get("t").queues[0].last_append_ms
            while broker.server.broker.clock.now_ms() <= published_ms + 1:
                pass
            client.subscribe("t", "c", ready=1)
            client.send(b"FIN ffffffffffffffff\n")
            assert client.error()
            configure(broker, f"message_ttl_ms={HOUR}")
            client.publish("t", b"new")
            assert client.message().body == b"new"
            assert broker.server.broker.topics.get("t").channels["c"].counters.expired == 1


@pytest.mark.parametrize("at_once", [True, False])
def test_what_a_consumer_had_is_due_when_it_was_told(
    options: BrokerOptions, *, at_once: bool
) -> None:
    with RunningBroker(options) as broker:
        configure(broker, f"requeue_on_disconnect={at_once}")
        with connect(broker) as client:
            client.publish("t", b"a")
            client.subscribe("t", "c", ready=1)
            client.message()
        channel = broker.server.broker.topics.get("t").channels["c"]
        while channel.subscribers:
            broker.ask("GET", "/ping")
        counts = channel.counts()
        assert (counts.ready + counts.deferred, counts.in_flight) == ((1, 0) if at_once else (0, 1))


def killed(folder: Path) -> BrokerProcess:
    """Return a broker that ends without notice."""
    return BrokerProcess(folder, signal.SIGKILL)


@pytest.mark.system
def test_due_times_attempts_and_moves_survive_kill_9(tmp_path: Path) -> None:
    with killed(tmp_path / "topics") as broker, V2(broker.tcp_port) as client:
        client.publish("t", b"tried", b"put off")
        assert client.ask(b"DPUB t %d\n" % HOUR, sized(b"deferred")) == b"OK"
        client.subscribe("t", "c", ready=3)
        tried, put_off = client.message(), client.message()
        client.send(b"REQ %s %d\n" % (put_off.id, HOUR), b"REQ %s 0\n" % tried.id)
        assert client.message().attempts == 2
        client.send(b"REQ %s 0\n" % tried.id)
        assert client.message().attempts == 3
        client.send(b"NOP\n", b"REQ %s 0\n" % (b"f" * 16))
        assert client.error()
        url = f"http://127.0.0.1:{broker.http_port}"
        with BrokerClient(url) as http:
            http.publish("moved", [b"a", b"b"])
            with V2(broker.tcp_port) as other:
                other.subscribe("moved", "c", ready=2)
                other.finish(other.message().id, other.message().id)
                other.send(b"FIN %s\n" % (b"f" * 16))
                assert other.error()
            peeked: Any = http.peek("t", channel="c")["messages"]
            seen = {m["body"]: m["due"] for m in peeked}
        place: dict[str, str | int] = {
            "topic": "moved",
            "channel": "c",
            "to": "offset",
            "offset": 1,
        }
        with closing(Requests(url, None, timeout_s=30)) as requests:
            requests.ask("POST", "/channel/seek", place)
    with killed(tmp_path / "topics") as broker, V2(broker.tcp_port) as client:
        client.subscribe("t", "c", ready=3)
        message = client.message()
        assert (message.body, message.attempts) == (b"tried", 4)
        with BrokerClient(f"http://127.0.0.1:{broker.http_port}") as http:
            peeked = http.peek("t", channel="c")["messages"]
            after = {m["body"]: m for m in peeked}
        assert after["put off"]["state"] == "requeued"
        assert after["deferred"]["state"] == "deferred"
        for body in ("put off", "deferred"):
            assert after[body]["due"] == seen[body]
        with V2(broker.tcp_port) as other:
            other.subscribe("moved", "c", ready=2)
            message = other.message()
            assert (message.body, message.attempts) == (b"b", 1)
