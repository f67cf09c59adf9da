"""Converts columns to JSON text, and writes records as JSON lines or as a list.

Owns the JSON form of each type. Works on whole columns, without a loop over records, except for the
few values with control characters and for rare types.

A number that JSON does not support (NaN, infinity) becomes null. A time is ISO 8601, a date
``2026-01-31``, binary is base64, and a decimal is a number.
"""

from __future__ import annotations

import base64
from typing import Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.processors.records.formats.casts import is_text
from penstock.flow.processors.records.formats.format_protocols import (
    BadRecords,
    RecordOutput,
    translated,
)

_TO_ESCAPE: Final = r'["\\\x00-\x1f]'
_CONTROL: Final = r"[\x00-\x1f]"


def json_text(column: pa.Array) -> pa.Array:
    """Return the JSON of each value as text, without nulls.

    Raises:
        BadRecords: JSON does not support this type.
    """
    return pc.fill_null(_values(column), "null")


def json_objects(batch: pa.RecordBatch) -> pa.Array:
    """Return each record as a JSON object.

    Raises:
        BadRecords: JSON does not support the type of a column.
    """
    if not batch.num_columns:
        return pa.array(["{}"] * batch.num_rows, pa.string())
    return _objects(batch.schema.names, batch.columns)


def is_binary(type_: pa.DataType) -> bool:
    """Return whether values of a type are bytes that may not be text."""
    t = pa.types
    return bool(t.is_binary(type_) or t.is_large_binary(type_) or t.is_fixed_size_binary(type_))


def base64_text(column: pa.Array) -> pa.Array:
    """Return bytes as base64 text."""
    values = [None if v is None else base64.b64encode(v).decode() for v in column.to_pylist()]
    return pa.array(values, pa.string())


class JsonLinesWriter:
    """Writer of one object per line.

    Args:
        out: Output for the bytes.
    """

    def __init__(self, out: RecordOutput) -> None:
        self._out = out

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch.

        Raises:
            BadRecords: JSON does not support the type of a column.
        """
        _write_joined(self._out, batch, "\n", "\n")

    def close(self) -> None:
        """Do nothing: lines have no end marker."""


class JsonListWriter:
    """Writer of all objects as one list.

    Args:
        out: Output for the bytes.
    """

    def __init__(self, out: RecordOutput) -> None:
        self._out = out
        self._before = b"["

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch.

        Raises:
            BadRecords: JSON does not support the type of a column.
        """
        if batch.num_rows:
            self._out.write(self._before)
            _write_joined(self._out, batch, ",\n", "")
            self._before = b",\n"

    def close(self) -> None:
        """Close the list."""
        self._out.write(b"[]" if self._before == b"[" else b"]\n")


def _write_joined(out: RecordOutput, batch: pa.RecordBatch, between: str, end: str) -> None:
    if not batch.num_rows:
        return
    with translated("the records cannot be written as JSON"):
        objects = json_objects(batch)
        whole = pa.ListArray.from_arrays(pa.array([0, len(objects)], pa.int32()), objects)
        out.write(pc.binary_join(whole, between)[0].as_buffer())
        if end:
            out.write(end.encode())


def _objects(names: list[str], columns: list[pa.Array]) -> pa.Array:
    parts: list[pa.Array | str] = []
    for number, (name, column) in enumerate(zip(names, columns, strict=True)):
        key = orjson.dumps(name).decode()
        parts += [("{" if not number else ",") + key + ":", json_text(column)]
    return pc.binary_join_element_wise(*parts, "}", "")


def _values(column: pa.Array) -> pa.Array:
    """Return the JSON of each value; null values stay null."""
    type_ = column.type
    types = pa.types
    if is_text(type_) or types.is_string_view(type_):
        return _quoted(column)
    if types.is_integer(type_) or types.is_boolean(type_) or types.is_decimal(type_):
        return pc.cast(column, pa.string())
    if types.is_floating(type_):
        finite = pc.if_else(pc.is_finite(column), column, pa.scalar(None, type_))
        # With a decimal point, so that it is read as the same type again.
        text = pc.cast(finite, pa.string())
        return pc.replace_substring_regex(text, r"^(-?\d+)$", r"\1.0")
    if types.is_timestamp(type_):
        return _times(column)
    if types.is_date(type_) or types.is_time(type_):
        return _in_quotes(pc.cast(column, pa.string()))
    if is_binary(type_):
        return _in_quotes(base64_text(column))
    if types.is_null(type_):
        return pc.cast(column, pa.string())
    if types.is_dictionary(type_):
        return _values(column.dictionary_decode())
    if types.is_struct(type_):
        return _of_struct(column)
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        return _of_list(column)
    return _one_by_one(column)


def _quoted(column: pa.Array) -> pa.Array:
    text = pc.cast(column, pa.string())
    if pc.any(pc.match_substring_regex(text, _TO_ESCAPE)).as_py():
        if pc.any(pc.match_substring_regex(text, _CONTROL)).as_py():
            values = [None if v is None else orjson.dumps(v).decode() for v in text.to_pylist()]
            return pa.array(values, pa.string())
        text = pc.replace_substring(text, "\\", "\\\\")
        text = pc.replace_substring(text, '"', '\\"')
    return _in_quotes(text)


def _in_quotes(text: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', text, '"', "")


def _times(column: pa.Array) -> pa.Array:
    zone = "" if column.type.tz is None else "Z"
    # The text of a time is in UTC.
    naive = pc.cast(column, pa.timestamp(column.type.unit))
    text = pc.replace_substring(pc.cast(naive, pa.string()), " ", "T")
    return pc.binary_join_element_wise('"', text, f'{zone}"', "")


def _of_struct(column: pa.StructArray) -> pa.Array:
    names = [field.name for field in column.type]
    if not names:
        text = pa.array(["{}"] * len(column), pa.string())
    else:
        text = _objects(names, column.flatten())
    return pc.if_else(column.is_valid(), text, pa.scalar(None, pa.string()))


def _of_list(column: pa.Array) -> pa.Array:
    if pa.types.is_fixed_size_list(column.type) or pa.types.is_large_list(column.type):
        column = pc.cast(column, pa.list_(column.type.value_type))
    # `flatten` skips values hidden under null lists; the lengths are those of the visible lists.
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    ends = pc.cumulative_sum(lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cast(ends, pa.int32())])
    items = pa.ListArray.from_arrays(offsets, json_text(column.flatten()))
    text = pc.binary_join_element_wise("[", pc.binary_join(items, ","), "]", "")
    return pc.if_else(column.is_valid(), text, pa.scalar(None, pa.string()))


def _one_by_one(column: pa.Array) -> pa.Array:
    try:
        values = [
            None
            if value is None
            else orjson.dumps(dict(value) if isinstance(value, list) else value).decode()
            for value in column.to_pylist()
        ]
    except (TypeError, ValueError):
        raise BadRecords(
            f"a column of type {column.type} cannot be written as JSON: convert it first"
        ) from None
    return pa.array(values, pa.string())
