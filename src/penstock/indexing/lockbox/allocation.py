"""Selects the time chunk of a new segment. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.intervals import NAMED_GRANULARITIES, Interval, condensed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Without weeks: a week crosses the ends of months and years, so it would block the next month's
# time chunk.
_FINER: Final = tuple(one for one in NAMED_GRANULARITIES if one.name != "WEEK")


@dataclass(frozen=True, slots=True, order=True)
class ChunkPart:
    """Rows of `times` go into a segment of the time chunk `chunk`, which may be larger."""

    times: Interval
    chunk: Interval


def chunk_parts(
    wanted: Interval, visible: Iterable[Interval], pending: Iterable[Interval] = ()
) -> list[ChunkPart]:
    """Return how the rows of a time chunk are divided into time chunks, in order of time.

    Where segments exist, a new one gets their time chunk: a segment of another time chunk would
    hide them if its version is newer, and be hidden if it is older. Where none is visible, pending
    segments of other tasks count in the same way, because they will become visible. The rest gets
    the wanted chunk itself or, if only a part of it is free, the largest chunks that fit there.

    Args:
        wanted: The time chunk for which the rows were written.
        visible: Time chunks of segments that overlap it, newest version first.
        pending: Time chunks of pending segments that overlap it, newest version first.
    """
    free = _Free(wanted)
    shown = list(visible)
    for chunk in shown:
        free.take(chunk)
    there = condensed(shown)
    for chunk in pending:
        if not any(chunk.overlaps(one) for one in there):
            free.take(chunk)
    if not free.parts:
        return [ChunkPart(wanted, wanted)]
    left = (ChunkPart(chunk, chunk) for gap in free.gaps for chunk in _fitting(gap))
    return sorted([*free.parts, *left])


class _Free:
    """The free parts of an interval: disjoint gaps, in order."""

    def __init__(self, interval: Interval) -> None:
        self.gaps = [interval]
        self.parts: list[ChunkPart] = []

    def take(self, chunk: Interval) -> None:
        """Assign the parts of the gaps that lie in a chunk to the chunk."""
        first = bisect_right(self.gaps, chunk.start_ms, key=lambda gap: gap.end_ms)
        last = bisect_left(self.gaps, chunk.end_ms, key=lambda gap: gap.start_ms)
        left = []
        for gap in self.gaps[first:last]:
            start_ms, end_ms = max(gap.start_ms, chunk.start_ms), min(gap.end_ms, chunk.end_ms)
            self.parts.append(ChunkPart(Interval(start_ms, end_ms), chunk))
            left += [Interval(gap.start_ms, start_ms), Interval(end_ms, gap.end_ms)]
        self.gaps[first:last] = [gap for gap in left if not gap.is_empty]


def _fitting(gap: Interval) -> Iterator[Interval]:
    """Yield the largest chunks that fill a gap, in order; remainders below a second unchanged."""
    at = gap.start_ms
    while at < gap.end_ms:
        buckets = (granularity.bucket(at) for granularity in _FINER)
        whole = (one for one in buckets if one.start_ms == at and one.end_ms <= gap.end_ms)
        chunk = next(whole, Interval(at, gap.end_ms))
        yield chunk
        at = chunk.end_ms
