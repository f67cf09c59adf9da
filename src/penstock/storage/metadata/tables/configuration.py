"""Tables of dynamic configuration, retention rules and the audit log.

`DynamicConfig` stores bytes by name and changes a value only if the caller knows the previous
one. `RetentionRules` stores one ordered list for each datasource, and `_default` for the
cluster; the meaning of a rule belongs to `penstock.indexing`. `AuditLog` records who changed
what, when and why; entries are only added.

Invariant: a change of the rules and its audit entry are in one transaction; the audit entries
are the history of the rules.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, delete, insert, select

from penstock.storage.metadata import schema
from penstock.storage.metadata.config_values import find_value, set_value
from penstock.storage.metadata.payloads import JsonObject, dump_list, load_list
from penstock.storage.metadata.revision import take_turn
from penstock.storage.metadata.row_mapper import AUDIT, RULES
from penstock.storage.metadata.rows.cluster import AuditRow, RuleRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.intervals import Interval
    from penstock.storage.metadata.sql_database import Transactions


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
        return self._database.read(lambda c: [AUDIT.record(row) for row in c.execute(query)])


def add_entry(connection: Connection, row: AuditRow) -> None:
    """Add an entry as part of a transaction."""
    connection.execute(insert(schema.audit).values(AUDIT.values(row)))


class DynamicConfig:
    """The config table."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def get(self, name: str) -> bytes | None:
        """Return the value of a name, None if it was never set."""
        return self._database.read(lambda c: find_value(c, name))

    def names(self, prefix: str) -> list[str]:
        """Return the names that begin with a prefix, in no order."""
        name = schema.config.c.name
        query = select(name).where(name.startswith(prefix, autoescape=True))
        return self._database.read(lambda c: list(c.execute(query).scalars()))

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
            if find_value(connection, name) != old:
                return False
            now_ms = self._database.now_ms()
            set_value(connection, name, new, now_ms)
            if entry is not None:
                add_entry(connection, replace(entry, created_ms=now_ms))
            return True

        return self._database.write(work)


DEFAULT_RULES: Final = "_default"
AUDIT_TYPE = "rules"


class RetentionRules:
    """The rules table."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def put(
        self, datasource: str, rules: Sequence[JsonObject], *, author: str = "", comment: str = ""
    ) -> RuleRow:
        """Set the rules of a datasource, in order; with an empty list only `_default` applies.

        Returns:
            The rules as `every` returns them, with their fields in the same order.
        """
        stored = tuple(load_list(dump_list(rules)))
        row = RuleRow(datasource, stored, self._database.now_ms())
        table = schema.rules

        def work(connection: Connection) -> RuleRow:
            take_turn(connection)  # two first writers must run one after the other
            connection.execute(delete(table).where(table.c.datasource == datasource))
            if rules:
                connection.execute(insert(table).values(RULES.values(row)))
            payload = {"rules": list(rules)}
            add_entry(
                connection,
                AuditRow(datasource, AUDIT_TYPE, author, comment, payload, row.updated_ms),
            )
            return row

        return self._database.write(work)

    def every(self) -> dict[str, RuleRow]:
        """Return all rules by datasource, including `_default` if it was set."""
        query = select(schema.rules).order_by(schema.rules.c.datasource)
        found = self._database.read(lambda c: c.execute(query).all())
        return {row.datasource: RULES.record(row) for row in found}
