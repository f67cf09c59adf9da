"""TLS of this process as a client: which servers it trusts, and which addresses need TLS.

Owns `TRUST`, the setting of the process, and the contexts that its clients use. Entry points set
it once from their options; without that, a process trusts the authorities of its machine. Contexts
of servers are in `penstock.broker.security.tls`.

The scheme follows from the address: loopback needs no TLS, because no other host and no other user
of this host can read it; every other address does, unless the installation has none. So an
attacker who changes messages on the network cannot make a client do without TLS.

A certificate of the installation's authority may name a role, by the URI `penstock://ROLE`. A
client that calls another process knows its role, and refuses a certificate that names another one.
So a key that was taken from one role's process acts as no other role. Certificates of other
authorities name no role, and their host name is all that is checked.
"""

from __future__ import annotations

import functools
import socket
import ssl
import threading
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable

ROLES: Final = ("broker", "flow", "overlord", "peon", "router", "worker")
"""Roles that have certificates of their own."""

_ROLE_URI: Final = "penstock://"

TLS_CA: Final = "tls-ca"
"""Option with the authorities, the place of errors."""


@functools.lru_cache(maxsize=512)
def is_loopback(host: str) -> bool:
    """Return whether a host, as text, is a loopback address or `localhost`; no name is looked up.

    `localhost` always is one, by RFC 6761, section 6.3.
    """
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return host.lower().removesuffix(".") == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def is_reachable(host: str) -> bool:
    """Return whether other hosts can reach a port at this address; names are looked up."""
    if is_loopback(host):
        return False
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:  # opening the port reports it
        return True
    return not all(is_loopback(str(one[4][0])) for one in found)


def client_context(
    authorities: str | None = None, certificate: str | None = None, *, more: str | None = None
) -> ssl.SSLContext:
    """Return a context that verifies the certificate and the host name of servers.

    Args:
        authorities: File of the only trusted authorities, PEM; None: those of this machine.
        certificate: File of a certificate with its key, PEM, for servers that ask for one.
        more: File of authorities that are trusted besides these.

    Raises:
        InvalidRequest: A file cannot be read, or has the wrong contents.
    """
    try:
        context = ssl.create_default_context(cafile=authorities)
        if more is not None:
            context.load_verify_locations(more)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(
            f"{authorities or more} cannot be used ({error}): it must contain the certificates of"
            " authorities, in PEM",
            place=TLS_CA,
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, password="")
        except (OSError, ssl.SSLError) as error:
            raise InvalidRequest(
                f"{certificate} cannot be used ({error}): it must contain a certificate and its"
                " key, in PEM",
                place="tls-cert",
            ) from None
    return context


def role_uri(role: str) -> str:
    """Return the URI by which a certificate names a role."""
    return _ROLE_URI + role


def role_in(connection: ssl.SSLSocket | ssl.SSLObject) -> str:
    """Return the role that the verified certificate of the other end names; empty: none.

    A certificate with several roles, which the authority does not issue, names none of `ROLES`.
    """
    names = (connection.getpeercert() or {}).get("subjectAltName", ())
    assert isinstance(names, tuple)
    return ",".join(
        str(value).removeprefix(_ROLE_URI)
        for kind, value in names
        if kind == "URI" and str(value).startswith(_ROLE_URI)
    )


