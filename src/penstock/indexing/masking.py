"""Which values of a spec are secrets, and what is shown in their place. Pure.

A secret that stands in a spec as text is stored with it, since the next overlord needs it, and is
shown to nobody: a fixed mark stands there instead. Invariant: a spec that holds the mark where a
secret belongs is refused, so that what was shown never becomes a secret by being sent back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MASK: Final = "<masked>"
"""What is shown in place of a secret."""

MASK_MEND: Final = (
    "is the mark that Penstock shows in place of a secret, not the secret: write the secret again,"
    ' or better {"type": "environment", "variable": …}'
)

HEADER_MASK_MEND: Final = (
    "is the mark that Penstock shows in place of a secret, not the secret: write the header again"
)

_SECRET_FIELDS: Final = frozenset({"httpAuthenticationPassword"})
# Objects that name what they hold freely; `properties` is a task's form of `consumerProperties`.
_CLIENT_SETTINGS: Final = frozenset({"consumerProperties", "properties"})
_SECRET_SETTINGS: Final = ("password", "secret", "key.pem", "oauthbearer.config")
_HEADERS: Final = "requestHeaders"
_SECRET_HEADERS: Final = ("authorization", "cookie", "key", "password", "secret", "token")


def is_secret_setting(name: str) -> bool:
    """Whether the value of a Kafka client's setting is a secret."""
    return name.endswith(_SECRET_SETTINGS)


def is_secret_header(name: str) -> bool:
    """Whether the value of an HTTP header is likely to be a secret, by its name."""
    return name.lower().endswith(_SECRET_HEADERS)


def masked(spec: Mapping[str, object]) -> dict[str, object]:
    """Return the JSON form of a spec or task as it may be shown; the given one is not changed."""
    return {name: _shown(name, value) for name, value in spec.items()}


def _shown(name: str, value: object) -> object:
    if isinstance(value, str):
        return MASK if name in _SECRET_FIELDS else value
    if isinstance(value, list):
        return [_shown("", one) for one in value]
    if not isinstance(value, dict):
        return value
    if name in _CLIENT_SETTINGS:
        return {k: MASK if _hides(k, v) else v for k, v in value.items()}
    if name == _HEADERS:
        return {k: MASK if is_secret_header(k) else v for k, v in value.items()}
    return masked(value)


def _hides(name: str, value: object) -> bool:
    return is_secret_setting(name) and isinstance(value, str | int)
