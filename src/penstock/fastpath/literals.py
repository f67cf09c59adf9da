"""Values that are written in a statement, with the types that Spark gives to them. Pure.

What Spark reads in more ways than these is not compiled: a time without hours, a number with an
exponent and a suffix. Source: the page "Literals" of Spark's SQL reference.
"""

from __future__ import annotations

import calendar
import datetime as dt
import math
import re
from dataclasses import replace
from decimal import Decimal
from typing import Final

from penstock.core.sql import tree
from penstock.fastpath.compiled_query import NotCompiled
from penstock.fastpath.fragments import (
    INT_MAX,
    LONG_MAX,
    VOID,
    DecimalType,
    Fragment,
    constant,
)

_NUMBER: Final = re.compile(
    r"([0-9]+)(L?)|([0-9]*\.[0-9]*|[0-9]+)(?:(D)|(E[+-]?[0-9]+))?", re.IGNORECASE
)
_TIME: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[ T]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6}))?)?(Z|\+00:00)?)?"
)
_EPOCH: Final = dt.date(1970, 1, 1)
_DAY_US: Final = 86_400_000_000
_DECIMAL_DIGITS_MAX: Final = 30
_LONG_DIGITS_MAX: Final = len(str(LONG_MAX))
# Java and Python write the same digits between these.
_PLAIN_MIN, _PLAIN_MAX = 1e-3, 1e7
_UNITS_US: Final = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": _DAY_US,
    "WEEK": 7 * _DAY_US,
}
_UNITS_OF_DAY_US: Final = {
    unit.lower(): _UNITS_US[unit] for unit in ("SECOND", "MINUTE", "HOUR", "DAY")
}
_UNITS_MONTHS: Final = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_MONTHS_MAX: Final = 120_000
_INTEGER: Final = re.compile(r"-?[0-9]{1,9}")


def number(text: str, *, is_negative: bool = False) -> Fragment:
    """Return a number as written.

    Raises:
        NotCompiled: It has a suffix or a size that is not covered.
    """
    matched = _NUMBER.fullmatch(text)
    if matched is None:
        raise NotCompiled("number")
    sign = "-" if is_negative else ""
    digits, long, fraction, double, exponent = matched.groups()
    if digits is not None:
        if len(digits.lstrip("0")) > _LONG_DIGITS_MAX:
            raise NotCompiled("number")  # Python converts no number of 4,301 digits
        value = int(sign + (digits.lstrip("0") or "0"))
        type_ = "int" if -INT_MAX - 1 <= value <= INT_MAX and not long else "bigint"
        if not -LONG_MAX - 1 <= value <= LONG_MAX:
            raise NotCompiled("number")
        return replace(constant(value, type_, str(value)), is_literal=True)
    if not fraction.strip("."):
        raise NotCompiled("number")
    if double or exponent:
        real = float(f"{sign}{fraction}{exponent or ''}")
        if not math.isfinite(real):
            raise NotCompiled("number")
        return constant(real, "double", _double_name(real))
    exact = Decimal(f"{sign}{fraction}")
    exact = exact or abs(exact)  # Spark's decimals have no negative zero
    _, shown, scale = exact.as_tuple()
    if not isinstance(scale, int) or max(len(shown), -scale) > _DECIMAL_DIGITS_MAX:
        raise NotCompiled("number")
    type_ = DecimalType(max(len(shown), -scale), -scale).text
    # Spark writes small ones with an exponent.
    return constant(exact, type_, str(exact) if "E" not in str(exact) else "")


def text(value: str | None) -> Fragment:
    """Return a text.

    Raises:
        NotCompiled: It has escapes, or characters that are not covered.
    """
    if value is None:
        raise NotCompiled("text with escapes")
    if "\0" in value or any("\ud800" <= one <= "\udfff" for one in value):
        raise NotCompiled("text")
    return constant(value, "string", value)


def null() -> Fragment:
    """Return NULL."""
    return Fragment("NULL", VOID, name="NULL")


def time(value: str | None) -> Fragment:
    """Return a time that is written as a text, in UTC.

    Raises:
        NotCompiled: It is written in another way than covered.
    """
    matched = _TIME.fullmatch(value or "")
    if matched is None:
        raise NotCompiled("time as text")
    day, hour, minute, second, fraction, _ = matched.groups()
    try:
        of_day = dt.time(int(hour or 0), int(minute or 0), int(second or 0))
        days = _days(day)
    except ValueError:
        raise NotCompiled("time as text") from None
    seconds = of_day.hour * 3600 + of_day.minute * 60 + of_day.second
    us = days * _DAY_US + seconds * 1_000_000 + int((fraction or "").ljust(6, "0"))
    return constant(us, "timestamp")


