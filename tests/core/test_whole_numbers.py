"""Whole numbers of 64 bits, as values and as texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.whole_numbers import INT64_MAX, INT64_MIN, int64_of, is_int64


@given(st.integers())
def test_a_number_that_fits_is_read_from_its_digits(number: int) -> None:
    fits = INT64_MIN <= number <= INT64_MAX
    assert is_int64(number) is fits
    assert int64_of(str(number)) == (number if fits else None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "--1",
        "+1",
        " 1",
        "1 ",
        "1_0",
        "1.0",
        "1e3",
        "0x10",
        "\u0661",
        "\u00b2",
        "9" * 4_400,
    ],
)
def test_a_text_that_is_not_such_a_number_is_none(text: str) -> None:
    assert int64_of(text) is None


def test_zeros_in_front_do_not_count() -> None:
    assert int64_of("0" * 5_000 + "7") == 7
    assert int64_of("-00") == 0


@pytest.mark.parametrize("value", [True, 1.0, "1", None, 1 << 63, -(1 << 63) - 1])
def test_a_value_that_is_not_such_a_number_is_none(value: object) -> None:
    assert not is_int64(value)
