"""Durations in options, specs and flows, and their text.

Owns the three notations: ISO 8601 (``PT1H``, ``P1D``, ``P1M``), short (``500ms``, ``2s``), and
NiFi's, which flows use (``10 sec``, ``1.5 hours``). Does not own the calendar, such as the length
of a month (`core.instants`). A duration is whole milliseconds; a period may also contain months,
whose length depends on the date; a period of a flow is whole nanoseconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from penstock.core.errors import InvalidRequest

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
WEEK_MS: Final = 7 * DAY_MS

# Longer than all dates of the years 1 to 9999, so larger values are typing errors. The limit also
# keeps sums and products of durations within timestamps and the integers of JSON readers.
MAX_DURATION_MS: Final = 10_000 * 366 * DAY_MS

_NUMBER: Final = r"\d{1,18}(?:[.,]\d{1,9})?"
_ISO: Final = re.compile(
    r"P(?:(?P<years>\d{1,6})Y)?(?:(?P<months>\d{1,6})M)?"
    rf"(?:(?P<weeks>{_NUMBER})W)?(?:(?P<days>{_NUMBER})D)?"
    rf"(?P<clock>T(?:(?P<hours>{_NUMBER})H)?(?:(?P<minutes>{_NUMBER})M)?(?:(?P<seconds>{_NUMBER})S)?)?",
    re.ASCII | re.IGNORECASE,
)
_SHORT: Final = re.compile(rf"(?P<number>{_NUMBER})\s*(?P<unit>ms|s|m|h|d|w)?", re.ASCII)
_SHORT_UNITS_MS: Final = {
    None: 1,
    "ms": 1,
    "s": SECOND_MS,
    "m": MINUTE_MS,
    "h": HOUR_MS,
    "d": DAY_MS,
    "w": WEEK_MS,
}
_ISO_UNITS_MS: Final = {
    "weeks": WEEK_MS,
    "days": DAY_MS,
    "hours": HOUR_MS,
    "minutes": MINUTE_MS,
    "seconds": SECOND_MS,
}

_NIFI_UNITS: Final = (
    (1, ("ns", "nano", "nanos", "nanosecond", "nanoseconds")),
    (1_000_000, ("ms", "milli", "millis", "millisecond", "milliseconds")),
    (1_000_000_000, ("s", "sec", "secs", "second", "seconds")),
    (60_000_000_000, ("m", "min", "mins", "minute", "minutes")),
    (3_600_000_000_000, ("h", "hr", "hrs", "hour", "hours")),
    (86_400_000_000_000, ("d", "day", "days")),
    (604_800_000_000_000, ("w", "wk", "wks", "week", "weeks")),
)
_NIFI_UNITS_NS: Final = {name: length_ns for length_ns, names in _NIFI_UNITS for name in names}

# Maximum of a signed 64-bit count of nanoseconds: 292 years.
MAX_NIFI_PERIOD_NS: Final = 2**63 - 1

# The number of digits is limited, because longer numbers cost parsing time.
_NIFI_PERIOD: Final = re.compile(
    r"(?P<number>\d{1,30}|\d{0,30}\.\d{1,30})\s*(?P<unit>[a-z]+)", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Period:
    """A number of calendar months plus a number of milliseconds; either may be 0.

    `weeks_only` distinguishes ``P1W`` from ``P7D``: buckets of weeks begin on Mondays.
    """

    months: int
    ms: int
    weeks_only: bool = False


def parse_period(text: str, *, may_be_zero: bool = False) -> Period:
    """Parse an ISO 8601 period such as ``P1M``, ``P1W`` or ``PT1H30M``.

    Args:
        text: The period.
        may_be_zero: Accept a period of length zero, such as ``PT0S``.

    Raises:
        InvalidRequest: The text is not such a period, or its length is zero or too large.
    """
    match = _ISO.fullmatch(text.strip())
    if match is None or text.strip()[-1] in "PpTt":
        raise InvalidRequest(
            f"{text!r} is not an ISO 8601 period: write one such as PT30M, PT1H, P1D or P1M"
        )
    months = 12 * int(match["years"] or 0) + int(match["months"] or 0)
    parts = {unit: match[unit] for unit in _ISO_UNITS_MS if match[unit]}
    total = sum(
        (_number(parts[unit]) * _ISO_UNITS_MS[unit] for unit in parts),
        start=Fraction(0),
    )
    ms = _whole_ms(total, text)
    if not (months or ms or may_be_zero):
        raise InvalidRequest(
            f"{text!r} is a period of length zero: write at least 1 ms, such as PT0.001S"
        )
    return Period(months, ms, weeks_only=not months and list(parts) == ["weeks"])


def parse_duration(value: str | int) -> int:
    """Return a fixed duration in milliseconds.

    Accepts ISO 8601 (``PT1H``, ``P1D``, ``PT0.5S``), the short form (``500ms``, ``2s``, ``5m``,
    ``1h``, ``7d``), and a number of milliseconds.

    Raises:
        InvalidRequest: The value has none of these forms, is negative or too large, or contains
            months or years, which have no fixed length.
    """
    if isinstance(value, int):
        if isinstance(value, bool) or not 0 <= value <= MAX_DURATION_MS:
            raise InvalidRequest(
                f"{value!r} is not a duration in milliseconds: use a whole number from 0 to "
                f"{MAX_DURATION_MS:,}"
            )
        return value
    text = value.strip()
    short = _SHORT.fullmatch(text.lower())
    if short is not None:
        return _whole_ms(_number(short["number"]) * _SHORT_UNITS_MS[short["unit"]], value)
    if text[:1] not in {"P", "p"}:
        raise InvalidRequest(
            f"{value!r} is not a duration: write 500ms, 2s, 5m, 1h, or ISO 8601 such as PT1H or P1D"
        )
    if _is_zero_period(text):
        return 0
    period = parse_period(text)
    if period.months:
        raise InvalidRequest(
            f"{value!r} has months or years, which have no fixed length: write days, such as P30D"
        )
    return period.ms


def parse_nifi_period(text: str) -> int:
    """Return a period in NiFi's notation, such as ``10 sec`` or ``1.5 hours``, in nanoseconds.

    Unlike in NiFi, ``1 millisecond`` and ``1 nanosecond`` work: NiFi accepts them, but fails when
    they are used. A fraction of a nanosecond is rounded half to even, but no value above 0 becomes
    0.

    Raises:
        InvalidRequest: The text is not a period, or is longer than 292 years.
    """
    match = _NIFI_PERIOD.fullmatch(text.strip())
    if match is None:
        raise InvalidRequest(
            f"{text!r} is not a period: write a number and a unit, such as 10 sec, 1.5 hours or "
            "100 ms"
        )
    length_ns = _NIFI_UNITS_NS.get(match["unit"].lower())
    if length_ns is None:
        raise InvalidRequest(
            f"{text!r} has the unknown unit {match['unit']!r}: use one of "
            + ", ".join(names[0] for _, names in _NIFI_UNITS)
            + " or their long forms"
        )
    exact = Fraction(match["number"]) * length_ns
    period_ns = max(1, round(exact)) if exact else 0
    if period_ns > MAX_NIFI_PERIOD_NS:
        raise InvalidRequest(f"{text!r} is longer than 292 years: write a shorter period")
    return period_ns


def format_duration(ms: int) -> str:
    """Return the shortest ISO 8601 form, such as ``PT1H`` for 3,600,000 ms."""
    days, rest = divmod(ms, DAY_MS)
    hours, rest = divmod(rest, HOUR_MS)
    minutes, rest = divmod(rest, MINUTE_MS)
    seconds, millis = divmod(rest, SECOND_MS)
    clock = f"{hours}H" * bool(hours) + f"{minutes}M" * bool(minutes)
    if millis:
        clock += f"{seconds}.{millis:03d}".rstrip("0") + "S"
    elif seconds:
        clock += f"{seconds}S"
    date = f"{days}D" * bool(days)
    return f"P{date}T{clock}" if clock else f"P{date or 'T0S'}"


def _is_zero_period(text: str) -> bool:
    """Return whether a text is like ``PT0S`` or ``P0D``: a valid duration, but no valid period."""
    match = _ISO.fullmatch(text)
    if match is None or text[-1] in "PpTt":
        return False
    values = [match[unit] for unit in ("years", "months", *_ISO_UNITS_MS) if match[unit]]
    return all(_number(value) == 0 for value in values)


def _number(text: str) -> Fraction:
    return Fraction(text.replace(",", "."))


def _whole_ms(value: Fraction, text: str) -> int:
    if value.denominator != 1:
        raise InvalidRequest(
            f"{text!r} is finer than a millisecond: round it to whole milliseconds"
        )
    if value > MAX_DURATION_MS:
        raise InvalidRequest(
            f"{text!r} is longer than ten thousand years: write a shorter duration"
        )
    return value.numerator
