"""Dynamic configuration: bytes by name, changed by compare-and-set only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import Connection, insert, select, update

from penstock.storage.metadata import schema
from penstock.storage.metadata.revision import take_turn
from penstock.storage.metadata.tables.audit import add_entry

if TYPE_CHECKING:
    from penstock.storage.metadata.database import Transactions
    from penstock.storage.metadata.rows import AuditRow


class Config:
    """The config table."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def get(self, name: str) -> bytes | None:
        """Return the value of a name, None if it was never set."""
        return self._database.read(lambda c: _find(c, name))

    def compare_and_set(
        self, name: str, old: bytes | None, new: bytes, *, entry: AuditRow | None = None
    ) -> bool:
        """Set a name if its value is still the one that the caller read.

        Args:
            name: The name.
            old: The value that `get` returned, possibly None.
            new: The new value.
            entry: Added to the audit log, with the time of the change.

        Returns:
            False, and nothing changes, if the value has changed meanwhile: read it again.
        """

        def work(connection: Connection) -> bool:
            take_turn(connection)
            found = _find(connection, name)
            if found != old:
                return False
            table, now_ms = schema.config, self._database.now_ms()
            values = {"updated_ms": now_ms, "payload": new}
            if found is None:
                connection.execute(insert(table).values(name=name, **values))
            else:
                connection.execute(update(table).where(table.c.name == name).values(values))
            if entry is not None:
                add_entry(connection, replace(entry, created_ms=now_ms))
            return True

        return self._database.write(work)


def _find(connection: Connection, name: str) -> bytes | None:
    table = schema.config
    found = connection.execute(select(table.c.payload).where(table.c.name == name)).scalar()
    return None if found is None else bytes(found)
