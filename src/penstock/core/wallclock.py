"""Wall clocks of time zones: the time shown at an instant, and the first instant of a time.

Owns the arithmetic around the shifts of a zone's clock. Wall times are milliseconds since
1970-01-01 00:00:00 as shown by the clock; instants are milliseconds since the same time in UTC.
Shifts come from `zoneinfo`, found once for each requested year.

If a clock is set back, it *shows* some times twice; the time that it has *come to* stays the same
until the clock passes it again. So each wall time has one first instant, and days that begin at it
follow each other without a gap, even if the shift is at midnight. Invariant: the time that a clock
has come to never decreases.
"""

from __future__ import annotations

import difflib
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
class Stretches:
    """The periods between a clock's shifts, in order; they cover a year and some days around it.

    Attributes:
        starts: Their first instants.
        ahead_ms: Offset of the clock from UTC in each.
        come_ms: Exclusive end of the wall times that the clock had come to before each.
    """

    starts: tuple[int, ...]
    ahead_ms: tuple[int, ...]
    come_ms: tuple[int, ...]

    def at(self, ms: int) -> int:
        """Return the number of the period that contains an instant."""
        return bisect_right(self.starts, ms) - 1


class WallClock:
    """The clock of one zone. Immutable except for its cache.

    Args:
        zone: A name such as ``Europe/Berlin``, or an offset such as ``+05:30``.

    Raises:
        InvalidRequest: The zone does not exist; the message suggests the nearest name.
    """

    def __init__(self, zone: str) -> None:
        self.zone: Final = zone
        self._zone = _zone_of(zone)
        self._of_year = functools.lru_cache(_YEARS_KEPT)(self._look)

    def stretches(self, year: int) -> Stretches:
        """Return the periods of a year of UTC."""
        return self._of_year(year)

    def around(self, ms: int) -> Stretches:
        """Return the periods of the year of an instant."""
        return self._of_year(1970 + month_of(_within(ms)) // 12)

    def shows(self, ms: int) -> int:
        """Return the wall time shown at an instant."""
        found = self.around(ms)
        return ms + found.ahead_ms[found.at(ms)]

    def come_to(self, ms: int) -> int:
        """Return the latest wall time that the clock has shown up to an instant."""
        found = self.around(ms)
        number = found.at(ms)
        return max(ms + found.ahead_ms[number], found.come_ms[number] - 1)

    def first(self, wall_ms: int) -> int:
        """Return the first instant at which the clock had come to a wall time.

        A wall time within a skipped hour or day is reached at the shift. For times before the years
        0001 to 9999 it is their start, after them their end.
        """
        found = self.around(wall_ms)
        # The period before the first one that begins after the wall time.
        number = max(bisect_right(found.come_ms, wall_ms) - 1, 0)
        at = max(found.starts[number], wall_ms - found.ahead_ms[number])
        return min(max(at, START_OF_TIME_MS), END_OF_TIME_MS)

    def _look(self, year: int) -> Stretches:
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
        return Stretches(tuple(starts), tuple(ahead), tuple(come))

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
def wall_clock(zone: str) -> WallClock:
    """Return the clock of a zone, the same one each time. Raises as `WallClock`."""
    return WallClock(zone)


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
    folded = {known.lower(): known for known in _names()}
    near = difflib.get_close_matches(name.lower(), list(folded), n=1, cutoff=0.6)
    hint = f": did you mean {folded[near[0]]}?" if near else ", such as Europe/Berlin or +05:30"
    raise InvalidRequest(f"unknown time zone {name!r}{hint}")


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


def _within(ms: int) -> int:
    return min(max(ms, START_OF_TIME_MS), END_OF_TIME_MS - SECOND_MS)
