"""The client against a real broker: reading, waiting, cursors, repeats and errors."""

from __future__ import annotations

import http.client
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
import pytest

from penstock.broker.broker_client import BrokerClient, TopicOffsets
from penstock.broker.message_bodies import encode_binary
from penstock.core.errors import Conflict, InvalidRequest, NotFound, Unavailable
from penstock.core.http_errors import ClientRemedies
from penstock.storage.queue.blocks import (
    BLOCK_HEADER_BYTES,
    LogBytes,
    messages_of,
    parse_block_header,
)
from tests.broker.broker_kit import RunningBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.broker.options import BrokerOptions


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[BrokerClient]:
    with BrokerClient(broker.url) as client:
        yield client


def decode(raw: bytes) -> list[bytes]:
    """What a reader elsewhere makes of fetched blocks."""
    log = LogBytes(memoryview(raw))
    messages, position = [], 0
    while position < log.size:
        header = parse_block_header(raw[position : position + BLOCK_HEADER_BYTES])
        assert header is not None
        messages += messages_of(log, position, header).to_pylist()
        position += header.length
    return messages


def latest(client: BrokerClient, topic: str = "t") -> list[int]:
    return [part.latest for part in client.offsets(topic).partitions]


def test_messages_come_back_as_they_went_in(broker: RunningBroker, client: BrokerClient) -> None:
    client.create_topic("t", partitions=2)
    batch = [b"plain", b"two\nlines", b"zeros\0\0\0\0", b"x" * 70_000]
    client.publish("t", batch, partition=1)
    client.publish("t", pa.array([b"a", b"b"], pa.binary()), partition=1, durable=True)
    client.publish_encoded("t", b"c\n\nd\n", binary=False, partition=1)
    assert broker.stored("t") == [[], [*batch, b"a", b"b", b"c", b"d"]]
    where = client.offsets("t", durable=True)
    assert [(p.partition, p.earliest, p.latest) for p in where.partitions] == [(0, 0, 0), (1, 0, 8)]
    assert where.partitions[1].folder == f"{where.folder}/1"
    first = client.fetch("t", 1, 0, max_bytes=1)
    assert (decode(first.raw), first.next_offset) == (batch, 4)
    rest = client.fetch("t", 1, 5)
    assert (decode(rest.raw), rest.next_offset) == ([b"a", b"b", b"c", b"d"], 8)
    assert client.fetch("t", 1, 8).raw == b""


def test_a_timestamp_gives_an_offset(client: BrokerClient) -> None:
    client.publish("t", [b"a", b"b"])
    assert client.offsets("t", timestamp=0).partitions[0].offset == 0
    assert client.offsets("t", timestamp=1 << 60).partitions[0].offset == 2
    assert client.offsets("t").partitions[0].offset is None


def test_a_long_poll_ends_with_news_and_not_before(
    broker: RunningBroker, client: BrokerClient
) -> None:
    client.create_topic("t", partitions=2)
    with BrokerClient(broker.url) as reader, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.offsets, "t", after={0: 0, 1: 0}, wait_ms=60_000, durable=True)
        while broker.server.broker.waiting_readers == 0:
            client.publish("other", [b"no news of t"])
            assert not waiting.done()
        client.publish("t", [b"news"], partition=1)
        assert [part.latest for part in waiting.result(120).partitions] == [0, 1]
    # What has passed already is answered at once, and so is a wait that is over.
    assert latest(client) == [0, 1]
    client.offsets("t", after={1: 0}, wait_ms=60_000)
    assert client.offsets("t", after={1: 1}, wait_ms=1).partitions[1].latest == 1


def test_offsets_of_the_topic_of_before_hold_no_answer_back(client: BrokerClient) -> None:
    client.create_topic("t", partitions=3)
    old = client.offsets("t").id
    assert client.offsets("t", after={2: 0}, wait_ms=1, topic_id=old).id == old
    client.delete_topic("t")
    client.publish("t", [b"new"])
    # Neither a wait nor a stream partition that is not there any more.
    new = client.offsets("t", after={0: 1, 2: 0}, wait_ms=60_000, topic_id=old)
    assert (new.id != old, [part.latest for part in new.partitions]) == (True, [1])


def test_a_reader_that_leaves_is_forgotten(broker: RunningBroker, client: BrokerClient) -> None:
    client.create_topic("t")
    with socket.create_connection(("127.0.0.1", broker.server.http_port)) as gone:
        gone.sendall(
            b"GET /offsets?topic=t&after=0:0&wait_ms=60000 HTTP/1.1\r\nHost: [::1]\r\n\r\n"
        )
        while broker.server.broker.waiting_readers == 0:
            client.ping()
    while broker.server.broker.waiting_readers:
        client.ping()


