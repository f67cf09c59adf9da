"""Durations as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.durations import MAX_DURATION_MS, format_duration, parse_duration, parse_period
from penstock.core.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        *(("PT1H", 3_600_000), ("P1D", 86_400_000), ("PT0.5S", 500), ("P1DT1H", 90_000_000)),
        *(("500ms", 500), ("2s", 2_000), ("5m", 300_000), ("1h", 3_600_000), ("1.5 s", 1_500)),
        *(("7", 7), (7, 7), (0, 0), ("PT0S", 0), ("pt2m", 120_000), ("P2W", 1_209_600_000)),
        *((" 1d ", 86_400_000), ("0s", 0), ("1w", 604_800_000)),
    ],
)
def test_durations_are_read_in_both_notations(text: str | int, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "x", "1x", "-1s", -1, True, "P", "PT", "P1DT", "1h30m", "P1M", "P1Y", "PT1H1"),
        *("0.5ms", "99999999999999999d", MAX_DURATION_MS + 1, "\u0661s"),
    ],
)
def test_what_is_no_duration_is_refused(text: str | int) -> None:
    with pytest.raises(InvalidRequest):
        parse_duration(text)


@given(st.integers(0, MAX_DURATION_MS))
def test_a_formatted_duration_is_read_back(ms: int) -> None:
    assert parse_duration(format_duration(ms)) == ms


def test_periods_keep_months_apart_from_fixed_time() -> None:
    period = parse_period("P1Y2M3DT4H")
    assert (period.months, period.ms) == (14, (3 * 24 + 4) * 3_600_000)
    with pytest.raises(InvalidRequest, match="length zero"):
        parse_period("P0D")
