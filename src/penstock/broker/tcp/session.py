"""What is known of a connection: its address, what was negotiated, who it was found to be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.broker.protocol.negotiation import Negotiated

if TYPE_CHECKING:
    import asyncio

    from penstock.broker.protocol.compression import Codec


@dataclass(slots=True)
class Session:
    """One connection's facts.

    Attributes:
        connected_ms: When it was made.
        address: Of the other side.
        negotiated: What holds for it.
        identified: It sent an IDENTIFY.
        codec: Its compression, once it is on.
        tls: It is under TLS.
        authorized: It has sent the right secret.
        upgrading: Its input waits for an upgrade.
        published: How many messages it published, by topic.
    """

    connected_ms: int
    address: str = ""
    negotiated: Negotiated = field(default_factory=Negotiated)
    identified: bool = False
    codec: Codec | None = None
    tls: bool = False
    authorized: bool = False
    upgrading: bool = False
    published: dict[str, int] = field(default_factory=dict)

    def met(self, transport: asyncio.BaseTransport) -> None:
        """Note the address."""
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "unix")

    @property
    def host(self) -> str:
        """Return the other side's host, by which a client goes until it says its name."""
        return self.address.rsplit(":", 1)[0]
