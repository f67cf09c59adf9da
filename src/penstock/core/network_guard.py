"""Hosts, ports and addresses that inputs and flows may connect to: the rule.

Owns the decision (`NetworkGuard.refusal`) and the notation of the operator's list. It resolves no
name and opens no connection: `core.guarded_connections` does, for every client that connects on
behalf of a flow, a spec or a statement.

A user who may choose a URL could otherwise use the service as a proxy: to ports on this host that
trust the local user, Penstock's own among them, or to the metadata service of a cloud, which gives
out the credentials of the host.

Invariants: the addresses decide, not only the name, and each address of a name must be allowed.
Addresses of this host, link-local addresses and metadata services of clouds are allowed only if the
list has them as addresses, never by a name or by ``*``. Penstock's own ports on this host are never
allowed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from penstock.core.errors import InvalidRequest
from penstock.core.printable import quoted

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

EVERY_HOST: Final = "*"
"""Entry of the list for all hosts and ports that need no entry of their own."""

_LOCALHOST: Final = "localhost"
_ANY_PORT: Final = "*"
_PORT_MAX: Final = 65_535
_NAME: Final = re.compile(r"(?!.{254})(?!-)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
# A name whose last label is a number is read as an address in older notations, such as 0x7f.1.
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_UNFIT: Final = re.compile(r"[\x00-\x20\x7f\\]")

_LOOPBACK: Final = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
# Services that give the credentials of a host to all its processes. Most are link-local; these are
# not: AWS (IPv6), GCP (IPv6), Alibaba Cloud, Oracle Cloud Classic, Azure's WireServer.
_METADATA: Final = frozenset(
    map(
        ip_address,
        ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "192.0.0.192", "168.63.129.16"),
    )
)
_NAT64: Final = ip_network("64:ff9b::/96")
# "This network" (RFC 1122): Linux connects 0.0.0.0 to this host.
_THIS_NETWORK: Final = ip_network("0.0.0.0/8")
_IPV4_COMPATIBLE: Final = ip_network("::/96")


@dataclass(frozen=True, slots=True)
class NetworkDestination:
    """Where a connection should go.

    Attributes:
        scheme: Scheme of the URL, or the protocol.
        host: Name or address, as the user wrote it.
        port: The port.
    """

    scheme: str
    host: str
    port: int

    @property
    def shown(self) -> str:
        """Its text in messages."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class HostEntry:
    """One entry of the operator's list.

    Attributes:
        text: The entry as the operator wrote it.
        name: Lower-case name, or the end of names that begins with a dot; empty: an address.
        networks: Addresses; empty for a name.
        port: The port; None: any.
        names_port: Whether the entry has a port, ``*`` included.
    """

    text: str
    name: str = ""
    networks: tuple[Network, ...] = ()
    port: int | None = None
    names_port: bool = False

    @classmethod
    def parse(cls, text: str) -> HostEntry:
        """Read ``NAME``, ``*.NAME``, an address or a network, with ``:PORT`` or ``:*`` after it.

        Raises:
            InvalidRequest: The text has another form.
        """
        host, port = _split_port(text)
        number = None if port in {"", _ANY_PORT} else _port(port, text)
        if host == _LOCALHOST:
            networks: tuple[Network, ...] = _LOOPBACK
        elif (network := _network(host)) is not None:
            networks = (network,)
        elif host == EVERY_HOST:
            return cls(text, "", (), number, bool(port))
        else:
            dot = "." if host.startswith("*.") else ""
            name = dot + canonical_host(host.removeprefix("*."))
            return cls(text, name, (), number, bool(port))
        if not port and any(one.overlaps(own) for one in networks for own in _same(one)):
            raise InvalidRequest(
                f"{quoted(text)} names this host without a port, which would open every service on"
                f" it: write the port, such as {host}:9000"
            )
        return cls(text, "", networks, number, bool(port))

    def has_name(self, host: str, port: int) -> bool:
        """Return whether a host is allowed by its name, as far as its addresses are ordinary."""
        if self.networks or self.port not in {None, port}:
            return False
        if not self.name:
            return True
        return host.endswith(self.name) if self.name.startswith(".") else host == self.name

    def has_address(self, address: Address, port: int) -> bool:
        """Return whether an address is in the entry."""
        return self.port in {None, port} and any(
            address.version == one.version and address in one for one in self.networks
        )


