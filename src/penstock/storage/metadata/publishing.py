"""The publish transaction and the committed offsets it moves: what makes ingestion exactly once.

`compare` decides alone and purely. Invariants: committed offsets and the segments of the events
below them change in one transaction, and only from the offsets that the publishing task started at,
in the same topic; a task that is complete moves none, so offsets that are set after its end stay as
they are set.
"""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum

from sqlalchemy import Connection, delete, exists, insert, select, update

from penstock.core.errors import Conflict, InvalidRequest
from penstock.storage.metadata import schema
from penstock.storage.metadata.announcements import is_complete
from penstock.storage.metadata.payloads import dump, dump_offsets, load_offsets
from penstock.storage.metadata.rows import (
    CommittedRow,
    CountsRow,
    Offsets,
    PublishOutcome,
    PublishRequest,
    SegmentRow,
)
from penstock.storage.metadata.snapshots import raise_revision, take_turn

_ROWS_PER_STATEMENT = 100

# A published sequence is remembered this long, and longer while a task of before it is active.
_PUBLISHED_KEPT_MS = 86_400_000


class Comparison(Enum):
    """How a sequence's start stands to the committed offsets."""

    MATCHES = "matches"
    AHEAD = "ahead"
    BEHIND = "behind"
    ELSEWHERE = "elsewhere"


def compare(committed: CommittedRow | None, start: Offsets, topic_id: str = "") -> Comparison:
    """Compare the start of a sequence with what is committed, on the stream partitions both know.

    Nothing committed, or no stream partition in common, matches: any start is as good as another.
    Offsets of a topic mean nothing in another one. An id that is not known matches any.
    """
    known = committed.offsets if committed is not None else {}
    if committed is not None and _differ(committed.topic_id, topic_id):
        return Comparison.ELSEWHERE
    common = start.keys() & known.keys()
    if all(start[partition] == known[partition] for partition in common):
        return Comparison.MATCHES
    if any(start[partition] > known[partition] for partition in common):
        return Comparison.AHEAD
    return Comparison.BEHIND


def publish(connection: Connection, request: PublishRequest, now_ms: int) -> PublishOutcome:
    """Compare, then insert the segments, move the offsets and clear up behind the sequence."""
    _check(request)
    take_turn(connection)
    moves = request.supervisor_id is not None
    if moves and (refusal := _refusal(connection, request)) is not None:
        return refusal
    taken = _existing_ids(connection, request)
    if moves and taken:
        # The offsets match, so these events are new: to skip the segment would lose them.
        return PublishOutcome(
            ok=False,
            reason=f"segment {min(taken)!r} was published by another sequence: allocate anew",
        )
    fresh = [row for row in request.segments if row.id not in taken]
    _insert_segments(connection, fresh, now_ms)
    if moves:
        _move_offsets(connection, request, now_ms)
    shown = _clear_sequence(connection, request)
    if fresh or shown:
        raise_revision(connection, segments=bool(fresh))
    return PublishOutcome(ok=True, inserted=tuple(row.id for row in fresh))


def read_committed(connection: Connection, supervisor_id: str) -> CommittedRow | None:
    """Return the committed offsets and whose they are, None before the first."""
    table = schema.offsets
    query = select(table.c.topic_id, table.c.offsets).where(table.c.supervisor_id == supervisor_id)
    found = connection.execute(query).one_or_none()
    return None if found is None else CommittedRow(found.topic_id, load_offsets(found.offsets))


def write_committed(
    connection: Connection, supervisor_id: str, committed: CommittedRow | None, now_ms: int
) -> None:
    """Set the committed offsets whatever they were; None removes them."""
    take_turn(connection)
    table = schema.offsets
    mine = table.c.supervisor_id == supervisor_id
    connection.execute(delete(table).where(mine))
    if committed is not None:
        connection.execute(
            insert(table).values(
                supervisor_id=supervisor_id,
                offsets=dump_offsets(committed.offsets),
                updated_ms=now_ms,
                topic_id=committed.topic_id,
            )
        )


def move_offsets(
    connection: Connection, supervisor_id: str, offsets: Offsets, now_ms: int
) -> dict[int, int]:
    """Set the committed offsets of some stream partitions; return all that are committed then."""
    take_turn(connection)
    known = read_committed(connection, supervisor_id) or CommittedRow("", {})
    wanted = {**known.offsets, **offsets}
    write_committed(connection, supervisor_id, CommittedRow(known.topic_id, wanted), now_ms)
    return dict(sorted(wanted.items()))


