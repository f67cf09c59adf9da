"""Any way to cut a stream of commands gives the same commands; the fuzzer's seeds hold."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.message_bodies import encode_binary
from penstock.broker.protocol.commands import Nop
from tests.fuzz import fuzz_protocol as fuzz

SEEDS = sorted((Path(__file__).parent / "seeds").iterdir())


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


bodies = st.binary(min_size=1, max_size=64) | st.sampled_from([b"\0" * 9, b"FIN \n", b"PUB a\n"])
ids = st.integers(0, 2**64 - 1).map(lambda number: b"%016x" % number)
ends = st.sampled_from([b"\n"] * 6 + [b"\r\n"])
names = st.sampled_from([b"a", b"ab", b"a#ephemeral", b"n" * 64])

fins = st.builds(lambda number, end: b"FIN " + number + end, ids, ends)
pubs = st.builds(lambda name, end, body: b"PUB " + name + end + sized(body), names, ends, bodies)
batches = st.builds(
    lambda name, messages: b"MPUB " + name + b"\n" + sized(encode_binary(messages)),
    names,
    st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=8),
)
others = st.one_of(
    st.builds(lambda number, end: b"REQ " + number + b" 5" + end, ids, ends),
    st.builds(lambda number, end: b"TOUCH " + number + end, ids, ends),
    st.builds(lambda name, body: b"DPUB " + name + b" 9\n" + sized(body), names, bodies),
    st.builds(lambda body: b"IDENTIFY\n" + sized(body), bodies),
    st.builds(lambda body: b"AUTH\n" + sized(body), bodies),
    st.sampled_from([b"NOP\n", b"NOP\r\n", b"CLS\n", b"RDY\n", b"RDY 7\n", b"SUB a b\n"]),
)
sound = st.one_of(
    st.lists(fins, min_size=1, max_size=60).map(b"".join),
    st.lists(pubs, min_size=1, max_size=6).map(b"".join),
    st.tuples(pubs, st.integers(1, 20)).map(lambda one: one[0] * one[1]),
    batches,
    others,
)
spoilt = st.one_of(
    st.binary(max_size=30),
    fins.map(lambda line: line[:-1]),
    fins.map(lambda line: line.replace(b"a", b"G")),
    pubs.map(lambda line: line[:-1]),
    st.sampled_from([b"FIN ", b"PUB a\n\0\0\0\0", b"PUB a\n\0\0\0\x41", b"N" * 90, b"\n"]),
)
streams = st.lists(sound | sound | sound | spoilt, max_size=8).map(b"".join)


@given(stream=streams, step=st.integers(0, 255))
def test_any_way_to_cut_a_stream_gives_the_same_commands(stream: bytes, step: int) -> None:
    fuzz.check_commands(stream, step)


@given(stream=st.lists(sound, min_size=1, max_size=6).map(b"".join), data=st.data())
def test_a_sound_stream_is_understood_to_its_end_wherever_it_is_cut(
    stream: bytes, data: st.DataObject
) -> None:
    borders = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    places = [0, *borders, len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(places)]
    commands = fuzz.parse(pieces)
    assert commands == fuzz.parse([stream])
    assert fuzz.parse([stream, b"NOP\n"]) == [*commands, Nop()]


@pytest.mark.parametrize("seed", SEEDS, ids=lambda path: path.name)
def test_the_fuzzers_seeds_hold(seed: Path) -> None:
    fuzz.check(seed.read_bytes())


def test_there_are_seeds_for_everything_that_is_fuzzed() -> None:
    assert {path.read_bytes()[0] % 4 for path in SEEDS} == {0, 1, 2, 3}


@given(data=st.binary(max_size=200))
def test_any_input_of_the_fuzzer_holds(data: bytes) -> None:
    fuzz.check(data)
