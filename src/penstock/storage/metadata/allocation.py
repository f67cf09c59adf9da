"""Allocation: the version and partition number of a new segment of a time chunk.

A repeated request returns the same answer, so replicas and restarted tasks write the same segment
ids. Two requests are the same if they have the same sequence and interval; or, with lineage, the
same sequence and previous segment. Invariant: no two sequences get the same segment id, and no id
has a version that existing or pending segments of the chunk would hide or be hidden by.

All requests of a call run in one transaction, which reads each interval once. The rows of the
pending table are allocated segments that are not published yet.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Select, bindparam, func, insert, select

from penstock.core.errors import Conflict
from penstock.core.interval_index import IntervalIndex
from penstock.core.intervals import Interval
from penstock.core.timeline.chunks import OVERWRITE_END, OVERWRITE_START
from penstock.storage.metadata import schema
from penstock.storage.metadata.chunk_summaries import NONE, ChunkSummary, visible_chunks
from penstock.storage.metadata.revision import take_turn
from penstock.storage.metadata.row_mapper import PENDING
from penstock.storage.metadata.rows.pending_segments import AllocateRequest, PendingRow
from penstock.storage.metadata.segment_deletion import highest_killed
from penstock.storage.metadata.time_chunks import (
    chunk_named,
    highest_minor,
    of_chunk,
    used_chunks,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.storage.metadata.rows.pending_segments import PartitionSpace


# The version for tasks with append locks: it must never hide anything, so it is not a current time.
APPEND_VERSION = "1970-01-01T00:00:00.000Z"
_SUFFIXES_MAX = 10

# Created once, because a call may request thousands of segments.
_PENDING = select(schema.pending).where(
    schema.pending.c.datasource == bindparam("of"),
    schema.pending.c.start_ms < bindparam("to_ms"),
    schema.pending.c.end_ms > bindparam("from_ms"),
)
_SAME_CHUNK = of_chunk(schema.segments)
_NUMBER = schema.segments.c.partition_number
_HIGHEST = select(func.max(_NUMBER)).where(*_SAME_CHUNK)
_HIGHEST_IN: Mapping[PartitionSpace, Select[int]] = {
    "root": _HIGHEST.where(_NUMBER < OVERWRITE_START),
    "overwrite": _HIGHEST.where(_NUMBER >= OVERWRITE_START),
}
_CORE = select(func.max(func.abs(schema.segments.c.core_partitions))).where(*_SAME_CHUNK)


def allocate(
    connection: Connection, requests: Sequence[AllocateRequest], now_ms: int
) -> list[PendingRow | None]:
    """Return the pending segment for each request, None if the chunk cannot take it."""
    take_turn(connection)
    return _Allocation(connection, now_ms).answer(requests)


@dataclass(frozen=True, slots=True)
class _Top:
    """The highest pending segment of an interval: by version, then by number."""

    version: str
    number: int
    interval: Interval


class _TimeChunk:
    """The content of one interval: its visible chunks, and the pending segments that overlap it."""

    def __init__(
        self, interval: Interval, visible: Sequence[ChunkSummary], pending: Iterable[PendingRow]
    ) -> None:
        self.interval = interval
        # A request for exactly a visible chunk has rows of times that no other chunk covers there.
        own = [chunk for chunk in visible if chunk.interval == interval]
        found = own or visible
        self.divided = len(found) > 1
        self.chunk = found[0] if len(found) == 1 else None
        self.empty = self.chunk is None
        self._of_sequence: dict[tuple[PartitionSpace, str], PendingRow] = {}
        self._tops: dict[PartitionSpace, _Top] = {}
        for row in pending:
            self.add(row)

    def add(self, row: PendingRow) -> None:
        """Add a pending segment that overlaps the interval."""
        if self.chunk is not None and row.version != self.chunk.version:
            return
        self.empty = False
        space: PartitionSpace = "overwrite" if row.partition_number >= OVERWRITE_START else "root"
        if row.interval == self.interval:
            self._of_sequence[space, row.sequence_name] = row
        top = self._tops.get(space)
        if top is None or (top.version, top.number) < (row.version, row.partition_number):
            self._tops[space] = _Top(row.version, row.partition_number, row.interval)

    def place_of(self, request: AllocateRequest) -> PendingRow | None:
        """Return the pending segment of a sequence here."""
        return self._of_sequence.get((request.space, request.sequence_name))

    def admits(self, row: PendingRow) -> bool:
        """Return whether a pending segment would be visible together with the existing segments."""
        return self.chunk is None or row.version == self.chunk.version

    def next_place(self, request: AllocateRequest) -> tuple[str, int, int] | None:
        """Return version, partition number and core partitions after the existing segments."""
        top, core = self._tops.get(request.space), 0
        if self.chunk is not None:
            committed = self.chunk.highest(request.space)
            core = self.chunk.core_partitions if committed != NONE else 0
            if core < 0:
                return None
            if committed != NONE and (top is None or top.number < committed):
                top = _Top(self.chunk.version, committed, self.chunk.interval)
        if top is None:
            first = 0 if request.space == "root" else OVERWRITE_START
            version = self.chunk.version if self.chunk is not None else request.version
            return version, first, 0
        if top.interval != request.interval:
            return None
        return top.version, top.number + 1, core


class _Allocation:
    """The requests of one transaction, with a cache of the intervals that it reads and changes."""

    def __init__(self, connection: Connection, now_ms: int) -> None:
        self._connection = connection
        self._now_ms = now_ms
        self._chunks: dict[tuple[str, Interval], _TimeChunk] = {}
        # By datasource. A call may request a year of hours that do not affect each other.
        self._chunks_at: defaultdict[str, IntervalIndex[_TimeChunk]] = defaultdict(IntervalIndex)
        self._made_at: defaultdict[str, IntervalIndex[PendingRow]] = defaultdict(IntervalIndex)
        self._lineages: dict[tuple[str, str, str], PendingRow] = {}
        self._highest: dict[tuple[str, Interval, str, PartitionSpace], int | None] = {}
        self._killed: dict[tuple[str, Interval, str], int] = {}
        self._minors: dict[tuple[str, Interval, str], int] = {}
        self._made: list[PendingRow] = []

    def answer(self, requests: Sequence[AllocateRequest]) -> list[PendingRow | None]:
        """Return the pending segment of each request, or None; write the new ones."""
        answers = [
            row if row is None or request.space == "root" else self._with_minor(row)
            for request in requests
            for row in [self._answer(request)]
        ]
        insert_pending(self._connection, self._made)
        return answers

    def _answer(self, request: AllocateRequest) -> PendingRow | None:
        chunk = self._time_chunk(request)
        if chunk.divided:
            return None
        if request.skip_lineage:
            found = chunk.place_of(request)
        else:
            found = self._place_after(request)
            if found is not None and found.interval != request.interval:
                return None
        if found is not None and chunk.admits(found):
            return found
        place = chunk.next_place(request)
        if place is None:
            return None
        row = self._avoid_used_places(request, place, new_chunk=chunk.empty)
        self._keep(request, row)
        return row

    def _with_minor(self, row: PendingRow) -> PendingRow:
        """Return the row of a segment that rewrites others with a minor version of its own.

        Minor versions of hidden segments are excluded, too: if such a segment became visible again,
        the two would be regarded as one group.
        """
        key = row.datasource, row.interval, row.version
        if key not in self._minors:
            self._minors[key] = 1 + highest_minor(self._connection, *key)
        return replace(row, minor_version=self._minors[key])

    def _keep(self, request: AllocateRequest, row: PendingRow) -> None:
        self._made.append(row)
        self._made_at[row.datasource].add(row.interval, row)
        for chunk in self._chunks_at[row.datasource].overlapping(row.interval):
            chunk.add(row)
        if not request.skip_lineage:
            self._lineages[row.datasource, row.sequence_name, row.previous_id] = row

    def _time_chunk(self, request: AllocateRequest) -> _TimeChunk:
        key = request.datasource, request.interval
        known = self._chunks.get(key)
        if known is not None:
            return known
        used = used_chunks(self._connection, request.datasource, request.interval)
        visible = visible_chunks(used, request.interval)
        made = self._made_at[request.datasource].overlapping(request.interval)
        pending = [*self._stored_pending(request), *made]
        chunk = self._chunks[key] = _TimeChunk(request.interval, visible, pending)
        self._chunks_at[request.datasource].add(request.interval, chunk)
        return chunk

    def _stored_pending(self, request: AllocateRequest) -> list[PendingRow]:
        interval = request.interval
        found = self._connection.execute(
            _PENDING,
            {"of": request.datasource, "from_ms": interval.start_ms, "to_ms": interval.end_ms},
        )
        return [PENDING.record(row) for row in found]

    def _place_after(self, request: AllocateRequest) -> PendingRow | None:
        """Return the pending segment after the previous one of the sequence: the newest one."""
        key = request.datasource, request.sequence_name, request.previous_id
        if key in self._lineages:
            return self._lineages[key]
        table = schema.pending
        query = (
            select(table)
            .where(
                table.c.datasource == request.datasource,
                table.c.sequence_name == request.sequence_name,
                table.c.previous_id == request.previous_id,
            )
            .order_by(table.c.version.desc(), table.c.partition_number.desc())
            .limit(1)
        )
        found = self._connection.execute(query).first()
        return None if found is None else PENDING.record(found)

    def _avoid_used_places(
        self, request: AllocateRequest, place: tuple[str, int, int], *, new_chunk: bool
    ) -> PendingRow:
        """Skip ids of segments that are unused or hidden: they are never reused."""
        version, number, core = place
        highest = self._highest_stored(request, version)
        if new_chunk and highest is not None and not self._goes_on(request, version):
            if version != APPEND_VERSION:
                raise Conflict(
                    f"segments of {request.datasource!r} for {request.interval} were published with"
                    f" version {version!r} and are hidden or unused: request a newer version"
                )
            for _ in range(_SUFFIXES_MAX):
                version += "S"
                highest = self._highest_stored(request, version)
                if highest is None:
                    break
            else:
                raise Conflict(
                    f"{request.datasource!r} has no append version left for {request.interval}: "
                    "delete its unused segments, or replace the interval"
                )
        elif highest is not None:
            number = max(number, highest + 1)
        number = max(number, self._after_killed(request, version))
        if number >= (OVERWRITE_START if request.space == "root" else OVERWRITE_END):
            raise Conflict(
                f"the version {version!r} of {request.datasource!r} for {request.interval} has no"
                " partition number left: compact the interval under a lock of its time chunk"
                " (forceTimeChunkLock: true)"
            )
        return PendingRow(
            datasource=request.datasource,
            interval=request.interval,
            version=version,
            partition_number=number,
            core_partitions=core,
            sequence_name=request.sequence_name,
            created_ms=self._now_ms,
            previous_id="" if request.skip_lineage else request.previous_id,
            allocator_id=request.allocator_id,
        )

    def _goes_on(self, request: AllocateRequest, version: str) -> bool:
        """Return whether a hidden chunk takes more segments under its version.

        It does if all of its segments were appended: those that a user marks used again become
        visible together with the new ones. An incomplete core would hide the new ones, too.
        """
        if version == APPEND_VERSION:
            return False
        place = chunk_named(request.datasource, request.interval, version)
        return self._connection.execute(_CORE, place).scalar() == 0

    def _after_killed(self, request: AllocateRequest, version: str) -> int:
        """Return the first number after those of killed segments."""
        if request.space == "overwrite":
            return 0
        key = request.datasource, request.interval, version
        if key not in self._killed:
            self._killed[key] = highest_killed(self._connection, *key)
        return self._killed[key] + 1

    def _highest_stored(self, request: AllocateRequest, version: str) -> int | None:
        """Return the highest number of segments, used or not, in the request's space."""
        key = request.datasource, request.interval, version, request.space
        if key not in self._highest:
            place = chunk_named(request.datasource, request.interval, version)
            query = _HIGHEST_IN[request.space]
            self._highest[key] = self._connection.execute(query, place).scalar()
        return self._highest[key]


def pending_intervals(
    connection: Connection, datasource: str, interval: Interval
) -> list[Interval]:
    """Return the time chunks of pending segments that overlap an interval, newest version first."""
    table = schema.pending
    query = (
        select(table.c.start_ms, table.c.end_ms)
        .where(
            table.c.datasource == datasource,
            table.c.start_ms < interval.end_ms,
            table.c.end_ms > interval.start_ms,
        )
        .group_by(table.c.start_ms, table.c.end_ms)
        .order_by(func.max(table.c.version).desc(), table.c.start_ms, table.c.end_ms)
    )
    return [Interval(row.start_ms, row.end_ms) for row in connection.execute(query)]


def insert_pending(connection: Connection, rows: Sequence[PendingRow]) -> None:
    """Insert new pending segments in one batch."""
    if not rows:
        return
    connection.execute(insert(schema.pending), [PENDING.values(row) for row in rows])
