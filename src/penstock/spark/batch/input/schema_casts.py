"""Casts columns of any Arrow type to the columns of a row shape. Pure.

Owns the conversion of values that have a type already: numbers and texts as in
`spark.topic.coerce`, times as ISO text or epoch milliseconds, nested values as JSON text. Whole
columns are cast; if one value of a batch does not fit, the batch is converted row by row, so that
the other rows are kept.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, cast

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.topic.arrow_times import NotCleanError, as_times, check_times, to_millis
from penstock.spark.topic.coerce import Json, UnparseableError, Value, number_text, row_of_object
from penstock.spark.topic.row_shape import TIME_COLUMN, TIME_TYPE, FieldType, RowShape, TimeFormat

Bad = tuple[tuple[int, str], ...]

_INT64: Final = (-(2**63), 2**63 - 1)
_NUMBERS: Final = frozenset({FieldType.LONG, FieldType.DOUBLE, FieldType.FLOAT})


def empty_rows(shape: RowShape) -> pa.RecordBatch:
    """Return no rows of the shape."""
    schema = shape.arrow_schema
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def conformed(
    batch: pa.RecordBatch, shape: RowShape, *, binary_as_string: bool = False
) -> tuple[pa.RecordBatch, Bad]:
    """Return the rows of the shape, and (index, reason) of rows that cannot be converted."""
    try:
        return _as_a_whole(batch, shape, binary_as_string=binary_as_string)
    except (NotCleanError, OverflowError):
        names = set(batch.schema.names)
        wanted = [name for name, _ in shape.fields if name in names]
        if shape.time is not None and shape.time.name in names:
            wanted.append(shape.time.name)
        names_once = list(dict.fromkeys(wanted))
        numbers = {name for name, type_ in shape.fields if type_ in _NUMBERS}
        read = [
            _in_millis(column) if name in numbers else column
            for name in names_once
            for column in (_decoded(batch.column(name)),)
        ]
        # Without columns Arrow forgets how many rows there are.
        objects = _objects(read, names_once) if read else [{}] * batch.num_rows
        return rows_of_objects(objects, _as_plain(shape, batch.schema, numbers))


def _objects(
    columns: Sequence[pa.Array], names: Sequence[str]
) -> Sequence[Mapping[str, Json] | str]:
    """Return rows with JSON values, or a reason: a time may be outside the supported calendar."""
    rows = pa.RecordBatch.from_arrays(columns, names=names)
    try:
        return [{n: _plain(value) for n, value in row.items()} for row in rows.to_pylist()]
    except OverflowError:
        if rows.num_rows == 1:
            return ["a value is a time outside the years 0001 to 9999"]
    middle = rows.num_rows // 2
    parts = (rows.slice(0, middle), rows.slice(middle))
    return [row for part in parts for row in _objects(part.columns, names)]


def rows_of_objects(
    objects: Sequence[Mapping[str, Json] | str], shape: RowShape
) -> tuple[pa.RecordBatch, Bad]:
    """Return the row of each object, or the reason why it has no row."""
    rows: list[list[Value]] = []
    bad: list[tuple[int, str]] = []
    for index, value in enumerate(objects):
        if isinstance(value, str):
            bad.append((index, value))
            continue
        try:
            rows.append(row_of_object(value, shape))
        except UnparseableError as error:
            bad.append((index, error.reason))
    columns: list[pa.Array] = []
    for at, field in enumerate(shape.arrow_schema):
        values = [row[at] for row in rows]
        if field.name == TIME_COLUMN and shape.time is not None:
            columns.append(as_times(pa.array(values, pa.int64())))
        elif field.type == pa.float32():
            columns.append(pa.array(values, pa.float64()).cast(field.type))
        else:
            columns.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=shape.arrow_schema), tuple(bad)


def _as_a_whole(
    batch: pa.RecordBatch, shape: RowShape, *, binary_as_string: bool
) -> tuple[pa.RecordBatch, Bad]:
    columns: list[pa.Array] = []
    keep: pa.Array | None = None
    bad: Bad = ()
    names = set(batch.schema.names)
    if shape.time is not None:
        column = batch.column(shape.time.name) if shape.time.name in names else None
        millis = _times(column, batch.num_rows, shape)
        keep, bad = check_times(millis, shape.time)
        columns.append(as_times(millis))
    for name, type_ in shape.fields:
        if name in names:
            columns.append(_cast(batch.column(name), type_, binary_as_string=binary_as_string))
        else:
            columns.append(pa.nulls(batch.num_rows, type_.arrow))
    rows = pa.RecordBatch.from_arrays(columns, schema=shape.arrow_schema)
    return (rows.filter(keep) if bad else rows), bad


def _as_plain(shape: RowShape, schema: pa.Schema, numbers: Collection[str]) -> RowShape:
    """Return the shape for rows of `_plain`, in which typed times are ISO text.

    Times that are also requested as `numbers` are milliseconds.
    """
    if shape.time is None or shape.time.name not in schema.names:
        return shape
    kind = schema.field(shape.time.name).type
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        return shape
    is_number = pa.types.is_timestamp(kind) and shape.time.name in numbers
    format_ = TimeFormat.MILLIS if is_number else TimeFormat.ISO
    return replace(shape, time=replace(shape.time, format=format_))


def _times(column: pa.Array | None, count: int, shape: RowShape) -> pa.Array:
    assert shape.time is not None
    if column is None:
        millis = pa.nulls(count, pa.int64())
    else:
        column = _decoded(column)
        kind = column.type
        try:
            if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
                if (pa.types.is_timestamp(kind) and kind.tz is None) or pa.types.is_date(kind):
                    column = column.cast(pa.timestamp("us"))
                column = column.cast(TIME_TYPE, safe=False)
            elif pa.types.is_integer(kind):
                column = column.cast(pa.int64())
        except pa.ArrowInvalid:
            raise NotCleanError from None
        millis = to_millis(column, shape.time.format)
    if shape.time.missing_ms is not None:
        millis = pc.fill_null(millis, shape.time.missing_ms)
    return millis


def _decoded(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        return column.cast(pa.string())
    # Python has no nanoseconds, and no code here needs them.
    known = _in_micros(column.type)
    return column if known == column.type else column.cast(known, safe=False)


def _in_micros(kind: pa.DataType) -> pa.DataType:
    """Return the type with microseconds instead of nanoseconds, including nested types."""
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if pa.types.is_dictionary(kind):
        known = _in_micros(kind.value_type)
        return kind if known == kind.value_type else known
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_micros(field.type)) for field in kind.fields])
    if pa.types.is_map(kind):
        inside = _in_micros(kind.key_type), _in_micros(kind.item_type)
        return kind if inside == (kind.key_type, kind.item_type) else pa.map_(*inside)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_micros(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_in_micros(kind.value_type)))
    if pa.types.is_fixed_size_list(kind):
        inner = kind.value_field.with_type(_in_micros(kind.value_type))
        return pa.list_(inner, kind.list_size)
    return kind


def _cast(column: pa.Array, type_: FieldType, *, binary_as_string: bool) -> pa.Array:
    column = _decoded(column)
    kind = column.type
    if kind == type_.arrow:
        return column
    if pa.types.is_null(kind):
        return pa.nulls(len(column), type_.arrow)
    if type_.of_values is not None:
        raise NotCleanError
    if pa.types.is_nested(kind):
        if type_ is not FieldType.STRING:
            raise NotCleanError
        try:
            return pa.array([_json(value) for value in column.to_pylist()], pa.string())
        except orjson.JSONEncodeError:
            raise NotCleanError from None  # such as a duration: only its row is bad
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        if not binary_as_string:
            texts = [None if v is None else _plain(v) for v in column.to_pylist()]
            return _cast(pa.array(texts, pa.string()), type_, binary_as_string=False)
        return _cast(_tried(column, pa.string()), type_, binary_as_string=False)
    if pa.types.is_timestamp(kind) and type_ is not FieldType.STRING:
        return _cast(_in_millis(column), type_, binary_as_string=False)
    if type_ is FieldType.STRING:
        if pa.types.is_timestamp(kind) or pa.types.is_floating(kind):
            # Arrow writes both in its own forms.
            return pa.array([_text(value) for value in column.to_pylist()], pa.string())
        return _tried(column, pa.string())
    if pa.types.is_string(kind):
        # `coerce` decides about texts that are numbers in other forms than Arrow's.
        return _tried(column, type_.arrow)
    if pa.types.is_decimal(kind) and type_ is not FieldType.LONG:
        return _tried(column, pa.float64()).cast(type_.arrow)
    if type_ in {FieldType.DOUBLE, FieldType.FLOAT} and not pa.types.is_boolean(kind):
        return column.cast(type_.arrow, safe=False)
    return _tried(column, type_.arrow)


def _in_millis(column: pa.Array) -> pa.Array:
    """Return times as numbers of milliseconds, for columns that are not text."""
    if not pa.types.is_timestamp(column.type):
        return column
    return column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())


def _tried(column: pa.Array, type_: pa.DataType) -> pa.Array:
    try:
        return column.cast(type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise NotCleanError from None


def _plain(value: object) -> Json:
    """Return a Python value as a JSON value."""
    if isinstance(value, bytes):
        # JSON has no bytes: base64, as Druid writes them.
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        return _text(value)
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, int) and not _INT64[0] <= value <= _INT64[1]:
        return str(value)
    return cast("Json", value)


def _text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, dt.datetime):
        whole = value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)
        return whole.isoformat(timespec="milliseconds") + "Z"
    if isinstance(value, float):
        return number_text(value)
    return orjson.dumps(value).decode()


def as_text(value: object) -> str | None:
    """Return a value of Python as the text of a column: nested ones as JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, uuid.UUID):
        return str(value)
    plain = _plain(value)
    if isinstance(plain, float):
        return number_text(plain)
    return plain if isinstance(plain, str) else orjson.dumps(plain).decode()


def _json(value: object) -> str | None:
    return None if value is None else orjson.dumps(_plain(value)).decode()
