"""Log of publishes: the offsets, the segments and the task of each, to follow events.

`record` is part of the publish transaction, so the log has exactly the publishes that were
committed. Each segment names the publish that wrote its rows; a copy names that of its original.
The log is not used to decide anything: `published` has what decides about repeated publishes.

A record is kept while a segment of its publish exists, used or not, and for a minimum time.
Publishes before format 7 are not recorded.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final, cast

import orjson
from sqlalchemy import Connection, delete, exists, func, insert, or_, select

from penstock.storage.metadata import schema
from penstock.storage.metadata.payloads import dump, dump_offsets, load, load_offsets
from penstock.storage.metadata.rows.publish import CountsRow, PublishRecord, WrittenSegment
from penstock.storage.metadata.snapshots import read_sequences
from penstock.storage.metadata.sql_database import in_batches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Row

    from penstock.storage.metadata.rows.publish import PublishRequest
    from penstock.storage.metadata.rows.segments import AnnouncedSequence, SegmentRow
    from penstock.storage.metadata.sql_database import Transactions

_RANGES_READ: Final = 1_000
"""Ranges before an offset that a search reads, at most: a range that contains the offset is among
them unless the supervisor was reset and has read from later offsets more often since."""
_EXAMINED: Final = 5_000
_CLOCK_SLACK_MS: Final = 600_000  # clocks of hosts differ, and may be set back
_TASK_SCANNED: Final = 50_000
"""Publishes within the run of a task that a search for its own reads, at most."""
TASK_PUBLISHES_MAX: Final = 100


class PublishLog:
    """The log of publishes, and what tasks have not published yet."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def at_offset(self, supervisor_id: str, partition: int, offset: int) -> list[PublishRecord]:
        """Return the publishes of a supervisor that contain an offset, the newest first.

        There is more than one if the supervisor was reset and has read it again.
        """
        table = schema.publish_ranges
        before = (
            select(table.c.publish_id, table.c.end_offset)
            .where(
                table.c.supervisor_id == supervisor_id,
                table.c.stream_partition == partition,
                table.c.start_offset <= offset,
            )
            .order_by(table.c.start_offset.desc(), table.c.publish_id.desc())
            .limit(_RANGES_READ)
            .subquery()
        )
        query = select(before.c.publish_id).where(before.c.end_offset > offset)

        def work(connection: Connection) -> list[PublishRecord]:
            return _by_ids(connection, connection.execute(query).scalars().all())

        return sorted(self._database.read(work), key=lambda one: one.id, reverse=True)

    def of_segments(self, ids: Sequence[str]) -> Mapping[str, PublishRecord]:
        """Return the publish that wrote the rows of each of these segments, if it was recorded."""
        table = schema.segments

        def work(connection: Connection) -> Mapping[str, PublishRecord]:
            named: dict[str, int] = {}
            for batch in in_batches(ids):
                query = select(table.c.id, table.c.publish_id).where(table.c.id.in_(batch))
                named.update((row.id, row.publish_id) for row in connection.execute(query))
            known = {one.id: one for one in _by_ids(connection, sorted(set(named.values())))}
            return {name: known[at] for name, at in named.items() if at in known}

        return self._database.read(work)

    def of_task(self, task_id: str, created_ms: int, ended_ms: int) -> list[PublishRecord]:
        """Return the publishes of a task, the newest first, `TASK_PUBLISHES_MAX` at most.

        Args:
            task_id: The task.
            created_ms: When it was created.
            ended_ms: When it ended, or the current time.
        """
        table = schema.publishes

        def work(connection: Connection) -> list[PublishRecord]:
            first = _id_at(connection, created_ms - _CLOCK_SLACK_MS)
            last = _id_at(connection, ended_ms + _CLOCK_SLACK_MS)
            # The log has no index by task; publishes are numbered in the order of their times.
            query = (
                select(table.c.id)
                .where(
                    table.c.id >= max(first, last - _TASK_SCANNED),
                    table.c.id < last,
                    table.c.task_id == task_id,
                )
                .order_by(table.c.id.desc())
                .limit(TASK_PUBLISHES_MAX)
            )
            return _by_ids(connection, connection.execute(query).scalars().all())

        return sorted(self._database.read(work), key=lambda one: one.id, reverse=True)

    def segments_of(self, ids: Sequence[int], limit: int) -> tuple[int, list[WrittenSegment]]:
        """Return how many segments, used or not, name one of these publishes, and some of them.

        Args:
            ids: Numbers of publishes.
            limit: Most segments, the newest by time.
        """
        table = schema.segments

        def work(connection: Connection) -> tuple[int, list[WrittenSegment]]:
            count, found = 0, list[WrittenSegment]()
            for batch in in_batches(ids):
                mine = table.c.publish_id.in_(batch)
                count += connection.execute(
                    select(func.count()).select_from(table).where(mine)
                ).scalar_one()
                query = (
                    select(*(table.c[name] for name in WrittenSegment._fields))
                    .where(mine)
                    .order_by(table.c.start_ms.desc(), table.c.id)
                    .limit(limit - len(found))
                )
                found += [WrittenSegment(*row) for row in connection.execute(query)]
            return count, found

        return self._database.read(work)

    def unpublished(self, datasource: str) -> Sequence[AnnouncedSequence]:
        """Return what tasks announce of a datasource with the offsets, shown to queries or not."""
        return self._database.read(lambda c: read_sequences(c, datasource))

    def forget(self, *, before_ms: int, after: int = 0) -> tuple[int, int]:
        """Delete records of publishes before a time of which no segment exists any longer.

        It examines the next few thousand records, so that it is short; call it again and again.

        Args:
            before_ms: Later publishes are kept.
            after: The record after which it begins.

        Returns:
            The number of deleted records, and `after` for the next call: 0 after the last record.
        """
        table, ranges, segments = schema.publishes, schema.publish_ranges, schema.segments
        page = select(table.c.id).where(table.c.id > after).order_by(table.c.id).limit(_EXAMINED)
        has_segments = exists().where(segments.c.publish_id == table.c.id)

        def work(connection: Connection) -> tuple[int, int]:
            ids = connection.execute(page).scalars().all()
            if not ids:
                return 0, 0
            query = select(table.c.id).where(
                table.c.id > after,
                table.c.id <= ids[-1],
                table.c.published_ms < before_ms,
                ~has_segments,
            )
            old = connection.execute(query).scalars().all()
            for batch in in_batches(old):
                connection.execute(delete(ranges).where(ranges.c.publish_id.in_(batch)))
                connection.execute(delete(table).where(table.c.id.in_(batch)))
            return len(old), ids[-1] if len(ids) == _EXAMINED else 0

        return self._database.write(work)


