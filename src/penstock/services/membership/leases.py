"""Leases: announcement and discovery of services through the metadata store.

Owns the renewal of one lease on a thread of its own and the search among all leases.
`LeaseDiscovery` is the default `Discovery`, which needs no other service: an announced node
renews a lease, and a watcher reads all leases every two seconds in one short query, at moments
that are spread so that processes do not query in step. While the metadata store does not
respond, the known nodes are kept. `LeaseView` judges leases by the renewals that it observes,
so a wrong wall clock hides no instance. Does not own the rows (`penstock.storage.metadata`).

Invariant: a lease is removed at an orderly stop and expires after a crash, so every instance
that `find` returns was alive within the last `TTL_MS`; through a `LeaseView` this holds even if the
wall clocks of the hosts are wrong.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.clock import Clock
from penstock.core.errors import Dependency, InvalidRequest, PenstockError, Unavailable
from penstock.core.threads import OnDeath, OwnedThread
from penstock.core.waits import DependencyWait, WaitTable
from penstock.services.membership.discovery import Node
from penstock.services.membership.watchers import CallThread, RoleWatchers
from penstock.services.options.option_values import HostPort, without_scheme
from penstock.storage.metadata import LeaseRow, Term

if TYPE_CHECKING:
    from penstock.services.membership.discovery import NodeListener, Watch
    from penstock.services.membership.watchers import RoleWatcher


logger = logging.getLogger(__name__)

TTL_MS = 15_000
RENEW_EVERY_S = 4.0
_TTL_S = TTL_MS / 1000
_RENEW = "renew the lease"
_DEPENDENCIES = {
    "overlord": Dependency.OVERLORD,
    "worker": Dependency.WORKER,
    "broker": Dependency.BROKER,
}


class Instances(Protocol):
    """Lookup of live instances."""

    def list(self, service: str | None = None) -> Sequence[LeaseRow]:
        """Return the live instances of a service."""
        ...


class LeaseStore(Instances, Protocol):
    """The part of `MetadataStore.leases` that this module uses."""

    def renew(
        self,
        service: str,
        instance: str,
        *,
        host: str,
        port: int,
        ttl_ms: int,
        extra: Mapping[str, object] | None = None,
    ) -> LeaseRow:
        """Take or renew a lease."""
        ...

    def drop(self, service: str, instance: str) -> None:
        """Drop a lease."""
        ...


@dataclass(frozen=True, slots=True)
class Announcement:
    """Content of an instance's lease."""

    service: str
    instance: str
    address: HostPort
    extra: Mapping[str, object] = field(default_factory=dict)


