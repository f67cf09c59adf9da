"""The bytes of the client: frames whatever the pieces, commands as NSQ has them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.addresses import Address
from penstock.client.v2 import v2_protocol
from penstock.core.errors import InvalidRequest
from tests.client.fake_server_kit import frame, message_frame

MESSAGES = st.builds(
    lambda number, body, attempts: (
        message_frame(number, body, attempts),
        (1_700_000_000 * 10**9, attempts, b"%016x" % number, body),
    ),
    st.integers(0, 2**63 - 1),
    st.binary(max_size=40),
    st.integers(0, 65_535),
)
RESPONSES = st.binary(max_size=20).map(
    lambda data: (frame(0, data), v2_protocol.ResponseFrame(data))
)
ERRORS = st.binary(max_size=20).map(lambda data: (frame(1, data), v2_protocol.ErrorFrame(data)))


def flat(frames: list[v2_protocol.Frame]) -> list[object]:
    found: list[object] = []
    for item in frames:
        found.extend(item if isinstance(item, list) else [item])
    return found


@given(
    st.lists(MESSAGES | RESPONSES | ERRORS, max_size=12),
    st.lists(st.integers(1, 30), min_size=1, max_size=30),
    st.sampled_from([None, 1, 2]),
)
def test_frames_are_the_same_whatever_the_pieces(
    expected: list[tuple[bytes, object]], sizes: list[int], limit: int | None
) -> None:
    data = b"".join(raw for raw, _ in expected)
    parser = v2_protocol.FrameParser(1_000)
    found: list[object] = []
    position = index = 0
    while position < len(data):
        size = sizes[index % len(sizes)]
        piece = data[position : position + size]
        while frames := parser.feed(piece, limit):
            found += flat(frames)
            piece = b""
        position, index = position + size, index + 1
    assert found == [item for _, item in expected]
    assert parser.take_rest() == b""


def test_messages_that_follow_one_another_come_together() -> None:
    data = message_frame(1, b"a") + message_frame(2, b"b") + frame(0, b"x") + message_frame(3, b"")
    first, response, last = v2_protocol.FrameParser(1_000).feed(data)
    assert isinstance(first, list)
    assert [raw[3] for raw in first] == [b"a", b"b"]
    assert response == v2_protocol.ResponseFrame(b"x")
    assert isinstance(last, list)


def test_what_is_behind_a_frame_can_be_taken_away() -> None:
    parser = v2_protocol.FrameParser(1_000)
    assert parser.feed(frame(0, b"OK") + b"compressed", 1) == [v2_protocol.ResponseFrame(b"OK")]
    assert parser.take_rest() == b"compressed"
    assert parser.feed(frame(0, b"OK")) == [v2_protocol.ResponseFrame(b"OK")]


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        struct.pack(">ii", -1, 0),
        struct.pack(">ii", 3, 0),
        struct.pack(">ii", 1_001, 0),
        frame(7, b"x"),
        frame(2, b"too short"),
    ],
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="TCP port"):
        v2_protocol.FrameParser(1_000).feed(data)


def test_commands() -> None:
    assert v2_protocol.publish("t", b"abc") == b"PUB t\n\0\0\0\3abc"
    assert v2_protocol.publish_deferred("t", 7, b"abc") == b"DPUB t 7\n\0\0\0\3abc"
    batch = b"\0\0\0\2\0\0\0\1a\0\0\0\2bc"
    assert v2_protocol.publish_many("t", [b"a", b"bc"]) == b"MPUB t\n\0\0\0\x0f" + batch
    assert v2_protocol.batch_body_bytes([1, 2]) == len(batch)
    assert v2_protocol.finish([b"1" * 16]) == b"FIN %b\n" % (b"1" * 16)
    assert v2_protocol.finish([b"1" * 16, b"2" * 16]) == b"FIN %b\nFIN %b\n" % (
        b"1" * 16,
        b"2" * 16,
    )
    assert v2_protocol.requeue(b"1" * 16, 90) == b"REQ 1111111111111111 90\n"
    assert v2_protocol.subscribe("t", "c") + v2_protocol.ready(0) == b"SUB t c\nRDY 0\n"
    assert v2_protocol.authenticate("é") == b"AUTH\n\0\0\0\2\xc3\xa9"


@pytest.mark.parametrize("name", ["", "a" * 65, "a b", "a\n", "a/b", "ä", "#ephemeral", "a:b"])
def test_names_that_break_the_protocol_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="valid topic name"):
        v2_protocol.require_name(name, "topic")


@pytest.mark.parametrize("text", ["127.0.0.1:4150", "[::1]:4150", "host:1", "unix:/run/x.sock"])
def test_addresses(text: str) -> None:
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:65536", "::1:4150"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="address"):
        Address.parse(text)
