"""Timelines of a million segments beside a plain sorted list of the same tuples.

The list is the limit, not a peer: `sorted` and `bisect` give what lies in an interval, and know
nothing of versions, completeness, or what is hidden. Both begin with the same rows, as the metadata
store gives them. Bytes are what is held beside the rows. Ratios are ours over the list's.
"""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from benchmarks.table import Row, against, print_rows
from penstock.core.intervals import Interval
from penstock.core.timeline.chunks import PartitionChunk
from penstock.core.timeline.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SEGMENTS = 1_000_000
DATASOURCES = 100
MEASURED_FOR_BYTES = 200_000
AIM_LOOKUP_US = 1_000
LOOKUPS = 2_000
CHANGES = 1_000
HOUR_MS = 3_600_000
START_MS = -2_208_988_800_000  # 1900
VERSION = "2024-05-06T07:08:09.123Z"
NEWER = "2024-06-06T07:08:09.123Z"


@dataclass(frozen=True, slots=True)
class SegmentLike:
    """What a timeline needs to know of a row."""

    interval: Interval
    version: str
    number: int = 0
    core: int = 0


Plain: TypeAlias = "list[tuple[int, int, str, int, SegmentLike]]"


def hours(count: int, *, first: int = 0, version: str = VERSION) -> list[SegmentLike]:
    begin = START_MS + first * HOUR_MS
    return [
        SegmentLike(Interval(at, at + HOUR_MS), version)
        for at in range(begin, begin + count * HOUR_MS, HOUR_MS)
    ]


def replaced(count: int) -> list[SegmentLike]:
    """Days of hours and, over every other day, one newer segment for the whole day."""
    days = count // 49 * 2
    over = [
        SegmentLike(Interval(at, at + 24 * HOUR_MS), NEWER)
        for at in range(START_MS, START_MS + days * 24 * HOUR_MS, 48 * HOUR_MS)
    ]
    return hours(count - len(over)) + over


def timeline(rows: Sequence[SegmentLike]) -> Timeline[SegmentLike]:
    return Timeline.of(
        (row.interval, row.version, PartitionChunk(row.number, row.core, row)) for row in rows
    )


def plain(rows: Sequence[SegmentLike]) -> Plain:
    return sorted(
        (row.interval.start_ms, row.interval.end_ms, row.version, row.number, row) for row in rows
    )


def seconds(work: Callable[[], object]) -> float:
    """Return the processor time: all is one thread that waits for nothing."""
    gc.collect()
    started = time.process_time()
    kept = work()
    took = time.process_time() - started
    del kept
    return took


def bytes_each(build: Callable[[Sequence[SegmentLike]], object]) -> float:
    rows = hours(MEASURED_FOR_BYTES)
    gc.collect()
    tracemalloc.start()
    kept = build(rows)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return held / len(rows)


def lookups(made: Timeline[SegmentLike], listed: Plain) -> list[Row]:
    days = [START_MS + random.Random(7).randrange(SEGMENTS - 24) * HOUR_MS for _ in range(LOOKUPS)]

    def of_timeline() -> None:
        for at in days:
            made.lookup(Interval(at, at + 24 * HOUR_MS))

    def of_list() -> None:
        for at in days:
            listed[bisect_left(listed, (at,)) : bisect_left(listed, (at + 24 * HOUR_MS,))]

    ours, limit = (seconds(work) / LOOKUPS * 1e6 for work in (of_timeline, of_list))
    name = "timeline: look a day up in 1,000,000 hours"
    return [
        against(name, ours, "us", "slice", limit),
        against(name, ours, "us", "aim", AIM_LOOKUP_US, "< 1"),
    ]


def changes(made: Timeline[SegmentLike], listed: Plain, build_s: float) -> list[Row]:
    rng = random.Random(11)
    places = [START_MS + hour * HOUR_MS for hour in rng.sample(range(SEGMENTS), CHANGES)]
    fresh = [SegmentLike(Interval(at, at + HOUR_MS), NEWER) for at in places]
    added = [(row.interval, row.version, PartitionChunk(0, 0, row)) for row in fresh]
    removed = [(row.interval, row.version, 0) for row in fresh]
    tuples = plain(fresh)

    def insert_each() -> None:
        for one in tuples:
            insort(listed, one)

    batch_s = seconds(lambda: made.change(added=added))
    list_s = seconds(insert_each)
    away_s = seconds(lambda: made.change(removed=removed))
    tail = hours(CHANGES, first=SEGMENTS + 1)

    def append_each() -> None:
        for row in tail:
            made.add(row.interval, row.version, PartitionChunk(0, 0, row))

    tail_us = seconds(append_each) / CHANGES * 1e6
    return [
        against(
            "timeline: 1,000 replacements at once", batch_s * 1e3, "ms", "insort", list_s * 1e3
        ),
        Row("timeline: 1,000 removals at once", away_s * 1e3, "ms"),
        Row(
            "timeline: 1,000 replacements beside a rebuild",
            batch_s * 1e3,
            "ms",
            "rebuild",
            build_s * 1e3,
            batch_s / build_s,
            "< 0.1",
        ),
        Row("timeline: one segment at the end", tail_us, "us"),
    ]


def run() -> list[Row]:
    rows = hours(SEGMENTS)
    made, listed = timeline(rows), plain(rows)
    build_s, list_s = seconds(lambda: timeline(rows)), seconds(lambda: plain(rows))
    each = SEGMENTS // DATASOURCES
    several = [rows[at : at + each] for at in range(0, SEGMENTS, each)]
    many_s = seconds(lambda: [timeline(part) for part in several])
    many_list_s = seconds(lambda: [plain(part) for part in several])
    mixed = replaced(SEGMENTS)
    mixed_s, mixed_list_s = seconds(lambda: timeline(mixed)), seconds(lambda: plain(mixed))
    return [
        against("timeline: build 1,000,000 segments", build_s, "s", "sorted", list_s),
        against("timeline: build 100 x 10,000 segments", many_s, "s", "sorted", many_list_s),
        against("timeline: build, half of it replaced", mixed_s, "s", "sorted", mixed_list_s),
        against(
            "timeline: memory beside the rows",
            bytes_each(timeline),
            "B/segment",
            "tuples",
            bytes_each(plain),
        ),
        *lookups(made, listed),
        *changes(made, listed, build_s),
    ]


if __name__ == "__main__":
    print_rows(run())
