"""Framing: what is encoded is decoded without a copy; what was changed is found out."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.queue.blocks import (
    BlockDamage,
    FileHeader,
    FoundBlock,
    LogBytes,
    as_messages,
    block_of,
    encode_block,
    encode_file_header,
    encode_records,
    messages_of,
    parse_file_header,
    scan_blocks,
)

batches = st.lists(st.binary(max_size=60), min_size=1, max_size=12)


def encode(messages, base=0, tag=9):
    buffers, length = encode_block(as_messages(messages), base, 5, tag)
    raw = b"".join(memoryview(buffer) for buffer in buffers)
    assert len(raw) == length
    assert length % 8 == 0
    return raw


def scan(raw, *, expected=0, limit=None, tag=9):
    return list(scan_blocks(LogBytes(memoryview(raw)), 0, tag=tag, expected=expected, limit=limit))


@given(st.lists(batches, max_size=5))
def test_blocks_come_back_as_they_went_in(parts):
    raw, base = b"", 0
    for part in parts:
        raw += encode(part, base)
        base += len(part)
    log = LogBytes(memoryview(raw))
    found = scan(raw)
    assert all(isinstance(item, FoundBlock) for item in found)
    blocks = [block_of(log, *item) for item in found]
    assert [block.messages.to_pylist() for block in blocks] == parts
    assert b"".join(block.raw for block in blocks) == raw
    for block in blocks:
        block.messages.validate(full=True)


@given(batches, st.integers(0, 1 << 40))
def test_records_are_written_as_an_array_of_them_is(records, base):
    buffers, length = encode_records(records, base, 5, 9)
    assert b"".join(memoryview(buffer) for buffer in buffers) == encode(records, base)
    assert length == len(encode(records, base))


@given(batches, st.data())
def test_a_slice_is_written_as_what_it_shows(messages, data):
    start = data.draw(st.integers(0, len(messages) - 1))
    count = data.draw(st.integers(1, len(messages) - start))
    part = pa.array(messages, pa.binary()).slice(start, count)
    assert encode(part) == encode(messages[start : start + count])


@given(batches, st.data())
def test_every_flipped_bit_is_found_out(messages, data):
    raw = bytearray(encode(messages))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert all(isinstance(item, BlockDamage) for item in scan(bytes(raw)))


@given(st.lists(batches, min_size=2, max_size=6), st.data())
def test_whatever_is_overwritten_the_rest_is_found_and_the_loss_is_exact(parts, data):
    raws, base = [], 0
    for part in parts:
        raws.append((base, encode(part, base)))
        base += len(part)
    whole = bytearray(b"".join(raw for _, raw in raws))
    start = data.draw(st.integers(0, len(whole) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=200))[: len(whole) - start]
    hurt, at = set(), 0
    for index, (_, raw) in enumerate(raws):
        low, high = max(start, at), min(start + len(junk), at + len(raw))
        if low < high and junk[low - start : high - start] != raw[low - at : high - at]:
            hurt.add(index)
        at += len(raw)
    whole[start : start + len(junk)] = junk
    found, lost = set(), 0
    for item in scan(bytes(whole), limit=base):
        if isinstance(item, FoundBlock):
            found.add(item.header.base_offset)
        else:
            lost += item.next_offset - item.first_lost
    assert found == {base for index, (base, _) in enumerate(raws) if index not in hurt}
    assert lost == sum(len(parts[index]) for index in hurt)


def test_no_byte_of_a_payload_is_copied():
    array = pa.array([b"abc" * 10, b"def" * 10], pa.binary())
    buffers, _ = encode_block(array.slice(1), 0, 0, 0)
    data = array.buffers()[2]
    assert any(
        isinstance(part, pa.Buffer) and part.address == data.address + 30 for part in buffers
    )
    log = LogBytes(memoryview(encode(array)))
    [found] = scan(log.view)
    messages = messages_of(log, *found)
    start = log.buffer.address
    assert start <= messages.buffers()[2].address < start + log.size


def test_a_block_of_another_file_or_out_of_order_is_none():
    raw = encode([b"a"], base=5)
    assert scan(raw, expected=5, tag=8) == [BlockDamage(0, len(raw), 5, None)]
    assert scan(raw, expected=6) == [BlockDamage(0, len(raw), 6, None)]
    assert [type(item) for item in scan(raw, expected=5, tag=None)] == [FoundBlock]


def test_a_jump_of_offsets_is_told():
    raw = encode([b"a"]) + encode([b"b"], base=4)
    assert [item for item in scan(raw) if isinstance(item, BlockDamage)] == [
        BlockDamage(len(raw) // 2, len(raw) // 2, 1, 4)
    ]


def test_file_header():
    header = FileHeader(7, 1_700_000_000_000, 1 << 20, 0xDEADBEEF)
    raw = encode_file_header(header)
    assert len(raw) == 64
    assert parse_file_header(raw, "f") == header
    for at in range(64):
        changed = bytearray(raw)
        changed[at] ^= 4
        assert parse_file_header(bytes(changed), "f") is None


@pytest.mark.parametrize("count", [1, 2, 3, 1000])
def test_many_empty_messages(count):
    raw = encode([b""] * count)
    log = LogBytes(memoryview(raw))
    [found] = scan(raw)
    assert messages_of(log, *found).to_pylist() == [b""] * count
