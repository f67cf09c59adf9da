"""Segments that the next commit of a replacing task has to list again under its version.

A row says: this segment came, or stays, while that task replaces its time, and is not in what the
task writes. Rows go with the task's commit, with its end, or when it takes a newer lock of their
time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, bindparam, delete, insert, select

from penstock.storage.metadata import schema
from penstock.storage.metadata.batches import batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.core.intervals import Interval
    from penstock.storage.metadata.database import Transactions


class Upgrades:
    """The upgrades table."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def add(self, task_id: str, versions: Mapping[str, str]) -> None:
        """Have the commit of a replacing task list segments again; those that are there stay.

        Args:
            task_id: The task.
            versions: By segment id, the version of its REPLACE lock around the segment.
        """
        rows = [(task_id, name, version) for name, version in versions.items()]
        self._database.write(lambda c: add_upgrades(c, rows))

    def forget(self, task_ids: Iterable[str]) -> int:
        """Delete the rows of replacing tasks; return how many there were."""
        wanted = list(task_ids)
        return self._database.write(lambda c: forget_upgrades(c, wanted))


def add_upgrades(connection: Connection, rows: Iterable[tuple[str, str, str]]) -> None:
    """Keep rows of task, segment and version; those that are there stay."""
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
    """Delete the rows of these tasks; return how many there were."""
    table = schema.upgrades
    return sum(
        connection.execute(delete(table).where(table.c.task_id.in_(batch))).rowcount
        for batch in batches(task_ids)
    )


def forget_older_upgrades(
    connection: Connection, locks: Sequence[tuple[str, Interval, str]]
) -> None:
    """Delete what was left for tasks under other REPLACE locks of the time that they lock now.

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
