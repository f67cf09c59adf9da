"""Membership of a process: discovery, directory and contest, chosen by options.

Owns the choice between leases in the metadata store and ZooKeeper, and their starting order. The
roles do not depend on the choice.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.core.clock import Clock
from penstock.core.waits import DependencyWait
from penstock.services.host.tls_settings import trust_settings
from penstock.services.lifecycle import Lifecycle, LifecycleHandler, StartStage
from penstock.services.membership.discovery import Node, Service
from penstock.services.membership.election import Contest, TermContest, refuses
from penstock.services.membership.leases import LeaseDirectory, LeaseDiscovery, LeaseView
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import PenstockOptions
from penstock.storage.metadata import LeaseRow, MetadataStore

if TYPE_CHECKING:
    from penstock.services.membership.discovery import Announced, Discovery
    from penstock.services.membership.zookeeper import ZooKeeper


BROKER_SERVICE = "brokerService"


class Membership:
    """Membership of one process.

    Args:
        options: Determine whether ZooKeeper is used.
        store: The metadata store.
        clock: Time.

    Raises:
        InvalidRequest: ZooKeeper is configured, but its client is not installed.
    """

    def __init__(self, options: PenstockOptions, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._zookeeper: ZooKeeper | None = None
        self.discovery: Discovery
        if options.zookeeper is None:
            self.discovery = LeaseDiscovery(store.leases, clock)
            view = LeaseView(store.leases, clock)
            self.directory = LeaseDirectory(view, terms=store.terms, waits=self.waits)
            return
        # Imported here, because the client is only installed if it is used.
        from penstock.services.membership.zookeeper import (  # noqa: PLC0415
            ZooKeeper,
            ZooKeeperDiscovery,
            ZooKeeperSecurity,
        )

        trust = trust_settings(options)
        security = ZooKeeperSecurity(
            options.zookeeper_tls == "true",
            trust.authorities,
            trust.certificate,
            options.zookeeper_auth,
        )
        self._zookeeper = ZooKeeper(options.zookeeper, options.zookeeper_base, security=security)
        self.discovery = ZooKeeperDiscovery(self._zookeeper, clock)
        self.directory = LeaseDirectory(_Discovered(self.discovery), terms=store.terms)

    def contest(self, service: str, url: str) -> Contest:
        """Return the contest that decides who leads a service.

        Args:
            service: The service to lead.
            url: The URL of this process.
        """
        terms = self._store.terms
        if self._zookeeper is None:
            return TermContest(terms, service, url, self._clock, refuses=refuses)
        from penstock.services.membership.zookeeper import ZooKeeperContest  # noqa: PLC0415

        return ZooKeeperContest(self._zookeeper, terms, service, url, uuid.uuid4().hex)

    def faults(self) -> int:
        """Return how many times discovery failed unexpectedly and continued."""
        return self.discovery.faults

    def waits(self) -> tuple[DependencyWait, ...]:
        """Return the waits of discovery and of the renewal of this process's lease."""
        return self.discovery.waits.all()

    def add_to(
        self,
        lifecycle: Lifecycle,
        role: str,
        instance: str,
        address: HostPort,
        services: Mapping[str, Service] | None = None,
    ) -> None:
        """Start discovery with the process, and announce the process once it answers."""
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

        lifecycle.add_handler(
            LifecycleHandler("discovery", self.discovery.start, self.discovery.stop)
        )
        lifecycle.add_handler(
            LifecycleHandler(
                "announcement",
                lambda: announced.append(self.discovery.announce(node)),
                withdraw,
            ),
            StartStage.ANNOUNCEMENTS,
        )


class BrokerDirectory(Protocol):
    """The part of `LeaseDirectory` that finds the broker."""

    def broker(self) -> LeaseRow:
        """Return the lease of the broker; raises `Unavailable` if none is announced."""
        ...


class BrokerFinder:
    """Finds the broker: at the configured address, otherwise by its announcement. Thread-safe.

    Args:
        options: May contain the address.
        directory: Has the broker's announcement.
    """

    def __init__(self, options: PenstockOptions, directory: BrokerDirectory) -> None:
        self._options = options
        self._directory = directory

    def http(self) -> HostPort:
        """Return the broker's HTTP address.

        Raises:
            Unavailable: No address is configured, and no broker is announced.
        """
        if self._options.broker_http is not None:
            return self._options.broker_http
        row = self._directory.broker()
        return HostPort(row.host, row.port)

    def tcp(self) -> HostPort:
        """Return the broker's address of NSQ's TCP protocol. Raises as `http`."""
        if self._options.broker_tcp is not None:
            return self._options.broker_tcp
        if self._options.broker_http is not None:
            return self._options.broker_tcp_address
        row = self._directory.broker()
        return HostPort(row.host, broker_tcp_port(row.extra))


def broker_service(tcp_port: int) -> Mapping[str, Service]:
    """Return the broker's services for its announcement."""
    return {BROKER_SERVICE: {"type": BROKER_SERVICE, "tcpPort": tcp_port}}


def broker_tcp_port(extra: Mapping[str, object]) -> int:
    """Return the TCP port of a broker's announcement; NSQ's default if it is missing."""
    services = extra.get("services")
    offered = services.get(BROKER_SERVICE) if isinstance(services, dict) else None
    port = offered.get("tcpPort") if isinstance(offered, dict) else None
    return port if isinstance(port, int) else PenstockOptions().broker_tcp_address.port


class _Discovered:
    """The nodes of a discovery in the form of a directory."""

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery

    def list(self, service: str | None = None) -> Sequence[LeaseRow]:
        """Return the nodes of a role; waits for the first view of the role."""
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
