"""Clients of NSQ's protocol, for modules other than their connections.

Owns the fields that ``/stats`` shows of a client. Does not own the connections
(`penstock.broker.tcp`), which create them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TlsStatistics:
    """TLS parameters of a connection.

    Attributes:
        cipher: OpenSSL's name of the cipher suite.
        version: NSQ's name of the version, such as ``TLS1.3``.
        protocol: Application protocol negotiated by ALPN; empty: none.
    """

    cipher: str
    version: str
    protocol: str


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """Statistics of one client.

    Attributes:
        client_id: Name that the client sent, or its host before IDENTIFY. The same holds for
            `hostname`.
        address: Its host and port.
        state: NSQ's number: 0 new, 3 subscribed, 4 closing.
        ready: RDY.
        published: Number of published messages by topic.
        tls: None: it is not encrypted.
        authorized: Its secret was accepted; `identity` is the name found.
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


class ClientRegistry(Protocol):
    """The clients of one broker."""

    def client(self, number: int) -> ClientStatistics | None:
        """Return the statistics of the client with a number; None: it has disconnected."""
        ...

    def producers(self) -> Sequence[int]:
        """Return the numbers of clients that have published."""
        ...


class NoClients:
    """The clients of a broker that does not serve NSQ's protocol."""

    def client(self, _number: int) -> ClientStatistics | None:
        """Return None."""
        return None

    def producers(self) -> Sequence[int]:
        """Return nothing."""
        return ()
