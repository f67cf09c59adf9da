"""The clock on the wall in a time zone: what it shows at an instant, and when it came to a time.

Owns the arithmetic around the shifts of a zone's clock. Wall times are milliseconds since
1970-01-01 00:00:00 as the clock shows them; instants are the same of UTC. Shifts come from
`zoneinfo`, found once for each year that is asked for.

Where a clock is put back, what it *shows* is shown twice; how far it has *come* stands still until
the clock is past that again. So there is one first instant of each wall time, and days that begin
at it follow each other without a gap, whatever happens at midnight. Invariant: of two instants the
clock has not come further at the first.
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
# No clock was ever shifted twice within so short a time; four days are the least in all of tzdata.
_LOOK_EVERY_MS: Final = 2 * DAY_MS
# Around a year: longer than any shift, so that what came before is known at its start.
_MARGIN_MS: Final = 4 * DAY_MS
_YEARS_KEPT: Final = 20_000
_CLOCKS_KEPT: Final = 64


@dataclass(frozen=True, slots=True)
class Stretches:
    """The times between a clock's shifts, in order; they hold a year and some days around it.

    Attributes:
        starts: Their first instants.
        ahead_ms: By how much the clock is ahead of UTC in each.
        come_ms: The wall time up to which, but not including it, the clock had come before each.
    """

    starts: tuple[int, ...]
    ahead_ms: tuple[int, ...]
    come_ms: tuple[int, ...]

    def at(self, ms: int) -> int:
        """Return the number of the stretch that holds an instant."""
        return bisect_right(self.starts, ms) - 1


class WallClock:
    """The clock of one zone. Immutable but for what it keeps.

    Args:
        zone: A name such as ``Europe/Berlin``, or an offset such as ``+05:30``.

    Raises:
        InvalidRequest: There is no such zone; the message has the nearest name.
    """

    def __init__(self, zone: str) -> None:
        self.zone: Final = zone
        self._zone = _zone_of(zone)
        self._of_year = functools.lru_cache(_YEARS_KEPT)(self._look)

    def stretches(self, year: int) -> Stretches:
        """Return the stretches of a year of UTC."""
        return self._of_year(year)

    def around(self, ms: int) -> Stretches:
        """Return the stretches of the year that an instant lies in."""
        return self._of_year(1970 + month_of(_within(ms)) // 12)

    def shows(self, ms: int) -> int:
        """Return the wall time that the clock shows at an instant."""
        found = self.around(ms)
        return ms + found.ahead_ms[found.at(ms)]

    def come_to(self, ms: int) -> int:
        """Return the latest wall time that the clock has shown up to an instant."""
        found = self.around(ms)
        number = found.at(ms)
        return max(ms + found.ahead_ms[number], found.come_ms[number] - 1)

    def first(self, wall_ms: int) -> int:
        """Return the first instant at which the clock had come to a wall time.

        One that lies within a skipped hour or day is come to when that is skipped. Before the years
        0001 to 9999 it is their start, behind them their end.
        """
        found = self.around(wall_ms)
        # The stretch before the first one that begins behind it.
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
        """Return the first instant behind a shift, which lies between two instants."""
        return low + bisect_left(range(low, high), x=True, key=lambda ms: self._ahead(ms) != before)

    def _ahead(self, ms: int) -> int:
        # Python's calendar has no time of day beyond its ends, and no clock was shifted there.
        inside = min(max(ms, START_OF_TIME_MS + DAY_MS), END_OF_TIME_MS - DAY_MS)
        offset = (_EPOCH + inside * _MS).astimezone(self._zone).utcoffset()
        assert offset is not None
        return offset // _MS


@functools.lru_cache(_CLOCKS_KEPT)
def wall_clock(zone: str) -> WallClock:
    """Return the clock of a zone, the same one each time. Raises as `WallClock`."""
    return WallClock(zone)


def is_utc(zone: str) -> bool:
    """Tell whether a zone's name is one of UTC's."""
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
    raise InvalidRequest(f"{name!r} is no time zone{hint}")


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


def _within(ms: int) -> int:
    return min(max(ms, START_OF_TIME_MS), END_OF_TIME_MS - SECOND_MS)
