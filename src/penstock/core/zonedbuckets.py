"""Time buckets by the clock of a zone: its hours, days, weeks and months.

Owns where they begin. Buckets of a day or longer begin when the clock first reaches their first
midnight: a day may have 23 or 25 hours, and a day that the zone skipped has no bucket. Buckets
shorter than a day begin whenever the clock shows a multiple of their length, and with each day; so
an hour that is shown twice is two buckets. Invariants: each instant is in exactly one bucket, and
the buckets of a length lie within those of its multiples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.durations import DAY_MS
from penstock.core.instants import month_of, start_of_month
from penstock.core.wallclock import wall_clock

if TYPE_CHECKING:
    from penstock.core.wallclock import WallClock

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
    def clock(self) -> WallClock:
        """The clock of the zone; not stored, because granularities are sent to other processes."""
        return wall_clock(self.zone)

    @property
    def is_within_day(self) -> bool:
        """Whether the buckets are shorter than a day."""
        return 0 < self.fixed_ms < DAY_MS

    def bounds(self, ms: int) -> tuple[int, int]:
        """Return the first instant of the bucket that contains an instant, and of the next one."""
        if self.is_within_day:
            return self._start_in_day(ms), self._end_in_day(ms)
        low, high = self.walls(self.clock.come_to(ms))
        return self.clock.first(low), self.clock.first(high)

    def walls(self, wall_ms: int) -> tuple[int, int]:
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
