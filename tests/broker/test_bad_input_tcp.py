"""What clients of NSQ's protocol send by mistake or malice: refused, bounded, and nobody's else.

After each, another client at the same broker publishes and consumes as before.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from penstock.broker.options import BrokerOptions
from tests.broker.bad_input_kit import Bystander
from tests.broker.broker_kit import RunningBroker
from tests.broker.v2_kit import V2, Frame, batch, sized

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MESSAGE_MAX = 1_048_576
BODY_MAX = 5_242_880
ID = b"0123456789abcdef"

NAMES = [
    b"",
    b"a/b",
    b"/etc/passwd",
    b"..",
    b"../../x",
    b".",
    b"a\0b",
    b"\0",
    b"n" * 65,
    b"n" * 16_000,
    "é".encode(),
    b"\xff\xfe",
    b"a$",
    b"a:b",
    b"a\tb",
    b"#ephemeral",
    b"a#other",
    b"a#ephemeral#ephemeral",
    b"%2e%2e",
]
NUMBERS = [b"x", b"-1", b"+1", b"1.5", b"1e3", b"0x10", b"1_0", b"\xd9\xa1", b"9" * 400, b"\0"]
IDS = [b"", b"short", ID[:-1], ID + b"0", b"\0", b"-1"]


def size(number: int) -> bytes:
    return struct.pack(">i", number)


def sizes(largest: int) -> list[bytes]:
    return [size(number) for number in (-(2**31), -1, 0, largest + 1, 2**31 - 1)]


def wrong_commands() -> Iterator[tuple[bytes, str]]:
    """Every command with every wrong argument, and the code that NSQ has for it."""
    for line in (b"", b" ", b"FOO", b"pub t", b"PUBt", b" PUB t", b"\0\0\0\0", b"\xff" * 40):
        yield line + b"\n", "E_INVALID"
    for line in (b"SUB", b"SUB t", b"FIN", b"REQ", b"REQ " + ID, b"TOUCH", b"PUB", b"MPUB"):
        yield line + b"\n", "E_INVALID"
    for line in (b"DPUB", b"DPUB t", b"AUTH x", b"RDY", b"CLS", b"FIN " + ID, b"TOUCH " + ID):
        yield line + b"\n", "E_INVALID"
    for name in NAMES:
        for line in (b"PUB %s\n", b"MPUB %s\n", b"DPUB %s 5\n", b"SUB %s c\n"):
            yield line % name, "E_BAD_TOPIC"
        yield b"SUB t %s\n" % name, "E_BAD_CHANNEL"
    for number in NUMBERS:
        for line in (b"DPUB t %s\n", b"RDY %s\n", b"REQ " + ID + b" %s\n"):
            yield line % number, "E_INVALID"
    for identity in IDS:
        for line in (b"FIN %s\n", b"TOUCH %s\n", b"REQ %s 5\n"):
            yield line % identity, "E_INVALID"
    for number in sizes(MESSAGE_MAX):
        for line in (b"PUB t\n", b"DPUB t 5\n"):
            yield line + number, "E_BAD_MESSAGE"
        yield b"MPUB t\n" + sized(size(1) + number), "E_BAD_MESSAGE"
    for number in sizes(BODY_MAX):
        for line in (b"MPUB t\n", b"IDENTIFY\n", b"AUTH\n"):
            yield line + number, "E_BAD_BODY"
    for number in sizes((BODY_MAX - 4) // 5):
        yield b"MPUB t\n" + sized(number), "E_BAD_BODY"
    for body in (b"{", b"[]", b"\xff", b'"x"', b"{}}", b"\0" * 100, b"[" * 100_000):
        yield b"IDENTIFY\n" + sized(body), "E_BAD_BODY"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder: Path = tmp_path_factory.mktemp("bad-input")
    with RunningBroker(BrokerOptions(folder=str(folder), http_port=0, tcp_port=0)) as running:
        yield running


@pytest.fixture(scope="module")
def port(shared: RunningBroker) -> int:
    return shared.server.broker.tcp_port


@pytest.fixture
def bystander(shared: RunningBroker, port: int) -> Iterator[Bystander]:
    """Notices nothing before, nor after; no topic comes of nonsense."""
    with Bystander(port) as made:
        made.notices_nothing()
        before = topics(shared)
        yield made
        made.notices_nothing()
        assert topics(shared) - {"t"} == before - {"t"}


def topics(broker: RunningBroker) -> set[str]:
    return {topic.name for topic in broker.server.broker.topics}


def last_frame(client: V2) -> Frame:
    """Take frames until an error comes."""
    while (frame := client.frame()) is not None:
        if frame.kind == 1:
            return frame
    raise AssertionError("closed without a word")


@pytest.mark.parametrize(
    "magic",
    [
        b"GET ",
        b"POST",
        b"  V1",
        b"  V3",
        b"V2  ",
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"\x16\x03\x01\x02",
        b"X",
        b" X",
        b"\n",
    ],
)
def test_a_wrong_magic_is_refused(bystander: Bystander, port: int, magic: bytes) -> None:
    with V2(port, magic=magic) as client:
        assert client.frame() == Frame(1, b"E_BAD_PROTOCOL")
        assert client.closed()


def test_a_wrong_magic_is_refused_at_its_first_wrong_byte(bystander: Bystander, port: int) -> None:
    for cut in range(4):
        with V2(port, magic=b"") as client:
            client.send(b"  V2"[:cut])
            client.send(b"?")
            assert client.frame() == Frame(1, b"E_BAD_PROTOCOL")
            assert client.closed()


def test_every_wrong_argument_is_refused_with_nsqs_code(bystander: Bystander, port: int) -> None:
    for sent, code in wrong_commands():
        with V2(port) as client:
            client.send(sent)
            frame = last_frame(client)
            shown = (sent[:80], frame)
            assert frame.data.split(b" ")[0].decode() == code, shown
            assert len(frame.data) < 40_000, shown
            assert client.closed(), shown
        bystander.notices_nothing()


def test_what_stands_before_nonsense_counts_and_what_stands_behind_does_not(
    bystander: Bystander, port: int
) -> None:
    with V2(port) as witness:
        witness.subscribe("t", "witness#ephemeral", ready=2500)
        count = 0
        for sent, _ in wrong_commands():
            with V2(port) as client:
                client.send(b"PUB t\n", sized(b"before"), sent)
                client.try_send(b"\nPUB t\n", sized(b"behind"))
                assert client.frame() == Frame(0, b"OK")
                assert last_frame(client).kind == 1
            count += 1
        bystander.notices_nothing()
        with V2(port) as client:
            client.publish("t", b"end")
        assert [witness.message().body for _ in range(count)] == [b"before"] * count
        assert witness.message().body == b"end"


def test_ids_of_nothing_fail_and_the_connection_goes_on(bystander: Bystander, port: int) -> None:
    with V2(port) as client:
        client.subscribe("t", "c", ready=1)
        for identity in (ID, b"\0" * 16, b"f" * 16, b"F" * 16, b"/" * 16, b"8" + b"0" * 15):
            for name in (b"FIN", b"TOUCH", b"REQ"):
                client.send(name, b" ", identity, b" 0\n" if name == b"REQ" else b"\n")
                error = client.frame()
                assert error is not None
                assert error.kind == 1
                assert error.data.startswith(b"E_%s_FAILED %s " % (name, name))
                assert error.data.endswith(b" failed ID not in flight")
        client.send(b"NOP\n")
        client.publish("t", b"still there")


IN_STATES = {
    "before SUB": (
        [],
        [b"RDY 1\n", b"FIN %s\n" % ID, b"REQ %s 0\n" % ID, b"TOUCH %s\n" % ID, b"CLS\n"],
    ),
    "after SUB": (
        [b"SUB t c\n"],
        [b"SUB t c\n", b"IDENTIFY\n" + sized(b"{}"), b"AUTH\n" + sized(b"secret")],
    ),
    "after CLS": (
        [b"SUB t c\n", b"CLS\n"],
        [b"SUB t c\n", b"CLS\n", b"IDENTIFY\n" + sized(b"{}"), b"AUTH\n" + sized(b"secret")],
    ),
}


@pytest.mark.parametrize("state", IN_STATES)
def test_commands_in_a_wrong_state_are_refused(bystander: Bystander, port: int, state: str) -> None:
    before, wrong = IN_STATES[state]
    for command in wrong:
        with V2(port) as client:
            client.send(*before, command)
            frame = last_frame(client)
            name = command.split()[0]
            assert frame == Frame(1, b"E_INVALID cannot %s in current state" % name)
            assert client.closed()


BODIES = {
    "PUB": b"PUB cut\n" + sized(b"a message"),
    "DPUB": b"DPUB cut 5\n" + sized(b"a message"),
    "MPUB": b"MPUB cut\n" + batch(b"one", b"two", b"three"),
    "IDENTIFY": b"IDENTIFY\n" + sized(b'{"client_id": "c", "feature_negotiation": true}'),
    "AUTH": b"AUTH\n" + sized(b"secret"),
    "SUB": b"SUB cut c\n",
}


@pytest.mark.parametrize("name", BODIES)
def test_what_is_cut_at_any_byte_is_nothing(bystander: Bystander, port: int, name: str) -> None:
    whole = BODIES[name]
    for cut in range(len(whole)):
        with V2(port) as client:
            client.send(whole[:cut])
            client.end()
            assert client.frame() is None
    for cut in range(4):
        with V2(port, magic=b"  V2"[:cut]) as client:
            client.end()
            assert client.frame() is None


def test_any_pieces_of_a_conversation_are_the_conversation(bystander: Bystander, port: int) -> None:
    said = b"".join(
        [
            *(BODIES[name].replace(b"cut", b"t") for name in ("IDENTIFY", "PUB", "MPUB", "DPUB")),
            b"NOP\n",
            b"PUB t\r\n" + sized(b"x" * 300),
        ]
    )
    for step in (1, 2, 3, 7, 50):
        with V2(port) as client:
            for start in range(0, len(said), step):
                client.send(said[start : start + step])
            answers = [client.frame() for _ in range(5)]
            assert answers[1:] == [Frame(0, b"OK")] * 4


def test_a_sender_that_never_ends_a_command_is_cut_off_though_it_goes_on_sending(
    bystander: Bystander, port: int
) -> None:
    clients = [V2(port) for _ in range(3)]
    begun = [b"PUB t\n" + size(1000), b"NO", b"IDENTIFY\n" + size(100)]
    for client, begin in zip(clients, begun, strict=True):
        client.identify(heartbeat_interval=1000)
        client.send(begin)
    for client in clients:
        # A byte for each heartbeat, the pace that the server itself sets.
        while (frame := client.frame()) is not None:
            assert frame == Frame(0, b"_heartbeat_")
            client.try_send(b"x")
        client.close()


def test_slow_senders_of_large_bodies_do_not_keep_others_from_publishing(
    tmp_path: Path,
) -> None:
    options = BrokerOptions(
        folder=str(tmp_path),
        http_port=0,
        tcp_port=0,
        max_inflight_bytes=BODY_MAX,
        body_timeout_ms=3_000,
    )
    with RunningBroker(options) as broker:
        tcp_port = broker.server.broker.tcp_port
        with V2(tcp_port) as slow, V2(tcp_port) as honest, Bystander(tcp_port) as other:
            slow.identify(heartbeat_interval=-1)
            slow.send(b"MPUB t\n", size(BODY_MAX), b"\0")
            while broker.server.broker.budget.held_bytes == 0:
                other.notices_nothing()
            assert honest.ask(b"MPUB t\n", batch(b"x" * 500_000)) == b"OK"
            error = slow.frame()
            assert error is not None
            assert error.data.startswith(b"E_BAD_BODY body")
            assert slow.closed()


def test_publishers_of_topics_that_come_and_go_are_answered(
    shared: RunningBroker, port: int, bystander: Bystander
) -> None:
    sent = 0
    client = V2(port)
    for round_number in range(30):
        shared.ask("POST", "/topic/create?topic=t")
        for _ in range(20):
            client.send(b"PUB t\n", sized(b"x"), b"MPUB t\n", batch(b"y", b"z"))
            sent += 2
        answer = shared.ask("POST", "/topic/delete?topic=t")
        assert answer.status in {200, 404}, round_number
        while sent:
            frame = client.frame()
            if frame is not None and frame.kind == 0:
                sent -= 1
                continue
            if frame is not None:
                assert frame.data.split()[0] in {b"E_PUB_FAILED", b"E_MPUB_FAILED"}
            client.close()
            client, sent = V2(port), 0
    client.close()
    shared.ask("POST", "/topic/create?topic=t")


def test_consumers_of_a_deleted_topic_are_let_go(
    shared: RunningBroker, port: int, bystander: Bystander
) -> None:
    for _ in range(10):
        with V2(port) as producer, V2(port) as consumer:
            consumer.subscribe("t", "c", ready=1)
            producer.publish("t", b"x")
            message = consumer.message()
            assert shared.ask("POST", "/topic/delete?topic=t").status == 200
            consumer.try_send(b"FIN %s\n" % message.id)
            assert consumer.frame() is None
