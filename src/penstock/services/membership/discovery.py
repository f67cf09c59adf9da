"""Discovery protocol for the processes of a cluster, and the document that a process announces.

    announce(node) -> Announced .withdraw()
    watch(role, listener) -> Watch .stop()
    nodes(role) -> the nodes known now

A `Node` is one process in one role: `overlord`, `worker`, `router`, `flow`, `broker` or any
other text. Its document has Druid's fields; unknown parts of another process's document are
ignored.

A listener receives all known nodes in one call, then the notice that the view is initialised,
then each change in a call of its own. If the view is not initialised within 30 s, it receives
the nodes known so far and a time-out notice; later ones are changes. A listener that is added
later receives the same sequence from its start.

Invariants: calls to listeners never overlap, even for different roles. An exception of a listener
is logged. A listener must not block, because all others wait meanwhile. Implementations (`leases`,
`zookeeper`) may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from penstock.core.errors import InvalidRequest
from penstock.core.instants import format_time, parse_time
from penstock.core.waits import WaitTable
from penstock.services.options.option_values import HostPort

Service = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Node:
    """A process in a role.

    Attributes:
        role: Its role.
        instance: Its name among those of its role.
        address: Its address; of two nodes of a role with one address, the first is kept.
        services: Its services by name, such as a worker's capacity under `workerNodeService`.
        started_ms: When it was announced.
        processors: Its cores; 0: unknown.
        memory_bytes: Its memory; 0: unknown.
    """

    role: str
    instance: str
    address: HostPort
    services: Mapping[str, Service] = field(default_factory=dict)
    started_ms: int = 0
    processors: int = 0
    memory_bytes: int = 0

    @property
    def key(self) -> str:
        """Return its address as text, the key among a role's nodes."""
        return str(self.address)

    def to_json(self) -> dict[str, object]:
        """Return the announced document.

        Other hosts reach a port with TLS only, and this host with plain HTTP: one port serves both.
        """
        is_tls = self.address.url.startswith("https:")
        return {
            "druidNode": {
                "service": self.role,
                "host": self.address.host,
                "plaintextPort": -1 if is_tls else self.address.port,
                "tlsPort": self.address.port if is_tls else -1,
                "enablePlaintextPort": not is_tls,
                "enableTlsPort": is_tls,
            },
            "nodeType": self.role,
            "services": {name: dict(one) for name, one in self.services.items()},
            "startTime": format_time(self.started_ms),
            "availableProcessors": self.processors,
            "totalMemory": self.memory_bytes,
            "instance": self.instance,
        }

    @classmethod
    def from_json(cls, value: object) -> Node:
        """Read an announced document.

        Raises:
            InvalidRequest: Role or address are missing.
        """
        if not isinstance(value, dict):
            raise InvalidRequest("an announcement must be a JSON object")
        place, role = value.get("druidNode"), value.get("nodeType")
        if not isinstance(place, dict) or not isinstance(role, str) or not role:
            raise InvalidRequest("an announcement needs a nodeType and a druidNode")
        host, ports = place.get("host"), (place.get("plaintextPort"), place.get("tlsPort"))
        port = next((one for one in ports if type(one) is int and 0 <= one <= 65_535), None)
        if not isinstance(host, str) or not host or port is None:
            raise InvalidRequest(
                "host, and plaintextPort or tlsPort, must be a node's address", place="druidNode"
            )
        address = HostPort(host, port)
        raw = value.get("services")
        entries = raw.items() if isinstance(raw, dict) else ()
        return cls(
            role=role,
            instance=str(value.get("instance") or address),
            address=address,
            services={str(name): one for name, one in entries if isinstance(one, dict)},
            started_ms=_time(value.get("startTime")),
            processors=_count(value.get("availableProcessors")),
            memory_bytes=_count(value.get("totalMemory")),
        )


def _time(value: object) -> int:
    try:
        return parse_time(value) if isinstance(value, str) else 0
    except InvalidRequest:
        return 0


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


INITIALISED_WITHIN_S: Final = 30.0


class NodeListener(Protocol):
    """Receives the changes of one role's nodes."""

    def nodes_added(self, nodes: Sequence[Node]) -> None:
        """Nodes appeared; the sequence can be empty only in the first call."""
        ...

    def nodes_removed(self, nodes: Sequence[Node]) -> None:
        """Nodes disappeared."""
        ...

    def view_initialised(self) -> None:
        """All initial nodes have been reported."""
        ...

    def view_initialised_timed_out(self) -> None:
        """The initial list was not complete in time; the nodes known so far have been reported."""
        ...


class Watch(Protocol):
    """Registration of one listener for a role."""

    def stop(self) -> None:
        """Stop calling the listener; a call that is running may still finish."""
        ...


class Announced(Protocol):
    """One node that stays announced until it is withdrawn, even after failures."""

    def withdraw(self) -> None:
        """Notify others at once that the node no longer exists; does not raise."""
        ...


class Discovery(Protocol):
    """Announces nodes and finds those of other processes; thread-safe."""

    @property
    def faults(self) -> int:
        """Return how many times it failed unexpectedly and continued."""
        ...

    @property
    def waits(self) -> WaitTable:
        """Return the failures that are retried."""
        ...

    def start(self) -> None:
        """Begin.

        Raises:
            Unavailable: The store of announcements does not answer.
        """
        ...

    def stop(self) -> None:
        """Stop, and withdraw all announcements."""
        ...

    def announce(self, node: Node) -> Announced:
        """Make a node known to others.

        Raises:
            Unavailable: The store of announcements does not answer.
        """
        ...

    def watch(self, role: str, listener: NodeListener) -> Watch:
        """Register a listener for the nodes of a role."""
        ...

    def nodes(self, role: str) -> Sequence[Node]:
        """Return the nodes of a role; waits for the view to be initialised, or for the time limit.

        Raises:
            Unavailable: No nodes of the role were received in time.
        """
        ...
