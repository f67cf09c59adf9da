"""Issuers of OpenID Connect whose tokens are accepted: the fields of their tables in `access.toml`.

Owns the meaning of a table `[oidc.NAME]` and the rule for its URLs. Pure. `policy_file` reads the
table, `oidc_tokens` checks tokens by it, `oidc_keys` reads the keys of the issuer.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from penstock.core.errors import InvalidRequest
from penstock.core.network_guard import canonical_host
from penstock.core.printable import quoted
from penstock.core.tls_trust import is_loopback

ISSUERS_MAX: Final = 10
"""Maximum number of issuers; one thread reads the keys of all."""
URL_CHARACTERS_MAX: Final = 500
DISCOVERY_PATH: Final = "/.well-known/openid-configuration"
"""OpenID Connect Discovery 1.0, section 4."""
SUBJECT_CLAIM: Final = "sub"


@dataclass(frozen=True, slots=True)
class OidcIssuer:
    """An issuer, and what its tokens mean here.

    Attributes:
        name: Its name in `access.toml`.
        url: The value of the claim `iss`, character by character; its discovery document is below.
        audience: Text that the claim `aud` must have.
        claim: Claim with the name of the principal.
        groups_claim: Claim with a list of groups; empty: groups give no role.
        groups: Groups and the roles that they give.
        ca: File of the only authorities that may sign the issuer's certificate, PEM; empty: those
            of the machine.
        prefix: Text before the name in the id of a principal: `NAME/` if there are several issuers.
    """

    name: str
    url: str
    audience: str
    claim: str = SUBJECT_CLAIM
    groups_claim: str = ""
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    ca: str = ""
    prefix: str = ""

    @property
    def discovery_url(self) -> str:
        """URL of the discovery document."""
        return self.url.rstrip("/") + DISCOVERY_PATH

    @property
    def source(self) -> tuple[str, str]:
        """Its URL and its authorities, which decide where its keys come from."""
        return self.url, self.ca

    @property
    def digest(self) -> str:
        """Text that differs between issuers with different fields."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:32]


def check_issuer_url(url: str, *, place: str) -> str:
    """Return the URL of an issuer if it is acceptable.

    Raises:
        InvalidRequest: It is not: see `split_url`; or it has a query or a fragment (OpenID Connect
            Discovery 1.0, section 3).
    """
    parts = split_url(url, place=place)
    if "?" in url or "#" in url:
        raise InvalidRequest(
            f"{quoted(url)} has a query or a fragment: write the issuer's URL as in the claim 'iss'"
            " of its tokens",
            place=place,
        )
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise InvalidRequest(
            f"{quoted(url)} is not encrypted, so others could replace its keys: use https; http is"
            " allowed on loopback only, for tests",
            place=place,
        )
    return url


def split_url(url: str, *, place: str) -> SplitResult:
    """Return the parts of a URL from which keys may be read.

    Raises:
        InvalidRequest: It is not an HTTP URL in ASCII with a host, it has a user or a password, or
            it is too long.
    """
    reason = ""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # narrow: translates
        raise _not_a_url(url, "its host or port is malformed", place) from None
    if len(url) > URL_CHARACTERS_MAX:
        reason = f"it has more than {URL_CHARACTERS_MAX} characters"
    elif not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        reason = "it has a character that must be encoded as %XX"
    elif parts.scheme not in {"https", "http"} or not parts.hostname:
        reason = "it does not begin with https://HOST"
    elif "@" in parts.netloc:
        reason = "it has a user or a password"
    if reason:
        raise _not_a_url(url, reason, place)
    canonical_host(parts.hostname or "")
    return parts


def _not_a_url(url: str, reason: str, place: str) -> InvalidRequest:
    return InvalidRequest(
        f"{quoted(url)} is not usable: {reason}: write https://HOST/PATH", place=place
    )
