"""Where the records of an offset range are, as text that fits where a folder of log files does.

Such a text is the path of a folder of log files, or `lines:` and what is known of a file of lines.
Owns that text, and reading lines; log files are read by `storage.logreader`. Invariant: a file is
never read past the place that the range was given with, so half a line is never taken for one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from penstock.core.errors import CorruptData, NotFound
from penstock.indexing.engine import FileRange, TopicRange
from penstock.spark.topic.splits import SourceRange
from penstock.storage.logreader import MessageSlice, read_range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.indexing.engine import StreamRange
    from penstock.storage.filesystem import FileSystem

_LINES: Final = "lines:"
_NEWLINE: Final = 10


def as_source(wanted: StreamRange) -> SourceRange:
    """Return a range of a request as one of splits.

    Raises:
        NotFound: Nothing here reads such a source.
    """
    if isinstance(wanted, TopicRange):
        return SourceRange(wanted.partition, wanted.folder, wanted.start, wanted.end)
    if isinstance(wanted, FileRange):
        begin, end = wanted.start_position, wanted.end_position
        place = _LINES + json.dumps([wanted.path, wanted.start, begin, end])
        return SourceRange(wanted.partition, place, wanted.start, wanted.end, max(1, end - begin))
    raise NotFound(f"partition {wanted.partition} of {wanted.topic}: Kafka is not read here")


def is_folder(place: str) -> bool:
    """Whether a place is a folder of log files."""
    return not place.startswith(_LINES)


def read_place(fs: FileSystem, source: SourceRange, block_bytes: int) -> Iterator[MessageSlice]:
    """Yield the records of a range, wherever they are, in slices of about `block_bytes`.

    Raises:
        NotFound: The folder or file is not there.
        CorruptData: A file is shorter than it was.
    """
    if is_folder(source.folder):
        yield from read_range(
            source.folder, source.start, source.end, max_block_bytes=block_bytes, fs=fs
        )
        return
    path, line, position, end_position = json.loads(source.folder.removeprefix(_LINES))
    file = fs.open_read(path)
    try:
        rest = b""
        while position < end_position and line < source.end:
            window = file.pread(min(block_bytes, end_position - position), position)
            if not window:
                raise CorruptData(path, position, f"it is shorter than {end_position} bytes now")
            position += len(window)
            data = rest + window
            ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)
            if not ends.size:
                rest = data
                continue
            rest = data[int(ends[-1]) + 1 :]
            first = max(0, source.start - line)
            last = min(int(ends.size), source.end - line)
            if first < last:
                bounds = np.concatenate([[0], ends + 1]).astype(np.int32)[first : last + 1]
                yield MessageSlice(line + first, _lines(bounds, data), 0)
            line += int(ends.size)
    finally:
        file.close()


def _lines(bounds: np.ndarray[tuple[int], np.dtype[np.int32]], data: bytes) -> pa.BinaryArray:
    """Return lines as values over the bytes that were read, their newlines with them."""
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, buffers)
