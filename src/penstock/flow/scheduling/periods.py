"""Time periods as flows write them: ``10 sec``, ``1.5 hours``, ``100 ms``.

Owns NiFi's notation, with its units and fractions. Does not own the notation of Penstock's own
options (`core.durations`). A period is a whole number of nanoseconds.

Unlike in NiFi, ``1 millisecond`` and ``1 nanosecond`` work: NiFi accepts them, but fails when they
are used.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from penstock.core.errors import InvalidRequest

_UNITS: Final = (
    (1, ("ns", "nano", "nanos", "nanosecond", "nanoseconds")),
    (1_000_000, ("ms", "milli", "millis", "millisecond", "milliseconds")),
    (1_000_000_000, ("s", "sec", "secs", "second", "seconds")),
    (60_000_000_000, ("m", "min", "mins", "minute", "minutes")),
    (3_600_000_000_000, ("h", "hr", "hrs", "hour", "hours")),
    (86_400_000_000_000, ("d", "day", "days")),
    (604_800_000_000_000, ("w", "wk", "wks", "week", "weeks")),
)
_NS_BY_UNIT: Final = {name: length_ns for length_ns, names in _UNITS for name in names}

# Maximum of a signed 64-bit count of nanoseconds: 292 years.
MAX_PERIOD_NS: Final = 2**63 - 1

# The number of digits is limited: more would only cost time.
_PERIOD: Final = re.compile(
    r"(?P<number>\d{1,30}|\d{0,30}\.\d{1,30})\s*(?P<unit>[a-z]+)", re.ASCII | re.IGNORECASE
)


def parse_period(text: str) -> int:
    """Return a period in nanoseconds.

    A fraction of a nanosecond is rounded half to even, but no value above 0 becomes 0.

    Raises:
        InvalidRequest: The text is not a period, or is longer than 292 years.
    """
    match = _PERIOD.fullmatch(text.strip())
    if match is None:
        raise InvalidRequest(
            f"{text!r} is not a period: write a number and a unit, such as 10 sec, 1.5 hours or "
            "100 ms"
        )
    length_ns = _NS_BY_UNIT.get(match["unit"].lower())
    if length_ns is None:
        raise InvalidRequest(
            f"{text!r} has the unknown unit {match['unit']!r}: use one of "
            + ", ".join(names[0] for _, names in _UNITS)
            + " or their long forms"
        )
    exact = Fraction(match["number"]) * length_ns
    period_ns = max(1, round(exact)) if exact else 0
    if period_ns > MAX_PERIOD_NS:
        raise InvalidRequest(f"{text!r} is longer than 292 years: write a shorter period")
    return period_ns