class WrongRole(ssl.SSLCertVerificationError):
    """The server has a certificate of another role of the installation."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(1, f"it is the certificate of the {found}, not of the {expected}")
        self.verify_code = 0
        self.verify_message = f"it is the certificate of the {found}, not of the {expected}"


def _of_role(context: ssl.SSLContext, role: str) -> ssl.SSLContext:
    """Let a new context refuse servers whose certificate names another role."""

    def check(connection: ssl.SSLSocket | ssl.SSLObject) -> None:
        found = role_in(connection)
        if found not in {"", role}:
            raise WrongRole(role, found)

    class RoleSocket(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            check(self)

    class RoleObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            check(self)

    context.sslsocket_class = RoleSocket
    context.sslobject_class = RoleObject
    return context


@dataclass(frozen=True, slots=True)
class TrustSettings:
    """TLS of a process as a client.

    Attributes:
        authorities: File of the authorities that sign the certificates of Penstock's servers, PEM;
            None: those of this machine.
        certificate: File of this process's own certificate with its key, PEM, if it has one.
        uses_tls: Whether addresses of other hosts are reached under TLS.
    """

    authorities: str | None = None
    certificate: str | None = None
    uses_tls: bool = True


class TlsTrust:
    """The settings of a process, and its contexts, which follow changes of the files. Any thread.

    The mutex guards the contexts, which any thread may build.

    Args:
        settings: The settings at first.
    """

    def __init__(self, settings: TrustSettings | None = None) -> None:
        self._mutex = threading.Lock()
        self._settings = settings or TrustSettings()
        self._contexts: dict[str, tuple[object, ssl.SSLContext]] = {}

    @property
    def settings(self) -> TrustSettings:
        """The settings."""
        return self._settings

    def set(self, settings: TrustSettings) -> None:
        """Set the settings of this process."""
        with self._mutex:
            self._settings = settings
            self._contexts.clear()

    def scheme(self, host: str) -> str:
        """Return the scheme, `http` or `https`, of a Penstock port at a host."""
        return "https" if self._settings.uses_tls and not is_loopback(host) else "http"

    def context(self, role: str = "") -> ssl.SSLContext:
        """Return the context for servers of Penstock. It may read files.

        Args:
            role: Role of the server, which its certificate must not contradict; empty: any.

        Raises:
            InvalidRequest: As `client_context`.
        """
        settings = self._settings

        def make() -> ssl.SSLContext:
            made = client_context(settings.authorities, settings.certificate)
            return _of_role(made, role) if role else made

        return self._current(f"own {role}", settings, make)

    def context_of_others(self) -> ssl.SSLContext:
        """Return the context for other servers: it trusts the authorities of this machine, too."""
        settings = self._settings
        return self._current("others", settings, lambda: client_context(more=settings.authorities))

    def _current(
        self, name: str, settings: TrustSettings, make: Callable[[], ssl.SSLContext]
    ) -> ssl.SSLContext:
        files = (settings.authorities, settings.certificate)
        state = (files, tuple(_state(one) for one in files))
        with self._mutex:
            known = self._contexts.get(name)
            if known is not None and known[0] == state:
                return known[1]
            context = make()
            self._contexts[name] = state, context
            return context

    def remedy(self, error: ssl.SSLCertVerificationError) -> str:
        """Return what is wrong with the certificate of a server, and what to do."""
        named = self._settings.authorities
        trusted = "an authority of this machine" if named is None else f"an authority in {named}"
        text = error.verify_message.rstrip(".")
        if isinstance(error, WrongRole):
            return f"is refused: {text}; check the address, and who has this key"
        if error.verify_code in _WRONG_HOST:
            return (
                f"shows a certificate for other hosts ({text}): use a name in the certificate, or"
                " add this one to it (penstock tls renew --host NAME)"
            )
        if error.verify_code == _EXPIRED:
            return f"shows an expired certificate ({text}): renew it (penstock tls renew)"
        return (
            f"shows a certificate that {trusted} did not sign ({text}): name the file of the"
            " authority that signed it with --tls-ca"
        )


# Numbers of OpenSSL, in <openssl/x509_vfy.h>.
_EXPIRED: Final = 10
_WRONG_HOST: Final = frozenset({62, 64})


def _state(path: str | None) -> tuple[int, ...]:
    if path is None:
        return ()
    try:
        found = Path(path).stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


TRUST: Final = TlsTrust()
"""TLS of this process as a client, set by its entry point."""
