"""Leases: an instance of a service is alive as long as it keeps renewing its lease."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, Row, delete, insert, select, update

from penstock.storage.metadata import schema
from penstock.storage.metadata.payloads import dump, load
from penstock.storage.metadata.revision import take_turn
from penstock.storage.metadata.rows import JsonObject, LeaseRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.storage.metadata.database import Transactions


class Leases:
    """The leases table.

    The end of a lease is a time of its holder's wall clock. A caller that must not depend on it
    compares the results of `every` over time: a renewed lease changes.
    """

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def renew(
        self,
        service: str,
        instance: str,
        *,
        host: str,
        port: int,
        ttl_ms: int,
        extra: JsonObject | None = None,
    ) -> LeaseRow:
        """Acquire a lease, or extend it to `ttl_ms` from now, and return it."""

        def work(connection: Connection) -> LeaseRow:
            now_ms = self._database.now_ms()
            values = {
                "host": host,
                "port": port,
                "expires_ms": now_ms + ttl_ms,
                "extra": dump(extra or {}),
            }
            if not connection.execute(update(table).where(mine).values(values)).rowcount:
                take_turn(connection)  # a second first renewal waits, and then finds the row
                if not connection.execute(update(table).where(mine).values(values)).rowcount:
                    connection.execute(
                        insert(table).values(
                            service=service, instance=instance, started_ms=now_ms, **values
                        )
                    )
            return _lease_row(connection.execute(select(table).where(mine)).one())

        table = schema.leases
        mine = (table.c.service == service) & (table.c.instance == instance)
        return self._database.write(work)

    def list(self, service: str | None = None) -> Sequence[LeaseRow]:
        """Return the leases that are valid by this host's wall clock, the oldest instance first."""
        now_ms = self._database.now_ms()
        return [row for row in self.every(service) if row.expires_ms > now_ms]

    def every(self, service: str | None = None) -> Sequence[LeaseRow]:
        """Return all leases, including expired ones, the oldest instance first."""
        table = schema.leases
        query = select(table)
        if service is not None:
            query = query.where(table.c.service == service)
        query = query.order_by(table.c.service, table.c.started_ms, table.c.instance)
        return self._database.read(lambda c: [_lease_row(row) for row in c.execute(query)])

    def drop(self, service: str, instance: str) -> None:
        """Release a lease. This also deletes the rows of leases that expired an hour ago."""
        table = schema.leases
        mine = (table.c.service == service) & (table.c.instance == instance)
        stale = table.c.expires_ms < self._database.now_ms() - 3_600_000
        self._database.write(lambda c: c.execute(delete(table).where(mine | stale)))


def _lease_row(found: Row[tuple[object, ...]]) -> LeaseRow:
    return LeaseRow(
        service=found.service,
        instance=found.instance,
        host=found.host,
        port=found.port,
        expires_ms=found.expires_ms,
        extra=load(found.extra),
        started_ms=found.started_ms,
    )
