"""Facts about the client's end of a connection, for HTTP and for NSQ's protocol.

Owns how the user of a local client and the name in a certificate are found from a transport, how
many passwords are checked at a time, and how many requests wait for keys of issuers. Does not own
what follows (`core.access`). Used on a server's event loop only.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.access.peer_user import peer_user_id, unix_peer_user_id
from penstock.core.access.principal import PrincipalKind
from penstock.core.errors import Unauthenticated, Unavailable
from penstock.core.loop_tasks import run_on_thread
from penstock.core.tls_trust import ROLES, role_in

if TYPE_CHECKING:
    import ssl

    from penstock.core.access.access_control import AccessControl
    from penstock.core.access.principal import Principal

# Access control checks one password at a time; the others wait here, where they hold no thread.
_PASSWORD_CHECKS_MAX: Final = 1
_PASSWORD_CHECKS_WAITING_MAX: Final = 64
# Requests that wait for keys hold no thread, only their connection.
_KEY_WAITS_MAX: Final = 64
KEY_WAIT_S: Final = 5.0
"""Time for which a request waits for the keys of an issuer, in seconds."""


def address_of(transport: asyncio.BaseTransport) -> str:
    """Return the client's address as text; `unix` if it has none."""
    peer = transport.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "unix")


def peer_user(transport: asyncio.BaseTransport) -> int | None:
    """Return the id of the user of this host who owns the client's end; None if unknown."""
    connected = transport.get_extra_info("socket")
    own, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
    if isinstance(own, tuple) and isinstance(peer, tuple):
        return peer_user_id((peer[0], peer[1]), (own[0], own[1]))
    return None if connected is None else unix_peer_user_id(connected)


def certificate_name(transport: asyncio.BaseTransport) -> str:
    """Return the common name in the client's certificate; empty if it presented none."""
    encryption: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    if encryption is None:
        return ""
    subject = (encryption.getpeercert() or {}).get("subject", ())
    assert isinstance(subject, tuple)
    for names in subject:
        for name in names:
            if name[0] == "commonName":
                return str(name[1])
    return ""


def certificate_role(transport: asyncio.BaseTransport) -> str:
    """Return the role in the client's certificate; empty if it presented none, or none with one."""
    encryption: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    return "" if encryption is None else role_in(encryption)


def check_role(principal: Principal, role: str) -> None:
    """Return if a process presents a certificate of its own role, or none with a role.

    Args:
        principal: The principal of its token.
        role: The role in its certificate; empty: none.

    Raises:
        Unauthenticated: The certificate is that of another role.
    """
    is_process = principal.kind is PrincipalKind.PROCESS and principal.name in ROLES
    if is_process and role not in {"", principal.name}:
        raise Unauthenticated(
            f"the token is that of the process {principal.name}, and the certificate of the client"
            f" that of the {role}: use the certificate of the {principal.name}"
        )


class PasswordQueue:
    """Checks passwords on threads, few at a time.

    Args:
        access: The access control.
    """

    def __init__(self, access: AccessControl) -> None:
        self._access = access
        self._running = asyncio.Semaphore(_PASSWORD_CHECKS_MAX)
        self._waiting = 0

    async def principal(self, user: str, password: str, origin: str = "") -> Principal | None:
        """Return the principal of a user; None: the user or the password is wrong.

        Args:
            user: The name of the user.
            password: The password.
            origin: Address of the client, for the audit.

        Raises:
            Unavailable: Too many passwords are being checked.
        """
        known = self._access.authenticator.password_is_known(user, password)
        if known is not None:
            return known
        if self._waiting >= _PASSWORD_CHECKS_WAITING_MAX:
            raise Unavailable("too many passwords are being checked: try again, or use a token")
        self._waiting += 1
        try:
            async with self._running:
                check = partial(
                    self._access.authenticator.of_password, user, password, origin=origin
                )
                return await run_on_thread(check)
        finally:
            self._waiting -= 1


class KeyWaits:
    """Checks tokens of OpenID Connect whose keys must be read first; a few wait, for seconds.

    Args:
        access: The access control.
    """

    def __init__(self, access: AccessControl) -> None:
        self._access = access
        self._waiting = 0

    async def principal(self, bearer: bytes, origin: str = "") -> Principal | None:
        """Return the principal of a bearer token; None: it is unknown.

        Args:
            bearer: The token.
            origin: Address of the client, for the audit.

        Raises:
            Unauthenticated: The token is not valid.
            Unavailable: Its keys cannot be read, or too many requests wait for keys.
        """
        reading = self._access.oidc.keys_awaited(bearer)
        if reading is not None:
            if self._waiting >= _KEY_WAITS_MAX:
                raise Unavailable("too many requests wait for the keys of an issuer: try again")
            self._waiting += 1
            try:
                await asyncio.wait([asyncio.wrap_future(reading)], timeout=KEY_WAIT_S)
            finally:
                self._waiting -= 1
        return self._access.authenticator.of_bearer(bearer, origin=origin)
