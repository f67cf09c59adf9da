"""Half-open intervals of time, and the granularities that cut time into them.

Owns `Interval` and `Granularity`; text and calendar come from `core.instants`, which this module
passes on (`parse_time`, `format_time`). Invariants: an interval's start is not after its end, both
lie within the years 0001 to 9999, and every instant is in exactly one bucket of a granularity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.durations import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    SECOND_MS,
    WEEK_MS,
    Period,
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

# How Druid's tools write "all of time"; years beyond 9999 have no other use here.
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
            InvalidRequest: The text is none of the three, or ends before it starts.
        """
        if text.strip() == _DRUID_ETERNITY:
            return ETERNITY
        start, slash, end = (part.strip() for part in text.partition("/"))
        if not slash or not start or not end or "/" in end:
            raise InvalidRequest(
                f"{text!r} is no interval: write two times, such as 2013-01-01/2013-02-01"
            )
        if end[0] in "Pp" and start[0] in "Pp":
            raise InvalidRequest(f"{text!r} is no interval: one side must be a time")
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
        """Whether no instant lies in it."""
        return self.start_ms == self.end_ms

    @property
    def length_ms(self) -> int:
        """How long it is."""
        return self.end_ms - self.start_ms

    def contains(self, ms: int) -> bool:
        """Tell whether the instant lies in it."""
        return self.start_ms <= ms < self.end_ms

    def covers(self, other: Interval) -> bool:
        """Tell whether every instant of the other lies in this one; an empty one's place counts."""
        return self.start_ms <= other.start_ms and other.end_ms <= self.end_ms

    def overlaps(self, other: Interval) -> bool:
        """Tell whether an instant lies in both; touching ends do not overlap."""
        return max(self.start_ms, other.start_ms) < min(self.end_ms, other.end_ms)

    def intersection(self, other: Interval) -> Interval | None:
        """Return what lies in both, or None where they do not overlap."""
        if not self.overlaps(other):
            return None
        return Interval(max(self.start_ms, other.start_ms), min(self.end_ms, other.end_ms))


def condensed(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the same time in as few intervals as there can be, in order."""
    made: list[Interval] = []
    for one in sorted(intervals):
        if made and one.start_ms <= made[-1].end_ms:
            made[-1] = Interval(made[-1].start_ms, max(made[-1].end_ms, one.end_ms))
        else:
            made.append(one)
    return made


ETERNITY: Final = Interval(START_OF_TIME_MS, END_OF_TIME_MS)


@dataclass(frozen=True, slots=True)
class Granularity:
    """How time is cut into buckets: by months, by a fixed length, not at all, or at every instant.

    Two spellings of the same cut are equal: ``PT1H`` is ``HOUR``. Weeks begin on Mondays; other
    fixed lengths are counted from 1970-01-01, months from January.

    Args:
        name: ``HOUR``, ``DAY`` …, or the period for one that has no name.
        months: Months in a bucket, or 0.
        fixed_ms: Milliseconds in a bucket, or 0.
        origin_ms: Where fixed buckets are counted from.
    """

    name: str
    months: int = 0
    fixed_ms: int = 0
    origin_ms: int = 0

    @classmethod
    def parse(cls, text: str) -> Granularity:
        """Return a granularity by its name or its ISO 8601 period, in any case.

        Raises:
            InvalidRequest: It is neither, or the period mixes months with days or weeks with days.
        """
        name = text.strip().upper()
        if name in _NAMED:
            return _NAMED[name]
        if not name.startswith("P"):
            raise InvalidRequest(
                f"{text!r} is no granularity: use one of {', '.join(_NAMED)}, "
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

    def bucket(self, ms: int) -> Interval:
        """Return the bucket that holds the instant, cut off at the ends of time.

        Raises:
            InvalidRequest: The instant lies outside the years 0001 to 9999.
        """
        if not START_OF_TIME_MS <= ms < END_OF_TIME_MS:
            raise InvalidRequest(f"{ms} ms lies outside the years 0001 to 9999: check its unit")
        if self.months:
            month = month_of(ms)
            month -= month % self.months
            return Interval(start_of_month(month), start_of_month(month + self.months))
        if self.fixed_ms:
            start = ms - (ms - self.origin_ms) % self.fixed_ms
            end = start + self.fixed_ms
            return Interval(max(start, START_OF_TIME_MS), min(end, END_OF_TIME_MS))
        return ETERNITY

    def truncate(self, ms: int) -> int:
        """Return the start of the instant's bucket. Raises as `bucket`."""
        return self.bucket(ms).start_ms

    def is_aligned(self, interval: Interval) -> bool:
        """Tell whether the interval begins and ends where buckets do."""
        return all(
            at == END_OF_TIME_MS or self.truncate(at) == at
            for at in (interval.start_ms, interval.end_ms)
        )

    def buckets(self, interval: Interval) -> Iterator[Interval]:
        """Yield, in order, every bucket that overlaps the interval."""
        at = interval.start_ms
        while at < interval.end_ms:
            bucket = self.bucket(at)
            yield bucket
            at = bucket.end_ms


def _shift(ms: int, period: Period, direction: int) -> int:
    return check_instant(add_months(ms, direction * period.months) + direction * period.ms)


_MONDAY_MS: Final = 4 * DAY_MS  # 1970-01-05

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
"""Those with a name that make time chunks, from coarse to fine."""
