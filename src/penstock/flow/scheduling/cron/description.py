"""Description of a CRON expression in words, so that its author can check it.

Owns the sentences. They are made from the fields, not from the text: two spellings of the same
schedule have the same description.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from penstock.flow.scheduling.cron.cron_parser import (
    DAY_OF_MONTH,
    DAY_OF_WEEK,
    HOUR,
    MINUTE,
    MONTH,
    SECOND,
    YEAR,
    CronField,
    FromLast,
    LastInMonth,
    NearestWeekday,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.flow.scheduling.cron.cron_parser import MonthDayRule, ParsedFields, WeekDayRule

_TIMES_MAX: Final = 4
_ORDINALS: Final = ("first", "second", "third", "fourth", "fifth")


def describe(fields: ParsedFields) -> str:
    """Return what the fields mean, such as ``at 10:15:00, on the last Friday of the month``."""
    parts = [_time(fields), _days(fields)]
    if fields.months != _all(MONTH):
        parts.append("in " + _list([_word(MONTH, month) for month in fields.months]))
    if fields.years != _all(YEAR):
        parts.append("in " + _years(fields.years))
    return ", ".join(part for part in parts if part)


def _time(fields: ParsedFields) -> str:
    seconds, minutes, hours = fields.seconds, fields.minutes, fields.hours
    if len(seconds) * len(minutes) * len(hours) <= _TIMES_MAX:
        return "at " + _list(
            [
                f"{hour:02d}:{minute:02d}:{second:02d}"
                for hour in hours
                for minute in minutes
                for second in seconds
            ]
        )
    parts = []
    if seconds != (0,):
        parts.append(_of(SECOND, seconds))
    if minutes != ((0,) if seconds == (0,) else _all(MINUTE)):
        parts.append(_of(MINUTE, minutes))
    if hours != _all(HOUR) or not parts or parts[-1].startswith("minute"):
        parts.append(_of(HOUR, hours))
    elif parts[-1].startswith("second"):
        parts.append("every minute")
    return " of ".join(parts)


def _of(field: CronField, values: Sequence[int]) -> str:
    """Describe values of a time field, as steps where possible."""
    if len(values) == field.last - field.first + 1:
        return f"every {field.name}"
    if len(values) > 2 or (len(values) == 2 and not values[0]):
        step = values[1] - values[0]
        is_even = all(later - earlier == step for earlier, later in pairwise(values))
        if is_even and step > 1 and values[-1] + step > field.last:
            start = f" from {field.name} {values[0]} on" if values[0] else ""
            return f"every {step} {field.name}s{start}"
        if is_even and step == 1:
            return f"every {field.name} from {values[0]} to {values[-1]}"
    plural = "s" * (len(values) > 1)
    return f"{field.name}{plural} {_list([str(value) for value in values])}"


def _days(fields: ParsedFields) -> str:
    if fields.week_day_rule is not None:
        return f"on the {_week_day_rule(fields.week_day_rule)} of the month"
    if fields.week_days is not None:
        if fields.week_days == _all(DAY_OF_WEEK):
            return ""
        return "on " + _list([_word(DAY_OF_WEEK, day) for day in fields.week_days])
    if fields.month_days == _all(DAY_OF_MONTH):
        return ""
    days = [str(day) for day in fields.month_days]
    text = [f"day{'s' * (len(days) > 1)} {_list(days)}"] if days else []
    text += [_month_day_rule(rule) for rule in fields.month_day_rules]
    return f"on {_list(text)} of the month"


def _month_day_rule(rule: MonthDayRule) -> str:
    if isinstance(rule, NearestWeekday):
        return f"the weekday nearest to day {rule.day}"
    assert isinstance(rule, FromLast)
    if not rule.before:
        return "the last weekday" if rule.weekday else "the last day"
    days = f"day{'s' * (rule.before > 1)}"
    day = f"{rule.before} {days} before the last day"
    return f"the weekday nearest to {day}" if rule.weekday else f"the day {day}"


def _week_day_rule(rule: WeekDayRule) -> str:
    name = _word(DAY_OF_WEEK, rule.weekday)
    if isinstance(rule, LastInMonth):
        return f"last {name}"
    return f"{_ORDINALS[rule.number - 1]} {name}"


def _years(years: Sequence[int]) -> str:
    first, last = years[0], years[-1]
    if len(years) > 2 and list(years) == list(range(first, last + 1)):
        return f"{first} to {last}"
    shown = [str(year) for year in years[:_TIMES_MAX]]
    if len(years) > _TIMES_MAX:
        return f"{', '.join(shown)} and so on"
    return _list(shown)


def _word(field: CronField, value: int) -> str:
    return field.words[value - field.first].capitalize()


def _all(field: CronField) -> tuple[int, ...]:
    return tuple(range(field.first, field.last + 1))


def _list(words: Sequence[str]) -> str:
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"
