"""Repetition levels of Parquet: how many rows begin in each part of a page of lists.

Headers of pages of the first version do not contain their numbers of rows, and those of the second
version may be wrong. A row begins with each level of zero. Levels are in runs: of an equal level,
or of packed levels in groups of eight. Owns the decoding of levels, for blocks of many runs at
once, and the limit on this work.

The format: https://parquet.apache.org/docs/file-format/data-pages/encodings/ (RLE).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.parquet_pages import DataPage

CODECS: Final[Mapping[str, str]] = {
    "SNAPPY": "snappy",
    "GZIP": "gzip",
    "ZSTD": "zstd",
    "BROTLI": "brotli",
}
"""Codecs whose pages can be decompressed without their reader, with Arrow's names."""
NO_CODEC: Final = "UNCOMPRESSED"
LEVELS_BYTES_MAX: Final = 32 << 20
"""Maximum size of the levels of a file that are decoded, besides the size of the file itself.

A value usually takes more bits than its level."""
# Larger pages are not decompressed to read their levels.
_PAGE_BYTES_MAX: Final = 64 << 20
_LENGTH_BYTES: Final = 4
# The value of a run of an equal level has one byte.
_WIDTH_MAX: Final = 8
_HEADER_BYTES: Final = 5
# Headers at all positions of a block are decoded at once, so that arrays stay in the CPU caches.
_BLOCK_BYTES: Final = 64 << 10
_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Numbers: TypeAlias = npt.NDArray[np.int64]


class PageParts(NamedTuple):
    """Consecutive parts of pages: the number of rows that begin in each, and of values."""

    rows: _Numbers
    values: _Numbers


class _Runs(NamedTuple):
    """Consecutive runs: their numbers of values, and how many of these are zero."""

    values: _Numbers
    zeros: _Numbers


class LevelReader:
    """Reads the repetition levels of pages of one file, up to a limit.

    Args:
        stored: The file.
    """

    def __init__(self, stored: pa.NativeFile) -> None:
        self._stored = stored
        self._left: int = LEVELS_BYTES_MAX + stored.size()

    def parts_of(self, page: DataPage, codec: str, level_max: int, values: int) -> PageParts | None:
        """Return the parts of a page.

        Args:
            page: The page.
            codec: Its codec.
            level_max: The maximum level.
            values: Number of values of a part, unless a run or the rest is longer or shorter.

        Returns:
            The parts; None if the levels cannot be decoded, or exceed the limit.
        """
        width = level_max.bit_length()
        if not (0 < width <= _WIDTH_MAX and page.are_levels_runs):
            return None
        try:
            levels = self._levels_of(page, codec)
            if levels is None:
                return None
            blocks = [_parts(runs, values) for runs in _blocks(levels, width, page.values)]
        except (pa.ArrowException, OSError, ValueError, OverflowError):
            return None  # The reader reports damage and missing codecs.
        if not blocks:
            return None
        return PageParts(
            np.concatenate([one.rows for one in blocks]),
            np.concatenate([one.values for one in blocks]),
        )

    def _levels_of(self, page: DataPage, codec: str) -> _Bytes | None:
        """Return the repetition levels of a page; None if they are not readable or too many."""
        if page.levels_size is not None:
            size = min(page.levels_size, page.stored_size)
            if not self._has_room(size):
                return None
            return np.frombuffer(self._stored.read_at(size, page.start), np.uint8)
        if page.size > _PAGE_BYTES_MAX:
            return None
        data = self._stored.read_at(page.stored_size, page.start)
        if codec in CODECS:
            data = pa.Codec(CODECS[codec]).decompress(data, page.size)
        elif codec != NO_CODEC:
            return None
        length = int.from_bytes(data[:_LENGTH_BYTES], "little")
        levels = np.frombuffer(data, np.uint8)[_LENGTH_BYTES : _LENGTH_BYTES + length]
        return levels if self._has_room(len(levels)) else None

    def _has_room(self, size: int) -> bool:
        """Count levels; return whether they are within the limit."""
        self._left -= size
        return self._left >= 0


def _parts(runs: _Runs, values: int) -> PageParts:
    """Combine runs to parts of a number of values."""
    numbers = (np.cumsum(runs.values) - runs.values) // values
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    return PageParts(np.add.reduceat(runs.zeros, starts), np.add.reduceat(runs.values, starts))