def test_a_delete_ends_waits_and_frees_the_name(
    broker: RunningBroker, client: BrokerClient
) -> None:
    client.publish("t", [b"old"])
    with BrokerClient(broker.url) as reader, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.offsets, "t", after={0: 1}, wait_ms=60_000)
        while broker.server.broker.waiting_readers == 0:
            client.ping()
        client.delete_topic("t")
        with pytest.raises(NotFound, match="TOPIC_NOT_FOUND"):
            waiting.result(120)
    with pytest.raises(NotFound):
        client.delete_topic("t")
    client.publish("t", [b"new"])
    assert broker.stored("t") == [[b"new"]]


def test_empty_drops_messages_and_offsets_go_on(
    broker: RunningBroker, client: BrokerClient
) -> None:
    client.publish("t", [b"a", b"b"])
    assert broker.ask("POST", "/topic/empty?topic=t&purge=1").status == 200
    client.publish("t", [b"c"])
    (part,) = client.offsets("t").partitions
    assert (part.earliest, part.latest) == (2, 3)
    with pytest.raises(NotFound, match="OFFSET_NOT_FOUND"):
        client.fetch("t", 0, 0)


def test_a_stop_ends_waits(options: BrokerOptions) -> None:
    with ThreadPoolExecutor(1) as pool:
        with RunningBroker(options) as broker:

            def wait() -> TopicOffsets:
                with BrokerClient(broker.url) as client:
                    client.create_topic("t")
                    return client.offsets("t", after={0: 0}, wait_ms=60_000)

            waiting = pool.submit(wait)
            while broker.server.broker.waiting_readers == 0:
                assert not waiting.done()
        assert waiting.result(120).partitions[0].latest == 0


def test_cursors_are_set_moved_and_dropped(broker: RunningBroker, client: BrokerClient) -> None:
    client.publish("t", [b"a", b"b", b"c"])
    (queue,) = broker.server.broker.topics.get("t").queues
    for offset in (2, 3, 1):
        client.set_cursor("t", 0, "flights-supervisor", offset)
        assert queue.statistics().cursors == {"flights-supervisor": offset}
    with pytest.raises(InvalidRequest, match="INVALID_OFFSET"):
        client.set_cursor("t", 0, "flights-supervisor", 4)
    client.delete_cursor("t", 0, "flights-supervisor")
    client.delete_cursor("t", 0, "flights-supervisor")
    assert queue.statistics().cursors == {}


def test_a_repeated_publish_is_there_once(broker: RunningBroker, client: BrokerClient) -> None:
    client.create_topic("t", partitions=3)
    for sequence in (0, 0, 1, 1, 0, 5, 5):
        client.publish("t", [b"%d" % sequence], producer=("p", sequence))
    client.publish("t", [b"other"], producer=("q", 0), partition=0)
    client.publish("t", [b"other"], producer=("q", 0), partition=1)
    stored = broker.stored("t")
    assert sorted(m for part in stored for m in part) == [b"0", b"1", b"5", b"other", b"other"]
    assert [b"0", b"1", b"5"] in [[m for m in part if m != b"other"] for part in stored]
    document = orjson.loads(broker.ask("GET", "/stats?format=json").body)
    assert document["topics"][0]["repeated_publishes"] == 4
    target = "/pub?topic=t&producer=p&sequence=5"
    assert broker.ask("POST", target, b"5").headers["x-penstock-repeated"] == "1"


def test_a_numbered_publish_returns_whether_it_was_there(
    broker: RunningBroker, client: BrokerClient
) -> None:
    body = encode_binary([b"a", b"b"])
    numbers = (0, 0, 1)
    repeated = [client.publish_numbered("t", body, ("p", number)) for number in numbers]
    assert repeated == [False, True, False]
    assert broker.stored("t") == [[b"a", b"b", b"a", b"b"]]


def test_repeats_are_known_after_a_restart(options: BrokerOptions) -> None:
    for _ in range(2):
        with RunningBroker(options) as broker, BrokerClient(broker.url) as client:
            client.publish("t", [b"once"], producer=("p", 7))
            assert broker.stored("t") == [[b"once"]]


