"""Publish transaction: segments and offsets, written together exactly once.

`publish` decides whether a publish is accepted and orders its parts; the other modules of this
package implement the parts. An append also interacts with concurrent replaces: a replace that
committed while the appending task ran left a copy of each of its pending segments, so the
segment is inserted there too; a replace that has not committed records the segment and copies
it later.

Invariants: committed offsets and the segments of the events below them change in one
transaction, and only from the offsets at which the publishing task started, in the same topic.
A complete task publishes nothing, so offsets that are set after its end are kept. The segments of a
sequence are inserted once, regardless of how many replicas and restarted tasks publish them. The
record of a published sequence is kept as long as a task that existed before the publish may repeat
it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from sqlalchemy import Connection, bindparam, delete, exists, insert, select

from penstock.core.errors import InvalidRequest
from penstock.storage.metadata import schema
from penstock.storage.metadata.allocation import insert_pending
from penstock.storage.metadata.announced_files import is_complete
from penstock.storage.metadata.payloads import dump_offsets, load_offsets
from penstock.storage.metadata.publish import publish_log
from penstock.storage.metadata.publish.conflicts import (
    refusal_of_appends,
    refusal_of_basis,
    refusal_of_rewrites,
    rewrites,
)
from penstock.storage.metadata.publish.offsets import (
    OffsetComparison,
    advance,
    compare,
    read_committed,
)
from penstock.storage.metadata.publish.query_batches import refusal_of_batch, remember_batch
from penstock.storage.metadata.publish.replacement import Replacement, plan_replace
from penstock.storage.metadata.publish.segment_rows import (
    copy_of,
    existing_ids,
    hidden_by_each_other,
    insert_segments,
    without_lost_cores,
)
from penstock.storage.metadata.publish.upgrades import add_upgrades, forget_upgrades
from penstock.storage.metadata.revision import raise_revision, take_turn
from penstock.storage.metadata.row_mapper import PENDING
from penstock.storage.metadata.rows.publish import PublishOutcome, PublishRequest
from penstock.storage.metadata.sql_database import in_batches

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from penstock.storage.metadata.payloads import Offsets
    from penstock.storage.metadata.rows.segments import SegmentRow


def copies_for_upgraded(connection: Connection, rows: Sequence[SegmentRow]) -> list[SegmentRow]:
    """Return a copy of each row for every copy of its pending segment."""
    by_id = {row.id: row for row in rows}
    table = schema.pending
    upgraded_rows = [
        PENDING.record(found)
        for batch in in_batches(list(by_id))
        for found in connection.execute(select(table).where(table.c.upgraded_from.in_(batch)))
    ]
    return [
        copy_of(
            by_id[row.upgraded_from],
            row.interval,
            row.version,
            row.partition_number,
            row.core_partitions,
        )
        for row in upgraded_rows
    ]


def keep_for_replace(
    connection: Connection, request: PublishRequest, taken: Collection[str]
) -> None:
    """Record the new segments for the replacing tasks whose locks cover them."""
    add_upgrades(
        connection,
        [
            (lock.task_id, name, lock.version)
            for name, lock in request.covering.items()
            if name not in taken
        ],
    )


def publish(connection: Connection, request: PublishRequest, now_ms: int) -> PublishOutcome:
    """Compare, then insert the segments, move the offsets and clean up after the sequence."""
    _check(request)
    take_turn(connection)
    if (refusal := _refusal(connection, request)) is not None:
        return refusal
    planned = _plan(connection, request, now_ms)
    if isinstance(planned, str):
        return PublishOutcome(ok=False, reason=planned)
    if (refusal := refusal_of_appends(connection, request, planned.rows)) is not None:
        return refusal
    moves = request.supervisor_id is not None
    taken = existing_ids(connection, [row.id for row in planned.rows])
    if moves and taken:
        # The offsets match, so these events are new: skipping the segment would lose them.
        return PublishOutcome(
            ok=False,
            reason=f"segment {min(taken)!r} was published by another sequence: allocate a new "
            "segment id",
        )
    fresh = [row for row in planned.rows if row.id not in taken]
    _insert(connection, request, fresh, now_ms)
    if request.kind == "append":
        keep_for_replace(connection, request, taken)
    elif request.kind == "replace":
        forget_upgrades(connection, [request.task_id])
        insert_pending(connection, planned.upgraded_rows)
    if moves:
        advance(connection, request, now_ms)
    if request.sequence_name:
        remember_published(connection, request, now_ms)
    if request.batch is not None:
        remember_batch(connection, request, request.batch, now_ms)
    shown = clear_sequence(connection, request)
    if fresh or shown or moves:
        raise_revision(connection, segments=bool(fresh))
    return PublishOutcome(
        ok=True, inserted=tuple(row.id for row in fresh), upgraded=tuple(planned.upgraded_rows)
    )


def _insert(
    connection: Connection, request: PublishRequest, fresh: Sequence[SegmentRow], now_ms: int
) -> None:
    """Insert the segments, and record the publish unless it changes nothing."""
    if not fresh and request.supervisor_id is None:
        return
    publish_id = publish_log.next_id(connection)
    writers = publish_log.writers_of(connection, fresh, publish_id)
    insert_segments(connection, fresh, writers, now_ms)
    written = [name for name, writer in writers.items() if writer == publish_id]
    publish_log.record(connection, request, publish_id, written, now_ms)


def _plan(connection: Connection, request: PublishRequest, now_ms: int) -> Replacement | str:
    """Return the rows that the publish inserts, or why it is refused."""
    if request.kind == "replace":
        return plan_replace(connection, request, now_ms)
    rows = list(request.segments)
    if request.kind == "insert" and request.supervisor_id is None:
        rows = hidden_by_each_other(rows)
    rows += copies_for_upgraded(connection, rows)
    return Replacement(without_lost_cores(connection, rows), [])


def _check(request: PublishRequest) -> None:
    given = (request.supervisor_id, request.start_offsets, request.end_offsets)
    whose = f"publish of task {request.task_id!r}"
    if any(part is None for part in given) and any(part is not None for part in given):
        raise InvalidRequest(
            f"{whose}: supervisor_id, start_offsets and end_offsets go together; give all three or "
            "none"
        )
    start, end = request.start_offsets or {}, request.end_offsets or {}
    backwards = [part for part in start.keys() & end.keys() if end[part] < start[part]]
    if backwards or start.keys() - end.keys():
        raise InvalidRequest(
            f"{whose}: the end offsets {dict(end)} do not follow the start offsets {dict(start)}"
        )
    for row in request.segments:
        if row.datasource != request.datasource:
            raise InvalidRequest(
                f"{whose}: segment {row.id!r} is not of datasource {request.datasource!r}; publish "
                "one datasource at a time"
            )
    _require_apart(request, whose)
    if request.covering and request.kind != "append":
        raise InvalidRequest(
            f"{whose}: REPLACE locks cover appended segments: set `covering` with the kind append"
        )
    if request.basis is not None and (request.kind == "append" or request.supervisor_id):
        raise InvalidRequest(f"{whose}: only a replace has a `basis`: use the kind replace")
    if (request.overwritten or any(map(rewrites, request.segments))) and (
        request.kind != "insert" or request.supervisor_id
    ):
        raise InvalidRequest(
            f"{whose}: only a batch task with EXCLUSIVE locks rewrites segments of their version:"
            " publish with the kind insert"
        )
    if unknown := request.covering.keys() - {row.id for row in request.segments}:
        raise InvalidRequest(
            f"{whose}: segment {min(unknown)!r} of `covering` is not one of those published"
        )


def _require_apart(request: PublishRequest, whose: str) -> None:
    """Check that time chunks of one version are disjoint, so that the datasource can be read."""
    chunks = sorted({(row.version, row.interval) for row in request.segments})
    for (version, one), (other_version, other) in pairwise(chunks):
        if version == other_version and one.overlaps(other):
            raise InvalidRequest(
                f"{whose}: its time chunks {one} and {other} overlap and have the version"
                f" {version!r}, so neither can hide the other: publish them as one chunk, or apart"
            )


def _refusal(connection: Connection, request: PublishRequest) -> PublishOutcome | None:
    """Return why the publish is refused, None if it is not."""
    if was_published(connection, request):
        how = "with these offsets " if request.supervisor_id is not None else ""
        return PublishOutcome(
            ok=False,
            already_published=True,
            reason=f"sequence {request.sequence_name!r} was published {how}before",
        )
    if is_complete(connection, request.task_id):
        return PublishOutcome(
            ok=False, reason=f"task {request.task_id!r} has ended: it can no longer publish"
        )
    if request.batch is not None:
        refusal = refusal_of_batch(connection, request.datasource, request.batch)
        if refusal is not None:
            return refusal
    if request.supervisor_id is None:
        return refusal_of_rewrites(connection, request) or refusal_of_basis(connection, request)
    return _refusal_of_offsets(connection, request, request.supervisor_id)


def _refusal_of_offsets(
    connection: Connection, request: PublishRequest, supervisor_id: str
) -> PublishOutcome | None:
    """Return why the offsets must not move from the request's start, None if they may."""
    start = request.start_offsets or {}
    known = read_committed(connection, supervisor_id)
    comparison = compare(known, start, request.topic_id)
    if comparison is OffsetComparison.MATCHES or known is None:
        return None
    committed = dict(known.offsets)
    place = f"start {dict(start)} of supervisor {supervisor_id!r}"
    if comparison is OffsetComparison.ELSEWHERE:
        return PublishOutcome(
            ok=False,
            reason=f"{place} is in the topic with the id {request.topic_id}, which was deleted: "
            f"its successor is {known.topic_id}",
        )
    if comparison is OffsetComparison.AHEAD:
        return PublishOutcome(
            ok=False,
            retryable=True,
            reason=f"{place} is ahead of the last committed {committed}: an earlier sequence must "
            "publish first",
        )
    others = ", ".join(published_up_to(connection, request, committed))
    whose = f"by task {others}" if others else "by other tasks, or by hand"
    return PublishOutcome(
        ok=False,
        reason=f"{place} is behind the last committed {committed}: it has already been updated "
        f"{whose}",
    )


