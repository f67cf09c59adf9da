"""The metadata database for one process: late, unreachable, or with lost answers.

A commit whose answer is lost has happened, as with a broken connection. After each commit the
checker runs before any other process. A leader's write in a term that is over is reported as a
violation at once, because the rows of this run may not show it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import Connection, bindparam, select

from penstock.core.errors import Unavailable
from penstock.storage.metadata import MetadataStore, schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage.metadata import Term
    from penstock.storage.metadata.sql_database import Transactions
    from tests.harness.cluster_simulation.world import Process

T = TypeVar("T")

_NEWEST = select(schema.terms.c.number).where(schema.terms.c.service == bindparam("of"))


class SharedDatabase:
    """Common part of the databases of all processes.

    Attributes:
        inner: The database itself.
        committed: Called after each commit with the committing process.
        amid_write: Called before a write, when another process may be faster.
        down_until_s: Time until which the database does not answer.
    """

    def __init__(self, inner: Transactions) -> None:
        self.inner = inner
        self.committed: Callable[[Process], None] = lambda _process: None
        self.amid_write: Callable[[Process], None] = lambda _process: None
        self.down_until_s = 0.0


class SimDatabase:
    """The `Transactions` of one process.

    Args:
        process: The process.
        shared: The common part.
        term: Term of the writing leader; None if no leader is needed.
    """

    def __init__(self, process: Process, shared: SharedDatabase, term: Term | None = None) -> None:
        self._process = process
        self._shared = shared
        self._term = term

    def now_ms(self) -> int:
        """Return the time for rows, by this host's clock."""
        return self._process.clock.now_ms()

    def read(self, work: Callable[[Connection], T]) -> T:
        """Read, if the database answers."""
        self._reach("before it reads")
        return self._shared.inner.read(work)

    def write(self, work: Callable[[Connection], T], *, unlimited: bool = False) -> T:
        """Write, if the database answers."""
        chance = self._process.world.chance
        self._reach("before it commits")
        if chance.fault("new leader amid a write"):
            self._shared.amid_write(self._process)

        def judged(connection: Connection) -> T:
            found = work(connection)
            self._note_deposed(connection)
            return found

        result = self._shared.inner.write(judged, unlimited=unlimited)
        self._shared.committed(self._process)
        self._process.moment("after it committed")
        if chance.fault("metadata commits unheard"):
            raise Unavailable("the connection broke; it is unknown whether the commit succeeded")
        return result

    def close(self) -> None:
        """Do nothing: the database stays open."""

    def _note_deposed(self, connection: Connection) -> None:
        """Record a write that succeeded although a newer term had begun."""
        if self._term is None:
            return
        newest = connection.execute(_NEWEST, {"of": self._term.service}).scalar_one()
        if newest != self._term.number:
            world = self._process.world
            text = f"{self._process.name} of term {self._term.number} wrote in term {newest}"
            world.violation = world.violation or text

    def _reach(self, what: str) -> None:
        process = self._process
        process.world.let_others_run()
        process.moment(what)
        if process.is_cut or self._shared.down_until_s > process.world.now_s:
            raise Unavailable("the metadata store does not answer")
        if process.world.chance.fault("metadata refuses"):
            raise Unavailable("the metadata store is busy")


class _Store(MetadataStore):
    """A store that records the term for which a leader writes."""

    def __init__(self, process: Process, shared: SharedDatabase) -> None:
        super().__init__(SimDatabase(process, shared))
        self._process = process
        self._shared = shared

    def under(self, term: Term, *, on_fenced: Callable[[], None] = lambda: None) -> MetadataStore:
        """Return this store for the leader of a term."""
        database = SimDatabase(self._process, self._shared, term)
        return MetadataStore(database).under(term, on_fenced=on_fenced)


def store_of(process: Process, shared: SharedDatabase) -> MetadataStore:
    """Return the metadata store of a process."""
    return _Store(process, shared)
