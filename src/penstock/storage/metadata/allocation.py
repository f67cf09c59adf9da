"""Allocation: which version and partition number a new segment of a time chunk gets.

Asked twice for one sequence and interval the answer is the same, so replicas and restarted tasks
write the same segment ids. Lineage is not followed: a sequence has one place for each interval.
Invariant: no two sequences get one place, and a place never has a version that segments of the
chunk, seen or allocated, would hide or be hidden by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, func, select

from penstock.core.errors import Conflict
from penstock.storage.metadata import schema
from penstock.storage.metadata.chunks import Chunk, used_chunks, visible_chunks
from penstock.storage.metadata.places import insert_pending, pending_row
from penstock.storage.metadata.rows import AllocateRequest, PendingRow
from penstock.storage.metadata.snapshots import take_turn

if TYPE_CHECKING:
    from collections.abc import Sequence

# What tasks with append locks ask for: it must never hide anything, so it is not a time of now.
APPEND_VERSION = "1970-01-01T00:00:00.000Z"
_SUFFIXES_MAX = 10


def allocate(
    connection: Connection, requests: Sequence[AllocateRequest], now_ms: int
) -> list[PendingRow | None]:
    """Answer each request with its place, None where the chunk cannot take it."""
    take_turn(connection)
    return [_allocate_one(connection, request, now_ms) for request in requests]


def _allocate_one(
    connection: Connection, request: AllocateRequest, now_ms: int
) -> PendingRow | None:
    chunks = visible_chunks(
        used_chunks(connection, request.datasource, request.interval), request.interval
    )
    if len(chunks) > 1:
        return None
    chunk = chunks[0] if chunks else None
    pending = _overlapping_pending(connection, request)
    for row in pending:
        mine = row.sequence_name == request.sequence_name and row.interval == request.interval
        if mine and (chunk is None or row.version == chunk.version):
            return row
    place = _next_place(request, chunk, pending)
    if place is None:
        return None
    row = _avoid_used_places(connection, request, place, now_ms, new_chunk=not (chunk or pending))
    insert_pending(connection, [row])
    return row


def _next_place(
    request: AllocateRequest, chunk: Chunk | None, pending: Sequence[PendingRow]
) -> tuple[str, int, int] | None:
    """Return version, partition number and core partitions after what is there already."""
    taken = [
        (row.version, row.partition_number, row.interval)
        for row in pending
        if chunk is None or row.version == chunk.version
    ]
    if chunk is not None:
        taken.append((chunk.version, chunk.highest_root, chunk.interval))
    if not taken:
        return request.version, 0, 0
    version, number, interval = max(taken, key=lambda place: place[:2])
    if interval != request.interval:
        return None
    return version, number + 1, chunk.core_partitions if chunk else 0


def _avoid_used_places(
    connection: Connection,
    request: AllocateRequest,
    place: tuple[str, int, int],
    now_ms: int,
    *,
    new_chunk: bool,
) -> PendingRow:
    """Step aside for segments that are unused or hidden: their ids are taken for ever."""
    version, number, core = place
    highest = _highest_partition(connection, request, version)
    if new_chunk and highest is not None:
        if version != APPEND_VERSION:
            raise Conflict(
                f"segments of {request.datasource!r} for {request.interval} were published with "
                f"version {version!r} and are out of view: ask with a newer version"
            )
        for _ in range(_SUFFIXES_MAX):
            version += "S"
            highest = _highest_partition(connection, request, version)
            if highest is None:
                break
        else:
            raise Conflict(
                f"{request.datasource!r} has no append version left for {request.interval}: "
                "delete its unused segments, or replace the interval"
            )
    elif highest is not None:
        number = max(number, highest + 1)
    return PendingRow(
        request.datasource, request.interval, version, number, core, request.sequence_name, now_ms
    )


def _overlapping_pending(connection: Connection, request: AllocateRequest) -> list[PendingRow]:
    table = schema.pending
    query = select(table).where(
        table.c.datasource == request.datasource,
        table.c.start_ms < request.interval.end_ms,
        table.c.end_ms > request.interval.start_ms,
    )
    return [pending_row(row) for row in connection.execute(query)]


def _highest_partition(
    connection: Connection, request: AllocateRequest, version: str
) -> int | None:
    table = schema.segments
    query = select(func.max(table.c.partition_number)).where(
        table.c.datasource == request.datasource,
        table.c.start_ms == request.interval.start_ms,
        table.c.end_ms == request.interval.end_ms,
        table.c.version == version,
    )
    highest: int | None = connection.execute(query).scalar()
    return highest
