"""Access control of one process: decides what principals may do, and explains and audits it.

Owns the rule that the user id grants nothing once something is configured, the errors of refused
requests, and the thread that reads the files again. Servers take the credential from a request, ask
the `authenticator` for its principal, and ask `AccessControl.require` before they do anything.

Invariant: a principal whose credential was removed, changed or has expired may no longer do
anything, even if a server remembers it for a connection.
"""

from __future__ import annotations

import json
import os
import pwd
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.core.access.access_folder import AccessFolder
from penstock.core.access.access_state import AccessState
from penstock.core.access.audit import AccessAudit, AuditOptions, RequestTrail
from penstock.core.access.authenticator import Authenticator
from penstock.core.access.browser_logins import BrowserLogins
from penstock.core.access.installation_key import InstallationKey
from penstock.core.access.policy import Decision, Policy
from penstock.core.access.principal import NOBODY, Principal, PrincipalKind
from penstock.core.access.quota_use import QuotaUse
from penstock.core.access.quotas import Quotas
from penstock.core.access.rules import Action, Resource, ResourceKind
from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import Forbidden, Unauthenticated
from penstock.core.metrics import MetricRegistry
from penstock.core.threads import OnDeath, OwnedThread

READ_S: Final = 1.0
"""Interval at which the files are compared, in seconds."""
LAST_USED_S: Final = 60.0
"""Interval at which the last use of credentials is written, in seconds."""

_ACCESS: Final = Resource(ResourceKind.SYSTEM, "access")
_WITHOUT_ROLES: Final = frozenset(
    {PrincipalKind.OWNER, PrincipalKind.PROCESS, PrincipalKind.TASK, PrincipalKind.NOBODY}
)

_NOT_CONFIGURED: Final = (
    "only the user who runs the server, on this host and without a proxy, is let in: run the"
    " command as this user, or create a credential with 'penstock user add' or 'penstock token add'"
)
_NO_CREDENTIAL: Final = (
    "the request has no valid credential: send a token (Authorization: Bearer) or a user and"
    " password; 'penstock login URL' keeps a token for the command line"
)


