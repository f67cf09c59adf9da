"""The format of the rows of a batch task's input: ``inputFormat``.

Owns only the form of specs: nothing here opens a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, model_validator

from penstock.indexing.specs.scalars import Count, Flag
from penstock.indexing.specs.spec_base import Found, IgnoredValue, SpecModel, mistakes, refuse_types

# Druid's default for nested values, which has no effect.
_FLAT: Final[Mapping[str, object]] = {"useFieldDiscovery": True, "fields": []}


class JsonFormat(SpecModel):
    """One JSON object per row, on lines of their own or one after the other."""

    type: Literal["json"] = "json"
    assume_newline_delimited: Flag = False

    unsupported: ClassVar[Mapping[str, str]] = {
        "flattenSpec": "nested values are kept as JSON text: extract parts with a transform",
        "featureSpec": "leave it out",
    }
    druid_defaults: ClassVar[Mapping[str, object]] = {"flattenSpec": _FLAT, "featureSpec": {}}
    without_effect: ClassVar[Mapping[str, IgnoredValue]] = dict.fromkeys(
        ("keepNullColumns", "useJsonNodeReader"), IgnoredValue.ANY
    )


_DELIMITED_TEXT: Final[Mapping[str, str]] = {
    "hasHeaderRow": "it is now called findColumnsFromHeader",
    "tryParseNumbers": "set the types of dimensions",
}


class CsvFormat(SpecModel):
    """Lines of values separated by commas."""

    type: Literal["csv"] = "csv"
    columns: tuple[str, ...] = ()
    find_columns_from_header: Flag | None = None
    skip_header_rows: Count = Field(default=0, ge=0, le=1_000_000)
    list_delimiter: str | None = Field(default=None, min_length=1)

    unsupported: ClassVar[Mapping[str, str]] = {
        **_DELIMITED_TEXT,
        "delimiter": "csv values are separated by commas; use the type tsv for another delimiter",
    }
    druid_defaults: ClassVar[Mapping[str, object]] = {"tryParseNumbers": False}

    @model_validator(mode="after")
    def _check_together(self) -> CsvFormat:
        _check_columns(self.columns, header=bool(self.find_columns_from_header))
        _check_delimiters(",", self.list_delimiter)
        return self

    @property
    def separator(self) -> str:
        """The separator of values."""
        return ","

    @property
    def has_header(self) -> bool:
        """Whether the first line, after those to skip, holds the columns' names."""
        return bool(self.find_columns_from_header)


class TsvFormat(SpecModel):
    """Lines of values separated by a delimiter, tabs by default."""

    type: Literal["tsv"] = "tsv"
    columns: tuple[str, ...] = ()
    find_columns_from_header: Flag | None = None
    skip_header_rows: Count = Field(default=0, ge=0, le=1_000_000)
    delimiter: str = Field(default="\t", min_length=1, max_length=1)
    list_delimiter: str | None = Field(default=None, min_length=1)

    unsupported: ClassVar[Mapping[str, str]] = _DELIMITED_TEXT
    druid_defaults: ClassVar[Mapping[str, object]] = {"tryParseNumbers": False}

    @model_validator(mode="after")
    def _check_together(self) -> TsvFormat:
        _check_columns(self.columns, header=bool(self.find_columns_from_header))
        _check_delimiters(self.delimiter, self.list_delimiter)
        return self

    @property
    def separator(self) -> str:
        """The separator of values."""
        return self.delimiter

    @property
    def has_header(self) -> bool:
        """Whether the first line, after those to skip, holds the columns' names."""
        return bool(self.find_columns_from_header)


class ParquetFormat(SpecModel):
    """Parquet files."""

    type: Literal["parquet"] = "parquet"
    binary_as_string: Flag = False

    unsupported: ClassVar[Mapping[str, str]] = {
        "flattenSpec": "nested values are kept as JSON text: extract parts with a transform"
    }
    druid_defaults: ClassVar[Mapping[str, object]] = {"flattenSpec": _FLAT}


class OrcFormat(SpecModel):
    """ORC files."""

    type: Literal["orc"] = "orc"
    binary_as_string: Flag = False

    unsupported: ClassVar[Mapping[str, str]] = ParquetFormat.unsupported
    druid_defaults: ClassVar[Mapping[str, object]] = {"flattenSpec": _FLAT}


class AvroFormat(SpecModel):
    """Avro object container files."""

    type: Literal["avro_ocf"] = "avro_ocf"
    binary_as_string: Flag = False

    unsupported: ClassVar[Mapping[str, str]] = {
        **ParquetFormat.unsupported,
        "schema": "the schemas in the files are used",
        "extractUnionsByType": "leave it out",
    }
    druid_defaults: ClassVar[Mapping[str, object]] = {
        "flattenSpec": _FLAT,
        "extractUnionsByType": False,
    }


REFUSED_FORMATS: Final[Mapping[str, str]] = {
    "kafka": "set the format of the value: only records of a stream have keys and headers",
    "avro_stream": "write messages as JSON",
    "protobuf": "write rows as JSON",
    "thrift": "write rows as JSON",
    "regex": "read the lines as tsv and split them with a transform",
    "javascript": "specs cannot run code: split rows with transforms",
    "lines": "read them as tsv with one column",
    "sequence": "write rows as JSON or Parquet",
}
InputFormat = Annotated[
    JsonFormat | CsvFormat | TsvFormat | ParquetFormat | OrcFormat | AvroFormat,
    Field(discriminator="type"),
    refuse_types(REFUSED_FORMATS, default="json"),
]
DelimitedFormat = Annotated[CsvFormat | TsvFormat, Field(discriminator="type")]
"""Lines of values with any separator."""


def _check_columns(columns: tuple[str, ...], *, header: bool) -> None:
    found: Found = []
    if not columns and not header:
        text = "list the columns, or set findColumnsFromHeader"
        found.append((("columns",), None, text))
    seen: set[str] = set()
    for number, name in enumerate(columns):
        if not name:
            found.append((("columns", number), name, "must not be empty"))
        elif name in seen:
            found.append((("columns", number), name, f"duplicate column {name!r}: rename it"))
        seen.add(name)
    if found:
        raise mistakes("columns", found)


def _check_delimiters(separator: str, of_lists: str | None) -> None:
    if of_lists == separator:
        text = "must differ from the delimiter of columns"
        raise mistakes("delimiters", [(("listDelimiter",), of_lists, text)])