@dataclass(frozen=True, slots=True)
class NetworkGuard:
    """Destinations to which inputs and flows may connect. Plain data, sent to other processes.

    Attributes:
        entries: The operator's list.
        own_ports: Ports of this Penstock on this host.
    """

    entries: tuple[HostEntry, ...] = (HostEntry(EVERY_HOST),)
    own_ports: frozenset[int] = frozenset()

    @classmethod
    def of(cls, texts: Iterable[str], own_ports: Iterable[int] = ()) -> NetworkGuard:
        """Return the guard of a list in the notation of `HostEntry.parse`.

        Raises:
            InvalidRequest: An entry is invalid.
        """
        return cls(tuple(map(HostEntry.parse, texts)), frozenset(own_ports))

    def refusal(
        self, to: NetworkDestination, addresses: Sequence[Address], here: Collection[Address]
    ) -> str | None:
        """Return why a connection must not be opened; None if it may.

        Args:
            to: Where it should go.
            addresses: All addresses of the host, as the client would use them.
            here: Those of them that belong to this host, besides loopback.

        Raises:
            InvalidRequest: The host is not a name or an address in the usual notation.
        """
        host = canonical_host(to.host)
        if not addresses:
            return f"{host} has no address"
        is_named = any(one.has_name(host, to.port) for one in self.entries)
        for address in addresses:
            for one in _meanings(address):
                reason = self._refusal(one, to.port, is_named=is_named, is_here=address in here)
                if reason is not None:
                    shown = "" if host == str(address) else f" ({address})"
                    return f"{host}{shown} {reason}"
        return None

    def name_refusal(self, to: NetworkDestination) -> str | None:
        """Return why a host must not be reached, regardless of its addresses.

        Raises:
            InvalidRequest: The host is not a name or an address in the usual notation.
        """
        host = canonical_host(to.host)
        if any(one.has_name(host, to.port) for one in self.entries):
            return None
        return _unlisted(host, to.port)

    def _refusal(self, address: Address, port: int, *, is_named: bool, is_here: bool) -> str | None:
        is_here = is_here or _is_loopback(address)
        found = [one for one in self.entries if one.has_address(address, port)]
        if is_here and port in self.own_ports:
            return f"is this host, and {port} is a port of Penstock itself"
        if _is_nowhere(address):
            return "is not the address of a host"
        if is_here:
            if any(one.names_port for one in found):
                return None
            return (
                "is this host, whose services trust local users: list the address and the port in"
                f" --reachable-hosts, such as localhost:{port}, if flows and tasks may use it"
            )
        if found:
            return None
        if address in _METADATA or address.is_link_local:
            return (
                "is link-local, or a cloud's metadata service, which has credentials: list the"
                " address in --reachable-hosts if flows and tasks may use it"
            )
        if is_named:
            return None
        return _unlisted("", port)


def canonical_host(text: str) -> str:
    """Return a host name in lower case without the final dot, or an address in its usual form.

    Other notations of addresses (decimal, octal, hexadecimal, with fewer parts) are refused,
    because programs read them differently.

    Raises:
        InvalidRequest: It is neither.
    """
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        return str(ip_address(bare))
    except ValueError:
        pass
    try:
        # Nameprep also turns other dots and digits into ASCII ones.
        name = text.encode("idna").decode("ascii").lower().removesuffix(".")
    except UnicodeError:
        name = ""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{quoted(text)} is not the name of a host: correct it")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        try:  # a final dot, or digits of another script
            return str(IPv4Address(name))
        except ValueError:
            raise InvalidRequest(
                f"{quoted(text)} is not an address in the usual form: write four decimal numbers,"
                " such as 192.0.2.1"
            ) from None
    return name


