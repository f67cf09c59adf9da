"""NSQ's TCP protocol against a real broker: publish, subscribe, and what channels keep."""

from __future__ import annotations

import dataclasses
import json
import struct
from typing import TYPE_CHECKING

import pytest

from tests.broker.broker_kit import RunningBroker
from tests.broker.v2_kit import V2, Frame, batch, sized

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.options import BrokerOptions

Connect = "Callable[[], V2]"


@pytest.fixture
def options(options: BrokerOptions) -> BrokerOptions:
    return dataclasses.replace(options, tcp_port=0)


def test_what_is_published_is_delivered_and_finished(connect: Callable[[], V2]) -> None:
    producer, consumer = connect(), connect()
    consumer.subscribe("t", "c", ready=10)
    producer.publish("t", b"one", b"two")
    assert producer.ask(b"MPUB t\n", batch(b"three", b"four" * 1000)) == b"OK"
    messages = [consumer.message() for _ in range(4)]
    assert [message.body for message in messages] == [b"one", b"two", b"three", b"four" * 1000]
    assert [message.attempts for message in messages] == [1] * 4
    assert len({message.id for message in messages}) == 4
    assert all(message.time_ns > 1e18 for message in messages)
    consumer.finish(*(message.id for message in messages))
    consumer.finish(messages[0].id)
    shown = messages[0].id.decode()
    assert consumer.error() == f"E_FIN_FAILED FIN {shown} failed ID not in flight"
    producer.publish("t", b"five")
    assert consumer.message().body == b"five"


def test_pipelined_publishes_are_answered_in_order(connect: Callable[[], V2]) -> None:
    client = connect()
    client.send(
        *(b"PUB %s\n" % topic + sized(b"x%d" % n) for n in range(100) for topic in (b"a", b"b")),
        b"NOP\n",
        b"MPUB a\n",
        batch(b"y"),
    )
    assert [client.answer() for _ in range(201)] == [b"OK"] * 201


def test_the_first_channel_gets_the_backlog_later_ones_what_comes(
    connect: Callable[[], V2],
) -> None:
    producer, first, second = connect(), connect(), connect()
    producer.publish("t", b"old")
    first.subscribe("t", "first", ready=5)
    assert first.message().body == b"old"
    second.subscribe("t", "second", ready=5)
    producer.publish("t", b"new")
    assert second.message().body == b"new"
    assert first.message().body == b"new"


def test_ready_bounds_what_is_in_flight(connect: Callable[[], V2]) -> None:
    producer, consumer = connect(), connect()
    producer.publish("t", *(b"%d" % n for n in range(5)))
    consumer.subscribe("t", "c", ready=1)
    for n in range(5):
        message = consumer.message()
        assert message.body == b"%d" % n
        consumer.send(b"NOP\n")
        consumer.finish(message.id)


def test_requeued_messages_come_again_in_publishing_order(connect: Callable[[], V2]) -> None:
    producer, consumer = connect(), connect()
    producer.publish("t", b"a", b"b", b"c")
    consumer.subscribe("t", "c", ready=1)
    message = consumer.message()
    consumer.send(b"REQ %s 0\n" % message.id)
    again = consumer.message()
    assert (again.body, again.attempts, again.id) == (b"a", 2, message.id)
    consumer.finish(again.id)
    assert [consumer_next(consumer) for _ in range(2)] == [b"b", b"c"]


def consumer_next(consumer: V2) -> bytes:
    message = consumer.message()
    consumer.finish(message.id)
    return message.body


def test_what_a_consumer_had_comes_to_another_when_it_leaves(connect: Callable[[], V2]) -> None:
    producer, gone, left = connect(), connect(), connect()
    producer.publish("t", b"a")
    gone.subscribe("t", "c", ready=5)
    gone.message()
    left.subscribe("t", "c", ready=5)
    gone.close()
    message = left.message()
    assert (message.body, message.attempts) == (b"a", 2)


def test_a_deferred_message_waits(connect: Callable[[], V2]) -> None:
    producer, consumer = connect(), connect()
    consumer.subscribe("t", "c", ready=5)
    assert producer.ask(b"DPUB t 300\n", sized(b"later")) == b"OK"
    producer.publish("t", b"now")
    messages = [consumer.message() for _ in range(2)]
    assert [message.body for message in messages] == [b"now", b"later"]
    assert messages[1].attempts == 1


