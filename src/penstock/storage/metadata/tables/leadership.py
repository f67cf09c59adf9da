"""Tables of service leases and leadership terms.

`Leases` stores one lease for each instance of a service; an instance exists as long as it
renews its lease. `Terms` stores who leads a service and since which term. A leader renews its
term, and one that does not is replaced. The leader is determined without comparing clocks of
two hosts: the newest term is valid until there is a newer one or its holder resigns, and a
candidate measures the silence of the holder by its own clock. The stored expiry is the holder's
wall-clock time: other hosts use it to detect a renewal and otherwise only as a hint.

Invariants: term numbers only grow. Once `take` has returned, no write under an earlier term is
committed: such a write holds the row of its term shared until it ends, and `take` waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, Connection, Row, bindparam, delete, insert, select, update

from penstock.core.errors import Fenced
from penstock.storage.metadata import schema
from penstock.storage.metadata.payloads import JsonObject, dump
from penstock.storage.metadata.revision import take_turn
from penstock.storage.metadata.row_mapper import LEASES
from penstock.storage.metadata.rows.cluster import LeaseRow, Term

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.storage.metadata.sql_database import Transactions


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
            return LEASES.record(connection.execute(select(table).where(mine)).one())

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
        return self._database.read(lambda c: [LEASES.record(row) for row in c.execute(query)])

    def drop(self, service: str, instance: str) -> None:
        """Release a lease. This also deletes the rows of leases that expired an hour ago."""
        table = schema.leases
        mine = (table.c.service == service) & (table.c.instance == instance)
        stale = table.c.expires_ms < self._database.now_ms() - 3_600_000
        self._database.write(lambda c: c.execute(delete(table).where(mine | stale)))


class Terms:
    """The table of terms."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def take(
        self, service: str, holder: str, ttl_ms: int, *, instead_of: Term | None = None
    ) -> Term | None:
        """Start the next term, if there is no leader.

        Without `instead_of` the expiry of another's term is compared with this host's wall clock.

        Args:
            service: The service to lead.
            holder: The candidate. The current leader starts a new term at once, as after a restart
                or a lost answer.
            ttl_ms: How long the term lasts without a renewal.
            instead_of: A term, returned by `current`, that ends now regardless of wall clocks: the
                caller knows that it was not renewed for long enough, or that another arbiter has
                chosen the caller. It does not end if it was renewed or succeeded meanwhile.

        Returns:
            The new term; None if another holder leads.
        """
        return self._database.write(lambda c: self._take(c, service, holder, ttl_ms, instead_of))

    def renew(self, term: Term) -> Term:
        """Extend the term to `ttl_ms` from now, even if it has expired but was not succeeded.

        Raises:
            Fenced: It is no longer the newest term.
        """
        expires_ms = self._database.now_ms() + term.ttl_ms
        # The key does not change, so writes that hold the row do not delay this.
        change = update(schema.terms).where(*_is(term)).values(expires_ms=expires_ms)

        def work(connection: Connection) -> Term:
            if not connection.execute(change).rowcount:
                raise _fenced(connection, term)
            return Term(term.service, term.holder, term.number, expires_ms, term.ttl_ms)

        return self._database.write(work)

    def resign(self, term: Term) -> None:
        """Give up the term: the next candidate leads. A term that has ended may stay unchanged."""
        table = schema.terms
        change = update(table).where(*_is(term)).values(holder="", expires_ms=0)

        def work(connection: Connection) -> None:
            connection.execute(
                select(table.c.number).where(table.c.service == term.service).with_for_update()
            )
            connection.execute(change)

        self._database.write(work)

    def current(self, service: str) -> Term | None:
        """Return the newest term unless its holder resigned, even if it has expired.

        Its `ttl_ms` is the time left by this host's wall clock, which may be wrong; at least 0.
        """
        found = self._database.read(lambda c: _find(c, service, lock=False))
        if found is None or not found.holder:
            return None
        left_ms = max(found.expires_ms - self._database.now_ms(), 0)
        return Term(service, found.holder, found.number, found.expires_ms, left_ms)

    def _take(
        self,
        connection: Connection,
        service: str,
        holder: str,
        ttl_ms: int,
        instead_of: Term | None,
    ) -> Term | None:
        table = schema.terms
        found = _find(connection, service, lock=True)
        if found is None:
            take_turn(connection)  # a second first leader waits, and then finds the row
            found = _find(connection, service, lock=True)
        now_ms = self._database.now_ms()
        if found is None:
            term = Term(service, holder, 1, now_ms + ttl_ms, ttl_ms)
            connection.execute(
                insert(table).values(
                    service=service, number=1, holder=holder, expires_ms=term.expires_ms
                )
            )
            return term
        if found.holder not in {"", holder}:
            if instead_of is None and found.expires_ms > now_ms:
                return None
            if instead_of is not None and _renewal(found) != _renewal(instead_of):
                return None
        term = Term(service, holder, found.number + 1, now_ms + ttl_ms, ttl_ms)
        connection.execute(
            update(table)
            .where(table.c.service == service)
            .values(number=term.number, holder=holder, expires_ms=term.expires_ms)
        )
        return term


# Built once: each write of a leader executes it. The row lock of PostgreSQL excludes `take` but not
# `renew`.
_NEWEST = (
    select(schema.terms.c.number)
    .where(
        schema.terms.c.service == bindparam("of_service"),
        schema.terms.c.number == bindparam("of_number"),
        schema.terms.c.holder == bindparam("of_holder"),
    )
    .with_for_update(read=True, key_share=True)
)


def require_newest(connection: Connection, term: Term) -> None:
    """Lock the term's row until the transaction ends, so that no later term starts before.

    Raises:
        Fenced: It is no longer the newest term.
    """
    wanted = {"of_service": term.service, "of_number": term.number, "of_holder": term.holder}
    if connection.execute(_NEWEST, wanted).first() is None:
        raise _fenced(connection, term)


def _is(term: Term) -> tuple[ColumnElement[bool], ...]:
    table = schema.terms
    return (
        table.c.service == term.service,
        table.c.number == term.number,
        table.c.holder == term.holder,
    )


def _renewal(term: Term | Row[tuple[object, ...]]) -> tuple[object, object]:
    return term.number, term.expires_ms


_FIND = select(schema.terms).where(schema.terms.c.service == bindparam("of"))
_FIND_LOCKED = _FIND.with_for_update()


def _find(connection: Connection, service: str, *, lock: bool) -> Row[tuple[object, ...]] | None:
    return connection.execute(_FIND_LOCKED if lock else _FIND, {"of": service}).one_or_none()


def _fenced(connection: Connection, term: Term) -> Fenced:
    found = _find(connection, term.service, lock=False)
    now = f"term {found.number} of {found.holder or 'nobody'}" if found else "no term at all"
    return Fenced(
        f"term {term.number} of {term.holder} as leader of {term.service} has ended, there is {now}"
        " now: stop leading and stand for election again"
    )
