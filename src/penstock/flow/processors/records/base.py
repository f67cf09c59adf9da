"""Base of all processors for records: the input format and its options.

Owns the properties, and opening a FlowFile's content as records. Does not own the formats
(`formats`).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final

import pyarrow as pa

from penstock.core.errors import InvalidRequest
from penstock.flow.flowfile import MIME_TYPE, FlowFile
from penstock.flow.processor import SIZE, Processor, ProcessSession, Property, PropertyType
from penstock.flow.processors.records.formats.format_protocols import (
    CHUNK_BYTES,
    ReadingOptions,
    RecordBatches,
    RecordOutput,
    RecordSource,
    RecordWriter,
    WritingOptions,
)
from penstock.flow.processors.records.formats.record_formats import (
    MIME_TYPES,
    RecordFormat,
    read_records,
    record_writer,
)
from penstock.flow.processors.records.formats.schema_text import parse_schema
from penstock.flow.queue.queue import FilterVerdict

RECORD_COUNT: Final = "record.count"
SCHEMA: Final = PropertyType("schema", parse_schema)
_SEPARATOR_NAMES: Final = {"\\t": "\t", "tab": "\t"}


def _separator(text: str) -> str:
    mark = _SEPARATOR_NAMES.get(text, text)
    if len(mark) != 1 or not mark.isascii() or mark in '\r\n"':
        raise InvalidRequest(
            f"{text!r} is not a valid separator: write one ASCII character, or tab"
        )
    return mark


def _long_enough(size: int) -> None:
    if size < CHUNK_BYTES:
        raise InvalidRequest(f"{size:,} bytes are less than one read: use 4 MB or more")


class RecordProcessor(Processor):
    """Base class of processors that read records."""

    input_format = Property(
        RecordFormat,
        required=True,
        about="Format of the content.",
    )
    schema = Property(
        SCHEMA,
        about="Names and types of the fields, such as `id long not null, name string`. Without "
        "a schema, the fields of the content; for JSON and CSV, types that fit all values.",
    )
    csv_separator = Property(
        PropertyType("character", _separator),
        default=",",
        about="Separator between the fields of CSV.",
    )
    csv_header = Property(bool, default=True, about="Whether CSV starts with a line of names.")
    infer_types = Property(
        bool,
        default=True,
        about="Whether fields of CSV without a schema may be numbers and booleans, or only text.",
    )
    max_record = Property(
        SIZE,
        default="16 MB",
        about="Maximum size of a record, 4 MB or more; a longer record fails.",
        validator=_long_enough,
    )

    def reading_options(self, *, refuse_others: bool = False) -> ReadingOptions:
        """Return the options for reading."""
        return ReadingOptions(
            schema=self.schema,
            csv_separator=self.csv_separator,
            csv_header=self.csv_header,
            infer_types=self.infer_types,
            refuse_others=refuse_others,
            record_max_bytes=self.max_record,
        )

    def writing_options(self) -> WritingOptions:
        """Return the options for writing."""
        return WritingOptions(csv_separator=self.csv_separator, csv_header=self.csv_header)

    def records(
        self, session: ProcessSession, flowfile: FlowFile, options: ReadingOptions
    ) -> RecordBatches:
        """Open the content of a FlowFile as records.

        Raises:
            BadRecords: The content does not have the format, or does not fit the schema.
        """
        return read_records(self.input_format, source_of(session, flowfile), options)

    def writer(self, format_: RecordFormat, out: RecordOutput, schema: pa.Schema) -> RecordWriter:
        """Open a writer of records.

        Raises:
            BadRecords: The format does not support a type of the schema.
        """
        return record_writer(format_, out, schema, self.writing_options())


def source_of(session: ProcessSession, flowfile: FlowFile) -> RecordSource:
    """Return the content of a FlowFile as a source of records."""
    return RecordSource(lambda: session.read(flowfile), flowfile.size)


def record_attributes(format_: RecordFormat, count: int) -> dict[str, str]:
    """Return the attributes of content that was written as records."""
    return {MIME_TYPE: MIME_TYPES[format_], RECORD_COUNT: str(count)}


def accept_only(ids: AbstractSet[int]) -> Callable[[FlowFile], FilterVerdict]:
    """Return a filter that accepts these FlowFiles, and stops as early as possible."""
    left = len(ids)

    def decide(flowfile: FlowFile) -> FilterVerdict:
        nonlocal left
        if flowfile.id not in ids:
            return FilterVerdict.REJECT
        left -= 1
        return FilterVerdict.ACCEPT if left else FilterVerdict.ACCEPT_AND_STOP

    return decide
