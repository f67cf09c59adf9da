"""``/stats`` and ``/info``, field by field as NSQ's tools read them."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import re
from typing import TYPE_CHECKING, Any, cast

import orjson
import pytest

from penstock.broker.client_registry import ClientStatistics
from penstock.broker.statistics.document import duration_text, json_pieces, text_pieces
from penstock.broker.statistics.topic_statistics import Selection
from penstock.broker.tcp.client_session import ClientSession
from reference.compatibility import sections
from tests.broker.broker_kit import RunningBroker
from tests.broker.v2_kit import V2

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from penstock.broker.channel.delivery import Subscriber
    from penstock.broker.options import BrokerOptions

# In NSQ's order.
INFO = [
    "version",
    "broadcast_address",
    "hostname",
    "http_port",
    "tcp_port",
    "start_time",
    "max_heartbeat_interval",
    "max_output_buffer_size",
    "max_output_buffer_timeout",
    "max_deflate_level",
    "topology_zone",
    "topology_region",
]
OWN = ["loop_stall_ms", "unsynced", "thread_deaths", "access"]
TOP = ["version", "health", "start_time", "topics", "memory", "producers"]
TOPIC = [
    "topic_name",
    "channels",
    "depth",
    "backend_depth",
    "message_count",
    "message_bytes",
    "paused",
    "e2e_processing_latency",
]
CHANNEL = [
    "channel_name",
    "depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "message_count",
    "requeue_count",
    "timeout_count",
    "client_count",
    "clients",
    "paused",
    "e2e_processing_latency",
]
CLIENT = [
    "client_id",
    "hostname",
    "version",
    "remote_address",
    "state",
    "ready_count",
    "in_flight_count",
    "message_count",
    "finish_count",
    "requeue_count",
    "connect_ts",
    "sample_rate",
    "deflate",
    "snappy",
    "user_agent",
    "topology_zone",
    "topology_region",
    "tls",
    "tls_cipher_suite",
    "tls_version",
    "tls_negotiated_protocol",
    "tls_negotiated_protocol_is_mutual",
]
MEMORY = [
    "heap_objects",
    "heap_idle_bytes",
    "heap_in_use_bytes",
    "heap_released_bytes",
    "gc_pause_usec_100",
    "gc_pause_usec_99",
    "gc_pause_usec_95",
    "next_gc_bytes",
    "gc_total_runs",
]


@pytest.fixture
def options(options: BrokerOptions) -> BrokerOptions:
    return dataclasses.replace(options, tcp_port=0)


def stats(broker: RunningBroker, query: str = "") -> dict[str, Any]:
    answer = broker.ask("GET", f"/stats?format=json{query}")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    document: dict[str, Any] = orjson.loads(answer.body)
    return document


def the_channel(broker: RunningBroker) -> dict[str, Any]:
    found: dict[str, Any] = stats(broker)["topics"][0]["channels"][0]
    return found


def test_info_has_nsqs_fields_in_its_order(broker: RunningBroker) -> None:
    info = orjson.loads(broker.ask("GET", "/info").body)
    assert list(info) == [*INFO, "penstock_version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", info["version"])
    # Where a tool that was given this address finds the broker.
    assert info["broadcast_address"] == "127.0.0.1"
    assert info["tcp_port"] == broker.server.broker.tcp_port
    assert info["http_port"] == broker.server.http_port
    assert info["max_heartbeat_interval"] == 60_000_000_000


@pytest.mark.parametrize("body", [b"one\ntwo\nthree", b"one\ntwo\nthree\n", b"\n\none\n\ntwothree"])
def test_bytes_are_those_of_the_messages_and_not_of_what_parts_them(
    broker: RunningBroker, body: bytes
) -> None:
    assert broker.ask("POST", "/mpub?topic=t", body).status == 200
    assert stats(broker)["topics"][0]["message_bytes"] == 11


def test_stats_have_nsqs_fields_in_its_order(
    broker: RunningBroker, connect: Callable[[], V2]
) -> None:
    connect().publish("t", b"x")
    connect().subscribe("t", "c").message()
    document = stats(broker)
    assert list(document) == [*TOP, "publishing", "held", "http", *OWN]
    assert list(document["memory"]) == MEMORY
    (topic,) = document["topics"]
    assert list(topic)[: len(TOPIC)] == TOPIC
    (channel,) = topic["channels"]
    assert list(channel)[: len(CHANNEL)] == CHANNEL
    assert list(channel["clients"][0]) == CLIENT
    (producer,) = document["producers"]
    assert [name for name in producer if name != "pub_counts"] == CLIENT
    assert producer["pub_counts"] == [{"topic": "t", "count": 1}]
    for entry in (topic, channel):
        assert entry["e2e_processing_latency"] == {"count": 0, "percentiles": None}


def test_what_a_consumer_does_is_counted(broker: RunningBroker, connect: Callable[[], V2]) -> None:
    consumer = connect()
    consumer.identify(client_id="me", hostname="here", user_agent="test/1", sample_rate=0)
    port = consumer.socket.getsockname()[1]
    consumer.subscribe("t", "c", ready=3)
    connect().publish("t", *(b"%d" % n for n in range(5)))
    first, second, third = (consumer.message() for _ in range(3))
    consumer.ready(2)
    consumer.finish(first.id)
    consumer.send(b"REQ %s 60000\n" % second.id, b"NOP\n")
    fourth = consumer.message()
    channel = the_channel(broker)
    assert (channel["depth"], channel["in_flight_count"], channel["deferred_count"]) == (1, 2, 1)
    assert (channel["message_count"], channel["requeue_count"], channel["timeout_count"]) == (
        5,
        1,
        0,
    )
    assert channel["client_count"] == 1
    (client,) = channel["clients"]
    expected = {
        "client_id": "me",
        "hostname": "here",
        "user_agent": "test/1",
        "version": "V2",
        "remote_address": f"127.0.0.1:{port}",
        "state": 3,
        "ready_count": 2,
        "in_flight_count": 2,
        "message_count": 4,
        "finish_count": 1,
        "requeue_count": 1,
        "tls": False,
    }
    assert {name: client[name] for name in expected} == expected
    consumer.send(b"CLS\n")
    assert consumer.answer() == b"CLOSE_WAIT"
    (client,) = the_channel(broker)["clients"]
    assert (client["state"], client["ready_count"], client["in_flight_count"]) == (4, 0, 2)
    consumer.finish(third.id, fourth.id)
    consumer.close()


def test_a_client_goes_by_its_host_until_it_says_its_name(
    broker: RunningBroker, connect: Callable[[], V2]
) -> None:
    connect().subscribe("t", "c")
    (client,) = the_channel(broker)["clients"]
    assert (client["client_id"], client["hostname"]) == ("127.0.0.1", "127.0.0.1")


def test_the_filters_are_nsqs(broker: RunningBroker, connect: Callable[[], V2]) -> None:
    producer = connect()
    producer.publish("a", b"x")
    producer.publish("b", b"x", b"y")
    connect().subscribe("a", "one")
    connect().subscribe("a", "two")
    connect().subscribe("b", "one")

    def names(query: str) -> list[tuple[str, list[str]]]:
        return [
            (topic["topic_name"], [channel["channel_name"] for channel in topic["channels"]])
            for topic in stats(broker, query)["topics"]
        ]

    assert names("") == [("a", ["one", "two"]), ("b", ["one"])]
    assert names("&topic=a") == [("a", ["one", "two"])]
    assert names("&channel=two") == [("a", ["two"])]
    assert names("&topic=a&channel=one") == [("a", ["one"])]
    assert names("&topic=b&channel=two") == []
    assert stats(broker, "&topic=none")["topics"] is None
    assert stats(broker, "&topic=b")["producers"][0]["pub_counts"] == [{"topic": "b", "count": 2}]
    assert stats(broker)["producers"][0]["pub_counts"] == [
        {"topic": "a", "count": 1},
        {"topic": "b", "count": 2},
    ]
    for off in ("0", "false"):
        document = stats(broker, f"&include_clients={off}&include_mem={off}")
        assert document["producers"] is None
        assert "memory" not in document
        channel = document["topics"][0]["channels"][0]
        assert (channel["clients"], channel["client_count"]) == (None, 1)


def test_what_is_not_in_memory_is_the_backends_depth(options: BrokerOptions) -> None:
    with RunningBroker(options) as broker:
        broker.ask("POST", "/mpub?topic=t", b"a\nb\nc")
        (topic,) = stats(broker)["topics"]
        assert (topic["depth"], topic["backend_depth"]) == (3, 3)
        broker.ask("POST", "/channel/create?topic=t&channel=c")
        broker.ask("POST", "/mpub?topic=t", b"d\ne")
        (topic,) = stats(broker)["topics"]
        assert (topic["depth"], topic["backend_depth"], topic["message_count"]) == (0, 0, 5)
        assert (the_channel(broker)["depth"], the_channel(broker)["backend_depth"]) == (5, 3)
    with RunningBroker(options) as broker:
        assert (the_channel(broker)["depth"], the_channel(broker)["backend_depth"]) == (5, 5)


def test_more_topics_than_are_shown_in_one_turn(broker: RunningBroker) -> None:
    names = [f"topic-{number:03}" for number in range(203)]
    for name in names:
        broker.ask("POST", f"/topic/create?topic={name}")
    assert [topic["topic_name"] for topic in stats(broker)["topics"]] == names
    text = broker.ask("GET", "/stats").body.decode()
    assert re.findall(r"\[(topic-\d+)", text) == names


class ManyClients:
    """Clients of which each look takes a note."""

    def __init__(self, count: int) -> None:
        self.numbers = range(count)
        self.looks = 0

    def client(self, number: int) -> ClientStatistics | None:
        self.looks += 1
        if number % 10 == 7:
            return None  # gone meanwhile
        return ClientStatistics(f"c{number}", "host", "1.2.3.4:5", "", 0, 3, published={"t": 1})

    def producers(self) -> Sequence[int]:
        return self.numbers


@pytest.mark.parametrize("pieces", [json_pieces, text_pieces])
def test_very_many_clients_are_shown_a_few_in_a_turn(
    broker: RunningBroker, pieces: Callable[..., Coroutine[object, object, list[bytes]]]
) -> None:
    broker.ask("POST", "/topic/create?topic=t")
    broker.ask("POST", "/channel/create?topic=t&channel=c")
    clients = ManyClients(2_000)
    looks: list[int] = []

    async def look() -> bytes:
        channel = broker.server.broker.topics.get("t").channels["c"]
        before = broker.server.broker.clients, channel.subscribers
        broker.server.broker.clients = clients
        channel.subscribers = dict.fromkeys(clients.numbers, cast("Subscriber", None))
        try:
            document = asyncio.create_task(
                pieces(broker.server.broker, Selection(), with_memory=False)
            )
            while not document.done():
                looks.append(clients.looks)
                await asyncio.sleep(0)
            return b"".join(document.result())
        finally:
            broker.server.broker.clients, channel.subscribers = before

    document = broker.run(look())
    assert document.count(b"1.2.3.4" if pieces is json_pieces else b"[V2 host:5") == 2 * 1_800
    assert max(b - a for a, b in itertools.pairwise(looks)) <= 120
    if pieces is json_pieces:
        found = orjson.loads(document)
        assert found["topics"][0]["channels"][0]["clients"][8]["client_id"] == "c9"
        assert found["producers"][1]["pub_counts"] == [{"topic": "t", "count": 1}]


def test_of_very_many_topics_that_a_client_published_to_the_last_are_counted() -> None:
    session = ClientSession(0)
    for number in range(3_000):
        session.count_published(f"t{number}", 1)
        session.count_published(f"t{number}", 2)
    assert session.published == {f"t{number}": 3 for number in range(2_000, 3_000)}


def test_the_text_is_laid_out_as_nsqs(broker: RunningBroker, connect: Callable[[], V2]) -> None:
    empty = broker.ask("GET", "/stats?include_mem=false").body.decode()
    assert empty.endswith("\n\nHealth: OK\n\nTopics: None\n\nProducers: None\n")
    producer, consumer = connect(), connect()
    producer.identify(client_id="p", hostname="there", user_agent="pub/1")
    producer.publish("t", b"x", b"y")
    broker.ask("POST", "/topic/create?topic=u")
    broker.ask("POST", "/topic/pause?topic=u")
    broker.ask("POST", "/channel/create?topic=t&channel=d")
    broker.ask("POST", "/channel/pause?topic=t&channel=d")
    consumer.identify(client_id="c", hostname="here", user_agent="sub/1")
    consumer.subscribe("t", "c", ready=1)
    producer.publish("t", b"z")
    consumer.message()
    text = broker.ask("GET", "/stats").body.decode()
    text = re.sub(r"connected: \d+s", "connected: 0s", text)
    here, there = (one.socket.getsockname()[1] for one in (consumer, producer))
    head, _, tail = text.partition("\nTopics:")
    assert re.fullmatch(
        r"penstock v\S+ \(nsqd v1\.3\.0\)\nstart_time \S+Z\nuptime [\d.hms]+\n"
        r"\nHealth: OK\n\nMemory:\n(   \w+ +\t\d+\n){9}",
        head,
    )
    retried = "re-q: 0     timeout: 0     msgs:"
    channel_c = f"[{'c':<25}] depth: 0     be-depth: 0     inflt: 1    def: 0    {retried} 1"
    channel_d = f"[{'d':<25}] depth: 3     be-depth: 2     inflt: 0    def: 0    {retried} 3"
    client = f"[V2 {f'here:{here} sub/1':<21}] state: 3 inflt: 1    rdy: 1    fin: 0"
    assert tail.splitlines() == [
        "",
        "   [t              ] depth: 0     be-depth: 0     msgs: 3        e2e%: ",
        f"      {channel_c}        e2e%: ",
        f"        {client}        re-q: 0        msgs: 1        connected: 0s",
        f"   *P {channel_d}        e2e%: ",
        "",
        "*P [u              ] depth: 0     be-depth: 0     msgs: 0        e2e%: ",
        "",
        "Producers:",
        f"   [V2 {f'there:{there} pub/1':<21}] msgs: 3        topics: t=3 connected: 0s",
    ]


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (0, "0s"),
        (7, "7ms"),
        (1_500, "1.5s"),
        (10_000, "10s"),
        (60_000, "1m0s"),
        (3_600_250, "1h0m0.25s"),
        (90_061_001, "25h1m1.001s"),
    ],
)
def test_durations_are_written_as_go_does(duration_ms: int, text: str) -> None:
    assert duration_text(duration_ms) == text


def test_the_page_names_every_option(broker: RunningBroker) -> None:
    [table] = [one for one in sections("nsq") if one.head == "option"]
    rows = [re.findall(r"`(\w+)`", one.cells[0]) for one in table.features]
    assert all(row == sorted(row) for row in rows)
    named = [name for row in rows for name in row]
    for option in named:
        assert broker.ask("GET", f"/config/{option}").status == 200, option
