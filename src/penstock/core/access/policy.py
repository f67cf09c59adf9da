"""The policy: roles, the principals that have them, and the pure function that decides.

Owns the ready-made roles (data), the roles of an installation, and `Policy.decide`. The cases of
the decision are a table on the page about access, which a test compares with this function.

Rules, in this order: an unknown action or kind is refused; the owner and processes may do
everything; a request without a credential may do nothing; a task may do what its token says; a deny
rule of any role refuses; an allow rule of any role allows, if the scope of the credential, where it
has one, allows it, too; everything else is refused. A deny rule about a topic counts for its
channels, too, which have the same messages. So the order of roles and rules does not
matter, and one more allow rule takes nothing away.

To read a datasource with a row filter or mask of any role is refused, too, and the decision names
the rows that SQL may show. So every other way to its rows is closed, new ones included.

Invariant: a principal with a role that does not exist may do nothing, because the rules of the
missing role may be those that deny.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, TypeVar

from penstock.core.access.oidc_issuer import OidcIssuer
from penstock.core.access.principal import ASSIGNABLE, Principal, PrincipalKind
from penstock.core.access.quotas import NO_QUOTAS, Quotas, smallest
from penstock.core.access.row_rules import (
    ALL_ROWS,
    ColumnMask,
    RowFilter,
    RowRules,
    combined,
)
from penstock.core.access.rules import (
    NAME_CHARACTERS_MAX,
    STAR,
    SYSTEM_PARTS,
    Action,
    Resource,
    ResourceKind,
    Rule,
    name_matches,
)
from penstock.core.names import normalised

# Numbers of entries that a policy remembers; a full memo is emptied. 10,000 decisions take about
# 5 MB.
_DECISIONS_MAX: Final = 10_000
_ROLE_SETS_MAX: Final = 1_000
_PRINCIPALS_MAX: Final = 20_000

K = TypeVar("K")
V = TypeVar("V")

_ACTIONS: Final = frozenset(Action)
_KINDS: Final = frozenset(ResourceKind)


@dataclass(frozen=True, slots=True)
class Role:
    """Rules under a name.

    Attributes:
        name: The name.
        about: One sentence for people.
        allow: Rules that allow.
        deny: Rules that refuse, even if other rules and roles allow.
        row_filters: Conditions of visible rows.
        masks: Replacements of values.
        quotas: Limits for each principal with the role.
    """

    name: str
    about: str = ""
    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    row_filters: tuple[RowFilter, ...] = ()
    masks: tuple[ColumnMask, ...] = ()
    quotas: Quotas = NO_QUOTAS

    @property
    def limits_rows(self) -> bool:
        """Whether it has a row filter or a mask."""
        return bool(self.row_filters or self.masks)


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a request is allowed, and why.

    Attributes:
        allowed: Whether it is allowed.
        reason: The reason, for people.
        role: The role whose rule decided; empty if none did.
        rule: This rule; empty if none decided.
        limits: Of a refusal: the filter and masks with which SQL may read the datasource
            nevertheless; None: nothing may.
    """

    allowed: bool
    reason: str
    role: str = ""
    rule: str = ""
    limits: RowRules | None = None

    @property
    def rows(self) -> RowRules | None:
        """What SQL may show of a datasource, if this is the decision to read it; None: nothing."""
        return ALL_ROWS if self.allowed else self.limits

    @classmethod
    def granted(cls, reason: str, role: str = "", rule: str = "") -> Decision:
        """Return a decision that allows the request."""
        return cls(allowed=True, reason=reason, role=role, rule=rule)

    @classmethod
    def refused(cls, reason: str, role: str = "", rule: str = "") -> Decision:
        """Return a decision that refuses the request."""
        return cls(allowed=False, reason=reason, role=role, rule=rule)


_EVERYTHING: Final = {
    PrincipalKind.OWNER: Decision.granted("the user who runs the server may do everything"),
    PrincipalKind.PROCESS: Decision.granted("processes of the installation may do everything"),
}
_OF_TASK: Final = Decision.granted("the token of the task includes it")
# Consuming from a channel, and moving it, is reading the messages of its topic.
_OF_TOPIC: Final = {Action.WRITE: Action.READ}
_OUT_OF_SCOPE: Final = Decision.refused("the scope of the credential does not include it")


def _ready_made(name: str, about: str, *allow: str) -> Role:
    return Role(name, about, tuple(Rule.parse(one) for one in allow))


