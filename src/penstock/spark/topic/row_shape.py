"""Mapping of a message's JSON fields to columns, and the place of the time.

Plain data that is sent to Spark's Python workers, so it uses no schema library. Does not own
parsing (`parse`, `coerce`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import pyarrow as pa

from penstock.core.errors import InvalidRequest
from penstock.core.time_patterns import TimePattern

TIME_COLUMN: Final = "__time"
TIME_TYPE: Final = pa.timestamp("us", tz="UTC")


class FieldType(StrEnum):
    """Types that a field may be read as, by their Spark SQL names."""

    STRING = "string"
    LONG = "bigint"
    DOUBLE = "double"
    FLOAT = "float"
    BOOLEAN = "boolean"
    BINARY = "binary"  # sketches; always computed
    STRINGS = "array<string>"
    LONGS = "array<bigint>"
    DOUBLES = "array<double>"

    @property
    def arrow(self) -> pa.DataType:
        """Return the Arrow type of the column."""
        return _ARROW[self]

    @property
    def of_values(self) -> FieldType | None:
        """Return the type of the values of a list; None: the type is not a list."""
        return _VALUES.get(self)

    @property
    def spec_name(self) -> str:
        """Return its name for messages: the name in a spec, where users write long."""
        return "long" if self is FieldType.LONG else self.value


_ARROW: Final = {
    FieldType.STRING: pa.string(),
    FieldType.LONG: pa.int64(),
    FieldType.DOUBLE: pa.float64(),
    FieldType.FLOAT: pa.float32(),
    FieldType.BOOLEAN: pa.bool_(),
    FieldType.BINARY: pa.binary(),
    FieldType.STRINGS: pa.list_(pa.string()),
    FieldType.LONGS: pa.list_(pa.int64()),
    FieldType.DOUBLES: pa.list_(pa.float64()),
}
_VALUES: Final = {
    FieldType.STRINGS: FieldType.STRING,
    FieldType.LONGS: FieldType.LONG,
    FieldType.DOUBLES: FieldType.DOUBLE,
}


class TimeFormat(StrEnum):
    """Format of a time: ISO 8601 text, or a number of some unit since 1970."""

    AUTO = "auto"  # a number of milliseconds, or ISO 8601 text
    ISO = "iso"
    POSIX = "posix"
    MILLIS = "millis"
    MICRO = "micro"
    NANO = "nano"


def time_format(text: str) -> TimeFormat | TimePattern:
    """Return the format of this name, or the pattern in the text.

    Raises:
        InvalidRequest: The text is neither.
    """
    return TimeFormat(text) if text in set(TimeFormat) else TimePattern.compile(text)


@dataclass(frozen=True, slots=True)
class TimeField:
    """Place of the time in a message; `missing_ms` replaces a missing time.

    An `optional` time without `missing_ms` is null if missing, because it comes from elsewhere.
    """

    name: str
    format: TimeFormat | TimePattern = TimeFormat.AUTO
    missing_ms: int | None = None
    optional: bool = False

    @property
    def why_none(self) -> str:
        """Return why a message without a time makes no row."""
        return f"no time: field {self.name!r} is missing or null"


@dataclass(frozen=True, slots=True)
class RowShape:
    """The columns of a row: `__time` first if there is a time field, then the fields in order.

    Raises:
        InvalidRequest: Two fields have the same name.
    """

    fields: tuple[tuple[str, FieldType], ...]
    time: TimeField | None = None

    def __post_init__(self) -> None:
        names = [name for name, _ in self.fields]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise InvalidRequest(f"fields {twice} are listed twice: list each field once")

    @property
    def arrow_schema(self) -> pa.Schema:
        """Return the Arrow schema of the rows."""
        columns = [pa.field(name, type_.arrow) for name, type_ in self.fields]
        if self.time is not None:
            columns.insert(0, pa.field(TIME_COLUMN, TIME_TYPE))
        return pa.schema(columns)

    def spark_columns(self) -> tuple[tuple[str, str], ...]:
        """Return (name, Spark SQL type) of each column."""
        columns = tuple((name, str(type_)) for name, type_ in self.fields)
        return columns if self.time is None else ((TIME_COLUMN, "timestamp"), *columns)
