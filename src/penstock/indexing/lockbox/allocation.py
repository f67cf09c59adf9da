"""Which time chunk a new segment goes into, and whether its lock comes before its place.

Pure: who allocates asks for the intervals to try, in order, until one can be locked and allocated.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.core.intervals import Granularity
from penstock.indexing.lockbox.model import LockGranularity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.intervals import Interval

# From coarse to fine. Weeks are not among them: they lie across the ends of months and years, so
# that a week would hinder the next month's chunks.
_FINER: Final = tuple(
    Granularity.parse(name)
    for name in (
        "ALL",
        "YEAR",
        "QUARTER",
        "MONTH",
        "DAY",
        "EIGHT_HOUR",
        "SIX_HOUR",
        "HOUR",
        "THIRTY_MINUTE",
        "FIFTEEN_MINUTE",
        "TEN_MINUTE",
        "FIVE_MINUTE",
        "MINUTE",
        "SECOND",
    )
)
_WEEK: Final = Granularity.parse("WEEK")


class AllocationStep(StrEnum):
    """One half of an allocation."""

    LOCK = "lock"
    ALLOCATE = "allocate"


def allocation_steps(granularity: LockGranularity) -> tuple[AllocationStep, AllocationStep]:
    """Return what comes first.

    The lock of a time chunk gives the new segment its version; a lock on one segment needs the
    number that the allocation gives.
    """
    if granularity is LockGranularity.SEGMENT:
        return AllocationStep.ALLOCATE, AllocationStep.LOCK
    return AllocationStep.LOCK, AllocationStep.ALLOCATE


def allocation_intervals(
    row_interval: Interval, preferred: Granularity, visible: Sequence[Interval]
) -> list[Interval]:
    """Return the time chunks to try for a row, the best first; empty if there is none.

    Args:
        row_interval: The row's time, as far as the query granularity tells times apart.
        preferred: The segment granularity that is wanted.
        visible: The intervals of visible segments, in order.
    """
    used = next((chunk for chunk in visible if chunk.overlaps(row_interval)), None)
    if used is not None:
        # Next to segments that are there, a new one has their time chunk.
        return [used] if used.covers(row_interval) else []
    wanted = preferred.bucket(row_interval.start_ms)
    chunks = [wanted]
    for finer in _FINER:
        chunk = finer.bucket(row_interval.start_ms)
        if chunk.length_ms < chunks[-1].length_ms and wanted.covers(chunk):
            chunks.append(chunk)
    return [chunk for chunk in chunks if chunk.covers(row_interval)]


def choose_granularity(
    existing: Iterable[Interval],
    *,
    segment_granularity: Granularity | None,
    perfect_rollup: bool,
    force_time_chunk: bool,
) -> LockGranularity:
    """Return what a task locks: its time, or single segments.

    Args:
        existing: The intervals of the segments that it must lock.
        segment_granularity: That of its spec, if it names one.
        perfect_rollup: Whether its segments are made of all rows of a time.
        force_time_chunk: Whether the context asks for it, or the task replaces what is there.
    """
    chunks = set(existing)
    if force_time_chunk or (chunks and perfect_rollup):
        return LockGranularity.TIME_CHUNK
    candidates = (*_FINER, _WEEK) if segment_granularity is None else (segment_granularity,)
    if not chunks or any(_all_buckets(chunks, granularity) for granularity in candidates):
        return LockGranularity.SEGMENT
    return LockGranularity.TIME_CHUNK


def _all_buckets(chunks: set[Interval], granularity: Granularity) -> bool:
    return all(granularity.bucket(chunk.start_ms) == chunk for chunk in chunks)
