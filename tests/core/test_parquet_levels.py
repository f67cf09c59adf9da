"""Rows of lists are counted by their levels, whatever the runs of these are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import parquet_levels
from penstock.core.parquet_levels import LevelReader, PageParts
from penstock.core.parquet_pages import DataPage

WIDTH = st.shared(st.integers(1, 8), key="width")


def varint(value: int) -> bytes:
    groups = [value >> at & 0x7F for at in range(0, max(1, value.bit_length()), 7)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def equal(width: int) -> st.SearchStrategy[tuple[bytes, list[int]]]:
    def made(run: tuple[int, int]) -> tuple[bytes, list[int]]:
        return varint(run[0] << 1) + bytes([run[1]]), [run[1]] * run[0]

    counts = st.integers(1, 5) | st.integers(100, 300)
    return st.tuples(counts, st.integers(0, 2**width - 1)).map(made)


def packed(width: int) -> st.SearchStrategy[tuple[bytes, list[int]]]:
    def made(levels: list[int]) -> tuple[bytes, list[int]]:
        levels = levels + [0] * (-len(levels) % 8)
        bits = np.array([[one >> at & 1 for at in range(width)] for one in levels], np.uint8)
        data = np.packbits(bits.reshape(-1), bitorder="little").tobytes()
        return varint(len(levels) // 8 << 1 | 1) + data, levels

    level = st.sampled_from([0, 2**width - 1]) | st.integers(0, 2**width - 1)
    return st.lists(level, min_size=1, max_size=20).map(made)


def parts_of(levels: bytes, values: int, width: int, part: int = 16) -> PageParts | None:
    data = len(levels).to_bytes(4, "little") + levels
    page = DataPage(len(data), values, None, 0, 0, len(data))
    reader = LevelReader(pa.BufferReader(data))
    return reader.parts_of(page, "UNCOMPRESSED", 2**width - 1, part)


@settings(max_examples=60)
@given(
    WIDTH,
    WIDTH.flatmap(lambda width: st.lists(equal(width) | packed(width), min_size=1, max_size=12)),
    st.integers(0, 7),
    st.sampled_from([8, 16, 64 << 10]),
)
def test_levels_of_zero_are_counted(
    width: int, runs: list[tuple[bytes, list[int]]], missing: int, block: int
) -> None:
    levels = [level for _, found in runs for level in found]
    levels = levels[: max(1, len(levels) - missing)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_levels, "_BLOCK_BYTES", block)
        found = parts_of(b"".join(data for data, _ in runs), len(levels), width)
    assert found is not None
    ends = np.cumsum(found.values)
    assert int(ends[-1]) == len(levels)
    for rows, begin, end in zip(found.rows, ends - found.values, ends, strict=True):
        assert rows == levels[begin:end].count(0)


@pytest.mark.parametrize(
    "levels",
    [
        varint((1 << 66) | 1) + bytes(100),
        varint((1 << 35) | 1) + bytes(100),
        varint(3 << 1 | 1) + b"\0\0",
        varint(9 << 1),
        varint(0) + bytes(100),
        varint(1) + bytes(100),
        b"\x80" * 100,
        b"",
    ],
)
@pytest.mark.parametrize("values", [17, 2**31 - 1])
def test_levels_that_are_damaged_are_not_counted(levels: bytes, values: int) -> None:
    assert parts_of(levels, values, 1) is None


def test_levels_of_more_than_eight_bits_are_not_counted() -> None:
    """A run has a value of two bytes: the second would be interpreted as a header."""
    assert parts_of(varint(20 << 1) + b"\0\1" + varint(20 << 1) + b"\0\0", 40, 9) is None


def test_very_many_runs_are_combined_to_few_parts() -> None:
    found = parts_of(b"\2\0\2\1\3\xaa" * 200_000, 2_000_000, 1, 4_096)
    assert found is not None
    assert len(found.rows) < 1_000
    assert (int(found.rows.sum()), int(found.values.sum())) == (1_000_000, 2_000_000)


def test_a_long_run_of_packed_levels_is_counted() -> None:
    found = parts_of(varint(300_000 << 1 | 1) + b"\xfe" * 300_000 + b"\2\0", 2_400_001, 1)
    assert found is not None
    assert (int(found.rows.sum()), int(found.values.sum())) == (300_001, 2_400_001)


def test_levels_of_a_file_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_levels, "LEVELS_BYTES_MAX", 2)  # and 8 of the file
    data = (4).to_bytes(4, "little") + b"\2\0\2\1"
    page = DataPage(len(data), 2, None, 0, 0, len(data))
    reader = LevelReader(pa.BufferReader(data))
    found = [reader.parts_of(page, "UNCOMPRESSED", 1, 16) for _ in range(3)]
    assert [one is None for one in found] == [False, False, True]
