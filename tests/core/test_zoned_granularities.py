"""Hours, days, weeks and months by the clock of a zone, against a walk along that clock."""

from __future__ import annotations

import functools
import pickle
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import (
    END_OF_TIME_MS,
    START_OF_TIME_MS,
    Granularity,
    Interval,
    parse_time,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MINUTE = 60_000
DAY = 1440 * MINUTE
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = [
    "America/New_York",
    "America/Havana",  # its clock is put back at 1:00
    "America/Sao_Paulo",  # was shifted at midnight
    "America/St_Johns",  # half an hour, and was put back at 0:01, into the day before
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",  # shifted by half an hour
    "Pacific/Apia",  # without 2011-12-30
    "Africa/Casablanca",
    "Europe/Berlin",
    "UTC",
]
periods = st.sampled_from(["PT15M", "PT30M", "PT1H", "PT6H", "P1D", "P3D", "P1W", "P1M", "P1Y"])
zones = st.sampled_from(ZONES)
origins = st.sampled_from(["", " from 2020-01-31T09:30:00Z", " from 1931-07-01"])
instants = st.integers(START_OF_TIME_MS, END_OF_TIME_MS - 1)
minutes = st.integers(parse_time("1972") // MINUTE, parse_time("2060") // MINUTE)

# Around these a clock did something odd.
ODD = ["2011-12-29", "2024-03-10", "2024-11-02T12", "2008-10-18", "2009-02-14", "2007-11-03T12"]


def clock(zone: ZoneInfo, ms: int) -> datetime:
    return (EPOCH + timedelta(milliseconds=ms)).astimezone(zone)


def label(period: str) -> Callable[[datetime], object]:
    """What of a wall time names its bucket."""
    return {
        "P1D": lambda at: at.date(),
        "P1W": lambda at: at.isocalendar()[:2],
        "P1M": lambda at: (at.year, at.month),
        "P1Y": lambda at: at.year,
    }[period]


@functools.lru_cache(4)
def minutes_of(zone: str, start: int, end: int) -> list[tuple[int, datetime]]:
    tz = ZoneInfo(zone)
    return [(ms, clock(tz, ms).replace(tzinfo=None)) for ms in range(start, end, MINUTE)]


def walked(zone: str, period: str, start: int, end: int) -> list[int]:
    """The instants at which buckets begin, found minute by minute."""
    found = []
    times = minutes_of(zone, start - DAY, end)
    furthest = times[0][1]
    step = {"PT15M": 15, "PT30M": 30, "PT1H": 60, "PT6H": 360}.get(period)
    of = label("P1D" if step else period)
    bucket = of(furthest)
    for ms, now in times:
        before = bucket
        if now > furthest:
            furthest, bucket = now, of(now)
        begins = before != bucket
        if step and not begins:
            begins = (now.hour * 60 + now.minute) % step == 0
        if begins and ms >= start:
            found.append(ms)
    return found


@given(zones, st.sampled_from(["PT15M", "PT1H", "PT6H", "P1D", "P1W", "P1M", "P1Y"]), minutes)
def test_buckets_begin_where_a_walk_along_the_clock_finds_it(
    zone: str, period: str, minute: int
) -> None:
    check(zone, period, minute * MINUTE)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("day", ODD)
def test_buckets_around_shifts_of_the_clock(zone: str, day: str) -> None:
    for period in ("PT30M", "PT1H", "PT6H", "P1D"):
        check(zone, period, parse_time(day))


def check(zone: str, period: str, start: int) -> None:
    cut, end = Granularity.parse(f"{period} in {zone}"), start + 2 * DAY
    found = [b.start_ms for b in cut.buckets(Interval(start, end)) if b.start_ms >= start]
    assert found == walked(zone, period, start, end)


@given(zones, periods, origins, instants)
def test_each_instant_is_in_one_bucket_and_buckets_tile_time(
    zone: str, period: str, origin: str, ms: int
) -> None:
    cut = Granularity.parse(f"{period} in {zone}{origin}")
    bucket = cut.bucket(ms)
    assert bucket.contains(ms)
    assert cut.bucket(bucket.start_ms) == cut.bucket(bucket.end_ms - 1) == bucket
    if bucket.end_ms < END_OF_TIME_MS:
        assert cut.bucket(bucket.end_ms).start_ms == bucket.end_ms
    assert cut.is_aligned(bucket)
    assert Granularity.parse(str(cut)) == cut == pickle.loads(pickle.dumps(cut))


@given(zones, st.sampled_from(["PT15M", "PT6H", "P1D", "P1W", "P1M", "P1Y"]), instants)
def test_a_bucket_of_a_zone_is_one_of_its_own_length(zone: str, period: str, ms: int) -> None:
    bucket = Granularity.parse(f"{period} in {zone}").bucket(ms)
    assert Granularity.of_bucket(bucket).bucket(bucket.end_ms - 1) == bucket


@given(zones, st.sampled_from([("PT15M", "PT1H"), ("PT1H", "P1D"), ("P1D", "P1M")]), instants)
def test_buckets_lie_within_those_of_their_multiples(
    zone: str, pair: tuple[str, str], ms: int
) -> None:
    small, large = (Granularity.parse(f"{period} in {zone}").bucket(ms) for period in pair)
    assert large.covers(small)


@given(periods, instants)
def test_a_zone_without_shifts_is_utc_moved(period: str, ms: int) -> None:
    ahead = 330 * MINUTE
    ms = min(max(ms, START_OF_TIME_MS + 2 * ahead), END_OF_TIME_MS - 2 * ahead)
    moved = Granularity.parse(f"{period} in +05:30").truncate(ms)
    wall = Granularity.parse(period).truncate(ms + ahead)
    assert moved == max(wall - ahead, START_OF_TIME_MS)


@pytest.mark.parametrize(
    ("granularity", "at", "bucket"),
    [
        ("P1D in America/New_York", "2024-03-10T12:00Z", "2024-03-10T05:00Z/2024-03-11T04:00Z"),
        ("P1D in America/New_York", "2024-11-03T12:00Z", "2024-11-03T04:00Z/2024-11-04T05:00Z"),
        ("day in Pacific/Apia", "2011-12-30T09:59Z", "2011-12-29T10:00Z/2011-12-30T10:00Z"),
        ("day in Pacific/Apia", "2011-12-30T10:00Z", "2011-12-30T10:00Z/2011-12-31T10:00Z"),
        ("PT1H in Australia/Lord_Howe", "2024-04-06T15Z", "2024-04-06T14:00Z/2024-04-06T15:30Z"),
        ("PT1H in America/New_York", "2024-11-03T06:10Z", "2024-11-03T06:00Z/2024-11-03T07:00Z"),
        ("P1W in Europe/Berlin", "2024-03-31T12:00Z", "2024-03-24T23:00Z/2024-03-31T22:00Z"),
        ("P1M in Asia/Kolkata", "2024-02-29T19:00Z", "2024-02-29T18:30Z/2024-03-31T18:30Z"),
        ("P1M from 2024-01-31", "2024-03-01", "2024-02-29/2024-03-31"),
        ("P1Y from 2020-07-01", "2024-06-30", "2023-07-01/2024-07-01"),
        ("P1D from 2020-01-01T06Z", "2024-03-10T05Z", "2024-03-09T06Z/2024-03-10T06Z"),
        (
            "P1D in Europe/Berlin from 2020-01-01T05Z",
            "2024-07-01T04:30Z",
            "2024-07-01T04Z/2024-07-02T04Z",
        ),
    ],
)
def test_buckets_lie_where_people_expect(granularity: str, at: str, bucket: str) -> None:
    assert Granularity.parse(granularity).bucket(parse_time(at)) == Interval.parse(bucket)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("P1D in UTC", "DAY"),
        ("day from 2020-03-01", "DAY"),
        ("P1W from 2024-01-01", "WEEK"),
        ("P1M from 2024-05-01", "MONTH"),
        ("P3M from 2024-05-01", "P3M from 2023-02-01T00:00Z"),
        ("all in Europe/Berlin", "ALL"),
        ("PT1S in Europe/Berlin", "SECOND"),
        ("PT24H in Europe/Berlin", "DAY in Europe/Berlin"),
        ("P1D in Europe/Berlin from 2020-06-30T22:00Z", "DAY in Europe/Berlin"),
    ],
)
def test_spellings_of_the_same_cut_make_the_same_buckets(text: str, same: str) -> None:
    one, other = Granularity.parse(text), Granularity.parse(same)
    span = Interval.parse("2023-11-30/2025-01-01") if one.fixed_ms != 1000 else Interval(0, 5000)
    assert list(one.buckets(span)) == list(other.buckets(span))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("P1D in America/New_Yrok", "did you mean America/New_York"),
        ("P1D in america/new_york", "did you mean America/New_York"),
        ("P1D in ../../etc/passwd", "unknown time zone"),
        ("P1D in +19:00", "unknown time zone"),
        ("P1D in Europe/Berlin from yesterday", "not an ISO 8601 time"),
        ("P1M1D in Europe/Berlin", "mixes months"),
        ("P1D in", "unknown granularity|not an ISO 8601 period"),
    ],
)
def test_what_is_no_zone_or_origin_is_refused(text: str, wrong: str) -> None:
    with pytest.raises(InvalidRequest, match=wrong):
        Granularity.parse(text)


def test_buckets_of_a_year_cover_it_without_gaps() -> None:
    year = Interval.parse("2024-01-01T05:00Z/2025-01-01T05:00Z")
    days = list(Granularity.parse("P1D in America/New_York").buckets(year))
    assert len(days) == 366
    assert all(a.end_ms == b.start_ms for a, b in pairwise(days))
    assert sorted({d.length_ms // 3_600_000 for d in days}) == [23, 24, 25]
