"""SQL results in Druid's five result formats, in Parquet and in Arrow, written from Arrow batches.

Owns the formats, how a value of each type is written, and Druid's names for the column types:
its own (`LONG`) and SQL's (`BIGINT`). Runs no query.

    object       [{"a": 1}, ...]        array       [[1], ...]
    objectLines  {"a": 1} per line      arrayLines  [1] per line
    csv          1 per line           parquet    a file
    arrow        a stream of batches

With `header` the first row has the column names (for objects: the names with null values), and
each requested kind of type name adds one row (for objects: `{"type": ..., "sqlType": ...}`
instead of null). The line formats and CSV end with an empty line, which shows the client that
the result is complete.
"""

from __future__ import annotations

import base64
import csv
import datetime as dt
import decimal
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.errors import InvalidRequest
from penstock.core.instants import format_any_time, format_day
from penstock.spark.sql.answer_files import pieces

if TYPE_CHECKING:
    from penstock.spark.sql.fetcher import RowSource


TypeName = Literal["type", "sqlType"]
"""Kind of a type's name; the values are the keys in an object's header."""

# By the prefix of an Arrow type's text: (Druid's own, SQL's).
_NAMES: Final[Sequence[tuple[tuple[str, ...], tuple[str, str]]]] = (
    (("bool",), ("LONG", "BOOLEAN")),
    (("int8", "uint8"), ("LONG", "TINYINT")),
    (("int16", "uint16"), ("LONG", "SMALLINT")),
    (("int32", "uint32"), ("LONG", "INTEGER")),
    (("int64", "uint64"), ("LONG", "BIGINT")),
    (("halffloat", "float"), ("FLOAT", "FLOAT")),
    (("double",), ("DOUBLE", "DOUBLE")),
    (("decimal",), ("DOUBLE", "DECIMAL")),
    (("timestamp",), ("LONG", "TIMESTAMP")),
    (("date",), ("LONG", "DATE")),
    (("string", "large_string", "null"), ("STRING", "VARCHAR")),
)
_OTHER: Final = ("COMPLEX", "OTHER")


def type_name(of: pa.DataType, name: TypeName) -> str:
    """Return one of the names of a column's type."""
    text = str(of)
    if text.startswith(("list", "large_list")):
        inner = type_name(of.value_type, "type")
        return "ARRAY" if name == "sqlType" else f"ARRAY<{inner}>"
    if text.startswith(("struct", "map")):
        return "OTHER" if name == "sqlType" else "COMPLEX<json>"
    found = next((names for begins, names in _NAMES if text.startswith(begins)), _OTHER)
    return found[0] if name == "type" else found[1]


# By the names of Spark's types.
_OF_SPARK: Final = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL: Final = re.compile(r"decimal\(([0-9]+),([0-9]+)\)")


def described_schema(described: pa.Table) -> pa.Schema:
    """Return the columns that `DESCRIBE QUERY` lists; types without a name here are text."""
    names, types = (described.column(number).to_pylist() for number in (0, 1))
    fields = []
    for name, spark_type in zip(names, types, strict=True):
        decimal = _DECIMAL.fullmatch(spark_type)
        other = pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else pa.string()
        fields.append(pa.field(name, _OF_SPARK.get(spark_type, other)))
    return pa.schema(fields)


ROWS_PER_CHUNK = 5_000
CHUNK_BYTES = 256 << 10
"""Approximate size in Arrow of the rows of one chunk, which a slow client keeps in memory."""

CONTENT_TYPES = {
    "object": "application/json",
    "array": "application/json",
    "objectLines": "text/plain; charset=utf-8",
    "arrayLines": "text/plain; charset=utf-8",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
    "arrow": "application/vnd.apache.arrow.stream",
}


def check_format(result_format: object) -> str:
    """Return the result format.

    Raises:
        InvalidRequest: The format is unknown.
    """
    if result_format is None:
        return "object"
    if not isinstance(result_format, str) or result_format not in CONTENT_TYPES:
        raise InvalidRequest(
            f"unknown result format {result_format!r}; use one of {', '.join(CONTENT_TYPES)}",
            place="resultFormat",
        )
    return result_format


GROUP_BYTES = 4 << 20
GROUP_ROWS = 65_536
"""Approximate size in Arrow of a row group in Parquet, which a slow client keeps in memory."""


def check_columns(schema: pa.Schema, result_format: str) -> None:
    """Check that the result format can have the columns.

    Raises:
        InvalidRequest: Two share a name, and one would hide the other in an object, or in a file of
            Parquet for its readers; or Parquet has no such type.
    """
    if result_format != "parquet" and not result_format.startswith("object"):
        return
    for name, count in Counter(schema.names).items():
        if count > 1:
            raise InvalidRequest(
                f"{count} columns of the answer are named {name!r}: give each a name with AS"
            )
    if result_format == "parquet":
        for field in schema:
            try:
                pq.ParquetWriter(io.BytesIO(), pa.schema([field])).close()
            except pa.ArrowException:  # narrow: translates
                raise InvalidRequest(
                    f"the column {field.name!r} has the type {field.type}, which Parquet does not"
                    " have: cast it to another one, such as STRING"
                ) from None


