"""Druid's functions of times as texts of Spark SQL. Pure.

Owns periods, origins, time zones and patterns of Joda. A period, a zone, a unit or a pattern is
written out in the call, as in Druid. Each function returns an empty text for a call that Spark
cannot express exactly.

Meanings: the page "SQL functions" of Druid's documentation, and its class PeriodGranularity: a
single unit begins where the clock of the zone shows its start; several months, weeks or days are
counted from 1970-01-01 of the zone's clock; hours, minutes and seconds are counted as time passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from penstock.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from penstock.core.errors import InvalidRequest
from penstock.core.instants import format_time, parse_time
from penstock.core.intervals import Granularity, Interval
from penstock.core.sql import tree
from penstock.core.zoned_time import is_utc, zoned_clock

UNITS: Final = frozenset({"SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR"})
"""Units of FLOOR, CEIL and TIME_EXTRACT."""

_PERIOD: Final = re.compile(
    r"P(?:(?P<years>\d{1,4})Y)?(?:(?P<months>\d{1,4})M)?(?:(?P<weeks>\d{1,5})W)?"
    r"(?:(?P<days>\d{1,6})D)?"
    r"(?:T(?:(?P<hours>\d{1,7})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<s>\d{1,9}(?:\.\d{1,3})?)S)?)?",
    re.ASCII | re.IGNORECASE,
)
# Units of one period that Spark's date_trunc cuts in the same way.
_CUT_UNITS: Final[Mapping[tuple[int, int, int, int], str]] = {
    (1, 0, 0, 0): "MONTH",
    (3, 0, 0, 0): "QUARTER",
    (12, 0, 0, 0): "YEAR",
    (0, 1, 0, 0): "WEEK",
    (0, 0, 1, 0): "DAY",
    (0, 0, 0, HOUR_MS): "HOUR",
    (0, 0, 0, MINUTE_MS): "MINUTE",
    (0, 0, 0, SECOND_MS): "SECOND",
}
# In Druid, days of the week are numbered from Monday, 1, and a second has no fraction.
_PARTS: Final[Mapping[str, str]] = {
    **{unit: f"CAST(extract({unit} FROM {{}}) AS BIGINT)" for unit in (*UNITS, "DOY")},
    "DOW": "CAST(extract(DAYOFWEEK_ISO FROM {}) AS BIGINT)",
    "SECOND": "CAST(second({}) AS BIGINT)",
}
# Units of EXTRACT that Spark lacks, and of TIME_EXTRACT.
_OTHER_PARTS: Final[Mapping[str, str]] = {
    "EPOCH": "unix_seconds({})",
    "MILLISECOND": "pmod(unix_millis({}), 1000)",
    "ISODOW": "CAST(extract(DAYOFWEEK_ISO FROM {}) AS BIGINT)",
    "ISOYEAR": "CAST(extract(YEAROFWEEK FROM {}) AS BIGINT)",
    "DECADE": "CAST(floor(year({}) / 10) AS BIGINT)",
    "CENTURY": "CAST(ceil(year({}) / 100) AS BIGINT)",
    "MILLENNIUM": "CAST(ceil(year({}) / 1000) AS BIGINT)",
}
# A run of one letter, a text in quotes, or other characters.
_PATTERN_PART: Final = re.compile(r"([A-Za-z])\1*|'(?:[^']|'')*'|[^A-Za-z']+")
_SPECIAL: Final = frozenset("[]{}#")  # which mean something in Spark's patterns alone
_PATTERN_MAX: Final = 200
# By the letter of Joda: the letter of Spark, and the maximum length of its run.
_FORMAT_LETTERS: Final[Mapping[str, tuple[str, int]]] = {
    **{letter: (letter, 2) for letter in "dHhkKms"},
    "M": ("M", 4),
    "D": ("D", 3),
    "S": ("S", 9),
}
_PLAIN_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d(?:T\d\d:\d\d:\d\d(?:\.\d{1,3})?Z?)?")
_PARSE_LETTERS: Final = frozenset("MdHhms")
_FIXED_ZONE: Final = re.compile(r"[+-]\d\d:\d\d", re.ASCII)
_ISO_FORMAT: Final = "yyyy-MM-dd''T''HH:mm:ss.SSS''Z''"
_DATE: Final = "[0-9][0-9][0-9][0-9](-[0-9][0-9]?(-[0-9][0-9]?"
_CLOCK: Final = "([T ][0-9][0-9]?(:[0-9][0-9]?(:[0-9][0-9]?([.][0-9]+)?)?)?"
_OFFSET: Final = " ?(Z|[+-][0-9][0-9](:?[0-9][0-9])?)"
_ISO_TEXT: Final = f"^{_DATE}{_CLOCK}({_OFFSET})?)?)?)?$"
_ISO_LOCAL: Final = f"^{_DATE}{_CLOCK})?)?)?$"
_ISO_OFFSET: Final = f"^{_DATE}{_CLOCK}{_OFFSET})))$"
_NO_SECONDS: Final = f"^([^:]+:[0-9][0-9]?)({_OFFSET})$"

Arguments = Sequence[tree.Expression]
Texts = Sequence[str]


@dataclass(frozen=True, slots=True)
class _Period:
    """A period of ISO 8601: years and months, weeks, days, and the milliseconds after its T."""

    months: int
    weeks: int
    days: int
    ms: int

    @classmethod
    def parse(cls, text: str) -> _Period:
        """Return a period.

        Raises:
            ValueError: The text is not a period that is longer than 0.
        """
        match = _PERIOD.fullmatch(text.strip())
        if match is None:
            raise ValueError("not a period")
        of = {name: int(value or 0) for name, value in match.groupdict().items() if name != "s"}
        ms = of["hours"] * HOUR_MS + of["minutes"] * MINUTE_MS
        ms += int(Decimal(match["s"] or 0) * SECOND_MS)
        found = cls(of["years"] * 12 + of["months"], of["weeks"], of["days"], ms)
        if not any((found.months, found.all_days, found.ms)):
            raise ValueError("a period of length 0")
        return found

    @property
    def date_unit(self) -> str:
        """Return the unit of `date_trunc` that the period is; empty if it is none."""
        return _CUT_UNITS.get((self.months, self.weeks, self.days, self.ms), "")

    @property
    def all_days(self) -> int:
        """Return its days, with those of its weeks."""
        return self.weeks * 7 + self.days

    @property
    def length_ms(self) -> int:
        """Return its length without months, if each day has 24 hours."""
        return self.all_days * DAY_MS + self.ms

    @property
    def is_mixed(self) -> bool:
        """Return whether it has more than one of months, days, and hours or less."""
        return sum(map(bool, (self.months, self.all_days, self.ms))) > 1


def time_function(name: str, arguments: Arguments, texts: Texts) -> str:
    """Return a call of a function of times in Spark SQL; empty if there is no exact one.

    Args:
        name: The function in upper case.
        arguments: Its arguments.
        texts: Their texts in Spark SQL; each can stand on either side of an operator.
    """
    write = _FUNCTIONS.get(name)
    try:
        return "" if write is None or not texts else write(arguments, texts)
    except (InvalidRequest, ValueError, IndexError):
        return ""


def literal(node: tree.Expression, text: str) -> str:
    """Return the value of a text that is written out.

    Raises:
        ValueError: It is another expression, or has escapes.
    """
    if isinstance(node, tree.Text):
        if node.value is not None:
            return node.value
        if node.end - node.start == 1 and text.startswith("'") and "\\" not in text:
            return text[1:-1].replace("''", "'")
    raise ValueError("another expression than a text")


def integer(node: tree.Expression) -> int:
    """Return the value of a whole number that is written out.

    Raises:
        ValueError: It is another expression.
    """
    if isinstance(node, tree.Unary) and node.operator == "-":
        return -integer(node.operand)
    return int(node.text if isinstance(node, tree.Number) else "")


def _zone(arguments: Arguments, texts: Texts, at: int) -> str:
    """Return the zone in an argument, which may be missing; empty for UTC.

    Raises:
        InvalidRequest: The zone does not exist.
        ValueError: It is not written out, or more arguments follow.
    """
    if len(arguments) > at + 1:
        raise ValueError("too many arguments")
    if len(arguments) <= at or _is_null(arguments[at]):
        return ""
    zone = literal(arguments[at], texts[at])
    if is_utc(zone):
        return ""
    zoned_clock(zone)
    return zone


def _is_null(node: tree.Expression) -> bool:
    return isinstance(node, tree.Constant) and node.word == "NULL"


def _floor(arguments: Arguments, texts: Texts) -> str:
    period, origin, zone = _cut(arguments, texts)
    return f"({_floor_of(texts[0], period, origin, zone)})"


def _ceil(arguments: Arguments, texts: Texts) -> str:
    period, origin, zone = _cut(arguments, texts)
    # A time at the start of a period stays.
    before = f"({texts[0]} - INTERVAL 1 MICROSECOND)"
    if not period.months and not (zone and period.all_days):
        seconds = _plain(Decimal(period.length_ms) / SECOND_MS)
        return f"({_floor_of(before, period, origin, zone)} + INTERVAL '{seconds}' SECOND)"
    amount, unit = (period.months, "MONTH") if period.months else (period.all_days, "DAY")
    start = _local_floor(_local(before, zone), period)
    return _instant(f"({start} + INTERVAL '{amount}' {unit})", zone)


def _cut(arguments: Arguments, texts: Texts) -> tuple[_Period, str, str]:
    """Return period, origin and zone of TIME_FLOOR and TIME_CEIL; the last two may be empty.

    Raises:
        InvalidRequest: The zone does not exist.
        ValueError: Spark cannot express them.
    """
    period = _Period.parse(literal(arguments[1], texts[1]))
    origin = ""
    if len(arguments) > 2 and not _is_null(arguments[2]):
        if not isinstance(arguments[2], tree.TypedText):
            raise ValueError("an origin that is not written out")
        origin = texts[2]
    zone = _zone(arguments, texts, 3)
    has_clock = bool(origin or (zone and period.ms))
    if (period.months and (period.is_mixed or origin)) or (
        period.all_days and zone and (has_clock or period.is_mixed)
    ):
        raise ValueError("a period of units that differ in length")
    return period, origin, zone


def _is_clock(period: _Period, origin: str, zone: str) -> bool:
    """Return whether all periods have the same length in milliseconds."""
    if period.months:
        return False
    return not (zone and period.all_days) and (bool(origin) or not period.date_unit)


def _floor_of(time: str, period: _Period, origin: str, zone: str) -> str:
    if not _is_clock(period, origin, zone):
        if zone and period.ms:  # one hour, minute or second of a clock that may be half an hour off
            local = f"unix_millis({_local(time, zone)})"
            return f"timestamp_millis(unix_millis({time}) - pmod({local}, {period.ms}))"
        return _instant(_local_floor(_local(time, zone), period), zone)
    base = f" - unix_millis({origin})" if origin else ""
    if zone and not origin:
        base = f" - {zoned_clock(zone).first(0)}".replace("- -", "+ ")
    past = f"pmod(unix_millis({time}){base}, {period.length_ms})"
    return f"timestamp_millis(unix_millis({time}) - {past})"


def _local_floor(local: str, period: _Period) -> str:
    """Return the start of a period of months, of days, or of one unit, on a clock without zone."""
    if period.date_unit:
        return f"date_trunc('{period.date_unit}', {local})"
    if period.months:
        months = f"(year({local}) - 1970) * 12 + month({local}) - 1"
        past = f"make_ym_interval(0, pmod({months}, {period.months}))"
        return f"date_trunc('MONTH', {local}) - {past}"
    days = f"pmod(unix_date(CAST({local} AS DATE)), {period.all_days})"
    return f"date_trunc('DAY', {local}) - make_dt_interval({days})"


def _local(time: str, zone: str) -> str:
    """Return what the clock of a zone shows at a time."""
    return f"from_utc_timestamp({time}, {_quoted(zone)})" if zone else time


def _instant(local: str, zone: str) -> str:
    """Return the time at which the clock of a zone shows another one."""
    return f"to_utc_timestamp({local}, {_quoted(zone)})" if zone else local


def _shift(arguments: Arguments, texts: Texts) -> str:
    period = _Period.parse(literal(arguments[1], texts[1]))
    zone = _zone(arguments, texts, 3)
    steps = texts[2]
    try:
        known: int | None = integer(arguments[2])
    except ValueError:
        known = None
    found = texts[0]
    if period.months or period.all_days:
        found = _local(found, zone) + _added(period.months, "MONTH", known, steps)
        found = _instant(found + _added(period.all_days, "DAY", known, steps), zone)
    if period.ms:
        found += _added(Decimal(period.ms) / SECOND_MS, "SECOND", known, steps)
    return f"({found})"


def _added(amount: int | Decimal, unit: str, known: int | None, steps: str) -> str:
    """Return the addition of steps of an interval, whose number may be known."""
    if not amount or known == 0:
        return ""
    if known is None:
        return f" + CAST({steps} AS INT) * INTERVAL '{_plain(amount)}' {unit}"
    return f" {'-' if known < 0 else '+'} INTERVAL '{_plain(amount * abs(known))}' {unit}"


def _plain(number: int | Decimal) -> str:
    return f"{Decimal(number).normalize():f}"


def _extract(arguments: Arguments, texts: Texts) -> str:
    unit = literal(arguments[1], texts[1]).upper()
    zone = _zone(arguments, texts, 2)
    time = texts[0] if unit == "EPOCH" else _local(texts[0], zone)
    template = _PARTS.get(unit) or _OTHER_PARTS.get(unit, "")
    return f"({template.format(time)})" if template else ""


def extracted(unit: tree.Expression, time: str) -> str:
    """Return `EXTRACT(unit FROM time)` in Spark SQL for a unit that Spark lacks, or empty."""
    name = unit.parts[0].upper() if isinstance(unit, tree.Name) else ""
    return _OTHER_PARTS.get(name, "").format(time)


def _in_interval(arguments: Arguments, texts: Texts) -> str:
    interval = Interval.parse(literal(arguments[1], texts[1]))
    start, end = f"timestamp_millis({interval.start_ms})", f"timestamp_millis({interval.end_ms})"
    return f"({texts[0]} >= {start} AND {texts[0]} < {end})" if len(texts) == 2 else ""


def _format(arguments: Arguments, texts: Texts) -> str:
    zone = _zone(arguments, texts, 2)
    if len(texts) < 2 or _is_null(arguments[1]):
        return "" if zone else f"date_format({texts[0]}, '{_ISO_FORMAT}')"
    pattern = _format_pattern(literal(arguments[1], texts[1]), zone)
    return f"date_format({_local(texts[0], zone)}, {_quoted(pattern)})"


def _parse(arguments: Arguments, texts: Texts) -> str:
    zone = _zone(arguments, texts, 2)
    if known := _known_time(arguments, texts, zone):
        return known
    text = f"CAST({texts[0]} AS STRING)"
    if len(texts) < 2 or _is_null(arguments[1]):
        # A constant, by which files are chosen and which the fast path answers, where it is plain.
        if not zone and isinstance(arguments[0], tree.Text):
            found = _PLAIN_TIME.fullmatch(literal(arguments[0], texts[0]))
            if found:
                return f"TIMESTAMP '{format_time(parse_time(found[0]))}'"
        # Spark reads other texts, too, such as 12:30, as a time of today, and no offset without
        # seconds before it.
        text = f"regexp_replace({text}, '{_NO_SECONDS}', '$1:00$2')"
        if not zone:
            return f"TRY_CAST({_matched(text, _ISO_TEXT)} AS TIMESTAMP)"
        own = f"TRY_CAST({_matched(text, _ISO_OFFSET)} AS TIMESTAMP)"
        local = f"TRY_CAST({_matched(text, _ISO_LOCAL)} AS TIMESTAMP)"
        return f"coalesce({own}, {_instant(local, zone)})"
    pattern = _parse_pattern(literal(arguments[1], texts[1]))
    return _instant(f"try_to_timestamp({text}, {_quoted(pattern)})", zone)


def _known_time(arguments: Arguments, texts: Texts, zone: str) -> str:
    """Return a time of ISO 8601 that is written out; files are skipped by it, or empty."""
    if zone or (len(texts) > 1 and not _is_null(arguments[1])):
        return ""
    try:
        return f"TIMESTAMP '{format_time(parse_time(literal(arguments[0], texts[0])))}'"
    except (InvalidRequest, ValueError):
        return ""


def _matched(text: str, pattern: str) -> str:
    return f"regexp_extract({text}, '{pattern}', 0)"


def _quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def _parts_of(pattern: str) -> list[str]:
    """Return the parts of a pattern of Joda.

    Raises:
        ValueError: It is too long, or has characters that Spark reads in another way.
    """
    parts = [match[0] for match in _PATTERN_PART.finditer(pattern)]
    if "".join(parts) != pattern or len(pattern) > _PATTERN_MAX or not parts:
        raise ValueError("not a pattern")
    if any("\\" in part or (part[0] != "'" and _SPECIAL & {*part}) for part in parts):
        raise ValueError("characters that Spark reads in another way")
    return parts


def _format_pattern(pattern: str, zone: str) -> str:
    """Return a pattern of Joda for times as Spark's; raises ValueError if there is none."""
    return "".join(_format_part(part, zone) for part in _parts_of(pattern))


