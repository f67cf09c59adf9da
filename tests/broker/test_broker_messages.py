"""Bodies of publishes: what goes in comes out, and nothing else is taken for a batch."""

from __future__ import annotations

import struct
import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.broker.message_bodies import (
    MalformedBody,
    encode_binary,
    parse_binary,
    parse_binary_prefix,
    parse_few,
    parse_text,
)

LIMIT = 1 << 20
BODY_LIMIT = 5 << 20

plain = st.binary(min_size=1, max_size=40)
zeros = st.text("\x00\x01a", min_size=1, max_size=20).map(str.encode)
large = st.integers(65_530, 66_000).map(lambda size: b"x" * size)
multiples = st.sampled_from([1, 255, 256, 257, 512, 4096]).map(lambda size: b"y" * size)
batches = st.lists(st.one_of(plain, zeros, multiples, large), min_size=1, max_size=30)


def frame(messages: list[bytes], count: int | None = None) -> bytes:
    parts = [struct.pack(">i", len(messages) if count is None else count)]
    for message in messages:
        parts += [struct.pack(">i", len(message)), message]
    return b"".join(parts)


@given(batches)
@example([b"\0"])
@example([b"\0\0\0\1"] * 5)
@example([b"a\0", b"\0b", b"\0\0"])
@example([b"x" * 65_536, b"y", b"z" * 70_000])
def test_binary_batches_come_back(messages: list[bytes]) -> None:
    body = encode_binary(messages)
    assert body == frame(messages)
    assert encode_binary(pa.array(messages, pa.binary())) == body
    assert parse_binary(body, LIMIT, BODY_LIMIT).to_pylist() == messages


def test_a_slice_is_encoded_alone() -> None:
    array = pa.array([b"aa", b"b", b"ccc", b"d"], pa.binary()).slice(1, 2)
    assert encode_binary(array) == frame([b"b", b"ccc"])


@given(st.lists(st.binary(min_size=1, max_size=8), min_size=1, max_size=20), st.binary(max_size=9))
def test_few_messages_are_taken_as_many_are(messages: list[bytes], behind: bytes) -> None:
    body = frame(messages) + behind
    many, used = parse_binary_prefix(body, LIMIT, BODY_LIMIT)
    few = parse_few(body, LIMIT)
    assert few == ((many.to_pylist(), used) if len(messages) <= 16 else None)
    for cut in range(used):  # what is wrong is said by the other
        assert parse_few(body[:cut], LIMIT) is None
    assert parse_few(body, max(map(len, messages)) - 1) is None


@given(
    st.integers(1, 5).flatmap(lambda n: st.lists(st.binary(min_size=n, max_size=n), min_size=1)),
    st.binary(max_size=9),
    st.data(),
)
def test_messages_of_one_length_are_taken_as_others_are(
    messages: list[bytes], behind: bytes, data: st.DataObject
) -> None:
    body = frame(messages) + behind
    found, used = parse_binary_prefix(body, LIMIT, BODY_LIMIT)
    found.validate(full=True)
    assert (found.to_pylist(), used) == (messages, len(body) - len(behind))
    other = data.draw(st.integers(0, len(messages)))
    mixed = [*messages[:other], b"another one", *messages[other:]]
    found, used = parse_binary_prefix(frame(mixed) + behind, LIMIT, BODY_LIMIT)
    assert (found.to_pylist(), used) == (mixed, len(frame(mixed)))


@given(batches, st.data())
def test_a_cut_batch_is_refused(messages: list[bytes], data: st.DataObject) -> None:
    body = frame(messages)
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(MalformedBody):
        parse_binary(body[:cut], LIMIT, BODY_LIMIT)


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_is_exactly_one_batch(body: bytes) -> None:
    try:
        messages = parse_binary(body, LIMIT, BODY_LIMIT)
    except MalformedBody:
        return
    assert frame(messages.to_pylist()) == body


@given(batches, st.integers(0, 200), st.integers(0, 255))
def test_a_changed_byte_gives_an_error_or_another_exact_batch(
    messages: list[bytes], place: int, octet: int
) -> None:
    body = bytearray(frame(messages))
    body[place % len(body)] = octet
    try:
        parsed = parse_binary(bytes(body), LIMIT, BODY_LIMIT)
    except MalformedBody:
        return
    assert frame(parsed.to_pylist()) == bytes(body)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "BAD_BODY"),
        (b"\0\0\0", "BAD_BODY"),
        (struct.pack(">i", 0), "BAD_BODY"),
        (struct.pack(">i", -1), "BAD_BODY"),
        (struct.pack(">i", 2**31 - 1), "BAD_BODY"),
        (struct.pack(">i", 1), "BAD_MESSAGE"),
        (struct.pack(">ii", 1, 0), "BAD_MESSAGE"),
        (struct.pack(">ii", 1, 0) + b"x", "BAD_MESSAGE"),
        (struct.pack(">ii", 1, -5) + b"xxxxx", "BAD_MESSAGE"),
        (struct.pack(">ii", 1, 11) + b"x" * 11, "BAD_MESSAGE"),
        (frame([b"a", b"b"]) + b"x", "BAD_BODY"),
        (frame([b"a", b"b"], 1), "BAD_BODY"),
        (frame([b"abcdef"], 2), "BAD_MESSAGE"),
    ],
)
def test_what_is_wrong_has_nsqs_name(body: bytes, code: str) -> None:
    with pytest.raises(MalformedBody) as caught:
        parse_binary(body, 10, BODY_LIMIT)
    assert caught.value.code == code


@given(st.lists(st.binary(max_size=30)))
def test_text_is_split_at_newlines_and_empty_lines_are_dropped(lines: list[bytes]) -> None:
    body = b"\n".join(lines)
    expected = [line for line in body.split(b"\n") if line]
    assert parse_text(body, LIMIT).to_pylist() == expected
    assert parse_text(body + b"\n", LIMIT).to_pylist() == expected


def test_a_long_line_is_named() -> None:
    assert parse_text(b"a\n" + b"x" * 10, 10).to_pylist() == [b"a", b"x" * 10]
    with pytest.raises(MalformedBody, match="line 2 has 11 bytes") as caught:
        parse_text(b"a\n" + b"x" * 11 + b"\nb", 10)
    assert caught.value.code == "MSG_TOO_BIG"


def test_the_hot_paths_do_not_import_pandas() -> None:
    """A second of standstill and 40 MB in every process that publishes."""
    program = """
import sys
from penstock.broker.message_bodies import encode_binary, parse_binary, parse_text
parse_binary(encode_binary([b"a", b"b"]), 9, 99)
parse_text(b"a\\n\\nb", 9)
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
