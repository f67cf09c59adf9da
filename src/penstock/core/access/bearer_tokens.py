"""Stored bearer tokens: their text and their hashes.

    penstock_ID_SECRET               a stored token; the secret has 256 random bits
    penstock_operator_SECRET         the token in `operator.token`

Only hashes of stored tokens are kept. A fast hash (SHA-256) is enough, because 2^256 secrets cannot
be tried; passwords have a slow one. Pure, except for the random bytes of new tokens. The tokens of
processes and tasks are in `derived_tokens`.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Final

BEARER_BYTES_MAX: Final = 2_000
"""Maximum length of a bearer token; longer ones are not hashed."""

_STORED: Final = "penstock"
_ID_BYTES: Final = 8
_SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token at the only moment at which its text is known.

    Attributes:
        id: Its public id, in lists and logs.
        text: The text that a client sends.
        digest: The hash that is stored.
    """

    id: str
    text: str
    digest: bytes


def new_token(token_id: str = "") -> NewToken:
    """Return a new token.

    Args:
        token_id: Its id; empty: a random one.
    """
    token_id = token_id or secrets.token_hex(_ID_BYTES)
    text = f"{_STORED}_{token_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    return NewToken(token_id, text, token_digest(text.encode()))


def token_digest(bearer: bytes) -> bytes:
    """Return the hash of a token's whole text."""
    return hashlib.sha256(bearer).digest()


def stored_token_id(bearer: bytes) -> str:
    """Return the id in a stored token's text; empty if the text has another form."""
    prefix, _, rest = bearer.partition(b"_")
    token_id, separator, _ = rest.partition(b"_")
    if prefix != _STORED.encode() or not separator:
        return ""
    return token_id.decode("ascii", "replace")
