"""Announcement and lookup of services by leases in the metadata store.

Owns the renewal of one lease and the lookup among all leases. The store owns the rows.

Invariant: a lease is dropped at an orderly stop and expires after a crash, so each instance that
`find` returns has renewed within the last `TTL_MS`. With a `LeaseView` this holds even if the
hosts' wall clocks differ.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.core.clock import Clock
from penstock.core.errors import Dependency, PenstockError, Unavailable
from penstock.core.threads import OnDeath, OwnedThread
from penstock.core.waits import WaitTable
from penstock.services.config import Address
from penstock.storage.metadata import LeaseRow

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
    address: Address
    extra: Mapping[str, object] = field(default_factory=dict)


class Announcer:
    """Keeps one lease alive from a thread of its own; `start` and `stop` are a lifecycle handler's.

    The condition's mutex guards the stop flag that the thread waits on.

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
        self._stop_asked = False
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
        self._thread.expect_end()
        with self._changed:
            self._stop_asked = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(5)
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
                if not self._stop_asked:
                    self._clock.wait(self._changed, RENEW_EVERY_S)
                if self._stop_asked:
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
    looked_s: float
    is_sign: bool


class LeaseView:
    """`Instances` by observed changes of leases, so that wrong wall clocks do not hide instances.

    A lease is live for `TTL_MS` after its last observed change, by this process's monotonic clock.
    Wall clocks are compared only for a lease that is new to this process, or whose change may be
    old because the leases were not read for a long time.

    The mutex guards the observations: requests read from many threads, and none can wait for mail.

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
            is_fresh = seen is not None and now_s - seen.looked_s < _TTL_S
            is_sign = is_fresh or row.expires_ms > self._clock.now_ms()
            seen = self._seen[key] = _Seen(row.expires_ms, now_s, now_s, is_sign)
        seen.looked_s = now_s
        return seen.is_sign and now_s - seen.since_s < _TTL_S


class Directory:
    """Finds instances of services by their leases.

    Args:
        store: Lookup of live instances.
        chance: Randomizes the choice, to spread load.
        leader: Returns the URL of the leading overlord, or None; without this function, the
            overlord that announced itself last is used.
    """

    def __init__(
        self,
        store: Instances,
        chance: random.Random | None = None,
        leader: Callable[[], str | None] | None = None,
    ) -> None:
        self._store = store
        self._chance = chance or random.Random()  # spreads load, guards nothing  # noqa: S311
        self._leader = leader

    def all(self, service: str) -> list[LeaseRow]:
        """Return the live instances, most recently renewed first."""
        return sorted(self._store.list(service), key=lambda row: -row.expires_ms)

    def find(self, service: str) -> Address:
        """Return an instance of a service.

        Raises:
            Unavailable: No instance is live, or none leads.
        """
        if service == "overlord" and self._leader is not None:
            url = self._leader()
            if url is None:
                raise Unavailable(
                    "no overlord leads; start one, or wait for the election",
                    dependency=Dependency.OVERLORD,
                )
            return Address.parse(url.removeprefix("http://"))
        row = self._choose(service)
        return Address(row.host, row.port)

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
