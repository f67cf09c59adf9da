"""Times in Arrow columns: conversion of all formats to epoch milliseconds.

Owns the conversion of whole columns, and the check that a time is within the calendar. Pure.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import InvalidRequest
from penstock.core.instants import END_OF_TIME_MS, START_OF_TIME_MS
from penstock.core.time_patterns import TimePattern
from penstock.spark.topic.pattern_times import by_pattern
from penstock.spark.topic.row_shape import TIME_TYPE, TimeField, TimeFormat

WHOLE: Final = "^-?[0-9]+$"
# Arrow units per JSON number: multiply by the first, then divide by the second to get milliseconds.
_TO_MILLIS: Final = {
    TimeFormat.AUTO: (1, 1),
    TimeFormat.MILLIS: (1, 1),
    TimeFormat.POSIX: (1000, 1),
    TimeFormat.MICRO: (1, 1000),
    TimeFormat.NANO: (1, 1_000_000),
}


class NotCleanError(Exception):
    """The batch cannot be converted as a whole."""


def to_millis(column: pa.Array, format_: TimeFormat | TimePattern) -> pa.Array:
    """Return epoch milliseconds, rounded down; null if there is no time.

    Raises:
        NotCleanError: A value does not have the format.
    """
    if column.type == TIME_TYPE:
        return _floor_divide(column.cast(pa.int64()), 1000)
    if isinstance(format_, TimePattern):
        return _by_pattern(column, format_)
    if column.type == pa.string():
        return to_millis(_parsed_times(column, format_), format_)
    if column.type != pa.int64() or format_ is TimeFormat.ISO:
        raise NotCleanError
    multiply, divide = _TO_MILLIS[format_]
    if multiply > 1:
        try:
            column = pc.multiply_checked(column, multiply)
        except pa.ArrowInvalid:
            raise NotCleanError from None
    return column if divide == 1 else _floor_divide(column, divide)


def check_times(millis: pa.Array, time: TimeField) -> tuple[pa.Array, tuple[tuple[int, str], ...]]:
    """Return which rows have a time within the calendar, and (index, reason) of the others.

    A row without a time is valid if the time is optional.
    """
    inside = pc.and_(
        pc.greater_equal(millis, START_OF_TIME_MS), pc.less(millis, END_OF_TIME_MS)
    ).fill_null(time.optional)
    if pc.all(inside).as_py():
        return inside, ()
    outside = np.flatnonzero(~inside.to_numpy(zero_copy_only=False))
    bad = []
    for index in outside.tolist():
        value = millis[index].as_py()
        reason = (
            time.why_none
            if value is None
            else f"time in field {time.name!r} is outside the years 0001 to 9999:"
            f" check that its unit is {time.format}"
        )
        bad.append((index, reason))
    return inside, tuple(bad)


def as_times(millis: pa.Array) -> pa.Array:
    """Return epoch milliseconds as the time column."""
    return pc.multiply(millis, 1000).cast(pa.timestamp("us")).cast(TIME_TYPE)


def all_match(column: pa.Array, pattern: str) -> bool:
    """Return whether each text that is not null matches."""
    return pc.all(pc.match_substring_regex(column, pattern)).as_py() is not False


def _by_pattern(column: pa.Array, pattern: TimePattern) -> pa.Array:
    if column.type == pa.int64():
        column = column.cast(
            pa.string()
        )  # Numbers as digits, because yyyyMMdd is often sent as one.
    if column.type != pa.string():
        raise NotCleanError
    try:
        return by_pattern(column, pattern)
    except (InvalidRequest, UnicodeDecodeError):
        raise NotCleanError from None


def _parsed_times(column: pa.Array, format_: TimeFormat) -> pa.Array:
    iso = format_ in {TimeFormat.ISO, TimeFormat.AUTO}
    if not iso and not all_match(column, WHOLE):
        raise NotCleanError
    for type_ in (TIME_TYPE, pa.timestamp("us")) if iso else (pa.int64(),):
        try:
            parsed = column.cast(type_)
        except pa.ArrowInvalid:
            continue
        return parsed.cast(TIME_TYPE) if iso else parsed
    if format_ is TimeFormat.AUTO and all_match(column, WHOLE):
        return _parsed_times(column, TimeFormat.MILLIS)  # Digits, as in delimited text.
    raise NotCleanError


def _floor_divide(column: pa.Array, by: int) -> pa.Array:
    """Divide and round down, so that times before 1970 are truncated like later ones."""
    values = np.frombuffer(column.buffers()[1], np.int64)[
        column.offset : column.offset + len(column)
    ]
    return pa.Array.from_buffers(
        pa.int64(),
        len(column),
        [_validity(column), pa.py_buffer(np.floor_divide(values, by))],
        column.null_count,
    )


def _validity(column: pa.Array) -> pa.Buffer | None:
    if not column.null_count:
        return None
    return pc.is_valid(column).buffers()[1]
