"""Convert one JSON message to typed values, or report the reason why it is bad.

This module defines the meaning of a message; the batch parser (`parse`) must return the same, but
faster. It handles the few messages that a clean batch does not have, so it favours clear reasons
over speed.

Conversion of a JSON value:

    string    text unchanged; numbers and booleans as their JSON text; lists and objects as JSON
    bigint    whole numbers within 64 bits, also as text or with a zero fraction; booleans as 1, 0
    double    numbers, also as text; booleans as 1, 0 (float: rounded to 32 bits)
    boolean   true and false, also as text
    array     lists of these; any other value as a list of one

Null, a missing field and, except for strings, empty text become null. If a key occurs twice, its
last value counts. Everything else makes the message bad: nothing is replaced or dropped silently.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

import orjson

from penstock.core.errors import InvalidRequest
from penstock.core.instants import END_OF_TIME_MS, START_OF_TIME_MS, parse_time
from penstock.core.json_structure import count_keys
from penstock.core.time_patterns import TimePattern
from penstock.spark.topic.row_shape import FieldType, RowShape, TimeField, TimeFormat

Json = str | int | float | bool | Sequence["Json"] | Mapping[str, "Json"] | None
Value = str | int | float | bool | Sequence["Value"] | None

KEYS_MAX: Final = 1_000_000
"""Maximum number of keys of a message, including those of nested objects."""
KEYS_BYTES_MIN: Final = 5 * KEYS_MAX
"""No shorter message has more than `KEYS_MAX` keys: each takes at least `"":1,`."""
DEPTH_MAX: Final = 1_024
"""Maximum number of arrays and objects of a message that are open at once: the limit of orjson."""

# orjson's message if an allocation fails, which does not show that the text is wrong.
_NO_MEMORY: Final = "Not enough memory"
_WHOLE: Final = re.compile(r"[+-]?\d+(?:\.0*)?", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_LONG_MIN: Final = -(2**63)
_LONG_MAX: Final = 2**63 - 1
_LONG_DIGITS_MAX: Final = len(str(_LONG_MAX))
# Conversion of each unit to milliseconds, as (multiply, divide).
_UNITS: Final = {
    TimeFormat.POSIX: (1000, 1),
    TimeFormat.AUTO: (1, 1),
    TimeFormat.MILLIS: (1, 1),
    TimeFormat.MICRO: (1, 1000),
    TimeFormat.NANO: (1, 1_000_000),
}
_SHOWN: Final = 60


class UnparseableError(Exception):
    """The message cannot become a row; the reason names the field and the problem."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def row_of(message: bytes, shape: RowShape) -> list[Value]:
    """Return the values of the row: the time in epoch milliseconds first, if the shape has one.

    Raises:
        UnparseableError: The message is not a JSON object, or a value does not fit its field.
    """
    if not message:
        raise UnparseableError("not JSON but empty: in Kafka, a record without a value")
    return row_of_object(object_of(message), shape)


