"""Text formats of a stream's values and keys, and columns for the metadata of its records.

Plain data for Spark's workers. Owns the conversion of the formats of a spec to this data, so that
workers need no models of specs, and the choice of a parser for values of messages and for keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.spark.batch.input.delimited import DelimitedParser
from penstock.spark.messages.delimited import DelimitedMessages
from penstock.spark.topic.parse import BatchParser, MessageParser

if TYPE_CHECKING:
    from penstock.indexing.specs.rows.stream_formats import KafkaFormat, MessageFormat
    from penstock.spark.topic.row_shape import RowShape


@dataclass(frozen=True, slots=True)
class TextFormat:
    """JSON objects, or with `columns` lines of values of these, with `separator` between them."""

    columns: tuple[str, ...] = ()
    separator: str = ","
    list_delimiter: str | None = None

    def parser(self, shape: RowShape) -> BatchParser:
        """Return a parser of messages of one shape."""
        if not self.columns:
            return MessageParser(shape)
        lines = DelimitedParser(shape, self.columns, self.separator, self.list_delimiter)
        return DelimitedMessages(lines)


@dataclass(frozen=True, slots=True)
class MetadataColumns:
    """Names of the columns for the metadata of records, and the formats of keys and headers.

    Headers are read if `encoding` is given, keys if `key_format` is.
    """

    time: str
    topic: str
    partition: str
    offset: str
    key: str
    key_format: TextFormat | None = None
    header_prefix: str = ""
    encoding: str | None = None

    def has(self, name: str) -> bool:
        """Return whether a column of this name may contain metadata of records."""
        if name in {self.time, self.topic, self.partition, self.offset}:
            return True
        return self.header_of(name) is not None or (
            name == self.key and self.key_format is not None
        )

    def header_of(self, name: str) -> str | None:
        """Return the header that a column of this name contains, or None."""
        if self.encoding is None or not name.startswith(self.header_prefix):
            return None
        return name.removeprefix(self.header_prefix)


def text_format(format_: MessageFormat | None) -> TextFormat:
    """Return the text format that a spec declares; JSON if it declares none."""
    if format_ is None or format_.type == "json":
        return TextFormat()
    return TextFormat(format_.columns, format_.separator, format_.list_delimiter)


def metadata_columns(format_: KafkaFormat | None) -> MetadataColumns | None:
    """Return the metadata columns of a spec's format, or None."""
    if format_ is None:
        return None
    return MetadataColumns(
        format_.timestamp_column_name,
        format_.topic_column_name,
        format_.partition_column_name,
        format_.offset_column_name,
        format_.key_column_name,
        None if format_.key_format is None else text_format(format_.key_format),
        format_.header_column_prefix,
        None if format_.header_format is None else format_.header_format.encoding,
    )
