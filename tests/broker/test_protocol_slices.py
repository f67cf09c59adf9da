"""What came is parsed slice by slice: none costs much, and all of them together are what came."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.protocol import commands as c
from penstock.broker.protocol.command_parser import RUN_MAX, CommandParser
from penstock.broker.protocol.limits import ProtocolLimits

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITS = ProtocolLimits()
LINES_MAX = 128


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def mpub(*messages: bytes) -> bytes:
    body = struct.pack(">i", len(messages)) + b"".join(map(sized, messages))
    return b"MPUB t\n" + sized(body)


def flat(command: c.Command) -> Iterator[object]:
    """One for each that was sent, however they were put together."""
    match command:
        case c.Finish(ids):
            yield from (("FIN", number) for number in ids.tolist())
        case c.Publish(topic, messages):
            yield from (("PUB", topic, message) for message in messages)
        case c.MultiPublish(topic, messages):
            yield ("MPUB", topic, list(messages))
        case _:
            yield command


# What is sent, with what it means.
SENT: dict[bytes, object] = {
    b"NOP\n": c.Nop(),
    b"RDY 5\n": c.Ready(5),
    b"FIN 0001000000000007\n": ("FIN", 0x0001000000000007),
    b"FIN not-a-hex-number\n": c.MalformedIdCommand("FIN", "not-a-hex-number"),
    b"PUB t\n" + sized(b"x"): ("PUB", "t", b"x"),
    b"PUB u\n" + sized(b"yy"): ("PUB", "u", b"yy"),
    mpub(b"a", b"b"): ("MPUB", "t", [b"a", b"b"]),
    b"DPUB t 5\n" + sized(b"z"): c.DeferredPublish("t", 5, b"z"),
}
RUNS = st.lists(st.tuples(st.sampled_from(sorted(SENT)), st.integers(1, 400)), max_size=6)


@given(RUNS, st.lists(st.integers(1, 3_000), max_size=8), st.booleans())
def test_slices_are_what_was_sent_in_order_however_it_came(
    runs: list[tuple[bytes, int]], cuts: list[int], patient: bool
) -> None:
    data = b"".join(sent * count for sent, count in runs)
    parser = CommandParser(LIMITS)
    found: list[object] = []
    for size in [*cuts, len(data)]:
        piece, data = data[:size], data[size:]
        found += [one for command in parser.feed(piece) for one in flat(command)]
        # More may come before all of it was taken.
        while patient and parser.waiting_bytes:
            found += [one for command in parser.feed(b"") for one in flat(command)]
    while parser.waiting_bytes:
        found += [one for command in parser.feed(b"") for one in flat(command)]
    assert found == [SENT[sent] for sent, count in runs for _ in range(count)]
    assert parser.is_between_commands


@pytest.mark.parametrize("sent", sorted(SENT))
def test_a_slice_is_bounded_whatever_came(sent: bytes) -> None:
    parser = CommandParser(LIMITS)
    count = 3 * RUN_MAX
    found = list(parser.feed(sent * count))
    slices = 1
    assert 0 < parser.waiting_bytes < len(sent) * count
    while parser.waiting_bytes:
        one = parser.feed(b"")
        assert one
        assert len(one) <= LINES_MAX
        assert sum(1 for command in one for _ in flat(command)) <= RUN_MAX + LINES_MAX
        found += one
        slices += 1
    assert slices >= 3
    assert [one for command in found for one in flat(command)] == [SENT[sent]] * count


def test_what_may_each_be_a_block_of_the_disk_costs_more() -> None:
    parser = CommandParser(LIMITS)
    one = b"PUB t\n" + sized(b"x") + b"PUB u\n" + sized(b"x")
    assert len(parser.feed(one * 1_000)) <= LINES_MAX // 4


def test_of_large_batches_few_are_a_slice() -> None:
    parser = CommandParser(LIMITS)
    found = parser.feed(mpub(*[b"x"] * RUN_MAX) * 5)
    assert len(found) == 1


def test_between_slices_no_body_is_under_way() -> None:
    parser = CommandParser(LIMITS)
    parser.feed(b"NOP\n" * 1_000 + b"PUB t\n\0\1\0\0")
    assert parser.waiting_bytes
    assert parser.wanted_bytes == 0
    assert not parser.is_between_commands
    while parser.waiting_bytes:
        assert parser.wanted_bytes == 0
        parser.feed(b"")
    assert parser.wanted_bytes == 65_536