def _format_part(part: str, zone: str) -> str:
    letter, length = part[0], len(part)
    if not letter.isalpha():
        return part
    if letter in "yY" and length in {2, 4}:
        return "y" * length
    if letter == "E":
        return "EEEE" if length > 3 else "E"
    if letter == "a":
        return "a"
    if letter in "zZ" and (not zone or _FIXED_ZONE.fullmatch(zone)):
        if letter == "z" or length > 2:
            return f"'{zone or 'UTC'}'"
        offset = zone or "+00:00"
        return f"'{offset if length == 2 else offset.replace(':', '')}'"
    spark, longest = _FORMAT_LETTERS.get(letter, ("", 0))
    if length > longest:
        raise ValueError("a letter that Spark lacks")
    return spark * length


def _parse_pattern(pattern: str) -> str:
    """Return a pattern of Joda for texts as Spark's.

    Joda reads a month of one digit with MM, too. Digits that nothing separates have the length of
    their letters.

    Raises:
        ValueError: There is none.
    """
    parts = _parts_of(pattern)
    letters = {part[0] for part in parts if part[0].isalpha()}
    if not letters & {"y", "Y"} or ("h" in letters) != ("a" in letters):
        raise ValueError("a time without its year, or half of the day")
    found = []
    for at, part in enumerate(parts):
        near = (*parts[max(at - 1, 0) : at], *parts[at + 1 : at + 2])
        is_apart = not any(_is_digits(one) for one in near)
        found.append(_parse_part(part, is_apart=is_apart))
    return "".join(found)


