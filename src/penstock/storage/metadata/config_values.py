"""Values by name in the config table, read and written as part of transactions.

Each caller owns the form of its values and its names, which begin with a word of its own.
"""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from penstock.storage.metadata import schema


def find_value(connection: Connection, name: str) -> bytes | None:
    """Return the value of a name of the config table, as part of a transaction."""
    table = schema.config
    found = connection.execute(select(table.c.payload).where(table.c.name == name)).scalar()
    return None if found is None else bytes(found)


def set_value(connection: Connection, name: str, value: bytes, now_ms: int) -> None:
    """Set a name of the config table, as part of a transaction that has taken its turn."""
    table, values = schema.config, {"updated_ms": now_ms, "payload": value}
    changed = connection.execute(update(table).where(table.c.name == name).values(values))
    if not changed.rowcount:
        connection.execute(insert(table).values(name=name, **values))
