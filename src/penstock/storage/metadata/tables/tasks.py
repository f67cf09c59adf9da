"""Tasks: their specs and results. The first complete state of a task is final."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import (
    ColumnElement,
    Connection,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from penstock.core.errors import NotFound
from penstock.storage.metadata import schema
from penstock.storage.metadata.announced_files import forget
from penstock.storage.metadata.payloads import JsonObject, dump
from penstock.storage.metadata.publish.upgrades import forget_upgrades
from penstock.storage.metadata.row_mapper import SUMMARIES, TASKS
from penstock.storage.metadata.rows.tasks import TaskFilter, TaskRow, TaskSummary
from penstock.storage.metadata.sql_database import in_batches
from penstock.storage.metadata.tables.locks import forget_locks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.storage.metadata.sql_database import Transactions

COMPLETE_STATES = frozenset({"SUCCESS", "FAILED"})

# One statement, which the drivers run for a batch of rows.
_SET_STATUS = (
    update(schema.tasks)
    .where(schema.tasks.c.id == bindparam("b_id"))
    .values({name: bindparam(f"b_{name}") for name in ("state", "active", "status", "updated_ms")})
)
_BY_ID = select(schema.tasks).where(schema.tasks.c.id == bindparam("of"))


class Tasks:
    """The tasks table."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def insert_new(self, rows: Sequence[TaskRow]) -> set[str]:
        """Insert the tasks whose ids are unused, in one transaction. The ids must differ.

        Returns:
            The ids that exist already: these tasks are not changed.
        """
        now_ms = self._database.now_ms()
        values = {row.id: _values(row, now_ms) for row in rows}
        table = schema.tasks

        def work(connection: Connection) -> set[str]:
            taken: set[str] = set()
            for batch in in_batches(list(values)):
                query = select(table.c.id).where(table.c.id.in_(batch))
                taken.update(connection.execute(query).scalars())
            new = [one for task_id, one in values.items() if task_id not in taken]
            if new:
                connection.execute(insert(table), new)
            return taken

        return self._database.write(work) if values else set()

    def set_status(self, task_id: str, state: str, status: JsonObject | None = None) -> bool:
        """Change state and status of an active task; None leaves the status unchanged.

        A complete state (SUCCESS, FAILED) also deletes the task's announced files, in the same
        transaction: the next task reads the unpublished messages again.

        Returns:
            False, and nothing changes, if the task is complete already.

        Raises:
            NotFound: The task does not exist.
        """
        wanted = {task_id: (state, status)}

        def work(connection: Connection) -> bool:
            if self._set_statuses(connection, wanted):
                return True
            query = select(schema.tasks.c.id).where(schema.tasks.c.id == task_id)
            if connection.execute(query).first() is None:
                raise NotFound(f"there is no task {task_id!r}")
            return False

        return self._database.write(work)

    def set_statuses(self, changes: Sequence[tuple[str, str, JsonObject | None]]) -> set[str]:
        """Apply `set_status` to many tasks (id, state, status) in one transaction.

        Returns:
            The ids of the changed tasks: the others are complete already, or do not exist.
        """
        wanted = _last_of_each(changes)
        return self._database.write(lambda c: self._set_statuses(c, wanted)) if wanted else set()

    def get(self, task_id: str) -> TaskRow | None:
        """Return one task, None if it does not exist."""
        found = self._database.read(lambda c: c.execute(_BY_ID, {"of": task_id}).one_or_none())
        return None if found is None else TASKS.record(found)

    def list(
        self,
        *,
        active: bool | None = None,
        datasource: str | None = None,
        limit: int | None = None,
    ) -> Sequence[TaskRow]:
        """Return tasks, the newest first: all, or those active or not, or of one datasource."""
        table = schema.tasks
        query = select(table).order_by(table.c.created_ms.desc(), table.c.id.desc())
        if active is not None:
            query = query.where(table.c.active.is_(active))
        if datasource is not None:
            query = query.where(table.c.datasource == datasource)
        if limit is not None:
            query = query.limit(limit)
        return self._database.read(lambda c: [TASKS.record(row) for row in c.execute(query)])

    def summaries(
        self, wanted: TaskFilter | None = None, *, limit: int | None = None
    ) -> Sequence[TaskSummary]:
        """Return tasks without their payloads, the newest first.

        Args:
            wanted: The conditions; None means all.
            limit: Maximum number.
        """
        table = schema.tasks
        query = (
            select(*SUMMARIES.columns)
            .where(*_conditions(wanted or TaskFilter()))
            .order_by(table.c.created_ms.desc(), table.c.id.desc())
        )
        if limit is not None:
            query = query.limit(limit)
        return self._database.read(lambda c: [SUMMARIES.record(row) for row in c.execute(query)])

    def active_ids(self) -> Sequence[str]:
        """Return the ids of the active tasks, the oldest first, without reading other columns."""
        table = schema.tasks
        query = select(table.c.id).where(table.c.active).order_by(table.c.created_ms, table.c.id)
        return self._database.read(lambda c: c.execute(query).scalars().all())

    def oldest_active_ms(self) -> int | None:
        """Return the creation time of the oldest active task, None if none is active."""
        table = schema.tasks
        query = select(func.min(table.c.created_ms)).where(table.c.active)
        return self._database.read(lambda c: c.execute(query).scalar())

    def summaries_of(self, ids: Sequence[str]) -> Sequence[TaskSummary]:
        """Return the existing ones of these tasks, without their payloads, in no order."""
        table = schema.tasks
        query = select(*SUMMARIES.columns)
        return self._database.read(
            lambda c: [
                SUMMARIES.record(row)
                for batch in in_batches(ids)
                for row in c.execute(query.where(table.c.id.in_(batch)))
            ]
        )

    def rows_of(self, ids: Sequence[str]) -> Sequence[TaskRow]:
        """Return the existing ones of these tasks, in no order."""
        table = schema.tasks
        return self._database.read(
            lambda c: [
                TASKS.record(row)
                for batch in in_batches(ids)
                for row in c.execute(select(table).where(table.c.id.in_(batch)))
            ]
        )

    def delete_complete(self, *, ended_before_ms: int) -> int:
        """Delete tasks that ended long ago, and the rest of their locks; return their number."""
        table = schema.tasks
        old = ~table.c.active & (table.c.updated_ms < ended_before_ms)

        def work(connection: Connection) -> int:
            ids = connection.execute(select(table.c.id).where(old)).scalars().all()
            forget_locks(connection, ids)
            forget_upgrades(connection, ids)
            return connection.execute(delete(table).where(old)).rowcount

        return self._database.write(work)

    def _set_statuses(
        self, connection: Connection, wanted: Mapping[str, tuple[str, JsonObject | None]]
    ) -> set[str]:
        """Change the active ones; return their ids."""
        table = schema.tasks
        complete = [name for name, (state, _) in wanted.items() if state in COMPLETE_STATES]
        if complete:
            # First, because it takes the turn that all changes of visible data take first.
            forget(connection, complete)
            forget_locks(connection, complete)
            forget_upgrades(connection, complete)
        active: dict[str, str] = {}
        for batch in in_batches(sorted(wanted)):
            # Locked in the order of ids, so that concurrent calls do not deadlock.
            query = select(table.c.id, table.c.status).where(table.c.id.in_(batch), table.c.active)
            query = query.order_by(table.c.id).with_for_update()
            active.update((row.id, row.status) for row in connection.execute(query))
        now_ms = self._database.now_ms()
        values = [
            {
                "b_id": name,
                "b_state": state,
                "b_active": state not in COMPLETE_STATES,
                "b_status": active[name] if status is None else dump(status),
                "b_updated_ms": now_ms,
            }
            for name, (state, status) in wanted.items()
            if name in active
        ]
        if values:
            connection.execute(_SET_STATUS, values)
        return set(active)


