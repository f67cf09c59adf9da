"""Which time chunks a new segment may go into."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.intervals import Granularity, Interval, condensed
from penstock.indexing.overlord.segment_allocator import chunk_parts
from tests.indexing.lockbox_kit import DAY, DAY_START_MS, HOUR_MS, hours

HOUR = Granularity.parse("HOUR")
DAILY = Granularity.parse("DAY")
MONTH = Granularity.parse("MONTH")
WEEK = Granularity.parse("WEEK")


def parts(
    wanted: Interval,
    visible: Sequence[Interval],
    pending: Sequence[Interval] = (),
) -> list[tuple[Interval, Interval]]:
    return [(part.times, part.chunk) for part in chunk_parts(wanted, visible, pending)]


def test_where_nothing_is_the_wanted_chunk_is_used() -> None:
    assert parts(DAY, []) == [(DAY, DAY)]
    assert parts(DAY, [hours(-5, 0), hours(24, 30)]) == [(DAY, DAY)]


def test_beside_segments_that_are_there_their_time_chunk_is_used() -> None:
    assert parts(hours(3, 4), [DAY]) == [(hours(3, 4), DAY)]
    assert parts(DAY, [DAY]) == [(DAY, DAY)]


def test_finer_chunks_divide_and_gaps_are_filled_with_the_largest_that_fit() -> None:
    there = [hours(h, h + 1) for h in range(7)]
    filled = [hours(7, 8), hours(8, 16), hours(16, 24)]
    assert parts(DAY, there) == [(one, one) for one in [*there, *filled]]


def test_a_newer_chunk_divides_the_older_one_around_it() -> None:
    assert parts(DAY, [hours(3, 4), DAY]) == [
        (hours(0, 3), DAY),
        (hours(3, 4), hours(3, 4)),
        (hours(4, 24), DAY),
    ]
    assert parts(hours(5, 6), [DAY]) == [(hours(5, 6), DAY)]


def test_a_chunk_that_crosses_the_end_takes_what_lies_in_it() -> None:
    assert parts(DAY, [hours(-24, 8)]) == [
        (hours(0, 8), hours(-24, 8)),
        *((one, one) for one in (hours(8, 16), hours(16, 24))),
    ]


def test_places_count_where_nothing_is_visible() -> None:
    assert parts(hours(1, 2), [], [DAY]) == [(hours(1, 2), DAY)]
    assert parts(hours(1, 2), [], [hours(1, 2), DAY]) == [(hours(1, 2), hours(1, 2))]
    # What a place of the day would hide, it must not be put beside.
    assert parts(hours(1, 2), [hours(1, 2)], [DAY]) == [(hours(1, 2), hours(1, 2))]


@given(
    st.lists(
        st.tuples(st.integers(-30, 30), st.sampled_from([1, 2, 6, 24])).map(
            lambda pair: hours(pair[0], pair[0] + pair[1])
        ),
        max_size=8,
    ),
    st.data(),
)
def test_parts_are_all_of_the_time_and_newer_chunks_come_first(
    visible: Sequence[Interval], data: st.DataObject
) -> None:
    found = chunk_parts(DAY, visible)
    assert found[0].times.start_ms == DAY.start_ms
    assert found[-1].times.end_ms == DAY.end_ms
    for one, following in itertools.pairwise(found):
        assert one.times.end_ms == following.times.start_ms
    ms = data.draw(st.integers(DAY.start_ms, DAY.end_ms - 1))
    (part,) = (part for part in found if part.times.contains(ms))
    newest = next((chunk for chunk in visible if chunk.contains(ms)), None)
    if newest is not None:
        assert part.chunk == newest
    else:
        assert not any(part.chunk.overlaps(chunk) for chunk in visible)


@given(st.lists(st.builds(lambda a, n: hours(a, a + n), st.integers(0, 40), st.integers(1, 9))))
def test_condensed_intervals_are_the_same_time(intervals: list[Interval]) -> None:
    made = condensed(intervals)
    assert all(one.end_ms < other.start_ms for one, other in itertools.pairwise(made))
    for hour in range(50):
        at = DAY_START_MS + hour * HOUR_MS
        assert any(i.contains(at) for i in made) is any(i.contains(at) for i in intervals)


def test_days_of_a_zone_beside_other_chunks() -> None:
    kolkata = Granularity.parse("P1D in Asia/Kolkata").bucket(DAY_START_MS)
    tiles = chunk_parts(kolkata, [DAY])
    # What lies in the day of UTC goes there; the rest is filled.
    assert tiles[-1].chunk == DAY
    assert [tiles[0].times.start_ms, tiles[-1].times.end_ms] == [kolkata.start_ms, kolkata.end_ms]
    assert all(a.times.end_ms == b.times.start_ms for a, b in itertools.pairwise(tiles))
    # An hour of UTC lies across the end of that day, and within a day of New York.
    across = Interval(kolkata.end_ms - HOUR_MS // 2, kolkata.end_ms + HOUR_MS // 2)
    first, *others = chunk_parts(across, [kolkata])
    assert (first.chunk, len(others)) == (kolkata, 1)
    new_york = Granularity.parse("P1D in America/New_York").bucket(DAY_START_MS)
    hour = Interval(new_york.start_ms, new_york.start_ms + HOUR_MS)
    assert parts(hour, [new_york]) == [(hour, new_york)]