class LeaseAnnouncer:
    """Keeps one lease alive from a thread of its own; `start` and `stop` are a lifecycle handler's.

    The condition only lets `stop` end the waits of the thread.

    Args:
        store: The leases.
        announcement: Content of the lease.
        clock: Time.
        waits: Where failed renewals are recorded.

    Attributes:
        faults: Number of renewals that failed unexpectedly.
    """

    def __init__(
        self,
        store: LeaseStore,
        announcement: Announcement,
        clock: Clock,
        waits: WaitTable | None = None,
    ) -> None:
        self._waits = waits or WaitTable(clock)
        self._store = store
        self._announcement = announcement
        self._clock = clock
        self.faults = 0
        self._changed = threading.Condition()
        self._thread = OwnedThread("announcer", self._keep, on_death=OnDeath.RESTART)

    def start(self) -> None:
        """Take the lease and start to renew it.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        self._renew()
        self._thread.start()

    def stop(self) -> None:
        """Drop the lease."""
        self._thread.end(self._changed, 5)
        try:
            self._store.drop(self._announcement.service, self._announcement.instance)
        except PenstockError as error:
            logger.warning("the lease could not be dropped and will expire: %s", error)

    def _renew(self) -> None:
        one = self._announcement
        self._store.renew(
            one.service,
            one.instance,
            host=one.address.host,
            port=one.address.port,
            ttl_ms=TTL_MS,
            extra=one.extra,
        )

    def _keep(self) -> None:
        while True:
            with self._changed:
                if not self._thread.is_end_expected:
                    self._clock.wait(self._changed, RENEW_EVERY_S)
                if self._thread.is_end_expected:
                    return
            try:
                self._renew()
                self._waits.ended(_RENEW)
            except PenstockError as error:
                self._waits.failed(_RENEW, error, dependency=Dependency.METADATA)
                logger.warning("the lease could not be renewed, trying again: %s", error)
            # The documented top-level boundary: without this thread the lease expires.
            except Exception:
                self.faults += 1
                logger.exception("the lease could not be renewed, trying again")


class LeaseRows(Protocol):
    """All leases of a store."""

    def every(self, service: str | None = None) -> Sequence[LeaseRow]:
        """Return the leases of a service, including expired ones."""
        ...


@dataclass(slots=True)
class _Seen:
    """One observed lease: its mark, when the mark was first seen, and whether it counts as live."""

    expires_ms: int
    since_s: float
    read_s: float
    is_sign: bool


class LeaseView:
    """`Instances` by observed changes of leases, so that wrong wall clocks do not hide instances.

    A lease is live for `TTL_MS` after its last observed change, by this process's monotonic clock.
    Wall clocks are compared only for a lease that is new to this process, and after the leases were
    not read for so long that an observed change may be old.

    The mutex guards the observations: requests read from many threads, and cannot wait for mail.

    Args:
        store: The leases.
        clock: Time.
    """

    def __init__(self, store: LeaseRows, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._mutex = threading.Lock()

    def list(self, service: str | None = None) -> Sequence[LeaseRow]:
        """Return the instances of a service whose leases are live."""
        rows = self._store.every(service)
        now_s = self._clock.monotonic_s()
        with self._mutex:
            there = {(row.service, row.instance) for row in rows}
            gone = [key for key in self._seen.keys() - there if service in {None, key[0]}]
            for key in gone:
                del self._seen[key]
            return [row for row in rows if self._lives(row, now_s)]

    def _lives(self, row: LeaseRow, now_s: float) -> bool:
        key = (row.service, row.instance)
        seen = self._seen.get(key)
        if seen is None or seen.expires_ms != row.expires_ms:
            is_fresh = seen is not None and now_s - seen.read_s < _TTL_S
            is_sign = is_fresh or row.expires_ms > self._clock.now_ms()
            seen = self._seen[key] = _Seen(row.expires_ms, now_s, now_s, is_sign)
        seen.read_s = now_s
        return seen.is_sign and now_s - seen.since_s < _TTL_S


def no_leader(text: str, waits: Sequence[DependencyWait], *, remedy: str) -> Unavailable:
    """Return the error for the absence of a leading overlord, with the cause if it is known.

    Args:
        text: Statement that no overlord leads.
        waits: Dependencies that the caller waits for, such as the metadata store.
        remedy: Action that the user can take.
    """
    if not waits:
        return Unavailable(f"{text}: {remedy}", dependency=Dependency.OVERLORD)
    reasons = "; ".join(str(one) for one in waits)
    return Unavailable(f"{text}, because of {reasons}: {remedy}", dependency=waits[0].dependency)


class CurrentTerms(Protocol):
    """The part of `MetadataStore.terms` that this module uses."""

    def current(self, service: str) -> Term | None:
        """Return the newest term of a service unless it was resigned."""
        ...


class LeaseDirectory:
    """Finds instances of services by their leases.

    Args:
        store: Lookup of live instances.
        chance: Randomizes the choice, to spread load.
        terms: Terms of the overlords; without them, the overlord that announced itself last is
            used.
        waits: Returns why this process cannot write to the store: others fail in the same way.
    """

    def __init__(
        self,
        store: Instances,
        chance: random.Random | None = None,
        terms: CurrentTerms | None = None,
        waits: Callable[[], Sequence[DependencyWait]] = tuple,
    ) -> None:
        self._store = store
        self._chance = chance or random.Random()  # only spreads load  # noqa: S311
        self._terms = terms
        self._waits = waits

    def all(self, service: str) -> list[LeaseRow]:
        """Return the live instances, most recently renewed first."""
        return sorted(self._store.list(service), key=lambda row: -row.expires_ms)

    def find(self, service: str) -> HostPort:
        """Return an instance of a service.

        Raises:
            Unavailable: No instance is live, or none leads.
        """
        if service == "overlord" and self._terms is not None:
            term = self._terms.current(service)
            if term is None:
                remedy = "start one, or wait for the election"
                raise no_leader("no overlord leads", self._waits(), remedy=remedy)
            return HostPort.parse(without_scheme(term.holder))
        row = self._choose(service)
        return HostPort(row.host, row.port)

    def broker(self) -> LeaseRow:
        """Return the lease of the broker; of several, the one that started last.

        A broker that restarts at another port is known at once, and of two running brokers the
        choice is always the same.

        Raises:
            Unavailable: No broker is announced.
        """
        return self._choose("broker")

    def _choose(self, service: str) -> LeaseRow:
        rows = self.all(service)
        if not rows and service == "broker":
            raise Unavailable(
                "no broker announces itself: start one with the same metadata database, or name its"
                " address with --broker-http",
                dependency=Dependency.BROKER,
            )
        if not rows:
            raise Unavailable(
                f"no {service} is running; start one, or wait for its restart",
                dependency=_DEPENDENCIES.get(service),
            )
        if service == "broker":
            return max(rows, key=lambda row: row.started_ms)
        # After a restart, the old lease may not have expired yet.
        return rows[0] if service == "overlord" else self._chance.choice(rows)


POLL_EVERY_S: Final = 2.0
_SPREAD: Final = (0.75, 1.25)
_READ: Final = "read the leases"


class LeaseDiscovery:
    """`Discovery` by leases in the metadata store.

    The condition's mutex guards the field that the poll thread reads: whether a role is new.

    Args:
        store: The leases.
        clock: Time.
        chance: Randomizes the polls.
    """

    def __init__(
        self, store: LeaseStore, clock: Clock, chance: random.Random | None = None
    ) -> None:
        self._store = store
        self._clock = clock
        self._chance = chance or random.Random()  # only spreads load  # noqa: S311
        self._faults = 0
        self._waits = WaitTable(clock)
        self._calls = CallThread(clock)
        self._watchers = RoleWatchers(self._calls, clock)
        self._announced: dict[_Announced, None] = {}
        self._changed = threading.Condition()
        self._poll_requested = False
        self._thread = OwnedThread("discovery", self._poll_all, on_death=OnDeath.RESTART)

    @property
    def faults(self) -> int:
        """Return how many polls and renewals failed unexpectedly."""
        return self._faults + sum(one.faults for one in list(self._announced))

    @property
    def waits(self) -> WaitTable:
        """Return the failures of renewals and polls that are retried."""
        return self._waits

    def start(self) -> None:
        """Start to poll the leases."""
        self._calls.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop polling, and drop the leases that are left."""
        self._thread.end(self._changed)
        for one in list(self._announced):
            one.withdraw()
        self._calls.stop()

    def announce(self, node: Node) -> _Announced:
        """Take a lease and renew it until the node is withdrawn."""
        announcement = Announcement(node.role, node.instance, node.address, node.to_json())
        announcer = LeaseAnnouncer(self._store, announcement, self._clock, self._waits)
        announcer.start()
        announced = _Announced(self._announced, announcer)
        self._announced[announced] = None
        return announced

    def watch(self, role: str, listener: NodeListener) -> Watch:
        """Register a listener for the nodes of a role."""
        return self._watcher(role).listen(listener)

    def nodes(self, role: str) -> Sequence[Node]:
        """Return the nodes of a role, as of the last poll."""
        return self._watcher(role).require_nodes()

    def _watcher(self, role: str) -> RoleWatcher:
        watcher, is_new = self._watchers.of(role)
        if is_new:
            self._request_poll()
        return watcher

    def _request_poll(self) -> None:
        with self._changed:
            self._poll_requested = True
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
                if not (self._poll_requested or self._thread.is_end_expected):
                    pause_s = POLL_EVERY_S * self._chance.uniform(*_SPREAD)
                    # Without watchers, nothing is read.
                    self._clock.wait(self._changed, pause_s if self._watchers.all() else None)
                if self._thread.is_end_expected:
                    return
                self._poll_requested = False

    def _poll(self) -> None:
        watchers = self._watchers.all()
        if not watchers:
            return
        try:
            rows = self._store.list()
        except PenstockError as error:
            logger.warning("the leases could not be read, trying again: %s", error)
            self._waits.failed(_READ, error, dependency=Dependency.METADATA)
            return
        self._waits.ended(_READ)
        for watcher in watchers:
            nodes = [node_of(row) for row in rows if row.service == watcher.role]
            watcher.synchronise({node.key: node for node in nodes})


class _Announced:
    """A lease that is renewed until it is withdrawn."""

    def __init__(self, home: dict[_Announced, None], announcer: LeaseAnnouncer) -> None:
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
    plain = Node(row.service, row.instance, HostPort(row.host, row.port), started_ms=row.started_ms)
    if "druidNode" not in row.extra:
        return plain
    try:
        return Node.from_json(dict(row.extra))
    except InvalidRequest as error:
        logger.warning("%s %s announces invalid JSON: %s", row.service, row.instance, error)
        return plain
