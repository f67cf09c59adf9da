"""Druid's time functions in Spark SQL. Pure.

Times are milliseconds since 1970; zones other than UTC are refused. Weeks begin on Mondays.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from penstock.core.durations import WEEK_MS, Period, parse_period
from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Granularity, parse_time
from penstock.indexing.specs.druid_expressions.tree import Expression, FunctionCall, Literal

_UTC: Final = frozenset({"UTC", "Etc/UTC", "Z", "GMT"})
_EXTRACTED: Final = {
    "EPOCH": "FLOOR({millis} / 1000)",
    "MILLISECOND": "PMOD({millis}, 1000)",
    "SECOND": "SECOND({time})",
    "MINUTE": "MINUTE({time})",
    "HOUR": "HOUR({time})",
    "DAY": "DAY({time})",
    "DOW": "(WEEKDAY({time}) + 1)",
    "ISODOW": "(WEEKDAY({time}) + 1)",
    "DOY": "DAYOFYEAR({time})",
    "WEEK": "WEEKOFYEAR({time})",
    "MONTH": "MONTH({time})",
    "QUARTER": "QUARTER({time})",
    "YEAR": "YEAR({time})",
    "ISOYEAR": "EXTRACT(YEAROFWEEK FROM {time})",
}
_UNITS: Final = {1: "MONTH", 3: "QUARTER", 12: "YEAR"}
# Letters that mean the same in Joda's patterns and in Spark's.
_PATTERN: Final = re.compile(
    r"(?:yyyy|MM?M?M?|dd?|HH?|hh?|mm?|ss?|S{1,9}|E{3,4}|a|DDD|'(?:[^']|'')*'|[^A-Za-z'])+"
)
_ISO_PATTERN: Final = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"

Translate = Callable[[Expression], str]


def translate_time(node: FunctionCall, value: Translate) -> str:
    """Return a call of one of the time functions in Spark SQL.

    Args:
        node: The call.
        value: Translates an argument.

    Raises:
        InvalidRequest: It has no exact counterpart, or not these arguments.
    """
    arguments = node.arguments
    if not arguments:
        raise InvalidRequest(f"{node.function}() needs a time")
    if node.function == "timestamp_parse":
        return _parsed(arguments, value)
    millis = f"CAST({value(arguments[0])} AS BIGINT)"
    match node.function, len(arguments):
        case "timestamp_floor", 2 | 3 | 4:
            return _floor(millis, *_cut(arguments))
        case "timestamp_ceil", 2 | 3 | 4:
            return _ceil(millis, *_cut(arguments))
        case "timestamp_shift", 3 | 4:
            _check_zone(arguments[3:])
            return _shifted(millis, _period(arguments[1]), value(arguments[2]))
        case "timestamp_extract", 2 | 3:
            _check_zone(arguments[2:])
            unit = (_text(arguments[1]) or "").upper()
            if unit not in _EXTRACTED:
                raise InvalidRequest(
                    f"timestamp_extract() takes one of {', '.join(_EXTRACTED)}, as text: {unit!r}"
                )
            found = _EXTRACTED[unit].format(millis=millis, time=_instant(millis))
            return f"CAST({found} AS BIGINT)"
        case "timestamp_format", 1 | 2 | 3:
            _check_zone(arguments[2:])
            pattern = date_pattern(_text(arguments[1])) if len(arguments) > 1 else _ISO_PATTERN
            return f"DATE_FORMAT({_instant(millis)}, {_quoted(pattern)})"
        case _:
            raise InvalidRequest(f"{node.function}() does not take {len(arguments)} arguments")


def _parsed(arguments: tuple[Expression, ...], value: Translate) -> str:
    if len(arguments) > 3:
        raise InvalidRequest(f"timestamp_parse() does not take {len(arguments)} arguments")
    _check_zone(arguments[2:])
    text = value(arguments[0])
    if len(arguments) == 1 or arguments[1] == Literal(None):
        return f"UNIX_MILLIS(CAST({text} AS TIMESTAMP))"
    return f"UNIX_MILLIS(TO_TIMESTAMP({text}, {_quoted(date_pattern(_text(arguments[1])))}))"


def _floor(millis: str, period: Period, origin_ms: int) -> str:
    if period.months:
        return f"UNIX_MILLIS(DATE_TRUNC('{_UNITS[period.months]}', {_instant(millis)}))"
    return f"({millis} - PMOD({millis} - {origin_ms}L, {period.ms}L))"


def _ceil(millis: str, period: Period, origin_ms: int) -> str:
    if not period.months:
        return f"({millis} + PMOD({origin_ms}L - {millis}, {period.ms}L))"
    floor = f"DATE_TRUNC('{_UNITS[period.months]}', {_instant(millis)})"
    above = f"UNIX_MILLIS({floor} + MAKE_INTERVAL(0, {period.months}))"
    return f"(CASE WHEN UNIX_MILLIS({floor}) = {millis} THEN {millis} ELSE {above} END)"


def _shifted(millis: str, period: Period, steps: str) -> str:
    shifted = millis
    if period.months:
        months = f"CAST({steps} * {period.months} AS INT)"
        shifted = f"UNIX_MILLIS({_instant(millis)} + MAKE_INTERVAL(0, {months}))"
    return f"({shifted} + {period.ms}L * {steps})" if period.ms else shifted


def _cut(arguments: tuple[Expression, ...]) -> tuple[Period, int]:
    """Return the period, and the instant from which its buckets are counted."""
    period = _period(arguments[1])
    _check_zone(arguments[3:])
    if period.months and (period.ms or period.months not in _UNITS):
        raise InvalidRequest("periods of months are P1M, P3M and P1Y: use one of them")
    origin_ms = Granularity.parse("WEEK").origin_ms if _is_weeks(period) else 0
    if len(arguments) > 2 and arguments[2] != Literal(None):
        origin = arguments[2]
        given = _text(origin)
        if period.months:
            raise InvalidRequest("months are counted from January: leave the origin out")
        if given is not None:
            return period, parse_time(given)
        if isinstance(origin, Literal) and isinstance(origin.value, int):
            return period, origin.value
        raise InvalidRequest("the origin must be a time, written out")
    return period, origin_ms


def _is_weeks(period: Period) -> bool:
    return period.weeks_only and period.ms % WEEK_MS == 0


def _period(node: Expression) -> Period:
    text = _text(node)
    if text is None:
        raise InvalidRequest("the period must be written out, such as 'P1D'")
    return parse_period(text)


def _check_zone(rest: tuple[Expression, ...]) -> None:
    for node in rest:
        if node != Literal(None) and _text(node) not in _UTC:
            raise InvalidRequest(
                "time zones other than UTC are not supported: use Spark's from_utc_timestamp"
            )


def date_pattern(text: str | None) -> str:
    """Return a date pattern of Joda if it means the same in Spark.

    Raises:
        InvalidRequest: It has other letters, or None is given.
    """
    if text is None or len(text) > 200 or not _PATTERN.fullmatch(text):
        raise InvalidRequest(
            "the date pattern must be written out, with yyyy, MM, dd, HH, mm, ss, SSS and quoted"
            " text alone: use Spark's date_format or to_timestamp for others"
        )
    return text


def _quoted(pattern: str) -> str:
    escaped = pattern.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _instant(millis: str) -> str:
    return f"TIMESTAMP_MILLIS({millis})"


def _text(node: Expression) -> str | None:
    return node.value if isinstance(node, Literal) and isinstance(node.value, str) else None
