"""Host and Origin checks: the names of a server, and the pages that may change something.

Owns the rules, without I/O. A page of another site can make a browser send requests to a loopback
port. It can also assign the address of that port to its own name (DNS rebinding); then the browser
treats the answers as the page's own. The browser sends the page's name in `Host` in the second
case, and its site in `Origin` in both.

| request | answer |
|---|---|
| no `Host`, more than one, one that is malformed or differs from an absolute target | 400 |
| a `Host` that is not allowed | 403 |
| not GET, HEAD or OPTIONS, with an `Origin` other than the server's own, or `null` | 403 |
| the same with `Sec-Fetch-Site: cross-site` or `same-site` | 403 |

A session of a browser (`penstock.core.access.browser_logins`) counts only in requests of the
server's own pages: see `comes_from_own_page`.

A health check in HTTP/1.0 may lack `Host`, because some load balancers send it so.
"""

from __future__ import annotations

import functools
import re
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# They change nothing, and a browser does not show the answer to a page of another site.
SAFE_METHODS: Final = frozenset({b"GET", b"HEAD", b"OPTIONS"})
HEALTH_PATHS: Final = frozenset({b"/ping", b"/status/health", b"/status/ready"})
EVERY_INTERFACE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound

_AUTHORITY_BYTES_MAX: Final = 300
_AUTHORITY: Final = re.compile(
    rb"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{0,5}))?"
)
_ABSOLUTE: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://(?P<authority>[^/?#]*)")
_ORIGIN: Final = re.compile(rb"(?P<scheme>https?)://(?P<authority>[^/?#]*)", re.IGNORECASE)
_DEFAULT_PORTS: Final = {b"http": 80, b"https": 443}
_PORT_MAX: Final = 65_535
_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_OWN_SITE: Final = frozenset({b"same-origin", b"none"})


@dataclass(frozen=True, slots=True)
class HttpRefusal:
    """Why a request is not served.

    Attributes:
        status: HTTP status.
        code: Short name of the error.
        reason: Label of the metric that counts it.
        detail: The problem, its reason and the remedy.
    """

    status: int
    code: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class HostAndPort:
    """A host, normalized, and its port; None: the default port of the scheme.

    The two flags are stored, because parsing an address takes microseconds.
    """

    host: str
    port: int | None
    is_address: bool
    is_loopback: bool


def normalized_host(text: str) -> str:
    """Return a host name in lower case without the final dot, or an address in its usual form.

    Raises:
        InvalidRequest: It is neither a host name nor an address.
    """
    name = text.strip("[]") if text.startswith("[") and text.endswith("]") else text
    try:
        return str(_unmapped(ip_address(name)))
    except ValueError:
        pass
    try:
        name = name.lower().removesuffix(".")
        name = name if name.isascii() else name.encode("idna").decode()
        is_name = bool(_NAME.fullmatch(name))
    except UnicodeError:
        is_name = False
    if not is_name:
        raise InvalidRequest(
            f"{text!r} is not a host: write a name or an IP address, without scheme and port"
        )
    return name


@functools.lru_cache(maxsize=512)
def parse_authority(value: bytes) -> HostAndPort | None:
    """Return the host and port of a `Host` header, or None if it is malformed."""
    found = _AUTHORITY.fullmatch(value) if len(value) <= _AUTHORITY_BYTES_MAX else None
    if found is None:
        return None
    port = int(found["port"]) if found["port"] else None
    if port is not None and port > _PORT_MAX:
        return None
    ipv6: bytes | None = found["ipv6"]
    try:
        if ipv6 is not None:
            host = str(_unmapped(IPv6Address(ipv6.decode())))
        else:
            host = normalized_host(found["name"].decode())
    except (ValueError, InvalidRequest):
        return None
    try:
        address = ip_address(host)
    except ValueError:
        return HostAndPort(host, port, is_address=False, is_loopback=host == "localhost")
    return HostAndPort(host, port, is_address=True, is_loopback=address.is_loopback)


