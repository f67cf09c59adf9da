"""Replay: channels that are made at a place, or moved to one, over HTTP and TCP."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest

from penstock.storage.queue.disk_queue import DiskQueue, DiskQueueOptions
from tests.broker.broker_kit import RunningBroker
from tests.broker.v2_kit import V2, sized

if TYPE_CHECKING:
    from penstock.broker.options import BrokerOptions


@pytest.fixture
def options(options: BrokerOptions) -> BrokerOptions:
    return dataclasses.replace(options, tcp_port=0)


def seek(broker: RunningBroker, query: str) -> list[int]:
    answer = broker.ask("POST", f"/channel/seek?topic=t&channel=c&{query}")
    assert answer.status == 200, answer
    return [entry["offset"] for entry in json.loads(answer.body)["partitions"]]


def take(client: V2, count: int) -> list[bytes]:
    """Take messages, and finish each."""
    bodies = []
    for _ in range(count):
        message = client.message()
        client.finish(message.id)
        bodies.append(message.body)
    return bodies


def settle(client: V2) -> None:
    """Return when all that was sent before was carried out."""
    client.send(b"FIN ffffffffffffffff\n")
    assert client.error().startswith("E_FIN_FAILED")


def test_a_channel_goes_back_and_forward(broker: RunningBroker, client: V2) -> None:
    bodies = [b"%d" % number for number in range(6)]
    client.publish("t", *bodies)
    client.subscribe("t", "c", ready=1)
    assert take(client, 6) == bodies
    settle(client)
    assert seek(broker, "to=beginning") == [0]
    assert take(client, 6) == bodies
    settle(client)
    assert seek(broker, "to=offset&offset=4") == [4]
    assert take(client, 2) == bodies[4:]
    settle(client)
    client.ready(0)
    settle(client)
    client.publish("t", b"passed")
    assert seek(broker, "to=end") == [7]
    client.publish("t", b"new")
    client.ready(1)
    assert take(client, 1) == [b"new"]


def test_a_channel_goes_to_a_time(broker: RunningBroker, client: V2) -> None:
    client.publish("t", b"old")
    queue = broker.server.broker.topics.get("t").queues[0]
    old_ms = queue.last_append_ms
    while broker.server.broker.clock.now_ms() == old_ms:
        pass
    client.publish("t", b"new")
    broker.ask("POST", "/channel/create?topic=t&channel=c")
    assert seek(broker, f"to=timestamp&timestamp={queue.last_append_ms}") == [1]
    assert seek(broker, "to=timestamp&timestamp=0") == [0]
    assert seek(broker, f"to=timestamp&timestamp={queue.last_append_ms + 1}") == [2]


def test_one_stream_partition_moves_alone(broker: RunningBroker, client: V2) -> None:
    broker.ask("POST", "/topic/create?topic=t&partitions=2")
    for partition in (0, 1):
        broker.ask("POST", f"/mpub?topic=t&partition={partition}", b"a\nb\nc")
    client.subscribe("t", "c", ready=10)
    assert sorted(take(client, 6)) == [b"a", b"a", b"b", b"b", b"c", b"c"]
    settle(client)
    client.ready(0)
    settle(client)
    assert seek(broker, "to=offset&partition=1&offset=1") == [3, 1]
    answer = broker.ask("POST", "/channel/seek?topic=t&channel=c&to=offset&offset=1")
    assert json.loads(answer.body) == {"message": "MISSING_ARG_PARTITION"}
    answer = broker.ask("POST", "/channel/seek?topic=t&channel=c&to=offset&partition=0&offset=4")
    assert (answer.status, json.loads(answer.body)) == (404, {"message": "OFFSET_NOT_FOUND"})
    client.ready(10)
    assert take(client, 2) == [b"b", b"c"]


def test_what_was_in_flight_is_forgotten_and_a_late_fin_finishes_nothing(
    broker: RunningBroker, client: V2
) -> None:
    with V2(broker.server.broker.tcp_port) as producer:
        producer.publish("t", b"a", b"b")
        assert producer.ask(b"DPUB t 3600000\n", sized(b"later")) == b"OK"
    client.subscribe("t", "c", ready=2)
    before = [client.message() for _ in range(2)]
    assert seek(broker, "to=beginning") == [0]
    after = [client.message() for _ in range(2)]
    assert [(m.id, m.attempts) for m in after] == [(m.id, 1) for m in before]
    client.finish(*(message.id for message in before))
    assert [client.error()[:12] for _ in before] == ["E_FIN_FAILED"] * 2
    channel = broker.server.broker.topics.get("t").channels["c"]
    assert channel.counts().in_flight == 2
    client.finish(*(message.id for message in after))
    settle(client)
    counts = channel.counts()
    assert (counts.in_flight, counts.ready, channel.state.progress[0].floor) == (0, 0, 2)


def test_a_channel_is_made_at_a_place(broker: RunningBroker, client: V2) -> None:
    client.publish("t", b"a", b"b", b"c")
    for name, to in {"all": "beginning", "some": "offset&offset=1", "none": "end"}.items():
        place = f"/channel/create?topic=t&channel={name}&to={to}"
        assert broker.ask("POST", place).status == 200
        # It is there: it stays where it is.
        assert broker.ask("POST", f"/channel/create?topic=t&channel={name}&to=end").status == 200
    channels = broker.server.broker.topics.get("t").channels
    assert {name: channel.counts().depth for name, channel in channels.items()} == {
        "all": 3,
        "some": 2,
        "none": 0,
    }
    client.subscribe("t", "some", ready=5)
    assert take(client, 2) == [b"b", b"c"]


def test_a_move_outlives_the_broker(options: BrokerOptions) -> None:
    with RunningBroker(options) as broker, V2(broker.server.broker.tcp_port) as client:
        client.publish("t", *(b"%d" % number for number in range(5)))
        client.subscribe("t", "c", ready=5)
        take(client, 5)
        settle(client)
        client.ready(0)
        settle(client)
        assert seek(broker, "to=offset&offset=2") == [2]
    with RunningBroker(options) as broker, V2(broker.server.broker.tcp_port) as client:
        client.subscribe("t", "c", ready=5)
        assert take(client, 3) == [b"2", b"3", b"4"]


def test_only_what_retention_kept_comes_again(options: BrokerOptions) -> None:
    small = DiskQueueOptions(max_bytes_per_file=4096)
    with RunningBroker(options, small) as broker, V2(broker.server.broker.tcp_port) as client:
        client.identify(durable=True)  # so that the small log files are synced in time
        client.publish("t", *(b"%04d" % number * 100 for number in range(40)))
        client.subscribe("t", "c", ready=40)
        take(client, 40)
        settle(client)
        topic = broker.server.broker.topics.get("t")
        queue = topic.queues[0]
        assert isinstance(queue, DiskQueue)
        queue.sync()
        held, consumed = topic.held_back(0)
        now_ms = broker.server.broker.clock.now_ms()
        topic.queues[0].retention.retain(now_ms, held=held, consumed=consumed)
        earliest = topic.queues[0].earliest
        assert 0 < earliest < 40
        assert seek(broker, "to=beginning") == [earliest]
        assert len(take(client, 40 - earliest)) == 40 - earliest
        answer = broker.ask("POST", "/channel/seek?topic=t&channel=c&to=offset&offset=0")
        assert answer.status == 404
        # From now on the channel holds it back.
        seek(broker, f"to=offset&offset={earliest}")
        held, consumed = topic.held_back(0)
        assert held == {"channel c": earliest}


def test_a_preview_counts_what_comes_again_or_is_skipped(broker: RunningBroker, client: V2) -> None:
    client.publish("t", *(b"%d" % number for number in range(6)))
    client.subscribe("t", "c", ready=1)
    take(client, 6)
    settle(client)
    client.ready(0)
    settle(client)
    client.publish("t", *(b"%d" % number for number in range(6, 10)))

    def effect(query: str) -> tuple[int, int, int]:
        path = f"/channel/seek?topic=t&channel=c&preview=1&{query}"
        (found,) = json.loads(broker.ask("POST", path).body)["partitions"]
        return found["offset"], found["repeated"], found["skipped"]

    assert effect("to=beginning") == (0, 6, 0)
    assert effect("to=offset&offset=4") == (4, 2, 0)
    assert effect("to=offset&offset=6") == (6, 0, 0)
    assert effect("to=offset&offset=8") == (8, 0, 2)
    assert effect("to=end") == (10, 0, 4)
    client.ready(1)
    assert take(client, 4) == [b"6", b"7", b"8", b"9"]  # nothing was moved
    settle(client)
    assert effect("to=end") == (10, 0, 0)