def object_of(message: bytes) -> Mapping[str, Json]:
    """Parse a message as a JSON object.

    Raises:
        UnparseableError: The message is not an object.
    """
    if has_too_many_keys(message):
        raise UnparseableError(f"more than {KEYS_MAX:,} keys")
    try:
        value = loads(message)
    except orjson.JSONDecodeError as error:
        raise UnparseableError(f"not JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise UnparseableError(f"not a JSON object but {_kind(value)}")
    return value


def loads(message: bytes) -> Json:
    """Parse a message.

    Raises:
        orjson.JSONDecodeError: It is not JSON.
        MemoryError: An allocation failed, which orjson reports as an error of the text.
    """
    try:
        value: Json = orjson.loads(message)
    except orjson.JSONDecodeError as error:  # narrow: restores nothing
        if error.msg.startswith(_NO_MEMORY):
            raise MemoryError from None
        raise
    return value


def has_too_many_keys(message: bytes) -> bool:
    """Return whether objects of a message have more than `KEYS_MAX` keys together."""
    return len(message) >= KEYS_BYTES_MIN and count_keys(message) > KEYS_MAX


def row_of_object(value: Mapping[str, Json], shape: RowShape) -> list[Value]:
    """Return the values of the row for an object; see `row_of`.

    Raises:
        UnparseableError: A value does not fit its field.
    """
    row: list[Value] = []
    if shape.time is not None:
        row.append(_time_of(value.get(shape.time.name), shape.time))
    row.extend(_coerce(value.get(name), name, type_) for name, type_ in shape.fields)
    return row


def _coerce(value: Json, name: str, type_: FieldType) -> Value:
    if value is None:
        return None
    if type_ is FieldType.STRING:
        return text_of(value, name)
    if type_.of_values is not None:
        values = value if isinstance(value, list) else [value]
        return [_coerce(one, name, type_.of_values) for one in values]
    if value == "":
        return None
    match type_:
        case FieldType.LONG:
            found: Value = _whole(value)
        case FieldType.DOUBLE | FieldType.FLOAT:
            found = _decimal(value)
        case FieldType.BOOLEAN:
            found = _boolean(value)
        case FieldType.BINARY:
            found = None
    if found is None:
        raise UnparseableError(f"field {name!r}: {_show(value)} is not a {type_.spec_name}")
    return found


def number_text(value: float) -> str:
    """Return a number as in JSON; numbers that JSON lacks are named as in Java."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return orjson.dumps(value).decode()


def text_of(value: Json, name: str) -> str:
    """Return the text of a value other than null.

    Raises:
        UnparseableError: The value is nested too deeply; `name` is its field.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return number_text(value)
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        # The reader accepts four times the nesting depth of the writer.
        raise UnparseableError(
            f"field {name!r}: {_show(value)} cannot be converted to text"
        ) from None


def _whole(value: Json) -> int | None:
    number: int
    if isinstance(value, int):  # includes booleans
        number = int(value)
    elif isinstance(value, float):
        if not value.is_integer():
            return None
        number = int(value)
    elif isinstance(value, str) and _WHOLE.fullmatch(value):
        digits = value.partition(".")[0].lstrip("+-").lstrip("0")
        if len(digits) > _LONG_DIGITS_MAX:
            return None  # Python refuses numbers of some thousand digits.
        number = int(digits or "0") * (-1 if value.startswith("-") else 1)
    else:
        return None
    return number if _LONG_MIN <= number <= _LONG_MAX else None


def _decimal(value: Json) -> float | None:
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        number = float(value)
        return number if math.isfinite(number) else None
    return None


def _boolean(value: Json) -> bool | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower())
    return None


def _time_of(value: Json, time: TimeField) -> int | None:
    if value is None or value == "":
        if time.missing_ms is None and not time.optional:
            raise UnparseableError(time.why_none)
        return time.missing_ms
    ms = _instant(value, time)
    if not START_OF_TIME_MS <= ms < END_OF_TIME_MS:
        raise UnparseableError(
            f"time {_show(value)} in field {time.name!r} is outside the years 0001 to 9999:"
            f" check that its unit is {time.format}"
        )
    return ms


def _instant(value: Json, time: TimeField) -> int:
    if isinstance(time.format, TimePattern):
        return _by_pattern(value, time.name, time.format)
    is_text = isinstance(value, str)
    if is_text and (time.format is TimeFormat.ISO or not _WHOLE.fullmatch(str(value))):
        if time.format in {TimeFormat.ISO, TimeFormat.AUTO}:
            try:
                return parse_time(str(value))
            except InvalidRequest as error:
                raise UnparseableError(
                    f"time in field {time.name!r}: {error}; for another format, set"
                    " timestampSpec.format"
                ) from None
    elif time.format is not TimeFormat.ISO and not isinstance(value, bool):
        multiply, divide = _UNITS[time.format]
        if isinstance(value, float):
            ms = value * multiply / divide
            if math.isfinite(ms):
                return math.floor(ms)
        elif (number := _whole(value)) is not None:
            return number * multiply // divide
    raise UnparseableError(
        f"time in field {time.name!r}: {_show(value)} does not have the format {time.format}"
    )


def _by_pattern(value: Json, name: str, pattern: TimePattern) -> int:
    """Read a time; a whole number is read as its digits, because yyyyMMdd is often sent as one."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UnparseableError(
            f"time in field {name!r}: {_show(value)} does not have the format {pattern}"
        )
    try:
        return pattern.parse(str(value))
    except InvalidRequest as error:
        raise UnparseableError(f"time in field {name!r}: {error}") from None


def _kind(value: Json) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a string"
    return "a number" if isinstance(value, int | float) else "a list"


def _show(value: Json) -> str:
    try:
        text = orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return "a value that is nested too deeply"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
