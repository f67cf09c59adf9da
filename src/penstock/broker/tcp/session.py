"""State of a connection: its address, negotiated settings, TLS and permissions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.broker.client_registry import TlsStatistics
from penstock.broker.protocol.negotiation import Negotiated

if TYPE_CHECKING:
    import asyncio
    import ssl

    from penstock.broker.protocol.limits import Codec
    from penstock.broker.security.permissions import Permissions

_PUBLISHED_TOPICS_MAX: Final = 1_000


@dataclass(slots=True)
class Session:
    """State of one connection.

    Attributes:
        connected_ms: When it was established.
        address: Address of the client.
        negotiated: Its negotiated settings.
        identified: It sent an IDENTIFY.
        codec: Its compression, once it is active.
        tls: It uses TLS.
        encryption: Details of TLS, once it is active.
        common_name: Common name of the client's certificate.
        secret: Secret sent with ``AUTH``, kept to renew the permissions.
        permissions: Permissions, once it is authorized.
        upgrading: It changes to TLS: nothing may be sent.
        published: Number of published messages by topic, for at most 1,000 topics; the oldest
            entries are dropped first.
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
        """Record the address."""
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "unix")

    def encrypted(self, transport: asyncio.BaseTransport) -> None:
        """Record that it uses TLS now, with the details."""
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
        """Count messages that the client published."""
        published = self.published
        known = published.get(topic)
        if known is None:
            known = 0
            if len(published) >= _PUBLISHED_TOPICS_MAX:
                del published[next(iter(published))]
        published[topic] = known + count

    @property
    def authorized(self) -> bool:
        """Whether the client has permissions."""
        return self.permissions is not None

    @property
    def host(self) -> str:
        """Return the client's host, its default name until IDENTIFY."""
        return self.address.rsplit(":", 1)[0]


def _common_name(encryption: ssl.SSLObject) -> str:
    """Return the common name in the client's certificate; empty if it presented none."""
    subject = (encryption.getpeercert() or {}).get("subject", ())
    assert isinstance(subject, tuple)
    for names in subject:
        for name in names:
            if name[0] == "commonName":
                return str(name[1])
    return ""
