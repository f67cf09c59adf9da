"""Clock arithmetic and time buckets of a time zone.

`ZonedClock` converts between instants and wall times across the offset changes of a zone. Wall
times are milliseconds since 1970-01-01 00:00:00 as the clock shows them; instants are
milliseconds since the epoch in UTC. Offset changes come from `zoneinfo` and are computed once
for each year.

When a clock is set back, it *shows* some times twice; the time that it has *reached* stays
constant until the clock has passed it again. Each wall time therefore has exactly one first
instant, and consecutive days have no gap between them.

`ZonedBuckets` divides the time of a zone into hours, days, weeks, months and other units. Days
and longer units begin when the clock first reaches their midnight: a day may have 23 or 25
hours, and a skipped day has no bucket. Shorter units begin whenever the clock shows a multiple
of the unit and at each day's start; an hour that is shown twice is two buckets.

Invariants: the reached time never decreases from one instant to a later one. Each instant is in
exactly one bucket, and the buckets of a unit lie within those of its multiples. Values are
immutable except for caches.
"""

from __future__ import annotations

import functools
import re
import zoneinfo
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final

from penstock.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from penstock.core.errors import InvalidRequest
from penstock.core.instants import END_OF_TIME_MS, START_OF_TIME_MS, month_of, start_of_month
from penstock.core.similar_names import most_similar

if TYPE_CHECKING:
    from datetime import tzinfo


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_OFFSET: Final = re.compile(r"(?P<sign>[+-])(?P<hours>\d\d):(?P<minutes>[0-5]\d)", re.ASCII)
_OFFSET_MAX_MS: Final = 18 * HOUR_MS
# No clock was ever shifted twice within this time; the minimum in all of tzdata is four days.
_LOOK_EVERY_MS: Final = 2 * DAY_MS
# Margin around a year, longer than any shift, so that earlier wall times are known at its start.
_MARGIN_MS: Final = 4 * DAY_MS
_YEARS_KEPT: Final = 20_000
_CLOCKS_KEPT: Final = 64


@dataclass(frozen=True, slots=True)
class ShiftPeriods:
    """The periods between a clock's shifts, in order; they cover a year and some days around it.

    Attributes:
        starts: Their first instants.
        ahead_ms: Offset of the clock from UTC in each period.
        come_ms: Exclusive end of the wall times that the clock had reached before each period.
    """

    starts: tuple[int, ...]
    ahead_ms: tuple[int, ...]
    come_ms: tuple[int, ...]

    def at(self, ms: int) -> int:
        """Return the number of the period that contains an instant."""
        return bisect_right(self.starts, ms) - 1


