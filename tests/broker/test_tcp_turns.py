"""A client that floods has one slice carried out in a turn of the loop; others have theirs."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, cast

import pytest

from penstock.broker.protocol import commands as c
from penstock.broker.protocol import frames
from penstock.broker.tcp.server import TcpServer
from penstock.broker.tcp.tcp_connection import TcpConnection
from penstock.core.access.access_control import AccessControl
from penstock.core.compression import Deflate
from tests.broker.broker_kit import RunningBroker
from tests.broker.v2_kit import sized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.broker.options import BrokerOptions
    from penstock.broker.tcp.command_handler import CommandHandler
    from penstock.broker.tcp.tcp_connection import CommandPort, Outcome

MAGIC = b"  V2"
WHO = b"PUB u\n" + sized(b"who")  # answered at once


class Wire(asyncio.Transport):
    """A transport that keeps what is written, and brings nothing while it is not read."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self._reading = True
        self.on_close: Callable[[Exception | None], None] | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True

    def close(self) -> None:
        self._reading = False
        if self.on_close is not None:
            asyncio.get_running_loop().call_soon(self.on_close, None)
            self.on_close = None

    abort = close


@pytest.fixture
def broker(options: BrokerOptions) -> Iterator[RunningBroker]:
    open_to_all = AccessControl.open()  # clients without a socket have no user
    with RunningBroker(dataclasses.replace(options, tcp_port=0), access=open_to_all) as running:
        running.ask("POST", "/topic/create?topic=t")
        running.ask("POST", "/topic/create?topic=u")
        yield running


class Client:
    """A connection without a socket."""

    def __init__(self, broker: RunningBroker, number: int) -> None:
        server = broker.server.broker.clients
        assert isinstance(server, TcpServer)
        self.wire = Wire()
        self.connection = TcpConnection(server, number)
        self.connection.connection_made(self.wire)
        self.wire.on_close = self.connection.connection_lost
        self.connection.data_received(MAGIC)

    def send(self, data: bytes) -> None:
        assert self.wire.is_reading()
        self.connection.data_received(data)

    def answers(self) -> int:
        return self.wire.written.count(frames.OK)

    async def carried_out(self) -> int:
        """Wait until more could be read; return after how many turns of the loop."""
        turns = 0
        while not self.wire.is_reading():
            await asyncio.sleep(0)
            turns += 1
        return turns

    def leave(self) -> None:
        self.wire.close()