def date(value: str | None) -> Fragment:
    """Return a date that is written as a text.

    Raises:
        NotCompiled: It is written in another way than covered.
    """
    matched = _TIME.fullmatch(value or "")
    if matched is None or matched.group(2) is not None:
        raise NotCompiled("date as text")
    try:
        return constant(_days(matched.group(1)), "date", f"DATE '{value}'")
    except ValueError:
        raise NotCompiled("date as text") from None


def _days(day: str) -> int:
    return (dt.date.fromisoformat(day) - _EPOCH).days


def parameter(value: object) -> Fragment:
    """Return the value of a parameter, with the type that Spark's client gives to it.

    Raises:
        NotCompiled: It is not covered.
    """
    match value:
        case None:
            return null()
        case bool():
            return constant(value, "boolean")
        case int():
            is_int = -INT_MAX - 1 <= value <= INT_MAX
            return replace(constant(value, "int" if is_int else "bigint"), is_literal=True)
        case float():
            return constant(value, "double")
        case str():
            return text(value)
        case dt.datetime():
            if value.tzinfo is None or value.utcoffset() != dt.timedelta():
                raise NotCompiled("parameter")
            since = value - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
            return constant(since // dt.timedelta(microseconds=1), "timestamp")
        case dt.date():
            return constant((value - _EPOCH).days, "date")
        case _:
            raise NotCompiled("parameter")


def interval_of(node: tree.Interval) -> tuple[int, int]:
    """Return the months and the microseconds of an interval of one unit.

    Raises:
        NotCompiled: It is another one.
    """
    if len(node.values) != 1 or len(node.units) != 1 or node.to:
        raise NotCompiled("interval")
    name = node.units[0].removesuffix("S")
    value, sign = node.values[0], 1
    if isinstance(value, tree.Unary) and value.operator == "-":
        value, sign = value.operand, -1
    written = ""
    if isinstance(value, tree.Number):
        written = value.text
    elif isinstance(value, tree.Text):
        written = value.value or ""
    if not _INTEGER.fullmatch(written):
        raise NotCompiled("interval")
    number = sign * int(written)
    if name in _UNITS_MONTHS:
        months = number * _UNITS_MONTHS[name]
        if abs(months) > _MONTHS_MAX:
            raise NotCompiled("interval")
        return months, 0
    if name not in _UNITS_US:
        raise NotCompiled("interval")
    return 0, number * _UNITS_US[name]


def months_later(us: int, months: int) -> int:
    """Return a time some months later, on the last day of a month that is too short.

    Raises:
        NotCompiled: It is out of the years that Python knows.
    """
    time = _datetime(us)
    year, month = divmod(time.year * 12 + time.month - 1 + months, 12)
    if not dt.MINYEAR <= year <= dt.MAXYEAR:
        raise NotCompiled("interval")
    day = min(time.day, calendar.monthrange(year, month + 1)[1])
    return _us(time.replace(year=year, month=month + 1, day=day))


def truncated(us: int, unit: str) -> int:
    """Return the start of the unit, from `second` to `year`, in which a time is.

    Raises:
        NotCompiled: It is out of the years that Python knows.
    """
    if unit in _UNITS_OF_DAY_US:
        return us - us % _UNITS_OF_DAY_US[unit]
    time = _datetime(us - us % _DAY_US)
    if unit == "week":
        return _us(time) - time.weekday() * _DAY_US
    months = {"month": time.month, "quarter": time.month - (time.month - 1) % 3, "year": 1}
    return _us(time.replace(month=months[unit], day=1))


def _datetime(us: int) -> dt.datetime:
    try:
        return dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=us)  # noqa: DTZ001 - in UTC
    except OverflowError:
        raise NotCompiled("time out of range") from None


def _us(time: dt.datetime) -> int:
    return (time - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)  # noqa: DTZ001


def _double_name(value: float) -> str:
    is_plain = value == 0 or _PLAIN_MIN <= abs(value) < _PLAIN_MAX
    return repr(value) if is_plain else ""
