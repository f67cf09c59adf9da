"""Periods as flows write them."""

from __future__ import annotations

import pytest

from penstock.core.durations import parse_nifi_period
from penstock.core.errors import InvalidRequest

SECOND = 1_000_000_000

UNITS = {
    1: "ns nano nanos nanosecond nanoseconds",
    1_000_000: "ms milli millis millisecond milliseconds",
    SECOND: "s sec secs second seconds",
    60 * SECOND: "m min mins minute minutes",
    3_600 * SECOND: "h hr hrs hour hours",
    86_400 * SECOND: "d day days",
    7 * 86_400 * SECOND: "w wk wks week weeks",
}

TABLE = {
    "0 sec": 0,
    "3000 ms": 3 * SECOND,
    "1.5 week": 907_200 * SECOND,
    ".75 hours": 45 * 60 * SECOND,
    "123.4 ns": 123,
    "0.9 ns": 1,
    "0.1 ns": 1,
    "2.5 ns": 2,
    "3.5 ns": 4,
    "1 Hrs": 3_600 * SECOND,
    "4 days": 345_600_000_000_000,
    "10sec": 10 * SECOND,
    "10 \t SEC": 10 * SECOND,
    "  5 mins ": 300 * SECOND,
    "0.001 ms": 1_000,
    "0.0 days": 0,
}

WRONG = [
    "",
    "10",
    "sec",
    "-1 sec",
    "+1 sec",
    "5. sec",
    "1.2.3 sec",
    "1 month",
    "1 micros",
    "1 sec 5 ms",
    "1e3 s",
    "1,5 s",
    "٣ sec",
    "1 sec\x00",
    "293 years",
    "9999999 weeks",
    "1" * 31 + " s",
    "#{period}",
]


@pytest.mark.parametrize(
    ("unit", "length_ns"), [(u, ns) for ns, units in UNITS.items() for u in units.split()]
)
def test_units_with_their_spellings(unit: str, length_ns: int) -> None:
    assert parse_nifi_period(f"2 {unit}") == 2 * length_ns
    assert parse_nifi_period(f"2{unit.upper()}") == 2 * length_ns


@pytest.mark.parametrize("text", TABLE)
def test_table(text: str) -> None:
    assert parse_nifi_period(text) == TABLE[text]


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_period(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_nifi_period(text)
    assert repr(text) in str(caught.value)