def test_in_flight_deferred_and_requeued_messages_outlive_a_restart(
    options: BrokerOptions,
) -> None:
    with RunningBroker(options) as broker:
        port = broker.server.broker.tcp_port
        with V2(port) as producer, V2(port) as consumer:
            producer.publish("t", *(b"%d" % n for n in range(6)))
            assert producer.ask(b"DPUB t 3600000\n", sized(b"deferred")) == b"OK"
            consumer.subscribe("t", "c", ready=10)
            messages = {message.body: message for message in (consumer.message() for _ in range(6))}
            consumer.finish(messages[b"0"].id, messages[b"3"].id)
            consumer.send(
                b"REQ %s 3600000\n" % messages[b"1"].id, b"NOP\n", b"FIN %s\n" % (b"f" * 16)
            )
            assert consumer.error().startswith("E_FIN_FAILED")
    with RunningBroker(options) as broker:
        counts = broker.server.broker.topics.get("t").channels["c"].counts()
        assert (counts.ready, counts.deferred, counts.fresh) == (3, 2, 0)
        with V2(broker.server.broker.tcp_port) as consumer:
            consumer.subscribe("t", "c", ready=10)
            again = [consumer.message() for _ in range(3)]
            assert [(m.body, m.attempts) for m in again] == [(b"2", 2), (b"4", 2), (b"5", 2)]


def test_identify_negotiates(connect: Callable[[], V2]) -> None:
    client = connect()
    answer = json.loads(client.identify(feature_negotiation=True, heartbeat_interval=1000))
    assert answer["max_rdy_count"] == 2500
    assert answer["version"] == "1.3.0"
    assert list(answer)[:4] == ["max_rdy_count", "version", "max_msg_timeout", "msg_timeout"]
    assert connect().identify() == b"OK"


@pytest.mark.parametrize("first", [{}, {"feature_negotiation": True}], ids=["plain", "negotiated"])
@pytest.mark.parametrize(
    "second",
    [
        b"{}",
        b'{"feature_negotiation":true,"tls_v1":true}',
        b'{"feature_negotiation":true,"snappy":true}',
        b'{"feature_negotiation":true,"deflate":true}',
        b'{"client_id":7}',
        b"no JSON",
        b"",
    ],
)
def test_a_second_identify_is_refused(
    connect: Callable[[], V2], first: dict[str, object], second: bytes
) -> None:
    client = connect()
    client.identify(**first)
    client.send(b"IDENTIFY\n", sized(second))
    assert client.error() == "E_INVALID cannot IDENTIFY in current state"
    assert client.closed()


@pytest.mark.parametrize("kind", ["snappy", "deflate", "tls_v1"])
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"feature_negotiation":true,"%s":"yes"}', "E_BAD_BODY"),
        (b'{"feature_negotiation":true,"%s":true,"sample_rate":100}', "E_BAD_BODY"),
        (b'{"feature_negotiation":true,"%s":true', "E_BAD_BODY"),
        (b'{"feature_negotiation":true,"%s":true,"deflate":true,"snappy":true}', "E_IDENTIFY_"),
    ],
)
def test_an_identify_that_is_refused_upgrades_nothing(
    connect: Callable[[], V2], kind: str, body: bytes, code: str
) -> None:
    client = connect()
    client.send(b"IDENTIFY\n", sized(body % kind.encode()))
    assert client.error().startswith(code)
    assert client.closed()


def test_heartbeats_come_and_silence_ends_the_connection(connect: Callable[[], V2]) -> None:
    client = connect()
    client.identify(heartbeat_interval=1000)
    assert client.frame() == Frame(0, b"_heartbeat_")
    client.send(b"NOP\n")
    assert client.frame() == Frame(0, b"_heartbeat_")
    while (frame := client.frame()) is not None:
        assert frame == Frame(0, b"_heartbeat_")


