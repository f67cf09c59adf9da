"""Counters of processors: what a user's code may count, and that the sum can be shown."""

from __future__ import annotations

import enum
import fractions

import msgspec
import numpy as np
import pytest

from penstock.core.errors import InvalidRequest
from penstock.flow.session.statistics import NAMES_MAX, OTHERS, REFUSED, Counters, SessionStatistics

BIG = (1 << 63) - 1


class Names(enum.StrEnum):
    """Names of counters."""

    ROWS = "rows"


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.mark.parametrize("name", ["rows", Names.ROWS, np.str_("rows")])
@pytest.mark.parametrize("count", [3, np.int64(3), np.uint8(3)])
def test_whole_numbers_are_counted_whatever_their_type(
    counters: Counters, name: str, count: int
) -> None:
    counters.add(name, count)
    counters.add(name)
    counts = counters.take()
    assert msgspec.json.encode(counts) == b'{"rows":4}'
    assert {(type(one), type(value)) for one, value in counts.items()} == {(str, int)}
    assert not counters.take()


@pytest.mark.parametrize(
    ("name", "count", "error"),
    [
        ("c", 10**30, r"counters.add\('c'\): the count, of type int, is not a whole number of up"),
        ("c", -(1 << 64), "of type int, is not"),
        ("c", float("nan"), "of type float, is not"),
        ("c", 1.0, "of type float, is not"),
        ("c", fractions.Fraction(1), "of type Fraction, is not"),
        ("c", "3", "of type str, is not"),
        ("c", None, "of type NoneType, is not"),
        (("a", "b"), 1, "the name is of type tuple: use text"),
        (b"c", 1, "the name is of type bytes: use text"),
        ("\ud800", 1, r"counters.add\('\\ud800'\): the name is not Unicode text"),
        ("", 1, "the name has 0 characters: use 1 to 200"),
        ("c" * 201, 1, "the name has 201 characters: use 1 to 200"),
    ],
)
def test_other_names_and_counts_are_refused(
    counters: Counters, name: str, count: int, error: str
) -> None:
    with pytest.raises(InvalidRequest, match=error):
        counters.add(name, count)
    assert not counters.take()


def test_sums_stay_within_64_bits(counters: Counters) -> None:
    for _ in range(2):
        counters.add("up", BIG)
        counters.add("down", -BIG)
    counts = counters.take()
    done = SessionStatistics(counters=counts) + SessionStatistics(counters=counts)
    assert done.counters == {"up": BIG, "down": -BIG - 1}


def test_the_number_of_names_is_bounded_in_a_session_and_over_sessions(counters: Counters) -> None:
    done = SessionStatistics()
    total = 0
    for session in range(10):
        counters.add("known")
        for number in range(NAMES_MAX * 2):
            counters.add(f"id {session} {number}", 3)
        total += 1 + 6 * NAMES_MAX
        counts = counters.take()
        assert len(counts) <= NAMES_MAX + 2
        done += SessionStatistics(counters=counts)
    assert len(done.counters) <= NAMES_MAX + 2
    assert sum(count for name, count in done.counters.items() if name != REFUSED) == total
    assert done.counters["known"] == 10, "a name that is known goes on counting"
    assert done.counters[OTHERS] == total - 3 * (NAMES_MAX - 1) - 10
    assert done.counters[REFUSED] > NAMES_MAX
