"""Sealed values: what was sealed comes back, and only with its key, its name and all its bytes."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.core.secret_names import (
    NAME_CHARACTERS_MAX,
    SCHEME,
    check_secret_name,
    is_reference,
    names_in,
    referenced_name,
)
from penstock.storage.secrets.sealed_values import (
    KEY_BYTES,
    VALUE_BYTES_MAX,
    SealedValue,
    SealingKey,
    parse_keys,
    seal,
)

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True)
VALUES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)
KEYS = st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES).map(SealingKey)
TIMES = st.integers(0, 1 << 50)
KEY = SealingKey(bytes(range(KEY_BYTES)))
OTHER = SealingKey(bytes(KEY_BYTES))


@st.composite
def sealed_values(draw: st.DrawFn) -> tuple[SealingKey, SealedValue, str]:
    key, value = draw(KEYS), draw(VALUES)
    version, created, changed = draw(st.integers(1, 1 << 40)), draw(TIMES), draw(TIMES)
    return (
        key,
        seal(
            key,
            draw(NAMES),
            value,
            draw(st.binary(min_size=12, max_size=12)),
            version=version,
            created_ms=created,
            changed_ms=changed,
        ),
        value,
    )


def sealed(value: str = "hush", name: str = "shop", key: SealingKey = KEY) -> SealedValue:
    return seal(key, name, value, os.urandom(12), version=1, created_ms=5, changed_ms=6)


@given(sealed_values(), KEYS)
def test_what_was_sealed_comes_back_with_its_key_alone(
    made: tuple[SealingKey, SealedValue, str], other: SealingKey
) -> None:
    key, one, value = made
    assert one.open([other, key]) == value
    read = SealedValue.from_json(one.name, one.to_json())
    assert read == one
    if len(value) > 3:
        assert value.encode() not in one.sealed
    if other != key:
        with pytest.raises(InvalidRequest, match="which is not given"):
            one.open([other])
        with pytest.raises(InvalidRequest, match="was changed since it was sealed"):
            replace(one, key_id=other.id).open([other])


@given(sealed_values(), st.data())
def test_a_changed_byte_is_noticed(
    made: tuple[SealingKey, SealedValue, str], data: st.DataObject
) -> None:
    key, one, _ = made
    field = data.draw(st.sampled_from(["nonce", "sealed"]))
    content = bytearray(getattr(one, field))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(InvalidRequest):
        replace(one, **{field: bytes(content)}).open([key])
    for changed in (
        replace(one, version=one.version + 1),
        replace(one, created_ms=one.created_ms + 1),
        replace(one, changed_ms=one.changed_ms + 1),
        replace(one, name=f"{one.name}x"),
        replace(one, sealed=one.sealed[:-1]),
        replace(one, sealed=one.sealed + b"\0"),
    ):
        with pytest.raises(InvalidRequest, match="was changed since it was sealed"):
            changed.open([key])


def test_values_cannot_be_swapped() -> None:
    one, other = sealed("hush", "one"), sealed("quiet", "other")
    for changed in (replace(one, name="other"), replace(other, sealed=one.sealed)):
        with pytest.raises(InvalidRequest, match="was changed since it was sealed"):
            changed.open([KEY])


@given(st.data())
def test_each_changed_character_of_the_stored_form_is_noticed(data: st.DataObject) -> None:
    """Base64 has spare bits, which a decoder ignores: they must not hide a change."""
    form = sealed().to_json()
    field = data.draw(st.sampled_from(["nonce", "sealed", "key"]))
    text = str(form[field])
    place = data.draw(st.integers(0, len(text) - 1))
    character = data.draw(st.characters(codec="ascii").filter(lambda c: c != text[place]))
    changed = {**form, field: text[:place] + character + text[place + 1 :]}
    with pytest.raises(InvalidRequest):
        SealedValue.from_json("shop", changed).open([KEY])


@pytest.mark.parametrize(
    "change",
    [
        {"version": True},
        {"version": "1"},
        {"nonce": ""},
        {"nonce": "AAAA"},
        {"sealed": ""},
        {"sealed": None},
        {"more": 1},
    ],
)
def test_another_form_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        SealedValue.from_json("shop", sealed().to_json() | change)
    with pytest.raises(InvalidRequest):
        SealedValue.from_json("shop", [])


@pytest.mark.parametrize("value", ["", "x" * (VALUE_BYTES_MAX + 1), "\ud800"])
def test_a_value_that_cannot_be_kept_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequest, match="a secret must"):
        sealed(value)


@given(st.lists(KEYS, min_size=1, max_size=8))
def test_keys_are_text_and_their_ids_reveal_nothing(keys: list[SealingKey]) -> None:
    text = "\n".join(key.text for key in keys)
    assert parse_keys(f" {text}\n") == tuple(keys)
    for key in keys:
        assert key.id not in text
        assert key.text not in repr(key)
        assert repr(key.secret) not in repr(key)


@pytest.mark.parametrize("text", ["", "short", KEY.text + "A", KEY.text[:-1] + "!", "A " * 9])
def test_a_text_that_is_no_key_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse_keys(text)
    assert not text or text not in str(error.value)


def test_the_same_value_has_the_same_fingerprint_under_one_key_alone() -> None:
    assert KEY.fingerprint("hush") == KEY.fingerprint("hush")
    assert len({KEY.fingerprint("hush"), KEY.fingerprint("husk"), OTHER.fingerprint("hush")}) == 3


@given(NAMES)
def test_a_name_comes_back_from_its_reference(name: str) -> None:
    assert referenced_name(f"{SCHEME}{name}") == check_secret_name(name) == name


@pytest.mark.parametrize(
    "text", ["", "hush", "secret:/a", "secrets://a", "x secret://a", "https://"]
)
def test_other_text_is_no_reference(text: str) -> None:
    assert referenced_name(text) is None


@pytest.mark.parametrize(
    "text",
    [
        *("secret://", "secret:///a", "secret://a/b", "secret://../key", "secret://a b"),
        *("SECRET://a", " secret://a", "secret://a\n", "secret://ä", "secret://.a"),
        "secret://" + "a" * (NAME_CHARACTERS_MAX + 1),
    ],
)
def test_a_wrong_reference_is_refused_and_not_taken_for_a_value(text: str) -> None:
    assert is_reference(text)
    with pytest.raises(InvalidRequest):
        referenced_name(text)


def test_the_names_in_a_spec_are_those_of_whole_texts() -> None:
    spec = {"a": ["secret://one", {"b": "secret://two"}], "secret://key": 1, "c": "x secret://no"}
    assert sorted(names_in(spec)) == ["one", "two"]
    assert list(names_in(["secret://a/b", None, 5])) == []
