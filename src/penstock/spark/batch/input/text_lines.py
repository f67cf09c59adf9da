"""Lines of a split of a text file, in blocks; no loop over lines.

Invariants: each line of the file is in exactly one split, by the rule of `file_splits`. Empty lines
are counted, but not returned. For a line that is too long, only its number is returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.spark.batch.input.file_splits import Split
from penstock.spark.batch.input.open_files import opened_text

BLOCK_BYTES: Final = 16 << 20
_PIECE_BYTES: Final = 256 << 10
_NEWLINE: Final = ord("\n")
_RETURN: Final = ord("\r")
BOM: Final = b"\xef\xbb\xbf"

_Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines [starts[i], ends[i]) of a text; `numbers` counts them from the split's start.

    `ended` is the number of lines of the split so far, including empty ones; `too_long` has the
    numbers of lines that were left out.
    """

    text: pa.Buffer
    starts: _Positions
    ends: _Positions
    numbers: _Positions
    ended: int
    too_long: tuple[int, ...] = ()

    def without_first(self, count: int) -> Lines:
        """Return the lines without those whose numbers are below `count`."""
        if not count or (len(self.numbers) and self.numbers[0] >= count):
            return self
        first = int(np.searchsorted(self.numbers, count))
        begin = int(self.starts[first]) if first < len(self.starts) else 0
        return Lines(
            self.text.slice(begin) if first < len(self.starts) else pa.py_buffer(b""),
            self.starts[first:] - begin,
            self.ends[first:] - begin,
            self.numbers[first:],
            self.ended,
            tuple(number for number in self.too_long if number >= count),
        )

    def parts(self, lines_max: int) -> Iterator[Lines]:
        """Yield the lines in order, at most `lines_max` at once."""
        if len(self.starts) <= lines_max:
            yield self
            return
        for first in range(0, len(self.starts), lines_max):
            starts, ends = self.starts[first : first + lines_max], self.ends[first:][:lines_max]
            begin = int(starts[0])
            yield Lines(
                self.text.slice(begin, int(ends[-1]) - begin),
                starts - begin,
                ends - begin,
                self.numbers[first : first + lines_max],
                self.ended,
                () if first else self.too_long,
            )


def read_lines(
    split: Split, *, line_bytes_max: int, block_bytes: int = BLOCK_BYTES
) -> Iterator[Lines]:
    """Yield the lines of a split.

    Raises:
        NotFound: The file does not exist.
        CorruptData: The file is truncated, or its compression does not match its name.
    """
    with opened_text(split.file) as file:
        yield from lines_in(file, split, b"", line_bytes_max, block_bytes)


def lines_in(
    file: pa.NativeFile, split: Split, head: bytes, line_bytes_max: int, block_bytes: int
) -> Iterator[Lines]:
    """Yield the lines of a split of a file whose `head` was read already."""
    at = max(split.start - 1, 0)
    if at:
        file.seek(at)
    # A split begins after the first newline at or after the byte before it.
    skipping = split.start > 0
    too_long = False
    rest = b""
    ended = 0
    while split.end < 0 or at < split.end:
        data = head or file.read(block_bytes)
        head = b""
        block = rest + data if rest else data
        if not at and block.startswith(BOM):
            block, at = block[len(BOM) :], len(BOM)
        cut = block.rfind(b"\n") + 1 if data else len(block)
        rest = block[cut:]
        if skipping or too_long:
            begin = block.find(b"\n") + 1
            if not begin and data:
                at, rest = at + len(block), b""
                continue
            if too_long:
                ended += 1
                yield _nothing(ended, (ended - 1,))
            begin = begin or len(block)
            block, at, cut = block[begin:], at + begin, max(cut - begin, 0)
            skipping = too_long = False
        if cut:
            # Without a copy: new memory costs as much as the search for the ends of lines.
            whole = memoryview(block)[:cut]
            lines = _lines(whole, ended, split.end - at if split.end >= 0 else cut)
            ended = lines.ended
            yield lines
        at += cut
        if not data:
            return
        if len(rest) > line_bytes_max and (split.end < 0 or at < split.end):
            at, rest, too_long = at + len(rest), b"", True
    if too_long:
        yield _nothing(ended + 1, (ended,))


def _lines(block: memoryview, before: int, most: int) -> Lines:
    """Return the lines of a block of complete lines that begin before `most`."""
    data = np.frombuffer(block, np.uint8)
    newlines = _newlines(data)
    ends = (
        newlines
        if len(newlines) and newlines[-1] == len(data) - 1
        else np.append(newlines, len(data))
    )
    starts = np.concatenate([[0], ends[:-1] + 1])
    ours = int(np.searchsorted(starts, most, side="left"))
    starts, ends = starts[:ours], ends[:ours]
    if not ours:
        return _nothing(before, ())
    text = pa.py_buffer(block)
    if ours and ends[-1] < len(block) - 1:
        text = text.slice(0, int(ends[-1]))
    returns = (ends > starts) & (data[np.maximum(ends - 1, 0)] == _RETURN)
    ends = ends - returns
    there = np.flatnonzero(ends > starts)
    return Lines(text, starts[there], ends[there], there + before, before + ours)


def _newlines(data: npt.NDArray[np.uint8]) -> _Positions:
    """Return the positions of line ends, searched in pieces that fit the processor's cache."""
    pieces = range(0, len(data), _PIECE_BYTES)
    found = [np.flatnonzero(data[at : at + _PIECE_BYTES] == _NEWLINE) + at for at in pieces]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _nothing(ended: int, too_long: tuple[int, ...]) -> Lines:
    none = np.zeros(0, np.int64)
    return Lines(pa.py_buffer(b""), none, none, none, ended, too_long)
