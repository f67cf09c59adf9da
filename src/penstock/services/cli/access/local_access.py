"""The files of access on this host, as the commands of access read and change them.

Owns their places, the check of their owner, and their explanations. Commands work on the files and
not over HTTP: the first user is added while only the owner is let in, and an operator who is locked
out can still correct the rules.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.core.access.access_folder import AccessFolder
from penstock.core.access.audit import AuditOptions
from penstock.core.access.credentials import CredentialFile, Credentials
from penstock.core.access.last_used import read_last_used
from penstock.core.access.policy import Decision, Policy
from penstock.core.access.policy_file import ALWAYS_ADMIN, check_role_exists
from penstock.core.access.principal import Principal, PrincipalKind
from penstock.core.access.rules import Action, Resource
from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import InvalidRequest, NotFound
from penstock.core.instants import format_time
from penstock.services.cli.command_options import CLI
from penstock.services.host.data_folder import FORMAT_FILE, DataFolder


@dataclass(frozen=True, slots=True)
class LocalAccess:
    """Rules and credentials of the Penstock in the data folder.

    Attributes:
        folder: The folder.
        policy: The rules.
        credentials: Users and tokens.
        has_rules: Whether there is an `access.toml`.
        audit_topic: The topic of the audit; empty: none.
        has_shared_token: Whether the server has a token by an option that this command has, too.
    """

    folder: AccessFolder
    policy: Policy
    credentials: Credentials
    has_rules: bool
    audit_topic: str = ""
    has_shared_token: bool = False

    @classmethod
    def read(cls) -> LocalAccess:
        """Read the files.

        Raises:
            InvalidRequest: A file is not valid, belongs to another user, or there is no Penstock.
            Unavailable: A file cannot be read.
        """
        folder = AccessFolder(CLI.access_path())
        _require_own(folder.path)
        credentials = CredentialFile(folder.credentials, SystemClock()).read()
        options = CLI.options()
        return cls(
            *(folder, folder.read_rules(), credentials, folder.rules.exists()),
            audit_topic=options.audit_topic or "",
            has_shared_token=bool(options.token),
        )

    @property
    def file(self) -> CredentialFile:
        """Return the file of users and tokens, to change it."""
        return CredentialFile(self.folder.credentials, SystemClock())

    @property
    def is_configured(self) -> bool:
        """Whether there is a rule, a user or a token, so that everyone needs a credential."""
        stored = self.credentials.users or self.credentials.tokens
        return self.has_rules or self.has_shared_token or bool(stored)

    def check_roles(self, roles: list[str]) -> tuple[str, ...]:
        """Return roles without repetitions.

        Raises:
            InvalidRequest: A role does not exist.
        """
        return tuple(
            dict.fromkeys(
                check_role_exists(one, self.policy.roles, place="--role") for one in roles
            )
        )

    def roles_of(self, principal: Principal) -> list[str]:
        """Return the roles of a principal, of its credential and of `access.toml`."""
        return list(self.policy.roles_of(principal))

    def principal(self, named: Principal) -> tuple[Principal, str]:
        """Return a principal as it is authenticated, and a remark if there is no such credential.

        Args:
            named: The principal without the roles of its credential.
        """
        if named.id in ALWAYS_ADMIN:
            return Principal(named.kind, named.name, ("admin",)), ""
        if named.kind is PrincipalKind.USER:
            user = self.credentials.user_principal(named.name)
            return (named, f"there is no user {named.name}") if user is None else (user, "")
        if named.kind is PrincipalKind.TOKEN:
            for stored in self.credentials.stored_tokens().values():
                if stored.principal.name == named.name:
                    return stored.principal, ""
            return named, f"there is no token {named.name}"
        if named.kind is PrincipalKind.OIDC and not self.policy.issuers:
            return named, "access.toml names no issuer"
        return named, ""

    def decide(
        self, principal: Principal, action: Action, resource: Resource, clock: Clock
    ) -> Decision:
        """Return the decision that a server makes with these files."""
        if principal.kind is PrincipalKind.OWNER and self.is_configured:
            return Decision.refused("the user id grants nothing, because access is configured")
        if principal.expires_ms is not None and clock.now_ms() >= principal.expires_ms:
            return Decision.refused("the credential has expired")
        return AuditOptions(self.audit_topic).decide(self.policy, principal, action, resource)

    def last_used(self) -> Mapping[str, int]:
        """Return when each principal was last seen by any process, in epoch milliseconds."""
        return read_last_used(self.folder.last_used)


def shown_time(ms: int | None) -> str | None:
    """Return a time for a table; None: none."""
    return None if not ms else format_time(ms)


def _require_own(folder: Path) -> None:
    """Refuse a folder that is not that of a Penstock, or whose files would get another owner.

    A server could not read files that another user writes, root included.
    """
    data = DataFolder(CLI.options().data_dir.absolute())
    if not folder.exists() and not (data.path / FORMAT_FILE).exists():
        raise InvalidRequest(
            f"{data.path} is not the data folder of a Penstock: start it once with penstock up, or"
            " name another one with --data-dir"
        )
    owned = folder if folder.exists() else data.path
    owner = owned.stat().st_uid
    if owner != os.geteuid():
        raise InvalidRequest(
            f"{owned} belongs to user {owner}, and this is user {os.geteuid()}, whose files the"
            " server could not read: run the command as the other user"
        )


def missing(kind: str, name: str) -> NotFound:
    """Return the error for a user or a role that does not exist."""
    return NotFound(f"{kind} {name!r} does not exist: penstock {kind} list shows all")