def begin_offsets(
    connection: Connection, supervisor_id: str, first: CommittedRow, now_ms: int
) -> CommittedRow:
    """Commit a first offset, and an id, where there is none; return what is committed then."""
    take_turn(connection)
    known = read_committed(connection, supervisor_id) or CommittedRow("", {})
    if _differ(known.topic_id, first.topic_id):
        raise Conflict(
            f"supervisor {supervisor_id!r}: its committed offsets are of the topic with the id "
            f"{known.topic_id}, not of {first.topic_id}: look at the topic again"
        )
    wanted = CommittedRow(known.topic_id or first.topic_id, {**first.offsets, **known.offsets})
    if wanted != known:
        write_committed(connection, supervisor_id, wanted, now_ms)
    return CommittedRow(wanted.topic_id, dict(sorted(wanted.offsets.items())))


def begin_topic(
    connection: Connection, supervisor_id: str, was: str, first: CommittedRow, now_ms: int
) -> bool:
    """Leave one topic for the next, if the offsets are still those of the one; all are set."""
    take_turn(connection)
    known = read_committed(connection, supervisor_id)
    if known is None or known.topic_id != was:
        return False
    write_committed(connection, supervisor_id, first, now_ms)
    return True


def read_counts(connection: Connection, supervisor_id: str) -> CountsRow:
    """Return the added-up counts of a supervisor, zeros before its first publish."""
    table = schema.counts
    found = connection.execute(
        select(table).where(table.c.supervisor_id == supervisor_id)
    ).one_or_none()
    if found is None:
        return CountsRow()
    return CountsRow(**{name: getattr(found, name) for name in asdict(CountsRow())})


def _check(request: PublishRequest) -> None:
    given = (request.supervisor_id, request.start_offsets, request.end_offsets)
    if any(part is None for part in given) and any(part is not None for part in given):
        raise InvalidRequest(
            f"publish of task {request.task_id!r}: supervisor_id, start_offsets and end_offsets "
            "go together; give all three or none"
        )
    start, end = request.start_offsets or {}, request.end_offsets or {}
    backwards = [part for part in start.keys() & end.keys() if end[part] < start[part]]
    if backwards or start.keys() - end.keys():
        raise InvalidRequest(
            f"publish of task {request.task_id!r}: the end offsets {dict(end)} do not follow the "
            f"start offsets {dict(start)}"
        )
    for row in request.segments:
        if row.datasource != request.datasource:
            raise InvalidRequest(
                f"publish of task {request.task_id!r}: segment {row.id!r} is not of datasource "
                f"{request.datasource!r}; publish one datasource at a time"
            )


def _refusal(connection: Connection, request: PublishRequest) -> PublishOutcome | None:
    """Return why the offsets may not move from the request's start, None if they may."""
    supervisor_id, start = request.supervisor_id or "", request.start_offsets or {}
    if _was_published(connection, request):
        return PublishOutcome(
            ok=False,
            already_published=True,
            reason=f"sequence {request.sequence_name!r} was published with these offsets before",
        )
    if is_complete(connection, request.task_id):
        return PublishOutcome(
            ok=False, reason=f"task {request.task_id!r} has ended, so it publishes nothing more"
        )
    known = read_committed(connection, supervisor_id)
    comparison = compare(known, start, request.topic_id)
    if comparison is Comparison.MATCHES or known is None:
        return None
    committed = dict(known.offsets)
    place = f"start {dict(start)} of supervisor {supervisor_id!r}"
    if comparison is Comparison.ELSEWHERE:
        return PublishOutcome(
            ok=False,
            reason=f"{place} is in the topic with the id {request.topic_id}, which was deleted: "
            f"its successor, {known.topic_id}, is read by now",
        )
    if comparison is Comparison.AHEAD:
        return PublishOutcome(
            ok=False,
            retryable=True,
            reason=f"{place} is ahead of the last committed {committed}: an earlier sequence has "
            "to publish first",
        )
    return PublishOutcome(
        ok=False,
        reason=f"{place} lies behind the last committed {committed}: it has already been updated "
        "by other tasks, or by hand",
    )


