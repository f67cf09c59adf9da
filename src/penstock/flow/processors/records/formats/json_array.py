"""Converts a JSON list of objects, or a sequence of objects, to JSON lines.

Owns finding the end of each record, across pieces of any size and for whole pieces at once. The
parser of the lines checks the JSON between these ends.

Invariants: the bytes of a record are not changed, except that line breaks outside of text become
spaces. The output has as many bytes as the input. No record needs more memory than its size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

from penstock.flow.processors.records.formats.format_protocols import (
    BadRecords,
    ReadingOptions,
    RecordBatches,
    RecordSource,
)
from penstock.flow.processors.records.formats.json_lines import (
    chunks,
    pieces,
    read_chunks,
)

_PIECE_BYTES: Final = 1 << 18
_BOM: Final = b"\xef\xbb\xbf"
_ESCAPED: Final = re.compile(rb"\\[\s\S]")
_FIRST: Final = re.compile(rb"\S")
_BLANK: Final = np.zeros(256, dtype=bool)
_BLANK[list(b" \t\r\n")] = True
_BREAK: Final = np.zeros(256, dtype=bool)
_BREAK[list(b"\r\n")] = True
_OF_LISTS: Final = _BREAK.copy()
_OF_LISTS[list(b'"{}[],')] = True
_OF_OBJECTS: Final = _OF_LISTS | _BLANK
_STEP: Final = np.zeros(256, dtype=np.int32)
_STEP[list(b"{[")] = 1
_STEP[list(b"}]")] = -1
_SPACE: Final = 32
_NEWLINE: Final = 10
_COMMA: Final = 44
_QUOTE: Final = 34

_Flags = npt.NDArray[np.bool_]


def read_json(source: RecordSource, options: ReadingOptions) -> RecordBatches:
    """Read records.

    Raises:
        BadRecords: The content is not a list of objects, or its values have no common type.
    """
    return read_chunks(lambda: list_chunks(source, options.record_max_bytes), options)


def list_chunks(source: RecordSource, record_max_bytes: int) -> Iterator[bytes]:
    """Yield the records of a list as chunks of lines.

    Raises:
        BadRecords: The content is not a list, or a record is too long.
    """
    return chunks(_lines(source.open), record_max_bytes)


class ListLines:
    """Converts a list to lines, piece by piece."""

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
            BadRecords: The content is not a list of records.
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
        # A trailing backslash escapes the next byte, unless it is escaped itself.
        run = len(data) - len(data.rstrip(b"\\"))
        self._held = data[len(data) - run % 2 :]
        data = data[: len(data) - run % 2]
        return self._lines(data) if data else b""

    def finish(self) -> None:
        """Handle the end of the content.

        Raises:
            BadRecords: The list is not closed.
        """
        if self._is_list is None:
            raise BadRecords("the content is empty, which is not valid JSON")
        if self._depth or self._in_text or self._held:
            raise BadRecords("the content ends within a JSON value: it is incomplete")

    def _lines(self, data: bytes) -> bytes:
        if self._ended:
            _check_end(data)
        plain = _ESCAPED.sub(b"__", data) if b"\\" in data else data
        every = np.frombuffer(plain, dtype=np.uint8)
        # Everything below works only on the few bytes that may matter.
        places = np.flatnonzero((_OF_LISTS if self._is_list else _OF_OBJECTS)[every])
        if not len(places):
            return data
        marks = every[places]
        quotes = np.cumsum(marks == _QUOTE, dtype=np.int32)
        outside = ((quotes + self._in_text) & 1) == 0
        steps = np.where(outside, _STEP[marks], 0)
        depth = self._depth + np.cumsum(steps, dtype=np.int32)
        if int(depth.min()) < 0:
            raise BadRecords(
                "the content closes a bracket that was not opened, so it is not valid JSON"
            )
        out = np.frombuffer(data, dtype=np.uint8).copy()
        out[places[outside & _BREAK[marks]]] = _SPACE
        if self._is_list:
            opening = (steps == 1) & (depth == 1)
            closing = (steps == -1) & (depth == 0)
            ends = closing | (outside & (marks == _COMMA) & (depth == 1))
            closed_at = places[closing]
            if len(closed_at):
                _check_end(data[int(closed_at[0]) + 1 :])
                self._ended = True
            self._count_records(~(opening | ends | _BREAK[marks]), ends)
            out[places[opening]] = _SPACE
            out[places[ends]] = _NEWLINE
        else:
            out[places[outside & (depth == 0) & _BLANK[marks]]] = _NEWLINE
        self._depth = int(depth[-1])
        self._in_text = bool((int(quotes[-1]) + self._in_text) & 1)
        return out.tobytes()

    def _count_records(self, inner: _Flags, ends: _Flags) -> None:
        """Refuse commas without an object between them: the lines would not show all of these."""
        seen = self._in_record + np.cumsum(inner, dtype=np.int64)
        at_ends = seen[ends]
        self._in_record = int(seen[-1])
        if not len(at_ends):
            return
        # A list may be empty.
        is_only_one = self._ended and not self._separators and len(at_ends) == 1
        if not is_only_one and (np.diff(at_ends, prepend=0) == 0).any():
            raise BadRecords("an object is missing between two commas of the JSON list")
        self._separators += len(at_ends)
        self._in_record -= int(at_ends[-1])


def _check_end(rest: bytes) -> None:
    if rest.strip():
        raise BadRecords("there is more content after the end of the JSON list")


def _lines(open_: Callable[[], BinaryIO]) -> Iterator[bytes]:
    lines = ListLines()
    for piece in pieces(open_, _PIECE_BYTES):
        if made := lines.feed(piece):
            yield made
    lines.finish()
