"""Sealed values: AES-256-GCM of `cryptography`, one key for all values of an installation. Pure.

Owns the keys' text and the sealed form. Each value has its own random nonce; its name, version and
times are authenticated with it, so that values cannot be swapped, renamed or given the time of
another. Several keys may be valid at once: the first one seals, the others only open, which makes a
rotation safe at each of its steps.

The nonce has 96 random bits (NIST SP 800-38D, section 8.2.2, allows 2^32 values for one key).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from penstock.core.errors import InvalidRequest

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
VALUE_BYTES_MAX: Final = 64 << 10
KEYS_MAX: Final = 8

_FORM: Final = "penstock.secret.1"
# Bytes of the tag at the end of a sealed value.
_TAG_BYTES: Final = 16
_KEY_TEXT: Final = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class SealingKey:
    """One key, from which one key for each purpose is derived.

    Attributes:
        secret: 32 random bytes.
    """

    secret: bytes = field(repr=False)

    @property
    def id(self) -> str:
        """The text that names it in sealed values; it does not reveal the key."""
        return self._derived("id").hex()[:16]

    @property
    def text(self) -> str:
        """Its text: base64 for URLs, without padding."""
        return base64.urlsafe_b64encode(self.secret).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> SealingKey:
        """Read the text of a key.

        Raises:
            InvalidRequest: It is not one. The message does not contain it.
        """
        if _KEY_TEXT.fullmatch(text) is None:
            raise InvalidRequest(
                f"a key of secrets must be {KEY_BYTES} bytes in base64 for URLs, 43 characters:"
                " make one with `penstock secret key`"
            )
        return cls(base64.urlsafe_b64decode(text + "="))

    def fingerprint(self, value: str) -> str:
        """Return a text that is the same for the same value, and reveals nothing of it."""
        return hmac.digest(self._derived("fingerprint"), value.encode(), hashlib.sha256).hex()[:20]

    def cipher(self) -> AESGCM:
        """Return the cipher of sealed values."""
        return AESGCM(self._derived("seal"))

    def _derived(self, purpose: str) -> bytes:
        return hmac.digest(self.secret, f"{_FORM} {purpose}".encode(), hashlib.sha256)


def parse_keys(text: str) -> tuple[SealingKey, ...]:
    """Read keys that are separated by white space: the first one seals.

    Raises:
        InvalidRequest: The text has no keys or too many, or one is malformed.
    """
    keys = tuple(map(SealingKey.parse, text.split()))
    if not 1 <= len(keys) <= KEYS_MAX:
        raise InvalidRequest(f"there must be 1 to {KEYS_MAX} keys of secrets, one on each line")
    return keys


@dataclass(frozen=True, slots=True)
class SealedValue:
    """A value that only an owner of its key can read.

    Attributes:
        name: Its name.
        version: 1 for the first value of the name, one more for each later value.
        created_ms: Time of the first value, in epoch milliseconds.
        changed_ms: Time of this value, in epoch milliseconds.
        key_id: The key that sealed it.
        nonce: Its nonce.
        sealed: Ciphertext and tag.
    """

    name: str
    version: int
    created_ms: int
    changed_ms: int
    key_id: str
    nonce: bytes
    sealed: bytes = field(repr=False)

    def open(self, keys: Sequence[SealingKey]) -> str:
        """Return the value.

        Raises:
            InvalidRequest: No key is the one that sealed it, or it was changed since.
        """
        key = next((one for one in keys if one.id == self.key_id), None)
        if key is None:
            raise InvalidRequest(
                f"secret {self.name!r} was sealed with the key {self.key_id}, which is not given:"
                " put that key back, or set the secret again"
            )
        try:
            data = key.cipher().decrypt(self.nonce, self.sealed, self._associated())
        except (InvalidTag, ValueError):
            raise InvalidRequest(
                f"secret {self.name!r} was changed since it was sealed, or its file is damaged:"
                " set the secret again"
            ) from None
        return data.decode()

    def to_json(self) -> dict[str, object]:
        """Return the form in the file, which does not contain the name."""
        return {
            "version": self.version,
            "createdMs": self.created_ms,
            "changedMs": self.changed_ms,
            "key": self.key_id,
            "nonce": base64.b64encode(self.nonce).decode(),
            "sealed": base64.b64encode(self.sealed).decode(),
        }

    @classmethod
    def from_json(cls, name: str, given: object) -> SealedValue:
        """Read the form in the file.

        Raises:
            InvalidRequest: It has another form.
        """
        kinds = {
            "version": int,
            "createdMs": int,
            "changedMs": int,
            "key": str,
            "nonce": str,
            "sealed": str,
        }
        # `type`: True is an instance of int.
        if not isinstance(given, dict) or {n: type(v) for n, v in given.items()} != kinds:
            raise InvalidRequest(f"secret {name!r} does not have the form of a sealed value")
        found = cls(
            name,
            given["version"],
            given["createdMs"],
            given["changedMs"],
            given["key"],
            _bytes(name, given["nonce"]),
            _bytes(name, given["sealed"]),
        )
        if len(found.nonce) != NONCE_BYTES or len(found.sealed) < _TAG_BYTES:
            raise InvalidRequest(f"secret {name!r} does not have the form of a sealed value")
        return found

    def _associated(self) -> bytes:
        about = [_FORM, self.name, self.version, self.created_ms, self.changed_ms, self.key_id]
        return json.dumps(about).encode()


def seal(
    key: SealingKey,
    name: str,
    value: str,
    nonce: bytes,
    *,
    version: int,
    created_ms: int,
    changed_ms: int,
) -> SealedValue:
    """Seal a value.

    Args:
        key: The key.
        name: Its name.
        value: The value.
        nonce: 12 random bytes that were never used with this key.
        version: Number of the value among those of its name.
        created_ms: Time of the first value.
        changed_ms: Time of this value.

    Raises:
        InvalidRequest: The value is empty, too long, or not valid text.
    """
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("a secret must be text that can be encoded in UTF-8") from None
    if not 1 <= len(data) <= VALUE_BYTES_MAX:
        raise InvalidRequest(f"a secret must have 1 to {VALUE_BYTES_MAX} bytes")
    begun = SealedValue(name, version, created_ms, changed_ms, key.id, nonce, b"")
    sealed = key.cipher().encrypt(nonce, data, begun._associated())  # noqa: SLF001 - its own form
    return SealedValue(name, version, created_ms, changed_ms, key.id, nonce, sealed)


def _bytes(name: str, text: str) -> bytes:
    """Decode base64, only in its one canonical form, so that no change of a character is lost."""
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if base64.b64encode(found).decode() != text:
        raise InvalidRequest(f"secret {name!r} is not valid base64 in its file")
    return found
