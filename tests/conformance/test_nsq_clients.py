"""The NSQ clients that people use, as they are, against the broker: one set of scenarios for all.

A scenario that a client has no call for is skipped, with what it lacks: see `LACKING`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import time
from typing import TYPE_CHECKING

import pytest

from penstock.broker.options import BrokerOptions
from tests.broker.broker_kit import RunningBroker
from tests.conformance.clients_kit import PATIENCE_S, Client, Got, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.conformance

LACKING = {
    ("ansq", "auth"): "it has no AUTH",
    ("asyncnsq", "auth"): "it has no AUTH",
    ("nsqjs", "optional auth"): "it sends AUTH unasked, which NSQ refuses as well",
    ("ansq", "deflate"): "its upgrade to deflate is not implemented",
    ("ansq", "snappy"): "its upgrade to snappy is not implemented",
    ("ansq", "tls"): "its upgrade to TLS is not implemented",
    ("asyncnsq", "tls"): "its upgrade asks for TLS 1.0 alone, and for a parameter asyncio dropped",
    # Tested with the broker's own timeout instead.
    ("asyncnsq", "timeout_ms"): "it does not negotiate the message timeout",
    ("gnsq", "timeout_ms"): "it does not negotiate the message timeout",
    # Tested with a new reader instead.
    ("asyncnsq", "consumer returns"): "its reader does not connect again",
}

_topics = (f"scenario-{number}" for number in itertools.count())


@pytest.fixture
def topic() -> str:
    return next(_topics)


class Pair:
    """A producer and consumers of one client at one broker."""

    def __init__(self, client: Client, broker: RunningBroker, topic: str) -> None:
        self.client = client
        self.port = broker.server.broker.tcp_port
        self._broker = broker
        self.topic = topic
        self.names: list[str] = []
        self.producer = self._name("producer")

    def _name(self, kind: str) -> str:
        self.names.append(f"{self.topic} {kind} {len(self.names)}")
        return self.names[-1]

    def produce(self, **features: object) -> None:
        self.client.ask("produce", self.producer, port=self.port, **features)

    def create(self, *channels: str) -> None:
        """Make channels, so that they have all that is published from now on.

        Some clients say that they subscribe before they have.
        """
        assert self._broker.ask("POST", f"/topic/create?topic={self.topic}").status == 200
        for channel in channels:
            where = f"topic={self.topic}&channel={channel}"
            assert self._broker.ask("POST", f"/channel/create?{where}").status == 200

    def publish(self, *bodies: str) -> None:
        for body in bodies:
            self.client.ask("publish", self.producer, topic=self.topic, body=body)

    def publish_batch(self, *bodies: str) -> None:
        self.client.ask("publish_batch", self.producer, topic=self.topic, bodies=bodies)

    def consume(
        self, channel: str = "channel", in_flight: int = 1, finish: bool = False, **more: object
    ) -> str:
        name = self._name("consumer")
        where = {"port": self.port, "topic": self.topic, "channel": channel}
        self.client.ask("consume", name, **where, in_flight=in_flight, finish=finish, **more)
        return name

    def finish(self, consumer: str, message: Got) -> None:
        self.client.ask("finish", consumer, message=message.id)

    def leave(self) -> None:
        for name in self.names:
            with contextlib.suppress(Refused):  # it was never there, or has gone
                self.client.ask("leave", name)


@pytest.fixture
def pair(client: Client, broker: RunningBroker, topic: str) -> Iterator[Pair]:
    made = Pair(client, broker, topic)
    yield made
    made.leave()


# How each client calls the secret of AUTH.
SECRETS = {"pynsq": "auth_secret", "gnsq": "auth_secret", "nsqjs": "authSecret"}


def require(client: Client, feature: str) -> None:
    if reason := LACKING.get((client.kind, feature)):
        pytest.skip(f"{client.kind} has no call for this: {reason}")


def test_what_is_published_is_delivered_in_order_and_finished(pair: Pair) -> None:
    pair.produce()
    consumer = pair.consume(in_flight=1)
    pair.publish("one")
    pair.publish_batch("two", "three", "four \x00\xff\n")
    pair.publish("five")
    ids = set()
    for body in ("one", "two", "three", "four \x00\xff\n", "five"):
        # One at a time: each comes because the one before was finished.
        message = pair.client.message(consumer)
        assert (message.body, message.attempts) == (body, 1)
        ids.add(message.id)
        pair.finish(consumer, message)
    assert len(ids) == 5


def test_every_channel_has_each_message_and_its_consumers_share_them(pair: Pair) -> None:
    pair.produce()
    pair.publish("first")
    alone = pair.consume("alone", in_flight=10, finish=True)
    assert pair.client.message(alone).body == "first"
    pair.create("shared")
    shared = [pair.consume("shared", in_flight=1, finish=True) for _ in range(2)]
    bodies = {f"{number}" for number in range(50)}
    pair.publish_batch(*bodies)
    assert {pair.client.message(alone).body for _ in bodies} == bodies
    found = set()
    while found != bodies:
        for consumer in shared:
            if pair.client.has_message(consumer):
                body = pair.client.message(consumer).body
                assert body not in found
                found.add(body)


def test_a_deferred_message_comes_after_its_time(pair: Pair) -> None:
    pair.produce()
    consumer = pair.consume(in_flight=1, finish=True)
    pair.client.ask("defer", pair.producer, topic=pair.topic, body="later", ms=500)
    pair.publish("now")
    assert pair.client.message(consumer).body == "now"
    assert pair.client.message(consumer)[1:] == (1, "later")


def test_a_requeued_message_comes_again(pair: Pair) -> None:
    pair.produce()
    consumer = pair.consume(in_flight=1)
    pair.publish("again")
    first = pair.client.message(consumer)
    pair.client.ask("requeue", consumer, message=first.id, ms=0)
    assert pair.client.message(consumer) == Got(first.id, 2, "again")
    pair.client.ask("requeue", consumer, message=first.id, ms=200)
    pair.publish("other")
    other = pair.client.message(consumer)
    assert other[1:] == (1, "other")
    pair.finish(consumer, other)
    third = pair.client.message(consumer)
    assert third == Got(first.id, 3, "again")
    pair.finish(consumer, third)


def test_a_paused_channel_delivers_when_it_goes_on(pair: Pair, broker: RunningBroker) -> None:
    pair.produce()
    pair.create("paused", "other")
    consumer, other = pair.consume("paused", finish=True), pair.consume("other", finish=True)
    pair.publish("before")
    assert pair.client.message(consumer).body == pair.client.message(other).body == "before"
    where = f"topic={pair.topic}&channel=paused"
    assert broker.ask("POST", f"/channel/pause?{where}").status == 200
    pair.publish("meanwhile")
    assert pair.client.message(other).body == "meanwhile"
    assert not pair.client.has_message(consumer)
    assert broker.ask("POST", f"/channel/unpause?{where}").status == 200
    assert pair.client.message(consumer)[1:] == (1, "meanwhile")


def test_three_thousand_messages_come_once_each(pair: Pair) -> None:
    pair.produce()
    consumer = pair.consume(in_flight=250, finish=True)
    bodies = [f"message {number}" for number in range(3_000)]
    alone, together = bodies[:300], bodies[300:]
    begun = [
        pair.client.begin("publish", pair.producer, topic=pair.topic, body=body) for body in alone
    ]
    for number in begun:
        pair.client.end(number)
    for start in range(0, len(together), 300):
        pair.publish_batch(*together[start : start + 300])
    got = [pair.client.message(consumer) for _ in bodies]
    assert sorted(message.body for message in got) == sorted(bodies)
    assert {message.attempts for message in got} == {1}
    assert len({message.id for message in got}) == len(bodies)
    assert not pair.client.has_message(consumer)


@pytest.mark.parametrize("feature", ["deflate", "snappy"])
def test_compressed_connections_carry_large_and_small(pair: Pair, feature: str) -> None:
    require(pair.client, feature)
    pair.produce(**{feature: True})
    consumer = pair.consume(in_flight=5, finish=True, **{feature: True})
    noise = random.Random(5).randbytes(200_000).decode("latin-1")
    bodies = ["small", "zeros" * 50_000, noise]
    for body in bodies:
        pair.publish(body)
        assert pair.client.message(consumer).body == body
    pair.publish_batch(*bodies)
    assert sorted(pair.client.message(consumer).body for _ in bodies) == sorted(bodies)


@pytest.fixture
def strict_pair(client: Client, strict: RunningBroker, topic: str) -> Iterator[Pair]:
    made = Pair(client, strict, topic)
    yield made
    made.leave()


def a_second(client: Client) -> dict[str, int]:
    """What a client asks for, that it has a second for a message; else the broker gives it that."""
    return {} if (client.kind, "timeout_ms") in LACKING else {"timeout_ms": 1000}


def test_a_message_that_nobody_answers_for_comes_again(strict_pair: Pair) -> None:
    pair = strict_pair
    pair.produce()
    consumer = pair.consume(in_flight=1, **a_second(pair.client))
    pair.publish("slow")
    first = pair.client.message(consumer)
    assert (first.body, first.attempts) == ("slow", 1)
    again = pair.client.message(consumer)
    assert again == Got(first.id, 2, "slow")
    pair.finish(consumer, again)
    pair.publish("next")
    assert pair.client.message(consumer)[1:] == (1, "next")


def test_a_touched_message_does_not_come_again(strict_pair: Pair) -> None:
    pair = strict_pair
    pair.produce()
    pair.create("touching", "silent")
    second = a_second(pair.client)
    touching, silent = pair.consume("touching", **second), pair.consume("silent", **second)
    pair.publish("long")
    held, lapsed = pair.client.message(touching), pair.client.message(silent)
    assert (held.attempts, lapsed.attempts) == (1, 1)
    # The other channel's consumer does not touch its copy: it times out twice meanwhile.
    while lapsed.attempts < 3:
        pair.client.ask("touch", touching, message=held.id)
        time.sleep(0.1)  # ten times as often as it has to
        if pair.client.has_message(silent):
            lapsed = pair.client.message(silent)
    pair.finish(touching, held)
    pair.finish(silent, lapsed)
    pair.publish("next")
    assert pair.client.message(touching)[1:] == (1, "next")


TLS_OPTIONS = {
    "pynsq": lambda file: {"tls_v1": True, "tls_options": {"ca_certs": str(file)}},
    "gnsq": lambda file: {"tls_v1": True, "tls_options": {"ca_certs": str(file), "cert_reqs": 2}},
    "nsqjs": lambda file: {"tls": file.read_text()},
}


@pytest.mark.parametrize("packed", [None, "deflate"])
def test_tls_connections(strict_pair: Pair, certificate: Path, packed: str | None) -> None:
    pair = strict_pair
    require(pair.client, "tls")
    features = TLS_OPTIONS[pair.client.kind](certificate)
    if packed:
        features[packed] = True
    pair.produce(**features)
    consumer = pair.consume(in_flight=5, finish=True, **features)
    for body in ("small", "large" * 100_000):
        pair.publish(body)
        assert pair.client.message(consumer).body == body


@pytest.fixture
def options(tmp_path: Path) -> BrokerOptions:
    return BrokerOptions(folder=str(tmp_path), http_port=0, tcp_port=0)


def test_both_sides_come_back_when_the_broker_does(
    client: Client, options: BrokerOptions, topic: str
) -> None:
    with RunningBroker(options) as broker:
        port = broker.server.broker.tcp_port
        pair = Pair(client, broker, topic)
        pair.produce()
        consumer = pair.consume(in_flight=1)
        pair.publish("held", "next")
        held = client.message(consumer)
        assert (held.body, held.attempts) == ("held", 1)
    with RunningBroker(dataclasses.replace(options, tcp_port=port)):
        publish_until_it_works(pair, "after")
        if reason := LACKING.get((client.kind, "consumer returns")):
            print(f"{client.kind}: {reason}")
            consumer = pair.consume(in_flight=1)
        again = client.message(consumer)
        assert again == Got(held.id, 2, "held")
        pair.finish(consumer, again)
        for body in ("next", "after"):
            message = client.message(consumer)
            assert (message.body, message.attempts) == (body, 1)
            pair.finish(consumer, message)
        pair.leave()


def publish_until_it_works(pair: Pair, body: str) -> None:
    """As an application does: the client says that it is not connected, until it is."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            pair.publish(body)
        except Refused:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"{pair.client.kind} does not come back:\n{pair.client.errors()}")


