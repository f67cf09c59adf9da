"""Which formats there are, and how each is opened for reading and for writing.

Owns the table. The formats are the modules beside this one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa

from penstock.flow.processors.records.formats.avro import AvroWriter, read_avro
from penstock.flow.processors.records.formats.columnar import (
    ArrowWriter,
    ParquetWriter,
    read_arrow,
    read_parquet,
)
from penstock.flow.processors.records.formats.csvtext import CsvWriter, read_csv
from penstock.flow.processors.records.formats.jsonarray import read_json
from penstock.flow.processors.records.formats.jsonlines import read_json_lines
from penstock.flow.processors.records.formats.jsontext import JsonLinesWriter, JsonListWriter
from penstock.flow.processors.records.formats.model import (
    Output,
    ReadingOptions,
    Records,
    RecordWriter,
    Source,
    WritingOptions,
)


class Format(enum.Enum):
    """A format of records."""

    JSON_LINES = "json-lines"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    AVRO = "avro"
    ARROW = "arrow"


MIME_TYPES: Final[Mapping[Format, str]] = {
    Format.JSON_LINES: "application/x-ndjson",
    Format.JSON: "application/json",
    Format.CSV: "text/csv",
    Format.PARQUET: "application/vnd.apache.parquet",
    Format.AVRO: "application/avro",
    Format.ARROW: "application/vnd.apache.arrow.stream",
}

_READERS: Final[Mapping[Format, Callable[[Source, ReadingOptions], Records]]] = {
    Format.JSON_LINES: read_json_lines,
    Format.JSON: read_json,
    Format.CSV: read_csv,
    Format.PARQUET: read_parquet,
    Format.AVRO: read_avro,
    Format.ARROW: read_arrow,
}


def read_records(format_: Format, source: Source, options: ReadingOptions) -> Records:
    """Open content as records.

    Raises:
        BadRecords: The content is not of the format, or does not fit the schema.
    """
    return _READERS[format_](source, options)


def record_writer(
    format_: Format, out: Output, schema: pa.Schema, options: WritingOptions
) -> RecordWriter:
    """Open a writer of records; close it when all are written.

    Raises:
        BadRecords: The format has nothing for a type of the schema.
    """
    if format_ is Format.JSON_LINES:
        return JsonLinesWriter(out)
    if format_ is Format.JSON:
        return JsonListWriter(out)
    if format_ is Format.CSV:
        return CsvWriter(out, schema, options)
    if format_ is Format.PARQUET:
        return ParquetWriter(out, schema)
    if format_ is Format.AVRO:
        return AvroWriter(out, schema)
    return ArrowWriter(out, schema)
