"""Files that running tasks persisted and show to queries before they are published.

Invariant: no announced file has events of a published sequence or of a complete task. `shown`
chooses the files of a snapshot, so that no event is shown twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, delete, insert, select

from penstock.storage.metadata import schema
from penstock.storage.metadata.batches import batches
from penstock.storage.metadata.payloads import dump
from penstock.storage.metadata.revision import raise_revision, take_turn
from penstock.storage.metadata.shown import dump_reading, follow, load_reading
from penstock.storage.metadata.task_roots import read_roots, stored_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.storage.metadata.rows import AnnouncedFile, Reading


def announce(
    connection: Connection,
    owner: tuple[str, str, str],
    files: Sequence[AnnouncedFile],
    reading: Reading | None,
) -> bool:
    """Replace the files of `owner` (task, datasource, sequence); False if it must show none."""
    take_turn(connection)
    task_id, datasource, sequence_name = owner
    table = schema.announced
    mine = (
        (table.c.task_id == task_id)
        & (table.c.datasource == datasource)
        & (table.c.sequence_name == sequence_name)
    )
    allowed = not (
        is_complete(connection, task_id) or _is_published(connection, datasource, sequence_name)
    )
    query = delete(table).where(mine).returning(table.c.reading)
    removed = connection.execute(query).scalars().all()
    if reading is not None and removed:
        reading = follow(reading, load_reading(removed[0]))
    roots = read_roots(connection)
    rows = [
        {
            "task_id": task_id,
            "sequence_name": sequence_name,
            **stored_path(file.path, roots),
            "datasource": datasource,
            "start_ms": file.interval.start_ms,
            "end_ms": file.interval.end_ms,
            "row_count": file.rows,
            "payload": dump({key: file.payload[key] for key in file.payload if key != "path"}),
            "reading": dump_reading(reading),
        }
        for file in files
    ]
    if allowed and rows:
        connection.execute(insert(table), rows)
    if removed or (allowed and rows):
        raise_revision(connection, segments=False)
    return allowed


def forget(connection: Connection, task_ids: Sequence[str]) -> None:
    """Drop all announced files of some tasks."""
    take_turn(connection)
    table = schema.announced
    dropped = sum(
        connection.execute(delete(table).where(table.c.task_id.in_(batch))).rowcount
        for batch in batches(task_ids)
    )
    if dropped:
        raise_revision(connection, segments=False)


def is_complete(connection: Connection, task_id: str) -> bool:
    """Return whether a task has ended; an unknown one has not."""
    table = schema.tasks
    active = connection.execute(select(table.c.active).where(table.c.id == task_id)).scalar()
    return active is False


def _is_published(connection: Connection, datasource: str, sequence_name: str) -> bool:
    table = schema.published
    query = select(table.c.task_id).where(
        table.c.datasource == datasource, table.c.sequence_name == sequence_name
    )
    return connection.execute(query).first() is not None
