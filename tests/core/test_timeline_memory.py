"""What a timeline holds in memory: a million segments have to fit beside everything else."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from penstock.core.intervals import Interval
from penstock.core.timeline.chunks import PartitionChunk
from penstock.core.timeline.timeline import Timeline

SEGMENTS = 20_000
HOUR_MS = 3_600_000


def timeline(segments: int, an_hour: int) -> Timeline[None]:
    """A timeline of so many segments, `an_hour` in each hour; they hold nothing."""
    return Timeline.of(
        (
            Interval(hour * HOUR_MS, (hour + 1) * HOUR_MS),
            "2024-01-01T00:00:00.000Z",
            PartitionChunk(number, an_hour, None),
        )
        for hour in range(segments // an_hour)
        for number in range(an_hour)
    )


@pytest.mark.parametrize(
    ("an_hour", "bytes_max"), [(1, 400), (100, 130)], ids=["one an hour", "a hundred an hour"]
)
def test_a_segment_takes_few_bytes(an_hour: int, bytes_max: int) -> None:
    timeline(100, an_hour)  # what is made once
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        held = timeline(SEGMENTS, an_hour)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(held) == SEGMENTS
    assert (after - before) / SEGMENTS < bytes_max
