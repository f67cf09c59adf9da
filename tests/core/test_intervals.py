"""Intervals, instants and granularities against Python's own calendar."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.durations import DAY_MS
from penstock.core.errors import InvalidRequest
from penstock.core.instants import format_any_time, format_day
from penstock.core.intervals import (
    END_OF_TIME_MS,
    ETERNITY,
    START_OF_TIME_MS,
    Granularity,
    Interval,
    format_time,
    parse_time,
)

instants = st.integers(START_OF_TIME_MS, END_OF_TIME_MS - 1)
names = [
    "NONE",
    "SECOND",
    "MINUTE",
    "FIVE_MINUTE",
    "TEN_MINUTE",
    "FIFTEEN_MINUTE",
    "THIRTY_MINUTE",
    "HOUR",
    "SIX_HOUR",
    "EIGHT_HOUR",
    "DAY",
    "WEEK",
    "MONTH",
    "QUARTER",
    "YEAR",
    "ALL",
    *("PT7H", "P2M", "P10D", "PT0.5S"),
]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(instants)
def test_a_time_is_written_as_the_calendar_says_and_read_back(ms: int) -> None:
    text = format_time(ms)
    day = EPOCH + timedelta(milliseconds=ms)
    assert text == f"{day:%Y}".rjust(4, "0") + f"{day:-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"
    assert parse_time(text) == ms


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("2013", "2013-01-01T00:00:00.000Z"),
        ("2013-02", "2013-02-01T00:00:00.000Z"),
        ("2013-02-03", "2013-02-03T00:00:00.000Z"),
        ("2013-02-03T04", "2013-02-03T04:00:00.000Z"),
        ("2013-02-03T04:05Z", "2013-02-03T04:05:00.000Z"),
        ("2013-02-03T04:05:06", "2013-02-03T04:05:06.000Z"),
        ("2013-02-03 04:05:06.7", "2013-02-03T04:05:06.700Z"),
        ("2013-02-03T04:05:06.123456789Z", "2013-02-03T04:05:06.123Z"),
        ("2013-02-03T04:05:06+02:00", "2013-02-03T02:05:06.000Z"),
        ("2013-02-03T04:05:06-0530", "2013-02-03T09:35:06.000Z"),
        ("2013-02-03T24:00:00Z", "2013-02-04T00:00:00.000Z"),
        ("10000-01-01T00:00:00.000Z", "10000-01-01T00:00:00.000Z"),
        ("0001-01-01T00:00Z", "0001-01-01T00:00:00.000Z"),
        # As far from UTC as Joda's zones are, also where that leads over the start of year 1.
        ("2013-02-03T04:05:06+23:59", "2013-02-02T04:06:06.000Z"),
        ("0000-12-31T19:00-05:00", "0001-01-01T00:00:00.000Z"),
    ],
)
def test_times_are_read_in_the_forms_people_write(text: str, meaning: str) -> None:
    assert format_time(parse_time(text)) == meaning


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "2013-13-01", "2013-02-30", "2013-1-1", "13-01-01", "0000-01-01", "2013-01-01T"),
        *("2013-01-01T25:00", "2013-01-01T00:60", "2013-01-01T24:00:01", "10000-01-02"),
        *(
            "2013-01-01T00:00+24:00",
            "2013-01-01T00:00+01:60",
            "0000-12-31T23:00",
            "0000-12-31T18:59-05:00",
            "0000-02-30T00:00-05:00",
            "\u0662\u0660\u0661\u0663-01-01",
            "0001-01-01T00:00+01:00",
            "2013-01-01T00:00:00.Z",
        ),
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_time(text)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("2013-01-01/2013-02-01", "2013-01-01T00:00:00.000Z/2013-02-01T00:00:00.000Z"),
        ("2013-01-31/P1M", "2013-01-31T00:00:00.000Z/2013-02-28T00:00:00.000Z"),
        ("2012-02-29/P1Y", "2012-02-29T00:00:00.000Z/2013-02-28T00:00:00.000Z"),
        ("P1D/2013-01-01", "2012-12-31T00:00:00.000Z/2013-01-01T00:00:00.000Z"),
        ("2013-01-01/PT1H30M", "2013-01-01T00:00:00.000Z/2013-01-01T01:30:00.000Z"),
        ("9999-12-01/P1M", "9999-12-01T00:00:00.000Z/10000-01-01T00:00:00.000Z"),
        (
            "-146136543-09-08T08:23:32.096Z/146140482-04-24T15:36:27.903Z",
            "0001-01-01T00:00:00.000Z/10000-01-01T00:00:00.000Z",
        ),
    ],
)
def test_intervals_are_read_in_all_forms(text: str, meaning: str) -> None:
    interval = Interval.parse(text)
    assert str(interval) == meaning
    assert Interval.parse(str(interval)) == interval


@pytest.mark.parametrize(
    "text",
    [
        *("", "/", "2013", "2013/", "/2013", "2013/2014/2015", "2014/2013", "P1D/P1D"),
        *("2013/P", "9999-12-01/P2M", "2013/P999999Y", "P1M/0001-01-01", "2013/P0D"),
    ],
)
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        Interval.parse(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2025-11-21", "2025-11-21/P1D"),
        ("2025-11", "2025-11/P1M"),
        ("2025", "2025/P1Y"),
        ("2025-11-21T05:00:00Z", "2025-11-21T05:00:00Z/PT1H"),
    ],
)
def test_one_time_is_told_how_an_interval_begins_there(text: str, meant: str) -> None:
    with pytest.raises(InvalidRequest, match=f"is one time; write {meant} for the time from there"):
        Interval.parse(text)
    assert Interval.parse(meant).start_ms == parse_time(text)


@st.composite
def small_intervals(draw: st.DrawFn) -> Interval:
    start, end = sorted((draw(st.integers(0, 12)), draw(st.integers(0, 12))))
    return Interval(start, end)


@given(small_intervals(), small_intervals())
def test_interval_algebra_agrees_with_sets_of_milliseconds(a: Interval, b: Interval) -> None:
    in_a, in_b = set(range(a.start_ms, a.end_ms)), set(range(b.start_ms, b.end_ms))
    assert a.overlaps(b) == bool(in_a & in_b)
    both = a.intersection(b)
    assert (set() if both is None else set(range(both.start_ms, both.end_ms))) == in_a & in_b
    if not b.is_empty:
        assert a.covers(b) == (in_b <= in_a)
    assert in_a == {ms for ms in range(13) if a.contains(ms)}
    assert a.is_empty == (not in_a)
    assert a.length_ms == len(in_a)


@given(st.sampled_from(names), instants)
def test_each_instant_is_in_its_bucket_and_buckets_tile_time(name: str, ms: int) -> None:
    granularity = Granularity.parse(name)
    bucket = granularity.bucket(ms)
    assert bucket.contains(ms)
    assert granularity.truncate(ms) == bucket.start_ms
    assert granularity.bucket(bucket.start_ms) == bucket
    assert granularity.bucket(bucket.end_ms - 1) == bucket
    assert granularity.is_aligned(bucket)
    if bucket.end_ms < END_OF_TIME_MS:
        assert granularity.bucket(bucket.end_ms).start_ms == bucket.end_ms


@pytest.mark.parametrize(
    ("name", "bucket"),
    [
        ("month", "2013-02-01/2013-03-01"),
        ("Quarter", "2013-01-01/2013-04-01"),
        ("YEAR", "2013-01-01/2014-01-01"),
        ("week", "2013-02-18/2013-02-25"),
        ("P1W", "2013-02-18/2013-02-25"),
        ("day", "2013-02-20/2013-02-21"),
        ("six_hour", "2013-02-20T12:00/2013-02-20T18:00"),
        ("pt15m", "2013-02-20T13:30/2013-02-20T13:45"),
        ("none", "2013-02-20T13:37:42.123/2013-02-20T13:37:42.124"),
    ],
)
def test_buckets_lie_where_people_expect(name: str, bucket: str) -> None:
    ms = parse_time("2013-02-20T13:37:42.123Z")
    assert Granularity.parse(name).bucket(ms) == Interval.parse(bucket)


def test_names_and_periods_of_the_same_cut_are_equal() -> None:
    pairs = [
        ("PT1H", "HOUR"),
        ("P1D", "day"),
        ("PT24H", "DAY"),
        ("P1M", "MONTH"),
        ("P3M", "quarter"),
    ]
    for period, name in pairs:
        assert Granularity.parse(period) == Granularity.parse(name)
    assert Granularity.parse("P7D") != Granularity.parse("WEEK")  # not from a Monday
    assert str(Granularity.parse("pt1h")) == "HOUR"
    assert Granularity.parse("ALL").bucket(0) == ETERNITY


@pytest.mark.parametrize("text", ["", "fortnight", "P1M1D", "PT0S", "P", "1h"])
def test_what_is_no_granularity_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        Granularity.parse(text)


def test_buckets_of_an_interval_cover_it_without_gaps() -> None:
    year = Interval.parse("2013-01-15/2013-12-02")
    months = list(Granularity.parse("MONTH").buckets(year))
    assert len(months) == 12
    assert all(a.end_ms == b.start_ms for a, b in pairwise(months))
    assert not Granularity.parse("MONTH").is_aligned(year)


@pytest.mark.parametrize("ms", [START_OF_TIME_MS - 1, END_OF_TIME_MS + 1])
def test_instants_outside_the_calendar_are_refused(ms: int) -> None:
    for use in (format_time, Granularity.parse("DAY").bucket, lambda at: Interval(at, at)):
        with pytest.raises(InvalidRequest, match="0001 to 9999"):
            use(ms)


@given(instants, st.integers(-300, 300))
def test_days_and_times_of_any_year_are_written(ms: int, cycles: int) -> None:
    days = ms // DAY_MS
    day = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=days)).date()
    assert format_any_time(ms) == format_time(ms)
    year = day.year + 400 * cycles
    shown = f"{'-' if year < 0 else ''}{abs(year):04d}{day.isoformat()[4:]}"
    assert format_day(days + 146_097 * cycles) == shown
    assert format_any_time(ms + 146_097 * DAY_MS * cycles) == shown + format_time(ms)[10:]


# Buckets that are given


@given(st.lists(small_intervals(), min_size=1, max_size=6), st.integers(-5, 60))
def test_given_buckets_and_the_gaps_between_them_tile_time(found: list[Interval], ms: int) -> None:
    given_apart: list[Interval] = []
    for one in sorted(found):
        if not one.is_empty and (not given_apart or given_apart[-1].end_ms <= one.start_ms):
            given_apart.append(one)
    if not given_apart:
        return
    granularity = Granularity.of_intervals([*given_apart, given_apart[0]])
    holding = [one for one in given_apart if one.contains(ms)]
    bucket = granularity.bucket(ms)
    assert bucket.contains(ms)
    assert granularity.is_gap(ms) == (not holding)
    assert [bucket] == holding or not holding
    assert not any(bucket.overlaps(one) for one in given_apart if one != bucket)
    tiles = list(granularity.buckets(ETERNITY))
    assert (tiles[0].start_ms, tiles[-1].end_ms) == (START_OF_TIME_MS, END_OF_TIME_MS)
    assert all(one.end_ms == other.start_ms for one, other in pairwise(tiles))
    assert [one for one in tiles if not granularity.is_gap(one.start_ms)] == given_apart


def test_given_buckets_may_touch_but_not_overlap() -> None:
    granularity = Granularity.of_intervals([Interval(20, 30), Interval(10, 20)])
    assert granularity == Granularity.of_intervals([Interval(10, 20), Interval(20, 30)])
    assert granularity.bucket(19) == Interval(10, 20)
    assert granularity.bucket(20) == Interval(20, 30)
    assert granularity.is_aligned(Interval(10, 30))
    assert not granularity.is_aligned(Interval(10, 25))
    assert not Granularity.parse("DAY").is_gap(5)
    with pytest.raises(InvalidRequest, match="overlap"):
        Granularity.of_intervals([Interval(10, 20), Interval(19, 30)])
    for nothing in ([], [Interval(5, 5)]):
        with pytest.raises(InvalidRequest, match="are empty"):
            Granularity.of_intervals(nothing)