# Listed, so that a new kind is not the operator's without a decision.
_OPERATED: Final = (
    *("topic", "channel", "flow", "processor", "datasource", "lookup", "supervisor", "task"),
)
# None of the roles denies anything, so that a second role can add to each.
_SEEN: Final = ("read system:status", "read system:manual")
READY_MADE_ROLES: Final[Mapping[str, Role]] = MappingProxyType(
    {
        role.name: role
        for role in (
            _ready_made("admin", "May do everything, and gives rights to others", "* *"),
            _ready_made(
                "operator",
                "Runs topics, flows, supervisors and tasks; cannot run code or change access",
                *(f"read,write,manage {kind}:*" for kind in _OPERATED),
                "read secret:*",  # the specs and flows that it applies name secrets
                "read system:*",
                "read-external system:inputs",
                "write,manage system:cluster",
                "manage system:queries",
            ),
            _ready_made("publisher", "Publishes to every topic", "write topic:*", *_SEEN),
            _ready_made(
                "consumer",
                "Consumes from every topic, over channels or directly",
                *("read topic:*", "read,write channel:*", *_SEEN),
            ),
            _ready_made(
                "analyst",
                "Queries every datasource and lookup",
                *("read datasource:*", "read lookup:*", *_SEEN),
            ),
            _ready_made(
                "viewer",
                "Sees the state of everything, but no messages and no rows",
                *(f"read {kind}:*" for kind in ("flow", "processor", "supervisor", "task")),
                *("read system:cluster", "read system:metrics", *_SEEN),
            ),
        )
    }
)
"""Roles that every installation has; `access.toml` cannot define them differently."""


