"""Topics with a bound on the disk: publishes are refused, or the oldest go; both are counted."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.broker.broker_kit import RunningBroker
from tests.broker.v2_kit import V2, batch, sized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.broker.options import BrokerOptions

BOUND = 1 << 20
BODY = b"x" * 50_000


@pytest.fixture
def options(options: BrokerOptions) -> BrokerOptions:
    return dataclasses.replace(options, tcp_port=0)


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[V2]:
    with V2(broker.server.broker.tcp_port) as client:
        client.identify(durable=True)  # so that the disk keeps up
        yield client


def bound(broker: RunningBroker, policy: str, partitions: int = 1) -> None:
    broker.ask("POST", f"/topic/create?topic=t&partitions={partitions}")
    place = f"/topic/configure?topic=t&max_bytes={BOUND * partitions}&when_full={policy}"
    assert broker.ask("POST", place).status == 200


def stats(broker: RunningBroker) -> dict[str, int]:
    (topic,) = json.loads(broker.ask("GET", "/stats?format=json&topic=t").body)["topics"]
    found: dict[str, int] = topic
    return found


def until(condition: Callable[[], bool], step: Callable[[], object]) -> None:
    for _ in range(3_000):
        if condition():
            return
        step()
    raise AssertionError


def disk_bytes(broker: RunningBroker) -> int:
    folder = broker.server.broker.topics.get("t").folder
    names = [f"{folder}/0/{name}" for name in os.listdir(f"{folder}/0")]  # noqa: PTH208 - names do
    return sum(os.stat(name).st_size for name in names if name.endswith(".log"))  # noqa: PTH116


def test_a_full_topic_refuses_and_takes_again_when_consumers_are_further(
    broker: RunningBroker, client: V2
) -> None:
    bound(broker, "refuse")
    taken = 0
    while (answer := publish(client, b"%06d" % taken + BODY)) == "OK":
        taken += 1
    assert answer.startswith("E_PUB_FAILED PUB failed topic t is full: stream partition 0")
    assert 17 <= taken <= 20
    assert broker.ask("POST", "/pub?topic=t", BODY).status == 503
    assert stats(broker)["messages_refused"] == 2
    assert stats(broker)["messages_dropped"] == 0
    assert broker.ask("GET", "/ping").status == 200, "other topics have room"
    # Nothing went: the first channel gets all.
    with V2(broker.server.broker.tcp_port) as consumer:
        consumer.subscribe("t", "c", ready=1)
        for number in range(taken):
            message = consumer.message()
            assert message.body[:6] == b"%06d" % number
            consumer.finish(message.id)
        until(
            lambda: broker.ask("POST", "/pub?topic=t", BODY).status == 200,
            lambda: broker.ask("GET", "/ping"),
        )
        assert consumer.message().body == BODY


def publish(client: V2, body: bytes) -> str:
    client.send(b"PUB t\n", sized(body))
    frame = client.frame()
    while frame is not None and frame.data == b"_heartbeat_":
        frame = client.frame()
    assert frame is not None
    return frame.data.decode()


def test_what_a_cursor_or_a_channel_wants_is_not_dropped_where_publishes_are_refused(
    broker: RunningBroker, client: V2
) -> None:
    bound(broker, "refuse")
    broker.ask("POST", "/cursor?topic=t&name=reader&offset=0")
    taken = 0
    while publish(client, BODY) == "OK":
        taken += 1
    queue = broker.server.broker.topics.get("t").queues[0]
    assert queue.earliest == 0
    broker.ask("POST", f"/cursor?topic=t&name=reader&offset={taken}")
    until(
        lambda: broker.ask("POST", "/pub?topic=t", BODY).status == 200,
        lambda: broker.ask("GET", "/ping"),
    )
    assert queue.earliest > 0


def test_the_oldest_go_and_channels_count_what_they_never_got(
    broker: RunningBroker, client: V2
) -> None:
    bound(broker, "drop_oldest")
    topic = broker.server.broker.topics.get("t")
    broker.ask("POST", "/channel/create?topic=t&channel=c")
    total = 0
    for _ in range(40):
        bodies = [b"%06d" % (total + index) + BODY for index in range(2)]
        assert client.ask(b"MPUB t\n", batch(*bodies)) == b"OK"
        total += 2
    until(lambda: stats(broker)["messages_dropped"] >= 55, lambda: publish(client, BODY))
    bounds = broker.server._bounds
    assert bounds is not None
    broker.run(bounds.stop())
    found = stats(broker)
    assert found["messages_refused"] == 0
    assert disk_bytes(broker) <= BOUND * 5 // 4
    channel = topic.channels["c"]
    assert (channel.counters.trimmed, channel.counters.lost) == (found["messages_dropped"], 0)
    with V2(broker.server.broker.tcp_port) as consumer:
        consumer.subscribe("t", "c", ready=1)
        message = consumer.message()
        assert message.body[:6] == b"%06d" % topic.queues[0].earliest
    assert found["messages_dropped"] == topic.queues[0].earliest


def test_the_stream_partitions_share_a_bound(broker: RunningBroker) -> None:
    bound(broker, "refuse", partitions=2)
    place = "/pub?topic=t&durable=1&partition=0"
    taken = 0
    while broker.ask("POST", place, BODY).status == 200:
        taken += 1
    assert 17 <= taken <= 20
    assert broker.ask("POST", place.replace("partition=0", "partition=1"), BODY).status == 200


def test_a_bound_is_told_while_the_topic_is_in_use(broker: RunningBroker, client: V2) -> None:
    for _ in range(60):
        assert publish(client, BODY) == "OK"
    assert disk_bytes(broker) > 2 * BOUND
    bound(broker, "drop_oldest")
    # It was one log file until now.
    until(
        lambda: broker.ask("POST", "/pub?topic=t", BODY).status == 200,
        lambda: broker.ask("GET", "/ping"),
    )
    assert disk_bytes(broker) <= BOUND
