"""Parquet and Arrow files, which are already in columns.

Owns opening both formats and the projection to a schema. Does not own the formats, which are
Arrow's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.arrow_bounds import check_batches
from penstock.core.errors import InvalidRequest
from penstock.core.parquet_bounds import check_rows, runs_of_groups
from penstock.core.row_bytes import check_no_unions
from penstock.flow.processors.records.formats.batch_bounds import bounded_batches
from penstock.flow.processors.records.formats.casts import fitted
from penstock.flow.processors.records.formats.format_protocols import (
    BATCH_ROWS,
    BadRecords,
    ReadingOptions,
    RecordBatches,
    RecordOutput,
    RecordSink,
    RecordSource,
    translated,
)

_ARROW_FILE: Final = b"ARROW1\0\0"
_ROW_GROUP_BYTES: Final = 32 << 20
_NO_PARQUET: Final = "the content is not a readable Parquet file"
_NO_ARROW: Final = "the content is not a readable Arrow file or stream"


def read_parquet(source: RecordSource, options: ReadingOptions) -> RecordBatches:
    """Read records.

    Raises:
        BadRecords: The content is not a Parquet file, or does not fit the schema.
    """
    with source.open() as stream, translated(_NO_PARQUET):
        found = pq.ParquetFile(pa.PythonFile(stream, mode="r")).schema_arrow

    def batches() -> Iterator[pa.RecordBatch]:
        with source.open() as stream:
            stored = pa.PythonFile(stream, mode="r")
            # The process of flows has no memory limit.
            yield from parquet_batches(
                stored, source.size, "the Parquet content", _NO_PARQUET, all_pages=True
            )

    return _projected(found, batches(), options)


def parquet_batches(
    stored: pa.NativeFile, size: int, shown: str, doing: str, *, all_pages: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in batches, whose size in bytes is also limited.

    Args:
        stored: The file.
        size: Its size in bytes.
        shown: Its name in messages about bounds.
        doing: The operation, for messages about damage.
        all_pages: Whether the footer may be wrong: see `runs_of_groups`.

    Raises:
        BadRecords: The file is damaged or exceeds a bound.
    """
    yield from _guarded(_batches(stored, size, shown, all_pages), doing)


def _batches(
    stored: pa.NativeFile, size: int, shown: str, all_pages: bool
) -> Iterator[pa.RecordBatch]:
    file = pq.ParquetFile(stored, pre_buffer=False)
    check_rows(file.metadata, size, shown)
    groups = range(file.num_row_groups)
    runs = runs_of_groups(
        stored, file.metadata, groups, None, BATCH_ROWS, shown, all_pages=all_pages
    )
    for run, rows in runs:
        yield from file.iter_batches(batch_size=rows, row_groups=run, use_threads=False)


def read_arrow(source: RecordSource, options: ReadingOptions) -> RecordBatches:
    """Read records of a file or a stream.

    Raises:
        BadRecords: The content is neither of these, or does not fit the schema.
    """
    with source.open() as stream, translated(_NO_ARROW):
        is_file = stream.read(len(_ARROW_FILE)) == _ARROW_FILE
    with source.open() as stream:
        try:
            check_batches(stream, "the Arrow content")
        except InvalidRequest as error:
            raise BadRecords(str(error)) from None
    with source.open() as stream, translated(_NO_ARROW):
        open_ = pa.ipc.open_file if is_file else pa.ipc.open_stream
        found = open_(pa.PythonFile(stream, mode="r")).schema

    def made(reader: pa.RecordBatchFileReader | pa.RecordBatchStreamReader) -> Iterator[object]:
        if is_file:
            return (reader.get_batch(n) for n in range(reader.num_record_batches))
        return iter(reader)

    def batches() -> Iterator[pa.RecordBatch]:
        with source.open() as stream:
            with translated(_NO_ARROW):
                reader = open_(pa.PythonFile(stream, mode="r"))
            for batch in _guarded(made(reader), _NO_ARROW):
                with translated(_NO_ARROW):
                    # The bytes are untrusted: invalid offsets would read arbitrary memory.
                    batch.validate(full=True)
                yield batch

    try:
        check_no_unions(found, "the Arrow content")
    except InvalidRequest as error:
        raise BadRecords(str(error)) from None
    made_batches = batches()
    if options.schema is not None:
        # Many records may share a value, and a cast copies it for each of them.
        kept = _kept(made_batches, options.schema)
        made_batches = bounded_batches(kept, options.record_max_bytes)
    return _projected(found, made_batches, options)


def _kept(batches: Iterator[pa.RecordBatch], wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield batches without the columns that a schema lacks."""
    for batch in batches:
        kept = [name for name in batch.schema.names if name in wanted.names]
        yield batch.select(kept) if kept else batch


class ParquetWriter:
    """Writer of compressed Parquet.

    Args:
        out: Output for the bytes.
        schema: Schema of the records.
    """

    def __init__(self, out: RecordOutput, schema: pa.Schema) -> None:
        with translated("the records cannot be written as Parquet"):
            file = pa.PythonFile(RecordSink(out), mode="w")
            self._writer = pq.ParquetWriter(file, schema, compression="zstd")
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch, once there are enough rows for a row group.

        Raises:
            BadRecords: Parquet does not support the type of a column.
        """
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._write()

    def close(self) -> None:
        """Write the remaining rows, and the footer."""
        self._write()
        with translated("the records cannot be written as Parquet"):
            self._writer.close()

    def _write(self) -> None:
        if self._waiting:
            with translated("the records cannot be written as Parquet"):
                self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema))
            self._waiting, self._waiting_bytes = [], 0


class ArrowWriter:
    """Writer of a stream in Arrow's format.

    Args:
        out: Output for the bytes.
        schema: Schema of the records.
    """

    def __init__(self, out: RecordOutput, schema: pa.Schema) -> None:
        with translated("the records cannot be written in Arrow's format"):
            self._writer = pa.ipc.new_stream(pa.PythonFile(RecordSink(out), mode="w"), schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        with translated("the records cannot be written in Arrow's format"):
            self._writer.write_batch(batch)

    def close(self) -> None:
        """Write the end of stream marker."""
        with translated("the records cannot be written in Arrow's format"):
            self._writer.close()


def _guarded(batches: Iterator[object], doing: str) -> Iterator[pa.RecordBatch]:
    while True:
        with translated(doing):
            try:
                batch = next(batches)
            except StopIteration:
                return
            except InvalidRequest as error:
                raise BadRecords(str(error)) from None
        yield batch


def _projected(
    found: pa.Schema, batches: Iterator[pa.RecordBatch], options: ReadingOptions
) -> RecordBatches:
    wanted = options.schema
    with translated("the names of the columns cannot be read"):
        names = found.names
    for name, count in Counter(names).items():
        if count > 1:
            raise BadRecords(f"duplicate column name {name!r}: names must be unique")
    if wanted is None:
        return RecordBatches(found, batches)
    if options.refuse_others and (others := [n for n in names if n not in wanted.names]):
        raise BadRecords(f"the schema has no column {others[0]!r}: add it, or allow other fields")
    return RecordBatches(wanted, (fitted(batch, wanted) for batch in batches))
