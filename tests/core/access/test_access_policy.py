"""The decision: the table of cases on the page about access, and invariants for any roles."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.access.policy import READY_MADE_ROLES, Policy, Role
from penstock.core.access.policy_file import parse_policy
from penstock.core.access.principal import NOBODY, Principal, PrincipalKind, parse_principal
from penstock.core.access.rules import SYSTEM_PARTS, Action, Resource, ResourceKind, Rule

PAGE = (Path(__file__).parents[3] / "docs" / "concepts" / "access.md").read_text()

# Principals of the page whose credentials have roles or a scope of their own.
CREDENTIALS: dict[str, dict[str, Any]] = {
    "token:operator": {"roles": ("admin",)},
    "token:narrow": {"roles": ("publisher",), "scope": (Rule.parse("write topic:clicks"),)},
    "token:lost": {"roles": ("publisher", "gone")},
}


def page_policy() -> Policy:
    text = re.search(r'```toml title="access.toml"\n(.*?)```', PAGE, re.DOTALL)
    assert text
    return parse_policy(text.group(1), "access.toml")


def page_cases() -> list[tuple[str, ...]]:
    table = PAGE.partition("| principal | action | resource |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return [tuple(cell.strip("`") for cell in row) for row in rows]


@pytest.mark.parametrize(
    ("principal_id", "action", "resource", "decision", "reason"),
    page_cases(),
    ids=[" ".join(case[:3]) for case in page_cases()],
)
def test_the_table_of_cases(
    principal_id: str, action: str, resource: str, decision: str, reason: str
) -> None:
    principal = replace(parse_principal(principal_id), **CREDENTIALS.get(principal_id, {}))
    kind, _, name = resource.partition(":")
    made = page_policy().decide(
        principal, cast("Action", action), Resource(cast("ResourceKind", kind), name)
    )
    assert (made.allowed, made.reason) == ({"allowed": True, "refused": False}[decision], reason)


def test_the_page_has_all_kinds_actions_roles_and_rules() -> None:
    cases = page_cases()
    assert len(cases) >= 30
    assert {case[0].partition(":")[0] for case in cases} == set(PrincipalKind)
    assert {case[1] for case in cases} >= {Action.READ, Action.WRITE, Action.MANAGE}
    for role in READY_MADE_ROLES:
        assert f"| `{role}` |" in PAGE
    for action in Action:
        assert f"| `{action}` |" in PAGE
    for kind in ResourceKind:
        assert f"`{kind}:" in PAGE
    for part in SYSTEM_PARTS:
        assert f"`{part}`" in PAGE


# Rights of the ready-made roles, one resource for each kind.

A_RESOURCE = {
    kind: Resource(kind, "status" if kind is ResourceKind.SYSTEM else "x") for kind in ResourceKind
}
K = ResourceKind
RIGHTS = {
    "publisher": {("write", K.TOPIC), ("read", K.SYSTEM)},
    "consumer": {("read", K.TOPIC), ("read", K.CHANNEL), ("write", K.CHANNEL), ("read", K.SYSTEM)},
    "analyst": {("read", K.DATASOURCE), ("read", K.LOOKUP), ("read", K.SYSTEM)},
    "viewer": {("read", kind) for kind in (K.FLOW, K.PROCESSOR, K.SUPERVISOR, K.TASK, K.SYSTEM)},
    "operator": {
        *((action, kind) for action in ("read", "write", "manage") for kind in K),
    }
    - {(action, kind) for action in ("write", "manage") for kind in (K.SECRET, K.SYSTEM)},
    "admin": {(action, kind) for action in Action for kind in K},
}


@pytest.mark.parametrize("role", READY_MADE_ROLES)
def test_each_ready_made_role_has_its_rights_and_no_others(role: str) -> None:
    principal = Principal(PrincipalKind.TOKEN, "t", (role,))
    policy = Policy()
    allowed = {
        (str(action), kind)
        for action in Action
        for kind, resource in A_RESOURCE.items()
        if policy.decide(principal, action, resource).allowed
    }
    assert allowed == RIGHTS[role]


def test_only_the_admin_may_change_access_or_run_code() -> None:
    policy = Policy()
    for role in READY_MADE_ROLES:
        principal = Principal(PrincipalKind.USER, "u", (role,))
        for action, name in (
            (Action.MANAGE, "access"),
            (Action.WRITE, "access"),
            (Action.RUN_CODE, "code"),
            (Action.MANAGE, "processes"),
        ):
            decision = policy.decide(principal, action, Resource(ResourceKind.SYSTEM, name))
            assert decision.allowed == (role == "admin")


def test_ready_made_roles_deny_nothing() -> None:
    assert all(not role.deny for role in READY_MADE_ROLES.values())


# Invariants

few_names = st.text("ab", min_size=1, max_size=3)
kinds = st.sampled_from([K.TOPIC, K.DATASOURCE])
actions = st.sampled_from(list(Action))
resources = st.builds(Resource, kinds, few_names)
rules = st.builds(
    lambda chosen, kind, pattern: Rule.parse(
        f"{'*' if chosen is None else ','.join(sorted(chosen))} {kind}:{pattern}"
    ),
    st.none() | st.sets(actions, min_size=1, max_size=2),
    st.sampled_from(["topic", "datasource", "*"]),
    st.text("ab*", min_size=1, max_size=4),
)
rule_lists = st.lists(rules, max_size=5).map(tuple)
role_lists = st.lists(st.tuples(rule_lists, rule_lists), min_size=1, max_size=3)


def roles_of(lists: list[tuple[tuple[Rule, ...], tuple[Rule, ...]]]) -> list[Role]:
    return [Role(f"r{n}", "", allow, deny) for n, (allow, deny) in enumerate(lists)]


def user_of(roles: list[Role], scope: tuple[Rule, ...] | None = None) -> Principal:
    return Principal(PrincipalKind.USER, "u", tuple(role.name for role in roles), scope)


def naive(roles: list[Role], action: Action, resource: Resource) -> bool:
    """Decide by the rules in their order, without any index."""
    for role in roles:
        for rule in role.deny:
            if rule.matches(action, resource):
                return False
    return any(rule.matches(action, resource) for role in roles for rule in role.allow)


@given(role_lists, actions, resources)
def test_the_index_decides_as_the_rules_one_by_one(
    lists: list[tuple[tuple[Rule, ...], tuple[Rule, ...]]], action: Action, resource: Resource
) -> None:
    roles = roles_of(lists)
    decision = Policy(roles).decide(user_of(roles), action, resource)
    assert decision.allowed == naive(roles, action, resource)
    if decision.rule:
        role = next(role for role in roles if role.name == decision.role)
        made_by = role.allow if decision.allowed else role.deny
        rule = next(rule for rule in made_by if str(rule) == decision.rule)
        assert rule.matches(action, resource)


@given(role_lists, rules, actions, resources)
def test_a_deny_rule_wins(
    lists: list[tuple[tuple[Rule, ...], tuple[Rule, ...]]],
    rule: Rule,
    action: Action,
    resource: Resource,
) -> None:
    roles = [*roles_of(lists), Role("all", allow=(Rule.parse("* *"),)), Role("no", deny=(rule,))]
    decision = Policy(roles).decide(user_of(roles), action, resource)
    if rule.matches(action, resource):
        assert not decision.allowed


@given(role_lists, actions, resources, st.randoms())
def test_the_order_of_roles_and_rules_does_not_matter(
    lists: list[tuple[tuple[Rule, ...], tuple[Rule, ...]]],
    action: Action,
    resource: Resource,
    random: object,
) -> None:
    roles = roles_of(lists)
    mixed = [
        Role(
            role.name,
            "",
            tuple(random.sample(role.allow, len(role.allow))),  # type: ignore[attr-defined]
            tuple(random.sample(role.deny, len(role.deny))),  # type: ignore[attr-defined]
        )
        for role in random.sample(roles, len(roles))  # type: ignore[attr-defined]
    ]
    first = Policy(roles).decide(user_of(roles), action, resource)
    second = Policy(mixed).decide(user_of(mixed), action, resource)
    assert first.allowed == second.allowed


@given(role_lists, rules, actions, resources)
def test_an_allow_rule_takes_nothing_away_and_a_deny_rule_adds_nothing(
    lists: list[tuple[tuple[Rule, ...], tuple[Rule, ...]]],
    rule: Rule,
    action: Action,
    resource: Resource,
) -> None:
    roles = roles_of(lists)
    before = Policy(roles).decide(user_of(roles), action, resource).allowed
    more = [*roles, Role("more", allow=(rule,))]
    less = [*roles, Role("less", deny=(rule,))]
    assert Policy(more).decide(user_of(more), action, resource).allowed >= before
    assert Policy(less).decide(user_of(less), action, resource).allowed <= before


@given(role_lists, rule_lists, actions, resources)
def test_a_scope_only_narrows(
    lists: list[tuple[tuple[Rule, ...], tuple[Rule, ...]]],
    scope: tuple[Rule, ...],
    action: Action,
    resource: Resource,
) -> None:
    roles = roles_of(lists)
    policy = Policy(roles)
    without = policy.decide(user_of(roles), action, resource).allowed
    within = policy.decide(user_of(roles, scope), action, resource).allowed
    assert within == (without and any(rule.matches(action, resource) for rule in scope))


@given(role_lists, st.none() | rule_lists, actions, resources)
def test_a_right_on_one_resource_is_a_right_on_some(
    lists: list[tuple[tuple[Rule, ...], tuple[Rule, ...]]],
    scope: tuple[Rule, ...] | None,
    action: Action,
    resource: Resource,
) -> None:
    roles = roles_of(lists)
    policy, principal = Policy(roles), user_of(roles, scope)
    some = policy.decide_some(principal, action, resource.kind).allowed
    assert some >= policy.decide(principal, action, resource).allowed
    if not any(rule.matches(action, resource) for role in roles for rule in role.allow):
        # Its rules are about other names, kinds or actions, or there are none.
        own = [rule for role in roles for rule in role.allow if action in rule.actions]
        assert some <= any(rule.pattern.kind in {None, resource.kind} for rule in own)


@pytest.mark.parametrize(
    ("kind", "roles", "allowed"),
    [
        (PrincipalKind.OWNER, (), True),
        (PrincipalKind.PROCESS, (), True),
        (PrincipalKind.NOBODY, (), False),
        (PrincipalKind.TASK, (), False),
        (PrincipalKind.USER, (), False),
        (PrincipalKind.USER, ("operator",), True),
        (PrincipalKind.USER, ("operator", "gone"), False),
        (PrincipalKind.USER, ("analyst",), False),
    ],
)
def test_who_may_write_some_datasource(
    kind: PrincipalKind, roles: tuple[str, ...], allowed: bool
) -> None:
    principal = Principal(kind, "p", roles)
    found = Policy().decide_some(principal, Action.WRITE, ResourceKind.DATASOURCE)
    assert found.allowed == allowed
    closed = Policy(closed="the rules are damaged")
    again = closed.decide_some(principal, Action.WRITE, ResourceKind.DATASOURCE)
    assert again.allowed == (allowed and kind is not PrincipalKind.USER)


@given(role_lists, st.text(max_size=10), st.text(max_size=10), st.text(max_size=10))
def test_unknown_actions_and_kinds_are_refused_to_everyone(
    lists: list[tuple[tuple[Rule, ...], tuple[Rule, ...]]], action: str, kind: str, name: str
) -> None:
    roles = [*roles_of(lists), Role("all", allow=(Rule.parse("* *"),))]
    policy = Policy(roles)
    everyone = [
        user_of(roles),
        Principal(PrincipalKind.OWNER, "o"),
        Principal(PrincipalKind.PROCESS, "p"),
    ]
    for principal in everyone:
        unknown_action = policy.decide(
            principal, cast("Action", action), Resource(ResourceKind.TOPIC, "a")
        )
        assert unknown_action.allowed == (action in set(Action))
        unknown_kind = policy.decide(
            principal, Action.READ, Resource(cast("ResourceKind", kind), name or "a")
        )
        assert unknown_kind.allowed == (
            kind in set(ResourceKind) and (kind != "system" or name in SYSTEM_PARTS)
        )


@given(role_lists, actions, resources)
def test_a_decision_does_not_depend_on_those_before(
    lists: list[tuple[tuple[Rule, ...], tuple[Rule, ...]]], action: Action, resource: Resource
) -> None:
    roles = roles_of(lists)
    warm = Policy(roles, {"user:v": ("r0",)})
    for kind in (PrincipalKind.USER, PrincipalKind.TOKEN, PrincipalKind.OWNER):
        for name in ("u", "v"):
            for scope in (None, (), (Rule.parse("read *"),)):
                warm.decide(Principal(kind, name, ("r0",), scope), action, resource)
    principal = user_of(roles)
    assert warm.decide(principal, action, resource) == Policy(roles).decide(
        principal, action, resource
    )


def test_memos_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_DECISIONS_MAX", "_ROLE_SETS_MAX", "_PRINCIPALS_MAX"):
        monkeypatch.setattr(f"penstock.core.access.policy.{name}", 3)
    roles = [Role(f"r{n}", allow=(Rule.parse(f"read topic:t{n}"),)) for n in range(10)]
    policy = Policy(roles)
    for n in range(10):
        principal = Principal(PrincipalKind.USER, f"u{n}", (f"r{n}",))
        for m in range(10):
            resource = Resource(ResourceKind.TOPIC, f"t{m}")
            assert policy.decide(principal, Action.READ, resource).allowed == (n == m)
    assert len(policy._decisions) <= 3
    assert len(policy._role_sets) <= 3
    assert len(policy._of_principal) <= 3


def test_a_policy_that_cannot_be_read_lets_in_processes_and_admins_alone() -> None:
    policy = Policy(closed="access.toml: roles.a: unknown key 'alow'")
    resource = Resource(ResourceKind.TOPIC, "a")
    admin = Principal(PrincipalKind.TOKEN, "operator", ("admin",))
    for principal in (admin, Principal(PrincipalKind.PROCESS, "router")):
        assert policy.decide(principal, Action.READ, resource).allowed
    for principal in (Principal(PrincipalKind.USER, "u", ("publisher",)), NOBODY):
        assert not policy.decide(principal, Action.WRITE, resource).allowed
    user = Principal(PrincipalKind.USER, "u", ("publisher",))
    assert policy.decide(user, Action.WRITE, resource).reason == policy.closed


def test_a_deny_rule_covers_all_spellings_of_a_name() -> None:
    roles = [Role("r", allow=(Rule.parse("read *"),), deny=(Rule.parse("* datasource:café"),))]
    policy = Policy(roles)
    for name in ("caf\u00e9", "cafe\u0301"):
        resource = Resource(ResourceKind.DATASOURCE, name)
        assert not policy.decide(user_of(roles), Action.READ, resource).allowed


def test_an_empty_or_endless_name_is_refused() -> None:
    roles = [READY_MADE_ROLES["admin"]]
    for name in ("", "a" * 1_001):
        resource = Resource(ResourceKind.TOPIC, name)
        assert not Policy().decide(user_of(roles), Action.READ, resource).allowed


@pytest.mark.parametrize(
    ("principal", "roles", "everything"),
    [
        ("owner:penstock", (), True),
        ("process:router", (), True),
        ("token:operator", ("admin",), True),
        ("user:carol", ("admin", "viewer"), True),
        ("user:alice", ("admin", "no-deletes"), False),
        ("user:alice", ("admin", "gone"), False),
        ("user:alice", ("operator",), False),
        ("user:alice", (), False),
        ("task:t", (), False),
    ],
)
def test_who_may_do_everything(principal: str, roles: tuple[str, ...], everything: bool) -> None:
    asked = replace(parse_principal(principal), roles=roles)
    assert page_policy().allows_everything(asked) is everything
    narrow = replace(asked, scope=(Rule.parse("* *"),))
    assert page_policy().allows_everything(narrow) is (everything and not roles)


OF_CHANNELS = ["* channel:*", "* topic:*"]


@pytest.mark.parametrize(
    ("denied", "refused"),
    [
        ("* topic:secret", {"read", "write", "manage"}),
        ("read topic:secret", {"read", "write"}),
        ("manage topic:secret", {"manage"}),
        ("write topic:secret", set()),  # it may not publish, but consume
        ("read topic:sec*", {"read", "write"}),
        ("read topic:*", {"read", "write"}),
        ("read *:secret", {"read", "write"}),
        ("read topic:secre", set()),
        ("read topic:secret/c", set()),
        ("read datasource:secret", set()),
    ],
)
def test_a_topic_that_is_denied_is_not_read_through_its_channels(
    denied: str, refused: set[str]
) -> None:
    allow = tuple(Rule.parse(one) for one in OF_CHANNELS)
    policy = Policy([Role("r", "", allow, (Rule.parse(denied),))], {"user:a": ("r",)})
    found = {
        str(action)
        for action in (Action.READ, Action.WRITE, Action.MANAGE)
        if not policy.decide(
            parse_principal("user:a"), action, Resource(K.CHANNEL, "secret/c")
        ).allowed
    }
    assert found == refused
    other = Resource(K.CHANNEL, "public/secret")
    if "*" not in denied.split(":")[1]:
        assert policy.decide(parse_principal("user:a"), Action.READ, other).allowed
