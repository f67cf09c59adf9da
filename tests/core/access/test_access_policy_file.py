"""The file `access.toml`: what it may say, and errors with place, reason and remedy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.access.policy import READY_MADE_ROLES
from penstock.core.access.policy_file import parse_policy
from penstock.core.errors import InvalidRequest


def test_a_file_has_roles_and_principals() -> None:
    policy = parse_policy(
        """
        [roles.team]
        about = "A team"
        allow = ["read,write topic:clicks*"]
        deny = ["* topic:clicks-secret"]
        [roles."a.b"]
        deny = ["manage *"]
        [principals]
        "user:alice" = ["team", "analyst", "team"]
        "certificate:Collector 1" = ["publisher"]
        "oidc:https://issuer/é" = []
        """,
        "access.toml",
    )
    assert list(policy.own_roles) == ["team", "a.b"]
    assert policy.own_roles["team"].about == "A team"
    assert [str(rule) for rule in policy.own_roles["team"].deny] == ["* topic:clicks-secret"]
    assert policy.principals == {
        "user:alice": ("team", "analyst"),
        "certificate:Collector 1": ("publisher",),
        "oidc:https://issuer/é": (),
    }
    assert policy.roles.keys() == {"team", "a.b", *READY_MADE_ROLES}


def test_an_empty_file_is_valid() -> None:
    assert not parse_policy("", "access.toml").own_roles


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[roles]]", "access.toml: line 1, column 8: it is not valid TOML"),
        ("[roles", "access.toml: end of document: it is not valid TOML"),
        ("a = 1\n\nb = [", "access.toml: end of document: it is not valid TOML"),
        ("[roles.a]\n[roles.a]", "access.toml: line 2, column 9: it is not valid TOML"),
        ("[role.a]", "access.toml: unknown key 'role'.*did you mean 'roles'"),
        ("version = 1", "access.toml: unknown key 'version': use roles or principals"),
        ("roles = 1", "access.toml: roles: must be a table, not '1'"),
        ("[roles]\na = []", r"access.toml: roles.a: must be a table"),
        ("[[roles]]\na = 1", "access.toml: roles: must be a table"),
        ("[roles.a]", r"access.toml: roles.a: the role has no rule: write allow = "),
        ("[roles.a]\nalow = []", "access.toml: roles.a: unknown key 'alow'.*did you mean 'allow'"),
        ("[roles.a]\nallow = 'read *'", r"access.toml: roles.a.allow: must be a list of texts"),
        ("[roles.a]\nallow = [1]", r"access.toml: roles.a.allow: must be a list of texts"),
        ("[roles.a]\nallow = ['read x']", r"access.toml: roles.a.allow\[0\]: 'x' does not name"),
        (
            "[roles.a]\nallow = ['read *']\ndeny = ['read *', 'wrte topic:x']",
            r"access.toml: roles.a.deny\[1\]: unknown action 'wrte'.*did you mean 'write'",
        ),
        ("[roles.a]\nrow_filters = 'x'", "access.toml: roles.a.row_filters: must be a table"),
        ("[roles.a]\nrow_filters.b = 1", "roles.a.row_filters.b: must be a text, such as clicks"),
        ("[roles.a]\nrow_filters.'' = 'true'", "roles.a.row_filters.'': 'datasource:' does not"),
        ("[roles.a]\nrow_filters.b = 'rand() = 1'", r"roles.a.row_filters.b: rand\(\) is not"),
        ("[roles.a]\nmasks.b = 'hash'", r"roles.a.masks.b: must be a table of columns"),
        ("[roles.a]\nmasks.b.c = 1", 'roles.a.masks.b.c: must be a text, such as email = "hash"'),
        ("[roles.a]\nmasks.'b*'.c = 'd'", r"roles.a.masks.'b\*'.c: d is not the masked column"),
        ("[roles.a]\nabout = 1\nallow = []", "access.toml: roles.a.about: must be a text"),
        ("[roles.admin]\ndeny = ['* *']", "access.toml: roles.admin: the role admin is ready-made"),
        ("[roles.'a b']\nallow = []", "access.toml: roles.'a b': 'a b' is not a valid name"),
        ("[roles.'']\nallow = []", "access.toml: roles.'': '' is not a valid name"),
        ("principals = []", "access.toml: principals: must be a table"),
        ("[principals]\nalice = []", "access.toml: principals.alice: 'alice' does not name"),
        ("[principals]\n'user:a' = 'x'", "access.toml: principals.'user:a': must be a list"),
        (
            "[principals]\n'user:a' = ['viewer', 'publsher']",
            r"principals.'user:a'\[1\]: unknown role 'publsher'.*did you mean 'publisher'",
        ),
        ("[principals]\n'users:a' = []", "unknown kind 'users'.*did you mean 'user'"),
        ("[principals]\n'owner:a' = []", "the rights of owner:a are fixed"),
        ("[principals]\n'process:a' = []", "the rights of process:a are fixed"),
        ("[principals]\n'task:a' = []", "the rights of task:a are fixed"),
        ("[principals]\nnobody = ['admin']", "the rights of nobody are fixed"),
        ("[principals]\n'token:operator' = []", "token:operator always has the role admin"),
        ("[principals]\n'token:shared' = []", "token:shared always has the role admin"),
        (
            "[principals]\n'oidc:\u00e9' = []\n'oidc:e\u0301' = []",
            "oidc:é has two lines, whose texts differ only",
        ),
        ("a = " + "[" * 100_000, "access.toml: its values nest too deeply"),
        ("\x00", "access.toml: line 1, column 1: it is not valid TOML"),
        ("\ufeff[roles]", "access.toml: line 1, column 1: it is not valid TOML"),
    ],
)
def test_an_invalid_file_has_an_error_with_place_reason_and_remedy(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse_policy(text, "access.toml")


tables = st.recursive(
    st.none().map(lambda _: "1") | st.sampled_from(["true", "'x'", "[]", "['* *']", "[[]]", "1.5"]),
    lambda inner: st.lists(inner, max_size=2).map(lambda values: f"[{', '.join(values)}]"),
    max_leaves=4,
)
keys = st.sampled_from(
    [
        *("roles", "principals", "allow", "deny", "about", "'user:a'", "a", "row_filters", "admin"),
        *("quotas", "queries", "query_bytes"),
    ]
)


@given(
    st.lists(
        st.tuples(st.lists(keys, min_size=1, max_size=3).map(".".join), tables), max_size=4
    ).map(lambda pairs: "\n".join(f"{key} = {value}" for key, value in pairs))
)
def test_any_other_document_is_refused_as_invalid(text: str) -> None:
    assert problem_of(text).startswith(("access.toml: ", "none"))


@given(st.text(max_size=60))
def test_any_text_is_a_policy_or_invalid(text: str) -> None:
    assert problem_of(text).startswith(("access.toml: ", "none"))


def problem_of(text: str) -> str:
    """Return the error of a file, or "none"; other exceptions fail the test."""
    try:
        parse_policy(text, "access.toml")
    except InvalidRequest as error:
        return str(error)
    return "none"
