"""Notation of resources, patterns and rules; matching against a naive model, in linear time."""

from __future__ import annotations

import itertools
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.access.principal import (
    NOBODY,
    Principal,
    PrincipalKind,
    parse_principal,
)
from penstock.core.access.rules import (
    NAME_CHARACTERS_MAX,
    SYSTEM_PARTS,
    Action,
    Pattern,
    Resource,
    ResourceKind,
    Rule,
    name_matches,
)
from penstock.core.errors import InvalidRequest

few_letters = st.text("ab*", max_size=8)
names = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="*"), min_size=1, max_size=30
).filter(str.isprintable)


def naive_match(pattern: str, name: str) -> bool:
    """Match character by character, trying every length for each star."""
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(naive_match(pattern[1:], name[n:]) for n in range(len(name) + 1))
    return bool(name) and pattern[0] == name[0] and naive_match(pattern[1:], name[1:])


def test_matching_agrees_with_the_naive_model_on_all_short_texts() -> None:
    patterns = ["".join(p) for n in range(6) for p in itertools.product("ab*", repeat=n)]
    texts = ["".join(t) for n in range(6) for t in itertools.product("ab", repeat=n)]
    wrong = [
        (pattern, text)
        for pattern in patterns
        for text in texts
        if name_matches(pattern, text) != naive_match(pattern, text)
    ]
    assert len(patterns) * len(texts) == 364 * 63
    assert not wrong


@given(few_letters, st.text("ab", max_size=12))
def test_matching_agrees_with_the_naive_model(pattern: str, name: str) -> None:
    assert name_matches(pattern, name) == naive_match(pattern, name)


@given(names)
def test_only_a_star_is_special(name: str) -> None:
    assert name_matches(name, name)
    assert name_matches("*", name)
    assert name_matches(f"{name}*", name)
    assert name_matches(f"*{name}", f"x{name}")
    assert not name_matches(name, f"{name}x")
    for special in "?.[a-z]\\^$+(|){}%_":
        assert not name_matches(special, "q")


def test_long_chains_of_stars_take_linear_time() -> None:
    """A backtracking matcher would exceed the time limit of a test by far."""
    for name in ("a" * 1_000, "ab" * 500, "a" * 999 + "b"):
        for pattern in ("*a" * 499 + "*c", "a*" * 500, "*" * 1_000, "*aa" * 300 + "*b*b"):
            assert name_matches(pattern, name) == (pattern.endswith("*") and len(name) >= 500)


@pytest.mark.parametrize("kind", ResourceKind)
@given(name=names)
def test_a_resource_is_read_as_it_is_written(kind: ResourceKind, name: str) -> None:
    if kind is ResourceKind.SYSTEM:
        name = list(SYSTEM_PARTS)[len(name) % len(SYSTEM_PARTS)]
    resource = Resource(kind, name)
    assert Resource.parse(str(resource)) == resource


@given(
    st.frozensets(st.sampled_from(list(Action)), min_size=1),
    st.sampled_from([one for one in ResourceKind if one is not ResourceKind.SYSTEM]),
    names,
)
def test_a_rule_is_read_as_it_is_written(
    actions: frozenset[Action], kind: ResourceKind, name: str
) -> None:
    name = unicodedata.normalize("NFC", name).strip() or "x"
    rule = Rule(actions, Pattern(kind, name))
    assert Rule.parse(str(rule)) == rule


