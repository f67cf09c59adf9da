"""Which values of a spec are secrets, and what is shown in their place. Pure.

A secret that stands in a spec as text is stored with it, since the next overlord needs it, and is
shown to nobody: a fixed mark stands there instead. Nobody can tell by its name which header of HTTP
holds one, nor which part of a URL's query, so all of them are hidden. Invariant: a spec that holds
the mark where a secret belongs is refused, so that what was shown never becomes a secret by being
sent back.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MASK: Final = "<masked>"
"""What is shown in place of a secret."""

MASK_MEND: Final = (
    "is the mark that Penstock shows in place of a secret, not the secret: write the secret again,"
    ' or better {"type": "environment", "variable": …}'
)

URL_MASK_MEND: Final = (
    "has the mark that Penstock shows in place of a secret: write the user, the password and the"
    " query of the URL again"
)

HEADER_MASK_MEND: Final = (
    "is the mark that Penstock shows in place of a secret, not the secret: write the header again"
)

_SECRET_FIELDS: Final = frozenset({"httpAuthenticationPassword", "password"})
# Objects that name what they hold freely; `properties` is a task's form of `consumerProperties`.
_CLIENT_SETTINGS: Final = frozenset({"consumerProperties", "properties"})
_SECRET_SETTINGS: Final = ("password", "secret", "key.pem", "oauthbearer.config")
_HEADERS: Final = "requestHeaders"
# Of a database: a URL with a password in it is refused, and not told.
_CONNECTION: Final = "connectorConfig"
_HOLDERS: Final = _SECRET_FIELDS | _CLIENT_SETTINGS | {_HEADERS, _CONNECTION}
_URLS: Final = frozenset({"uris", "prefixes", "paths"})
# `storage://container@account/…` names a place before the @: of other schemes than HTTP only what
# stands behind a colon there is a password.
_PASSWORD: Final = re.compile(r"(://[^/?#@\s]*?:)[^/?#\s]*@")
_HTTP_USER: Final = re.compile(r"(https?://)[^/?#:@\s]+@", re.IGNORECASE)
_HTTP_QUERY: Final = re.compile(r"(https?://[^?#\s]*\?)([^#\s]*)", re.IGNORECASE)
_VALUE: Final = re.compile(r"(^|&)([^=&]*=)?[^&]+")
# Where such a URL holds its password depends on the driver.
_JDBC: Final = re.compile(r"(jdbc:[a-z0-9]+:)\S+", re.IGNORECASE)


def is_secret_setting(name: str) -> bool:
    """Whether the value of a Kafka client's setting is a secret."""
    return name.endswith(_SECRET_SETTINGS)


def masked_url(url: str) -> str:
    """Return a URL as it may be shown: without passwords and the values of an HTTP query.

    Of one of JDBC, which is in no place where URLs are shown, only its kind.
    """
    url = _JDBC.sub(rf"\g<1>{MASK}", url)
    if "://" not in url:
        return url
    hidden = _HTTP_USER.sub(rf"\g<1>{MASK}@", _PASSWORD.sub(rf"\g<1>{MASK}@", url))
    return _HTTP_QUERY.sub(lambda found: found[1] + _masked_query(found[2]), hidden)


def masked(spec: Mapping[str, object]) -> dict[str, object]:
    """Return the JSON form of a spec or task as it may be shown; the given one is not changed."""
    return {name: _shown(name, value) for name, value in spec.items()}


def told(value: object, names: Iterable[str | int]) -> object:
    """Return what an error may show of a value that stands in a wrong place; None: only its kind.

    What is wrong may be a secret all the same, as Druid writes it or misspelt, so nothing of an
    object or a list is shown, and nothing at all where secrets belong.

    Args:
        value: The value.
        names: The way to it.
    """
    if isinstance(value, dict | list) or not _HOLDERS.isdisjoint(names):
        return None
    return masked_url(value) if isinstance(value, str) else value


def _shown(name: str, value: object) -> object:
    if name in _SECRET_FIELDS:
        return _hidden(value)
    if isinstance(value, str):
        # A single path may stand where a list of them is meant.
        return masked_url(value) if name in _URLS else value
    if isinstance(value, list):
        if name in _URLS:
            return [masked_url(one) if isinstance(one, str) else one for one in value]
        return [_shown("", one) for one in value]
    if not isinstance(value, dict):
        return value
    if name in _CLIENT_SETTINGS:
        return {k: _hidden(v) if is_secret_setting(k) else v for k, v in value.items()}
    if name == _HEADERS:
        return dict.fromkeys(value, MASK)
    return masked(value)


def _hidden(value: object) -> object:
    if isinstance(value, dict):  # One that says where the secret is, or Druid's, which holds it.
        return {k: v if k in {"type", "variable"} else MASK for k, v in value.items()}
    return None if value is None else MASK


def _masked_query(query: str) -> str:
    return _VALUE.sub(lambda found: f"{found[1]}{found[2] or ''}{MASK}", query)
