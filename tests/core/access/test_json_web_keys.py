"""Keys of issuers and signatures: examples of the standards, other keys, other algorithms."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import OctKey, OKPKey
from joserfc.jws import JWSRegistry

from penstock.core.access.json_web_keys import (
    ALGORITHMS,
    KEYS_MAX,
    base64url,
    parse_key_set,
    strict_json,
)
from penstock.core.errors import InvalidRequest
from tests.kits.oidc_kit import Key, ec_key, ed_key, key_set, rsa_key

KEY_OF: dict[str, Key] = {
    **{f"{kind}{size}": rsa_key() for kind in ("RS", "PS") for size in (256, 384, 512)},
    "ES256": ec_key(),
    "ES384": ec_key("ec384", "P-384"),
    "ES512": ec_key("ec521", "P-521"),
    "EdDSA": ed_key(),
    "Ed25519": ed_key(),
}


def keys_of(*fields: dict[str, object]) -> bytes:
    return json.dumps({"keys": fields}).encode()


def public(key: Key, **more: object) -> dict[str, object]:
    return {**key.as_dict(private=False), **more}


def test_the_algorithms_are_those_with_public_keys() -> None:
    assert KEY_OF.keys() == ALGORITHMS


@pytest.mark.parametrize("algorithm", KEY_OF)
def test_a_signature_counts_for_its_own_algorithm_only(algorithm: str) -> None:
    made = JWSRegistry.algorithms[algorithm].sign(b"text", KEY_OF[algorithm])
    keys = parse_key_set(key_set(*{id(one): one for one in KEY_OF.values()}.values()), place="keys")
    for named in (*KEY_OF, "none", "HS256", "", "RS1"):
        is_same = algorithm == named or {algorithm, named} == {"EdDSA", "Ed25519"}
        assert any(key.verifies(named, b"text", made) for key in keys) is is_same
        assert not any(key.verifies(named, b"texT", made) for key in keys)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
@given(st.binary(max_size=200))
def test_no_other_bytes_are_a_signature(algorithm: str, signature: bytes) -> None:
    (key,) = parse_key_set(key_set(KEY_OF[algorithm]), place="keys")
    assert not key.verifies(algorithm, b"text", signature)


def test_the_examples_of_the_standards_are_valid() -> None:
    # RFC 7515, A.3 (ES256), and RFC 8037, A.4 (EdDSA).
    payload = urlsafe_b64encode(
        b'{"iss":"joe",\r\n "exp":1300819380,\r\n "http://example.com/is_root":true}'
    ).rstrip(b"=")
    es256 = keys_of(
        {
            "kty": "EC",
            "crv": "P-256",
            "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
            "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
        }
    )
    signature = (
        "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q"
    )
    (key,) = parse_key_set(es256, place="keys")
    signed = b"eyJhbGciOiJFUzI1NiJ9." + payload
    assert key.verifies("ES256", signed, base64url(signature))
    ed25519 = keys_of(
        {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}
    )
    signature = (
        "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"
    )
    (key,) = parse_key_set(ed25519, place="keys")
    signed = b"eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc"
    assert key.verifies("EdDSA", signed, base64url(signature))


@pytest.mark.parametrize(
    "fields",
    [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "x"},
        {"kty": ["RSA"], "n": "AQAB", "e": "AQAB"},
        public(rsa_key(), n="_" * 168),
        public(rsa_key(), e="AQ"),
        public(rsa_key(), e="Ag"),
        public(rsa_key(), e="AQAAAAE"),
        public(rsa_key(), n="A" * 3_000),
        public(rsa_key(), n=5),
        public(rsa_key(), n="*"),
        public(rsa_key(), use="enc"),
        public(rsa_key(), key_ops=["encrypt"]),
        public(rsa_key(), key_ops="verify"),
        public(rsa_key(), alg="HS256"),
        public(rsa_key(), alg="RSA-OAEP"),
        public(rsa_key(), alg=["RS256"]),
        public(rsa_key(), kid=7),
        public(rsa_key(), kid="k" * 201),
        public(ec_key(), x="AAAA"),
        public(ec_key(), crv="P-384"),
        public(ec_key(), crv="secp256k1"),
        public(ec_key(), crv=["P-256"]),
        public(ed_key(), x="AAAA"),
        public(ed_key(), crv="Ed448"),
        public(OKPKey.generate_key("X25519", private=True)),
        public(OctKey.generate_key(256), kty="oct"),
        {},
    ],
)
def test_keys_that_cannot_be_used_are_left_out(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="keys: none of its 1 keys can be used"):
        parse_key_set(keys_of(fields), place="keys")
    (key,) = parse_key_set(keys_of(fields, public(ec_key())), place="keys")
    assert key.kid == "ec"


def test_a_key_may_name_its_only_algorithm() -> None:
    (key,) = parse_key_set(keys_of(public(rsa_key(), alg="PS256")), place="keys")
    assert key.algorithms == {"PS256"}
    (key,) = parse_key_set(keys_of(public(ed_key(), alg="EdDSA")), place="keys")
    assert key.algorithms == {"EdDSA", "Ed25519"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[]", "not a JWK set"),
        (b"{}", "not a JWK set"),
        (b'{"keys": {}}', "not a JWK set"),
        (b'{"keys": [], "keys": []}', "an object has the same name twice"),
        (b'{"keys": []}', "none of its 0 keys"),
        (b'{"keys": [1, null, "x"]}', "none of its 3 keys"),
        (json.dumps({"keys": [{}] * (KEYS_MAX + 1)}).encode(), "it has 101 keys"),
        (b'{"keys": ' + b"[" * 100_000, "it nests too deeply"),
    ],
)
def test_other_documents_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=f"place: .*{message}"):
        parse_key_set(content, place="place")


@given(st.binary(max_size=50))
def test_bytes_have_one_text_in_base64url(data: bytes) -> None:
    text = urlsafe_b64encode(data).decode().rstrip("=")
    if data:
        assert base64url(text) == data
        with pytest.raises(ValueError, match="base64url"):
            base64url(text + "=")


@given(st.text("AZaz09-_=+/ \n", max_size=8))
def test_a_text_that_is_accepted_is_the_only_one_of_its_bytes(text: str) -> None:
    try:
        found = base64url(text)
    except ValueError:
        return
    assert urlsafe_b64encode(found).decode().rstrip("=") == text
    assert urlsafe_b64decode(text + "=" * (-len(text) % 4)) == found


@pytest.mark.parametrize(
    "text",
    ['{"a": {"b": 1, "b": 1}}', "NaN", "[Infinity]", "1e999", "1" * 5_000, "[" * 5_000, "{}x"],
)
def test_json_that_programs_read_differently_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        strict_json(text.encode())