def _was_published(connection: Connection, request: PublishRequest) -> bool:
    if not request.sequence_name:
        return False
    table = schema.published
    query = select(table.c.task_id).where(
        table.c.datasource == request.datasource,
        table.c.sequence_name == request.sequence_name,
        table.c.start_offsets == dump_offsets(request.start_offsets or {}),
        table.c.end_offsets == dump_offsets(request.end_offsets or {}),
    )
    return connection.execute(query).first() is not None


def _existing_ids(connection: Connection, request: PublishRequest) -> set[str]:
    table = schema.segments
    ids = [row.id for row in request.segments]
    found: set[str] = set()
    for start in range(0, len(ids), _ROWS_PER_STATEMENT):
        batch = ids[start : start + _ROWS_PER_STATEMENT]
        found.update(connection.execute(select(table.c.id).where(table.c.id.in_(batch))).scalars())
    return found


def _insert_segments(connection: Connection, rows: list[SegmentRow], now_ms: int) -> None:
    values = [
        {
            "id": row.id,
            "datasource": row.datasource,
            "start_ms": row.interval.start_ms,
            "end_ms": row.interval.end_ms,
            "version": row.version,
            "partition_number": row.partition_number,
            "core_partitions": row.core_partitions,
            "used": row.used,
            "created_ms": row.created_ms or now_ms,
            "used_changed_ms": now_ms,
            "payload": dump(row.payload),
            "upgraded_from": row.upgraded_from,
        }
        for row in rows
    ]
    for start in range(0, len(values), _ROWS_PER_STATEMENT):
        connection.execute(insert(schema.segments), values[start : start + _ROWS_PER_STATEMENT])


def _move_offsets(connection: Connection, request: PublishRequest, now_ms: int) -> None:
    supervisor_id = request.supervisor_id or ""
    known = read_committed(connection, supervisor_id) or CommittedRow("", {})
    end = {**known.offsets, **(request.end_offsets or {})}
    moved = CommittedRow(known.topic_id or request.topic_id, end)
    write_committed(connection, supervisor_id, moved, now_ms)
    _add_counts(connection, supervisor_id, request.counts)
    if request.sequence_name:
        _remember_published(connection, request, now_ms)


def _differ(one: str, other: str) -> bool:
    """Whether two ids of topics are known and name two topics."""
    return bool(one and other and one != other)


def _add_counts(connection: Connection, supervisor_id: str, counts: CountsRow) -> None:
    table = schema.counts
    added = asdict(counts)
    sums = {name: table.c[name] + number for name, number in added.items()}
    mine = table.c.supervisor_id == supervisor_id
    if not connection.execute(update(table).where(mine).values(sums)).rowcount:
        connection.execute(insert(table).values(supervisor_id=supervisor_id, **added))


def _remember_published(connection: Connection, request: PublishRequest, now_ms: int) -> None:
    table, tasks = schema.published, schema.tasks
    older_task = exists().where(
        tasks.c.datasource == table.c.datasource,
        tasks.c.active,
        tasks.c.created_ms <= table.c.published_ms,
    )
    same = table.c.sequence_name == request.sequence_name
    forgotten = (table.c.published_ms < now_ms - _PUBLISHED_KEPT_MS) & ~older_task
    connection.execute(
        delete(table).where(table.c.datasource == request.datasource, same | forgotten)
    )
    connection.execute(
        insert(table).values(
            datasource=request.datasource,
            sequence_name=request.sequence_name,
            task_id=request.task_id,
            start_offsets=dump_offsets(request.start_offsets or {}),
            end_offsets=dump_offsets(request.end_offsets or {}),
            published_ms=now_ms,
        )
    )


def _clear_sequence(connection: Connection, request: PublishRequest) -> bool:
    """Drop the places that are used now and, of the sequence, the other places and what is shown.

    All replicas' files go. Returns True if any was shown.
    """
    pending, announced = schema.pending, schema.announced
    for row in request.segments:
        connection.execute(
            delete(pending).where(
                pending.c.datasource == row.datasource,
                pending.c.start_ms == row.interval.start_ms,
                pending.c.end_ms == row.interval.end_ms,
                pending.c.version == row.version,
                pending.c.partition_number == row.partition_number,
            )
        )
    if not request.sequence_name:
        return False
    for table in (pending, announced):
        removed = connection.execute(
            delete(table).where(
                table.c.datasource == request.datasource,
                table.c.sequence_name == request.sequence_name,
            )
        ).rowcount
    return bool(removed)