def _last_of_each(
    changes: Iterable[tuple[str, str, JsonObject | None]],
) -> dict[str, tuple[str, JsonObject | None]]:
    """Return the final state and status of each task after these changes in order."""
    last: dict[str, tuple[str, JsonObject | None]] = {}
    for task_id, state, status in changes:
        before = last.get(task_id, ("", None))
        if before[0] not in COMPLETE_STATES:
            last[task_id] = (state, before[1] if status is None else status)
    return last


def _values(row: TaskRow, now_ms: int) -> dict[str, object]:
    values = TASKS.values(row)
    values["created_ms"] = row.created_ms or now_ms
    values["updated_ms"] = now_ms
    values["active"] = row.state not in COMPLETE_STATES
    return values


def _conditions(wanted: TaskFilter) -> list[ColumnElement[bool]]:
    table = schema.tasks
    conditions: list[ColumnElement[bool]] = []
    active = wanted.active
    if active is None and wanted.state is not None:
        # A condition on the state, because the indices begin with it.
        active = wanted.state not in COMPLETE_STATES
    if active is not None:
        conditions.append(table.c.active.is_(active))
    if wanted.state is not None:
        conditions.append(table.c.state == wanted.state)
    if wanted.datasource is not None:
        conditions.append(table.c.datasource == wanted.datasource)
    if wanted.type is not None:
        conditions.append(table.c.type == wanted.type)
    if wanted.created_from_ms is not None:
        conditions.append(table.c.created_ms >= wanted.created_from_ms)
    if wanted.created_before_ms is not None:
        conditions.append(table.c.created_ms < wanted.created_before_ms)
    if wanted.ended_from_ms is not None:
        conditions += [~table.c.active, table.c.updated_ms >= wanted.ended_from_ms]
    if wanted.contains:
        named = (
            column.icontains(wanted.contains, autoescape=True)
            for column in (table.c.id, table.c.datasource)
        )
        conditions.append(or_(*named))
    return conditions
