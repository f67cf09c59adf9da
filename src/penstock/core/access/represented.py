"""Principals for whom a process of the installation acts, such as a flow for its owner.

Owns the token of such a process, and the rights of the principal: those that it has now, found by
its id, because its credential is not known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.core.access.derived_tokens import acted_for
from penstock.core.access.installation_key import SHARED_TOKEN, InstallationKey
from penstock.core.access.principal import ASSIGNABLE, Principal, PrincipalKind, parse_principal
from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    from penstock.core.access.access_state import AccessState
    from penstock.core.clock import Clock

# The fingerprint of no credential: the access control refuses a principal with it.
_REMOVED: Final = "removed"


class RepresentedPrincipals:
    """Finds principals for whom this process or another one acts. Any thread.

    Args:
        state: The files and keys that the process has read.
        key: Makes and checks the tokens.
        clock: For the time of tokens.
        credential_problem: Returns why the credential of a principal is not valid; None: it is.
    """

    def __init__(
        self,
        state: AccessState,
        key: InstallationKey,
        clock: Clock,
        credential_problem: Callable[[Principal], str | None],
    ) -> None:
        self._state = state
        self._key = key
        self._clock = clock
        self._credential_problem = credential_problem

    def named(self, principal_id: str) -> Principal:
        """Return the principal of an id with the roles that it has now, without its credential.

        A user or token that does not exist is refused everything, and so is a principal of an
        issuer that is not configured. A principal of an issuer has the roles of `access.toml`,
        because its groups are in its tokens alone.

        Raises:
            InvalidRequest: The id is not one of a user, token, certificate or issuer.
        """
        found = parse_principal(principal_id)
        if found.kind not in ASSIGNABLE:
            raise InvalidRequest(
                f"a process cannot act for {found.id}: use a principal of the kind"
                f" {', '.join(ASSIGNABLE)}"
            )
        snapshot = self._state.snapshot
        current: Principal | None = found
        if found.id == SHARED_TOKEN.id:
            current = SHARED_TOKEN if self._key.has_shared_token else None
        elif found.kind in {PrincipalKind.USER, PrincipalKind.TOKEN}:
            current = snapshot.principals.get(found.id)
        elif found.kind is PrincipalKind.OIDC:
            prefixes = tuple(one.prefix for one in snapshot.policy.issuers)
            current = found if prefixes and found.name.startswith(prefixes) else None
        return replace(found, credential=_REMOVED) if current is None else current

    def problem(self, principal: Principal) -> str:
        """Return why a principal may do nothing at all now; empty: its rights decide."""
        problem = self._credential_problem(principal)
        if problem is None and not self._state.snapshot.policy.roles_of(principal):
            problem = "the principal has no role"
        return problem or ""

    def sent_for(self, principal_id: str) -> Principal:
        """Return the principal of the requests that this process sends for an id.

        Raises as `named`.
        """
        return replace(self.named(principal_id), via=_process_id(self._key.process))

    def of_bearer(self, bearer: bytes) -> Principal | None:
        """Return the principal for whom another process acts; None: it is no such token.

        Raises:
            Unauthenticated: It is one of this installation, and does not count now.
        """
        for key in self._key.accepted():
            acting = acted_for(key, bearer, self._clock.now_ms())
            if acting is None:
                continue
            try:
                found = self.named(acting.principal)
            except InvalidRequest:  # narrow: restores nothing
                return None
            # Rights that an open connection got by the token end with it, too.
            ends_ms = min(filter(None, (acting.expires_ms, found.expires_ms)))
            return replace(found, expires_ms=ends_ms, via=_process_id(acting.process))
        return None


def _process_id(name: str) -> str:
    return Principal(PrincipalKind.PROCESS, name).id