class HostPolicy:
    """The checks of one port.

    Args:
        names: Hosts that the port accepts, in addition to loopback names and the local address of
            each connection; `*.example.com` matches every name with that ending.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        given = set(names)
        self._suffixes = tuple(
            "." + normalized_host(name.removeprefix("*."))
            for name in sorted(given)
            if name.startswith("*.")
        )
        self._names = {normalized_host(name) for name in given if not name.startswith("*.")}

    @classmethod
    def of_addresses(cls, bound: Iterable[str], allowed: Iterable[str]) -> HostPolicy:
        """Return the policy of a port from its configuration.

        Args:
            bound: Hosts of addresses in the options. An address of every interface is replaced by
                the name of this machine, which clients use.
            allowed: Further hosts.
        """
        names = {socket.gethostname() if host in EVERY_INTERFACE else host for host in bound}
        return cls({*names, *allowed})

    def refusal(
        self,
        method: bytes,
        target: bytes,
        version: str,
        headers: Sequence[tuple[bytes, bytes]],
        local_host: str,
    ) -> HttpRefusal | None:
        """Return why a request is refused, or None.

        Args:
            method: Its method.
            target: Its target as received.
            version: The version of HTTP, such as `1.1`.
            headers: Its headers; names in lower case.
            local_host: The address of this machine that the client connected to.
        """
        hosts = [value for name, value in headers if name == b"host"]
        if not hosts and version == "1.0" and _is_health_check(method, target):
            return None
        if len(hosts) != 1:
            text = "has no Host header" if not hosts else "has more than one Host header"
            return _malformed(f"the request {text}: send exactly one")
        authority = parse_authority(hosts[0])
        if authority is None:
            return _malformed(f"Host: {_shown(hosts[0])} is malformed: send HOST or HOST:PORT")
        absolute = _ABSOLUTE.match(target)
        if absolute is not None and parse_authority(absolute["authority"]) != authority:
            return _malformed("the host of the request's target differs from its Host header")
        if not self._is_allowed(authority, local_host):
            return HttpRefusal(
                403,
                "HOST_NOT_ALLOWED",
                "host",
                f"this server does not answer to the host {_shown(hosts[0])}, because a web page"
                " could have given its own name this address: use an address of this server, or"
                f" add the host to --allowed-hosts {authority.host}",
            )
        if method in SAFE_METHODS:
            return None
        return _foreign(headers, authority)

    def _is_allowed(self, named: HostAndPort, local_host: str) -> bool:
        host = named.host
        if named.is_loopback or host in self._names or host.endswith(self._suffixes):
            return True
        # The client sent the address that it connected to, so no DNS name is involved.
        return named.is_address and host == _plain_address(local_host)


def comes_from_own_page(method: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Return whether a request with a cookie comes from a page of this server, or from its user.

    SameSite, an attribute of cookies, is not enough, because pages of other ports of this host
    are of the same site. So a request that changes something, or opens a WebSocket, must prove its
    origin; and a request of a page that the browser names as another one counts for nothing.

    Args:
        method: Its method.
        headers: Its headers; names in lower case. `HostPolicy` has accepted its `Host`.
    """
    host = next((value for name, value in headers if name == b"host"), b"")
    own = parse_authority(host)
    if own is None or _foreign(headers, own) is not None:
        return False
    if method in SAFE_METHODS and all(name != b"upgrade" for name, _ in headers):
        return True  # browsers that send no Sec-Fetch-Site do not show the answer to another page
    return any(name in {b"origin", b"sec-fetch-site"} for name, _ in headers)


def _foreign(headers: Sequence[tuple[bytes, bytes]], own: HostAndPort) -> HttpRefusal | None:
    """Return a refusal if the browser's headers show that a page of another site sent it."""
    origins = [value for name, value in headers if name == b"origin"]
    for origin in origins:
        if len(origins) > 1 or not _is_own_origin(origin, own):
            text = f"pages of {_shown(origin)} may not change anything here"
            break
    else:
        # Also with an Origin of the own host and port: behind a proxy with TLS, a page of the same
        # host without TLS has such a one, and the browser knows that it is another origin.
        sites = [value.lower() for name, value in headers if name == b"sec-fetch-site"]
        if all(site in _OWN_SITE for site in sites):
            return None
        text = "pages of other sites may not change anything here"
    detail = f"{text}, because a browser sends their requests without asking: use a program, or"
    return HttpRefusal(403, "ORIGIN_NOT_ALLOWED", "origin", f"{detail} a page of this server")


def _is_own_origin(origin: bytes, own: HostAndPort) -> bool:
    found = _ORIGIN.fullmatch(origin)
    authority = None if found is None else parse_authority(found["authority"])
    if found is None or authority is None or authority.host != own.host:
        return False
    default = _DEFAULT_PORTS[found["scheme"].lower()]
    # A Host without a port may come through a proxy that uses TLS to the browser.
    return (authority.port or default) == (own.port or default)


def _is_health_check(method: bytes, target: bytes) -> bool:
    return method in {b"GET", b"HEAD"} and target in HEALTH_PATHS


def _malformed(detail: str) -> HttpRefusal:
    return HttpRefusal(400, "INVALID_HOST", "host", detail)


def _shown(value: bytes) -> str:
    text = value[:100].decode("ascii", errors="replace")
    return "".join(c if c.isprintable() and c.isascii() else "?" for c in text) or "(empty)"


@functools.lru_cache(maxsize=64)
def _plain_address(host: str) -> str:
    try:
        return str(_unmapped(ip_address(host)))
    except ValueError:
        return host


def _unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
