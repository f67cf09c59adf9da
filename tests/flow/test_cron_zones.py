"""Firing times where a zone's clock is shifted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.flow.scheduling.cron import CronExpression

NY, BERLIN, LORD_HOWE = "America/New_York", "Europe/Berlin", "Australia/Lord_Howe"

# Expression, zone, wall time of the base, and the next times with their offset.
TABLE = [
    ("0 30 2 * * ?", NY, "2026-03-07 12:00", ["2026-03-09 02:30-04", "2026-03-10 02:30-04"]),
    ("0 0 2 * * ?", NY, "2026-03-07 12:00", ["2026-03-09 02:00-04"]),
    ("0 0 3 * * ?", NY, "2026-03-07 12:00", ["2026-03-08 03:00-04", "2026-03-09 03:00-04"]),
    (
        "0 0/30 * * * ?",
        NY,
        "2026-03-08 01:00",
        ["2026-03-08 01:30-05", "2026-03-08 03:00-04", "2026-03-08 03:30-04"],
    ),
    ("0 0 0 * * ?", NY, "2026-03-07 12:00", ["2026-03-08 00:00-05", "2026-03-09 00:00-04"]),
    ("0 0 13 * * ?", NY, "2026-03-07 14:00", ["2026-03-08 13:00-04"]),
    # Fixed times come once, at the first of the two hours.
    ("0 30 1 * * ?", NY, "2026-10-31 12:00", ["2026-11-01 01:30-04", "2026-11-02 01:30-05"]),
    ("0 0 1 * * ?", NY, "2026-10-31 12:00", ["2026-11-01 01:00-04", "2026-11-02 01:00-05"]),
    ("0 30 2 * * ?", NY, "2026-10-31 12:00", ["2026-11-01 02:30-05"]),
    # What comes in every hour goes on through both.
    (
        "0 0/30 * * * ?",
        NY,
        "2026-11-01 00:30",
        [
            "2026-11-01 01:00-04",
            "2026-11-01 01:30-04",
            "2026-11-01 01:00-05",
            "2026-11-01 01:30-05",
            "2026-11-01 02:00-05",
        ],
    ),
    ("0 0 13 * * ?", NY, "2026-10-31 14:00", ["2026-11-01 13:00-05"]),
    ("0 0 2 * * ?", BERLIN, "2026-03-28 12:00", ["2026-03-30 02:00+02"]),
    ("0 30 2 * * ?", BERLIN, "2026-10-24 12:00", ["2026-10-25 02:30+02", "2026-10-26 02:30+01"]),
    ("0 15 0/2 * * ?", BERLIN, "2026-10-25 02:00", ["2026-10-25 02:15+02", "2026-10-25 04:15+01"]),
    # An hour that comes twice in which the second coming alone has what follows.
    ("0 5 * * * ?", NY, "2026-11-01 01:30", ["2026-11-01 01:05-05", "2026-11-01 02:05-05"]),
    # A shift of half an hour.
    (
        "0 45 1 * * ?",
        LORD_HOWE,
        "2026-04-04 12:00",
        ["2026-04-05 01:45+11", "2026-04-06 01:45+10:30"],
    ),
    ("0 15 2 * * ?", LORD_HOWE, "2026-10-03 12:00", ["2026-10-05 02:15+11"]),
    # A whole day that never was.
    ("0 0 12 30 12 ?", "Pacific/Apia", "2011-12-01 00:00", ["2012-12-30 12:00+14"]),
]


def offset(text: str) -> timedelta:
    sign = -1 if text[0] == "-" else 1
    hours, _, minutes = text[1:].partition(":")
    return sign * timedelta(hours=int(hours), minutes=int(minutes or 0))


def instant_ms(text: str) -> int:
    wall = datetime.fromisoformat(text[:16]).replace(tzinfo=UTC)
    return int((wall - offset(text[16:])).timestamp() * 1000)


@pytest.mark.parametrize(("text", "zone", "base", "times"), TABLE)
def test_shifts(text: str, zone: str, base: str, times: list[str]) -> None:
    base_ms = int(datetime.fromisoformat(base).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)
    found = CronExpression.parse(text, zone).next_times(base_ms, len(times))
    assert found == [instant_ms(time) for time in times]


def test_asked_between_the_two_hours_a_fixed_time_does_not_come_again() -> None:
    expression = CronExpression.parse("0 30 1 * * ?", NY)
    second_hour = instant_ms("2026-11-01 01:10-05")
    assert expression.next(second_hour) == instant_ms("2026-11-02 01:30-05")


SHIFTS = [
    (NY, "2026-03-08 07:00"),
    (NY, "2026-11-01 06:00"),
    (BERLIN, "2026-03-29 01:00"),
    (BERLIN, "2026-10-25 01:00"),
    (LORD_HOWE, "2026-04-04 15:00"),
    (LORD_HOWE, "2026-10-03 15:30"),
    ("Africa/Monrovia", "1972-01-07 00:00"),  # by 44 minutes and 30 seconds
    ("Pacific/Apia", "2011-12-30 10:00"),
    ("UTC", "2026-03-08 07:00"),
]


@given(
    shift=st.sampled_from(SHIFTS),
    minutes=st.lists(st.integers(0, 59), min_size=1, max_size=3, unique=True),
    hours=st.lists(st.integers(0, 4), max_size=3, unique=True),
    before_s=st.integers(0, 4 * 3600),
)
def test_around_a_shift_it_fires_as_a_second_by_second_walk_says(
    shift: tuple[str, str], minutes: list[int], hours: list[int], before_s: int
) -> None:
    zone = ZoneInfo(shift[0])
    at_shift = int(datetime.fromisoformat(shift[1]).replace(tzinfo=UTC).timestamp())
    start_s, end_s = at_shift - before_s, at_shift + 4 * 3600
    hour_field = ",".join(map(str, hours)) or "*"
    text = f"0 {','.join(map(str, minutes))} {hour_field} * * ?"
    expected = []
    # Steps of half a minute see every minute of a zone with odd seconds, too.
    for second in range(start_s // 30 * 30 + 30, end_s, 30):
        wall = datetime.fromtimestamp(second, UTC).astimezone(zone)
        again = wall.fold == 1
        if (
            wall.second == 0
            and wall.minute in minutes
            and (not hours or (wall.hour in hours and not again))
        ):
            expected.append(second * 1000)
    found = CronExpression.parse(text, zone).next_times(start_s * 1000, len(expected) + 1)
    assert [ms for ms in found if ms < end_s * 1000] == expected


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "/etc/localtime", "\0", "é"])
def test_unknown_zones(zone: str) -> None:
    with pytest.raises(InvalidRequest, match="unknown time zone"):
        CronExpression.parse("0 0 0 * * ?", zone)
