"""Discovery by leases in the metadata store: the default, which needs no further service.

An announced node renews a lease. A watching process reads all leases every two seconds in one short
query, whatever the number of roles. The times are randomized, so that processes do not poll in
step. While the store does not answer, every process keeps the nodes that it knows.
"""

from __future__ import annotations

import logging
import random
import threading
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Dependency, InvalidRequest, PenstockError
from penstock.core.threads import OnDeath, OwnedThread
from penstock.core.waits import WaitTable
from penstock.services.config import Address
from penstock.services.leases import Announcement, Announcer, LeaseStore
from penstock.services.membership.discovery import Node
from penstock.services.membership.watchers import CallThread, RoleWatchers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.clock import Clock
    from penstock.services.membership.discovery import NodeListener, Watch
    from penstock.storage.metadata import LeaseRow

logger = logging.getLogger(__name__)

POLL_EVERY_S: Final = 2.0
_SPREAD: Final = (0.75, 1.25)
_READ: Final = "read the leases"


class LeaseDiscovery:
    """`Discovery` by leases in the metadata store.

    The condition's mutex guards the fields that the poll thread reads: new roles, and the stop.

    Args:
        store: The leases.
        clock: Time.
        chance: Randomizes the polls.

    Attributes:
        waits: The failures of renewals and polls that are retried.
    """

    def __init__(
        self, store: LeaseStore, clock: Clock, chance: random.Random | None = None
    ) -> None:
        self._store = store
        self._clock = clock
        self._chance = chance or random.Random()  # spreads load, guards nothing  # noqa: S311
        self._faults = 0
        self.waits: Final = WaitTable(clock)
        self._calls = CallThread(clock)
        self._watchers = RoleWatchers(self._calls, clock, self._asked)
        self._announced: dict[_Announced, None] = {}
        self._changed = threading.Condition()
        self._is_asked = False
        self._stop_asked = False
        self._thread = OwnedThread("discovery", self._poll_all, on_death=OnDeath.RESTART)

    @property
    def faults(self) -> int:
        """Return how many polls and renewals failed unexpectedly."""
        return self._faults + sum(one.faults for one in list(self._announced))

    def start(self) -> None:
        """Start to poll the leases."""
        self._calls.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop polling, and drop the leases that are left."""
        self._thread.expect_end()
        with self._changed:
            self._stop_asked = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()
        for one in list(self._announced):
            one.withdraw()
        self._calls.stop()

    def announce(self, node: Node) -> _Announced:
        """Take a lease and renew it until the node is withdrawn."""
        announcement = Announcement(node.role, node.instance, node.address, node.to_json())
        announcer = Announcer(self._store, announcement, self._clock, self.waits)
        announcer.start()
        announced = _Announced(self._announced, announcer)
        self._announced[announced] = None
        return announced

    def watch(self, role: str, listener: NodeListener) -> Watch:
        """Register a listener for the nodes of a role."""
        return self._watchers.watch(role, listener)

    def nodes(self, role: str) -> Sequence[Node]:
        """Return the nodes of a role, as of the last poll."""
        return self._watchers.nodes(role)

    def _asked(self, _role: str) -> None:
        with self._changed:
            self._is_asked = True
            self._changed.notify_all()

    def _poll_all(self) -> None:
        while True:
            # The documented top-level boundary: without this thread, no node is found any longer.
            try:
                self._poll()
            except Exception:
                self._faults += 1
                logger.exception("the leases could not be read, trying again")
            with self._changed:
                if not (self._is_asked or self._stop_asked):
                    pause_s = POLL_EVERY_S * self._chance.uniform(*_SPREAD)
                    # Without watchers, nothing is read.
                    self._clock.wait(self._changed, pause_s if self._watchers.all() else None)
                if self._stop_asked:
                    return
                self._is_asked = False

    def _poll(self) -> None:
        watchers = self._watchers.all()
        if not watchers:
            return
        try:
            rows = self._store.list()
        except PenstockError as error:
            logger.warning("the leases could not be read, trying again: %s", error)
            self.waits.failed(_READ, error, dependency=Dependency.METADATA)
            return
        self.waits.ended(_READ)
        for watcher in watchers:
            nodes = [node_of(row) for row in rows if row.service == watcher.role]
            watcher.synchronise({node.key: node for node in nodes})


class _Announced:
    """A lease that is renewed until it is withdrawn."""

    def __init__(self, home: dict[_Announced, None], announcer: Announcer) -> None:
        self._home = home
        self._announcer = announcer

    @property
    def faults(self) -> int:
        """Return how many renewals failed unexpectedly."""
        return self._announcer.faults

    def withdraw(self) -> None:
        """Drop the lease; repeated calls do nothing."""
        if self in self._home:
            del self._home[self]
            self._announcer.stop()


def node_of(row: LeaseRow) -> Node:
    """Return the node of a lease; a lease without a document is identified by its address."""
    plain = Node(row.service, row.instance, Address(row.host, row.port), started_ms=row.started_ms)
    if "druidNode" not in row.extra:
        return plain
    try:
        return Node.from_json(dict(row.extra))
    except InvalidRequest as error:
        logger.warning("%s %s announces invalid JSON: %s", row.service, row.instance, error)
        return plain