def _id_at(connection: Connection, time_ms: int) -> int:
    """Return the number of the first publish at or after a time, or one more than the last."""
    table = schema.publishes
    low, high = connection.execute(select(func.min(table.c.id), func.max(table.c.id))).one()
    if low is None:
        return 0
    low, high = int(low), int(high) + 1
    while low < high:
        middle = (low + high) // 2
        query = select(table.c.id, table.c.published_ms).where(table.c.id >= middle)
        found = connection.execute(query.order_by(table.c.id).limit(1)).one_or_none()
        if found is None or found.id >= high or found.published_ms >= time_ms:
            high = middle
        else:
            low = int(found.id) + 1
    return low


def next_id(connection: Connection) -> int:
    """Return the id of the next record. The caller has taken the turn."""
    highest = connection.execute(select(func.max(schema.publishes.c.id))).scalar()
    return int(highest or 0) + 1


def writers_of(
    connection: Connection, rows: Sequence[SegmentRow], publish_id: int
) -> Mapping[str, int]:
    """Return the publish that wrote the rows of each new segment.

    That is this one, or for a copy that of its original. If the original is deleted, another copy
    names the publish.
    """
    own = {row.id for row in rows}
    roots = {row.upgraded_from for row in rows if row.upgraded_from} - own
    table, known = schema.segments, dict[str, int]()
    for batch in in_batches(sorted(roots)):
        query = select(table.c.id, table.c.upgraded_from, table.c.publish_id).where(
            or_(table.c.id.in_(batch), table.c.upgraded_from.in_(batch))
        )
        known.update((r.upgraded_from or r.id, r.publish_id) for r in connection.execute(query))
    return {
        row.id: known.get(row.upgraded_from, 0) if row.upgraded_from in roots else publish_id
        for row in rows
    }


def record(
    connection: Connection,
    request: PublishRequest,
    publish_id: int,
    written: Sequence[str],
    now_ms: int,
) -> None:
    """Record a publish that inserts the segments `written`."""
    start, end = request.start_offsets or {}, request.end_offsets or {}
    supervisor_id = request.supervisor_id or ""
    # A batch task may write very many; each of them names this record.
    listed = sorted(written) if supervisor_id else []
    connection.execute(
        insert(schema.publishes).values(
            id=publish_id,
            datasource=request.datasource,
            task_id=request.task_id,
            sequence_name=request.sequence_name,
            kind=request.kind,
            supervisor_id=supervisor_id,
            topic_id=request.topic_id,
            start_offsets=dump_offsets(start),
            end_offsets=dump_offsets(end),
            counts=dump(asdict(request.counts)),
            segments=orjson.dumps(listed).decode(),
            published_ms=now_ms,
        )
    )
    ranges = [
        {
            "supervisor_id": supervisor_id,
            "stream_partition": partition,
            "start_offset": first,
            "publish_id": publish_id,
            "end_offset": end[partition],
        }
        for partition, first in start.items()
        if first < end[partition]
    ]
    if ranges:
        connection.execute(insert(schema.publish_ranges), ranges)


def _by_ids(connection: Connection, ids: Sequence[int]) -> list[PublishRecord]:
    table = schema.publishes
    return [
        _record(row)
        for batch in in_batches(ids)
        for row in connection.execute(select(table).where(table.c.id.in_(batch)))
    ]


def _record(row: Row[tuple[object, ...]]) -> PublishRecord:
    found = row._mapping  # noqa: SLF001 - the public name of a row's mapping
    values = dict(found)
    return PublishRecord(
        id=row.id,
        datasource=row.datasource,
        task_id=row.task_id,
        sequence_name=row.sequence_name,
        kind=row.kind,
        supervisor_id=row.supervisor_id,
        topic_id=row.topic_id,
        start_offsets=load_offsets(str(values["start_offsets"])),
        end_offsets=load_offsets(str(values["end_offsets"])),
        counts=CountsRow(**cast("dict[str, int]", load(str(values["counts"])))),
        segments=tuple(orjson.loads(str(values["segments"]))),
        published_ms=row.published_ms,
    )
