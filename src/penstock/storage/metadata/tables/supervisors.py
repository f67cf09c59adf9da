"""Supervisors: every version of every spec; the last one is current."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, Connection, Select, func, insert, select, update

from penstock.core.errors import NotFound
from penstock.storage.metadata import schema
from penstock.storage.metadata.payloads import JsonObject
from penstock.storage.metadata.revision import take_turn
from penstock.storage.metadata.row_mapper import SUPERVISORS
from penstock.storage.metadata.rows.cluster import AuditRow, SupervisorRow
from penstock.storage.metadata.sql_database import in_batches
from penstock.storage.metadata.tables.configuration import add_entry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.storage.metadata.sql_database import Transactions


class SupervisorTable:
    """The supervisors table.

    A tombstone version means that the supervisor was terminated. It is released once the supervisor
    has ended; until then the leader completes its end.
    """

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def put(
        self, supervisor_id: str, payload: JsonObject, *, entry: AuditRow | None = None
    ) -> SupervisorRow:
        """Insert a new version of a spec and return it; `entry` is added to the audit log."""
        return self.put_all({supervisor_id: payload}, entry=entry)[0]

    def put_all(
        self, payloads: Mapping[str, JsonObject], *, entry: AuditRow | None = None
    ) -> Sequence[SupervisorRow]:
        """Insert a new version of each spec, by id, in one transaction; return them."""

        def work(connection: Connection) -> Sequence[SupervisorRow]:
            take_turn(connection)  # two writers must not assign the same version
            last = _last_of(connection, tuple(payloads))
            self._note(connection, entry)
            return self._add_versions(connection, payloads, last, tombstone=False)

        return self._database.write(work) if payloads else []

    def terminate(self, supervisor_id: str) -> SupervisorRow:
        """Add a tombstone after the last version, with that version's spec.

        Raises:
            NotFound: The supervisor does not exist, or was terminated before.
        """
        return self.terminate_all([supervisor_id])[0]

    def terminate_all(
        self, ids: Sequence[str], *, entry: AuditRow | None = None
    ) -> Sequence[SupervisorRow]:
        """Apply `terminate` to many in one transaction, or to none. Raises as it does.

        Args:
            ids: The supervisors.
            entry: Added to the audit log, with the time of the change.
        """

        def work(connection: Connection) -> Sequence[SupervisorRow]:
            take_turn(connection)
            last = _last_of(connection, ids)
            for name in ids:
                if name not in last or last[name].tombstone:
                    raise NotFound(f"there is no supervisor {name!r}")
            payloads = {name: last[name].payload for name in ids}
            self._note(connection, entry)
            return self._add_versions(connection, payloads, last, tombstone=True)

        return self._database.write(work) if ids else []

    def list(self) -> Sequence[SupervisorRow]:
        """Return the current version of each supervisor that was not terminated, by id."""
        return self._last_versions(~schema.supervisors.c.tombstone)

    def terminated(self, limit: int) -> Sequence[SupervisorRow]:
        """Return the tombstones of terminated supervisors, with their last specs, newest first.

        Args:
            limit: Most supervisors.
        """
        table = schema.supervisors
        query = (
            _last_rows().where(table.c.tombstone).order_by(table.c.created_ms.desc(), table.c.id)
        )
        newest = query.limit(limit)
        return self._database.read(lambda c: [SUPERVISORS.record(row) for row in c.execute(newest)])

    def unreleased(self) -> Sequence[SupervisorRow]:
        """Return the tombstone of each supervisor that was terminated and not released, by id."""
        table = schema.supervisors
        return self._last_versions(table.c.tombstone & ~table.c.released)

    def release(self, supervisor_id: str) -> None:
        """Record that a terminated supervisor has ended and released its source.

        Nothing changes if it was submitted again since, or does not exist.
        """
        table = schema.supervisors

        def work(connection: Connection) -> None:
            last = _last(connection, supervisor_id)
            if last is not None and last.tombstone:
                mine = (table.c.id == supervisor_id) & (table.c.version == last.version)
                connection.execute(update(table).where(mine).values(released=True))

        self._database.write(work)

    def history(self, supervisor_id: str) -> Sequence[SupervisorRow]:
        """Return all versions, the newest first, including tombstones."""
        query = _versions(supervisor_id)
        return self._database.read(lambda c: [SUPERVISORS.record(row) for row in c.execute(query)])

    def histories(self) -> Mapping[str, Sequence[SupervisorRow]]:
        """Return all versions of all supervisors by id, each the newest first."""
        table = schema.supervisors
        query = select(table).order_by(table.c.id, table.c.version.desc())
        rows = self._database.read(lambda c: [SUPERVISORS.record(row) for row in c.execute(query)])
        return {name: tuple(versions) for name, versions in groupby(rows, key=lambda row: row.id)}

    def _last_versions(self, condition: ColumnElement[bool]) -> Sequence[SupervisorRow]:
        query = _last_rows().where(condition).order_by(schema.supervisors.c.id)
        return self._database.read(lambda c: [SUPERVISORS.record(row) for row in c.execute(query)])

    def _note(self, connection: Connection, entry: AuditRow | None) -> None:
        if entry is not None:
            add_entry(connection, replace(entry, created_ms=self._database.now_ms()))

    def _add_versions(
        self,
        connection: Connection,
        payloads: Mapping[str, JsonObject],
        last: Mapping[str, SupervisorRow],
        *,
        tombstone: bool,
    ) -> Sequence[SupervisorRow]:
        now_ms = self._database.now_ms()
        rows = [
            SupervisorRow(
                name, payload, last[name].version + 1 if name in last else 1, tombstone, now_ms
            )
            for name, payload in payloads.items()
        ]
        connection.execute(
            insert(schema.supervisors),
            [{**SUPERVISORS.values(row), "released": False} for row in rows],
        )
        return rows


def _last_of(connection: Connection, ids: Sequence[str]) -> Mapping[str, SupervisorRow]:
    """Return the newest version of each existing supervisor, including tombstones."""
    found = {}
    for batch in in_batches(ids):
        query = _last_rows().where(schema.supervisors.c.id.in_(batch))
        found.update({row.id: SUPERVISORS.record(row) for row in connection.execute(query)})
    return found


def _last_rows() -> Select[tuple[object, ...]]:
    """Return the query for the newest version of each supervisor, including tombstones."""
    table = schema.supervisors
    last = (
        select(table.c.id, func.max(table.c.version).label("version"))
        .group_by(table.c.id)
        .subquery()
    )
    return select(table).join(last, (table.c.id == last.c.id) & (table.c.version == last.c.version))


def _versions(supervisor_id: str) -> Select[tuple[object, ...]]:
    """Return the query for all versions, the newest first."""
    table = schema.supervisors
    return select(table).where(table.c.id == supervisor_id).order_by(table.c.version.desc())


def _last(connection: Connection, supervisor_id: str) -> SupervisorRow | None:
    """Return the newest version, possibly a tombstone."""
    found = connection.execute(_versions(supervisor_id).limit(1)).one_or_none()
    return None if found is None else SUPERVISORS.record(found)