class ZonedClock:
    """The clock of one zone. Immutable except for its cache.

    Args:
        zone: A name such as ``Europe/Berlin``, or an offset such as ``+05:30``.

    Raises:
        InvalidRequest: The zone does not exist; the message suggests the nearest name.
    """

    def __init__(self, zone: str) -> None:
        self.zone: Final = zone
        self._zone = _zone_of(zone)
        self._of_year = functools.lru_cache(_YEARS_KEPT)(self._find_shift_periods)

    def shift_periods(self, year: int) -> ShiftPeriods:
        """Return the periods of a year of UTC."""
        return self._of_year(year)

    def around(self, ms: int) -> ShiftPeriods:
        """Return the periods of the year of an instant."""
        return self._of_year(1970 + month_of(_within(ms)) // 12)

    def shows(self, ms: int) -> int:
        """Return the wall time shown at an instant."""
        found = self.around(ms)
        return ms + found.ahead_ms[found.at(ms)]

    def latest_wall_time(self, ms: int) -> int:
        """Return the latest wall time that the clock has shown up to an instant."""
        found = self.around(ms)
        number = found.at(ms)
        return max(ms + found.ahead_ms[number], found.come_ms[number] - 1)

    def first(self, wall_ms: int) -> int:
        """Return the first instant at which the clock has reached a wall time.

        A wall time within a skipped hour or day is reached at the shift. For a time before the year
        0001 or after 9999, the result is the start or end of these years.
        """
        found = self.around(wall_ms)
        # The period before the first one that begins after the wall time.
        number = max(bisect_right(found.come_ms, wall_ms) - 1, 0)
        at = max(found.starts[number], wall_ms - found.ahead_ms[number])
        return min(max(at, START_OF_TIME_MS), END_OF_TIME_MS)

    def _find_shift_periods(self, year: int) -> ShiftPeriods:
        month = (year - 1970) * 12
        start = max(start_of_month(month) - _MARGIN_MS, START_OF_TIME_MS)
        end = min(start_of_month(month + 12) + _MARGIN_MS, END_OF_TIME_MS)
        starts, ahead = [start], [self._ahead(start)]
        for at in range(start + _LOOK_EVERY_MS, end, _LOOK_EVERY_MS):
            before, now = ahead[-1], self._ahead(at)
            if now != before:
                starts.append(self._shift(at - _LOOK_EVERY_MS, at, before))
                ahead.append(now)
        come = [start + ahead[0]]
        for shift, offset in zip(starts[1:], ahead, strict=False):
            come.append(max(come[-1], shift + offset))
        return ShiftPeriods(tuple(starts), tuple(ahead), tuple(come))

    def _shift(self, low: int, high: int, before: int) -> int:
        """Return the first instant after a shift, which lies between two instants."""
        return low + bisect_left(range(low, high), x=True, key=lambda ms: self._ahead(ms) != before)

    def _ahead(self, ms: int) -> int:
        # Python's calendar ends at the limits of these years, and no clock was shifted there.
        inside = min(max(ms, START_OF_TIME_MS + DAY_MS), END_OF_TIME_MS - DAY_MS)
        offset = (_EPOCH + inside * _MS).astimezone(self._zone).utcoffset()
        assert offset is not None
        return offset // _MS


@functools.lru_cache(_CLOCKS_KEPT)
def zoned_clock(zone: str) -> ZonedClock:
    """Return the clock of a zone, the same one each time. Raises as `ZonedClock`."""
    return ZonedClock(zone)


def is_utc(zone: str) -> bool:
    """Return whether a zone's name is one of UTC's."""
    return zone in _UTC


_UTC: Final = frozenset({"UTC", "Z", "Etc/UTC", "Etc/GMT", "GMT", "+00:00", "UCT", "Zulu"})


def _zone_of(name: str) -> tzinfo:
    if offset := _OFFSET.fullmatch(name):
        ahead = int(offset["hours"]) * HOUR_MS + int(offset["minutes"]) * MINUTE_MS
        if ahead <= _OFFSET_MAX_MS:
            return timezone((ahead if offset["sign"] == "+" else -ahead) * _MS)
    elif name in _names():
        return zoneinfo.ZoneInfo(name)
    near = most_similar(name, sorted(_names()))
    hint = ", such as Europe/Berlin or +05:30" if near is None else f": did you mean {near}?"
    raise InvalidRequest(f"unknown time zone {name!r}{hint}")


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


def _within(ms: int) -> int:
    return min(max(ms, START_OF_TIME_MS), END_OF_TIME_MS - SECOND_MS)


_CYCLE_MONTHS: Final = 400 * 12
_CYCLE_MS: Final = 146_097 * DAY_MS  # the calendar repeats after 400 years


@dataclass(frozen=True, slots=True)
class ZonedBuckets:
    """Division of one zone's time into buckets.

    Args:
        zone: The zone.
        months: Months in a bucket, or 0.
        fixed_ms: Otherwise its length: whole days, or a divisor of a day.
        origin_ms: The wall time at which counting begins; None: months count from January of the
            year 0, and fixed lengths from 1970-01-01.
    """

    zone: str
    months: int
    fixed_ms: int
    origin_ms: int | None

    @property
    def clock(self) -> ZonedClock:
        """The clock of the zone; not stored, because granularities are sent to other processes."""
        return zoned_clock(self.zone)

    @property
    def is_within_day(self) -> bool:
        """Whether the buckets are shorter than a day."""
        return 0 < self.fixed_ms < DAY_MS

    def bounds(self, ms: int) -> tuple[int, int]:
        """Return the first instant of the bucket that contains an instant, and of the next one."""
        if self.is_within_day:
            return self._start_in_day(ms), self._end_in_day(ms)
        low, high = self.wall_times(self.clock.latest_wall_time(ms))
        return self.clock.first(low), self.clock.first(high)

    def wall_times(self, wall_ms: int) -> tuple[int, int]:
        """Return the wall times at which a bucket of at least a day begins and ends."""
        if not self.months:
            origin = self.origin_ms or 0
            low = wall_ms - (wall_ms - origin) % self.fixed_ms
            return low, low + self.fixed_ms
        if self.origin_ms is None:
            month = _month_of(wall_ms)
            month -= month % self.months
            return _start_of_month(month), _start_of_month(month + self.months)
        since = _month_of(wall_ms) - _month_of(self.origin_ms)
        since -= since % self.months
        # The origin may be later in its month than the wall time, and months differ in length.
        while _months_on(self.origin_ms, since) > wall_ms:
            since -= self.months
        while _months_on(self.origin_ms, since + self.months) <= wall_ms:
            since += self.months
        end = _months_on(self.origin_ms, since + self.months)
        return _months_on(self.origin_ms, since), end

    def _start_in_day(self, ms: int) -> int:
        while True:
            found = self.clock.around(ms)
            number = found.at(ms)
            ahead, shift = found.ahead_ms[number], found.starts[number]
            start = ms - (ms + ahead) % self.fixed_ms
            if start >= shift or number == 0:
                return max(start, shift)
            if self._is_new_day(found.come_ms[number], shift + ahead):
                return shift
            ms = shift - 1

    def _end_in_day(self, ms: int) -> int:
        while True:
            found = self.clock.around(ms)
            number = found.at(ms)
            end = ms + self.fixed_ms - (ms + found.ahead_ms[number]) % self.fixed_ms
            if number + 1 == len(found.starts) or end < found.starts[number + 1]:
                return end
            ms = found.starts[number + 1]
            shown = ms + found.ahead_ms[number + 1]
            if not shown % self.fixed_ms or self._is_new_day(found.come_ms[number + 1], shown):
                return ms

    def _is_new_day(self, come_ms: int, shown_ms: int) -> bool:
        """Return whether a shift of the clock skips a midnight."""
        return shown_ms // DAY_MS > (come_ms - 1) // DAY_MS


def _month_of(wall_ms: int) -> int:
    """Return the months since 1970-01, also outside the years 0001 to 9999."""
    if wall_ms < 0:
        return month_of(wall_ms + _CYCLE_MS) - _CYCLE_MONTHS
    return month_of(wall_ms - _CYCLE_MS) + _CYCLE_MONTHS


def _start_of_month(month: int) -> int:
    if month < 0:
        return start_of_month(month + _CYCLE_MONTHS) - _CYCLE_MS
    return start_of_month(month - _CYCLE_MONTHS) + _CYCLE_MS


def _months_on(origin_ms: int, months: int) -> int:
    """Return the wall time some months after another: the same day, or the month's last."""
    month = _month_of(origin_ms)
    day, in_day = divmod(origin_ms - _start_of_month(month), DAY_MS)
    begin, following = _start_of_month(month + months), _start_of_month(month + months + 1)
    last_day = (following - begin) // DAY_MS - 1
    return begin + min(day, last_day) * DAY_MS + in_day