@pytest.mark.parametrize("kind", ["snappy", "deflate"])
def test_compressed_connections(connect: Callable[[], V2], kind: str) -> None:
    from penstock.core.compression import Deflate, Snappy

    client = connect()
    answer = json.loads(client.identify(feature_negotiation=True, **{kind: True}))
    assert answer[kind] is True
    codec = Snappy() if kind == "snappy" else Deflate(6)

    def frames(count: int) -> list[Frame]:
        data = b""
        found: list[Frame] = []
        while len(found) < count:
            data += codec.decompress(client.piece(), 1 << 24)
            while len(data) >= 8 and len(data) >= 4 + struct.unpack_from(">i", data)[0]:
                size, number = struct.unpack_from(">ii", data)
                found.append(Frame(number, data[8 : 4 + size]))
                data = data[4 + size :]
        return found

    assert frames(1) == [Frame(0, b"OK")]
    body = b"body" * 100_000
    client.send(codec.compress(b"SUB t c\nRDY 5\nPUB t\n" + sized(body)))
    first, second, message = frames(3)
    assert (first, second) == (Frame(0, b"OK"), Frame(0, b"OK"))
    assert message.data[26:] == body


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"FOO\n", "E_INVALID invalid command FOO"),
        (b"\n", "E_INVALID invalid command "),
        (b"SUB t\n", "E_INVALID SUB insufficient number of parameters"),
        (b"SUB a$ c\n", 'E_BAD_TOPIC SUB topic name "a$" is not valid'),
        (b"SUB a c/d\n", 'E_BAD_CHANNEL SUB channel name "c/d" is not valid'),
        (b"RDY 1\n", "E_INVALID cannot RDY in current state"),
        (b"FIN 0123456789abcdef\n", "E_INVALID cannot FIN in current state"),
        (b"FIN short\n", "E_INVALID cannot FIN in current state"),
        (b"RDY x\n", "E_INVALID cannot RDY in current state"),
        (b"REQ\n", "E_INVALID cannot REQ in current state"),
        (b"SUB t c\nFIN short\n", "E_INVALID invalid message ID"),
        (b"SUB t c\nSUB\n", "E_INVALID cannot SUB in current state"),
        (b"SUB t c\nAUTH x\n", "E_INVALID cannot AUTH in current state"),
        (b"SUB t c\nIDENTIFY\n\0\0\0\0", "E_INVALID cannot IDENTIFY in current state"),
        (b"PUB t\n" + sized(b""), "E_BAD_MESSAGE PUB invalid message body size 0"),
        (
            b"PUB t\n" + struct.pack(">i", 1048577),
            "E_BAD_MESSAGE PUB message too big 1048577 > 1048576",
        ),
        (b"MPUB t\n" + batch(b""), "E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
        (
            b"MPUB a$\n" + batch(b"x"),
            'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a$" is not valid',
        ),
        (
            b"DPUB t 3600001\n" + sized(b"x"),
            "E_INVALID DPUB timeout 3600001 out of range 0-3600000",
        ),
        (b"SUB t c\nRDY 2501\n", "E_INVALID RDY count 2501 out of range 0-2500"),
        (b"SUB t c\nSUB t c\n", "E_INVALID cannot SUB in current state"),
        (b"IDENTIFY\n" + sized(b"{"), "E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (
            b"IDENTIFY\n" + sized(b'{"heartbeat_interval":500}'),
            "E_BAD_BODY IDENTIFY heartbeat interval (500) is invalid",
        ),
        (b"AUTH\n" + sized(b"s"), "E_AUTH_DISABLED AUTH disabled"),
    ],
)
def test_fatal_errors_are_nsqs_and_end_the_connection(
    connect: Callable[[], V2], sent: bytes, error: str
) -> None:
    client = connect()
    client.send(sent)
    frame = client.frame()
    while frame is not None and frame.kind == 0:
        frame = client.frame()
    assert frame == Frame(1, error.encode())
    assert client.closed()


def test_a_wrong_magic_is_refused(broker: RunningBroker) -> None:
    with V2(broker.server.broker.tcp_port, magic=b"GET ") as client:
        assert client.error() == "E_BAD_PROTOCOL"
        assert client.closed()


def test_a_closing_consumer_gets_no_more_but_may_finish(connect: Callable[[], V2]) -> None:
    producer, consumer = connect(), connect()
    producer.publish("t", b"a", b"b")
    consumer.subscribe("t", "c", ready=1)
    message = consumer.message()
    assert consumer.ask(b"CLS\n") == b"CLOSE_WAIT"
    consumer.finish(message.id)
    consumer.finish(message.id)
    assert consumer.error().startswith("E_FIN_FAILED")


def test_an_ephemeral_channel_goes_with_its_last_consumer(
    broker: RunningBroker, connect: Callable[[], V2]
) -> None:
    consumer = connect().subscribe("t", "tail#ephemeral")
    topic = broker.server.broker.topics.get("t")
    assert list(topic.channels) == ["tail#ephemeral"]
    consumer.close()
    while topic.channels:
        connect().ask(b"IDENTIFY\n", sized(b"{}"))


def test_a_token_is_the_secret_of_auth(options: BrokerOptions) -> None:
    options = dataclasses.replace(options, token="secret")
    with RunningBroker(options) as broker:
        port = broker.server.broker.tcp_port
        with V2(port) as client:
            client.send(b"PUB t\n", sized(b"x"))
            assert client.error() == "E_AUTH_FIRST AUTH required before PUB"
        with V2(port) as client:
            client.send(b"AUTH\n", sized(b"wrong"))
            assert client.error() == "E_UNAUTHORIZED AUTH no authorizations found"
        with V2(port) as client:
            assert json.loads(client.ask(b"AUTH\n", sized(b"secret")))["permission_count"] == 1
            client.publish("t", b"x")


def test_a_message_that_is_requeued_for_ever_does_not_keep_the_others_back(
    broker: RunningBroker,
) -> None:
    with V2(broker.server.broker.tcp_port) as client:
        client.subscribe("t", "c", 0)
        client.publish("t", b"poison", *(b"%d" % number for number in range(10)))
        client.ready(1)
        taken: list[bytes] = []
        for _ in range(25):
            message = client.message()
            if message.body == b"poison":
                client.send(b"REQ " + message.id + b" 0\n")
            else:
                taken.append(message.body)
                client.finish(message.id)
        assert taken == [b"%d" % number for number in range(10)]
