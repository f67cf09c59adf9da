"""Chunks: the used segments of one interval and version, as allocation and visibility see them.

Owns which chunks are visible, for the few decisions that a transaction makes itself; the timeline
of `penstock.segments` says the same in general, and a test compares the two. Of segments it reads
only what overlaps an interval, summed up by the database.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, Connection, case, func, select

from penstock.core.intervals import Interval
from penstock.storage.metadata import schema

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from penstock.storage.metadata.rows import PartitionSpace

# Numbers from here on are of segments that rewrite others under segment locks.
FIRST_OVERWRITE = 32_768
NONE = -1


@dataclass(frozen=True, slots=True)
class Chunk:
    """The used segments of one interval and version, summed up.

    Attributes:
        interval: Their interval.
        version: Their version.
        core_partitions: How many belong together from number 0 on; below 0: nobody knows.
        complete: Whether all of those are there; only then does the chunk hide others.
        highest_root: The highest number of an ordinary segment, -1 without one.
        highest_overwrite: The highest number of one that rewrites others, -1 without one.
    """

    interval: Interval
    version: str
    core_partitions: int
    complete: bool
    highest_root: int = NONE
    highest_overwrite: int = NONE

    @classmethod
    def of(
        cls, interval: Interval, version: str, numbers: Collection[int], core_partitions: int
    ) -> Chunk:
        """Return the chunk of segments with these numbers."""
        root = [number for number in numbers if number < FIRST_OVERWRITE]
        return cls(
            interval,
            version,
            core_partitions,
            complete=set(range(core_partitions)) <= set(numbers),
            highest_root=max(root, default=NONE),
            highest_overwrite=max(set(numbers) - set(root), default=NONE),
        )

    def highest(self, space: PartitionSpace) -> int:
        """Return the highest number in a space, -1 without one."""
        return self.highest_root if space == "root" else self.highest_overwrite


class Skyline:
    """The times that something covers already, within one interval."""

    def __init__(self, interval: Interval) -> None:
        self._within = interval
        # Disjoint, in order, and none touches the next: so a covered time lies in one of them.
        self._starts: list[int] = []
        self._ends: list[int] = []

    def cover(self, interval: Interval) -> bool:
        """Cover an interval; return whether a part of it was open until now."""
        part = interval.intersection(self._within)
        if part is None or part.is_empty:
            return False
        first = bisect_left(self._ends, part.start_ms)
        last = bisect_right(self._starts, part.end_ms)
        start_ms, end_ms = part.start_ms, part.end_ms
        if first < last:
            if self._starts[first] <= start_ms and end_ms <= self._ends[first]:
                return False
            start_ms = min(start_ms, self._starts[first])
            end_ms = max(end_ms, self._ends[last - 1])
        self._starts[first:last] = [start_ms]
        self._ends[first:last] = [end_ms]
        return True


def visible_chunks(chunks: Iterable[Chunk], interval: Interval) -> list[Chunk]:
    """Return the complete chunks of which something within `interval` is not hidden."""
    skyline = Skyline(interval)
    newest_first = sorted(chunks, key=lambda chunk: chunk.version, reverse=True)
    return [c for c in newest_first if c.complete and skyline.cover(c.interval)]


def overlapping(
    connection: Connection, datasource: str, interval: Interval
) -> list[ColumnElement[bool]]:
    """Return the condition for segments that overlap an interval, so that an index finds them.

    What overlaps begins at most the length of the longest segment earlier. The database knows that
    length from an index, so a long history is not looked through.
    """
    table = schema.segments
    length = table.c.end_ms - table.c.start_ms
    longest = connection.execute(
        select(length).where(table.c.datasource == datasource).order_by(length.desc()).limit(1)
    ).scalar()
    return [
        table.c.datasource == datasource,
        table.c.start_ms > interval.start_ms - (longest or 0),
        table.c.start_ms < interval.end_ms,
        table.c.end_ms > interval.start_ms,
    ]


def used_chunks(connection: Connection, datasource: str, interval: Interval) -> list[Chunk]:
    """Return the chunks that overlap an interval, visible or not."""
    conditions = overlapping(connection, datasource, interval)
    return read_chunks(connection, [schema.segments.c.used, *conditions])


def read_chunks(connection: Connection, conditions: Sequence[ColumnElement[bool]]) -> list[Chunk]:
    """Return the segments that satisfy the conditions, summed up by interval and version."""
    table = schema.segments
    number, core = table.c.partition_number, table.c.core_partitions
    query = (
        select(
            table.c.start_ms,
            table.c.end_ms,
            table.c.version,
            func.max(core).label("core"),
            func.sum(case((number < core, 1), else_=0)).label("core_there"),
            func.max(case((number < FIRST_OVERWRITE, number), else_=NONE)).label("root"),
            func.max(case((number >= FIRST_OVERWRITE, number), else_=NONE)).label("overwrite"),
        )
        .where(*conditions)
        .group_by(table.c.start_ms, table.c.end_ms, table.c.version)
    )
    return [
        Chunk(
            Interval(row.start_ms, row.end_ms),
            row.version,
            row.core,
            complete=row.core_there >= row.core,
            highest_root=row.root,
            highest_overwrite=row.overwrite,
        )
        for row in connection.execute(query)
    ]
