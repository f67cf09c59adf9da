"""A client's session: the state of its connection, and further facts about it.

Owns the current state (`penstock.broker.protocol.connection_state` has the table), the client's
address, negotiated settings, details of TLS and permissions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.broker.client_registry import TlsStatistics
from penstock.broker.protocol.commands import CommandRefused
from penstock.broker.protocol.connection_state import CONNECTION_MACHINE, ClientState
from penstock.broker.protocol.negotiation import NegotiatedSettings
from penstock.broker.security.peers import address_of, certificate_name, certificate_role, peer_user
from penstock.core.access.principal import NOBODY
from penstock.core.state_machine import Refusal

if TYPE_CHECKING:
    import asyncio
    import ssl

    from penstock.broker.protocol.connection_state import ClientEffect, ClientEvent
    from penstock.broker.protocol.limits import Codec
    from penstock.broker.security.permissions import Permissions
    from penstock.core.access.principal import Principal
    from penstock.core.state_machine import Transition

_PUBLISHED_TOPICS_MAX: Final = 1_000
_CLOSED: Final = ClientState.CLOSED


@dataclass(slots=True)
class ClientSession:
    """Session of one client.

    Attributes:
        connected_ms: When it was established.
        state: State of the connection.
        address: Address of the client.
        negotiated: Its negotiated settings.
        agreed_codec: Its compression, once it is agreed.
        codec: Its compression, once it is active.
        tls: It uses TLS.
        encryption: Details of TLS, once it is active.
        common_name: Common name of the client's certificate.
        certificate_role: Role in this certificate; empty: none.
        user_id: Id of the user of this host who connected; None if unknown.
        secret: Secret sent with ``AUTH``, kept to find its permissions or principal again.
        is_authenticated: Its principal is that of ``AUTH``.
        principal: Its principal in a generation of the access control.
        generation: This generation; -1: the principal is not known yet.
        counted_for: The principal whose quota of connections counts it; None: none.
        permissions: Permissions of an authorization server, if that has authorized it.
        published: Number of published messages by topic, for at most 1,000 topics; the oldest
            entries are dropped first.
    """

    connected_ms: int
    state: ClientState = ClientState.NEW
    address: str = ""
    negotiated: NegotiatedSettings = field(default_factory=NegotiatedSettings)
    agreed_codec: Codec | None = None
    codec: Codec | None = None
    tls: bool = False
    encryption: TlsStatistics | None = None
    common_name: str = ""
    certificate_role: str = ""
    user_id: int | None = None
    secret: bytes = b""
    is_authenticated: bool = False
    principal: Principal = NOBODY
    generation: int = -1
    counted_for: Principal | None = None
    permissions: Permissions | None = None
    published: dict[str, int] = field(default_factory=dict)

    def apply(self, event: ClientEvent) -> tuple[ClientEffect, ...]:
        """Change the state as an event requires, and return the effects to carry out in order.

        Raises:
            CommandRefused: The event is a command that is not allowed in this state.
        """
        outcome = self.check(event)
        self.state = outcome.state
        return outcome.effects

    def check(self, event: ClientEvent) -> Transition[ClientState, ClientEffect]:
        """Return the outcome of an event, without a change.

        Raises:
            CommandRefused: The event is a command that is not allowed in this state.
        """
        outcome = CONNECTION_MACHINE.transition(self.state, event)
        if isinstance(outcome, Refusal):
            raise CommandRefused("E_INVALID", outcome.reason)
        return outcome

    @property
    def closed(self) -> bool:
        """Whether the connection closes once pending output is sent."""
        return self.state is _CLOSED

    def record_peer(self, transport: asyncio.BaseTransport) -> None:
        """Record the address, and the user of this host who connected."""
        self.user_id = peer_user(transport)
        self.address = address_of(transport)

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
            self.common_name = certificate_name(transport)
            self.certificate_role = certificate_role(transport)
            self.generation = -1  # the certificate may be its credential

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
        """Whether the client was authorized by ``AUTH``."""
        return self.permissions is not None or self.is_authenticated

    @property
    def identity(self) -> tuple[str, str]:
        """Name and URL of the client that ``AUTH`` found; empty before."""
        if self.permissions is not None:
            return self.permissions.identity, self.permissions.identity_url
        return (self.principal.id, "") if self.is_authenticated else ("", "")

    @property
    def host(self) -> str:
        """Return the client's host, its default name until IDENTIFY."""
        return self.address.rsplit(":", 1)[0]
