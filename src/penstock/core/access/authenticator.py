"""Credentials: finds the principal of a token, a password or a client certificate.

Owns the order in which kinds of tokens are tried, and whether a credential still counts. The
results of passwords are in `passwords`, the last use of credentials in `last_used`. It does not
know requests (servers take credentials from them) nor rights (`access_control`).
"""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Final

from penstock.core.access.access_state import AccessState
from penstock.core.access.audit import AccessAudit
from penstock.core.access.bearer_tokens import BEARER_BYTES_MAX, stored_token_id, token_digest
from penstock.core.access.installation_key import InstallationKey
from penstock.core.access.last_used import LastUsed
from penstock.core.access.oidc_tokens import TokenRefused
from penstock.core.access.passwords import PasswordChecks
from penstock.core.access.principal import Principal, PrincipalKind, is_login_name
from penstock.core.access.represented import RepresentedPrincipals
from penstock.core.clock import Clock
from penstock.core.errors import Unauthenticated
from penstock.core.names import normalised

_CERTIFICATE_NAME_MAX: Final = 200


class Authenticator:
    """Authenticates for one process. Any thread.

    Only `of_password` and `write_last_used` are slow; everything else may be called on an event
    loop.

    Args:
        state: The stored credentials and the keys of issuers.
        key: Checks the tokens of processes and tasks, and the shared one.
        audit: Records logins.
        clock: For the expiry of credentials.

    Attributes:
        represented: Principals for whom processes act.
    """

    def __init__(
        self,
        state: AccessState,
        key: InstallationKey,
        audit: AccessAudit,
        clock: Clock,
    ) -> None:
        self._state = state
        self._key = key
        self._audit = audit
        self._clock = clock
        self._passwords = PasswordChecks(clock)
        self._last_used = LastUsed(clock)
        self.represented: Final = RepresentedPrincipals(state, key, clock, self.problem_of)

    def of_bearer(self, bearer: bytes, *, origin: str = "") -> Principal | None:
        """Return the principal of a bearer token; None: it is unknown or has expired.

        Args:
            bearer: The text of the token.
            origin: Address of the client, for the audit.

        Raises:
            Unauthenticated: It is a token of OpenID Connect that is not valid, or one of a process
                or task that does not count now; with the reason.
            Unavailable: It is one whose key is not known; see `OidcAuthenticator.keys_awaited`.
        """
        if len(bearer) > BEARER_BYTES_MAX:
            if self._state.oidc.accepts(bearer):
                return self._of_issuer(bearer, origin)
            self._audit.failed_login("token", "it is too long", origin)
            return None
        token_id = stored_token_id(bearer)
        stored = self._state.snapshot.tokens.get(token_id) if token_id else None
        if stored is not None and hmac.compare_digest(token_digest(bearer), stored.digest):
            if self.has_expired(stored.principal):
                self._audit.failed_login(stored.principal.id, "the token has expired", origin)
                return None
            return self._seen(stored.principal)
        try:
            of_installation = self._key.principal(bearer) or self.represented.of_bearer(bearer)
        except Unauthenticated as error:  # narrow: restores nothing
            self._audit.failed_login("token", str(error), origin)
            raise
        if of_installation is not None:
            return of_installation
        if self._state.oidc.accepts(bearer):
            return self._of_issuer(bearer, origin)
        self._audit.failed_login("token", "the token is unknown", origin)
        return None

    def _of_issuer(self, bearer: bytes, origin: str) -> Principal:
        known = self._state.oidc.remembered(bearer)
        if known is not None:
            return known
        try:
            principal = self._state.oidc.principal(bearer)
        except TokenRefused as error:  # narrow: restores nothing
            self._audit.failed_login("oidc", str(error), origin)
            raise
        self._audit.logged_in(principal, origin)
        return principal

    def of_password(self, user: str, password: str, *, origin: str = "") -> Principal | None:
        """Return the principal of a user; None: the user or the password is wrong.

        Slow (argon2, about 50 ms and 64 MiB): not on an event loop. A result is remembered for
        seconds, so that a program which sends its password with each request is served fast.

        Raises:
            Full: Too many other passwords are waiting for their check.
        """
        if (principal := self.password_is_known(user, password)) is not None:
            return principal
        credentials = self._state.snapshot.credentials
        record = credentials.users.get(user)
        # Without any user, the time of the answer reveals no name, so it needs no hash.
        is_correct = bool(credentials.users) and self._passwords.is_correct(
            record.password if record else None, password
        )
        # `decide` refuses it if the user got another password during the check.
        principal = credentials.user_principal(user)
        if principal is None or not is_correct:
            claimed = f"user:{user}" if is_login_name(user) else "user"
            self._audit.failed_login(claimed, "the user or the password is wrong", origin)
            return None
        self._audit.logged_in(principal, origin)
        return self._seen(principal)

    def password_is_known(self, user: str, password: str) -> Principal | None:
        """Return the principal if `of_password` remembers it. Fast, for event loops."""
        credentials = self._state.snapshot.credentials
        record = credentials.users.get(user)
        if record is None or self._passwords.remembered(record.password, password) is not True:
            return None
        principal = credentials.user_principal(user)
        return None if principal is None else self._seen(principal)

    def password_mark(self, user: str, password: str) -> str:
        """Return a text by which `of_mark` finds the user again, instead of the password.

        Empty: `of_password` does not remember that the password is correct. Fast.
        """
        record = self._state.snapshot.credentials.users.get(user)
        if record is None or self._passwords.remembered(record.password, password) is not True:
            return ""
        return record.password  # the stored hash

    def of_mark(self, user: str, mark: str) -> Principal | None:
        """Return the principal of a user by a `password_mark`; None: the password has changed.

        Fast.
        """
        credentials = self._state.snapshot.credentials
        record = credentials.users.get(user)
        if record is None or not hmac.compare_digest(record.password, mark):
            return None
        principal = credentials.user_principal(user)
        return None if principal is None else self._seen(principal)

    @staticmethod
    def of_certificate(common_name: str) -> Principal | None:
        """Return the principal of a client certificate that TLS has verified."""
        name = normalised(common_name)
        if not name or not name.isprintable() or len(name) > _CERTIFICATE_NAME_MAX:
            return None
        return Principal(PrincipalKind.CERTIFICATE, name)

    def problem_of(self, principal: Principal) -> str | None:
        """Return why the credential of a principal is no longer valid; None: it is valid."""
        if self.has_expired(principal):
            return "the credential has expired"
        fingerprint = principal.credential
        if not fingerprint or fingerprint in self._state.snapshot.fingerprints:
            return None
        if principal.kind is PrincipalKind.OIDC and self._state.oidc.is_valid(fingerprint):
            return None
        return "the credential was removed or changed"

    def write_last_used(self, folder: Path, process: str) -> None:
        """Write when this process last saw each credential, if one was used since the last time.

        Args:
            folder: The folder `last-used`.
            process: Name of this process.
        """
        snapshot = self._state.snapshot
        known = {f"user:{name}" for name in snapshot.credentials.users}
        known |= {one.principal.id for one in snapshot.tokens.values()}
        self._last_used.write(folder, process, known)

    def has_expired(self, principal: Principal) -> bool:
        """Return whether the credential of a principal has expired."""
        expires_ms = principal.expires_ms
        return expires_ms is not None and self._clock.now_ms() >= expires_ms

    def _seen(self, principal: Principal) -> Principal:
        self._last_used.note(principal)
        return principal
