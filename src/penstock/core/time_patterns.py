"""Date patterns of Joda, in which Druid's timestamps may be written.

Owns which patterns can be read exactly as Joda reads them, and reading them: `TimePattern.parse`
for single texts, `layout` for readers of many texts at once. A letter for which the result could
differ from Druid's is refused with a remedy. Times without a zone are UTC; month and day names are
English.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Final

from penstock.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from penstock.core.errors import InvalidRequest
from penstock.core.instants import check_instant

_PIECE: Final = re.compile(
    r"(?P<quoted>'(?:[^']|'')*')|(?P<letters>([A-Za-z])\3*)|(?P<other>[^']+?)"
)
_PATTERN_LENGTH_MAX: Final = 200
_EPOCH: Final = date(1970, 1, 1).toordinal()
# Literals, because the names of the standard library depend on the locale.
_MONTHS: Final = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_ABBREVIATED: Final = 3

# For each numeric letter: the field, and its maximum number of digits.
_NUMBERS: Final = {
    "y": ("year", 4),
    "Y": ("year", 4),
    "M": ("month", 2),
    "d": ("day", 2),
    "D": ("day_of_year", 3),
    "H": ("hour", 2),
    "h": ("half_hour", 2),
    "m": ("minute", 2),
    "s": ("second", 2),
    "S": ("fraction", 9),
}
# Fields that have a fixed width when written with all of their digits.
_FIXED: Final = frozenset({"year", "month", "day", "hour", "minute", "second", "fraction"})
_SHOWN: Final = 100
_REFUSED: Final = {
    "z": "names of time zones are not unique: write offsets (Z), or convert with a transform",
    "x": "week years are not supported: send a date",
    "w": "weeks are not supported: send a date",
    "e": "days of the week are not supported: send a date",
    "k": "hours from 1 to 24 are not supported: use H",
    "K": "hours from 0 to 11 are not supported: use h",
    "G": "eras are not supported: leave G out",
    "C": "centuries are not supported: send the year",
}


@dataclass(frozen=True, slots=True)
class TimePattern:
    """A compiled pattern such as ``yyyy-MM-dd HH:mm:ss``.

    Attributes:
        text: The pattern.
        layout: Parts of a text that is written with all of its digits, in order: (field, number of
            digits), or ("", literal bytes). The fields are year, month, day, hour, minute, second
            and fraction. None if the pattern has other fields, such as names of months. Texts
            with fewer digits need `parse`.
    """

    text: str
    layout: tuple[tuple[str, int | bytes], ...] | None
    _regex: re.Pattern[str]

    @classmethod
    def compile(cls, text: str) -> TimePattern:
        """Compile a pattern.

        Raises:
            InvalidRequest: It has an unsupported letter or a duplicate field, or has no day.
        """
        if len(text) > _PATTERN_LENGTH_MAX:
            raise InvalidRequest(f"a date pattern of {len(text)} characters is too long")
        fields: list[str] = []
        regex = ""
        layout: list[tuple[str, int | bytes]] = []
        for kind, piece in _pieces(text):
            if kind == "other":
                regex += re.escape(piece)
                layout.append(("", piece.encode()))
                continue
            field, part = _field(piece, text)
            if field in fields:
                raise InvalidRequest(f"the date pattern {text!r} contains {piece!r} twice")
            fields.append(field)
            regex += part
            most = min(len(piece), 9) if field == "fraction" else _NUMBERS.get(piece[0], ("", 0))[1]
            layout.append((field, most))
        _check_fields(fields, text)
        fixed = tuple(layout) if _FIXED.issuperset(fields) else None
        return cls(text, fixed, re.compile(regex, re.ASCII | re.IGNORECASE))

    def __str__(self) -> str:
        """Return the pattern as written."""
        return self.text

    def parse(self, text: str) -> int:
        """Return the milliseconds since 1970 of a time in this pattern.

        Raises:
            InvalidRequest: The text does not match the pattern, or the day or time does not exist.
        """
        match = self._regex.fullmatch(text)
        if match is None:
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
            raise InvalidRequest(f"{shown!r} does not match the pattern {self.text!r}")
        found = {name: value for name, value in match.groupdict().items() if value is not None}
        try:
            day = _day(found)
        except ValueError as error:
            raise InvalidRequest(f"{text!r} is not a valid day: {error}") from None
        hour, minute, second = (
            _hour(found),
            int(found.get("minute", 0)),
            int(found.get("second", 0)),
        )
        if hour > 23 or minute > 59 or second > 59:
            raise InvalidRequest(f"{text!r} has an invalid time of day: hours end at 23:59:59.999")
        millis = int(found.get("fraction", "0")[:3].ljust(3, "0"))
        in_day = hour * HOUR_MS + minute * MINUTE_MS + second * SECOND_MS + millis
        return check_instant((day.toordinal() - _EPOCH) * DAY_MS + in_day - _zone_ms(found))


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """Yield ("letters" or "other", text) in order; quotes are removed."""
    at = 0
    while at < len(text):
        match = _PIECE.match(text, at)
        if match is None:
            raise InvalidRequest(f"the date pattern {text!r} has an unclosed quote")
        at = match.end()
        if match["letters"]:
            yield "letters", match["letters"]
        elif match["quoted"]:
            inner = match["quoted"][1:-1].replace("''", "'")
            yield "other", inner or "'"
        else:
            yield "other", match["other"]


def _field(letters: str, pattern: str) -> tuple[str, str]:
    """Return the field of a group of letters, and the regular expression that reads it."""
    letter, count = letters[0], len(letters)
    if letter in "yY" and count == 2:
        raise InvalidRequest(
            f"the date pattern {pattern!r} has years of two digits, whose century is ambiguous:"
            " send all four"
        )
    if letter == "M" and count >= 3:
        return "month_name", _one_of("month_name", _with_short(_MONTHS))
    if letter == "E":
        return "day_name", _one_of("day_name", _with_short(_DAYS))
    if letter == "a":
        return "half", _one_of("half", ["am", "pm"])
    if letter == "Z" and count <= 2:
        return "zone", r"(?P<zone>[Zz]|[+-]\d\d(?::?\d\d)?)"
    if letter == "S":
        digits = min(count, 9)
        return "fraction", rf"(?P<fraction>\d{{1,{digits}}}+)"
    if letter in _NUMBERS:
        field, most = _NUMBERS[letter]
        # Possessive, because Joda does not backtrack: 2013111 is the first of November.
        return field, rf"(?P<{field}>\d{{1,{most}}}+)"
    remedy = _REFUSED.get("z" if letter == "Z" else letter, "it is not a letter of date patterns")
    raise InvalidRequest(f"the date pattern {pattern!r} has {letters!r}: {remedy}")


def _with_short(names: tuple[str, ...]) -> list[str]:
    return [*names, *(name[:_ABBREVIATED] for name in names)]


def _one_of(field: str, names: list[str]) -> str:
    longest_first = sorted(names, key=len, reverse=True)
    return f"(?P<{field}>{'|'.join(map(re.escape, longest_first))})"


def _check_fields(fields: list[str], pattern: str) -> None:
    has = set(fields)
    if "year" not in has:
        raise InvalidRequest(f"the date pattern {pattern!r} has no year: add yyyy")
    for first, second in (("month", "month_name"), ("hour", "half_hour"), ("day", "day_of_year")):
        if {first, second} <= has:
            raise InvalidRequest(f"the date pattern {pattern!r} has the {first} twice")
    if "day_of_year" in has and has & {"month", "month_name"}:
        raise InvalidRequest(
            f"the date pattern {pattern!r} has a month and a day of the year (D):"
            " write dd for the day of the month"
        )
    if ("half_hour" in has) != ("half" in has):
        raise InvalidRequest(f"the date pattern {pattern!r} needs both h and a, or H alone")


def _day(found: dict[str, str]) -> date:
    year = int(found["year"])
    if "day_of_year" in found:
        first = date(year, 1, 1)
        number = int(found["day_of_year"])
        if not 1 <= number <= (366 if _is_leap(year) else 365):
            raise ValueError(f"{year} has no day {number}")
        return date.fromordinal(first.toordinal() + number - 1)
    day = date(year, _month(found), int(found.get("day", 1)))
    name = found.get("day_name", "").lower()
    if name and not _DAYS[day.weekday()].startswith(name):
        raise ValueError(f"{day} is a {_DAYS[day.weekday()]}")
    return day


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _month(found: dict[str, str]) -> int:
    name = found.get("month_name", "").lower()
    if not name:
        return int(found.get("month", 1))
    return 1 + next(number for number, full in enumerate(_MONTHS) if full.startswith(name))


def _hour(found: dict[str, str]) -> int:
    if "half_hour" not in found:
        return int(found.get("hour", 0))
    hour = int(found["half_hour"])
    if not 1 <= hour <= 12:
        return 24  # An invalid hour, which the caller refuses.
    return hour % 12 + (12 if found["half"].lower() == "pm" else 0)


def _zone_ms(found: dict[str, str]) -> int:
    zone = found.get("zone", "Z")
    if zone in {"Z", "z"}:
        return 0
    digits = zone[1:].replace(":", "")
    hours, minutes = int(digits[:2]), int(digits[2:] or 0)
    if hours > 23 or minutes > 59:
        raise InvalidRequest(f"{zone!r} is not a valid time zone offset: they end at 23:59")
    return (1 if zone[0] == "+" else -1) * (hours * HOUR_MS + minutes * MINUTE_MS)
