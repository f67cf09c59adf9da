"""The snapshot of one instant: the visible segments and announced files.

Invariant: a changed row of a segment gets a `changed_revision` that no snapshot has yet.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from sqlalchemy import Connection, Row, bindparam, func, select

from penstock.core.intervals import Interval
from penstock.storage.metadata import schema
from penstock.storage.metadata.announced_files import Candidate, choose, load_announced_offsets
from penstock.storage.metadata.payloads import load
from penstock.storage.metadata.revision import read_revision
from penstock.storage.metadata.row_mapper import COMMITTED, SEGMENTS
from penstock.storage.metadata.rows.publish import CommittedRow
from penstock.storage.metadata.rows.segments import (
    AnnouncedFile,
    AnnouncedRow,
    AnnouncedSequence,
    SegmentRow,
    Snapshot,
)
from penstock.storage.metadata.task_roots import full_path, read_roots

# More changes than this are merged by a sort.
_MOVED_ONE_BY_ONE = 500

# Built once: a query for each snapshot takes longer to build than to execute.
_TABLE = schema.announced.c
_ANNOUNCED = select(schema.announced).order_by(
    _TABLE.datasource, _TABLE.sequence_name, _TABLE.task_id, _TABLE.path
)
_ANNOUNCED_OF = _ANNOUNCED.where(_TABLE.datasource == bindparam("of"))
_USED = select(schema.segments).where(schema.segments.c.used)
_USED_OF = _USED.where(schema.segments.c.datasource == bindparam("of"))
_COMMITTED = select(schema.offsets)


def read_snapshot(
    connection: Connection, datasource: str | None, known: Snapshot | None
) -> Snapshot:
    """Read the snapshot of this instant, taking unchanged parts from `known`."""
    revision, segments_revision = read_revision(connection)
    if known is not None and known.datasource != datasource:
        known = None
    if known is not None and known.revision == revision:
        return known
    if known is not None and known.segments_revision == segments_revision:
        segments = known.segments
    else:
        moved = _moved(connection, known) if known is not None else None
        segments = _used_segments(connection, datasource) if moved is None else moved
    return Snapshot(
        revision, segments_revision, segments, read_announced(connection, datasource), datasource
    )


def _used_segments(connection: Connection, datasource: str | None) -> tuple[SegmentRow, ...]:
    if datasource is None:
        found = connection.execute(_USED)
    else:
        found = connection.execute(_USED_OF, {"of": datasource})
    rows = [SEGMENTS.record(row) for row in found]
    rows.sort(key=_place)
    return tuple(rows)


def _moved(connection: Connection, known: Snapshot) -> tuple[SegmentRow, ...] | None:
    """Return the current used rows, reading only those that changed since `known`.

    None if that is not possible: a row that became unused and was killed since left no trace, so
    the rows are also counted. This is cheap if few of very many have changed.
    """
    table = schema.segments
    query = select(table).where(table.c.changed_revision > known.segments_revision)
    if known.datasource is not None:
        query = query.where(table.c.datasource == known.datasource)
    changed = [SEGMENTS.record(found) for found in connection.execute(query)]
    rows = list(known.segments)
    if len(changed) > _MOVED_ONE_BY_ONE:
        by_place = {_place(row): row for row in rows}
        by_place.update((_place(row), row) for row in changed)
        rows = sorted((row for row in by_place.values() if row.used), key=_place)
    else:
        for row in changed:
            _move(rows, row)
    count = select(func.count()).select_from(table).where(table.c.used)
    if known.datasource is not None:
        count = count.where(table.c.datasource == known.datasource)
    return tuple(rows) if connection.execute(count).scalar_one() == len(rows) else None


def _move(rows: list[SegmentRow], row: SegmentRow) -> None:
    """Update one row of a sorted list."""
    place = _place(row)
    at = bisect_left(rows, place, key=_place)
    there = at < len(rows) and _place(rows[at]) == place
    rows[at : at + there] = [row] if row.used else []


def _place(row: SegmentRow) -> tuple[str, Interval, str, int]:
    return row.datasource, row.interval, row.version, row.partition_number


def read_announced(connection: Connection, datasource: str | None) -> tuple[AnnouncedRow, ...]:
    """Return the announced files that a snapshot shows, of one datasource or of all."""
    _, chosen = _candidates(connection, datasource)
    return tuple(row for one in chosen for row in one.rows)


def read_sequences(connection: Connection, datasource: str) -> list[AnnouncedSequence]:
    """Return all announcements of a datasource, with their offsets."""
    replicas, chosen = _candidates(connection, datasource)
    return [
        AnnouncedSequence(
            one.rows[0].task_id,
            one.rows[0].sequence_name,
            one.reading,
            tuple(row.file for row in one.rows),
            any(one is other for other in chosen),
        )
        for by_task in replicas
        for one in by_task
    ]


def _candidates(
    connection: Connection, datasource: str | None
) -> tuple[list[list[Candidate]], list[Candidate]]:
    """Return the announcements of each sequence, and those that a snapshot shows."""
    if datasource is None:
        rows = connection.execute(_ANNOUNCED)
    else:
        rows = connection.execute(_ANNOUNCED_OF, {"of": datasource})
    roots = read_roots(connection)
    sequences: dict[tuple[str, str], dict[str, Candidate]] = {}
    for found in rows:
        by_task = sequences.setdefault((found.datasource, found.sequence_name), {})
        candidate = by_task.get(found.task_id)
        if candidate is None:
            by_task[found.task_id] = candidate = Candidate(load_announced_offsets(found.reading))
        candidate.rows.append(_announced_row(found, roots))
    committed = _committed(connection) if sequences else {}
    replicas = [list(by_task.values()) for by_task in sequences.values()]
    return replicas, choose(replicas, committed)


def _committed(connection: Connection) -> dict[str, CommittedRow]:
    found = connection.execute(_COMMITTED)
    return {row.supervisor_id: COMMITTED.record(row) for row in found}


def _announced_row(found: Row[tuple[object, ...]], roots: Mapping[str, str]) -> AnnouncedRow:
    file = AnnouncedFile(
        path=full_path(found.root, found.path, roots),
        interval=Interval(found.start_ms, found.end_ms),
        rows=found.row_count,
        payload=load(found.payload),
    )
    return AnnouncedRow(found.task_id, found.datasource, found.sequence_name, file)
