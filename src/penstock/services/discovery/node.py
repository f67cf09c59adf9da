"""A node: one process in one role, in the form of its announcement.

Owns the announced document, whose fields are Druid's. Roles are text: `overlord`, `worker`,
`router`, `flow`, `broker`, or any other word. Unknown fields of documents are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.core.errors import InvalidRequest
from penstock.core.instants import format_time, parse_time
from penstock.services.config import Address

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
    address: Address
    services: Mapping[str, Service] = field(default_factory=dict)
    started_ms: int = 0
    processors: int = 0
    memory_bytes: int = 0

    @property
    def key(self) -> str:
        """Return its address as text, the key among a role's nodes."""
        return str(self.address)

    def to_json(self) -> dict[str, object]:
        """Return the announced document."""
        return {
            "druidNode": {
                "service": self.role,
                "host": self.address.host,
                "plaintextPort": self.address.port,
                "tlsPort": -1,
                "enablePlaintextPort": True,
                "enableTlsPort": False,
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
        host, port = place.get("host"), place.get("plaintextPort")
        if not isinstance(host, str) or not host or not isinstance(port, int) or port < 0:
            raise InvalidRequest(
                "host and plaintextPort must be a node's address", place="druidNode"
            )
        address = Address(host, port)
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
