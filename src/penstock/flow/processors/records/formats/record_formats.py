"""Table of formats, with their readers and writers.

Owns the table. Does not own the formats, which are the other modules of this package.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.row_bytes import (
    bytes_of_rows,
    dictionaries_of,
    may_have_long_rows,
    repeats_values,
)
from penstock.flow.processors.records.formats.avro import AvroWriter, read_avro
from penstock.flow.processors.records.formats.columnar import (
    ArrowWriter,
    ParquetWriter,
    read_arrow,
    read_parquet,
)
from penstock.flow.processors.records.formats.csv_text import CsvWriter, read_csv
from penstock.flow.processors.records.formats.json_array import read_json
from penstock.flow.processors.records.formats.json_lines import read_json_lines
from penstock.flow.processors.records.formats.json_text import JsonLinesWriter, JsonListWriter
from penstock.flow.processors.records.formats.protocols import (
    ReadingOptions,
    RecordBatches,
    RecordOutput,
    RecordSource,
    RecordWriter,
    WritingOptions,
    record_too_long,
    translated,
)


class RecordFormat(enum.Enum):
    """Format of records."""

    JSON_LINES = "json-lines"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    AVRO = "avro"
    ARROW = "arrow"


MIME_TYPES: Final[Mapping[RecordFormat, str]] = {
    RecordFormat.JSON_LINES: "application/x-ndjson",
    RecordFormat.JSON: "application/json",
    RecordFormat.CSV: "text/csv",
    RecordFormat.PARQUET: "application/vnd.apache.parquet",
    RecordFormat.AVRO: "application/avro",
    RecordFormat.ARROW: "application/vnd.apache.arrow.stream",
}

CELLS_MAX: Final = 2 << 20
"""Maximum number of values, rows times columns, of a batch with more than one row."""
BATCH_BYTES_MAX: Final = 32 << 20
"""Approximate maximum size in bytes of a batch with more than one row."""
_SIZES: Final = "the sizes of the records cannot be computed"

_READERS: Final[Mapping[RecordFormat, Callable[[RecordSource, ReadingOptions], RecordBatches]]] = {
    RecordFormat.JSON_LINES: read_json_lines,
    RecordFormat.JSON: read_json,
    RecordFormat.CSV: read_csv,
    RecordFormat.PARQUET: read_parquet,
    RecordFormat.AVRO: read_avro,
    RecordFormat.ARROW: read_arrow,
}


def read_records(
    format_: RecordFormat, source: RecordSource, options: ReadingOptions
) -> RecordBatches:
    """Open content as records.

    Raises:
        BadRecords: The content does not have the format, or does not fit the schema.
    """
    records = _READERS[format_](source, options)
    return RecordBatches(records.schema, _bounded(records.batches, options.record_max_bytes))


def _bounded(batches: Iterator[pa.RecordBatch], bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Yield the records in batches of a limited size; raise if a record is too long."""
    for batch in batches:
        # For most batches this check is sufficient.
        if (
            batch.nbytes <= min(bytes_max, BATCH_BYTES_MAX)
            and batch.num_rows * batch.num_columns <= CELLS_MAX
            and not any(
                pa.types.is_nested(t) or pa.types.is_dictionary(t) or repeats_values(t)
                for t in batch.schema.types
            )
        ):
            yield batch
            continue
        yield from _of_bounded_size(_of_bounded_length(iter((batch,)), bytes_max))


def _of_bounded_length(
    batches: Iterator[pa.RecordBatch], bytes_max: int
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        with translated(_SIZES):
            is_long = (
                may_have_long_rows(batch, bytes_max)
                and pc.any(pc.greater(bytes_of_rows(batch), bytes_max)).as_py()
            )
        if is_long:
            raise record_too_long(bytes_max)
        yield batch


def _of_bounded_size(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Split batches with very many columns or bytes: as text, a value may be many times larger."""
    for batch in batches:
        with translated(_SIZES):
            size = max(1, _bytes_of(batch))
        rows = min(
            CELLS_MAX // max(1, batch.num_columns),
            batch.num_rows * BATCH_BYTES_MAX // size,
        )
        if batch.num_rows <= rows:
            yield batch
            continue
        for start in range(0, batch.num_rows, max(1, rows)):
            yield batch.slice(start, max(1, rows))


def _bytes_of(batch: pa.RecordBatch) -> int:
    """Return how many bytes the values of a batch take, including shared ones."""
    has_dictionary = any(True for column in batch.columns for _ in dictionaries_of(column))
    if has_dictionary or any(map(repeats_values, batch.schema.types)):
        return int(pc.sum(bytes_of_rows(batch)).as_py() or 0)
    return int(batch.nbytes)


def record_writer(
    format_: RecordFormat, out: RecordOutput, schema: pa.Schema, options: WritingOptions
) -> RecordWriter:
    """Open a writer of records; close it when all are written.

    Raises:
        BadRecords: The format does not support a type of the schema.
    """
    if format_ is RecordFormat.JSON_LINES:
        return JsonLinesWriter(out)
    if format_ is RecordFormat.JSON:
        return JsonListWriter(out)
    if format_ is RecordFormat.CSV:
        return CsvWriter(out, schema, options)
    if format_ is RecordFormat.PARQUET:
        return ParquetWriter(out, schema)
    if format_ is RecordFormat.AVRO:
        return AvroWriter(out, schema)
    return ArrowWriter(out, schema)