def write_rows(
    source: RowSource, result_format: str, *, header: bool, types: Sequence[TypeName] = ()
) -> Iterator[bytes]:
    """Write rows in one of the formats, in chunks.

    Args:
        source: The rows.
        result_format: The format.
        header: Whether the names of the columns come first.
        types: Kinds of type names that the header also contains.
    """
    heading: list[list[str]] = []
    if header:
        type_rows = [[type_name(of, name) for of in source.schema.types] for name in types]
        heading = [list(source.schema.names), *type_rows]
    if result_format == "parquet":
        yield from _parquet(source)
        return
    if result_format == "arrow":
        yield from _arrow(source)
        return
    if result_format == "csv":
        yield from _csv(source, heading)
        return
    as_objects = result_format.startswith("object")
    lines = result_format.endswith("Lines")
    first_rows: list[object] = [*heading]
    if header and as_objects:
        columns = zip(*heading, strict=True)
        first_rows = [
            {
                name: dict(zip(types, type_names, strict=True)) or None
                for name, *type_names in columns
            }
        ]
    first = True
    if not lines:
        yield b"["
    for rows in _chunks(source, first_rows, as_objects=as_objects):
        written = [orjson.dumps(row, default=plain_value, option=_JSON_OPTIONS) for row in rows]
        if lines:
            yield b"\n".join(written) + b"\n"
        else:
            yield (b"" if first else b",") + b",".join(written)
        first = False
    yield b"\n" if lines else b"]"


def row_chunks(source: RowSource) -> Iterator[list[Sequence[object]]]:
    """Yield the rows, a few thousand at a time; `json_bytes` writes their values."""
    for batch in _bounded(source):
        yield list(zip(*(values_of(column) for column in batch.columns), strict=True))


def json_bytes(value: object, *, is_indented: bool = False) -> bytes:
    """Return JSON of a value in which there are values of rows."""
    option = _JSON_OPTIONS | (orjson.OPT_INDENT_2 if is_indented else 0)
    return orjson.dumps(value, default=plain_value, option=option)


_UNITS_A_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_JSON_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_NON_STR_KEYS


def _chunks(
    source: RowSource, heading: list[object], *, as_objects: bool
) -> Iterator[list[object]]:
    if heading:
        yield heading
    names = list(source.schema.names)
    for batch in _bounded(source):
        # By position, because two columns may share a name.
        rows = zip(*(values_of(column) for column in batch.columns), strict=True)
        yield [dict(zip(names, row, strict=True)) if as_objects else row for row in rows]


def values_of(column: pa.Array) -> list[object]:
    """Return the values of a column; those that Python cannot represent as text.

    Spark has days and times of years before 1 and after 9999, and texts that are not UTF-8.
    """
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError):
        return [_value(scalar) for scalar in column]


def _value(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        pass
    of = scalar.type
    if pa.types.is_date32(of):
        return format_day(scalar.value)
    if pa.types.is_timestamp(of):
        return format_any_time(scalar.value * 1_000 // _UNITS_A_SECOND[of.unit])
    if pa.types.is_string(of) or pa.types.is_large_string(of):
        return scalar.as_buffer().to_pybytes().decode(errors="replace")
    if pa.types.is_struct(of):
        return {field.name: _value(scalar[at]) for at, field in enumerate(of)}
    if pa.types.is_map(of):
        return [(_value(entry[0]), _value(entry[1])) for entry in scalar.values]
    return [_value(one) for one in scalar.values]  # of a list


def _bounded(source: RowSource) -> Iterator[pa.RecordBatch]:
    for batch in source.to_batches():
        yield from pieces(batch, CHUNK_BYTES, ROWS_PER_CHUNK)


class _Sink(io.RawIOBase):
    """Keeps the bytes of a file until they are taken."""

    def __init__(self) -> None:
        super().__init__()
        self._written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes, /) -> int:  # type: ignore[override]  # pyarrow writes bytes
        self._written += data
        return len(data)

    def take(self) -> bytes:
        taken, self._written = bytes(self._written), bytearray()
        return taken


def _parquet(source: RowSource) -> Iterator[bytes]:
    """Yield a file of Parquet, a row group at a time."""
    sink = _Sink()
    with pq.ParquetWriter(sink, source.schema, compression="zstd") as writer:
        group: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        for batch in _bounded(source):
            group.append(batch)
            rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
            if rows >= GROUP_ROWS or size_bytes >= GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(group, source.schema))
                group, rows, size_bytes = [], 0, 0
                yield sink.take()
        if group:
            writer.write_table(pa.Table.from_batches(group, source.schema))
    yield sink.take()


def _arrow(source: RowSource) -> Iterator[bytes]:
    """Yield a stream of Arrow's IPC format, a batch at a time."""
    sink = _Sink()
    with pa.ipc.new_stream(sink, source.schema) as writer:
        yield sink.take()
        for batch in _bounded(source):
            writer.write_batch(batch)
            yield sink.take()
    yield sink.take()


def _csv(source: RowSource, heading: list[list[str]]) -> Iterator[bytes]:
    if heading:
        yield _csv_text(heading)
    for rows in _chunks(source, [], as_objects=False):
        yield _csv_text([[_csv_cell(cell) for cell in row] for row in rows])  # type: ignore[attr-defined]
    yield b"\n"


def _csv_text(rows: list[list[str]]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue().encode()


def _csv_cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    plain = plain_value(value) if not isinstance(value, list | dict) else value
    if isinstance(plain, str):
        return plain
    return orjson.dumps(plain, default=plain_value, option=_JSON_OPTIONS).decode()


def plain_value(value: object) -> object:
    """Return a value's JSON representation, for values without their own."""
    if isinstance(value, dt.datetime):
        in_utc = value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
        return in_utc.isoformat(timespec="milliseconds") + "Z"
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)
