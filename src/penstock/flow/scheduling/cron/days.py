"""Days of a month that match an expression.

Owns the calendar rules of L, W and #. The days of a month are a bit mask, bit 1 for the first day,
so that a search finds the next day without a loop over rules.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Final

from penstock.flow.scheduling.cron.parser import FromLast, LastInMonth, NearestWeekday, NthInMonth

if TYPE_CHECKING:
    from penstock.flow.scheduling.cron.parser import MonthDayRule, ParsedFields, WeekDayRule

_WEEK: Final = 7
_SUNDAY: Final = 1
_SATURDAY: Final = 7
_MONTH_LENGTHS: Final = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class MonthDays:
    """Matching days of each month; masks are cached by the shape of the month.

    The shape is the length of the month and its first day of the week: there are 28.
    """

    def __init__(self, fields: ParsedFields) -> None:
        self._fields = fields
        self._by_shape: dict[tuple[int, int], int] = {}

    def mask(self, year: int, month: int) -> int:
        """Return the mask of a month's days, bit 1 for the first."""
        # `date.weekday` counts from Monday = 0; here Sunday is 1.
        first = (date(year, month, 1).weekday() + 1) % _WEEK + 1
        shape = month_length(year, month), first
        mask = self._by_shape.get(shape)
        if mask is None:
            mask = self._by_shape[shape] = self._find(*shape)
        return mask

    def _find(self, length: int, first: int) -> int:
        fields = self._fields
        if fields.week_day_rule is not None:
            days = [_day_of_week_rule(fields.week_day_rule, length, first)]
        elif fields.week_days is not None:
            wanted = set(fields.week_days)
            days = [day for day in range(1, length + 1) if _week_day(day, first) in wanted]
        else:
            days = [day for day in fields.month_days if day <= length]
            days += [_month_day_rule(rule, length, first) for rule in fields.month_day_rules]
        return sum(1 << day for day in {day for day in days if day > 0})


def month_length(year: int, month: int) -> int:
    """Return the number of days of a month."""
    leap = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return _MONTH_LENGTHS[month] + leap


def _week_day(day: int, first: int) -> int:
    return (first - 1 + day - 1) % _WEEK + 1


def _month_day_rule(rule: MonthDayRule, length: int, first: int) -> int:
    """Return the day that a rule selects; 0 or less if the month has none."""
    if isinstance(rule, NearestWeekday):
        return _nearest(rule.day, length, first) if rule.day <= length else 0
    assert isinstance(rule, FromLast)
    day = length - rule.before
    return _nearest(day, length, first) if rule.weekday and day > 0 else day


def _nearest(day: int, length: int, first: int) -> int:
    """Return the nearest day from Monday to Friday within the month."""
    week_day = _week_day(day, first)
    if week_day == _SATURDAY:
        return day - 1 if day > 1 else day + 2
    if week_day == _SUNDAY:
        return day + 1 if day < length else day - 2
    return day


def _day_of_week_rule(rule: WeekDayRule, length: int, first: int) -> int:
    earliest = (rule.weekday - first) % _WEEK + 1
    if isinstance(rule, NthInMonth):
        day = earliest + _WEEK * (rule.number - 1)
        return day if day <= length else 0
    assert isinstance(rule, LastInMonth)
    return earliest + (length - earliest) // _WEEK * _WEEK