# A published sequence is remembered this long, and longer while an earlier task is active.
_PUBLISHED_KEPT_MS = 86_400_000


def was_published(connection: Connection, request: PublishRequest) -> bool:
    """Return whether this sequence was published before, with the same start and end."""
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


def published_up_to(
    connection: Connection, request: PublishRequest, committed: Offsets
) -> tuple[str, ...]:
    """Return the tasks whose publishes moved the committed offsets past a request's start."""
    table = schema.published
    query = select(table.c.task_id, table.c.end_offsets).where(
        table.c.datasource == request.datasource
    )
    start = request.start_offsets or {}
    past = {p: at for p, at in committed.items() if start.get(p, at) < at}
    found = (
        str(row.task_id)
        for row in connection.execute(query)
        if past.items() & load_offsets(row.end_offsets).items()
    )
    return tuple(sorted(set(found)))


def remember_published(connection: Connection, request: PublishRequest, now_ms: int) -> None:
    """Record that a sequence was published, and delete records that are no longer needed."""
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


def clear_sequence(connection: Connection, request: PublishRequest) -> bool:
    """Delete the used pending segments and, of the sequence, the others and announced files.

    Copies of all these pending segments are deleted too, and the files of all replicas.

    Returns:
        Whether any file was announced.
    """
    pending, announced = schema.pending, schema.announced
    ids = [row.id for row in request.segments]
    if request.segments:
        mine = [column == bindparam(f"b_{column.name}") for column in pending.primary_key]
        keys = [
            {
                "b_datasource": row.datasource,
                "b_start_ms": row.interval.start_ms,
                "b_end_ms": row.interval.end_ms,
                "b_version": row.version,
                "b_partition_number": row.partition_number,
            }
            for row in request.segments
        ]
        connection.execute(delete(pending).where(*mine), keys)
    if request.sequence_name:
        of_sequence = (pending.c.datasource == request.datasource) & (
            pending.c.sequence_name == request.sequence_name
        )
        unused = connection.execute(select(pending).where(of_sequence)).all()
        ids += [PENDING.record(row).id for row in unused]
        connection.execute(delete(pending).where(of_sequence))
    for batch in in_batches(ids):
        connection.execute(delete(pending).where(pending.c.upgraded_from.in_(batch)))
    if not request.sequence_name:
        return False
    shown = connection.execute(
        delete(announced).where(
            announced.c.datasource == request.datasource,
            announced.c.sequence_name == request.sequence_name,
        )
    ).rowcount
    return bool(shown)