def _blocks(levels: _Bytes, width: int, values: int) -> Iterator[_Runs]:
    """Yield the runs of a number of levels, those of a block at a time.

    Raises:
        ValueError: There are fewer levels.
    """
    place = 0
    while values > 0:
        headers, sizes = _headers(levels[place : place + _BLOCK_BYTES + _HEADER_BYTES - 1])
        is_packed = (headers & 1).astype(np.bool_)
        counts = headers >> 1
        ends = np.arange(len(headers)) + sizes + np.where(is_packed, counts * width, 1)
        starts = _visited(ends)
        counts, sizes, is_packed = counts[starts], sizes[starts], is_packed[starts]
        contents = place + starts + sizes
        found = np.where(is_packed, counts * 8, counts)
        needed = int(np.searchsorted(np.cumsum(found), values)) + 1
        is_packed, contents, found = is_packed[:needed], contents[:needed], found[:needed]
        place += int(ends[starts[: len(found)][-1]])
        if not found.all() or place > len(levels):
            raise ValueError("an empty or truncated run")
        found[-1] = min(int(found[-1]), values - int(found[:-1].sum()))
        zeros = np.where(levels[contents] == 0, found, 0)
        # The last run may be of any length, and be needed in part.
        inner = np.flatnonzero(is_packed[:-1])
        zeros[inner] = _zeros_of_runs(levels, contents[inner], found[inner] // 8, width)
        if is_packed[-1]:
            zeros[-1] = _zeros(levels, int(contents[-1]), int(found[-1]), width)
        values -= int(found.sum())
        yield _Runs(found, zeros)


def _headers(data: _Bytes) -> tuple[_Numbers, _Numbers]:
    """Return the number at each position of a block, and its size; 0 if it is not complete."""
    count = min(len(data), _BLOCK_BYTES)
    padded = np.full(count + _HEADER_BYTES - 1, 0x80, np.int64)
    padded[: len(data)] = data
    numbers = padded[:count] & 0x7F
    sizes = np.ones(count, np.int64)
    is_open = padded[:count] >= 0x80
    for at in range(1, _HEADER_BYTES):
        following = padded[at : at + count]
        numbers += np.where(is_open, (following & 0x7F) << (7 * at), 0)
        sizes += is_open
        is_open &= following >= 0x80
    numbers[is_open] = 0
    return numbers, sizes


def _visited(ends: _Numbers) -> _Numbers:
    """Return the positions of consecutive runs, given where a run at each position ends."""
    following = ends.tolist()
    found = []
    at = 0
    while at < len(following):
        found.append(at)
        at = following[at]
    if not found:
        raise ValueError("no further runs")
    return np.array(found, np.int64)


def _zeros_of_runs(levels: _Bytes, starts: _Numbers, groups: _Numbers, width: int) -> _Numbers:
    """Return the number of zeros in each run of packed levels, whose bytes are in one block."""
    sizes = groups * width
    ends = np.cumsum(sizes)
    places = np.repeat(starts - (ends - sizes), sizes) + np.arange(int(sizes.sum()))
    sums = np.concatenate(([0], np.cumsum(_is_zero(levels[places], width), dtype=np.int64)))
    ends = np.cumsum(groups) * 8
    return np.asarray(sums[ends] - sums[ends - groups * 8], np.int64)


def _zeros(levels: _Bytes, start: int, count: int, width: int) -> int:
    """Return the number of zeros in the first levels of a run of packed levels of any length."""
    found = 0
    step = _BLOCK_BYTES // 8 * 8
    for at in range(0, count, step):
        place = start + at // 8 * width
        groups = -(-min(step, count - at) // 8)
        part = levels[place : place + groups * width]
        found += int(np.count_nonzero(_is_zero(part, width)[: count - at]))
    return found


def _is_zero(packed: _Bytes, width: int) -> npt.NDArray[np.bool_]:
    """Return for each packed level whether it is zero."""
    bits = np.unpackbits(packed, bitorder="little")
    found: npt.NDArray[np.bool_]
    found = bits == 0 if width == 1 else bits.reshape(-1, width).max(axis=1) == 0
    return found
