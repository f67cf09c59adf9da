"""What is known of a connection: its address, what was negotiated, who it was found to be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.broker.clients import TlsStatistics
from penstock.broker.protocol.negotiation import Negotiated

if TYPE_CHECKING:
    import asyncio
    import ssl

    from penstock.broker.protocol.compression import Codec
    from penstock.broker.security.permissions import Permissions

_PUBLISHED_TOPICS_MAX: Final = 1_000


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
        encryption: How, once it is.
        common_name: That of the certificate it showed.
        secret: What it sent with ``AUTH``, to be asked about again.
        permissions: What it may do, once it was let in.
        upgrading: It changes to TLS: nothing may be sent.
        published: How many messages it published, by topic; of so many topics at most, and of
            very many those that it began with last.
    """

    connected_ms: int
    address: str = ""
    negotiated: Negotiated = field(default_factory=Negotiated)
    identified: bool = False
    codec: Codec | None = None
    tls: bool = False
    encryption: TlsStatistics | None = None
    common_name: str = ""
    secret: bytes = b""
    permissions: Permissions | None = None
    upgrading: bool = False
    published: dict[str, int] = field(default_factory=dict)

    def met(self, transport: asyncio.BaseTransport) -> None:
        """Note the address."""
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "unix")

    def encrypted(self, transport: asyncio.BaseTransport) -> None:
        """Note that it is under TLS now, and how."""
        self.tls = True
        encryption: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if encryption is not None:
            self.encryption = TlsStatistics(
                cipher=(encryption.cipher() or ("",))[0],
                version=(encryption.version() or "").replace("TLSv1", "TLS1"),
                protocol=encryption.selected_alpn_protocol() or "",
            )
            self.common_name = _common_name(encryption)

    def count_published(self, topic: str, count: int) -> None:
        """Count messages that it published."""
        published = self.published
        known = published.get(topic)
        if known is None:
            known = 0
            if len(published) >= _PUBLISHED_TOPICS_MAX:
                del published[next(iter(published))]
        published[topic] = known + count

    @property
    def authorized(self) -> bool:
        """Say whether it was let in."""
        return self.permissions is not None

    @property
    def host(self) -> str:
        """Return the other side's host, by which a client goes until it says its name."""
        return self.address.rsplit(":", 1)[0]


def _common_name(encryption: ssl.SSLObject) -> str:
    """Return the name in the client's certificate; empty where it showed none."""
    subject = (encryption.getpeercert() or {}).get("subject", ())
    assert isinstance(subject, tuple)
    for names in subject:
        for name in names:
            if name[0] == "commonName":
                return str(name[1])
    return ""
