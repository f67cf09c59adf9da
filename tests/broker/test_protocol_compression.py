"""Compressed connections: formats byte by byte, bounds, and broken streams."""

from __future__ import annotations

import contextlib
import itertools
import random
import zlib
from collections.abc import Callable

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.protocol.limits import Codec, Deflate, Snappy
from penstock.core.errors import InvalidRequest

CODECS = {"snappy": Snappy, "deflate 1": lambda: Deflate(1), "deflate 6": lambda: Deflate(6)}
IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
PLENTY = 1 << 24

codecs = pytest.mark.parametrize("make", CODECS.values(), ids=CODECS.keys())
repeated = st.builds(
    lambda part, count: part * count, st.binary(max_size=3), st.sampled_from([1, 1_000, 70_000])
)
pieces = st.lists(st.binary(max_size=200) | repeated, max_size=6)


def drain(codec: Codec, data: bytes, max_bytes: int) -> bytes:
    """Take all that `data` holds, in pieces."""
    found = b""
    while piece := codec.decompress(data, max_bytes):
        assert len(piece) <= max_bytes
        found += piece
        data = b""
    return found


def masked(data: bytes) -> bytes:
    crc = int(google_crc32c.value(data))
    return ((((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def chunk(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + len(body).to_bytes(3, "little") + body


def plain(data: bytes) -> bytes:
    return chunk(0x01, masked(data) + data)


def packed(data: bytes) -> bytes:
    return chunk(0x00, masked(data) + pa.Codec("snappy").compress(data, asbytes=True))


@codecs
@given(data=st.data())
def test_all_that_is_sent_is_read_however_it_is_cut(
    make: Callable[[], Codec], data: st.DataObject
) -> None:
    sender, receiver = make(), make()
    max_bytes = data.draw(st.sampled_from([1_000, 65_536, PLENTY]))
    cut = data.draw(st.integers(1, 400))
    for piece in data.draw(pieces):
        sent = sender.compress(piece)
        got = b""
        for start in range(0, len(sent), cut):
            got += drain(receiver, sent[start : start + cut], max_bytes)
        assert got == piece  # all of it: what was sent is flushed


@codecs
def test_a_bomb_goes_off_in_small_pieces(make: Callable[[], Codec]) -> None:
    bomb = make().compress(b"\0" * 10_000_000)
    receiver = make()
    assert len(bomb) < 600_000
    sizes = [len(receiver.decompress(bomb, 4_096))]
    while size := len(receiver.decompress(b"", 4_096)):
        sizes.append(size)
    assert max(sizes) <= 4_096
    assert sum(sizes) == 10_000_000


@codecs
@given(data=st.binary(max_size=100), after=st.booleans())
def test_any_bytes_are_read_or_refused(
    make: Callable[[], Codec], data: bytes, *, after: bool
) -> None:
    receiver = make()
    if after:
        assert drain(receiver, make().compress(b"begin"), PLENTY) == b"begin"
    with contextlib.suppress(InvalidRequest):
        assert len(receiver.decompress(data, 1_000)) <= 1_000


def test_deflate_is_raw_and_flushed() -> None:
    sent = Deflate(6).compress(b"hello")
    assert sent.endswith(b"\0\0\xff\xff")
    assert zlib.decompressobj(-zlib.MAX_WBITS).decompress(sent) == b"hello"


def test_a_deflate_stream_that_ends_gives_its_data_and_then_an_error() -> None:
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    receiver = Deflate(6)
    sent = packer.compress(b"last") + packer.flush() + b"more"
    assert receiver.decompress(sent, PLENTY) == b"last"
    with pytest.raises(InvalidRequest, match="deflate stream has ended"):
        receiver.decompress(b"", PLENTY)


def test_a_broken_deflate_stream_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="deflate stream is broken"):
        Deflate(6).decompress(b"\xff" * 20, PLENTY)


def test_snappy_begins_with_its_name_once() -> None:
    codec = Snappy()
    assert codec.compress(b"").startswith(IDENTIFIER)
    first, second = codec.compress(b"abc"), codec.compress(b"abc")
    assert first == second == plain(b"abc")


def test_snappy_sends_what_does_not_shrink_as_it_is() -> None:
    noise = random.Random(1).randbytes(70_000)
    sent = Snappy().compress(noise)
    assert sent == IDENTIFIER + plain(noise[:65_536]) + plain(noise[65_536:])
    text = b"abcd" * 1_000
    assert Snappy().compress(text) == IDENTIFIER + packed(text)


def test_snappy_reads_every_kind_of_chunk() -> None:
    sent = [
        IDENTIFIER,
        plain(b"one "),
        chunk(0xFE, b"\0" * 100),  # padding
        chunk(0x80, b"to be skipped"),
        chunk(0xFD, b""),
        packed(b"two " * 50),
        IDENTIFIER,  # streams may be joined
        plain(b""),
        plain(b"three"),
    ]
    assert drain(Snappy(), b"".join(sent), PLENTY) == b"one " + b"two " * 50 + b"three"


BROKEN_CRC = bytes(4)


@pytest.mark.parametrize(
    ("sent", "what"),
    [
        (plain(b"x"), "identifier is missing"),
        (chunk(0xFE, b"x"), "identifier is missing"),
        (chunk(0xFF, b"sNaPpX"), "has a wrong identifier"),
        (chunk(0xFF, b"sNaPpY!"), "has a wrong identifier"),
        (IDENTIFIER + chunk(0x02, b"12345"), "chunk type 0x2"),
        (IDENTIFIER + chunk(0x7F, b"12345"), "chunk type 0x7f"),
        (IDENTIFIER + chunk(0x01, BROKEN_CRC + b"x"), "checksum does not match"),
        (IDENTIFIER + chunk(0x00, BROKEN_CRC + packed(b"x")[8:]), "checksum does not match"),
        (IDENTIFIER + chunk(0x01, b"123"), "without a checksum"),
        (IDENTIFIER + chunk(0x00, masked(b"x") + b"\x05\xff\xff"), "Corrupt"),
        (IDENTIFIER + chunk(0x00, masked(b"x")), "more than 65,536 bytes"),
        (IDENTIFIER + chunk(0x00, masked(b"x") + b"\xff\xff\xff\xff\x7f"), "more than 65,536"),
        (IDENTIFIER + chunk(0x00, masked(b"x") + b"\x81\x80\x04"), "more than 65,536 bytes"),
        (IDENTIFIER + chunk(0x01, masked(b"y" * 65_537) + b"y" * 65_537), "checksum does not"),
        (IDENTIFIER + b"\x00\xff\xff\xff", "a chunk of 16777215 bytes"),
    ],
)
def test_a_broken_snappy_stream_is_refused(sent: bytes, what: str) -> None:
    with pytest.raises(InvalidRequest, match=f"snappy stream is broken.*{what}"):
        drain(Snappy(), sent, PLENTY)


def test_every_damaged_byte_is_seen_or_harmless() -> None:
    sent = Snappy().compress(b"0123456789" * 20)
    for place, flip in itertools.product(range(len(sent)), (1, 0x80)):
        damaged = bytearray(sent)
        damaged[place] ^= flip
        try:
            found = drain(Snappy(), bytes(damaged), PLENTY)
        except InvalidRequest:
            continue
        # A length that grew waits for more; a kind that became another one is skipped.
        assert found == b""
