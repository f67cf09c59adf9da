"""A connection's way in and way out, and the room of its large bodies, each without the others."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.memory.memory_budget import MemoryBudget
from penstock.broker.protocol import commands as c
from penstock.broker.protocol.limits import ProtocolLimits
from penstock.broker.publish_admission import BodyMemory, ByteBudget
from penstock.broker.tcp.client_session import ClientSession
from penstock.broker.tcp.input_buffer import InputBuffer
from penstock.broker.tcp.output_buffer import OutputBuffer
from penstock.core.compression import Deflate
from penstock.testing.clock import VirtualClock
from tests.broker.stepped_loop_kit import run_stepped

LARGE = 1 << 17


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.unread_bytes = 0
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert (high, low) == (1, 0)

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def close(self) -> None:
        self.is_closed = True


def intake(session: ClientSession | None = None) -> tuple[InputBuffer, MemoryBudget]:
    memory = MemoryBudget(1 << 20)
    return InputBuffer(ProtocolLimits(), session or ClientSession(0), memory), memory


@pytest.mark.parametrize("cut", range(5))
def test_the_protocol_is_said_in_pieces(cut: int) -> None:
    way_in, _ = intake()
    sent = b"  V2RDY 1\n"
    assert not way_in.take(sent[:cut])
    assert way_in.greeted == (cut == 4)
    assert way_in.take(sent[cut:])
    assert way_in.commands.popleft() == c.Ready(1)
    assert way_in.is_empty


def test_another_protocol_is_refused() -> None:
    way_in, _ = intake()
    with pytest.raises(c.CommandRefused) as refused:
        way_in.take(b"  V1RDY 1\n")
    assert (refused.value.code, refused.value.text) == ("E_BAD_PROTOCOL", "")


def test_what_waits_is_held_until_it_is_carried_out() -> None:
    way_in, memory = intake()
    way_in.take(b"  V2")
    sent = b"RDY 1\nRDY 2\n"
    assert way_in.take(sent)
    way_in.report_held()
    assert memory.held_bytes == len(sent)
    way_in.commands.clear()
    way_in.report_held()
    assert memory.held_bytes == 0
    way_in.take(sent)
    way_in.report_held()
    way_in.end()
    assert (memory.held_bytes, way_in.is_empty) == (0, True)


def test_who_sends_much_at_once_waits_for_its_turn() -> None:
    way_in, _ = intake()
    way_in.take(b"  V2")
    way_in.take(b"NOP\n" * LARGE)
    waits = [way_in.waits_for_turn]
    while way_in.holds_more:
        way_in.begin_turn()
        way_in.take()
    way_in.begin_turn()
    waits.append(way_in.waits_for_turn)
    assert waits == [True, False]
    assert way_in.is_full, "more commands wait than may"


def test_what_is_packed_is_unpacked_a_piece_at_a_time() -> None:
    session = ClientSession(0)
    way_in, _ = intake(session)
    way_in.take(b"  V2")
    session.codec = Deflate(6)
    way_in.take(Deflate(6).compress(b"NOP\n" * LARGE))
    pieces = 1
    while way_in.holds_more:
        way_in.commands.clear()
        way_in.take()
        pieces += 1
    assert pieces > 4 * LARGE >> 16


def test_one_turn_is_one_write_and_nothing_follows_the_close() -> None:
    async def story() -> None:
        memory, wire = MemoryBudget(1 << 30), Wire()
        out = OutputBuffer(ClientSession(0), memory)
        out.begin(wire)
        out.send(b"a")
        out.send(b"b")
        assert wire.written == []
        await asyncio.sleep(0)
        assert b"".join(wire.written) == b"ab"
        out.send(b"c")
        out.close()
        assert (b"".join(wire.written), wire.is_closed, out.writable) == (b"abc", True, False)
        out.end()
        out.send(b"d")
        await asyncio.sleep(0)
        assert (b"".join(wire.written), memory.held_bytes) == (b"abc", 0)

    run_stepped(VirtualClock(), story())


def test_output_that_is_pending_when_the_connection_is_lost_is_dropped() -> None:
    async def story() -> None:
        memory, wire = MemoryBudget(1 << 20), Wire()
        out = OutputBuffer(ClientSession(0), memory)
        out.begin(wire)
        out.send(b"a")
        out.end()
        out.resume()  # reports the memory that it holds
        assert memory.held_bytes == 0
        await asyncio.sleep(0)
        assert wire.written == []

    run_stepped(VirtualClock(), story())


def test_a_client_that_does_not_read_is_held_for_and_gets_no_deliveries() -> None:
    async def story() -> None:
        memory, wire, rooms = MemoryBudget(1 << 30), Wire(), []
        out = OutputBuffer(ClientSession(0), memory)
        out.begin(wire)
        out.on_room = lambda: rooms.append(out.writable)
        out.send(bytes(1 << 20))
        assert (out.writable, memory.held_bytes) == (False, 1 << 20)
        out.flush()
        assert (out.writable, memory.held_bytes, rooms) == (True, 0, [True])
        wire.unread_bytes = 5
        out.pause()
        assert (out.writable, memory.held_bytes, out.unread_bytes) == (False, 5, 5)
        await asyncio.sleep(2)
        assert out.stuck_s(asyncio.get_running_loop().time()) == pytest.approx(2)
        wire.unread_bytes = 0
        out.resume()
        assert (memory.held_bytes, rooms) == (0, [True, True])
        assert out.stuck_s(asyncio.get_running_loop().time()) == 0

    run_stepped(VirtualClock(), story())


class Reader:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def read_body(self) -> None:
        self.told.append("read")

    def fail(self, code: str, text: str) -> None:
        del text
        self.told.append(code)


def test_a_large_body_has_room_while_it_is_under_way() -> None:
    async def story() -> None:
        budget, reader = ByteBudget(LARGE, 1.0), Reader()
        room, other = BodyMemory(budget, 10_000), BodyMemory(budget, 10_000)
        assert not room.watch(reader, 100, is_another=True), "a small body asks for none"
        assert room.watch(reader, LARGE, is_another=False)
        assert room.is_awaited
        await asyncio.sleep(0)
        assert (room.is_awaited, reader.told, budget.held_bytes) == (False, ["read"], LARGE)
        assert not room.watch(reader, 10, is_another=False)
        assert other.watch(reader, LARGE, is_another=True)
        await asyncio.sleep(0)
        assert other.is_awaited, "there is room for one"
        assert room.watch(reader, 0, is_another=True)
        await asyncio.sleep(0.1)
        assert (other.is_awaited, reader.told) == (False, ["read", "read"])
        other.close()
        await asyncio.sleep(0)
        assert budget.held_bytes == 0

    run_stepped(VirtualClock(), story())


def test_a_large_body_is_refused_without_room_or_in_time() -> None:
    async def story() -> None:
        budget, slow, late = ByteBudget(LARGE, 1.0), Reader(), Reader()
        held, refused = BodyMemory(budget, 10_000), BodyMemory(budget, 10_000)
        held.watch(slow, LARGE, is_another=True)
        refused.watch(late, LARGE, is_another=True)
        await asyncio.sleep(2)
        assert (slow.told, late.told) == (["read"], ["E_PUB_FAILED"])
        await asyncio.sleep(9)
        assert slow.told == ["read", "E_BAD_BODY"]
        assert budget.held_bytes == 0

    run_stepped(VirtualClock(), story())
