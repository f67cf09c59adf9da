"""Parse messages of delimited text to typed Arrow columns, in batches.

A message is one line; a line end after it is not part of it. Owns only the conversion of messages
to lines, which are parsed like those of files (`batch.input.delimited`). Pure.

Invariant: every message becomes exactly one row, or one `BadMessage` with its index.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.batch.input.delimited import DelimitedParser
from penstock.spark.batch.input.text_lines import Lines
from penstock.spark.topic.parse import BadMessage, ParsedRows

_NEWLINE: Final = ord("\n")
_RETURN: Final = ord("\r")
_EMPTY: Final = "an empty line: in Kafka, a record without a value"


class DelimitedMessages:
    """Parser of batches of messages of one shape. For one thread at a time.

    Args:
        lines: Parser of a message's content.
    """

    def __init__(self, lines: DelimitedParser) -> None:
        self._lines = lines

    def parse(self, messages: pa.BinaryArray) -> ParsedRows:
        """Return the rows and the bad messages of a batch."""
        lines = lines_of(messages)
        parsed = self._lines.parse(lines)
        if len(lines.starts) == len(messages):
            return parsed
        bad = [BadMessage(int(lines.numbers[one.index]), one.reason) for one in parsed.bad]
        empty = np.setdiff1d(np.arange(len(messages)), lines.numbers)
        bad += [BadMessage(index, _EMPTY) for index in empty.tolist()]
        return ParsedRows(parsed.rows, tuple(sorted(bad, key=lambda one: one.index)))


def lines_of(messages: pa.BinaryArray) -> Lines:
    """Return the messages that are not empty, each as a line whose number is its index."""
    count = len(messages)
    if not count:
        none = np.zeros(0, np.int64)
        return Lines(pa.py_buffer(b""), none, none, none, 0)
    offsets = np.frombuffer(messages.buffers()[1], np.int32)[
        messages.offset : messages.offset + count + 1
    ].astype(np.int64)
    whole = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), messages)
    text = pc.binary_join(whole, b"\n").buffers()[2] or pa.py_buffer(b"")
    # The number of separators before a message equals the number of messages before it.
    joints = np.arange(count)
    starts = offsets[:-1] - offsets[0] + joints
    ends = offsets[1:] - offsets[0] + joints
    data = np.frombuffer(text, np.uint8)
    for character in (_NEWLINE, _RETURN):
        ends = _without_last(data, starts, ends, character)
    there = np.flatnonzero(ends > starts)
    return Lines(text, starts[there], ends[there], there, count)


def _without_last(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    character: int,
) -> npt.NDArray[np.int64]:
    if not data.size:
        return ends
    is_last = (ends > starts) & (data[np.maximum(ends - 1, 0)] == character)
    stripped: npt.NDArray[np.int64] = ends - is_last
    return stripped
