"""The metadata database as one process reaches it: late, not at all, or without an answer.

A commit whose answer is lost is there, as with a connection that broke. After each commit the
checker looks, before anybody else can run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from penstock.core.errors import Unavailable
from penstock.storage.metadata import MetadataStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from penstock.storage.metadata.database import Transactions
    from penstock.testing.simulation.world import Process

T = TypeVar("T")


class SharedDatabase:
    """What the databases of all processes have in common.

    Attributes:
        inner: The database itself.
        committed: Called after each commit with who did it.
        amid_write: Called before a write, where another process may be faster.
        down_until_s: Until when nobody is answered.
    """

    def __init__(self, inner: Transactions) -> None:
        self.inner = inner
        self.committed: Callable[[Process], None] = lambda _process: None
        self.amid_write: Callable[[Process], None] = lambda _process: None
        self.down_until_s = 0.0


class SimDatabase:
    """The `Transactions` of one process."""

    def __init__(self, process: Process, shared: SharedDatabase) -> None:
        self._process = process
        self._shared = shared

    def now_ms(self) -> int:
        """Return the time that rows get, which is this host's."""
        return self._process.clock.now_ms()

    def read(self, work: Callable[[Connection], T]) -> T:
        """Read, if the database answers."""
        self._reach("before it reads")
        return self._shared.inner.read(work)

    def write(self, work: Callable[[Connection], T], *, patient: bool = False) -> T:
        """Write, if the database answers."""
        chance = self._process.world.chance
        self._reach("before it commits")
        if chance.fault("new leader amid a write"):
            self._shared.amid_write(self._process)
        result = self._shared.inner.write(work, patient=patient)
        self._shared.committed(self._process)
        self._process.moment("after it committed")
        if chance.fault("metadata commits unheard"):
            raise Unavailable("the connection broke; whether it was committed nobody knows")
        return result

    def close(self) -> None:
        """Do nothing: the database goes on."""

    def _reach(self, what: str) -> None:
        process = self._process
        process.world.let_others_run()
        process.moment(what)
        if process.is_cut or self._shared.down_until_s > process.world.now_s:
            raise Unavailable("the metadata store does not answer")
        if process.world.chance.fault("metadata refuses"):
            raise Unavailable("the metadata store is busy")


def store_of(process: Process, shared: SharedDatabase) -> MetadataStore:
    """Return the metadata store, as a process has it."""
    return MetadataStore(SimDatabase(process, shared))