def url_destination(
    url: str, default_port: int | None = None, *, shown: str | None = None
) -> NetworkDestination:
    """Return the destination of a URL that names a host.

    Args:
        url: The URL.
        default_port: Port of the scheme; None: that of HTTP or HTTPS.
        shown: The URL for messages, without secrets; None: only its host is shown.

    Raises:
        InvalidRequest: It has no host, or programs could disagree about which host it names.
    """
    wrong = f"{quoted(shown)} is not a usable URL" if shown else "the URL is not usable"
    authority = url.partition("://")[2].partition("/")[0].partition("?")[0].partition("#")[0]
    if _UNFIT.search(url) or authority.count("@") > 1:
        raise InvalidRequest(
            f"{wrong}: it contains a space, a backslash, a control character, or a second @ before"
            " the path: encode it as %XX"
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise InvalidRequest(f"{wrong}: its port must be a number, and its host a name") from None
    if not host:
        raise InvalidRequest(f"{wrong}: it has no host: add one")
    if port is None:
        port = default_port or (443 if parts.scheme == "https" else 80)
    return NetworkDestination(parts.scheme, host, port)


def _unlisted(host: str, port: int) -> str:
    return (
        f"{host} is not in --reachable-hosts with port {port}: add it there, or use another host"
    ).lstrip()


def _meanings(address: Address) -> Iterator[Address]:
    """Yield an address, and the IPv4 address that it contains: packets may be sent there."""
    if isinstance(address, IPv4Address):
        yield address
        return
    plain = IPv6Address(int(address))  # without its zone
    if plain.ipv4_mapped is not None:
        yield plain.ipv4_mapped
        return
    yield plain
    if plain.sixtofour is not None:
        yield plain.sixtofour
    if plain.teredo is not None:
        yield from plain.teredo
    if plain in _NAT64 or (plain in _IPV4_COMPATIBLE and int(plain) > 1):
        yield IPv4Address(int(plain) & 0xFFFF_FFFF)


def _is_loopback(address: Address) -> bool:
    return any(address.version == one.version and address in one for one in _LOOPBACK)


def _is_nowhere(address: Address) -> bool:
    """Return whether an address is unspecified, multicast, broadcast or reserved."""
    if address.is_unspecified or address.is_multicast:
        return True
    if isinstance(address, IPv4Address):
        return address in _THIS_NETWORK or address.is_reserved
    return False


def _split_port(text: str) -> tuple[str, str]:
    """Return the host and the port of an entry; an empty port: it has none."""
    lowered = text.strip().lower()
    if lowered.startswith("["):
        host, end, rest = lowered[1:].partition("]")
        if not end or (rest and not rest.startswith(":")):
            raise InvalidRequest(f"invalid entry {quoted(text)}: write [ADDRESS]:PORT")
        return host, _given_port(rest[1:], text) if rest else ""
    if lowered.count(":") > 1:  # an IPv6 address without a port
        return lowered, ""
    host, separator, port = lowered.partition(":")
    return host, _given_port(port, text) if separator else ""


def _given_port(port: str, text: str) -> str:
    if not port:
        raise InvalidRequest(f"invalid entry {quoted(text)}: write a port after the colon")
    return port


def _port(port: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= _PORT_MAX:
        raise InvalidRequest(
            f"invalid entry {quoted(text)}: the port must be 1 to {_PORT_MAX}, or *"
        )
    return int(port)


def _network(host: str) -> Network | None:
    try:
        return ip_network(host)
    except ValueError:
        pass
    if "/" in host:
        raise InvalidRequest(
            f"invalid network {quoted(host)}: write its first address and its length, such as"
            " 10.0.0.0/8"
        )
    return None


def _same(network: Network) -> list[Network]:
    """Return the loopback networks of the same version."""
    return [one for one in _LOOPBACK if one.version == network.version]
