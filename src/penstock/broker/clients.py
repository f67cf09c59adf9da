"""What is known of the clients of NSQ's protocol, as others than their connections see it.

Owns the numbers and names that ``/stats`` gives of a client. Does not own the connections
(`penstock.broker.tcp`), which make them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TlsStatistics:
    """How a connection is encrypted.

    Attributes:
        cipher: The cipher suite, as OpenSSL calls it.
        version: As NSQ writes it: ``TLS1.3``.
        protocol: What was negotiated to be spoken in it; empty: nothing.
    """

    cipher: str
    version: str
    protocol: str


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """How one client stands.

    Attributes:
        client_id: As it calls itself, its host until it does; `hostname` likewise.
        address: Its host and port.
        state: NSQ's number: 0 new, 3 subscribed, 4 closing.
        ready: RDY.
        published: How many messages it published, by topic.
        tls: None: it is not encrypted.
        authorized: It sent a secret that was accepted; as whom says `identity`.
    """

    client_id: str
    hostname: str
    address: str
    user_agent: str
    connected_ms: int
    state: int
    ready: int = 0
    in_flight: int = 0
    messages: int = 0
    finished: int = 0
    requeued: int = 0
    sample_rate: int = 0
    deflate: bool = False
    snappy: bool = False
    topology_zone: str = ""
    topology_region: str = ""
    published: Mapping[str, int] = field(default_factory=dict)
    tls: TlsStatistics | None = None
    authorized: bool = False
    identity: str = ""
    identity_url: str = ""


class Clients(Protocol):
    """The clients of one broker."""

    def client(self, number: int) -> ClientStatistics | None:
        """Return how the client with a number stands; None: it is gone."""
        ...

    def producers(self) -> Sequence[int]:
        """Return the numbers of those that have published something."""
        ...


class NoClients:
    """The clients of a broker that does not serve NSQ's protocol."""

    def client(self, _number: int) -> ClientStatistics | None:
        """Return None."""
        return None

    def producers(self) -> Sequence[int]:
        """Return nothing."""
        return ()
