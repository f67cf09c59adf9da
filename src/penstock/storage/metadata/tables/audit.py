"""The audit log: author, change, time and reason. Entries are never changed or deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, insert, select

from penstock.storage.metadata import schema
from penstock.storage.metadata.payloads import dump, load
from penstock.storage.metadata.rows import AuditRow, JsonObject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.intervals import Interval
    from penstock.storage.metadata.database import Transactions


class AuditLog:
    """The audit table."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def add(
        self,
        key: str,
        type: str,  # noqa: A002 - the column's name in Druid's API
        *,
        author: str = "",
        comment: str = "",
        payload: JsonObject | None = None,
    ) -> None:
        """Add an entry about `key`, such as a datasource or a supervisor."""
        row = AuditRow(key, type, author, comment, payload or {}, self._database.now_ms())
        self._database.write(lambda c: add_entry(c, row))

    def list(
        self,
        key: str | None = None,
        *,
        type: str | None = None,  # noqa: A002 - as above
        interval: Interval | None = None,
        limit: int = 100,
    ) -> Sequence[AuditRow]:
        """Return entries, the newest first: of one key, one type, one interval, or all."""
        table = schema.audit
        query = select(table).order_by(table.c.serial.desc()).limit(limit)
        if key is not None:
            query = query.where(table.c.key == key)
        if type is not None:
            query = query.where(table.c.type == type)
        if interval is not None:
            query = query.where(
                table.c.created_ms >= interval.start_ms, table.c.created_ms < interval.end_ms
            )
        return self._database.read(
            lambda c: [
                AuditRow(
                    row.key, row.type, row.author, row.comment, load(row.payload), row.created_ms
                )
                for row in c.execute(query)
            ]
        )


def add_entry(connection: Connection, row: AuditRow) -> None:
    """Add an entry as part of a transaction."""
    connection.execute(
        insert(schema.audit).values(
            key=row.key,
            type=row.type,
            author=row.author,
            comment=row.comment,
            created_ms=row.created_ms,
            payload=dump(row.payload),
        )
    )