def _is_digits(part: str) -> bool:
    return part[0].isalpha() and part[0] != "a" and not (part[0] == "M" and len(part) > 2)


def _parse_part(part: str, *, is_apart: bool) -> str:
    letter, length = part[0], len(part)
    if not letter.isalpha():
        return part
    if letter in "yY" and length == 4:
        return "yyyy"
    if letter == "a":
        return "a"
    if (letter == "S" and length <= 3) or (letter == "M" and length in {3, 4}):
        return part
    if letter not in _PARSE_LETTERS or length > 2 or (length == 1 and not is_apart):
        raise ValueError("a letter that Spark lacks")
    return letter if is_apart else part


_FUNCTIONS: Final[Mapping[str, Callable[[Arguments, Texts], str]]] = {
    "TIME_CEIL": _ceil,
    "TIME_EXTRACT": _extract,
    "TIME_FLOOR": _floor,
    "TIME_FORMAT": _format,
    "TIME_IN_INTERVAL": _in_interval,
    "TIME_PARSE": _parse,
    "TIME_SHIFT": _shift,
}


def rounded(function: str, unit: str, time: str) -> str:
    """Return `FLOOR(time TO unit)`, or CEIL, in Spark SQL."""
    if function == "FLOOR":
        return f"date_trunc('{unit}', {time})"
    # A time at the start of a unit stays; Spark has no interval of quarters.
    length = "3 MONTH" if unit == "QUARTER" else f"1 {unit}"
    return f"(date_trunc('{unit}', {time} - INTERVAL 1 MICROSECOND) + INTERVAL {length})"


def floor_of(time: str, granularity: Granularity) -> str:
    """Return the start of a granularity's interval around a time, in Spark SQL."""
    if granularity.name in UNITS:
        return f"date_trunc('{granularity.name}', {time})"
    if granularity.months:
        months = f"year({time}) * 12 + month({time}) - 1"
        return (
            f"date_trunc('MONTH', {time})"
            f" - make_ym_interval(0, pmod({months}, {granularity.months}))"
        )
    origin = f" - {granularity.origin_ms}" if granularity.origin_ms else ""
    length = granularity.fixed_ms
    return f"timestamp_millis(unix_millis({time}) - pmod(unix_millis({time}){origin}, {length}))"
