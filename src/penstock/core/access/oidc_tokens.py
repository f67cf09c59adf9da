"""Tokens of OpenID Connect: JSON Web Tokens (RFC 7519) as bearer tokens, and their principals.

Owns the form of a token, the checks of its header and claims, and the principal that follows from
them. Pure. The caller checks the signature before it uses a principal.

The rules are those of RFC 8725 (best practices for JWT), and stricter in some points:

| part | rule |
|---|---|
| form | three parts in canonical base64url, at most 8,000 bytes, each name of JSON once |
| `alg` | one of `json_web_keys.ALGORITHMS` |
| `typ` | absent, `JWT` or `at+jwt`; so tokens for other purposes do not count |
| `jwk`, `jku`, `x5c`, `x5u`, `crit`, `b64`, `zip` | refused: keys come from the issuer alone |
| `iss` | exactly the URL of a configured issuer |
| `aud` | is or has the configured audience |
| `exp` | required; `nbf` and `iat` are checked if present; 30 s of difference between clocks |
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard

from penstock.core.access.json_web_keys import (
    ALGORITHMS,
    KEY_ID_CHARACTERS_MAX,
    base64url,
    strict_json,
)
from penstock.core.access.oidc_issuer import OidcIssuer
from penstock.core.access.principal import NAME_CHARACTERS_MAX, Principal, PrincipalKind
from penstock.core.errors import Unauthenticated
from penstock.core.names import normalised
from penstock.core.printable import quoted

TOKEN_BYTES_MAX: Final = 8_000
"""Maximum length of a token. Many servers and proxies refuse longer headers."""
LEEWAY_MS: Final = 30_000
"""Difference that the clocks of an issuer and of this host may have, in milliseconds."""
GROUPS_MAX: Final = 1_000

_FORM: Final = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_TYPES: Final = frozenset({"jwt", "at+jwt"})
_REFUSED_FIELDS: Final = ("jwk", "jku", "x5c", "x5u", "crit", "b64", "zip")
# A NumericDate after the year 9999 is a mistake.
_SECONDS_MAX: Final = 253_402_300_800
_TIMES: Final = ("exp", "nbf", "iat")


class TokenRefused(Unauthenticated):
    """A token of OpenID Connect is not valid; the message has the reason, but no part of it."""


@dataclass(frozen=True, slots=True)
class UnverifiedToken:
    """A token whose signature has not been checked.

    Attributes:
        algorithm: The algorithm that it names.
        kid: Id of its key; empty if it names none.
        claims: Its claims.
        signed: The signed bytes.
        signature: The signature.
    """

    algorithm: str
    kid: str
    claims: Mapping[str, object]
    signed: bytes
    signature: bytes


def has_token_form(bearer: bytes) -> bool:
    """Return whether a bearer token is meant as a JSON Web Token; no other token has two dots."""
    return len(bearer) <= TOKEN_BYTES_MAX and _FORM.fullmatch(bearer) is not None


def parse_token(bearer: bytes) -> UnverifiedToken:
    """Return the parts of a token.

    Raises:
        TokenRefused: It is malformed, or its header is not allowed.
    """
    if not has_token_form(bearer):
        raise TokenRefused("the token is not a JSON Web Token of up to 8,000 bytes")
    signed, _, signature = bearer.rpartition(b".")
    head, _, body = signed.partition(b".")
    header = _json_object(head, "header")
    claims = _json_object(body, "claims")
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise TokenRefused(
            f"the algorithm of the token is not allowed: use one of {', '.join(sorted(ALGORITHMS))}"
        )
    for name in _REFUSED_FIELDS:
        if name in header:
            raise TokenRefused(f"the header of the token has {name!r}, which is not allowed")
    kind = header.get("typ", "JWT")
    if not isinstance(kind, str) or kind.lower().removeprefix("application/") not in _TYPES:
        raise TokenRefused("the token is for another purpose: its type is neither JWT nor at+jwt")
    kid = header.get("kid", "")
    if not isinstance(kid, str) or len(kid) > KEY_ID_CHARACTERS_MAX:
        raise TokenRefused("the id of the token's key is not a text, or it is too long")
    try:
        return UnverifiedToken(algorithm, kid, claims, signed, base64url(signature.decode("ascii")))
    except ValueError:  # narrow: translates
        raise TokenRefused("the signature of the token is not base64url") from None


def issuer_of(token: UnverifiedToken, issuers: Sequence[OidcIssuer]) -> OidcIssuer:
    """Return the issuer that a token names.

    Raises:
        TokenRefused: It is not configured.
    """
    named = token.claims.get("iss")
    for one in issuers:
        if named == one.url:
            return one
    raise TokenRefused("the issuer of the token is not one of access.toml")


def check_claims(token: UnverifiedToken, issuer: OidcIssuer, now_ms: int) -> None:
    """Return if the claims of a token allow its use now, with this installation.

    Raises:
        TokenRefused: They do not.
    """
    claims = token.claims
    audience = claims.get("aud")
    if audience != issuer.audience and not (
        _is_list_of_texts(audience) and issuer.audience in audience
    ):
        raise TokenRefused("the token is for another audience")
    times = {name: _time_ms(claims[name], name) for name in _TIMES if name in claims}
    if "exp" not in times:
        raise TokenRefused("the token has no time at which it expires")
    if now_ms >= times["exp"] + LEEWAY_MS:
        raise TokenRefused("the token has expired")
    if now_ms < times.get("nbf", 0) - LEEWAY_MS:
        raise TokenRefused("the token is not valid yet")
    if now_ms < times.get("iat", 0) - LEEWAY_MS:
        raise TokenRefused("the token was issued in the future: compare the clocks of both hosts")


def principal_of(token: UnverifiedToken, issuer: OidcIssuer, credential: str) -> Principal:
    """Return the principal of a token whose claims were checked.

    Args:
        token: The token.
        issuer: Its issuer.
        credential: The fingerprint of its key and issuer.

    Raises:
        TokenRefused: The claim with the name or the one with the groups is not usable.
    """
    claims = token.claims
    name = claims.get(issuer.claim)
    if not isinstance(name, str) or not name:
        raise TokenRefused(f"the claim {quoted(issuer.claim)} of the token is not a text")
    # Another spelling of the same name would be the same principal, but perhaps of another user.
    if not name.isprintable() or name != normalised(name) or name != name.strip():
        raise TokenRefused(
            f"the claim {quoted(issuer.claim)} has control characters, outer spaces, or a form of"
            " Unicode other than NFC"
        )
    name = issuer.prefix + name
    if len(name) > NAME_CHARACTERS_MAX:
        raise TokenRefused(
            f"the name of the principal has more than {NAME_CHARACTERS_MAX} characters"
        )
    if issuer.claim == "email" and claims.get("email_verified") is not True:
        raise TokenRefused("the issuer has not verified the email address ('email_verified')")
    expires_ms = _time_ms(claims["exp"], "exp") + LEEWAY_MS
    return Principal(
        PrincipalKind.OIDC,
        name,
        _roles(claims, issuer),
        expires_ms=expires_ms,
        credential=credential,
    )


def _roles(claims: Mapping[str, object], issuer: OidcIssuer) -> tuple[str, ...]:
    """Return the roles of a token's groups.

    Raises:
        TokenRefused: The groups are not a list of texts. A role that denies may depend on them.
    """
    name = issuer.groups_claim
    if not name:
        return ()
    # OpenID Connect Core 1.0, section 5.6.2: the claim is elsewhere, for example because a user
    # has too many groups.
    elsewhere = claims.get("_claim_names", {})
    if not isinstance(elsewhere, dict) or name in elsewhere:
        raise TokenRefused(f"the claim {quoted(name)} is not in the token itself")
    groups = claims.get(name, [])
    if not _is_list_of_texts(groups) or len(groups) > GROUPS_MAX:
        raise TokenRefused(f"the claim {quoted(name)} is not a list of up to {GROUPS_MAX:,} texts")
    own = set(groups)
    return tuple(
        dict.fromkeys(role for group, roles in issuer.groups if group in own for role in roles)
    )


def _json_object(part: bytes, what: str) -> dict[str, object]:
    try:
        found = strict_json(base64url(part.decode("ascii")))
    except ValueError:  # narrow: translates
        found = None
    if not isinstance(found, dict):
        raise TokenRefused(
            f"the {what} of the token are not base64url of a JSON object with each name once"
        )
    return found


def _time_ms(value: object, name: str) -> int:
    is_number = not isinstance(value, bool)
    if is_number and isinstance(value, int | float) and 0 <= value <= _SECONDS_MAX:
        return int(value * 1_000)
    raise TokenRefused(f"the claim '{name}' of the token is not a time in seconds")


def _is_list_of_texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