@pytest.mark.parametrize("kind", ["token", "user and password"])
def test_a_client_with_a_secret_may_do_what_its_role_allows(
    client: Client, guarded: RunningBroker, secrets: dict[str, str], topic: str, kind: str
) -> None:
    require(client, "auth")
    pair = Pair(client, guarded, topic)
    secret = {SECRETS[client.kind]: secrets[kind]}
    try:
        pair.produce(**secret)
        pair.publish("one")
        pair.publish_batch("two", "three")
        consumer = pair.consume(in_flight=1, finish=True, **secret)
        for body in ("one", "two", "three"):
            assert pair.client.message(consumer).body == body
    finally:
        pair.leave()


def test_a_secret_is_not_needed_where_nothing_is_configured(client: Client, pair: Pair) -> None:
    require(client, "auth")
    require(client, "optional auth")
    secret = {SECRETS[client.kind]: "penstock_some_secret"}
    pair.produce(**secret)
    pair.publish("one")
    assert client.message(pair.consume(finish=True, **secret)).body == "one"


def test_a_client_without_the_right_gets_no_message(
    client: Client, guarded: RunningBroker, secrets: dict[str, str], topic: str
) -> None:
    require(client, "auth")
    pair = Pair(client, guarded, topic)
    name = SECRETS[client.kind]
    try:
        pair.produce(**{name: secrets["publisher"]})
        pair.publish("one")
        with contextlib.suppress(Refused):
            pair.consume(**{name: secrets["publisher"]})
        consumer = pair.consume("mine", finish=True, **{name: secrets["token"]})
        assert client.message(consumer).body == "one"
        assert list(guarded.server.broker.topics.get(topic).channels) == ["mine"]
    finally:
        pair.leave()
