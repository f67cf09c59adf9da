"""The principal of an HTTP request: the credential in its headers, or the owner of its connection.

Owns the headers that carry a credential, the order in which credentials count, and what is
remembered for a connection. Does not own whether a credential is valid nor what its principal may
do (`core.access`).

| a request with | has the principal |
|---|---|
| `Authorization: Bearer` or `Basic` | of the token or the user; a wrong one is refused |
| neither, on a local connection of the server's own user | the owner, if nothing is configured |
| neither, and a client certificate that TLS has verified | of the certificate |
| anything else | none: `NOBODY` |

A wrong credential of the owner counts as none. A header that a proxy adds ends the second case: the
proxy may run as the server's own user, and its client may be anyone. From the owner and from
processes of this installation, `X-Penstock-Principal` replaces the principal by that of the user
for whom they act.

Used on the server's event loop only.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import os
from base64 import b64decode
from typing import TYPE_CHECKING, Final

from penstock.broker.security.peers import (
    KeyWaits,
    PasswordQueue,
    address_of,
    certificate_name,
    certificate_role,
    check_role,
    peer_user,
)
from penstock.core.access.peer_user import own_user_id
from penstock.core.access.principal import NOBODY, PRINCIPAL_HEADER, Principal, PrincipalKind
from penstock.core.errors import Forbidden, Unauthenticated

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from penstock.broker.security.rights import ConnectionRights
    from penstock.core.access.access_control import AccessControl

PEER_STATE: Final = "peer"
"""Key of a connection's `HttpPeer` in the state of an ASGI scope."""

CHALLENGES: Final = ("Bearer", 'Basic realm="penstock", charset="UTF-8"')
"""Values of `WWW-Authenticate`, which an answer with status 401 must have (RFC 9110, 15.5.2)."""

ORIGIN_HEADER: Final = "X-Penstock-Origin"
"""Header with the address of a client, for the audit. It counts only with `PRINCIPAL_HEADER`."""

_ORIGIN: Final = ORIGIN_HEADER.lower().encode()
_ORIGIN_CHARACTERS_MAX: Final = 64
_AUTHORIZATION: Final = b"authorization"
_ON_BEHALF: Final = PRINCIPAL_HEADER.lower().encode()
_FORWARDED: Final = frozenset({b"forwarded", b"via", b"x-real-ip"})
_FORWARDED_PART: Final = b"x-forwarded"
_HASH_BYTES: Final = 32


class HttpPeer:
    """The client's end of one connection.

    Args:
        transport: The transport of the connection; None: its client is unknown.

    Attributes:
        origin: Address of the client, for the audit; empty if unknown.
        common_name: Common name of the client's certificate, which TLS has verified; empty if it
            presented none.
        role: Role in this certificate; empty: none.
        credential: Keyed hash of the last valid `Authorization` header of the connection, so that
            the memory of the process has no password.
        generation: The generation of access control in which it was valid.
        principal: Its principal.
        rights: The rights that its client was found to have, if the application keeps them.
    """

    __slots__ = (
        "_transport",
        "_user_id",
        "common_name",
        "credential",
        "generation",
        "origin",
        "principal",
        "rights",
        "role",
    )

    def __init__(self, transport: asyncio.BaseTransport | None = None) -> None:
        self._transport = transport
        self.origin = "" if transport is None else address_of(transport)
        self._user_id: int | None = None
        self.common_name = "" if transport is None else certificate_name(transport)
        self.role = "" if transport is None else certificate_role(transport)
        self.credential = b""
        self.generation = -1
        self.principal = NOBODY
        self.rights: ConnectionRights | None = None

    def closed(self) -> None:
        """Record the ends of the client's uses, because the connection has ended."""
        if self.rights is not None:
            self.rights.close()

    @property
    def user_id(self) -> int | None:
        """Id of the user of this host who connected; None if unknown. Looked up at first use."""
        transport, self._transport = self._transport, None
        if transport is not None:
            self._user_id = peer_user(transport)
        return self._user_id


