"""Public keys of an issuer of tokens (RFC 7517, RFC 7518, RFC 8037), and the check of signatures.

Owns the allowed algorithms, how a key is read from JSON, and the strict reading of JSON from
issuers and clients. `cryptography` calculates.

Only algorithms with public keys exist here. There is no `none` and no HMAC, so no mistake of a
caller can accept one, and a public key cannot serve as a secret. A key belongs to the algorithms of
its type and curve, so the algorithm that a token names cannot reinterpret the key.
"""

from __future__ import annotations

import binascii
import hashlib
import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey, RSAPublicNumbers
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from penstock.core.errors import InvalidRequest

NativeKey: TypeAlias = RSAPublicKey | ec.EllipticCurvePublicKey | Ed25519PublicKey

KEYS_MAX: Final = 100
"""Maximum number of keys of an issuer."""
KEY_ID_CHARACTERS_MAX: Final = 200

# RFC 7518, section 3.3, asks for at least 2048 bits; more than 8192 only cost time.
_RSA_BITS: Final = range(2_048, 8_193)
_EXPONENT_BITS_MAX: Final = 32
_BASE64: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)

_HASHES: Final[Mapping[str, hashes.HashAlgorithm]] = MappingProxyType(
    {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}
)
_RSA: Final = frozenset(f"{kind}{size}" for kind in ("RS", "PS") for size in _HASHES)
_CURVES: Final[Mapping[str, tuple[str, ec.EllipticCurve]]] = MappingProxyType(
    {
        "P-256": ("ES256", ec.SECP256R1()),
        "P-384": ("ES384", ec.SECP384R1()),
        "P-521": ("ES512", ec.SECP521R1()),
    }
)
# RFC 8037 calls it EdDSA, RFC 9864 Ed25519.
_ED25519: Final = frozenset({"EdDSA", "Ed25519"})
ALGORITHMS: Final = _RSA | {name for name, _ in _CURVES.values()} | _ED25519
"""Names of the algorithms whose signatures are accepted."""


