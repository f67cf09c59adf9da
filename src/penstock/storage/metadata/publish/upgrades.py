"""Segments that the next commit of a replacing task must list again under its version.

Each row is a segment that was appended, or is kept, while that task replaces its interval, and is
not in the task's output. Rows are deleted at the task's commit, at its end, or when it acquires a
newer lock on their interval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, bindparam, delete, insert, select

from penstock.storage.metadata import schema
from penstock.storage.metadata.sql_database import in_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.core.intervals import Interval
    from penstock.storage.metadata.sql_database import Transactions


class SegmentUpgrades:
    """The upgrades table."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def add(self, task_id: str, versions: Mapping[str, str]) -> None:
        """Record segments that the commit of a replacing task must list again; repeats are ignored.

        Args:
            task_id: The task.
            versions: By segment id, the version of its REPLACE lock around the segment.
        """
        rows = [(task_id, name, version) for name, version in versions.items()]
        self._database.write(lambda c: add_upgrades(c, rows))

    def forget(self, task_ids: Iterable[str]) -> int:
        """Delete the rows of replacing tasks; return their number."""
        wanted = list(task_ids)
        return self._database.write(lambda c: forget_upgrades(c, wanted))


def add_upgrades(connection: Connection, rows: Iterable[tuple[str, str, str]]) -> None:
    """Insert rows of task, segment and version; existing ones are kept."""
    table = schema.upgrades
    known: dict[str, dict[str, str]] = {}
    values = []
    for task_id, name, version in rows:
        if task_id not in known:
            known[task_id] = read_upgrades(connection, task_id)
        if name not in known[task_id]:
            known[task_id][name] = version
            values.append({"task_id": task_id, "segment_id": name, "version": version})
    if values:
        connection.execute(insert(table), values)


def read_upgrades(connection: Connection, task_id: str) -> dict[str, str]:
    """Return the lock versions by segment id."""
    table = schema.upgrades
    query = select(table.c.segment_id, table.c.version).where(table.c.task_id == task_id)
    return {row.segment_id: row.version for row in connection.execute(query)}


def forget_upgrades(connection: Connection, task_ids: Sequence[str]) -> int:
    """Delete the rows of these tasks; return their number."""
    table = schema.upgrades
    return sum(
        connection.execute(delete(table).where(table.c.task_id.in_(batch))).rowcount
        for batch in in_batches(task_ids)
    )


def forget_older_upgrades(
    connection: Connection, locks: Sequence[tuple[str, Interval, str]]
) -> None:
    """Delete rows for older REPLACE locks of tasks on the intervals that they lock now.

    Args:
        connection: The transaction.
        locks: Task, interval and version of each lock.
    """
    if not locks:
        return
    table, segments = schema.upgrades, schema.segments
    of_its_time = select(segments.c.id).where(
        segments.c.id == table.c.segment_id,
        segments.c.start_ms < bindparam("before_ms"),
        segments.c.end_ms > bindparam("after_ms"),
    )
    query = delete(table).where(
        table.c.task_id == bindparam("of_task"),
        table.c.version != bindparam("of_version"),
        of_its_time.exists(),
    )
    connection.execute(
        query,
        [
            {
                "of_task": task_id,
                "of_version": version,
                "before_ms": interval.end_ms,
                "after_ms": interval.start_ms,
            }
            for task_id, interval, version in locks
        ],
    )
