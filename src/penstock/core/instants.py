"""Points in time as milliseconds since 1970-01-01T00:00:00Z, and their text.

Owns the calendar: the one place that turns text into milliseconds and back, and the only one that
knows months. The range is the years 1 to 9999 of the proleptic Gregorian calendar in UTC;
`END_OF_TIME_MS`, the first instant of the year 10000, exists as the open end of intervals. Results
of SQL queries may contain other years, which `format_day` and `format_any_time` write.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Final

from penstock.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from penstock.core.errors import InvalidRequest

START_OF_TIME_MS: Final = -62_135_596_800_000
END_OF_TIME_MS: Final = 253_402_300_800_000

_CYCLE_DAYS: Final = 146_097  # of 400 years
_CYCLE_MS: Final = _CYCLE_DAYS * DAY_MS
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_END_OF_TIME: Final = re.compile(r"10000-01-01(?:T00:00(?::00(?:\.000)?)?Z?)?", re.ASCII)
_INSTANT: Final = re.compile(
    r"(?P<year>\d{4})(?:-(?P<month>\d{2})(?:-(?P<day>\d{2})"
    r"(?:[Tt ](?P<hour>\d{2})(?::?(?P<minute>\d{2})"
    r"(?::?(?P<second>\d{2})(?:[.,](?P<fraction>\d{1,9}))?)?)?"
    r"(?P<zone>[Zz]|[+-]\d{2}(?::?\d{2})?)?"
    r")?)?)?",
    re.ASCII,
)


def check_instant(ms: int) -> int:
    """Return the instant if it lies within the calendar.

    Raises:
        InvalidRequest: It lies before year 1 or after year 9999.
    """
    if not START_OF_TIME_MS <= ms <= END_OF_TIME_MS:
        raise InvalidRequest(f"{ms} ms lies outside the years 0001 to 9999: check its unit")
    return ms


def parse_time(text: str) -> int:
    """Return the epoch milliseconds of an ISO 8601 instant.

    Accepts a date (``2013``, ``2013-01``, ``2013-01-31``) with or without a time and a zone;
    without a zone it is UTC. Digits finer than a millisecond are dropped.

    Raises:
        InvalidRequest: The text is not an instant, or lies outside the years 0001 to 9999.
    """
    text = text.strip()
    match = _INSTANT.fullmatch(text)
    if match is None:
        if _END_OF_TIME.fullmatch(text):
            return END_OF_TIME_MS
        raise InvalidRequest(
            f"{text!r} is not an ISO 8601 time: write one such as 2013-01-31T10:00:00.000Z"
        )
    try:
        midnight = _midnight_of(
            int(match["year"]), int(match["month"] or 1), int(match["day"] or 1)
        )
    except ValueError as error:
        raise InvalidRequest(f"{text!r} is not a day of the years 0001 to 9999: {error}") from None
    hour, minute, second = (int(match[unit] or 0) for unit in ("hour", "minute", "second"))
    # 24:00 is ISO 8601 for the end of the day.
    end_of_day = hour == 24 and not minute and not second and not int(match["fraction"] or 0)
    if (hour > 23 and not end_of_day) or minute > 59 or second > 59:
        raise InvalidRequest(f"{text!r} has an invalid time of day: hours end at 23:59:59.999")
    millis = int((match["fraction"] or "0")[:3].ljust(3, "0"))
    in_day = hour * HOUR_MS + minute * MINUTE_MS + second * SECOND_MS + millis
    ms = midnight + in_day - _zone_ms(match["zone"], text)
    if not START_OF_TIME_MS <= ms <= END_OF_TIME_MS:
        raise InvalidRequest(f"{text!r} lies outside the years 0001 to 9999 of UTC")
    return ms


def format_time(ms: int) -> str:
    """Return the instant as ``2013-01-01T00:00:00.000Z``.

    Raises:
        InvalidRequest: It lies outside the years 0001 to 9999.
    """
    if check_instant(ms) == END_OF_TIME_MS:
        return "10000-01-01T00:00:00.000Z"
    days, rest = divmod(ms, DAY_MS)
    hour, rest = divmod(rest, HOUR_MS)
    minute, rest = divmod(rest, MINUTE_MS)
    second, millis = divmod(rest, SECOND_MS)
    day = date.fromordinal(days + _EPOCH_ORDINAL).isoformat()
    return f"{day}T{hour:02d}:{minute:02d}:{second:02d}.{millis:03d}Z"


def format_day(days: int) -> str:
    """Return the day that is `days` days after 1970-01-01 as ``2013-01-31``, in any year.

    Years are written as in Druid: ``10000-01-01``, ``0000-12-31``, ``-0001-01-01``.
    """
    cycles, rest = divmod(days, _CYCLE_DAYS)
    day = date.fromordinal(rest + _EPOCH_ORDINAL)
    year = day.year + 400 * cycles
    sign = "-" if year < 0 else ""
    return f"{sign}{abs(year):04d}-{day.month:02d}-{day.day:02d}"


def format_any_time(ms: int) -> str:
    """Return the instant in the format of `format_time`, in any year."""
    days, in_day = divmod(ms, DAY_MS)
    return format_day(days) + format_time(in_day)[len("1970-01-01") :]


def month_of(ms: int) -> int:
    """Return the number of months from 1970-01 to the month of the instant."""
    if check_instant(ms) == END_OF_TIME_MS:
        return (10_000 - 1970) * 12
    day = date.fromordinal(ms // DAY_MS + _EPOCH_ORDINAL)
    return (day.year - 1970) * 12 + day.month - 1


def start_of_month(month: int) -> int:
    """Return the first instant of a month counted from 1970-01, clipped to the calendar."""
    years, months = divmod(month, 12)
    year = 1970 + years
    if year < 1:
        return START_OF_TIME_MS
    if year > 9999:
        return END_OF_TIME_MS
    return _midnight(date(year, months + 1, 1))


def add_months(ms: int, months: int) -> int:
    """Return the same day and time of day months later; day 31 becomes the month's last day.

    Raises:
        InvalidRequest: The result lies outside the years 0001 to 9999.
    """
    if not months:
        return check_instant(ms)
    month = month_of(ms)
    into_month = ms - start_of_month(month)
    target = month + months
    check_instant((target - 24_000) * 28 * DAY_MS)  # far outside: fail without the calendar
    begin, following = start_of_month(target), start_of_month(target + 1)
    if begin == following:
        if begin == END_OF_TIME_MS and month_of(END_OF_TIME_MS) == target and not into_month:
            return END_OF_TIME_MS
        raise InvalidRequest(
            f"{months} months from {format_time(ms)} lie outside the years 0001 to 9999"
        )
    day, in_day = divmod(into_month, DAY_MS)
    last_day = (following - begin) // DAY_MS - 1
    return begin + min(day, last_day) * DAY_MS + in_day


def _midnight_of(year: int, month: int, day: int) -> int:
    # In a zone behind UTC, the first instants of year 1 are in year 0, which `date` does not
    # support: it is as long as the year 400, one whole cycle of the calendar later.
    if year == 0:
        return _midnight(date(400, month, day)) - _CYCLE_MS
    return _midnight(date(year, month, day))


def _midnight(day: date) -> int:
    return (day.toordinal() - _EPOCH_ORDINAL) * DAY_MS


def _zone_ms(zone: str | None, text: str) -> int:
    if zone is None or zone in "Zz":
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 23 or minutes > 59:
        raise InvalidRequest(f"{text!r} has an invalid time zone: offsets end at +23:59")
    sign = -1 if zone[0] == "-" else 1
    return sign * (hours * HOUR_MS + minutes * MINUTE_MS)
