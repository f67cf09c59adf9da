"""Channels and topics changed over HTTP while NSQ's clients use them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import orjson
import pytest

from penstock.core.errors import Unavailable
from penstock.storage.disk import OsFileSystem
from tests.broker.broker_kit import RunningBroker
from tests.broker.v2_kit import V2

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.options import BrokerOptions


@pytest.fixture
def options(options: BrokerOptions) -> BrokerOptions:
    return dataclasses.replace(options, tcp_port=0)


def post(broker: RunningBroker, target: str, body: bytes | None = None) -> None:
    answer = broker.ask("POST", target, body)
    assert (answer.status, answer.body) in {(200, b""), (200, b"OK")}, answer


def counts(broker: RunningBroker, topic: str = "t", channel: str = "c") -> tuple[int, int, int]:
    """Waiting, in flight, deferred."""
    found = broker.server.broker.topics.get(topic).channel(channel).counts()
    return found.fresh + found.ready, found.in_flight, found.deferred


def test_a_channel_that_was_made_over_http_gets_what_is_published(
    broker: RunningBroker, connect: Callable[[], V2]
) -> None:
    post(broker, "/topic/create?topic=t")
    post(broker, "/channel/create?topic=t&channel=c")
    post(broker, "/channel/create?topic=t&channel=c")
    post(broker, "/pub?topic=t", b"one")
    assert counts(broker) == (1, 0, 0)
    assert connect().subscribe("t", "c").message().body == b"one"


def test_deleting_a_channel_closes_its_consumers(
    broker: RunningBroker, connect: Callable[[], V2]
) -> None:
    consumer, other = connect().subscribe("t", "c"), connect().subscribe("t", "d")
    post(broker, "/channel/delete?topic=t&channel=c")
    assert consumer.frame() is None
    post(broker, "/pub?topic=t", b"x")
    assert other.message().body == b"x"
    assert list(broker.server.broker.topics.get("t").channels) == ["d"]


def test_emptying_a_channel_takes_what_waits_is_deferred_and_is_in_flight(
    broker: RunningBroker, connect: Callable[[], V2]
) -> None:
    consumer = connect().subscribe("t", "c", ready=1)
    post(broker, "/mpub?topic=t", b"a\nb\nc")
    held = consumer.message()
    post(broker, "/pub?topic=t&defer=60000", b"later")
    consumer.send(b"REQ %s 60000\n" % held.id)
    again = consumer.message()
    assert again.body == b"b"
    consumer.ready(0)
    post(broker, "/channel/empty?topic=t&channel=c")
    assert counts(broker) == (0, 0, 0)
    consumer.finish(again.id)
    assert consumer.error().startswith("E_FIN_FAILED")
    consumer.ready(1)
    post(broker, "/pub?topic=t", b"new")
    assert consumer.message().body == b"new"


def test_a_paused_channel_gives_nothing_also_after_a_restart(options: BrokerOptions) -> None:
    with RunningBroker(options) as broker:
        post(broker, "/topic/create?topic=t")
        post(broker, "/channel/create?topic=t&channel=c")
        post(broker, "/channel/pause?topic=t&channel=c")
        post(broker, "/pub?topic=t", b"x")
    with RunningBroker(options) as broker, V2(broker.server.broker.tcp_port) as consumer:
        consumer.subscribe("t", "c")
        assert consumer.ask(b"CLS\n") == b"CLOSE_WAIT"  # and no message before it
        assert counts(broker) == (1, 0, 0)
        with V2(broker.server.broker.tcp_port) as other:
            other.subscribe("t", "c")
            post(broker, "/channel/unpause?topic=t&channel=c")
            assert other.message().body == b"x"


def test_pausing_a_channel_forgets_none_that_is_made_meanwhile(options: BrokerOptions) -> None:
    with RunningBroker(options) as broker, V2(broker.server.broker.tcp_port) as client:
        post(broker, "/topic/create?topic=t")
        post(broker, "/channel/create?topic=t&channel=c")
        client.send(b"SUB t d\n")
        post(broker, "/channel/pause?topic=t&channel=c")
        assert client.answer() == b"OK"
    with RunningBroker(options) as broker:
        assert sorted(broker.server.broker.topics.get("t").channels) == ["c", "d"]


def test_a_deferred_publish_is_given_out_when_it_is_due(
    broker: RunningBroker, connect: Callable[[], V2]
) -> None:
    consumer = connect().subscribe("t", "c", ready=5)
    post(broker, "/pub?topic=t&defer=400", b"later")
    post(broker, "/pub?topic=t", b"now")
    assert [consumer.message().body for _ in range(2)] == [b"now", b"later"]


def test_emptying_a_topic_takes_nothing_from_channels_and_readers(
    broker: RunningBroker, connect: Callable[[], V2]
) -> None:
    topic = "/topic/empty?topic=t"
    post(broker, "/mpub?topic=t", b"a\nb")
    post(broker, topic)
    assert broker.server.broker.topics.get("t").depth == 0
    assert broker.stored("t") == [[b"a", b"b"]]
    consumer = connect().subscribe("t", "c", ready=0)
    post(broker, "/pub?topic=t", b"c")
    post(broker, topic)
    assert counts(broker) == (1, 0, 0)
    consumer.ready(1)
    assert consumer.message().body == b"c"


def test_what_a_paused_topic_held_is_dropped_for_good(options: BrokerOptions) -> None:
    with RunningBroker(options) as broker:
        post(broker, "/pub?topic=t", b"before")
        post(broker, "/channel/create?topic=t&channel=c")
        post(broker, "/topic/pause?topic=t")
        post(broker, "/mpub?topic=t", b"dropped\ndropped")
        assert counts(broker) == (1, 0, 0)
        post(broker, "/topic/empty?topic=t")
        assert broker.server.broker.topics.get("t").depth == 0
    with RunningBroker(options) as broker, V2(broker.server.broker.tcp_port) as consumer:
        assert counts(broker) == (1, 0, 0)
        post(broker, "/pub?topic=t", b"after")
        assert (counts(broker), broker.server.broker.topics.get("t").depth) == ((1, 0, 0), 1)
        post(broker, "/topic/unpause?topic=t")
        consumer.subscribe("t", "c", ready=5)
        assert [consumer.message().body for _ in range(2)] == [b"before", b"after"]
        assert broker.stored("t") == [[b"before", b"dropped", b"dropped", b"after"]]


def test_a_topic_without_channels_stays_empty_after_a_restart(options: BrokerOptions) -> None:
    with RunningBroker(options) as broker:
        post(broker, "/mpub?topic=t", b"a\nb")
        post(broker, "/topic/empty?topic=t")
    with RunningBroker(options) as broker, V2(broker.server.broker.tcp_port) as consumer:
        consumer.subscribe("t", "c", ready=5)
        post(broker, "/pub?topic=t", b"c")
        assert consumer.message().body == b"c"


def test_a_purge_deletes_for_everybody(broker: RunningBroker, connect: Callable[[], V2]) -> None:
    consumer = connect().subscribe("t", "c", ready=1)
    post(broker, "/mpub?topic=t", b"a\nb")
    held = consumer.message()
    post(broker, "/cursor?topic=t&name=reader&offset=0")
    post(broker, "/topic/empty?topic=t&purge=true")
    assert counts(broker) == (0, 0, 0)
    offsets = orjson.loads(broker.ask("GET", "/offsets?topic=t").body)
    assert (offsets["partitions"][0]["earliest"], offsets["partitions"][0]["latest"]) == (2, 2)
    consumer.finish(held.id)
    assert consumer.error().startswith("E_FIN_FAILED")
    post(broker, "/pub?topic=t", b"c")
    assert consumer.message().body == b"c"
    assert broker.server.broker.topics.get("t").channel("c").counters.lost == 0


class FullDisk(OsFileSystem):
    """Takes no new version of the files with a name, while there is one."""

    full_for = ""

    def write_atomically(self, path: str, data: bytes) -> None:
        if self.full_for and path.endswith(self.full_for):
            raise Unavailable(f"{path}: no space left")
        super().write_atomically(path, data)


def test_what_could_not_be_emptied_for_good_is_emptied_when_asked_again(
    options: BrokerOptions,
) -> None:
    disk = FullDisk()
    with RunningBroker(options, fs=disk) as broker:
        post(broker, "/pub?topic=t", b"dropped")
        disk.full_for = "topic.json"
        answer = broker.ask("POST", "/topic/empty?topic=t")
        assert (answer.status, answer.body) == (503, b'{"message":"EXITING"}')
        disk.full_for = ""
        post(broker, "/topic/empty?topic=t")
    with RunningBroker(options) as broker:
        assert broker.server.broker.topics.get("t").depth == 0


def test_a_channel_that_could_not_be_paused_goes_on(options: BrokerOptions) -> None:
    disk = FullDisk()
    with RunningBroker(options, fs=disk) as broker:
        post(broker, "/topic/create?topic=t")
        post(broker, "/channel/create?topic=t&channel=c")
        disk.full_for = "topic.json"
        for what in ("pause", "delete"):
            assert broker.ask("POST", f"/channel/{what}?topic=t&channel=c").status == 503
        assert broker.ask("POST", "/channel/create?topic=t&channel=d").status == 503
        post(broker, "/channel/create?topic=t&channel=e%23ephemeral")
        post(broker, "/channel/pause?topic=t&channel=e%23ephemeral")
        post(broker, "/pub?topic=t", b"x")
        with V2(broker.server.broker.tcp_port) as consumer:
            assert consumer.subscribe("t", "c").message().body == b"x"
        assert sorted(broker.server.broker.topics.get("t").channels) == ["c", "e#ephemeral"]
