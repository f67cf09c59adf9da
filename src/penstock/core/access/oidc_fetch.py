"""Reading the keys of an issuer over HTTP: its discovery document, then its JWK set.

Owns what is requested and the limits: no redirects, no proxies, bounded answers, and one time limit
for both requests together. Slow: only the thread of `oidc_keys` calls it.

The operator names the issuer, so its own host may be anywhere. The discovery document names the
host of the keys, so this one must not be this host, link-local or a cloud's metadata service.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Sequence
from contextlib import closing
from typing import Final
from urllib.parse import SplitResult

from penstock.core.access.json_web_keys import VerificationKey, parse_key_set, strict_json
from penstock.core.access.oidc_issuer import OidcIssuer, split_url
from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import InvalidRequest, Unavailable
from penstock.core.guarded_connections import (
    RefusedDestination,
    ServiceNetworkGuard,
    system_addresses,
)
from penstock.core.network_guard import NetworkDestination
from penstock.core.printable import quoted
from penstock.core.timed_answers import TimedSocket
from penstock.core.tls_trust import TRUST, client_context, is_loopback

FETCH_S: Final = 8.0
"""Time limit for both requests together, in seconds; the resolution of names has its own."""
ANSWER_BYTES_MAX: Final = 256 << 10
"""Maximum size of each answer; 100 keys with certificates take about this."""

_PORTS: Final = {"https": 443, "http": 80}
# The operator's list for inputs and flows does not apply: it may lack every host but a few.
_GUARD: Final = ServiceNetworkGuard()


def fetch_keys(issuer: OidcIssuer) -> tuple[VerificationKey, ...]:
    """Return the current keys of an issuer.

    Raises:
        Unavailable: The issuer does not answer in time, or with something else.
        InvalidRequest: Its answers are not valid, or it names a URL that is not allowed.
    """
    clock = SystemClock()
    until_s = clock.monotonic_s() + FETCH_S
    context = client_context(issuer.ca) if issuer.ca else TRUST.context_of_others()
    own = split_url(issuer.discovery_url, place=issuer.discovery_url)
    document = _get(own, own, context, until_s, clock)
    keys_url = _keys_url(document, issuer)
    content = _get(split_url(keys_url, place=issuer.discovery_url), own, context, until_s, clock)
    return parse_key_set(content, place=keys_url)


def _keys_url(content: bytes, issuer: OidcIssuer) -> str:
    place = issuer.discovery_url
    try:
        document = strict_json(content)
    except ValueError as error:
        raise InvalidRequest(f"it is not valid JSON: {error}", place=place) from None
    if not isinstance(document, dict) or document.get("issuer") != issuer.url:
        named = document.get("issuer") if isinstance(document, dict) else None
        raise InvalidRequest(
            f"it is the document of the issuer {quoted(str(named))}, not of {quoted(issuer.url)}:"
            " write 'issuer' in access.toml exactly as the issuer does",
            place=place,
        )
    url = document.get("jwks_uri")
    if not isinstance(url, str):
        raise InvalidRequest("it has no 'jwks_uri', where the keys are", place=place)
    parts = split_url(url, place=place)
    may_be_plain = issuer.url.startswith("http:") and is_loopback(parts.hostname or "")
    if parts.scheme == "http" and not may_be_plain:
        raise InvalidRequest(
            f"the keys are at {quoted(url)}, which is not encrypted: use https", place=place
        )
    return url


def _get(
    url: SplitResult, own: SplitResult, context: ssl.SSLContext, until_s: float, clock: Clock
) -> bytes:
    """Return the body of a URL.

    Args:
        url: The URL.
        own: URL of the issuer, whose host the operator named.
        context: For TLS.
        until_s: The end of the time limit.
        clock: Time.
    """
    shown = url.geturl()
    try:
        with closing(_connected(url, own, context, until_s, clock)) as connected:
            return _answer(url, connected, until_s, clock)
    except RefusedDestination:  # narrow: translates
        raise InvalidRequest(
            f"the issuer names {quoted(shown)} for its keys, which is this host, a link-local"
            " address or the metadata service of a cloud: correct the issuer",
            place=own.geturl(),
        ) from None
    except ssl.SSLCertVerificationError as error:
        raise Unavailable(
            f"{shown}: the certificate is not valid ({error.verify_message}): name the file of the"
            " authority as 'ca' in access.toml"
        ) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unavailable(f"{shown}: {str(error) or type(error).__name__}") from None


def _connected(
    url: SplitResult, own: SplitResult, context: ssl.SSLContext, until_s: float, clock: Clock
) -> socket.socket:
    host = url.hostname or ""
    to = NetworkDestination(url.scheme, host, url.port or _PORTS[url.scheme])
    is_own = host == own.hostname
    addresses = system_addresses(host, to.port) if is_own else _GUARD.addresses(to)
    connected = _connected_to_first(addresses, to.port, until_s, clock)
    if url.scheme == "http":
        return connected
    try:
        return context.wrap_socket(connected, server_hostname=host)
    except BaseException:
        connected.close()
        raise


def _connected_to_first(
    addresses: Sequence[str], port: int, until_s: float, clock: Clock
) -> socket.socket:
    """Return a connection to the first address that accepts; those left share the time left."""
    problem = OSError("its host has no address")
    for number, address in enumerate(addresses):
        left_s = (until_s - clock.monotonic_s()) / (len(addresses) - number)
        try:
            if left_s <= 0:
                raise TimeoutError("no address accepts a connection in time")
            # A numeric host: it is not resolved again.
            return socket.create_connection((address, port), left_s)
        except OSError as error:
            problem = error
    raise problem


def _answer(url: SplitResult, connected: socket.socket, until_s: float, clock: Clock) -> bytes:
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    lines = (f"GET {path} HTTP/1.1", f"Host: {url.netloc}", "Accept: application/json")
    request = "\r\n".join((*lines, "Accept-Encoding: identity", "Connection: close", "", ""))
    timed = TimedSocket(connected, until_s, clock)
    timed.limit()
    connected.sendall(request.encode("ascii"))
    with closing(timed.answer("GET")) as answer:
        if answer.status != 200:
            raise Unavailable(f"{url.geturl()}: it answers {answer.status}, not 200")
        content = answer.read(ANSWER_BYTES_MAX + 1)
    if len(content) > ANSWER_BYTES_MAX:
        raise Unavailable(f"{url.geturl()}: it has more than {ANSWER_BYTES_MAX:,} bytes")
    return content