class Policy:
    """Roles of an installation and the principals that have them. Immutable; any thread.

    Args:
        roles: Its own roles, in addition to the ready-made ones.
        principals: Roles by id of a principal.
        closed: Reason why only the owner, processes and principals with the role `admin` of their
            credential are allowed; empty: the roles decide. For rules that cannot be read.
        issuers: Issuers of OpenID Connect whose tokens are accepted.
    """

    def __init__(
        self,
        roles: Iterable[Role] = (),
        principals: Mapping[str, tuple[str, ...]] | None = None,
        *,
        closed: str = "",
        issuers: Iterable[OidcIssuer] = (),
    ) -> None:
        self.own_roles: Final = MappingProxyType({role.name: role for role in roles})
        self.roles: Final = MappingProxyType({**self.own_roles, **READY_MADE_ROLES})
        self.principals: Final = MappingProxyType(dict(principals or {}))
        self.closed: Final = closed
        self.issuers: Final = tuple(issuers)
        self.has_certificates: Final = any(
            one.startswith(f"{PrincipalKind.CERTIFICATE}:") for one in self.principals
        )
        self._has_quotas = any(role.quotas for role in self.own_roles.values())
        # The memos only save time. Each change of a dictionary is atomic, so threads share them.
        self._decisions: dict[tuple[Principal, str, str, str], Decision] = {}
        self._role_sets: dict[tuple[str, ...], _RoleSet] = {}
        self._of_principal: dict[tuple[str, tuple[str, ...]], _RoleSet] = {}
        self._quotas: dict[tuple[str, tuple[str, ...]], Quotas] = {}

    def decide(self, principal: Principal, action: Action, resource: Resource) -> Decision:
        """Return whether a principal may carry out an action on a resource, and why.

        It depends on its arguments and this policy alone; expiry is checked by `AccessControl`.
        """
        name = normalised(resource.name)
        key = (principal, action, resource.kind, name)
        decision = self._decisions.get(key)
        if decision is None:
            decision = self._decide(principal, action, resource.kind, name)
            _remember(self._decisions, key, decision, _DECISIONS_MAX)
        return decision

    def decide_some(self, principal: Principal, action: Action, kind: ResourceKind) -> Decision:
        """Return whether a principal may carry out an action on some resource of a kind.

        For requests that come before their resource has a name. A rule that denies single names
        does not count here: it decides once the name is known.
        """
        if principal.kind in _EVERYTHING:
            return _EVERYTHING[principal.kind]
        if principal.kind == PrincipalKind.NOBODY:
            return Decision.refused("the request has no valid credential")
        if principal.scope is not None and not any(_about(principal.scope, action, kind)):
            return _OUT_OF_SCOPE
        if principal.kind is PrincipalKind.TASK:
            return _OF_TASK if principal.scope else _OUT_OF_SCOPE
        if self.closed and "admin" not in principal.roles:
            return Decision.refused(self.closed)
        return self._role_set_of(principal).decide_some(action, kind)

    def roles_of(self, principal: Principal) -> tuple[str, ...]:
        """Return the names of a principal's roles: those of its credential, then the others."""
        assigned = self.principals.get(principal.id, ())
        return tuple(dict.fromkeys((*principal.roles, *assigned)))

    def quotas_of(self, principal: Principal) -> Quotas:
        """Return the quotas of a principal: of each one, the smallest of its roles.

        The owner, processes and tasks have none.
        """
        if not self._has_quotas or principal.kind not in ASSIGNABLE:
            return NO_QUOTAS
        key = (principal.id, principal.roles)
        found = self._quotas.get(key)
        if found is None:
            roles = map(self.roles.get, self.roles_of(principal))
            found = smallest(role.quotas for role in roles if role is not None)
            _remember(self._quotas, key, found, _PRINCIPALS_MAX)
        return found

    def allows_everything(self, principal: Principal) -> bool:
        """Return whether `decide` allows everything to a principal, so that lists need no filter.

        It is false if a role denies something or limits rows, even to principals that may do
        everything else.
        """
        if principal.kind in _EVERYTHING:
            return True
        roles = [self.roles.get(name) for name in self.roles_of(principal)]
        denies_nothing = all(
            role is not None and not role.deny and not role.limits_rows for role in roles
        )
        return READY_MADE_ROLES["admin"] in roles and denies_nothing and principal.scope is None

    def _decide(
        self, principal: Principal, action: Action, kind: ResourceKind, name: str
    ) -> Decision:
        if action not in _ACTIONS:
            return Decision.refused("the action does not exist")
        if kind not in _KINDS or (kind == ResourceKind.SYSTEM and name not in SYSTEM_PARTS):
            return Decision.refused("such a resource does not exist")
        if principal.kind in _EVERYTHING:
            return _EVERYTHING[principal.kind]
        # Only those above can remove what an earlier release stored under such a name.
        if not 0 < len(name) <= NAME_CHARACTERS_MAX:
            return Decision.refused("no resource has such a name")
        if principal.kind == PrincipalKind.NOBODY:
            return Decision.refused("the request has no valid credential")
        if principal.kind is PrincipalKind.TASK and any(
            rule.matches(action, Resource(kind, name)) for rule in principal.scope or ()
        ):
            # Tasks have no roles: the process that starts one gives it these rights in its token.
            return _OF_TASK
        if self.closed and "admin" not in principal.roles:
            return Decision.refused(self.closed)
        decision = self._decide_by_roles(principal, action, kind, name)
        if decision.rows is None or principal.scope is None:
            return decision
        resource = Resource(kind, name)
        if any(rule.matches(action, resource) for rule in principal.scope):
            return decision
        return _OUT_OF_SCOPE

    def _decide_by_roles(
        self, principal: Principal, action: Action, kind: ResourceKind, name: str
    ) -> Decision:
        return self._role_set_of(principal).decide(action, kind, name)

    def _role_set_of(self, principal: Principal) -> _RoleSet:
        key = (principal.id, principal.roles)
        role_set = self._of_principal.get(key)
        if role_set is None:
            names = self.roles_of(principal)
            role_set = self._role_sets.get(names)
            if role_set is None:
                role_set = _RoleSet(names, [self.roles.get(one) for one in names])
                _remember(self._role_sets, names, role_set, _ROLE_SETS_MAX)
            _remember(self._of_principal, key, role_set, _PRINCIPALS_MAX)
        return role_set


def _remember(memo: dict[K, V], key: K, value: V, entries_max: int) -> None:
    if len(memo) >= entries_max:
        memo.clear()
    memo[key] = value


@dataclass(slots=True)
class _NameIndex:
    """Rules about one action and kind, found by a resource's name, and their decisions."""

    decisions: list[Decision] = field(default_factory=list)
    exact: dict[str, int] = field(default_factory=dict)
    prefixes: dict[str, int] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()
    others: list[tuple[int, str]] = field(default_factory=list)

    def add(self, pattern: str, decision: Decision) -> None:
        """Add a rule, which is found after those added before."""
        number = len(self.decisions)
        self.decisions.append(decision)
        if STAR not in pattern:
            self.exact.setdefault(pattern, number)
        elif pattern.index(STAR) == len(pattern) - 1:
            self.prefixes.setdefault(pattern[:-1], number)
            if len(pattern) - 1 not in self.lengths:
                self.lengths = tuple(sorted((*self.lengths, len(pattern) - 1)))
        else:
            self.others.append((number, pattern))

    def first_match(self, name: str) -> Decision | None:
        """Return the decision of the first rule whose pattern matches a name."""
        none = first = len(self.decisions)
        if not none:
            return None
        if self.exact:
            first = self.exact.get(name, none)
        for length in self.lengths:
            if length > len(name):
                break
            first = min(first, self.prefixes.get(name[:length], none))
        for number, pattern in self.others:
            if number >= first:
                break
            if name_matches(pattern, name):
                first = number
                break
        return None if first == none else self.decisions[first]


