"""A JSON list of objects, or objects after each other, as JSON lines.

Owns the finding of where one record ends, over pieces of any size and for whole pieces at once.
Whether what lies between is JSON, the parser of the lines says.

Invariants: the bytes of a record are not changed but for line breaks outside of text, which are
made blanks; as many bytes leave as come in; no record is longer in memory than it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

from penstock.flow.processors.records.formats.jsonlines import (
    chunks,
    pieces,
    read_chunks,
)
from penstock.flow.processors.records.formats.model import (
    BadRecords,
    ReadingOptions,
    Records,
    Source,
)

_PIECE_BYTES: Final = 1 << 20
_BOM: Final = b"\xef\xbb\xbf"
_ESCAPED: Final = re.compile(rb"\\[\s\S]")
_FIRST: Final = re.compile(rb"\S")
_BLANK: Final = np.zeros(256, dtype=bool)
_BLANK[list(b" \t\r\n")] = True
_BREAK: Final = np.zeros(256, dtype=bool)
_BREAK[list(b"\r\n")] = True
_STEP: Final = np.zeros(256, dtype=np.int32)
_STEP[list(b"{[")] = 1
_STEP[list(b"}]")] = -1
_SPACE: Final = 32
_NEWLINE: Final = 10
_COMMA: Final = 44
_QUOTE: Final = 34

_Bytes = npt.NDArray[np.uint8]
_Flags = npt.NDArray[np.bool_]


def read_json(source: Source, options: ReadingOptions) -> Records:
    """Read records.

    Raises:
        BadRecords: The content is no list of objects, or its values fit no common type.
    """
    return read_chunks(lambda: list_chunks(source, options.record_max_bytes), options)


def list_chunks(source: Source, record_max_bytes: int) -> Iterator[bytes]:
    """Yield the records of a list as chunks of lines.

    Raises:
        BadRecords: The content is no list, or a record is too long.
    """
    return chunks(_lines(source.open), record_max_bytes)


class ListLines:
    """Makes lines of a list, piece by piece."""

    def __init__(self) -> None:
        self._is_list: bool | None = None
        self._held = b""
        self._in_text = False
        self._depth = 0
        self._ended = False
        self._separators = 0
        self._in_record = 0

    def feed(self, data: bytes) -> bytes:
        """Return the next piece with each record on a line.

        Raises:
            BadRecords: It cannot be a list of records.
        """
        data = self._held + data
        if self._is_list is None:
            data = data.removeprefix(_BOM)
            first = _FIRST.search(data)
            if first is None:
                return b""
            if first[0] not in b"[{":
                raise BadRecords("the content is neither a JSON list nor an object")
            self._is_list = first[0] == b"["
        # A backslash at the end belongs to what comes next, if it is not escaped itself.
        run = len(data) - len(data.rstrip(b"\\"))
        self._held = data[len(data) - run % 2 :]
        data = data[: len(data) - run % 2]
        return self._lines(data) if data else b""

    def finish(self) -> None:
        """Learn that this was all.

        Raises:
            BadRecords: The list is not closed.
        """
        if self._is_list is None:
            raise BadRecords("the content is empty: it is no JSON")
        if self._depth or self._in_text or self._held:
            raise BadRecords("the content ends within a JSON value: it is cut")

    def _lines(self, data: bytes) -> bytes:
        marks = np.frombuffer(_ESCAPED.sub(b"__", data), dtype=np.uint8)
        quotes = np.cumsum(marks == _QUOTE, dtype=np.int32)
        outside = ((quotes + self._in_text) & 1) == 0
        steps = np.where(outside, _STEP[marks], 0)
        depth = self._depth + np.cumsum(steps, dtype=np.int32)
        if int(depth.min()) < 0:
            raise BadRecords("the content closes a bracket that was not opened: it is no JSON")
        out = np.frombuffer(data, dtype=np.uint8).copy()
        out[outside & _BREAK[marks]] = _SPACE
        if self._is_list:
            self._cut_list(out, marks, outside, steps, depth)
        else:
            out[outside & (depth == 0) & _BLANK[marks]] = _NEWLINE
        self._depth = int(depth[-1])
        self._in_text = bool((int(quotes[-1]) + self._in_text) & 1)
        return out.tobytes()

    def _cut_list(
        self,
        out: _Bytes,
        marks: _Bytes,
        outside: _Flags,
        steps: npt.NDArray[np.int32],
        depth: npt.NDArray[np.int32],
    ) -> None:
        opening = (steps == 1) & (depth == 1)
        closing = (steps == -1) & (depth == 0)
        commas = outside & (marks == _COMMA) & (depth == 1)
        ends = commas | closing
        inner = ~_BLANK[marks] & ~ends & ~opening
        closed_at = np.flatnonzero(closing)
        if self._ended or closed_at.size:
            rest = inner | commas | opening
            after = rest if self._ended else rest[int(closed_at[0]) + 1 :]
            if after.any():
                raise BadRecords("something follows behind the end of the JSON list")
        self._count_records(inner, np.flatnonzero(ends), is_closed=bool(closed_at.size))
        out[opening] = _SPACE
        out[ends] = _NEWLINE
        self._ended = self._ended or bool(closed_at.size)

    def _count_records(self, inner: _Flags, ends: npt.NDArray[np.intp], *, is_closed: bool) -> None:
        """Refuse commas with nothing between them, which lines would hide."""
        seen = self._in_record + np.cumsum(inner, dtype=np.int64)
        total = int(seen[-1])
        at_ends = seen[ends]
        if at_ends.size:
            lengths = np.diff(at_ends, prepend=0)
            empty = int((lengths == 0).sum())
            only_one = is_closed and self._separators == 0 and at_ends.size == 1
            if empty and not only_one:
                raise BadRecords("between two commas of the JSON list there is nothing")
            self._separators += int(at_ends.size)
            self._in_record = total - int(at_ends[-1])
        else:
            self._in_record = total


def _lines(open_: Callable[[], BinaryIO]) -> Iterator[bytes]:
    lines = ListLines()
    for piece in pieces(open_, _PIECE_BYTES):
        if made := lines.feed(piece):
            yield made
    lines.finish()