def test_errors_name_the_request_and_the_mend(
    broker: RunningBroker, client: BrokerClient, options: BrokerOptions
) -> None:
    client.create_topic("t")
    with pytest.raises(Conflict, match="with partitions=1, not 2"):
        client.create_topic("t", partitions=2)
    with pytest.raises(InvalidRequest, match=r"INVALID_TOPIC: .*1 to 64"):
        client.publish("../x", [b"a"])
    with pytest.raises(InvalidRequest, match=r"BAD_MESSAGE: message 1 at .* size 0"):
        client.publish("t", [b"aaaaaaaaa", b"", b"c"])
    with pytest.raises(InvalidRequest, match="BODY_TOO_BIG"):
        client.publish("t", [b"x" * 1_000_000] * 20)
    with pytest.raises(NotFound, match="TOPIC_NOT_FOUND"):
        client.offsets("none")
    with pytest.raises(InvalidRequest, match="write http://host:port"):
        BrokerClient("127.0.0.1:4151")
    assert latest(client) == [0]


def test_a_missing_token_is_reported_with_the_remedy_of_the_caller(options: BrokerOptions) -> None:
    named = ClientRemedies("set the property broker_token", "broker_url names it")
    with RunningBroker(replace(options, token="secret")) as broker:
        with BrokerClient(broker.url) as client, pytest.raises(InvalidRequest) as caught:
            client.create_topic("t")
        assert str(caught.value).endswith("pass the argument token")
        wrong = pytest.raises(InvalidRequest, match="wrong: set the property broker_token")
        with BrokerClient(broker.url, remedies=named) as client, wrong:
            client.create_topic("t")
        with BrokerClient(broker.url, token="secret", remedies=named) as client:
            client.create_topic("t")


def test_a_client_outlives_a_restart_of_the_broker(options: BrokerOptions) -> None:
    with RunningBroker(options) as broker:
        client = BrokerClient(broker.url)
        port = broker.server.http_port
        client.publish("t", [b"before"])
    with pytest.raises(Unavailable, match="check that it runs there"):
        client.ping()
    with RunningBroker(replace(options, http_port=port)) as broker:
        client.publish("t", [b"after"])
        assert broker.stored("t") == [[b"before", b"after"]]
        client.close()


def test_many_publishers_and_readers_at_once(broker: RunningBroker) -> None:
    publishers, each = 8, 30
    with BrokerClient(broker.url) as client:
        client.create_topic("t", partitions=2)
    begin = threading.Barrier(publishers + 4)

    def publish(number: int) -> None:
        with BrokerClient(broker.url) as client:
            begin.wait(120)
            for index in range(each):
                if index % 3:
                    client.publish("t", [b"%d/%d" % (number, index)], durable=index % 10 == 1)
                else:
                    target = f"/pub?topic=t&partition={number % 2}"
                    broker.ask("POST", target, b"%d/%d" % (number, index))

    def read() -> int:
        with BrokerClient(broker.url) as client:
            begin.wait(120)
            seen = {0: 0, 1: 0}
            while sum(seen.values()) < publishers * each:
                where = client.offsets("t", after=seen, wait_ms=30_000, durable=True)
                now = {part.partition: part.latest for part in where.partitions}
                assert all(now[part] >= seen[part] for part in seen)
                seen = now
            return sum(seen.values())

    with ThreadPoolExecutor(publishers + 4) as pool:
        readers = [pool.submit(read) for _ in range(4)]
        for done in [pool.submit(publish, number) for number in range(publishers)]:
            done.result(60)
        assert [reader.result(60) for reader in readers] == [publishers * each] * 4
    stored = [m for part in broker.stored("t") for m in part]
    assert sorted(stored) == sorted(
        b"%d/%d" % (p, i) for p in range(publishers) for i in range(each)
    )
    # What arrives together shares blocks, and no publisher's order is turned around.
    for number in range(publishers):
        for part in broker.stored("t"):
            mine = [int(m.split(b"/")[1]) for m in part if m.startswith(b"%d/" % number)]
            assert mine == sorted(mine)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_request_that_was_interrupted_leaves_no_answer_to_the_next(
    client: BrokerClient, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """A publish that followed was taken, and yet failed as if nobody had answered."""

    def fail(_response: http.client.HTTPResponse) -> bytes:
        raise error("no room")

    client.create_topic("t")
    with monkeypatch.context() as patch:
        patch.setattr(http.client.HTTPResponse, "read", fail)
        with pytest.raises(error):
            client.offsets("t")
    client.publish("t", [b"x"])
    assert latest(client) == [1]
