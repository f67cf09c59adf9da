"""Half-open intervals of time, and the granularities that divide time into them.

Owns `Interval` and `Granularity`; text and calendar come from `core.instants`, from which this
module re-exports `parse_time` and `format_time`, and zones from `core.zoned_time`.
Invariants: an interval's start is not after its end, both lie within the years 0001 to 9999, and
every instant is in exactly one bucket of a granularity.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.durations import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    SECOND_MS,
    WEEK_MS,
    Period,
    format_duration,
    parse_period,
)
from penstock.core.errors import InvalidRequest
from penstock.core.instants import (
    END_OF_TIME_MS,
    START_OF_TIME_MS,
    add_months,
    check_instant,
    format_time,
    month_of,
    parse_time,
    start_of_month,
)
from penstock.core.zoned_time import ZonedBuckets, is_utc, zoned_clock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "END_OF_TIME_MS",
    "ETERNITY",
    "START_OF_TIME_MS",
    "Granularity",
    "Interval",
    "condensed",
    "format_time",
    "parse_time",
]

# How Druid's tools write "all of time"; other years beyond 9999 are not supported.
_DRUID_ETERNITY: Final = "-146136543-09-08T08:23:32.096Z/146140482-04-24T15:36:27.903Z"


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """The time from `start_ms` up to, but not including, `end_ms`; ordered by start, then end.

    Raises:
        InvalidRequest: The start is after the end, or one lies outside the years 0001 to 9999.
    """

    start_ms: int
    end_ms: int

    def __post_init__(self) -> None:
        if check_instant(self.start_ms) > check_instant(self.end_ms):
            raise InvalidRequest(
                f"interval {self} ends before it starts: swap its two times",
            )

    @classmethod
    def parse(cls, text: str) -> Interval:
        """Parse ``start/end``, ``start/period`` or ``period/end`` in ISO 8601.

        Raises:
            InvalidRequest: The text has none of the three forms, or ends before it starts.
        """
        if text.strip() == _DRUID_ETERNITY:
            return ETERNITY
        start, slash, end = (part.strip() for part in text.partition("/"))
        if not slash or not start or not end or "/" in end:
            raise InvalidRequest(f"invalid interval {text!r}: {_interval_remedy(text.strip())}")
        if end[0] in "Pp" and start[0] in "Pp":
            raise InvalidRequest(f"invalid interval {text!r}: one side must be a time")
        if end[0] in "Pp":
            start_ms = parse_time(start)
            return cls(start_ms, _shift(start_ms, parse_period(end), 1))
        if start[0] in "Pp":
            end_ms = parse_time(end)
            return cls(_shift(end_ms, parse_period(start), -1), end_ms)
        return cls(parse_time(start), parse_time(end))

    def __str__(self) -> str:
        return f"{format_time(self.start_ms)}/{format_time(self.end_ms)}"

    @property
    def is_empty(self) -> bool:
        """Whether it contains no instant."""
        return self.start_ms == self.end_ms

    @property
    def length_ms(self) -> int:
        """Its length."""
        return self.end_ms - self.start_ms

    def contains(self, ms: int) -> bool:
        """Return whether the interval contains the instant."""
        return self.start_ms <= ms < self.end_ms

    def covers(self, other: Interval) -> bool:
        """Return whether the other lies within this one; the position of an empty one counts."""
        return self.start_ms <= other.start_ms and other.end_ms <= self.end_ms

    def overlaps(self, other: Interval) -> bool:
        """Return whether the intervals share an instant; touching ends do not overlap."""
        return max(self.start_ms, other.start_ms) < min(self.end_ms, other.end_ms)

    def intersection(self, other: Interval) -> Interval | None:
        """Return the common interval, or None if they do not overlap."""
        if not self.overlaps(other):
            return None
        return Interval(max(self.start_ms, other.start_ms), min(self.end_ms, other.end_ms))


def _interval_remedy(text: str) -> str:
    """Return the remedy: a single time may be meant as the day, month or year that it names."""
    with contextlib.suppress(InvalidRequest):
        parse_time(text)
        length = {4: "P1Y", 7: "P1M", 10: "P1D"}.get(len(text), "PT1H")
        return f"that is one time; write {text}/{length} for the time from there, or two times"
    return "write two times, such as 2013-01-01/2013-02-01"


def condensed(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the same time in as few intervals as possible, in order."""
    made: list[Interval] = []
    for one in sorted(intervals):
        if made and one.start_ms <= made[-1].end_ms:
            made[-1] = Interval(made[-1].start_ms, max(made[-1].end_ms, one.end_ms))
        else:
            made.append(one)
    return made


