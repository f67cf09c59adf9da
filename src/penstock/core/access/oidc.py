"""OpenID Connect as an authenticator: the principal of a token of a configured issuer.

Owns the order of the checks, what is remembered about tokens that were checked, and the answer
while the keys of an issuer are not known. `oidc_tokens` has the rules for a token, `oidc_keys` the
keys.

Invariant: a principal is valid as long as its token is, the issuer has the same configuration, and
the key of its signature is one of the issuer's. So the removal of a key or of an issuer also ends
the rights of open connections.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Final

from penstock.core.access.bearer_tokens import token_digest
from penstock.core.access.json_web_keys import VerificationKey
from penstock.core.access.oidc_fetch import fetch_keys
from penstock.core.access.oidc_issuer import OidcIssuer
from penstock.core.access.oidc_keys import PAUSE_S, FetchKeys, OidcKeys
from penstock.core.access.oidc_tokens import (
    TokenRefused,
    UnverifiedToken,
    check_claims,
    has_token_form,
    issuer_of,
    parse_token,
    principal_of,
)
from penstock.core.access.principal import Principal
from penstock.core.clock import Clock
from penstock.core.errors import Unavailable

_REMEMBERED_MAX: Final = 10_000


class OidcAuthenticator:
    """Checks tokens of the configured issuers. Any thread; only `configure` and `close` are slow.

    The mutex guards the generation: two threads may change issuers and keys at once.

    Args:
        clock: Time.
        fetch: Reads the keys of an issuer.
    """

    def __init__(self, clock: Clock, fetch: FetchKeys = fetch_keys) -> None:
        self._clock = clock
        self._issuers: tuple[OidcIssuer, ...] = ()
        self._keys = OidcKeys(clock, self._forget, fetch)
        # Each change of a dictionary is atomic, so threads share it.
        self._remembered: dict[bytes, Principal] = {}
        self._by_digest: dict[str, OidcIssuer] = {}
        self._mutex = threading.Lock()
        self.generation = 0

    def configure(self, issuers: Iterable[OidcIssuer]) -> None:
        """Replace the issuers. Not on an event loop."""
        found = tuple(issuers)
        if found != self._issuers:
            self._keys.configure(found)
            self._by_digest = {one.digest: one for one in found}
            self._issuers = found
            self._forget()

    def start(self) -> None:
        """Start to read keys."""
        self._keys.start()

    def close(self) -> None:
        """Stop reading keys."""
        self._keys.close()

    def accepts(self, bearer: bytes) -> bool:
        """Return whether a bearer token is to be checked here."""
        return bool(self._issuers) and has_token_form(bearer)

    def keys_awaited(self, bearer: bytes) -> Future[None] | None:
        """Return a future that completes when keys have been read that a token needs.

        None: `principal` can answer now. Fast; the future is for all who wait.
        """
        if not self.accepts(bearer) or self.remembered(bearer) is not None:
            return None
        try:
            token = parse_token(bearer)
            issuer = issuer_of(token, self._issuers)
            check_claims(token, issuer, self._clock.now_ms())
        except TokenRefused:  # narrow: `principal` raises it again
            return None
        if self._candidates(token, issuer):
            return None
        return self._keys.request(issuer)

    def remembered(self, bearer: bytes) -> Principal | None:
        """Return the principal of a token that was checked before and is still valid."""
        known = self._remembered.get(token_digest(bearer))
        return None if known is None or self.has_ended(known) else known

    def has_ended(self, principal: Principal) -> bool:
        """Return whether the token of a principal has expired, or its key no longer counts."""
        assert principal.expires_ms is not None
        is_over = self._clock.now_ms() >= principal.expires_ms
        return is_over or not self.is_valid(principal.credential)

    def principal(self, bearer: bytes) -> Principal:
        """Return the principal of a token after all checks. It does not wait.

        Raises:
            TokenRefused: The token is not valid.
            Unavailable: The keys of its issuer are not known.
        """
        generation = self.generation
        token = parse_token(bearer)
        issuer = issuer_of(token, self._issuers)
        check_claims(token, issuer, self._clock.now_ms())
        candidates = self._candidates(token, issuer)
        if not candidates:
            raise self._without_key(token, issuer)
        for key in candidates:
            if key.verifies(token.algorithm, token.signed, token.signature):
                principal = principal_of(token, issuer, _fingerprint(issuer, key))
                self._remember(bearer, principal, generation)
                return principal
        raise TokenRefused("the signature of the token is not valid")

    def is_valid(self, fingerprint: str) -> bool:
        """Return whether the key and the issuer of a principal still count."""
        digest, _, thumbprint = fingerprint.partition(".")
        issuer = self._by_digest.get(digest)
        return issuer is not None and self._keys.has(issuer, thumbprint)

    def _candidates(self, token: UnverifiedToken, issuer: OidcIssuer) -> list[VerificationKey]:
        """Return the keys that may have signed a token: by its key id, if it has one."""
        keys = [one for one in self._keys.usable(issuer) if token.algorithm in one.algorithms]
        if token.kid:
            return [one for one in keys if one.kid == token.kid]
        return keys if len(keys) == 1 else []

    def _without_key(self, token: UnverifiedToken, issuer: OidcIssuer) -> Exception:
        keys = self._keys
        problem = keys.problem(issuer)
        if not keys.usable(issuer) or problem or keys.is_reading(issuer):
            # The problem itself may have addresses, which are for the log.
            reason = "its issuer does not answer" if problem else "they are being read"
            return Unavailable(
                f"the keys that check the token are not known, because {reason}: try again in"
                f" {PAUSE_S:.0f} s"
            )
        if not token.kid:
            return TokenRefused("the token names no key, and its issuer has several")
        return TokenRefused("the issuer of the token has no such key for its algorithm")

    def _remember(self, bearer: bytes, principal: Principal, generation: int) -> None:
        if len(self._remembered) >= _REMEMBERED_MAX:
            self._remembered.clear()
        if generation == self.generation:
            self._remembered[token_digest(bearer)] = principal

    def _forget(self) -> None:
        """Forget tokens after a change of issuers or keys."""
        with self._mutex:
            self.generation += 1
            self._remembered.clear()


def _fingerprint(issuer: OidcIssuer, key: VerificationKey) -> str:
    return f"{issuer.digest}.{key.thumbprint}"
