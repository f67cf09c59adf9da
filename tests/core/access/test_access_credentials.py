"""Users and tokens: the file, its strict reading, and changes by several processes at once."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.access.bearer_tokens import new_token, stored_token_id, token_digest
from penstock.core.access.credentials import (
    CredentialFile,
    Credentials,
    parse_credentials,
)
from penstock.core.access.passwords import (
    CORRECT_S,
    WRONG_S,
    PasswordChecks,
    check_password,
    hash_password,
)
from penstock.core.access.principal import Principal, PrincipalKind
from penstock.core.access.rules import Rule
from penstock.core.clock import SystemClock
from penstock.core.errors import Conflict, Full, InvalidRequest, NotFound
from penstock.testing.clock import VirtualClock

# Parameters that are quick to check.
HASH = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("correct horse")
OTHER_HASH = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("other horse")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "access" / "credentials.json"


@pytest.fixture
def file(path: Path) -> CredentialFile:
    return CredentialFile(path, VirtualClock(5_000))


def test_users_and_tokens_are_added_and_removed(file: CredentialFile, path: Path) -> None:
    assert file.read() == Credentials({}, {})
    file.add_user("alice", HASH, ("analyst",))
    token = file.add_token("ci", ("publisher",), ("write topic:a*",), 9_000)
    found = file.read()
    assert found.user_principal("alice") == Principal(
        PrincipalKind.USER,
        "alice",
        ("analyst",),
        credential=found.users["alice"].fingerprint,
    )
    assert found.user_principal("bob") is None
    stored = found.stored_tokens()[token.id]
    assert stored.digest == token_digest(token.text.encode()) == token.digest
    assert stored.principal.id == "token:ci"
    assert stored.principal.scope == (Rule.parse("write topic:a*"),)
    assert (stored.principal.expires_ms, found.tokens[token.id].created) == (9_000, 5_000)
    text = path.read_text()
    assert token.text.split("_", 2)[2] not in text
    assert "correct horse" not in text
    file.remove_token("ci")
    file.remove_user("alice")
    assert file.read() == Credentials({}, {})


def test_a_new_password_and_other_roles_are_another_credential(file: CredentialFile) -> None:
    file.add_user("alice", HASH)
    before = file.read().user_principal("alice")
    file.set_password("alice", OTHER_HASH)
    after = file.read().user_principal("alice")
    assert before
    assert after
    assert before.credential != after.credential


def test_what_exists_or_is_missing_is_reported(file: CredentialFile) -> None:
    file.add_user("alice", HASH)
    file.add_token("ci")
    with pytest.raises(Conflict, match=r"user alice exists already.*penstock user password"):
        file.add_user("alice", HASH)
    with pytest.raises(Conflict, match=r"token ci exists already.*penstock token remove ci"):
        file.add_token("ci")
    with pytest.raises(NotFound, match="'bob' does not exist: penstock user list"):
        file.set_password("bob", HASH)
    with pytest.raises(NotFound, match="'bob' does not exist: penstock user list"):
        file.remove_user("bob")
    with pytest.raises(NotFound, match="'cd' does not exist: penstock token list"):
        file.remove_token("cd")


@pytest.mark.parametrize(
    "name", ["", "a:b", "a b", ".a", "é", "a\n", "a" * 65, "operator", "shared"]
)
def test_invalid_names_change_nothing(file: CredentialFile, path: Path, name: str) -> None:
    with pytest.raises(InvalidRequest):
        file.add_token(name)
    if name not in {"operator", "shared"}:
        with pytest.raises(InvalidRequest):
            file.add_user(name, HASH)
    assert not path.exists()


def test_invalid_roles_and_scopes_change_nothing(file: CredentialFile, path: Path) -> None:
    with pytest.raises(InvalidRequest, match="not a valid name of a role"):
        file.add_token("ci", ("a b",))
    with pytest.raises(InvalidRequest, match="not a valid name of a role"):
        file.add_user("ci", HASH, ("",))
    with pytest.raises(InvalidRequest, match="unknown action"):
        file.add_token("ci", scope=("reed topic:a",))
    with pytest.raises(InvalidRequest, match="101 rules"):
        file.add_token("ci", scope=("read topic:a",) * 101)
    assert not path.exists()


TOKEN = {"name": "ci", "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ("", "credentials.json: "),
        ("[]", "credentials.json: "),
        ("{", "credentials.json: "),
        ("[" * 100_000, "credentials.json: "),
        ({"users": {}}, "missing required field `format`"),
        ({"format": 2}, "has format 2"),
        ({"format": "1"}, "Expected `int`"),
        ({"format": 1, "groups": {}}, "unknown field `groups`"),
        ({"format": 1, "users": []}, r"Expected `object`.*\$.users"),
        ({"format": 1, "users": {"a": {"password": HASH, "admin": True}}}, "unknown field `admin`"),
        ({"format": 1, "users": {"a": {}}}, "missing required field `password`"),
        ({"format": 1, "users": {"a": {"password": "x"}}}, "users.a: the password is not"),
        ({"format": 1, "users": {"a": {"password": "$2b$10$" + "x" * 50}}}, "is not an argon2id"),
        ({"format": 1, "users": {"a:b": {"password": HASH}}}, "users.a:b: 'a:b' is not a valid"),
        ({"format": 1, "users": {"a": {"password": HASH, "roles": ["a b"]}}}, "users.a: 'a b'"),
        ({"format": 1, "tokens": {"i": {**TOKEN, "sha256": "0" * 63}}}, "tokens.i: sha256 is not"),
        ({"format": 1, "tokens": {"i": {**TOKEN, "sha256": "0" * 64 + "\n"}}}, "sha256 is not"),
        ({"format": 1, "tokens": {"i": {**TOKEN, "scope": ["x"]}}}, "tokens.i: 'x' is not a rule"),
        ({"format": 1, "tokens": {"i": {**TOKEN, "expires": "never"}}}, "Expected `int | null`"),
        ({"format": 1, "tokens": {"i": {**TOKEN, "name": "operator"}}}, "is reserved"),
        ({"format": 1, "tokens": {"i": TOKEN, "j": TOKEN}}, "tokens.j: the name 'ci' exists twice"),
    ],
)
def test_a_damaged_file_is_refused_with_its_place(document: object, place: str) -> None:
    content = document if isinstance(document, str) else json.dumps(document)
    with pytest.raises(InvalidRequest, match=place):
        parse_credentials(content.encode(), "credentials.json")


@given(st.binary(max_size=60))
def test_any_bytes_are_credentials_or_invalid(content: bytes) -> None:
    try:
        parse_credentials(content, "credentials.json")
    except InvalidRequest:
        return


def test_a_file_that_others_can_read_is_refused(file: CredentialFile, path: Path) -> None:
    file.add_user("alice", HASH)
    path.chmod(0o644)
    with pytest.raises(InvalidRequest, match="chmod 600"):
        file.read()
    with pytest.raises(InvalidRequest, match="chmod 600"):
        file.add_token("ci")


def test_commands_at_once_lose_no_change(path: Path) -> None:
    """Threads stand for processes: each has its own descriptor of the lock."""

    def add(number: int) -> None:
        CredentialFile(path, SystemClock()).add_token(f"t{number}")

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = {token.name for token in CredentialFile(path, SystemClock()).read().tokens.values()}
    assert names == {f"t{number}" for number in range(8)}


# Bearer tokens


def test_a_token_has_256_random_bits_and_an_id() -> None:
    tokens = [new_token() for _ in range(100)]
    assert len({token.text for token in tokens}) == len({token.id for token in tokens}) == 100
    for token in tokens:
        assert stored_token_id(token.text.encode()) == token.id
        assert len(token.text.split("_", 2)[2]) == 43
        assert token.text.isascii()
        assert " " not in token.text


@pytest.mark.parametrize(
    "text", [b"", b"x", b"penstock", b"penstock_", b"penstock_a", b"Penstock_a_b", b"\xff_\xff_a"]
)
def test_other_texts_have_no_id(text: bytes) -> None:
    assert stored_token_id(text) == ""


# Passwords


def test_passwords_are_checked_and_remembered_for_seconds() -> None:
    clock = VirtualClock()
    checks = PasswordChecks(clock)
    assert checks.remembered(HASH, "correct horse") is None
    assert checks.is_correct(HASH, "correct horse")
    assert not checks.is_correct(HASH, "wrong horse")
    assert not checks.is_correct(None, "correct horse")
    assert checks.remembered(HASH, "correct horse") is True
    assert checks.remembered(HASH, "wrong horse") is False
    assert checks.remembered(OTHER_HASH, "correct horse") is None
    clock.advance(WRONG_S)
    assert checks.remembered(HASH, "wrong horse") is None
    clock.advance(CORRECT_S - WRONG_S)
    assert checks.remembered(HASH, "correct horse") is None


def test_a_password_is_compared_in_normal_form_c_and_may_be_anything() -> None:
    stored = hash_password("caf\u00e9 12345")
    assert stored.startswith("$argon2id$v=19$m=65536,t=3,p=4$")
    checks = PasswordChecks(VirtualClock())
    assert checks.is_correct(stored, "cafe\u0301 12345")
    for other in ("", "\ud800", "\0", "é" * 1_001):
        assert not checks.is_correct(HASH, other)


@pytest.mark.parametrize("password", ["", "short", "a" * 1_001, "with\0control", "with\nline end"])
def test_bad_passwords_are_refused_without_showing_them(password: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_password(password)
    assert not password or password not in str(caught.value)


def test_a_flood_of_passwords_is_refused() -> None:
    checks = PasswordChecks(VirtualClock())
    for _ in range(8):  # as many threads that wait for the mutex
        assert checks._waiting.acquire(blocking=False)
    with pytest.raises(Full, match="too many passwords"):
        checks.is_correct(HASH, "x")
    checks._waiting.release()
    assert not checks.is_correct(HASH, "x")
