"""The format of a stream's records: ``ioConfig.inputFormat`` of a supervisor.

Owns the format `kafka`: a record's key, headers, time, topic, partition and offset as columns in
addition to those of its value. Formats of the value itself are those of files (`specs.inputs`);
`mistakes_in_message` refuses the options that a single message cannot have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from penstock.indexing.specs.input_formats import REFUSED_FORMATS, CsvFormat, JsonFormat, TsvFormat
from penstock.indexing.specs.spec_base import Found, SpecModel, mistakes, refuse_types

_FILE_FORMATS: Final = frozenset({"parquet", "orc", "avro_ocf"})
_Name = Annotated[str, Field(min_length=1)]


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


def _not_of_files(value: object) -> object:
    """Refuse formats of whole files, which only batch tasks read."""
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind in _FILE_FORMATS:
        text = f"a stream's messages are json, csv, tsv, not {kind}: read it in a batch task"
        raise mistakes("format", [(("type",), kind, text)])
    return value


MessageFormat = Annotated[
    JsonFormat | CsvFormat | TsvFormat,
    Field(discriminator="type"),
    refuse_types(REFUSED_FORMATS, default="json"),
    BeforeValidator(_not_of_files),
]
"""The format of one message, or of its key; `mistakes_in_message` has further restrictions."""


class HeaderFormat(SpecModel):
    """Headers whose values are text."""

    type: Literal["string"] = "string"
    encoding: Annotated[
        Literal["UTF-8", "UTF-16", "UTF-16BE", "UTF-16LE", "ISO-8859-1", "US-ASCII"],
        BeforeValidator(_upper),
    ] = "UTF-8"


class KafkaFormat(SpecModel):
    """Whole records: the columns of the value, and columns for the other parts of a record.

    A column of the value takes precedence over another column of the same name. A record without a
    value becomes a row of the other columns.
    """

    type: Literal["kafka"]
    value_format: MessageFormat
    header_format: HeaderFormat | None = None
    header_column_prefix: str = "kafka.header."
    key_format: MessageFormat | None = None
    key_column_name: _Name = "kafka.key"
    timestamp_column_name: _Name = "kafka.timestamp"
    topic_column_name: _Name = "kafka.topic"
    partition_column_name: _Name = "kafka.partition"
    offset_column_name: _Name = "kafka.offset"

    unsupported: ClassVar[Mapping[str, str]] = {
        "headerLabelPrefix": "it is now called headerColumnPrefix"
    }

    @model_validator(mode="after")
    def _check_together(self) -> KafkaFormat:
        found: Found = []
        for name, format_ in (("valueFormat", self.value_format), ("keyFormat", self.key_format)):
            if format_ is not None:
                found += [((name, *at), v, why) for at, v, why in mistakes_in_message(format_)]
        seen: dict[str, str] = {}
        for field, name in self._columns():
            if (other := seen.setdefault(name.lower(), field)) != field:
                text = f"{name!r} is the column of {other} already: use another name"
                found.append(((field,), name, text))
        if found:
            raise mistakes("KafkaFormat", found)
        return self

    def _columns(self) -> tuple[tuple[str, str], ...]:
        return (
            ("timestampColumnName", self.timestamp_column_name),
            ("topicColumnName", self.topic_column_name),
            ("partitionColumnName", self.partition_column_name),
            ("offsetColumnName", self.offset_column_name),
            ("keyColumnName", self.key_column_name),
        )


StreamFormat = Annotated[
    JsonFormat | CsvFormat | TsvFormat | KafkaFormat,
    Field(discriminator="type"),
    refuse_types({k: v for k, v in REFUSED_FORMATS.items() if k != "kafka"}, default="json"),
    BeforeValidator(_not_of_files),
]
"""The formats that a stream's spec may have."""


def mistakes_in_message(format_: JsonFormat | CsvFormat | TsvFormat) -> Found:
    """Return the options of a format that a message, which is a single row, cannot have.

    Each is (place within the format, value, error text).
    """
    found: Found = []
    if isinstance(format_, CsvFormat | TsvFormat):
        if format_.has_header:
            text = "a message has no header: leave it out, and list the columns in columns"
            found.append((("findColumnsFromHeader",), True, text))
        if format_.skip_header_rows:
            text = "each message is one row, with nothing before it: leave it out"
            found.append((("skipHeaderRows",), format_.skip_header_rows, text))
    return found
