"""Permissions that an authorization server grants to a client, and the patterns that they use.

Owns the fields of the server's document, their bounds, and the meaning of a permission as in
NSQ: one entry must grant ``publish`` or ``subscribe`` for a topic and a channel, and the
channel of a publisher is empty.

`NamePattern` matches names anywhere, as in NSQ. Patterns come from other systems, so RE2 runs
them: its syntax is that of Go, and its time is linear in the length of the name. RE2 compiles a
pattern at each match, and a short pattern with repetitions can take milliseconds. Patterns that
are plain text with ``^``, ``$`` or ``.*`` at their ends are therefore matched without RE2, and
all others outside the event loop. The number of patterns of one response and the total length
of the slow ones are bounded. Names are ASCII; patterns are compiled as bytes, and Unicode
classes are refused because their tables take tens of milliseconds each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping


CHARACTERS_MAX: Final = 1_024

_PLAIN: Final = re.compile(r"(\^?)(\.\*)?((?:[A-Za-z0-9_#-]|\\\.)*)(\.\*)?(\$?)")


@dataclass(frozen=True, slots=True)
class NamePattern:
    """A pattern, which may match anywhere in a name, as in NSQ.

    Attributes:
        text: The pattern as sent.
        literal: The text that a name must contain; None: RE2 must search.
        at_start: A name must begin with the literal.
        at_end: A name must end with the literal.
    """

    text: str
    literal: str | None = None
    at_start: bool = False
    at_end: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a pattern.

        Raises:
            InvalidRequest: It is too long, or RE2 does not accept it.
        """
        if len(text) > CHARACTERS_MAX:
            raise InvalidRequest(f"a pattern is longer than {CHARACTERS_MAX} characters")
        if plain := _PLAIN.fullmatch(text):
            start, before, literal, behind, end = plain.groups()
            return cls(
                text,
                literal.replace("\\.", "."),
                at_start=bool(start) and not before,
                at_end=bool(end) and not behind,
            )
        if "\\p" in text or "\\P" in text:
            raise InvalidRequest(f"{text!r:.80}: names are ASCII: write [a-z] instead of \\p{{L}}")
        try:
            _search(text, "")
        except pa.ArrowInvalid as error:
            raise InvalidRequest(f"{text!r:.80}: {error}") from error
        return cls(text)

    def matches(self, name: str) -> bool:
        """Return whether a name matches; slow if there is no literal."""
        if self.literal is None:
            return _search(self.text, name)
        if self.at_start and self.at_end:
            return name == self.literal
        if self.at_start:
            return name.startswith(self.literal)
        if self.at_end:
            return name.endswith(self.literal)
        return self.literal in name


def _search(pattern: str, name: str) -> bool:
    found = pc.match_substring_regex(pa.array([name.encode()], pa.binary()), pattern=pattern)
    return bool(found[0].as_py())


_PUBLISH: Final = "publish"
_SUBSCRIBE: Final = "subscribe"
_GRANTS_MAX: Final = 1_000
_CHANNELS_MAX: Final = 1_000
_PERMISSIONS_MAX: Final = 100
_PATTERNS_MAX: Final = 10_000
_SEARCHED_CHARACTERS_MAX: Final = 8_192
_TTL_S_MAX: Final = 10 * 366 * 86_400
_REMEMBERED: Final = 1_024


@dataclass(frozen=True, slots=True)
class Grant:
    """One entry: a pattern of topics, patterns of channels, and the permissions."""

    topic: NamePattern
    channels: tuple[NamePattern, ...]
    permissions: frozenset[str]

    def allows(self, topic: str, channel: str) -> bool:
        """Return whether it allows subscribing to a channel, or publishing if there is none."""
        if (_SUBSCRIBE if channel else _PUBLISH) not in self.permissions:
            return False
        if not self.topic.matches(topic):
            return False
        return any(pattern.matches(channel) for pattern in self.channels)

    @property
    def patterns(self) -> tuple[NamePattern, ...]:
        """All its patterns."""
        return (self.topic, *self.channels)