class HttpAuthenticator:
    """Finds the principal of each request to one server.

    Args:
        access: The access control.
    """

    def __init__(self, access: AccessControl) -> None:
        self._access = access
        self._own_user_id = own_user_id()
        self._hash_key: Final = os.urandom(_HASH_BYTES)
        self._passwords = PasswordQueue(access)
        self._key_waits = KeyWaits(access)

    def find(self, headers: Mapping[bytes, bytes], peer: HttpPeer) -> Principal | None:
        """Return the principal of a request; None: `check` must be awaited for it.

        Args:
            headers: Its headers; names in lower case.
            peer: The client's end of its connection.

        Raises:
            Forbidden: It has `X-Penstock-Principal`, and its principal may not act for others.
            InvalidRequest: The value of this header does not name a principal.
            Unauthenticated: Its credential is not valid.
            Unavailable: Its credential cannot be checked now.
        """
        shown = headers.get(_AUTHORIZATION)
        if shown is None or self._access.is_open:
            principal = self._of_connection(headers, peer)
        elif self._is_remembered(shown, peer):
            principal = peer.principal
        else:
            # Before the check: a change during it then counts as one after it.
            generation = self._access.generation
            try:
                found = self._of_credential(shown, peer)
            except Unauthenticated as error:  # narrow: the owner needs none
                return _for_whom_asked(headers, self._owner(headers, peer, error))
            if found is None:
                return None
            self._remember(peer, shown, found, generation)
            principal = found
        return _for_whom_asked(headers, principal)

    async def check(self, headers: Mapping[bytes, bytes], peer: HttpPeer) -> Principal:
        """Return the principal of a request after a check that takes long. Raises as `find`.

        It is that of a password, or that of a token whose keys must be read from its issuer.

        Raises:
            Unavailable: Too many passwords are being checked, or keys cannot be read.
        """
        shown = headers[_AUTHORIZATION]
        generation = self._access.generation
        refusal = self._refused()
        try:
            principal = await self._checked(shown, peer)
        except Unauthenticated as error:  # narrow: the owner needs none
            principal, refusal = None, error
        if principal is None:
            return _for_whom_asked(headers, self._owner(headers, peer, refusal))
        self._remember(peer, shown, principal, generation)
        return _for_whom_asked(headers, principal)

    async def _checked(self, shown: bytes, peer: HttpPeer) -> Principal | None:
        bearer = _bearer(shown)
        if bearer is not None:
            return await self._key_waits.principal(bearer, peer.origin)
        user, password = _user_and_password(shown)
        return await self._passwords.principal(user, password, peer.origin)

    def _owner(
        self, headers: Mapping[bytes, bytes], peer: HttpPeer, refusal: Unauthenticated
    ) -> Principal:
        """Return the owner of a connection that shows a wrong credential. It is not remembered.

        While nothing is configured, the credential may be one of another installation, such as that
        of a process of the same user with another data folder.

        Raises:
            Unauthenticated: The connection is not the owner's.
        """
        principal = self._of_connection(headers, peer)
        if principal.kind is not PrincipalKind.OWNER:
            raise refusal
        return principal

    def _of_connection(self, headers: Mapping[bytes, bytes], peer: HttpPeer) -> Principal:
        access = self._access
        owner = access.of_owner()
        if owner is not None:
            if access.is_open:
                return owner
            is_own = self._own_user_id is not None and peer.user_id == self._own_user_id
            if is_own and not is_forwarded(headers):
                return owner
        found = access.authenticator.of_certificate(peer.common_name) if peer.common_name else None
        return found or NOBODY

    def _of_credential(self, shown: bytes, peer: HttpPeer) -> Principal | None:
        """Return the principal of a header; None: `check` must be awaited for it.

        Raises:
            Unauthenticated: The header is not valid.
            Unavailable: It has a token whose key is not known.
        """
        bearer = _bearer(shown)
        if bearer is not None:
            if self._access.oidc.keys_awaited(bearer) is not None:
                return None
            principal = self._access.authenticator.of_bearer(bearer, origin=peer.origin)
            if principal is None:
                raise self._refused()
            check_role(principal, peer.role)
            return principal
        if shown.partition(b" ")[0].lower() == b"basic":
            user, password = _user_and_password(shown)
            return self._access.authenticator.password_is_known(user, password)
        raise Unauthenticated(
            "the header Authorization is neither Bearer nor Basic: use one of them"
        )

    def _is_remembered(self, shown: bytes, peer: HttpPeer) -> bool:
        """Return whether a header is the last valid one of its connection, and still valid."""
        access = self._access
        if peer.generation != access.generation or not hmac.compare_digest(
            self._hash(shown), peer.credential
        ):
            return False
        # Its client gets 401, and sends another token.
        principal = peer.principal
        if principal.kind is PrincipalKind.OIDC:
            return not access.oidc.has_ended(principal)
        return not access.authenticator.has_expired(principal)

    def _remember(
        self, peer: HttpPeer, shown: bytes, principal: Principal, generation: int
    ) -> None:
        peer.credential, peer.principal, peer.generation = self._hash(shown), principal, generation

    def _hash(self, shown: bytes) -> bytes:
        return hashlib.blake2b(shown, key=self._hash_key, digest_size=_HASH_BYTES).digest()

    def _refused(self) -> Unauthenticated:
        return Unauthenticated(self._access.remedy)


def origin_of(headers: Mapping[bytes, bytes], sender: str) -> str:
    """Return the address of the client of a request that was authenticated, for the audit.

    Args:
        headers: Its headers; names in lower case.
        sender: The address of its sender, which may be a process that acts for a client.
    """
    if _ON_BEHALF in headers and _ORIGIN in headers:
        return headers[_ORIGIN].decode("latin-1")[:_ORIGIN_CHARACTERS_MAX]
    return sender


def is_forwarded(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a header shows that a proxy passed the request on."""
    return not _FORWARDED.isdisjoint(headers) or _FORWARDED_PART in b"\n".join(headers)


def _for_whom_asked(headers: Mapping[bytes, bytes], sender: Principal) -> Principal:
    if _ON_BEHALF not in headers:
        return sender
    if not sender.may_act_for_others:
        raise Forbidden(
            f"{sender.id} may not send {PRINCIPAL_HEADER}: only processes of this installation may"
        )
    return Principal.from_header(headers[_ON_BEHALF].decode("latin-1"))


def _bearer(shown: bytes) -> bytes | None:
    """Return the token of a header; None: it has another scheme than `Bearer`."""
    scheme, _, value = shown.partition(b" ")
    return value.strip() if scheme.lower() == b"bearer" else None


def _user_and_password(shown: bytes) -> tuple[str, str]:
    """Return the user and password of `Basic` (RFC 7617).

    Raises:
        Unauthenticated: The header is malformed.
    """
    try:
        text = b64decode(shown.partition(b" ")[2].strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):  # narrow: translates
        raise _malformed() from None
    user, colon, password = text.partition(":")
    if not colon:
        raise _malformed()
    return user, password


def _malformed() -> Unauthenticated:
    return Unauthenticated("the header Authorization: Basic is malformed: encode USER:PASSWORD")
