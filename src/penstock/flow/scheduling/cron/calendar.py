"""Calendar of CRON expressions: matching days, next wall times, and time zones.

`MonthDays` computes which days of a month an expression matches, with L, W and #, as a bit mask
whose bit 1 is the first day. `CronCalendar` searches for the next matching wall time through
tables of seconds and masks of days; it never steps by seconds. `ZoneClock` converts between the
wall clock of a zone and UTC, with skipped and repeated hours. Does not own which of the
repeated times fire (`expression`).

Wall times are seconds since 1970-01-01 00:00:00 as the clock shows them; instants are seconds
since then in UTC. All classes are immutable, except for caches.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from penstock.core.errors import InvalidRequest
from penstock.flow.scheduling.cron.cron_parser import (
    MAX_YEAR,
    FromLast,
    LastInMonth,
    NearestWeekday,
    NthInMonth,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.flow.scheduling.cron.cron_parser import MonthDayRule, ParsedFields, WeekDayRule


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
    """Return the day that a rule selects; 0 or less if the month has no such day."""
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


DAY_S: Final = 86_400
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_NONE: Final = -1


class CronCalendar:
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


_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - of the wall clock
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_DAY_S: Final = 86_400
_SPAN_BITS: Final = 19  # six days
_SPANS_KEPT: Final = 1_024


def zone_of(name: str) -> tzinfo:
    """Return a zone by its name, such as ``Europe/Berlin``.

    Raises:
        InvalidRequest: No zone has this name.
    """
    if name.upper() in ("UTC", "Z"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidRequest(
            f"unknown time zone {name!r}: write one such as Europe/Berlin or UTC", place="zone"
        ) from None


class ZoneClock:
    """Wall clock of a zone.

    Attributes:
        fixed_s: Its constant offset from UTC, in seconds; None if it may shift.
    """

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._steady: dict[int, int | None] = {}
        offset = zone.utcoffset(None)
        self.fixed_s: Final = None if offset is None else offset // _SECOND

    def steady_s(self, instant_s: int) -> int | None:
        """Return the offset at an instant if the clock does not shift near it; otherwise None.

        The result is cached, because most times are far from a shift.
        """
        span = instant_s >> _SPAN_BITS
        try:
            return self._steady[span]
        except KeyError:
            if len(self._steady) >= _SPANS_KEPT:
                self._steady.clear()
            # No zone shifts twice within days. The span is extended by one day on both sides,
            # because the wall time differs from UTC.
            before = self.offset_s((span << _SPAN_BITS) - _DAY_S)
            after = self.offset_s((span + 1 << _SPAN_BITS) + _DAY_S)
            self._steady[span] = steady = before if before == after else None
            return steady

    def offset_s(self, instant_s: int) -> int:
        """Return the offset of the wall clock from UTC at an instant."""
        moment = (_EPOCH_UTC + timedelta(seconds=instant_s)).astimezone(self._zone)
        return _seconds(moment)

    def instants(self, wall_s: int) -> tuple[int, int]:
        """Return the first and the second instant at which the wall clock shows a time.

        Equal: it shows the time once. First before second: it shows the time twice. First after
        second: it skips the time.
        """
        moment = (_EPOCH + timedelta(seconds=wall_s)).replace(tzinfo=self._zone)
        return wall_s - _seconds(moment), wall_s - _seconds(moment.replace(fold=1))

    def shift(self, first_s: int, second_s: int) -> tuple[int, int]:
        """Return the wall times just before and at the shift between two instants of `instants`.

        For a repeated hour: its end and its start. For a skipped hour: its start and its end.
        """
        low, high = sorted((first_s, second_s))
        before = self.offset_s(low)
        # The first instant with another offset: one shift lies between the two.
        while high - low > 1:
            middle = (low + high) // 2
            if self.offset_s(middle) == before:
                low = middle
            else:
                high = middle
        return high + before, high + self.offset_s(high)


def _seconds(moment: datetime) -> int:
    offset = moment.utcoffset()
    assert offset is not None
    return offset // _SECOND