class _UnusableKeyError(Exception):
    """A key of a set that is not for signatures, or is not supported."""


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A public key of an issuer.

    Attributes:
        kid: Its id; empty if the issuer gives none.
        algorithms: The algorithms with which it may be used.
        thumbprint: Hash of the key and its algorithms.
        native: The key.
    """

    kid: str
    algorithms: frozenset[str]
    thumbprint: str
    native: NativeKey

    def verifies(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        """Return whether a signature was made with the key, by one of its algorithms.

        Args:
            algorithm: The algorithm that the token names.
            signed: The signed bytes.
            signature: The signature, as in a token.
        """
        if algorithm not in self.algorithms:
            return False
        try:
            _verify(self.native, algorithm, signed, signature)
        except (InvalidSignature, ValueError):  # narrow: restores nothing
            return False
        return True


def _verify(key: NativeKey, algorithm: str, signed: bytes, signature: bytes) -> None:
    if isinstance(key, Ed25519PublicKey):
        key.verify(signature, signed)
        return
    digest = _HASHES[algorithm[2:]]
    if isinstance(key, RSAPublicKey):
        key.verify(signature, signed, _padding(algorithm, digest), digest)
        return
    size = (key.curve.key_size + 7) // 8
    if len(signature) != 2 * size:
        raise InvalidSignature
    r, s = int.from_bytes(signature[:size]), int.from_bytes(signature[size:])
    key.verify(encode_dss_signature(r, s), signed, ec.ECDSA(digest))


def _padding(algorithm: str, digest: hashes.HashAlgorithm) -> padding.AsymmetricPadding:
    if algorithm.startswith("PS"):
        return padding.PSS(padding.MGF1(digest), digest.digest_size)
    return padding.PKCS1v15()


def parse_key_set(content: bytes, *, place: str) -> tuple[VerificationKey, ...]:
    """Return the keys of a JWK set that can check signatures; others are left out.

    Raises:
        InvalidRequest: It is not a JWK set, or none of its keys can be used.
    """
    try:
        document = strict_json(content)
    except ValueError as error:
        raise InvalidRequest(f"it is not valid JSON: {error}", place=place) from None
    found = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise InvalidRequest("it is not a JWK set: it must have a list 'keys'", place=place)
    if len(found) > KEYS_MAX:
        raise InvalidRequest(
            f"it has {len(found):,} keys: only {KEYS_MAX} are allowed", place=place
        )
    keys = []
    for one in found:
        try:
            keys.append(_parse_key(one))
        except _UnusableKeyError:  # narrow: restores nothing
            continue
    if not keys:
        raise InvalidRequest(
            f"none of its {len(found)} keys can be used: they must be for signatures with"
            f" {', '.join(sorted(ALGORITHMS))}",
            place=place,
        )
    return tuple(keys)


def _parse_key(fields: object) -> VerificationKey:
    if not isinstance(fields, dict) or fields.get("use", "sig") != "sig":
        raise _UnusableKeyError
    operations = fields.get("key_ops", ["verify"])
    kid = fields.get("kid", "")
    if not isinstance(operations, list) or "verify" not in operations:
        raise _UnusableKeyError
    if not isinstance(kid, str) or len(kid) > KEY_ID_CHARACTERS_MAX:
        raise _UnusableKeyError
    try:
        native, algorithms = _native_key(fields)
    except (ValueError, UnsupportedAlgorithm):  # narrow: translates
        raise _UnusableKeyError from None
    if "alg" in fields:
        own = fields["alg"]
        # The two names mean the same for this curve.
        if not isinstance(own, str):
            raise _UnusableKeyError
        algorithms &= _ED25519 if own in _ED25519 else {own}
    if not algorithms:
        raise _UnusableKeyError
    members = json.dumps([fields.get(name) for name in ("kty", "crv", "n", "e", "x", "y")])
    text = f"{members} {sorted(algorithms)}"
    return VerificationKey(kid, algorithms, hashlib.sha256(text.encode()).hexdigest()[:32], native)


def _native_key(fields: Mapping[str, object]) -> tuple[NativeKey, frozenset[str]]:
    """Return a key and its algorithms. Raises ValueError."""
    kind, curve = fields.get("kty"), fields.get("crv")
    if kind == "RSA":
        modulus, exponent = _number(fields.get("n")), _number(fields.get("e"))
        if modulus.bit_length() not in _RSA_BITS or exponent.bit_length() > _EXPONENT_BITS_MAX:
            raise ValueError("the key is too short or too long")
        return RSAPublicNumbers(exponent, modulus).public_key(), _RSA
    if kind == "EC" and isinstance(curve, str) and curve in _CURVES:
        algorithm, native = _CURVES[curve]
        numbers = ec.EllipticCurvePublicNumbers(
            _number(fields.get("x")), _number(fields.get("y")), native
        )
        return numbers.public_key(), frozenset({algorithm})
    if kind == "OKP" and curve == "Ed25519":
        return Ed25519PublicKey.from_public_bytes(base64url(fields.get("x"))), _ED25519
    raise ValueError("the type of the key is not supported")


def _number(value: object) -> int:
    return int.from_bytes(base64url(value))


def base64url(value: object) -> bytes:
    """Return the bytes of a text in base64url without padding (RFC 7515, section 2).

    Raises:
        ValueError: The text has another form, such as padding, or unused bits that are not zero:
            then other texts would mean the same bytes.
    """
    if not isinstance(value, str) or not _BASE64.fullmatch(value):
        raise ValueError("not base64url")
    try:
        found = urlsafe_b64decode(value + "=" * (-len(value) % 4))
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if binascii.b2a_base64(found, newline=False).rstrip(b"=").translate(_TO_URL) != value.encode():
        raise ValueError("not canonical base64url")
    return found


_TO_URL: Final = bytes.maketrans(b"+/", b"-_")


def strict_json(content: bytes) -> object:
    """Return the value of a JSON text in which no object has a name twice.

    Programs differ about which of two members with one name counts (RFC 8259, section 4).

    Raises:
        ValueError: The text is not such JSON, nests too deeply or has a number that is not finite.
    """
    try:
        return json.loads(
            content.decode(),
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
        )
    except RecursionError:
        raise ValueError("it nests too deeply") from None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has the same name twice")
    return found


def _constant(text: str) -> object:
    raise ValueError(f"{text} is not a number in JSON")


def _float(text: str) -> float:
    found = float(text)
    if found in {float("inf"), float("-inf")}:
        raise ValueError("a number is too large")
    return found