def apart(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge overlapping intervals, and return them in order; touching ones stay separate."""
    made: list[Interval] = []
    for one in sorted(intervals):
        if made and one.start_ms < made[-1].end_ms:
            made[-1] = Interval(made[-1].start_ms, max(made[-1].end_ms, one.end_ms))
        else:
            made.append(one)
    return made


ETERNITY: Final = Interval(START_OF_TIME_MS, END_OF_TIME_MS)


@dataclass(frozen=True, slots=True)
class Granularity:
    """Division of time into buckets: by months, by a fixed length, not at all, or at every instant.

    Or its buckets are given explicitly (`of_intervals`); the time between two of them, before the
    first or after the last is a bucket, too, called a gap.

    Two spellings of the same division are equal: ``PT1H`` is ``HOUR``. Weeks begin on Mondays;
    other fixed lengths are counted from 1970-01-01, months from January. A zone other than UTC and
    an origin follow the period: ``P1D in Europe/Berlin from 2013-01-01T06:00:00+01:00``.

    Args:
        name: ``HOUR``, ``DAY`` …, or the text of a division without a name.
        months: Months in a bucket, or 0.
        fixed_ms: Milliseconds in a bucket, or 0.
        origin_ms: Instant from which fixed buckets are counted.
        zoned: The buckets, if they follow the clock of a zone.
        given: The explicit buckets without the gaps, in order.
    """

    name: str
    months: int = 0
    fixed_ms: int = 0
    origin_ms: int = 0
    zoned: ZonedBuckets | None = None
    given: tuple[Interval, ...] = ()

    @classmethod
    def of_intervals(cls, intervals: Iterable[Interval]) -> Granularity:
        """Return the granularity with these buckets; duplicates are ignored.

        Raises:
            InvalidRequest: Two overlap, one is empty, or there are none.
        """
        given = tuple(sorted(set(intervals)))
        for one, other in itertools.pairwise(given):
            if one.end_ms > other.start_ms:
                raise InvalidRequest(f"intervals {one} and {other} overlap: change one of them")
        if not given or any(one.is_empty for one in given):
            raise InvalidRequest("the intervals of a granularity are empty: specify one or more")
        return cls("ARBITRARY", given=given)

    @classmethod
    def parse(cls, text: str) -> Granularity:
        """Parse a name or an ISO 8601 period, in any case.

        A zone and an origin may follow it.

        Raises:
            InvalidRequest: It is neither, the period mixes months with days or weeks with days, or
                the zone does not exist.
        """
        name = text.strip().upper()
        if name in _NAMED:
            return _NAMED[name]
        if apart := _ZONED.fullmatch(text.strip()):
            return _placed(cls.parse(apart["period"]), apart["zone"], apart["origin"])
        if not name.startswith("P"):
            raise InvalidRequest(
                f"unknown granularity {text!r}: use one of {', '.join(_NAMED)}, "
                "or a period such as PT2H"
            )
        period = parse_period(name)
        if period.months and period.ms:
            raise InvalidRequest(f"granularity {text!r} mixes months with days: use one of them")
        origin = _MONDAY_MS if period.weeks_only else 0
        cut = (period.months, period.ms, origin)
        return _BY_CUT.get(cut) or cls(name, *cut)

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of_bucket(cls, bucket: Interval) -> Granularity:
        """Return a granularity with this bucket: one that has a name, if possible.

        Otherwise, such as for a day of a zone, its length is counted from its beginning.
        """
        for named in NAMED_GRANULARITIES:
            if named.bucket(bucket.start_ms) == bucket:
                return named
        text = f"{format_duration(bucket.length_ms)} from {format_time(bucket.start_ms)}"
        return cls.parse(text)

    def bucket(self, ms: int) -> Interval:
        """Return the bucket that contains the instant, clipped to the supported time.

        Raises:
            InvalidRequest: The instant lies outside the years 0001 to 9999.
        """
        if not START_OF_TIME_MS <= ms < END_OF_TIME_MS:
            raise InvalidRequest(f"{ms} ms lies outside the years 0001 to 9999: check its unit")
        if self.given:
            return self._given_at(ms)
        if self.zoned is not None:
            start, end = self.zoned.bounds(ms)
            return Interval(max(start, START_OF_TIME_MS), min(end, END_OF_TIME_MS))
        if self.months:
            month = month_of(ms)
            month -= month % self.months
            return Interval(start_of_month(month), start_of_month(month + self.months))
        if self.fixed_ms:
            start = ms - (ms - self.origin_ms) % self.fixed_ms
            end = start + self.fixed_ms
            return Interval(max(start, START_OF_TIME_MS), min(end, END_OF_TIME_MS))
        return ETERNITY

    def _given_at(self, ms: int) -> Interval:
        after = bisect_right(self.given, ms, key=lambda one: one.start_ms)
        before = self.given[after - 1] if after else None
        if before is not None and before.contains(ms):
            return before
        start = START_OF_TIME_MS if before is None else before.end_ms
        end = self.given[after].start_ms if after < len(self.given) else END_OF_TIME_MS
        return Interval(start, end)

    def is_gap(self, ms: int) -> bool:
        """Return whether the instant is in a gap between explicit buckets."""
        after = bisect_right(self.given, ms, key=lambda one: one.start_ms)
        return bool(self.given) and not (after and self.given[after - 1].contains(ms))

    def truncate(self, ms: int) -> int:
        """Return the start of the instant's bucket. Raises as `bucket`."""
        return self.bucket(ms).start_ms

    def is_aligned(self, interval: Interval) -> bool:
        """Return whether the interval begins and ends at borders of buckets."""
        return all(
            at == END_OF_TIME_MS or self.truncate(at) == at
            for at in (interval.start_ms, interval.end_ms)
        )

    def buckets(self, interval: Interval) -> Iterator[Interval]:
        """Yield every bucket that overlaps the interval, in order."""
        at = interval.start_ms
        while at < interval.end_ms:
            bucket = self.bucket(at)
            yield bucket
            at = bucket.end_ms


def _placed(cut: Granularity, zone: str | None, origin: str | None) -> Granularity:
    """Convert a granularity of UTC to a zone or an origin."""
    zone = None if zone is None or is_utc(zone) else zone
    clock = zoned_clock(zone or "UTC")
    months, fixed_ms = cut.months, cut.fixed_ms
    if not (months or fixed_ms) or fixed_ms == 1:
        return cut
    name = _period_of(cut) if zone is None else f"{_period_of(cut)} in {zone}"
    if origin is not None:
        return _begun(cut, name, zone, parse_time(origin))
    if zone is None or (fixed_ms and SECOND_MS % fixed_ms == 0):
        return cut  # All clocks show the same fractions of a second.
    if months or fixed_ms % DAY_MS == 0 or DAY_MS % fixed_ms == 0:
        begin = None if months else cut.origin_ms
        return Granularity(name, months, fixed_ms, 0, ZonedBuckets(zone, months, fixed_ms, begin))
    # No day is a multiple of the length, so buckets continue across days.
    return Granularity(name, 0, fixed_ms, clock.first(0) % fixed_ms)


def _begun(cut: Granularity, name: str, zone: str | None, origin_ms: int) -> Granularity:
    """Return a granularity that is counted from an instant."""
    months, fixed_ms = cut.months, cut.fixed_ms
    begin, usual = zoned_clock(zone or "UTC").shows(origin_ms), _placed(cut, zone, None)
    name = f"{name} from {format_time(origin_ms)}"
    if months:
        zoned = ZonedBuckets(zone or "UTC", months, 0, begin)
        plain = ZonedBuckets(zoned.zone, months, 0, None)
        is_usual = zoned.wall_times(begin) == plain.wall_times(begin)
        return usual if is_usual else Granularity(name, months, 0, 0, zoned)
    if zone is not None and fixed_ms % DAY_MS == 0:
        if begin % fixed_ms == cut.origin_ms % fixed_ms:
            return usual
        return Granularity(name, 0, fixed_ms, 0, ZonedBuckets(zone, 0, fixed_ms, begin % fixed_ms))
    counted = origin_ms % fixed_ms
    if counted == cut.origin_ms % fixed_ms:
        return _placed(cut, None, None)
    # Parts of a day that are counted from an instant follow no clock.
    return Granularity(f"{_period_of(cut)} from {format_time(counted)}", 0, fixed_ms, counted)


def _period_of(cut: Granularity) -> str:
    if cut.months:
        return f"P{cut.months}M"
    return f"P{cut.fixed_ms // WEEK_MS}W" if cut.origin_ms else format_duration(cut.fixed_ms)


def _shift(ms: int, period: Period, direction: int) -> int:
    return check_instant(add_months(ms, direction * period.months) + direction * period.ms)


_MONDAY_MS: Final = 4 * DAY_MS  # 1970-01-05
_ZONED: Final = re.compile(
    r"(?P<period>\S+)(?=\s)(?:\s+in\s+(?P<zone>\S+))?(?:\s+from\s+(?P<origin>\S+))?",
    re.IGNORECASE,
)

_NAMED: Final = {
    granularity.name: granularity
    for granularity in (
        Granularity("NONE", fixed_ms=1),
        Granularity("SECOND", fixed_ms=SECOND_MS),
        Granularity("MINUTE", fixed_ms=MINUTE_MS),
        Granularity("FIVE_MINUTE", fixed_ms=5 * MINUTE_MS),
        Granularity("TEN_MINUTE", fixed_ms=10 * MINUTE_MS),
        Granularity("FIFTEEN_MINUTE", fixed_ms=15 * MINUTE_MS),
        Granularity("THIRTY_MINUTE", fixed_ms=30 * MINUTE_MS),
        Granularity("HOUR", fixed_ms=HOUR_MS),
        Granularity("SIX_HOUR", fixed_ms=6 * HOUR_MS),
        Granularity("EIGHT_HOUR", fixed_ms=8 * HOUR_MS),
        Granularity("DAY", fixed_ms=DAY_MS),
        Granularity("WEEK", fixed_ms=WEEK_MS, origin_ms=_MONDAY_MS),
        Granularity("MONTH", months=1),
        Granularity("QUARTER", months=3),
        Granularity("YEAR", months=12),
        Granularity("ALL"),
    )
}
_BY_CUT: Final = {
    (granularity.months, granularity.fixed_ms, granularity.origin_ms): granularity
    for granularity in _NAMED.values()
    if granularity.name != "ALL"
}

NAMED_GRANULARITIES: Final = tuple(
    granularity for granularity in reversed(_NAMED.values()) if granularity.name != "NONE"
)
"""The named granularities of time chunks, from coarse to fine."""
