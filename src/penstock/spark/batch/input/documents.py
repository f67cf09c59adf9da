"""JSON other than one object a line: pretty-printed, consecutive objects, or an array.

Owns how such a file is distinguished from JSON lines, and where its objects are. There is no loop
over bytes or objects: braces are paired by counting them outside of strings.

Invariants: text between objects is space, brackets and commas, or becomes a row of its own that
does not parse; an object without an end is one such row, together with all text after it. One
worker reads a whole file, a block at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.batch.input.file_splits import InputFile, Source, Split
from penstock.spark.batch.input.open_files import opened_text
from penstock.spark.batch.input.text_lines import BLOCK_BYTES, BOM, Lines, lines_in
from penstock.spark.topic.parse import cut_out

# Bytes that are examined to detect JSON lines; a file with a longer object counts as lines.
HEAD_BYTES: Final = 1 << 20
_SCAN_BYTES: Final = 1 << 20
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_OPEN: Final = ord("{")
_CLOSE: Final = ord("}")
_NEWLINE: Final = ord("\n")
_BETWEEN: Final = np.isin(np.arange(256), np.frombuffer(b" \t\r\n[],", np.uint8))
_MARKS: Final = np.isin(np.arange(256), np.frombuffer(b'"{}', np.uint8))

_Positions = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]


def read_text(
    split: Split, source: Source, *, line_bytes_max: int, block_bytes: int = BLOCK_BYTES
) -> Iterator[Lines]:
    """Yield possible rows of a split: its lines, or the objects of JSON in another form.

    Raises:
        NotFound: The file does not exist.
        CorruptData: The file is truncated, or its compression does not match its name.
    """
    with opened_text(split.file) as file:
        head = b""
        if source.kind == "json" and not source.lines_only and _is_whole(split):
            head = file.read(HEAD_BYTES)
            if not is_lines(head):
                yield from _objects(file, head, line_bytes_max, block_bytes)
                return
        yield from lines_in(file, split, head, line_bytes_max, block_bytes)


def may_be_cut(file: InputFile, source: Source) -> bool:
    """Return whether a file may be read in parts: it is JSON lines, or seems to be. Opens it."""
    if source.kind != "json" or source.lines_only:
        return True
    with opened_text(file) as text:
        return is_lines(text.read(HEAD_BYTES))


def is_lines(head: bytes) -> bool:
    """Return whether a file has an object a line, by its beginning.

    This is false if it begins with a list, or with an object that shares its line or spans several.
    """
    text = head.removeprefix(BOM).lstrip()
    if not text.startswith(b"{"):
        return not text.startswith(b"[")
    if _is_object(text.partition(b"\n")[0]):
        return True  # decides for most files without reading the whole head
    starts, ends, _ = _extents(np.frombuffer(text, np.uint8))
    if not len(starts) or starts[0]:
        return True
    # An empty object looks the same in every form.
    telling = np.flatnonzero(ends - starts > len("{}"))
    index = telling[0] if len(telling) else 0
    start, end = int(starts[index]), int(ends[index])
    first = text[start:end]
    beside = text[:start].rpartition(b"\n")[2] + text[end:].partition(b"\n")[0]
    try:
        orjson.loads(first)
    except orjson.JSONDecodeError:
        return True
    return b"\n" not in first and not beside.strip()


def _is_object(line: bytes) -> bool:
    """Return whether a line is exactly one object that is not empty."""
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return isinstance(found, dict) and bool(found)


def _is_whole(split: Split) -> bool:
    return split.start == 0 and split.end < 0


def _objects(
    file: pa.NativeFile, head: bytes, object_bytes_max: int, block_bytes: int
) -> Iterator[Lines]:
    block = head.removeprefix(BOM)
    number = 0
    while True:
        more = file.read(block_bytes)
        data = np.frombuffer(block, np.uint8)
        starts, ends, rest = _extents(data)
        if rest < len(data) and (not more or len(data) - rest > object_bytes_max):
            # Text after it cannot be separated into objects, so reading ends here.
            starts, ends = np.append(starts, rest), np.append(ends, len(data))
            more, rest = b"", len(data)
        newlines = np.flatnonzero(data == _NEWLINE)
        ended = number + int(np.searchsorted(newlines, rest))
        if len(starts):
            yield _apart(block, starts, ends, number + np.searchsorted(newlines, starts), ended)
        number = ended
        if not more:
            return
        block = block[rest:] + more


def _apart(
    block: bytes, starts: _Positions, ends: _Positions, numbers: _Positions, ended: int
) -> Lines:
    """Return parts of a block as lines; parts of an object stay unchanged."""
    parts = cut_out(pa.py_buffer(block), starts, ends)
    whole = pa.ListArray.from_arrays(pa.array([0, len(parts)], pa.int32()), parts)
    sizes = ends - starts
    begins = np.concatenate([[0], np.cumsum(sizes + 1)[:-1]])
    text = pc.binary_join(whole, b"\n").buffers()[2]
    return Lines(text, begins, begins + sizes, numbers, ended)


def _extents(data: npt.NDArray[np.uint8]) -> tuple[_Positions, _Positions, int]:
    """Return the bounds of objects and of other text, and the start of an unfinished part."""
    scan = BraceScan()
    for at in range(0, len(data), _SCAN_BYTES):
        scan.feed(data[at : at + _SCAN_BYTES], at)
    starts, ends, rest = scan.found(len(data))
    odd_starts, odd_ends = _odd(data[:rest], starts, ends)
    order = np.argsort(np.concatenate([starts, odd_starts]), kind="stable")
    return (
        np.concatenate([starts, odd_starts])[order],
        np.concatenate([ends, odd_ends])[order],
        rest,
    )


class BraceScan:
    """Pairs the braces of a text piece by piece, because a piece needs a multiple of its size."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_text = False
        self._escaping = False
        self._quote_at = 0
        self._starts: list[_Positions] = []
        self._ends: list[_Positions] = []

    def feed(self, piece: npt.NDArray[np.uint8], at: int) -> None:
        """Process the next piece, which begins at this position of the text."""
        marks = np.flatnonzero(_MARKS[piece])
        escaped, self._escaping = _escaped(piece, marks, escaping=self._escaping)
        if not len(marks):
            return
        quotes = (piece[marks] == _QUOTE) & ~escaped
        inside = (np.cumsum(quotes) + self._in_text) % 2 == 1
        steps = (piece[marks] == _OPEN).astype(np.int64) - (piece[marks] == _CLOSE)
        steps[inside | quotes] = 0
        depth = self._depth + np.cumsum(steps)
        # A brace that closes nothing leaves the depth at 0.
        depth -= np.minimum(np.minimum.accumulate(depth), 0)
        before = np.concatenate([[self._depth], depth[:-1]])
        self._starts.append(marks[(steps > 0) & (before == 0)] + at)
        self._ends.append(marks[(steps < 0) & (before == 1)] + at + 1)
        self._depth, self._in_text = int(depth[-1]), bool(inside[-1])
        if quotes.any():
            self._quote_at = int(marks[np.flatnonzero(quotes)[-1]]) + at

    def found(self, size: int) -> tuple[_Positions, _Positions, int]:
        """Return the bounds of objects, and the start of an unfinished part."""
        none = np.zeros(0, np.int64)
        starts = np.concatenate([none, *self._starts])
        ends = np.concatenate([none, *self._ends])
        if len(starts) > len(ends):
            return starts[:-1], ends, int(starts[-1])
        return starts, ends, self._quote_at if self._in_text else size