FLOODS = {
    "NOP": b"NOP\n",
    "PUB to two topics": b"PUB t\n" + sized(b"x") + b"PUB u\n" + sized(b"x"),
    "PUB": b"PUB t\n" + sized(b"x"),
    "DPUB": b"DPUB t 50000\n" + sized(b"x"),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_another_client_is_answered_while_one_floods(broker: RunningBroker, flood: str) -> None:
    count = 8_000
    sent = FLOODS[flood] * count

    async def ask() -> tuple[int, int]:
        flooding, other = Client(broker, 1_001), Client(broker, 1_002)
        flooding.send(sent + WHO)
        turns = most = before = 0
        while not flooding.wire.is_reading():
            other.send(WHO)
            await asyncio.sleep(0)
            turns += 1
            assert other.answers() == turns
            most = max(most, flooding.answers() - before)
            before = flooding.answers()
        await asyncio.sleep(0)  # for the last answers to leave
        wanted = {"NOP": 0, "PUB to two topics": 2 * count}.get(flood, count)
        assert flooding.answers() == wanted + 1
        flooding.leave()
        other.leave()
        return turns, most

    turns, most = broker.run(ask())
    assert turns >= 3
    assert most <= 2_700
    if flood != "PUB":  # which are put together, and cost little
        assert turns >= count // 128
        assert most <= 128


def test_what_a_flood_says_is_carried_out_in_order(broker: RunningBroker) -> None:
    sent = b"".join(b"PUB t\n" + sized(b"%d" % number) + b"NOP\n" for number in range(1_000))

    async def publish() -> None:
        flooding = Client(broker, 1_001)
        flooding.send(sent)
        await flooding.carried_out()
        flooding.leave()

    broker.run(publish())
    assert broker.stored("t") == [[b"%d" % number for number in range(1_000)]]


def test_who_sends_much_at_once_is_read_again_in_the_next_turn(broker: RunningBroker) -> None:
    batch = (1).to_bytes(4) + sized(b"x" * 200_000)

    async def publish() -> None:
        client = Client(broker, 1_001)
        client.send(b"MPUB t\n" + sized(batch))
        assert not client.wire.is_reading()
        await asyncio.sleep(0)
        assert client.wire.is_reading()
        client.send(WHO)
        assert client.wire.is_reading()
        client.leave()

    broker.run(publish())


def test_what_is_packed_is_carried_out_in_slices_too(broker: RunningBroker) -> None:
    async def ask() -> None:
        client = Client(broker, 1_001)
        client.send(b"IDENTIFY\n" + sized(b'{"feature_negotiation":true,"deflate":true}'))
        codec = Deflate(6)
        for _ in range(10):
            await asyncio.sleep(0)
        assert client.connection.session.codec is not None
        written = len(client.wire.written)
        client.send(codec.compress(b"NOP\n" * 100_000 + WHO))
        assert await client.carried_out() >= 100_000 // 128
        await asyncio.sleep(0)  # for the answer to leave
        assert len(client.wire.written) > written
        client.leave()

    broker.run(ask())


def test_a_fatal_mistake_ends_a_flood_and_what_is_behind_it_is_not_done(
    broker: RunningBroker,
) -> None:
    sent = b"NOP\n" * 1_000 + b"FOO\n" + b"PUB t\n" + sized(b"x")

    async def ask() -> bytes:
        client = Client(broker, 1_001)
        client.send(sent)
        for _ in range(50):
            await asyncio.sleep(0)
        client.leave()
        return bytes(client.wire.written)

    assert b"E_INVALID invalid command FOO" in broker.run(ask())
    assert broker.stored("t") == [[]]


def test_who_leaves_in_the_middle_of_a_flood_is_forgotten(broker: RunningBroker) -> None:
    async def leave() -> int:
        client = Client(broker, 1_001)
        client.send(b"PUB t\n" + sized(b"x") + b"NOP\n" * 100_000 + b"PUB t\n" + sized(b"x"))
        await asyncio.sleep(0)
        held = broker.server.broker.memory.held_bytes
        assert held >= 300_000
        client.leave()
        for _ in range(10):
            await asyncio.sleep(0)
        return broker.server.broker.memory.held_bytes - held

    assert broker.run(leave()) < -300_000
    assert broker.stored("t") == [[b"x"]]


def test_of_large_bodies_without_a_pause_each_has_room_of_its_own(broker: RunningBroker) -> None:
    def mpub(size: int) -> bytes:
        return b"MPUB t\n" + sized((1).to_bytes(4) + sized(b"x" * size))

    async def publish() -> list[int]:
        client = Client(broker, 1_001)
        budget = broker.server.broker.budget
        rest, held = b"", []
        for size in (300_000, 400_000, 500_000):
            data = mpub(size)
            client.send(rest + data[:100_000])
            for _ in range(5):
                await asyncio.sleep(0)
            held.append(budget.held_bytes - (len(data) - 100_000))
            rest = data[100_000:]
        client.send(rest)
        for _ in range(5):
            await asyncio.sleep(0)
        client.leave()
        return [*held, budget.held_bytes]

    # With the room of the first for all of them, its time would be that of all of them, too.
    assert broker.run(publish()) == [0, 0, 0, 0]
    assert [len(body) for body in broker.stored("t")[0]] == [300_000, 400_000, 500_000]


class Faulty:
    """Carries out commands, but for one that it has a bug in."""

    def __init__(self, handler: CommandPort) -> None:
        self._handler = handler

    def carry_out(self, connection: TcpConnection, command: c.Command) -> Outcome:
        if command == c.StartClose():
            raise RuntimeError("the bug")
        return self._handler.carry_out(connection, command)


@pytest.mark.parametrize("before", [b"", b"NOP\n" * 1_000, b"PUB new\n" + sized(b"x")])
def test_a_bug_in_a_command_ends_its_connection_wherever_it_comes(
    broker: RunningBroker, before: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server = broker.server.broker.clients
    assert isinstance(server, TcpServer)
    server.handler = cast("CommandHandler", Faulty(server.handler))

    async def send() -> None:
        client = Client(broker, 1_001)
        ended = asyncio.Event()
        client.wire.on_close = lambda _: ended.set()
        client.send(before + b"CLS\n" + b"PUB t\n" + sized(b"x"))
        await asyncio.wait_for(ended.wait(), 30)
        client.connection.connection_lost(None)

    broker.run(send())
    assert "a command failed" in caplog.text
    assert broker.stored("t") == [[]]
