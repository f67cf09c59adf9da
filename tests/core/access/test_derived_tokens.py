"""Tokens of processes and tasks: whose they are, and for how long they count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.access.access_control import AccessControl
from penstock.core.access.derived_tokens import (
    CLOCKS_DIFFER_S,
    PROCESS_MADE_AGAIN_S,
    TASK_MADE_AGAIN_S,
    derived_principal,
    key_of_peon,
    new_key,
    parse_key,
    peon_caller,
    peon_token,
    process_token,
    task_token,
)
from penstock.core.access.principal import Principal, PrincipalKind
from penstock.core.access.rules import Action, Resource, ResourceKind, Rule
from penstock.core.errors import InvalidRequest, Unauthenticated
from penstock.testing.clock import VirtualClock

KEY = parse_key(new_key().encode(), "process.key")
OTHER = parse_key(new_key().encode(), "process.key")
NOW_MS = 1_767_225_645_678
ACCESS = Resource(ResourceKind.SYSTEM, "access")
RULES = (Rule.parse("read topic:clicks"), Rule.parse("write topic:bad"))

Names = st.text(min_size=1).filter(str.isprintable)
Makers = st.sampled_from(
    [
        lambda key, name: process_token(key, name, NOW_MS),
        lambda key, name: task_token(key, name, (), NOW_MS),
        lambda key, name: task_token(key, name, RULES, NOW_MS),
        lambda key, name: peon_token(key_of_peon(key, name), name, NOW_MS),
    ]
)
Maker = Callable[[bytes, str], str]


def read(key: bytes, name: str, bearer: str | bytes, now_ms: int = NOW_MS) -> Principal | None:
    """The principal that a process, or else the peon of a task, takes a token for."""
    text = bearer.encode() if isinstance(bearer, str) else bearer
    found = derived_principal(key, text, now_ms)
    called = peon_caller(key_of_peon(key, name), name, text, now_ms)
    assert found is None or called is None
    return found or called


@given(Makers, Names, st.data())
def test_a_token_belongs_to_one_key_kind_name_and_time(
    make: Maker, name: str, data: st.DataObject
) -> None:
    bearer = make(KEY, name)
    assert bearer.isascii()
    found = read(KEY, name, bearer)
    assert found is not None
    assert found.name == (name if "penstock-peon" not in bearer else "caller-of-peon")
    assert found.scope == (RULES if bearer == task_token(KEY, name, RULES, NOW_MS) else None)
    assert read(OTHER, name, bearer) is None
    # Another text of the same form is no token, whatever its kind, name and time say.
    words = bearer.split("_")
    at = data.draw(st.integers(0, len(words) - 1))
    other = data.draw(
        st.sampled_from(["penstock-process", "penstock-task", "penstock-peon"])
        if at == 0
        else st.binary(min_size=1).map(bytes.hex)
        if at != len(words) - 2
        else st.integers(NOW_MS // 1000 - 60, NOW_MS // 1000 + 60).map(str)
    )
    forged = "_".join([*words[:at], other, *words[at + 1 :]])
    assert forged == bearer or read(KEY, name, forged) is None


@pytest.mark.parametrize(
    "bearer",
    [
        *(b"", b"penstock-process", b"penstock-process_", b"penstock-process__", b"_" * 9),
        *(b"penstock-process_zz_1_00", b"penstock-process_ff_1_00", b"penstock-owner_61_1_00"),
        *(b"penstock-process_61_1_\xff", b"penstock-task_\xff__1_00", b"penstock-process_61__00"),
        *(b"penstock-process_61_-1_00", b"penstock-process_61_1e9_00", b"penstock-process_61_00"),
        *(b"penstock-process_61_" + b"9" * 500 + b"_00", b"penstock-process_61_\xd9\xa1_00"),
    ],
)
def test_other_texts_are_no_token(bearer: bytes) -> None:
    assert read(KEY, "a", bearer) is None


def test_a_time_has_one_form() -> None:
    prefix, name, made, mac = process_token(KEY, "router", NOW_MS).split("_")
    for other in (f"0{made}", f"+{made}", f" {made}", f"{made}.0", f"{made[:-1]}"):
        assert read(KEY, "x", f"{prefix}_{name}_{other}_{mac}") is None


@pytest.mark.parametrize("content", [b"", b"00", b"zz" * 32, b"00" * 33, b"\xff" * 64])
def test_another_content_is_not_a_key(content: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"process.key: it is not a key of 32 bytes"):
        parse_key(content, "process.key")


# Time


def test_a_token_is_the_same_for_a_minute() -> None:
    start_ms = NOW_MS // 60_000 * 60_000
    made = {process_token(KEY, "router", start_ms + s * 1000) for s in range(60)}
    assert len(made) == 1
    assert process_token(KEY, "router", start_ms + 60_000) not in made


@given(
    st.integers(-CLOCKS_DIFFER_S, CLOCKS_DIFFER_S),
    st.integers(0, PROCESS_MADE_AGAIN_S),
    Names,
)
def test_clocks_may_differ(apart_s: int, delay_s: int, name: str) -> None:
    """A token that is sent within the interval of renewal counts on every clock."""
    made: tuple[tuple[Callable[[int], str], int], ...] = (
        (lambda ms: process_token(KEY, name, ms), delay_s),
        (lambda ms: peon_token(key_of_peon(KEY, name), name, ms), delay_s),
        (lambda ms: task_token(KEY, name, (), ms), TASK_MADE_AGAIN_S),
    )
    for make, age_s in made:
        assert read(KEY, name, make(NOW_MS), NOW_MS + (age_s + apart_s) * 1000) is not None


@pytest.mark.parametrize(
    ("bearer", "counts_s"),
    [
        (process_token(KEY, "t", NOW_MS // 60_000 * 60_000), 120),
        (peon_token(key_of_peon(KEY, "t"), "t", NOW_MS // 60_000 * 60_000), 120),
        (task_token(KEY, "t", (), NOW_MS // 60_000 * 60_000), 1_800),
    ],
    ids=("process", "peon", "task"),
)
def test_a_token_ages_out(bearer: str, counts_s: int) -> None:
    made_ms = NOW_MS // 60_000 * 60_000
    end_ms = made_ms + (counts_s + CLOCKS_DIFFER_S) * 1000
    for now_ms in (made_ms - CLOCKS_DIFFER_S * 1000, made_ms, end_ms - 1):
        found = read(KEY, "t", bearer, now_ms)
        assert found is not None
        assert found.expires_ms == end_ms
    for now_ms in (made_ms - CLOCKS_DIFFER_S * 1000 - 1, end_ms, end_ms + 10**10, 0):
        with pytest.raises(Unauthenticated, match=r"clocks of hosts may differ by 5 minutes"):
            read(KEY, "t", bearer, now_ms)


def test_a_connection_loses_the_rights_of_its_token_when_that_ends(tmp_path: Path) -> None:
    clock = VirtualClock()
    control = AccessControl(tmp_path / "access", clock, process="router")
    stolen = control.key.process_bearer()
    principal = control.authenticator.of_bearer(stolen.encode())
    assert principal is not None
    assert control.decide(principal, Action.MANAGE, ACCESS).allowed
    clock.advance(120 + CLOCKS_DIFFER_S)
    assert not control.decide(principal, Action.MANAGE, ACCESS).allowed
    with pytest.raises(Unauthenticated):
        control.authenticator.of_bearer(stolen.encode())
    # The process itself has another one.
    current = control.authenticator.of_bearer(control.key.process_bearer().encode())
    assert current is not None
    assert current.kind is PrincipalKind.PROCESS
    assert control.decide(current, Action.MANAGE, ACCESS).allowed


def test_a_task_that_runs_for_days_always_has_a_token_that_counts(tmp_path: Path) -> None:
    """Its worker renews it, and overlords with other clocks come and go."""
    clock = VirtualClock()
    worker = AccessControl(tmp_path / "access", clock, process="worker")
    for step in range(3 * 24 * 12):
        sent = worker.key.task_bearer("t", RULES)
        behind = VirtualClock(clock.now_ms() + (-1) ** step * CLOCKS_DIFFER_S * 1000)
        overlord = AccessControl(tmp_path / "access", behind, process="overlord")
        behind.advance(TASK_MADE_AGAIN_S)
        found = overlord.authenticator.of_bearer(sent.encode())
        assert found is not None
        assert found.id == "task:t"
        clock.advance(TASK_MADE_AGAIN_S)