def _escaped(
    piece: npt.NDArray[np.uint8], marks: _Positions, *, escaping: bool
) -> tuple[_Mask, bool]:
    """Return which marks follow an odd number of backslashes, and whether the next byte does.

    With `escaping`, the first byte of the piece does.
    """
    slashes = piece == _BACKSLASH
    if not slashes.any():
        return (marks == 0) & escaping, False
    others = np.where(slashes, -1, np.arange(len(piece), dtype=np.int32))
    last_other = np.maximum.accumulate(others)
    # Number of backslashes before each position, and before the position after the last one.
    runs = np.arange(-1, len(piece), dtype=np.int32)
    runs[1:] -= last_other
    runs[0] = 0
    odd = runs % 2 == 1
    from_start = int(np.argmin(slashes)) if not slashes.all() else len(piece)
    odd[: from_start + 1] ^= escaping
    return odd[marks], bool(odd[-1])


def _odd(
    data: npt.NDArray[np.uint8], starts: _Positions, ends: _Positions
) -> tuple[_Positions, _Positions]:
    """Return the positions of invalid text between objects."""
    steps = np.zeros(len(data) + 1, np.int8)
    steps[starts] += 1
    steps[ends] -= 1
    odd = ~_BETWEEN[data] & (np.cumsum(steps[:-1], dtype=np.int8) == 0)
    edges = np.diff(np.concatenate([[0], odd.astype(np.int8), [0]]))
    return np.flatnonzero(edges > 0), np.flatnonzero(edges < 0)