class Permissions:
    """Permissions of one client until they expire.

    Args:
        identity: Name of the client.
        identity_url: A page about it.
        expires_ms: When to query the server again, epoch ms.
        grants: The entries of the answer.
    """

    def __init__(
        self, identity: str, identity_url: str, expires_ms: int, grants: tuple[Grant, ...]
    ) -> None:
        self.identity = identity
        self.identity_url = identity_url
        self.expires_ms = expires_ms
        self.grants = grants
        self._searches = any(p.literal is None for grant in grants for p in grant.patterns)
        self._verdicts: dict[tuple[str, str], bool] = {}

    @classmethod
    def parse(cls, answer: bytes, now_ms: int) -> Self:
        """Parse a server's answer; slow, so call it on another thread than the event loop's.

        Raises:
            InvalidRequest: It is not an answer of NSQ's authorization protocol, or exceeds a limit.
        """
        try:
            document = orjson.loads(answer)
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"the answer is not JSON: {error}") from None
        if not isinstance(document, dict):
            raise InvalidRequest("the answer is not a JSON object")
        ttl_s = document.get("ttl")
        if type(ttl_s) is not int or not 0 < ttl_s <= _TTL_S_MAX:
            raise InvalidRequest(f"ttl {ttl_s!r:.40} is not a number of seconds of 1 or more")
        entries = _list(document, "authorizations", _GRANTS_MAX)
        patterns = _Patterns()
        return cls(
            _text(document, "identity"),
            _text(document, "identity_url"),
            now_ms + ttl_s * 1_000,
            tuple(_grant(entry, patterns) for entry in entries),
        )

    def takes_long(self, topic: str, channel: str) -> bool:
        """Return whether `allows` must search patterns: then call it on another thread."""
        return self._searches and (topic, channel) not in self._verdicts

    def allows(self, topic: str, channel: str) -> bool:
        """Return whether the client may subscribe to a channel, or publish if there is none."""
        known = self._verdicts.get((topic, channel))
        if known is None:
            known = any(grant.allows(topic, channel) for grant in self.grants)
            if len(self._verdicts) >= _REMEMBERED:
                self._verdicts.clear()
            self._verdicts[topic, channel] = known
        return known


class _Patterns:
    """The patterns of one answer: each is parsed once, and their total size is bounded."""

    def __init__(self) -> None:
        self._read: dict[str, NamePattern] = {}
        self._searched_characters = 0
        self._count = 0

    def take(self, value: object) -> NamePattern:
        """Parse a pattern.

        Raises:
            InvalidRequest: It is invalid, or exceeds the limits of one answer.
        """
        if not isinstance(value, str):
            raise InvalidRequest("authorizations: a pattern is not a text")
        self._count += 1
        if self._count > _PATTERNS_MAX:
            raise InvalidRequest(f"authorizations: more than {_PATTERNS_MAX} patterns")
        found = self._read.get(value)
        if found is None:
            try:
                found = self._read[value] = NamePattern.parse(value)
            except InvalidRequest as error:
                raise InvalidRequest(f"authorizations: {error}") from error
        if found.literal is None:
            # Counted at each occurrence: it is searched once for each.
            self._searched_characters += len(value)
            if self._searched_characters > _SEARCHED_CHARACTERS_MAX:
                raise InvalidRequest(
                    f"authorizations: more than {_SEARCHED_CHARACTERS_MAX} characters of patterns "
                    "that are more than plain text between ^, .* and $: write simpler ones"
                )
        return found


def _grant(entry: object, patterns: _Patterns) -> Grant:
    if not isinstance(entry, dict):
        raise InvalidRequest("authorizations: an entry is not a JSON object")
    channels = _list(entry, "channels", _CHANNELS_MAX)
    permissions = _list(entry, "permissions", _PERMISSIONS_MAX)
    if not all(permission in (_PUBLISH, _SUBSCRIBE) for permission in permissions):
        raise InvalidRequest("authorizations: the permissions are publish and subscribe")
    topic = patterns.take(entry.get("topic", ""))
    names = frozenset(map(str, permissions))
    return Grant(topic, tuple(map(patterns.take, channels)), names)


def _list(document: Mapping[str, object], field: str, most: int) -> list[object]:
    """Return a list; null and a missing field are an empty one."""
    value = document.get(field)
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > most:
        raise InvalidRequest(f"authorizations: {field} is not a list of at most {most} entries")
    return value


def _text(document: Mapping[str, object], field: str) -> str:
    value = document.get(field)
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"{field} is not a text")
    return value or ""
