"""Retention rules: one ordered list for each datasource, and `_default` for the cluster.

`penstock.indexing` defines their meaning. Every change is added to the audit log in the same
transaction, which is the history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, delete, insert, select

from penstock.storage.metadata import schema
from penstock.storage.metadata.payloads import dump_list, load_list
from penstock.storage.metadata.revision import take_turn
from penstock.storage.metadata.rows import AuditRow, RuleRow
from penstock.storage.metadata.tables.audit import add_entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.storage.metadata.database import Transactions
    from penstock.storage.metadata.rows import JsonObject

DEFAULT_RULES: Final = "_default"
AUDIT_TYPE = "rules"


class Rules:
    """The rules table."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def put(
        self, datasource: str, rules: Sequence[JsonObject], *, author: str = "", comment: str = ""
    ) -> RuleRow:
        """Set the rules of a datasource, in order; with an empty list only `_default` applies."""
        row = RuleRow(datasource, tuple(rules), self._database.now_ms())
        table = schema.rules

        def work(connection: Connection) -> RuleRow:
            take_turn(connection)  # two first writers must run one after the other
            connection.execute(delete(table).where(table.c.datasource == datasource))
            if rules:
                values = {"updated_ms": row.updated_ms, "rules": dump_list(rules)}
                connection.execute(insert(table).values(datasource=datasource, **values))
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
        return {
            row.datasource: RuleRow(row.datasource, tuple(load_list(row.rules)), row.updated_ms)
            for row in found
        }
