"""Which time chunks a new segment may go into, and what comes first."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lockbox_kit import DAY, DAY_START_MS, HOUR_MS, hours

from penstock.core.intervals import Granularity, Interval, condensed
from penstock.indexing.lockbox.allocation import (
    AllocationStep,
    allocation_intervals,
    allocation_steps,
    choose_granularity,
)
from penstock.indexing.lockbox.model import LockGranularity

HOUR = Granularity.parse("HOUR")
DAILY = Granularity.parse("DAY")
MONTH = Granularity.parse("MONTH")
WEEK = Granularity.parse("WEEK")
ROW = Interval(DAY_START_MS + 90_000, DAY_START_MS + 90_001)


def test_the_lock_of_a_time_comes_first_that_of_a_segment_last() -> None:
    lock, allocate = AllocationStep.LOCK, AllocationStep.ALLOCATE
    assert allocation_steps(LockGranularity.TIME_CHUNK) == (lock, allocate)
    assert allocation_steps(LockGranularity.SEGMENT) == (allocate, lock)


def test_beside_segments_that_are_there_their_time_chunk_is_used() -> None:
    assert allocation_intervals(ROW, HOUR, [hours(-24, 0), DAY]) == [DAY]
    assert allocation_intervals(hours(-1, 1), HOUR, [hours(-24, 0), DAY]) == []


def test_where_nothing_is_ever_finer_chunks_are_tried() -> None:
    assert [chunk.length_ms for chunk in allocation_intervals(ROW, HOUR, [hours(5, 6)])] == [
        HOUR_MS,
        HOUR_MS // 2,
        HOUR_MS // 4,
        HOUR_MS // 6,
        HOUR_MS // 12,
        HOUR_MS // 60,
        1000,
    ]
    assert allocation_intervals(hours(0, 1), DAILY, []) == [
        DAY,
        hours(0, 8),
        hours(0, 6),
        hours(0, 1),
    ]


def test_a_row_time_that_is_coarser_than_the_segments_has_no_chunk() -> None:
    assert allocation_intervals(DAY, HOUR, []) == []


@given(
    st.integers(0, 400 * 24 * HOUR_MS),
    st.sampled_from(["ALL", "YEAR", "MONTH", "WEEK", "DAY", "EIGHT_HOUR", "HOUR", "PT2H"]),
)
def test_chunks_to_try_lie_in_each_other(after_ms: int, preferred: str) -> None:
    row = Interval(DAY_START_MS + after_ms, DAY_START_MS + after_ms + 1)
    granularity = Granularity.parse(preferred)
    chunks = allocation_intervals(row, granularity, [])
    assert chunks[0] == granularity.bucket(row.start_ms)
    for coarse, fine in itertools.pairwise(chunks):
        assert coarse.length_ms > fine.length_ms
        assert chunks[0].covers(fine)
    assert all(chunk.covers(row) for chunk in chunks)


@pytest.mark.parametrize(
    ("existing", "wanted", "perfect", "force", "expected"),
    [
        ([], HOUR, True, False, LockGranularity.SEGMENT),
        ([], HOUR, False, True, LockGranularity.TIME_CHUNK),
        ([hours(0, 1), hours(4, 5)], HOUR, False, False, LockGranularity.SEGMENT),
        ([hours(0, 1)], HOUR, True, False, LockGranularity.TIME_CHUNK),
        ([hours(0, 1)], DAILY, False, False, LockGranularity.TIME_CHUNK),
        ([hours(0, 1), hours(24, 48)], None, False, False, LockGranularity.TIME_CHUNK),
        ([hours(0, 1), hours(7, 8)], None, False, False, LockGranularity.SEGMENT),
        ([MONTH.bucket(DAY_START_MS)], None, False, False, LockGranularity.SEGMENT),
        ([WEEK.bucket(DAY_START_MS)], None, False, False, LockGranularity.SEGMENT),
        ([hours(1, 3)], None, False, False, LockGranularity.TIME_CHUNK),
    ],
)
def test_single_segments_are_locked_where_all_are_of_one_granularity(
    existing: list[Interval],
    wanted: Granularity | None,
    *,
    perfect: bool,
    force: bool,
    expected: LockGranularity,
) -> None:
    chosen = choose_granularity(
        existing, segment_granularity=wanted, perfect_rollup=perfect, force_time_chunk=force
    )
    assert chosen is expected


@given(st.lists(st.builds(lambda a, n: hours(a, a + n), st.integers(0, 40), st.integers(1, 9))))
def test_condensed_intervals_are_the_same_time(intervals: list[Interval]) -> None:
    made = condensed(intervals)
    assert all(one.end_ms < other.start_ms for one, other in itertools.pairwise(made))
    for hour in range(50):
        at = DAY_START_MS + hour * HOUR_MS
        assert any(i.contains(at) for i in made) is any(i.contains(at) for i in intervals)
