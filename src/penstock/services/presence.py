"""How a process is known to others and knows them: discovery, directory and contest, by options.

Owns the choice between leases in the metadata store and ZooKeeper, and what has to start before
others. Roles see no difference.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.core.clock import Clock
from penstock.core.waits import DependencyWait
from penstock.services.config import Address, Options
from penstock.services.discovery.node import Node, Service
from penstock.services.discovery.overleases import LeaseDiscovery
from penstock.services.election.contest import Contest, TermContest
from penstock.services.election.probing import refuses
from penstock.services.leases import Directory, LeaseView
from penstock.services.lifecycle import Handler, Lifecycle, Stage
from penstock.storage.metadata import LeaseRow, MetadataStore

if TYPE_CHECKING:
    from penstock.services.discovery.discovery import Announced, Discovery
    from penstock.services.discovery.zkclient import ZooKeeper


BROKER_SERVICE = "brokerService"


class Presence:
    """One process among others.

    Args:
        options: Say whether ZooKeeper is used.
        store: The metadata store.
        clock: Time.

    Raises:
        InvalidRequest: ZooKeeper is to be used, and its client is not installed.
    """

    def __init__(self, options: Options, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._zookeeper: ZooKeeper | None = None
        self.discovery: Discovery
        self._faults: Callable[[], int] = lambda: 0  # kazoo's threads are its own
        self._waits: Callable[[], tuple[DependencyWait, ...]] = tuple
        if options.zookeeper is None:
            leases = LeaseDiscovery(store.leases, clock)
            self.discovery = leases
            self._faults = lambda: leases.faults
            self._waits = leases.waits.all
            view = LeaseView(store.leases, clock)
            self.directory = Directory(view, leader=self._leader)
            return
        # Here, because the client is installed only where it is wanted.
        from penstock.services.discovery.zkclient import ZooKeeper  # noqa: PLC0415
        from penstock.services.discovery.zookeeper import ZooKeeperDiscovery  # noqa: PLC0415

        self._zookeeper = ZooKeeper(options.zookeeper, options.zookeeper_base)
        self.discovery = ZooKeeperDiscovery(self._zookeeper, clock)
        self.directory = Directory(_Discovered(self.discovery), leader=self._leader)

    def contest(self, service: str, url: str) -> Contest:
        """Return what decides who leads a service.

        Args:
            service: What is led.
            url: Where this process answers.
        """
        terms = self._store.terms
        if self._zookeeper is None:
            return TermContest(terms, service, url, self._clock, refuses=refuses)
        from penstock.services.election.overzookeeper import ZooKeeperContest  # noqa: PLC0415

        return ZooKeeperContest(self._zookeeper, terms, service, url, uuid.uuid4().hex)

    def faults(self) -> int:
        """Return how often discovery failed in a way that nobody foresaw, and went on."""
        return self._faults()

    def waits(self) -> tuple[DependencyWait, ...]:
        """Return what discovery and the renewal of this process's lease wait for."""
        return self._waits()

    def add_to(
        self,
        lifecycle: Lifecycle,
        role: str,
        instance: str,
        address: Address,
        services: Mapping[str, Service] | None = None,
    ) -> None:
        """Have a process know others once it starts, and announce itself when it answers."""
        node = Node(
            role=role,
            instance=instance,
            address=address,
            services=services or {},
            started_ms=self._clock.now_ms(),
            processors=os.cpu_count() or 0,
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        )
        announced: list[Announced] = []

        def withdraw() -> None:
            while announced:
                announced.pop().withdraw()

        lifecycle.add_handler(Handler("discovery", self.discovery.start, self.discovery.stop))
        lifecycle.add_handler(
            Handler(
                "announcement",
                lambda: announced.append(self.discovery.announce(node)),
                withdraw,
            ),
            Stage.ANNOUNCEMENTS,
        )

    def _leader(self) -> str | None:
        term = self._store.terms.current("overlord")
        return None if term is None else term.holder


class BrokerFinder:
    """Finds the broker: at the address that was named, else where one announces itself. Any thread.

    Args:
        options: Name the address, or do not.
        lease: Returns the lease of the broker, or raises `Unavailable`.
    """

    def __init__(self, options: Options, lease: Callable[[], LeaseRow]) -> None:
        self._options = options
        self._lease = lease

    def http(self) -> Address:
        """Return where it answers over HTTP.

        Raises:
            Unavailable: No address was named, and no broker announces itself.
        """
        if self._options.broker_http is not None:
            return self._options.broker_http
        row = self._lease()
        return Address(row.host, row.port)

    def tcp(self) -> Address:
        """Return where it speaks NSQ's TCP protocol. Raises as `http`."""
        if self._options.broker_tcp is not None:
            return self._options.broker_tcp
        if self._options.broker_http is not None:
            return self._options.broker_tcp_address
        row = self._lease()
        return Address(row.host, broker_tcp_port(row.extra))


def broker_service(tcp_port: int) -> Mapping[str, Service]:
    """Return what a broker offers, for its announcement."""
    return {BROKER_SERVICE: {"type": BROKER_SERVICE, "tcpPort": tcp_port}}


def broker_tcp_port(extra: Mapping[str, object]) -> int:
    """Return the TCP port of a broker's announcement; NSQ's own where it has none."""
    services = extra.get("services")
    offered = services.get(BROKER_SERVICE) if isinstance(services, dict) else None
    port = offered.get("tcpPort") if isinstance(offered, dict) else None
    return port if isinstance(port, int) else Options().broker_tcp_address.port


class _Discovered:
    """The nodes of a discovery as a directory wants them."""

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery

    def list(self, service: str | None = None) -> Sequence[LeaseRow]:
        """Return the nodes of a role; waits for the first view of it."""
        if service is None:
            return []
        return [
            LeaseRow(
                service=one.role,
                instance=one.instance,
                host=one.address.host,
                port=one.address.port,
                expires_ms=0,
                extra=one.to_json(),
                started_ms=one.started_ms,
            )
            for one in self._discovery.nodes(service)
        ]
