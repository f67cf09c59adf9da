"""Table of formats, with their readers and writers.

Owns the table. Does not own the formats, which are the other modules of this package.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa

from penstock.flow.processors.records.formats.avro import AvroWriter, read_avro
from penstock.flow.processors.records.formats.batch_bounds import bounded_batches
from penstock.flow.processors.records.formats.columnar import (
    ArrowWriter,
    ParquetWriter,
    read_arrow,
    read_parquet,
)
from penstock.flow.processors.records.formats.csv_text import CsvWriter, read_csv
from penstock.flow.processors.records.formats.format_protocols import (
    ReadingOptions,
    RecordBatches,
    RecordOutput,
    RecordSource,
    RecordWriter,
    WritingOptions,
)
from penstock.flow.processors.records.formats.json_array import read_json
from penstock.flow.processors.records.formats.json_lines import read_json_lines
from penstock.flow.processors.records.formats.json_text import JsonLinesWriter, JsonListWriter


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
    return RecordBatches(records.schema, bounded_batches(records.batches, options.record_max_bytes))


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