class _RoleSet:
    """The roles of one principal. Their rules are sorted by action and kind when first needed.

    Args:
        names: The names of the roles.
        roles: The roles; None for a name without a role.
    """

    def __init__(self, names: tuple[str, ...], roles: list[Role | None]) -> None:
        self._roles = [one for one in roles if one is not None]
        self._limiting = [one for one in self._roles if one.limits_rows]
        self._about: dict[tuple[str, str], tuple[_NameIndex, _NameIndex]] = {}
        missing = [name for name, role in zip(names, roles, strict=True) if role is None]
        self._refused: Decision | None = None
        if not names:
            self._refused = Decision.refused("the principal has no role")
        elif missing:
            self._refused = Decision.refused(
                f"the role {missing[0]!r} of the principal does not exist, and its rules may have"
                " denied something"
            )
        self._otherwise = Decision.refused(f"no role allows it, of {', '.join(names)}")

    def decide(self, action: Action, kind: ResourceKind, name: str) -> Decision:
        """Return the decision of the rules."""
        if self._refused is not None:
            return self._refused
        deny, allow = self._sorted_rules(action, kind)
        decision = deny.first_match(name) or allow.first_match(name) or self._otherwise
        if decision.allowed and action == Action.READ and kind == ResourceKind.DATASOURCE:
            return self._with_limits(decision, name)
        return decision

    def decide_some(self, action: Action, kind: ResourceKind) -> Decision:
        """Return the decision of the rules about some resource of a kind."""
        if self._refused is not None:
            return self._refused
        deny, allow = self._sorted_rules(action, kind)
        # Only a pattern that matches every name matches this one, which no resource has.
        denied = deny.first_match(STAR)
        if denied is not None:
            return denied
        return allow.decisions[0] if allow.decisions else self._otherwise

    def _sorted_rules(self, action: Action, kind: ResourceKind) -> tuple[_NameIndex, _NameIndex]:
        about = self._about.get((action, kind))
        if about is None:
            about = self._about[action, kind] = self._rules_about(action, kind)
        return about

    def _with_limits(self, decision: Decision, datasource: str) -> Decision:
        """Return the decision to read a datasource with the filters and masks of the roles."""
        filters = (role.row_filters for role in self._limiting)
        rows = combined(filters, (role.masks for role in self._limiting), datasource)
        if not rows.is_limited:
            return decision
        shown = f"rows where {rows.condition}" if rows.condition else "all rows"
        masked = ", ".join(f"{column} as {mask}" for column, mask in rows.masks)
        reason = f"only with SQL: {shown}{', with ' if masked else ''}{masked}"
        return replace(decision, allowed=False, reason=reason, limits=rows)

    def _rules_about(self, action: Action, kind: ResourceKind) -> tuple[_NameIndex, _NameIndex]:
        """Return the deny rules and the allow rules about an action on resources of a kind."""
        deny, allow = _NameIndex(), _NameIndex()
        for role in self._roles:
            denied = [(rule.pattern.name, rule) for rule in _about(role.deny, action, kind)]
            if kind == ResourceKind.CHANNEL:
                needed = _OF_TOPIC.get(action, action)
                of_topic = _about(role.deny, needed, ResourceKind.TOPIC)
                denied += [(f"{rule.pattern.name}/{STAR}", rule) for rule in of_topic]
            for pattern, rule in denied:
                text = str(rule)
                reason = f"role {role.name} denies it: {text}"
                deny.add(pattern, Decision.refused(reason, role.name, text))
            for rule in _about(role.allow, action, kind):
                text = str(rule)
                reason = f"role {role.name} allows it: {text}"
                allow.add(rule.pattern.name, Decision.granted(reason, role.name, text))
        return deny, allow


def _about(rules: tuple[Rule, ...], action: Action, kind: ResourceKind) -> Iterator[Rule]:
    for rule in rules:
        if action in rule.actions and rule.pattern.kind in {None, kind}:
            yield rule
