"""Published sequences, and the rows that are deleted with a publish.

Invariant: a published sequence is remembered for as long as a task from before its publish may
still publish it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, bindparam, delete, exists, insert, select

from penstock.storage.metadata import schema
from penstock.storage.metadata.payloads import dump_offsets, load_offsets
from penstock.storage.metadata.row_mapper import PENDING
from penstock.storage.metadata.sql_database import in_batches

if TYPE_CHECKING:
    from penstock.storage.metadata.payloads import Offsets
    from penstock.storage.metadata.rows.publish import PublishRequest

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
