"""A node: one process in one role, as it announces itself.

Owns the announced document, whose fields are Druid's. Roles are texts: `overlord`, `worker`,
`router`, `flow`, `broker`, or any other word. Of a document that others wrote, what is not
understood is left out.
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
        role: What it does.
        instance: Its name among those of its role.
        address: Where it answers; of two nodes of a role with one address, the first is known.
        services: What it offers, by name, such as a worker's capacity under `workerNodeService`.
        started_ms: When it was announced.
        processors: Its cores; 0: not told.
        memory_bytes: Its memory; 0: not told.
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
        """Its address as text, by which a role's nodes are told apart."""
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
            raise InvalidRequest("an announcement is a JSON object")
        place, role = value.get("druidNode"), value.get("nodeType")
        if not isinstance(place, dict) or not isinstance(role, str) or not role:
            raise InvalidRequest("an announcement has a nodeType and a druidNode")
        host, port = place.get("host"), place.get("plaintextPort")
        if not isinstance(host, str) or not host or not isinstance(port, int) or port < 0:
            raise InvalidRequest(
                "host and plaintextPort say where a node answers", place="druidNode"
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
