"""What an authorization server allows a client: its answer, read and applied.

Owns the document's fields, their bounds, and what a permission means, as in NSQ: one entry must
give ``publish``, or ``subscribe``, for a topic and a channel, and a publisher's channel is empty.

The patterns come from outside. They are run by RE2, whose time grows with the name's length alone
whatever the pattern is, and whose syntax is that of the Go programs that write them. As in NSQ a
pattern may match anywhere in a name: ``^`` and ``$`` say where it begins and ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

_PUBLISH: Final = "publish"
_SUBSCRIBE: Final = "subscribe"
_GRANTS_MAX: Final = 1_000
_CHANNELS_MAX: Final = 1_000
_PERMISSIONS_MAX: Final = 100
_PATTERN_CHARACTERS_MAX: Final = 1_024
_TTL_S_MAX: Final = 10 * 366 * 86_400
_REMEMBERED: Final = 1_024


@dataclass(frozen=True, slots=True)
class Grant:
    """One entry: a pattern of topics, patterns of channels, and what is permitted."""

    topic: str
    channels: tuple[str, ...]
    permissions: frozenset[str]

    def allows(self, topic: str, channel: str) -> bool:
        """Say whether it allows to subscribe to a channel, or without one to publish."""
        if (_SUBSCRIBE if channel else _PUBLISH) not in self.permissions:
            return False
        if not _matches(self.topic, topic):
            return False
        return any(_matches(pattern, channel) for pattern in self.channels)


class Permissions:
    """What one client may do until it expires.

    Args:
        identity: Who it was found to be.
        identity_url: A page about that.
        expires_ms: When the server is to be asked again, epoch ms.
        grants: What is allowed.
    """

    def __init__(
        self, identity: str, identity_url: str, expires_ms: int, grants: tuple[Grant, ...]
    ) -> None:
        self.identity = identity
        self.identity_url = identity_url
        self.expires_ms = expires_ms
        self.grants = grants
        self._verdicts: dict[tuple[str, str], bool] = {}

    @classmethod
    def parse(cls, answer: bytes, now_ms: int) -> Self:
        """Read a server's answer.

        Raises:
            InvalidRequest: It is not what NSQ's authorization servers answer, or out of bounds.
        """
        try:
            document = orjson.loads(answer)
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"the answer is no JSON: {error}") from None
        if not isinstance(document, dict):
            raise InvalidRequest("the answer is no JSON object")
        ttl_s = document.get("ttl")
        if type(ttl_s) is not int or not 0 < ttl_s <= _TTL_S_MAX:
            raise InvalidRequest(f"ttl {ttl_s!r:.40} is no number of seconds of 1 or more")
        entries = _list(document, "authorizations", _GRANTS_MAX)
        return cls(
            _text(document, "identity"),
            _text(document, "identity_url"),
            now_ms + ttl_s * 1_000,
            tuple(_grant(entry) for entry in entries),
        )

    def allows(self, topic: str, channel: str) -> bool:
        """Say whether the client may subscribe to a channel, or without one publish."""
        known = self._verdicts.get((topic, channel))
        if known is None:
            known = any(grant.allows(topic, channel) for grant in self.grants)
            if len(self._verdicts) >= _REMEMBERED:
                self._verdicts.clear()
            self._verdicts[topic, channel] = known
        return known


def _grant(entry: object) -> Grant:
    if not isinstance(entry, dict):
        raise InvalidRequest("authorizations: an entry is no JSON object")
    channels = _list(entry, "channels", _CHANNELS_MAX)
    permissions = _list(entry, "permissions", _PERMISSIONS_MAX)
    if not all(permission in (_PUBLISH, _SUBSCRIBE) for permission in permissions):
        raise InvalidRequest("authorizations: the permissions are publish and subscribe")
    topic = _pattern(entry.get("topic", ""))
    names = frozenset(map(str, permissions))
    return Grant(topic, tuple(map(_pattern, channels)), names)


def _pattern(value: object) -> str:
    if not isinstance(value, str) or len(value) > _PATTERN_CHARACTERS_MAX:
        raise InvalidRequest(
            f"authorizations: a pattern is no text of {_PATTERN_CHARACTERS_MAX} characters at most"
        )
    try:
        _matches(value, "")
    except pa.ArrowInvalid as error:
        raise InvalidRequest(f"authorizations: {value!r:.80}: {error}") from error
    return value


def _matches(pattern: str, name: str) -> bool:
    found = pc.match_substring_regex(pa.array([name], pa.string()), pattern=pattern)
    return bool(found[0].as_py())


def _list(document: Mapping[str, object], field: str, most: int) -> list[object]:
    """Return a list; null and absence are an empty one."""
    value = document.get(field)
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > most:
        raise InvalidRequest(f"authorizations: {field} is no list of {most} entries at most")
    return value


def _text(document: Mapping[str, object], field: str) -> str:
    value = document.get(field)
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"{field} is no text")
    return value or ""
