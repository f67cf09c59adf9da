"""Access controls for tests, and rules for routes that only a test has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from starlette.routing import BaseRoute, Route

from penstock.core.access.access_control import AccessControl
from penstock.core.access.audit import AuditOptions
from penstock.core.access.credentials import CredentialFile
from penstock.core.access.principal import PRINCIPAL_HEADER, parse_principal
from penstock.core.clock import SystemClock
from penstock.services.api.access_rules import KNOWN, ROUTE_RULES, RouteRule


def author_who_claims(name: str) -> str:
    """The author of a change by everyone's owner, who sends a name in `X-Druid-Author`."""
    return f"{AccessControl.open().of_owner()} (X-Druid-Author: {name})"


def with_token(token: str | None) -> AccessControl:
    """A control whose only credential is a token; without one, everyone is the owner."""
    if token is None:
        return AccessControl.open()
    return AccessControl(None, SystemClock(), shared_token=token.encode())


class AccessFolderKit:
    """An access folder with rules, and the control of a process that reads it."""

    def __init__(self, folder: Path, rules: str = "", audit: AuditOptions | None = None) -> None:
        self.folder = folder
        folder.mkdir(parents=True, mode=0o700)
        self.write(rules)
        self.control = AccessControl(folder, SystemClock(), process="test", audit=audit)

    def write(self, rules: str) -> None:
        (self.folder / "access.toml").write_text(rules or "# no rules\n")

    def add_user(self, name: str, *roles: str) -> None:
        """Add a user whose password nobody knows."""
        nothing = "$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHQ$aGFzaA"
        file = CredentialFile(self.folder / "credentials.json", SystemClock())
        file.add_user(name, nothing, roles)
        self.control.refresh()


def as_principal(control: AccessControl, name: str, *roles: str) -> dict[str, str]:
    """The headers with which a process asks for a principal that has these roles."""
    principal = replace(parse_principal(name), roles=roles)
    return {
        "Authorization": f"Bearer {control.key.process_bearer()}",
        PRINCIPAL_HEADER: principal.to_header(),
    }


def rules_with(routes: Iterable[BaseRoute]) -> dict[tuple[str, str], RouteRule]:
    """The table, and for routes that it does not have the rule that any credential will do."""
    own: dict[tuple[str, str], RouteRule] = {
        (method, route.path): KNOWN
        for route in routes
        if isinstance(route, Route)
        for method in route.methods or ()
    }
    return {**own, **ROUTE_RULES}
