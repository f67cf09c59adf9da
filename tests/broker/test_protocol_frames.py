"""Frames and the ids in them, byte by byte."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker import message_id
from penstock.broker.protocol import frames

INT64 = st.integers(-(2**63), 2**63 - 1)


def test_responses_and_errors() -> None:
    assert frames.OK == b"\0\0\0\x06\0\0\0\0OK"
    assert frames.HEARTBEAT == b"\0\0\0\x0f\0\0\0\0_heartbeat_"
    assert frames.CLOSE_WAIT == b"\0\0\0\x0e\0\0\0\0CLOSE_WAIT"
    assert frames.response(b"") == b"\0\0\0\x04\0\0\0\0"
    assert frames.error("E_BAD_PROTOCOL") == b"\0\0\0\x12\0\0\0\x01E_BAD_PROTOCOL"
    assert frames.error("E_X", "a\xe9 ") == b"\0\0\0\x0c\0\0\0\x01E_X a\xc3\xa9 "


def read_frames(data: bytes) -> list[tuple[int, int, bytes, bytes]]:
    found = []
    while data:
        size, kind, time_ns, attempts, number = struct.unpack_from(">iiqH16s", data)
        assert kind == frames.MESSAGE
        found.append((time_ns, attempts, number, data[34 : 4 + size]))
        data = data[4 + size :]
    return found


@pytest.mark.parametrize("count", [1, 2, 16, 17, 200])
@pytest.mark.parametrize("skipped", [0, 3])
def test_messages_of_a_slice_are_framed(count: int, skipped: int) -> None:
    bodies = [b"body %d" % n * (n % 5) for n in range(count + skipped)]
    messages = pa.array([*bodies, b"beyond"], pa.binary()).slice(skipped, count)
    ids = np.arange(count, dtype=np.int64) + message_id.of(2, 10)
    attempts = (np.arange(count) % 4 + 1).astype(np.uint16)
    times_ns = np.arange(count, dtype=np.int64) + 1_700_000_000_000_000_000
    data = bytes(frames.message_frames(messages, ids, attempts, times_ns))
    assert read_frames(data) == [
        (
            1_700_000_000_000_000_000 + n,
            n % 4 + 1,
            b"000200000000%04x" % (n + 10),
            bodies[n + skipped],
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("count", [1, 50])
def test_one_number_stands_for_all(count: int) -> None:
    messages = pa.array([b"x"] * count, pa.binary())
    ids = np.arange(count, dtype=np.int64)
    data = bytes(frames.message_frames(messages, ids, 65_535, 7))
    assert {(time_ns, attempts) for time_ns, attempts, _, _ in read_frames(data)} == {(7, 65_535)}


@given(
    messages=st.lists(st.tuples(st.binary(max_size=40), INT64, st.integers(0, 65_535)), min_size=1)
)
def test_what_is_framed_is_read_again(messages: list[tuple[bytes, int, int]]) -> None:
    bodies, numbers, attempts = zip(*messages, strict=True)
    data = frames.message_frames(
        pa.array(bodies, pa.binary()),
        np.array(numbers, np.int64),
        np.array(attempts, np.uint16),
        np.array(numbers, np.int64),
    )
    assert read_frames(bytes(data)) == [
        (number, tries, message_id.text(number).encode(), body) for body, number, tries in messages
    ]


@pytest.mark.parametrize(
    ("number", "digits"),
    [
        (message_id.of(0, 0), b"0" * 16),
        (message_id.of(1, 0xABC), b"0001000000000abc"),
        (message_id.of(0x7FFF, message_id.OFFSET_MASK), b"7fffffffffffffff"),
        (-1, b"f" * 16),
        (-(2**63), b"8000000000000000"),
    ],
)
def test_an_id_is_16_hex_digits(number: int, digits: bytes) -> None:
    assert message_id.text(number).encode() == digits
    assert message_id.parse(digits) == number
    assert message_id.encode(np.array([number])).tobytes() == digits


def test_an_id_says_where_its_message_stands() -> None:
    assert message_id.split(message_id.of(255, 123_456_789_012)) == (255, 123_456_789_012)


@pytest.mark.parametrize(
    "digits",
    [b"", b"0" * 15, b"0" * 17, b"0" * 15 + b"F", b"0x" + b"0" * 14, b" " * 16, b"+" + b"1" * 15],
)
def test_other_bytes_are_no_id(digits: bytes) -> None:
    assert message_id.parse(digits) is None


@given(numbers=st.lists(INT64, max_size=40))
def test_ids_come_back(numbers: list[int]) -> None:
    digits = message_id.encode(np.array(numbers, np.int64))
    assert digits.shape == (len(numbers), 16)
    ids = message_id.decode(digits)
    assert ids.dtype == np.int64
    assert ids.tolist() == numbers == [message_id.parse(row.tobytes()) for row in digits]
    assert message_id.encode(np.array(numbers, np.int64)[::-1])[::-1].tobytes() == digits.tobytes()


@given(rows=st.lists(st.binary(min_size=16, max_size=16) | INT64, max_size=10))
def test_ids_are_decoded_up_to_what_is_none(rows: list[bytes | int]) -> None:
    raw = [row if isinstance(row, bytes) else message_id.text(row).encode() for row in rows]
    expected = []
    for row in raw:
        if (number := message_id.parse(row)) is None:
            break
        expected.append(number)
    digits = np.frombuffer(b"".join(raw), np.uint8).reshape(-1, 16)
    assert message_id.decode(digits).tolist() == expected
