"""Secrets in specs, and the mark that is shown in their place. Pure.

A secret in a spec is best a reference, `secret://NAME`, which is stored and shown as it is. A
secret that is written as text is stored with the spec, because the next overlord needs it, but
never shown: a fixed mark replaces it. Names do not reveal which HTTP header or which part of a
URL's query is a secret, so all of them are masked. Invariant: a spec with the mark in place of a
secret is refused, so that the mark is never stored as a secret when a shown spec is sent back.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest
from penstock.core.secret_names import SCHEME, is_reference, referenced_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MASK: Final = "<masked>"
"""The text that is shown instead of a secret."""

MASK_REMEDY: Final = (
    "is the mark that Penstock shows in place of a secret, not the secret: write the secret again,"
    " or better secret://NAME after `penstock secret set NAME`"
)

URL_MASK_REMEDY: Final = (
    "has the mark that Penstock shows in place of a secret: write the user, the password and the"
    " query of the URL again"
)

HEADER_MASK_REMEDY: Final = (
    "is the mark that Penstock shows in place of a secret, not the secret: write the header again"
)

_SECRET_FIELDS: Final = frozenset({"httpAuthenticationPassword", "password"})
# Objects with freely chosen names; `properties` is a task's form of `consumerProperties`.
_CLIENT_SETTINGS: Final = frozenset({"consumerProperties", "properties"})
_SECRET_SETTINGS: Final = ("password", "secret", "key.pem", "oauthbearer.config")
# Not secret if they are written as text, but no error or log contains them.
_PRIVATE_SETTINGS: Final = frozenset(
    {"sasl.oauthbearer.client.id", "sasl.username", "ssl.ca.pem", "ssl.certificate.pem"}
)
_HEADERS: Final = "requestHeaders"
# For a database: a URL with a password is refused, and not shown.
_CONNECTION: Final = "connectorConfig"
_HOLDERS: Final = _SECRET_FIELDS | _CLIENT_SETTINGS | {_HEADERS, _CONNECTION}
# Visible ASCII characters, with spaces and tabs between them (RFC 9110, section 5.5).
HEADER_VALUE: Final = re.compile(r"[!-~](?:[ -~\t]*[!-~])?")
_URLS: Final = frozenset({"uris", "prefixes", "paths"})
# `storage://container@account/…` names a container before the @: for schemes other than HTTP only
# the part after a colon there is a password.
_PASSWORD: Final = re.compile(r"(://[^/?#@\s]*?:)[^/?#\s]*@")
_HTTP_USER: Final = re.compile(r"(https?://)[^/?#:@\s]+@", re.IGNORECASE)
_HTTP_QUERY: Final = re.compile(r"(https?://[^?#\s]*\?)([^#\s]*)", re.IGNORECASE)
_VALUE: Final = re.compile(r"(^|&)([^=&]*=)?[^&]+")
# The place of the password in such a URL depends on the driver.
_JDBC: Final = re.compile(r"(jdbc:[a-z0-9]+:)\S+", re.IGNORECASE)


def is_secret_setting(name: str) -> bool:
    """Return whether the value of a Kafka client's setting is a secret."""
    return name.endswith(_SECRET_SETTINGS)


def may_be_secret(name: str) -> bool:
    """Return whether a Kafka client's setting may name a secret: it is then shown nowhere."""
    return is_secret_setting(name) or name in _PRIVATE_SETTINGS


def is_shown_reference(value: object) -> bool:
    """Return whether a value is a valid reference to a secret, which may be shown."""
    try:
        return isinstance(value, str) and referenced_name(value) is not None
    except InvalidRequest:
        return False


def masked_url(url: str) -> str:
    """Return a URL for display: without passwords and the values of an HTTP query.

    A JDBC URL, which is nowhere shown as a URL, becomes only its scheme.
    """
    url = _JDBC.sub(rf"\g<1>{MASK}", url)
    if "://" not in url:
        return url
    hidden = _HTTP_USER.sub(rf"\g<1>{MASK}@", _PASSWORD.sub(rf"\g<1>{MASK}@", url))
    return _HTTP_QUERY.sub(lambda found: found[1] + _masked_query(found[2]), hidden)


def masked(spec: Mapping[str, object]) -> dict[str, object]:
    """Return the JSON form of a spec or task for display; the given one is not changed."""
    return {name: _shown(name, value) for name, value in spec.items()}


def with_references(
    spec: Mapping[str, object], adopt: Callable[[str], str]
) -> dict[str, object] | None:
    """Return the JSON form of a spec or task with a reference for each secret that is text.

    Secrets in URLs stay, because a URL is shown in parts. So do headers that a stored secret may
    not be: those with spaces at an end or characters that are not ASCII.

    Args:
        spec: The spec or task, as it is stored; it is not changed.
        adopt: Stores a secret and returns its name.

    Returns:
        None: there is nothing to change.
    """
    changed = {name: _adopted(name, value, adopt) for name, value in spec.items()}
    return None if changed == spec else changed


def _adopted(name: str, value: object, adopt: Callable[[str], str]) -> object:
    if name in _SECRET_FIELDS:
        return _reference_for(value, adopt)
    if isinstance(value, list):
        return [_adopted("", one, adopt) for one in value]
    if not isinstance(value, dict):
        return value
    if name in _CLIENT_SETTINGS:
        return {
            k: _reference_for(v, adopt) if is_secret_setting(k) else v for k, v in value.items()
        }
    if name == _HEADERS:
        return {
            k: _reference_for(v, adopt) if isinstance(v, str) and HEADER_VALUE.fullmatch(v) else v
            for k, v in value.items()
        }
    return {k: _adopted(k, v, adopt) for k, v in value.items()}


def _reference_for(value: object, adopt: Callable[[str], str]) -> object:
    """Return the reference for a secret in any of its forms; other values are returned as is."""
    text = value
    if isinstance(value, dict) and value.get("type", "default") == "default":
        text = value.get("password")  # Druid's form
    if not isinstance(text, str) or not text or is_reference(text) or text == MASK:
        return value
    return f"{SCHEME}{adopt(text)}"


def shown_in_error(value: object, names: Iterable[str | int]) -> object:
    """Return the part of a value that an error may show; None: only its kind.

    An invalid value may still be a secret, in Druid's form or with a wrong name, so nothing of an
    object or a list is shown, and no value at all in the place of a secret.

    Args:
        value: The value.
        names: The path to it.
    """
    if isinstance(value, dict | list) or not _HOLDERS.isdisjoint(names):
        return None
    return masked_url(value) if isinstance(value, str) else value


def _shown(name: str, value: object) -> object:
    if name in _SECRET_FIELDS:
        return _hidden(value)
    if isinstance(value, str):
        # A single path may be given where a list of them is expected.
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
        return {k: v if is_shown_reference(v) else MASK for k, v in value.items()}
    return masked(value)


def _hidden(value: object) -> object:
    if isinstance(value, dict):  # It names the secret's variable, or is Druid's and contains it.
        return {k: v if k in {"type", "variable"} else MASK for k, v in value.items()}
    return value if value is None or is_shown_reference(value) else MASK


def _masked_query(query: str) -> str:
    return _VALUE.sub(lambda found: f"{found[1]}{found[2] or ''}{MASK}", query)
