"""Convert the log files of a split to Arrow batches, raw or parsed, in a Spark worker.

Owns collecting slices into batches of a suitable size, the raw layout, and storing bad messages.
Spark's data source API is in `source`; this module does not depend on it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from penstock.core.errors import CorruptData, NotFound
from penstock.spark.connect.worker_memory import translate_memory_errors
from penstock.spark.topic.bad_files import BadFileWriter, BadRecord, bad_file_name
from penstock.spark.topic.byte_counts import note_bytes
from penstock.spark.topic.offset_splits import SourceRange
from penstock.spark.topic.parse import BadMessage, BatchParser
from penstock.spark.topic.record_locations import (
    LongLine,
    RecordSlice,
    is_folder,
    read_place,
    read_whole_place,
    shown_place,
)
from penstock.spark.topic.whole_records import RecordParser, WholeRecords, whole_records
from penstock.storage.filesystem import FileSystem
from penstock.storage.queue.log_files import index_of_file, list_log_files, log_file_name
from penstock.storage.queue.log_reader import MessageSlice

_Slice = TypeVar("_Slice", MessageSlice, MessageSlice | RecordSlice)

RAW_SCHEMA: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("message", pa.binary()),
    ]
)
RAW_COLUMNS: Final = "partition int, offset bigint, timestamp timestamp, message binary"

# Large enough that the cost per batch is negligible, small enough for the CPU caches.
BATCH_BYTES: Final = 8 << 20
# Bookkeeping of a message, and of a bad one, takes many times the bytes of the shortest messages.
_MESSAGES_MAX: Final = 1 << 17
_MESSAGE_BYTES: Final = BATCH_BYTES // _MESSAGES_MAX
RAW_BLOCK_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class BadMessagePolicy:
    """Treatment of messages that cannot be parsed.

    Attributes:
        folder: Folder for files with them; None: see `drop`.
        drop: Leave them out; otherwise the read fails with an error that names the message.
        topic: Name of the topic, for the files and the error.
        tally_folder: Folder for the number of bytes read of each range, good and bad; None: not
            recorded.
    """

    folder: str | None = None
    drop: bool = False
    topic: str = ""
    tally_folder: str | None = None


@dataclass(frozen=True, slots=True)
class _Batch:
    """Result of a batch: its rows, its bad messages if any, and its size in bytes.

    The size counts only the payloads of messages, not the other fields of records.
    """

    rows: pa.RecordBatch
    bad: Iterator[BadRecord] | None
    size: int


def sized(fs: FileSystem, source: SourceRange) -> SourceRange:
    """Return the range with its approximate size in bytes, from the sizes of its log files.

    Raises:
        NotFound: The folder does not exist.
    """
    if not is_folder(source.folder):
        return source  # The caller knew its size.
    bases = list_log_files(fs, source.folder)
    if not bases or source.start >= source.end:
        return source
    total = 0.0
    for index in range(max(index_of_file(bases, source.start), 0), len(bases)):
        base = bases[index]
        if base >= source.end:
            break
        # The number of messages in the last file is unknown; the range ends near its end.
        end = bases[index + 1] if index + 1 < len(bases) else source.end
        share = min(end, source.end) - max(base, source.start)
        try:
            size = fs.stat(f"{source.folder}/{log_file_name(base)}").size
        except NotFound:
            continue  # deleted meanwhile: the read reports it, with the remaining offsets
        total += size * share / max(1, end - base)
    return replace(source, size=max(1, int(total)))


def read_raw(fs: FileSystem, split: Iterable[SourceRange]) -> Iterator[pa.RecordBatch]:
    """Yield the messages unparsed, with stream partition, offset and append time."""
    for source in split:
        for piece in read_place(fs, source, RAW_BLOCK_BYTES):
            count = len(piece.messages)
            offsets = np.arange(piece.base_offset, piece.base_offset + count, dtype=np.int64)
            times = np.full(count, piece.append_time_ms * 1000, np.int64)
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(np.full(count, source.partition, np.int32)),
                    pa.array(offsets),
                    pa.array(times).cast(pa.timestamp("us")).cast(RAW_SCHEMA.field(2).type),
                    piece.messages,
                ],
                schema=RAW_SCHEMA,
            )


def read_messages(fs: FileSystem, split: Iterable[SourceRange]) -> Iterator[pa.BinaryArray]:
    """Yield the messages in batches of a suitable size for parsing."""
    for source in split:
        with translate_memory_errors(_read_text(source, "")):
            for batch in _gather(read_place(fs, source, BATCH_BYTES)):
                yield _joined(batch)


def read_whole(fs: FileSystem, split: Iterable[SourceRange], topic: str) -> Iterator[WholeRecords]:
    """Yield the records with all their fields, in batches of a suitable size for parsing."""
    for source in split:
        with translate_memory_errors(_read_text(source, topic)):
            for batch in _gather(read_whole_place(fs, source, BATCH_BYTES)):
                yield whole_records(batch, topic, source.partition)


def read_parsed(
    fs: FileSystem,
    split: Iterable[SourceRange],
    parser: BatchParser | RecordParser,
    policy: BadMessagePolicy,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the messages; the policy decides about bad ones.

    Raises:
        CorruptData: A message cannot be parsed, and the policy neither stores nor drops it.
    """
    attempt = uuid.uuid4().hex
    for source in split:
        writer = None
        if policy.folder is not None:
            name = bad_file_name(source.partition, source.start, source.end)
            writer = BadFileWriter(fs, policy.folder, name, policy.topic, source.partition, attempt)
        try:
            with translate_memory_errors(_read_text(source, policy.topic)):
                yield from _parsed(fs, source, parser, policy, writer)
        finally:
            # The process continues if this fails, or if the consumer stops early.
            if writer is not None:
                writer.close()