class AccessControl:
    """Access of one process: the principal of a credential, and its rights. Any thread.

    Only the constructor, `refresh`, `start` and `close` may be slow; everything else may be called
    on an event loop.

    Args:
        folder: The folder `access`; its secrets are created if they are missing. None: nothing is
            configured and nothing will be.
        clock: For the expiry of credentials.
        shared_token: The token of the option `token`; empty: none.
        process: Name of this process, such as `router`: in its bearer token and in the audit.
        registry: Metrics of the process.
        peon: The id of a task and the `peon_key` of it, in the process of its peon.
        audit: Options of the audit.

    Attributes:
        audit: Records decisions and logins.
        authenticator: Finds the principal of a credential.
        key: Derives the bearer tokens with which this process calls others.
        oidc: Authenticates with tokens of OpenID Connect.
        browser_logins: Links and sessions of browsers; None without a folder.
        server_user: The owner: the user who runs the server. `of_owner` returns it while this user
            needs no credential.
        represented: Principals for whom processes act.
        on_rules: Called on the thread of `start` with new rules, until it returns that it has
            checked them.
        is_open: Whether everyone is the owner, for tests and for programs that embed a server.

    Raises:
        Unavailable: The secrets cannot be created.
    """

    def __init__(
        self,
        folder: Path | None,
        clock: Clock,
        *,
        shared_token: bytes = b"",
        process: str = "program",
        registry: MetricRegistry | None = None,
        peon: tuple[str, bytes] | None = None,
        audit: AuditOptions | None = None,
    ) -> None:
        self._clock = clock
        self._process = process
        self._folder = None if folder is None else AccessFolder(folder)
        if self._folder is not None:
            self._folder.make_secrets(clock)
        self._state = AccessState(self._folder, clock)
        self.is_open = False
        self.on_rules: Callable[[Policy], bool] | None = None
        self._checked: Policy | None = None
        self.audit: Final = AccessAudit(clock, process, registry, audit)
        self.quotas: Final = QuotaUse(
            clock, self.audit, registry or MetricRegistry(), self._quotas_of
        )
        self.oidc: Final = self._state.oidc
        self.key: Final = InstallationKey(*(self._state, shared_token, process, clock, peon))
        self.browser_logins: Final = None if folder is None else BrowserLogins(folder, clock)
        if self.browser_logins is not None:
            # Browsers stay logged in when a router starts again.
            self.browser_logins.use(self._state.snapshot.principals)
            self.browser_logins.refresh()
        self.authenticator: Final = Authenticator(self._state, self.key, self.audit, clock)
        self.represented: Final = self.authenticator.represented
        self.server_user: Final = Principal(PrincipalKind.OWNER, _user_name())
        self._changed = threading.Condition()
        self._thread: OwnedThread | None = None
        if registry is not None:
            registry.read(
                "gauge",
                "penstock_access_invalid_files",
                "Files of access that are not valid and therefore have no effect",
                lambda: float(len(self.problems)),
            )

    @classmethod
    def open(cls) -> AccessControl:
        """Return a control for tests and for programs that embed a server: everyone is the owner.

        A server with it asks for no credential: each request has the principal `of_owner()`,
        wherever it comes from.
        """
        control = cls(None, SystemClock())
        control.is_open = True
        return control

    @classmethod
    def for_task(cls, task: str, key: bytes, clock: Clock) -> AccessControl:
        """Return the control of a peon, which has a key for its callers and no file.

        A caller with a `key.peon_bearer` of the task is a process of the installation; all other
        callers are refused.

        Args:
            task: Id of the task.
            key: `key.peon_key` of it.
            clock: For the expiry of credentials and the audit.
        """
        return cls(None, clock, process=f"peon of {task}", peon=(task, key))

    @property
    def is_configured(self) -> bool:
        """Whether there is an `access.toml`, a user, a token or a shared token.

        Then the user id of a peer grants nothing.
        """
        return self.key.is_configured or self._state.snapshot.is_configured

    @property
    def generation(self) -> int:
        """Number that grows with each change of the policy, the credentials or issuers' keys.

        A principal that a server remembers for a connection is valid for one generation: with
        another one, the server authenticates its credential again. `decide` refuses a principal
        whose credential was removed or changed in any case.
        """
        # Every command of a connection reads it, so it takes no further call.
        return self._state.snapshot.generation + self.oidc.generation

    @property
    def has_certificates(self) -> bool:
        """Whether `access.toml` gives roles to client certificates."""
        return self._state.snapshot.policy.has_certificates

    @property
    def problems(self) -> tuple[str, ...]:
        """Problems of files that are not valid and therefore have no effect."""
        return self._state.problems

    def start(self) -> None:
        """Start the threads that read the files and the keys of issuers again."""
        if self._folder is None or self._thread is not None:
            return
        self.oidc.start()
        self._thread = OwnedThread("access files", self._run, on_death=OnDeath.RESTART)
        self._thread.start()

    def close(self) -> None:
        """End the threads, and write the last use of credentials."""
        self.oidc.close()
        if self._thread is not None:
            self._thread.end(self._changed)
            self._thread = None
            self._write_last_used()

    def refresh(self) -> None:
        """Read the files now if they have changed. Not on an event loop."""
        self._read(must_rest=False)

    def of_owner(self) -> Principal | None:
        """Return the server's own user; None once something is configured.

        The caller has verified that the peer is this user, unless the control is open.
        """
        return None if self.is_configured else self.server_user

    def rights_of(self, principal: Principal) -> str:
        """Return a text that principals with the same rights share; empty: it may do everything.

        It identifies the rights until the rules change, and is not meant for people. Lists need no
        filter for a principal that may do everything.
        """
        policy = self._state.snapshot.policy
        if policy.allows_everything(principal):
            if self.decide(principal, Action.MANAGE, _ACCESS).allowed:
                return ""
            return "the credential is no longer valid"
        scope = None if principal.scope is None else [str(one) for one in principal.scope]
        kind = principal.kind if principal.kind in _WITHOUT_ROLES else ""
        return json.dumps([kind, policy.roles_of(principal), scope])

    def _quotas_of(self, principal: Principal) -> Quotas:
        return self._state.snapshot.policy.quotas_of(principal)

    def decide(self, principal: Principal, action: Action, resource: Resource) -> Decision:
        """Return whether a principal may do something now, and why. It is not audited.

        For the explanation of a decision, and for lists that show only what may be read.
        """
        snapshot = self._state.snapshot
        refused = self._refused(principal)
        if refused is not None:
            return refused
        return self.audit.options.decide(snapshot.policy, principal, action, resource)

    def decide_some(self, principal: Principal, action: Action, kind: ResourceKind) -> Decision:
        """Return whether a principal may do something with some resource of a kind now, and why.

        It is not audited. See `Policy.decide_some`.
        """
        refused = self._refused(principal)
        if refused is not None:
            return refused
        return self._state.snapshot.policy.decide_some(principal, action, kind)

    def _refused(self, principal: Principal) -> Decision | None:
        """Return why a credential is no longer valid, if it is not."""
        # The owner and processes have neither.
        if principal.credential or principal.expires_ms is not None:
            problem = self.authenticator.problem_of(principal)
            if problem is not None:
                return Decision.refused(problem)
        if principal.kind == PrincipalKind.OWNER and self.is_configured:
            return Decision.refused("the user id grants nothing, because access is configured")
        return None

    def require(
        self,
        principal: Principal,
        action: Action,
        resource: Resource,
        *,
        origin: str = "",
        trail: RequestTrail | None = None,
    ) -> None:
        """Return if a principal may do something now, and audit it.

        Args:
            principal: The principal of the request; `NOBODY` without a credential.
            action: The action.
            resource: The resource.
            origin: Address of the client, for the audit.
            trail: Records of the request; None: its end is not recorded.

        Raises:
            Unauthenticated: The request has no valid credential.
            Forbidden: The principal may not do it.
        """
        decision = self.decide(principal, action, resource)
        self.audit.decided(principal, action, resource, decision, origin, trail)
        if decision.allowed:
            return
        if principal == NOBODY:
            raise Unauthenticated(self.remedy)
        if decision.limits is not None:
            raise Forbidden(
                f"{principal.id} may read {resource.shown} only by SQL queries, because a row"
                " filter or a column mask applies: query it with penstock sql"
            )
        # The rule is not shown: it may name what the principal must not know.
        acting = f", for whom {principal.via} acts," if principal.via else ""
        raise Forbidden(
            f"{principal.id}{acting} may not {action} {resource.shown}: ask an administrator, to"
            " whom 'penstock access check' explains the decision"
        )

    @property
    def remedy(self) -> str:
        """Text for a request without a valid credential."""
        return _NO_CREDENTIAL if self.is_configured else _NOT_CONFIGURED

    def _run(self) -> None:
        thread = self._thread
        next_write_s = self._clock.monotonic_s() + LAST_USED_S
        while thread is not None and not thread.is_end_expected:
            with self._changed:
                if not thread.is_end_expected:
                    self._clock.wait(self._changed, READ_S)
            self._read(must_rest=True)
            self._check_rules()
            if self._clock.monotonic_s() >= next_write_s:
                next_write_s = self._clock.monotonic_s() + LAST_USED_S
                self._write_last_used()

    def _read(self, *, must_rest: bool) -> None:
        self._state.read(must_rest=must_rest)
        if self.browser_logins is not None:
            self.browser_logins.use(self._state.snapshot.principals)
            self.browser_logins.refresh()

    def _check_rules(self) -> None:
        policy = self._state.snapshot.policy
        if self.on_rules is not None and policy is not self._checked and self.on_rules(policy):
            self._checked = policy

    def _write_last_used(self) -> None:
        if self._folder is not None:
            self.authenticator.write_last_used(self._folder.last_used, self._process)


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # narrow: a container may run as a user without a name
        return str(os.geteuid())
