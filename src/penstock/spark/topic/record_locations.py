"""Locations of the records of an offset range, as text in place of a folder of log files.

Such a text is the path of a folder of log files, or `lines:` with the fields of a file of lines, or
`kafka:` with a topic. Owns that text and reads lines; `storage.queue.log_reader` reads log files,
and `indexing.source.kafka` reads Kafka. Invariant: a file is never read past the end of the range,
so a partial line is never returned as a line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.clock import SystemClock
from penstock.core.errors import CorruptData
from penstock.core.read_guard import READ_GUARD, ReadGuard
from penstock.indexing.engine import FileRange, KafkaRange, TopicRange
from penstock.spark.topic.offset_splits import SourceRange
from penstock.storage.filesystem import open_guarded
from penstock.storage.queue.log_reader import MessageSlice, read_range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.indexing.engine import StreamRange
    from penstock.indexing.source.kafka import RecordBatch, RecordMetadata
    from penstock.storage.filesystem import FileSystem

_LINES: Final = "lines:"
_KAFKA: Final = "kafka:"
LINE_BYTES_MAX: Final = 64 << 20
"""A longer line of a file is a bad message."""
# Assumed size of a record if its source does not know it.
_RECORD_BYTES: Final = 256
_NEWLINE: Final = 10


def as_source(wanted: StreamRange) -> SourceRange:
    """Convert a range of a request to one of splits."""
    if isinstance(wanted, TopicRange):
        return SourceRange(wanted.partition, wanted.folder, wanted.start, wanted.end)
    if isinstance(wanted, FileRange):
        begin, end = wanted.start_position, wanted.end_position
        # The guard is sent with the range, because it is set in Penstock's processes only.
        guard = READ_GUARD.get()
        places = [guard.kept, guard.only]
        fields = [wanted.path, wanted.start, begin, end, places]
        place = _LINES + json.dumps(fields)
        return SourceRange(wanted.partition, place, wanted.start, wanted.end, max(1, end - begin))
    size = wanted.bytes or (wanted.end - wanted.start) * _RECORD_BYTES
    place = _KAFKA + wanted.topic
    return SourceRange(
        wanted.partition, place, wanted.start, wanted.end, size, tuple(wanted.properties)
    )


def shown_place(place: str) -> str:
    """Return a location's name for messages: the path of the folder or file, or Kafka's topic."""
    if place.startswith(_LINES):
        return str(json.loads(place.removeprefix(_LINES))[0])
    if place.startswith(_KAFKA):
        return f"Kafka topic {place.removeprefix(_KAFKA)!r}"
    return place


def is_folder(place: str) -> bool:
    """Return whether a location is a folder of log files."""
    return not place.startswith((_LINES, _KAFKA))


@dataclass(frozen=True, slots=True)
class RecordSlice:
    """Whole records of Kafka, whose offsets may have gaps; null if a record has no value."""

    offsets: npt.NDArray[np.int64]
    messages: pa.BinaryArray
    metadata: RecordMetadata


@dataclass(frozen=True, slots=True)
class LongLine(MessageSlice):
    """An empty line instead of one longer than `bytes_max`; the parser refuses it."""

    bytes_max: int

    @property
    def reason(self) -> str:
        """Return why the line is a bad message."""
        return f"longer than {self.bytes_max:,} bytes"


def read_place(fs: FileSystem, source: SourceRange, block_bytes: int) -> Iterator[MessageSlice]:
    """Yield the records of a range, at any location, in slices of about `block_bytes`.

    Raises:
        NotFound: The folder, file or topic does not exist, or no longer has the range.
        CorruptData: A file is shorter than it was.
        InvalidRequest: Tasks must not read the file of lines.
        Unavailable: Kafka does not answer.
    """
    if is_folder(source.folder):
        yield from read_range(
            source.folder, source.start, source.end, max_block_bytes=block_bytes, fs=fs
        )
        return
    if source.folder.startswith(_KAFKA):
        for batch in _read_kafka(source, block_bytes, whole=False):
            for base, values in batch.runs():
                yield MessageSlice(base, values, 0)
        return
    yield from _read_lines(fs, source, block_bytes)


def read_whole_place(
    fs: FileSystem, source: SourceRange, block_bytes: int
) -> Iterator[MessageSlice | RecordSlice]:
    """Yield the records of a range, those of Kafka with all fields. Raises as `read_place`.

    All slices have the same type.
    """
    if not source.folder.startswith(_KAFKA):
        yield from read_place(fs, source, block_bytes)
        return
    for batch in _read_kafka(source, block_bytes, whole=True):
        assert batch.metadata is not None, "whole records were requested"
        yield RecordSlice(batch.offsets, batch.values, batch.metadata)


def _read_kafka(source: SourceRange, block_bytes: int, *, whole: bool) -> Iterator[RecordBatch]:
    # Imported here, to save memory in workers that do not read Kafka.
    from penstock.indexing.source import KafkaClients  # noqa: PLC0415
    from penstock.indexing.source.kafka import read_records  # noqa: PLC0415

    topic = source.folder.removeprefix(_KAFKA)
    wanted = KafkaRange(source.partition, topic, source.start, source.end, source.properties)
    yield from read_records(
        KafkaClients(), wanted, SystemClock(), batch_bytes=block_bytes, whole=whole
    )


def _read_lines(
    fs: FileSystem,
    source: SourceRange,
    block_bytes: int,
    line_bytes_max: int = LINE_BYTES_MAX,
) -> Iterator[MessageSlice]:
    """Yield the lines of a range; of a line that is too long only the allowed part is held."""
    path, line, position, end_position, places = json.loads(source.folder.removeprefix(_LINES))
    kept, only = map(tuple, places)
    file = open_guarded(fs, path, ReadGuard(kept, only).now())
    try:
        rest = b""
        is_long = False
        while position < end_position and line < source.end:
            window = file.pread(min(block_bytes, end_position - position), position)
            if not window:
                raise CorruptData(path, position, f"it is shorter than {end_position} bytes now")
            position += len(window)
            data = rest + window
            ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)
            if is_long or (ends[0] if ends.size else len(data)) > line_bytes_max:
                is_long, rest = not ends.size, b""
                if is_long:
                    continue
                if line >= source.start:
                    yield LongLine(line, pa.array([b"\n"], pa.binary()), 0, line_bytes_max)
                line += 1
                data, ends = data[int(ends[0]) + 1 :], ends[1:] - int(ends[0]) - 1
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
    """Return lines as values over the bytes that were read, including their newlines."""
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, buffers)