def test_a_message_shows_valid_names_whole_and_longer_ones_shortened() -> None:
    assert Resource(ResourceKind.TASK, "t" * 180).shown == f"task:{'t' * 180}"
    shown = Resource(ResourceKind.DATASOURCE, "d\n" * 5_000).shown
    assert shown.startswith("datasource:'d\\nd\\n")
    assert shown.endswith("…'")
    assert len(shown) < 120


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not a rule"),
        ("read", "is not a rule"),
        ("topic:clicks", "is not a rule"),
        ("read  topic:clicks", "is not a rule"),
        ("read topic:clicks ", "is not a rule"),
        (" read topic:clicks", "is not a rule"),
        ("read, write topic:clicks", "unknown action ''"),
        ("read,,write topic:clicks", "unknown action ''"),
        ("reed topic:clicks", "unknown action 'reed'.*did you mean 'read'"),
        ("READ topic:clicks", "unknown action 'READ'"),
        ("allow topic:clicks", "unknown action"),
        ("read,* topic:clicks", "unknown action"),
        ("read topics:clicks", "unknown kind 'topics'.*did you mean 'topic'"),
        ("read clicks", "does not name a resource"),
        ("read topic:", "does not name a resource"),
        ("read :clicks", "does not name a resource"),
        ("read topic*", "does not name a resource"),
        ("read topic:a\nb", "control character"),
        ("read topic:a\u202eb", "control character"),
        ("read system:acess", "unknown resource.*did you mean 'access'"),
        (f"read topic:{'a' * (NAME_CHARACTERS_MAX + 1)}", "1,001 characters"),
    ],
)
def test_a_mistyped_rule_is_refused_with_the_remedy(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        Rule.parse(text, place="access.toml: roles.a.deny[0]")
    assert str(caught.value).startswith("access.toml: roles.a.deny[0]: ")


@pytest.mark.parametrize("text", ["topic:*", "*", "*:a", "topic:cli*"])
def test_a_pattern_is_not_a_resource(text: str) -> None:
    with pytest.raises(InvalidRequest):
        Resource.parse(text)


def test_names_are_compared_in_normal_form_c() -> None:
    decomposed = unicodedata.normalize("NFD", "café")
    assert decomposed != "café"
    for pattern in (f"datasource:{decomposed}*", "datasource:café", f"*:{decomposed}"):
        for name in ("café", decomposed):
            assert Pattern.parse(pattern).matches(Resource(ResourceKind.DATASOURCE, name))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("*", "*"), ("*:*", "*"), ("*:a", "*:a"), ("topic:*", "topic:*"), ("channel:t/*", None)],
)
def test_a_pattern_is_written_as_it_was_read(pattern: str, text: str | None) -> None:
    assert str(Pattern.parse(pattern)) == (text or pattern)


# Principals

scopes = st.none() | st.lists(
    st.sampled_from([Rule.parse("read topic:*"), Rule.parse("* *"), Rule.parse("write flow:é")]),
    max_size=3,
).map(tuple)


@given(
    st.sampled_from([one for one in PrincipalKind if one is not PrincipalKind.NOBODY]),
    names.map(lambda name: unicodedata.normalize("NFC", name)),
    st.lists(st.sampled_from(["admin", "viewer", "a-b.c"])).map(tuple),
    scopes,
    st.none() | st.integers(0, 2**53),
)
def test_a_principal_passes_through_its_header(
    kind: PrincipalKind,
    name: str,
    roles: tuple[str, ...],
    scope: tuple[Rule, ...] | None,
    expires_ms: int | None,
) -> None:
    if kind in {PrincipalKind.USER, PrincipalKind.TOKEN}:
        name = f"u{len(name)}"
    principal = Principal(kind, name, roles, scope, expires_ms)
    value = principal.to_header()
    assert value.isascii()
    assert value.isprintable()
    assert Principal.from_header(value) == principal


def test_the_header_lacks_the_credential_and_passes_an_anonymous_request() -> None:
    principal = Principal(PrincipalKind.USER, "alice", credential="f" * 32)
    assert "ffff" not in principal.to_header()
    assert Principal.from_header(NOBODY.to_header()) == NOBODY


@pytest.mark.parametrize(
    "value",
    [
        "",
        "user:alice",
        "[]",
        "null",
        "{}",
        '{"id": 1}',
        '{"id": "user:alice", "roles": "admin"}',
        '{"id": "user:alice", "roles": [1]}',
        '{"id": "user:alice", "scope": {}}',
        '{"id": "user:alice", "scope": ["read"]}',
        '{"id": "user:alice", "expires": "tomorrow"}',
        '{"id": "user:alice", "expires": true}',
        '{"id": "user:alice", "expires": 1.5}',
        '{"id": "user:alice", "admin": true}',
        '{"id": "root:alice"}',
        '{"id": "user:"}',
        '{"id": "user:a\\u0000b"}',
        '{"id": "nobody:x"}',
        "[" * 100_000,
    ],
)
def test_another_header_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequest):
        Principal.from_header(value)


@pytest.mark.parametrize(
    "text",
    [
        "alice",
        ":alice",
        "user:",
        "user:a:b",
        "user:a b",
        "token:a/b",
        "user:.a",
        f"user:{'a' * 65}",
        f"certificate:{'a' * 201}",
        "certificate:a\nb",
        "group:a",
        "User:alice",
        "nobody:",
    ],
)
def test_another_text_is_not_a_principal(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_principal(text)
