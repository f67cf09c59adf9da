"""Conversion of text columns with times in a Joda pattern to epoch milliseconds. Pure.

Texts with all digits of the pattern are converted together, as a table of bytes; the others with
`TimePattern.parse`, once for each distinct text. Invariant: both methods return the same time, or
no time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from penstock.core.time_patterns import TimePattern

Numbers = npt.NDArray[np.int64]
Truths = npt.NDArray[np.bool_]
Layout = tuple[tuple[str, int | bytes], ...]

_ZERO: Final = np.uint8(ord("0"))
_MILLI_DIGITS: Final = 3


def by_pattern(column: pa.StringArray, pattern: TimePattern) -> pa.Array:
    """Return epoch milliseconds; null where the text is null or empty.

    Raises:
        InvalidRequest: A text does not match the pattern, or is not a valid time.
        UnicodeDecodeError: A text is not UTF-8.
    """
    lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    millis = np.zeros(len(column), np.int64)
    left = lengths > 0
    if pattern.layout is not None:
        width = sum(part if isinstance(part, int) else len(part) for _, part in pattern.layout)
        places = np.flatnonzero(lengths == width)
        if len(places):
            found, right = _fixed(_table(column.take(pa.array(places)), width), pattern.layout)
            millis[places[right]] = found[right]
            left[places[right]] = False
    if left.any():
        millis[left] = _each(column.filter(pa.array(left)), pattern)
    return pa.array(millis, mask=lengths == 0)


def _each(column: pa.StringArray, pattern: TimePattern) -> Numbers:
    texts = column.dictionary_encode()
    found = np.array([pattern.parse(text) for text in texts.dictionary.to_pylist()], np.int64)
    times: Numbers = found[texts.indices.to_numpy()]
    return times


def _table(column: pa.StringArray, width: int) -> npt.NDArray[np.uint8]:
    """Return texts that all have `width` bytes as a table with one row for each."""
    _, offsets, data = column.buffers()
    first = int(np.frombuffer(offsets, np.int32)[column.offset])
    return np.frombuffer(data, np.uint8, len(column) * width, first).reshape(-1, width)


def _fixed(table: npt.NDArray[np.uint8], layout: Layout) -> tuple[Numbers, Truths]:
    """Return the times of texts that have all digits, and which of them are valid."""
    right = np.ones(len(table), np.bool_)
    fields: dict[str, Numbers] = {}
    # Transposed, so that the same digit of all texts is contiguous.
    table = np.ascontiguousarray(table.T)
    at = 0
    for name, part in layout:
        if isinstance(part, bytes):
            for place, byte in enumerate(part, at):
                right &= table[place] == byte
            at += len(part)
            continue
        value = np.zeros(table.shape[1], np.int32)
        for place in range(at, at + part):
            digit = table[place] - _ZERO  # Bytes below "0" wrap around to more than 9.
            right &= digit <= 9
            value *= 10
            value += digit
        number = value.astype(np.int64)
        fields[name] = number if name != "fraction" else _as_millis(number, part)
        at += part
    return _instants(fields, right)


def _as_millis(fraction: Numbers, digits: int) -> Numbers:
    """Return parts of a second as milliseconds; finer digits are cut off."""
    scale = np.int64(10 ** abs(digits - _MILLI_DIGITS))
    return fraction // scale if digits > _MILLI_DIGITS else fraction * scale


def _instants(fields: Mapping[str, Numbers], right: Truths) -> tuple[Numbers, Truths]:
    one, zero = np.ones(1, np.int64), np.zeros(1, np.int64)
    year, month, day = fields["year"], fields.get("month", one), fields.get("day", one)
    hour, minute = fields.get("hour", zero), fields.get("minute", zero)
    second = fields.get("second", zero)
    months = (year - 1970) * 12 + month - 1
    first, following = _first_day(months), _first_day(months + 1)
    days = first + day - 1
    right = right & (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (days < following)
    right &= (hour <= 23) & (minute <= 59) & (second <= 59)
    in_day = hour * HOUR_MS + minute * MINUTE_MS + second * SECOND_MS
    return days * DAY_MS + in_day + fields.get("fraction", zero), right


def _first_day(months: Numbers) -> Numbers:
    """Return the days since 1970 of the first days of months, which are counted from then on."""
    return months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
