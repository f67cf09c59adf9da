"""The audit log: who changed what, when and why. Entries are only ever added."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import insert, select

from penstock.storage.metadata import schema
from penstock.storage.metadata.payloads import dump, load
from penstock.storage.metadata.rows import AuditRow, JsonObject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.storage.metadata.database import Database


class AuditLog:
    """The audit table."""

    def __init__(self, database: Database) -> None:
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
        values = {
            "key": key,
            "type": type,
            "author": author,
            "comment": comment,
            "created_ms": self._database.now_ms(),
            "payload": dump(payload or {}),
        }
        self._database.write(lambda c: c.execute(insert(schema.audit).values(values)))

    def list(self, key: str | None = None, *, limit: int = 100) -> Sequence[AuditRow]:
        """Return entries, the newest first: of one key, or of all."""
        table = schema.audit
        query = select(table).order_by(table.c.serial.desc()).limit(limit)
        if key is not None:
            query = query.where(table.c.key == key)
        return self._database.read(
            lambda c: [
                AuditRow(
                    row.key, row.type, row.author, row.comment, load(row.payload), row.created_ms
                )
                for row in c.execute(query)
            ]
        )
