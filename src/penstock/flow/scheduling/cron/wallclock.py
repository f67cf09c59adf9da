"""Search for the next matching wall clock time, without a zone.

Owns the search by fields: seconds of the day through tables, days through masks of months. It never
steps by seconds. Times are seconds since 1970-01-01 00:00:00 of a wall clock that is never shifted;
`zones` converts them.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Final

from penstock.flow.scheduling.cron.days import MonthDays
from penstock.flow.scheduling.cron.parser import MAX_YEAR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.flow.scheduling.cron.parser import ParsedFields

DAY_S: Final = 86_400
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_NONE: Final = -1


class WallClock:
    """Matching times of an expression on the wall clock. Immutable except for its caches."""

    def __init__(self, fields: ParsedFields) -> None:
        self._days = MonthDays(fields)
        self._next_month = _next_table(fields.months, 12)
        self._years = frozenset(fields.years)
        self._last_year = min(max(self._years), MAX_YEAR)
        self._next_hour = _next_table(fields.hours, 23)
        self._next_minute = _next_table(fields.minutes, 59)
        self._next_second = _next_table(fields.seconds, 59)
        self._first_in_hour = fields.minutes[0] * 60 + fields.seconds[0]
        self._first_in_day = fields.hours[0] * 3600 + self._first_in_hour
        self._first_second = fields.seconds[0]
        # Month of the last search: most searches end in the month in which they begin.
        self._known: tuple[int, int, int] = (0, 0, 0)

    def at_or_after(self, time_s: int) -> int | None:
        """Return the first matching time at or after a time; None if there is none."""
        day, in_day = divmod(time_s, DAY_S)
        # Start and end are days of one month; `mask` applies only to that month.
        start, end, mask = self._known
        if not start <= day < end:
            start, end, mask = self._learn(day)
        if mask >> (day - start + 1) & 1:
            found = self._in_day(in_day)
            if found != _NONE:
                return day * DAY_S + found
        later = mask >> (day - start + 2)
        if later:
            return (day + (later & -later).bit_length()) * DAY_S + self._first_in_day
        following = self._first_day_from(end)
        return None if following is None else following * DAY_S + self._first_in_day

    def _in_day(self, in_day: int) -> int:
        """Return the first matching second of the day at or after a second."""
        minute_of_day, second = divmod(in_day, 60)
        hour, minute = divmod(minute_of_day, 60)
        if self._next_hour[hour] == hour:
            if self._next_minute[minute] == minute:
                second = self._next_second[second]
                if second != _NONE:
                    return minute_of_day * 60 + second
            minute = self._next_minute[minute + 1]
            if minute != _NONE:
                return hour * 3600 + minute * 60 + self._first_second
        hour = self._next_hour[hour + 1]
        return _NONE if hour == _NONE else hour * 3600 + self._first_in_hour

    def _learn(self, day: int) -> tuple[int, int, int]:
        """Return the first day, the day after the last, and the mask of the month of a day."""
        if day < 0:  # nothing matches before 1970
            return day, 0, 0
        at = date.fromordinal(day + _EPOCH_ORDINAL)
        self._known = known = self._month(at.year, at.month)
        return known

    def _month(self, year: int, month: int) -> tuple[int, int, int]:
        start = date(year, month, 1).toordinal() - _EPOCH_ORDINAL
        after = (year + 1, 1) if month == 12 else (year, month + 1)
        end = date(*after, 1).toordinal() - _EPOCH_ORDINAL
        matches = year in self._years and self._next_month[month] == month
        return start, end, self._days.mask(year, month) if matches else 0

    def _first_day_from(self, day: int) -> int | None:
        """Return the first matching day, searching from the first day of a month."""
        at = date.fromordinal(day + _EPOCH_ORDINAL)
        year, month = at.year, at.month
        while year <= self._last_year:
            if year in self._years:
                month = self._next_month[month]
                while month != _NONE:
                    mask = self._days.mask(year, month)
                    if mask:
                        first = (mask & -mask).bit_length() - 1
                        self._known = known = self._month(year, month)
                        return known[0] + first - 1
                    month = self._next_month[month + 1]
            year, month = year + 1, 1
        return None


def _next_table(values: Sequence[int], last: int) -> tuple[int, ...]:
    """Return for each number up to `last` + 1 the first value that is not below it, or -1."""
    found = _NONE
    table = [_NONE] * (last + 2)
    wanted = set(values)
    for number in range(last, -1, -1):
        if number in wanted:
            found = number
        table[number] = found
    return tuple(table)
