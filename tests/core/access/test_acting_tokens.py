"""Tokens with which a process acts for a principal: its rights are those that it has now."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.access.access_control import AccessControl
from penstock.core.access.bearer_tokens import BEARER_BYTES_MAX
from penstock.core.access.derived_tokens import CLOCKS_DIFFER_S, acted_for, token_for
from penstock.core.access.principal import NAME_CHARACTERS_MAX, Principal, PrincipalKind
from penstock.core.access.rules import Action, Resource, ResourceKind
from penstock.core.errors import Forbidden, InvalidRequest, Unauthenticated
from tests.broker.broker_access_kit import AheadClock, Installation

KEY = b"k" * 32
NOW_MS = 1_790_000_000_000
CLICKS = Resource(ResourceKind.TOPIC, "clicks")
RULES = """
[roles.team]
allow = ["write topic:clicks"]
[principals]
"user:alice" = ["team"]
"certificate:door" = ["team"]
"oidc:carol" = ["team"]
"""
ISSUER = """
[oidc.work]
issuer = "https://issuer.example"
audience = "penstock"
"""


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    made = Installation(tmp_path / "access")
    made.rules(RULES)
    made.user("alice", "correct: horse")
    return made


@pytest.fixture
def flow(installation: Installation) -> AccessControl:
    """The access control of the process that acts for others."""
    return AccessControl(installation.folder, installation.clock, process="flow")


def allowed(installation: Installation, bearer: str, action: Action = Action.WRITE) -> bool:
    principal = installation.control.authenticator.of_bearer(bearer.encode())
    assert principal is not None
    assert principal.via == "process:flow"
    assert not principal.may_act_for_others
    return installation.control.decide(principal, action, CLICKS).allowed


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)


@given(TEXTS, TEXTS)
def test_a_token_is_read_as_it_was_written(principal: str, process: str) -> None:
    bearer = token_for(KEY, process, principal, NOW_MS).encode()
    found = acted_for(KEY, bearer, NOW_MS)
    assert found is not None
    assert found[:2] == (process, principal)
    assert acted_for(KEY, bearer, found.expires_ms - 1) == found
    with pytest.raises(Unauthenticated):
        acted_for(KEY, bearer, found.expires_ms)
    assert acted_for(b"other" * 7, bearer, NOW_MS) is None
    assert acted_for(KEY, bearer[:-1] + b"g", NOW_MS) is None


def test_the_longest_id_fits_into_a_token() -> None:
    longest = "certificate:" + "\U00020000" * NAME_CHARACTERS_MAX
    assert len(token_for(KEY, "flow", longest, NOW_MS)) <= BEARER_BYTES_MAX


def test_the_rights_are_those_of_now(installation: Installation, flow: AccessControl) -> None:
    bearer = flow.key.represented_bearer("user:alice")
    assert allowed(installation, bearer)
    assert not allowed(installation, bearer, Action.MANAGE)
    installation.rules(RULES.replace('"user:alice" = ["team"]', ""))
    assert not allowed(installation, bearer)
    installation.rules(RULES)
    assert allowed(installation, bearer)
    installation.change_password("alice", "another")  # its rights stay
    assert allowed(installation, bearer)
    installation.remove_user("alice")
    assert not allowed(installation, bearer)


def test_a_token_counts_for_minutes(installation: Installation, flow: AccessControl) -> None:
    bearer = flow.key.represented_bearer("user:alice")
    installation.clock.ahead_ms = (CLOCKS_DIFFER_S + 119) * 1000 - 60_000
    assert allowed(installation, bearer)
    installation.clock.ahead_ms = (CLOCKS_DIFFER_S + 121) * 1000
    with pytest.raises(Unauthenticated, match="process:flow, which acts for user:alice"):
        installation.control.authenticator.of_bearer(bearer.encode())
    assert allowed(installation, flow.key.represented_bearer("user:alice"))


def test_the_rights_of_an_open_connection_end_with_the_token(
    installation: Installation, flow: AccessControl
) -> None:
    control = installation.control
    acting = control.authenticator.of_bearer(flow.key.represented_bearer("user:alice").encode())
    assert acting is not None
    assert control.decide(acting, Action.WRITE, CLICKS).allowed
    installation.clock.ahead_ms = (CLOCKS_DIFFER_S + 121) * 1000
    assert not control.decide(acting, Action.WRITE, CLICKS).allowed


def test_roles_scope_and_expiry_of_a_token_count(
    installation: Installation, flow: AccessControl
) -> None:
    installation.token("ci", "publisher", scope=("write topic:other",))
    assert not allowed(installation, flow.key.represented_bearer("token:ci"))
    installation.token("short", "publisher", lasts_ms=60_000)
    bearer = flow.key.represented_bearer("token:short")
    assert allowed(installation, bearer)
    installation.clock.ahead_ms = 60_001
    assert not allowed(installation, bearer)
    installation.remove_token("short")
    assert not allowed(installation, bearer)
    installation.token("short", "publisher")
    assert allowed(installation, bearer)
    assert allowed(installation, flow.key.represented_bearer("token:operator"))
    assert not allowed(installation, flow.key.represented_bearer("token:shared"))


def test_certificates_and_issuers_have_the_roles_of_the_file(
    installation: Installation, flow: AccessControl
) -> None:
    assert allowed(installation, flow.key.represented_bearer("certificate:door"))
    assert not allowed(installation, flow.key.represented_bearer("certificate:other"))
    carol = flow.key.represented_bearer("oidc:carol")
    assert not allowed(installation, carol)  # there is no issuer
    installation.rules(RULES + ISSUER)
    assert installation.control.problems == ()
    assert allowed(installation, carol)
    assert not allowed(installation, flow.key.represented_bearer("oidc:dave"))


@pytest.mark.parametrize(
    "principal", ["owner:root", "process:flow", "task:t", "nobody", "user:", "x", "user:a b", ""]
)
def test_nobody_acts_for_those_that_may_do_more(
    installation: Installation, flow: AccessControl, principal: str
) -> None:
    acting = flow.key.represented_bearer(principal).encode()
    assert installation.control.authenticator.of_bearer(acting) is None
    with pytest.raises(InvalidRequest):
        installation.control.represented.named(principal)


def test_a_former_principal_is_not_the_owner_when_nothing_is_configured(tmp_path: Path) -> None:
    """Otherwise the user id of the flow's process would give it all rights."""
    control = AccessControl(tmp_path / "access", AheadClock(), process="flow")
    acting = control.key.represented_bearer("user:alice").encode()
    principal = control.authenticator.of_bearer(acting)
    assert principal is not None
    assert not control.decide(principal, Action.WRITE, CLICKS).allowed
    assert control.represented.problem(principal) == "the credential was removed or changed"


def test_the_audit_shows_both(
    installation: Installation, flow: AccessControl, caplog: pytest.LogCaptureFixture
) -> None:
    acting = flow.key.represented_bearer("user:alice").encode()
    principal = installation.control.authenticator.of_bearer(acting)
    assert principal is not None
    with (
        caplog.at_level(logging.INFO, "penstock.audit"),
        pytest.raises(Forbidden, match="user:alice, for whom process:flow acts, may not manage"),
    ):
        installation.control.require(principal, Action.MANAGE, CLICKS)
    record = json.loads(caplog.records[-1].getMessage())
    assert (record["principal"], record["via"]) == ("user:alice", "process:flow")


def test_the_header_between_processes_keeps_both() -> None:
    acting = Principal(PrincipalKind.USER, "alice", ("team",), via="process:flow")
    assert Principal.from_header(acting.to_header()) == acting
    with pytest.raises(InvalidRequest):
        Principal.from_header('{"id": "user:alice", "via": 1}')