def _parsed(
    fs: FileSystem,
    source: SourceRange,
    parser: BatchParser | RecordParser,
    policy: BadMessagePolicy,
    writer: BadFileWriter | None,
) -> Iterator[pa.RecordBatch]:
    size = 0
    for batch in _batches(fs, source, parser, policy.topic):
        size += batch.size
        if batch.bad is not None:
            if writer is not None:
                writer.write(batch.bad)
            elif not policy.drop:
                raise _refusal(next(batch.bad), source, policy.topic)
        if batch.rows.num_rows:
            yield batch.rows
    if writer is not None:
        writer.commit()
    if policy.tally_folder is not None:
        note_bytes(fs, policy.tally_folder, source, size)


def _batches(
    fs: FileSystem, source: SourceRange, parser: BatchParser | RecordParser, topic: str
) -> Iterator[_Batch]:
    if isinstance(parser, RecordParser):
        for records in read_whole(fs, [source], topic):
            with translate_memory_errors(_read_text(_narrowed(source, records.offsets), topic)):
                parsed = parser.parse_records(records)
            bad = _bad_among(records, parsed.bad) if parsed.bad else None
            yield _Batch(parsed.rows, bad, _payload_bytes(records.values))
        return
    for batch in _gather(read_place(fs, source, BATCH_BYTES)):
        size = sum(_payload_bytes(piece.messages) for piece in batch)
        first, end = batch[0].base_offset, batch[-1].base_offset + len(batch[-1].messages)
        with translate_memory_errors(_read_text(replace(source, start=first, end=end), topic)):
            messages = _joined(batch)
            parsed = parser.parse(messages)
        yield _Batch(
            parsed.rows, _records(batch, messages, parsed.bad) if parsed.bad else None, size
        )


def _gather(slices: Iterable[_Slice]) -> Iterator[list[_Slice]]:
    """Group slices, which may be as small as one message, into batches of `BATCH_BYTES`."""
    batch: list[_Slice] = []
    size = 0
    for slice_ in slices:
        for piece in _parts(slice_):
            batch.append(piece)
            size += max(_payload_bytes(piece.messages), len(piece.messages) * _MESSAGE_BYTES)
            if isinstance(piece, RecordSlice):
                size += piece.metadata.bytes
            if size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _parts(piece: _Slice) -> Iterator[_Slice]:
    """Yield a slice in parts of at most `_MESSAGES_MAX` messages; Kafka records are not divided."""
    if len(piece.messages) <= _MESSAGES_MAX:
        yield piece
        return
    if isinstance(piece, RecordSlice):
        yield piece
        return
    for first in range(0, len(piece.messages), _MESSAGES_MAX):
        part = piece.messages.slice(first, _MESSAGES_MAX)
        yield replace(piece, base_offset=piece.base_offset + first, messages=part)


def _payload_bytes(messages: pa.BinaryArray) -> int:
    offsets = np.frombuffer(messages.buffers()[1], np.int32)
    first, last = messages.offset, messages.offset + len(messages)
    return int(offsets[last]) - int(offsets[first])


def _joined(batch: Sequence[MessageSlice]) -> pa.BinaryArray:
    if len(batch) == 1:
        return batch[0].messages
    return pa.concat_arrays([piece.messages for piece in batch])


def _records(
    batch: Sequence[MessageSlice], messages: pa.BinaryArray, bad: Sequence[BadMessage]
) -> Iterator[BadRecord]:
    """Yield the bad messages with their offsets; slices may have gaps between them."""
    starts = np.cumsum([0, *(len(piece.messages) for piece in batch)])
    places = np.searchsorted(starts, [b.index for b in bad], side="right") - 1
    for found, place in zip(bad, places.tolist(), strict=True):
        piece = batch[place]
        offset = piece.base_offset + found.index - int(starts[place])
        reason = piece.reason if isinstance(piece, LongLine) else found.reason
        yield BadRecord(offset, reason, messages[found.index].as_py())


def _bad_among(records: WholeRecords, bad: Sequence[BadMessage]) -> Iterator[BadRecord]:
    """Yield the bad ones of whole records; a record without a value has no bytes to keep."""
    for found in bad:
        value = records.values[found.index].as_py() or b""
        offset = records.offsets[found.index].as_py()
        yield BadRecord(offset, records.long_lines.get(offset, found.reason), value)


def translate_split_errors(
    split: Iterable[SourceRange], topic: str = ""
) -> AbstractContextManager[None]:
    """Translate an allocation error in the block to one that names the ranges."""
    return translate_memory_errors(
        f"working on {'; '.join(_shown(source, topic) for source in split)}"
    )


def _read_text(source: SourceRange, topic: str) -> str:
    return f"reading {_shown(source, topic)}"


def _shown(source: SourceRange, topic: str) -> str:
    shown = f"topic {topic!r}" if topic else shown_place(source.folder)
    offsets = f"offsets {source.start} to {source.end - 1}"
    return f"{shown}, stream partition {source.partition}, {offsets}"


def _narrowed(source: SourceRange, offsets: pa.Int64Array) -> SourceRange:
    """Return the part of a range that some records cover."""
    if not len(offsets):
        return source
    return replace(source, start=offsets[0].as_py(), end=offsets[len(offsets) - 1].as_py() + 1)


def _refusal(record: BadRecord, source: SourceRange, topic: str) -> CorruptData:
    shown = f"topic {topic!r}, " if topic else ""
    return CorruptData(
        shown_place(source.folder),
        0,
        f"{shown}stream partition {source.partition}, offset {record.offset}: {record.reason}."
        ' Set option("badFolder", …) to keep such messages, or option("mode", "DROPMALFORMED")',
    )
