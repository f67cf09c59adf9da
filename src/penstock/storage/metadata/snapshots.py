"""What is visible: the revision that every change raises, and the snapshot of one instant.

Invariant: whoever changes a used segment or an announced file calls `raise_revision` or
`take_turn` before it reads or writes anything else. On PostgreSQL that locks the one row until the
end of the transaction (SQLite's write transactions take turns anyway), so such transactions run one
after the other, revisions come out in commit order, and nobody waits for a second lock.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, Row, select, update

from penstock.core.intervals import Interval
from penstock.storage.metadata import schema
from penstock.storage.metadata.payloads import load
from penstock.storage.metadata.rows import AnnouncedFile, AnnouncedRow, SegmentRow, Snapshot

_IDS_PER_STATEMENT = 500


def take_turn(connection: Connection) -> None:
    """Wait until no other transaction changes what is visible; hold them off until the commit."""
    connection.execute(select(schema.revision.c.id).with_for_update()).one()


def raise_revision(connection: Connection, *, segments: bool) -> None:
    """Say that something visible changes in this transaction: segments, or announced files only."""
    row = schema.revision
    values = {"revision": row.c.revision + 1}
    if segments:
        values["segments_revision"] = row.c.revision + 1
    connection.execute(update(row).values(values))


def read_revision(connection: Connection) -> tuple[int, int]:
    """Return the revision, and the one at which segments last changed."""
    row = schema.revision
    found = connection.execute(select(row.c.revision, row.c.segments_revision)).one()
    return found.revision, found.segments_revision


def read_snapshot(
    connection: Connection, datasource: str | None, known: Snapshot | None
) -> Snapshot:
    """Read what is visible now, taking from `known` what has not changed since."""
    revision, segments_revision = read_revision(connection)
    if known is not None and known.datasource != datasource:
        known = None
    if known is not None and known.revision == revision:
        return known
    if known is not None and known.segments_revision == segments_revision:
        segments = known.segments
    else:
        segments = _used_segments(connection, datasource, known.segments if known else ())
    return Snapshot(
        revision, segments_revision, segments, _announced(connection, datasource), datasource
    )


def segment_row(found: Row[tuple[object, ...]]) -> SegmentRow:
    """Return the record of a row of the segments table."""
    return SegmentRow(
        id=found.id,
        datasource=found.datasource,
        interval=Interval(found.start_ms, found.end_ms),
        version=found.version,
        partition_number=found.partition_number,
        core_partitions=found.core_partitions,
        payload=load(found.payload),
        used=found.used,
        created_ms=found.created_ms,
        used_changed_ms=found.used_changed_ms,
        upgraded_from=found.upgraded_from,
    )


def _used_segments(
    connection: Connection, datasource: str | None, known: Sequence[SegmentRow]
) -> tuple[SegmentRow, ...]:
    """Read the used rows; payloads, which are most of the work, only of those not known."""
    table = schema.segments
    visible: list[ColumnElement[bool]] = [table.c.used]
    if datasource is not None:
        visible.append(table.c.datasource == datasource)
    if not known:
        rows = [segment_row(found) for found in connection.execute(select(table).where(*visible))]
    else:
        # A row that was deleted and published again under its id has another time.
        by_key = {(row.id, row.used_changed_ms): row for row in known}
        query = select(table.c.id, table.c.used_changed_ms).where(*visible)
        keys = [(found.id, found.used_changed_ms) for found in connection.execute(query)]
        rows = [by_key[key] for key in keys if key in by_key]
        fresh = [key[0] for key in keys if key not in by_key]
        for start in range(0, len(fresh), _IDS_PER_STATEMENT):
            batch = select(table).where(table.c.id.in_(fresh[start : start + _IDS_PER_STATEMENT]))
            rows.extend(segment_row(found) for found in connection.execute(batch))
    rows.sort(key=_place)
    return tuple(rows)


def _place(row: SegmentRow) -> tuple[str, Interval, str, int]:
    return row.datasource, row.interval, row.version, row.partition_number


def _announced(connection: Connection, datasource: str | None) -> tuple[AnnouncedRow, ...]:
    table = schema.announced
    query = select(table).order_by(
        table.c.datasource, table.c.sequence_name, table.c.task_id, table.c.path
    )
    if datasource is not None:
        query = query.where(table.c.datasource == datasource)
    sequences: dict[tuple[str, str], dict[str, list[AnnouncedRow]]] = {}
    for found in connection.execute(query):
        by_task = sequences.setdefault((found.datasource, found.sequence_name), {})
        by_task.setdefault(found.task_id, []).append(_announced_row(found))
    # Replicas read the same events: the one that got furthest speaks for the sequence.
    return tuple(
        row
        for by_task in sequences.values()
        for row in max(by_task.values(), key=lambda rows: sum(row.file.rows for row in rows))
    )


def _announced_row(found: Row[tuple[object, ...]]) -> AnnouncedRow:
    file = AnnouncedFile(
        path=found.path,
        interval=Interval(found.start_ms, found.end_ms),
        rows=found.row_count,
        payload=load(found.payload),
    )
    return AnnouncedRow(found.task_id, found.datasource, found.sequence_name, file)
