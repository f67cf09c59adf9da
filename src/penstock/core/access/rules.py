"""Actions, resources, and rules that allow or deny one on the other.

Owns the notation of a resource (`KIND:NAME`), of a pattern (a resource in which ``*`` stands for
any characters), and of a rule (`ACTION[,ACTION…] PATTERN`). Pure.

Invariants: the kind of a pattern is one that exists, so a mistyped rule is refused instead of
matching nothing. Comparing a name with a pattern takes linear time, because names come from
requests. Names are compared in Unicode's normal form C (`core.names`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.names import normalised
from penstock.core.printable import quoted
from penstock.core.similar_names import nearest

STAR: Final = "*"
NAME_CHARACTERS_MAX: Final = 1_000
"""Maximum length of a resource's name; far more than any name rule allows."""
# Names of tasks may have 180 bytes, and those of requests 255.
_SHOWN_CHARACTERS_MAX: Final = 255


class Action(StrEnum):
    """An action that a rule allows or denies."""

    READ = "read"
    WRITE = "write"
    MANAGE = "manage"
    RUN_CODE = "run-code"
    READ_EXTERNAL = "read-external"


class ResourceKind(StrEnum):
    """Kind of a resource."""

    TOPIC = "topic"
    CHANNEL = "channel"
    FLOW = "flow"
    PROCESSOR = "processor"
    DATASOURCE = "datasource"
    LOOKUP = "lookup"
    SUPERVISOR = "supervisor"
    TASK = "task"
    SECRET = "secret"  # noqa: S105 - a kind, not a secret
    SYSTEM = "system"


SYSTEM_PARTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "status": "health, version and addresses of the processes",
        "metrics": "metrics of all processes, with the names of topics and datasources",
        "manual": "the manual that the server shows",
        "cluster": "workers, leaders, and the configuration of the whole installation",
        "queries": "running queries of other principals",
        "processes": "calls between processes of the installation; `manage` is full access",
        "access": "users, tokens, roles, and explanations of decisions",
        "inputs": "files, URLs and databases that tasks and flows read",
        "code": "code of users: in flows, tasks and statements",
    }
)
"""Names of the resources of kind `system`, and their meanings. There are no others."""

_ACTIONS: Final = {one.value: one for one in Action}
_KINDS: Final = {one.value: one for one in ResourceKind}


@dataclass(frozen=True, slots=True)
class Resource:
    """A thing on which an action is allowed or refused, such as `topic:clicks`.

    Attributes:
        kind: Its kind.
        name: Its name; `TOPIC/CHANNEL` for a channel.
    """

    kind: ResourceKind
    name: str

    @classmethod
    def parse(cls, text: str, *, place: str = "") -> Resource:
        """Return the resource of a text such as `topic:clicks`.

        Raises:
            InvalidRequest: The kind does not exist, or the name is empty or too long.
        """
        kind, name = _split(text, place)
        if kind == STAR or STAR in name:
            raise InvalidRequest(
                f"{quoted(text)} is a pattern: name one resource, such as topic:clicks", place=place
            )
        return cls(_known_kind(kind, text, place), name)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @property
    def shown(self) -> str:
        """The resource for a message: a name that is longer than any valid one is shortened."""
        is_long = len(self.name) > _SHOWN_CHARACTERS_MAX
        return f"{self.kind}:{quoted(self.name) if is_long else self.name}"


def channel_resource(topic: str, channel: str) -> Resource:
    """Return the resource of a channel, `channel:TOPIC/CHANNEL`."""
    return Resource(ResourceKind.CHANNEL, f"{topic}/{channel}")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A set of resources: those of a kind whose names match a text with ``*``.

    Attributes:
        kind: The kind; None: every kind.
        name: The text that names match, in normal form C.
    """

    kind: ResourceKind | None
    name: str

    @classmethod
    def parse(cls, text: str, *, place: str = "") -> Pattern:
        """Return the pattern of a text such as `topic:clicks*`; `*` alone matches everything.

        Raises:
            InvalidRequest: The kind does not exist, or the name is empty or too long.
        """
        if text == STAR:
            return cls(None, STAR)
        kind, name = _split(text, place)
        found = None if kind == STAR else _known_kind(kind, text, place)
        return cls(found, normalised(name))

    def matches(self, resource: Resource) -> bool:
        """Return whether a resource is in the set."""
        if self.kind is not None and self.kind != resource.kind:
            return False
        return name_matches(self.name, normalised(resource.name))

    def __str__(self) -> str:
        if self.kind is None:
            return STAR if self.name == STAR else f"{STAR}:{self.name}"
        return f"{self.kind}:{self.name}"


def name_matches(pattern: str, name: str) -> bool:
    """Return whether a name matches a text in which ``*`` stands for any characters.

    Each part between two stars is searched once, from left to right, so the time is linear.
    """
    first, *rest = pattern.split(STAR)
    if not rest:
        return pattern == name
    last = rest.pop()
    if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
        return False
    at, end = len(first), len(name) - len(last)
    for part in rest:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


@dataclass(frozen=True, slots=True)
class Rule:
    """Actions on a set of resources, such as `read,write topic:clicks*`.

    Attributes:
        actions: The actions.
        pattern: The resources.
    """

    actions: frozenset[Action]
    pattern: Pattern

    @classmethod
    def parse(cls, text: str, *, place: str = "") -> Rule:
        """Return the rule of a text `ACTION[,ACTION…] PATTERN`; `*` means all actions.

        Raises:
            InvalidRequest: The text has another form, or an action or kind does not exist.
        """
        actions, space, pattern = text.partition(" ")
        if not space or not actions or not pattern or pattern != pattern.strip():
            raise InvalidRequest(
                f"{quoted(text)} is not a rule: write ACTION[,ACTION…] PATTERN with one space, such"
                " as 'read,write topic:clicks*'",
                place=place,
            )
        if actions == STAR:
            return cls(frozenset(Action), Pattern.parse(pattern, place=place))
        found = frozenset(parse_action(one, place=place) for one in actions.split(","))
        return cls(found, Pattern.parse(pattern, place=place))

    def matches(self, action: Action, resource: Resource) -> bool:
        """Return whether the rule is about an action on a resource."""
        return action in self.actions and self.pattern.matches(resource)

    def __str__(self) -> str:
        if len(self.actions) == len(Action):
            return f"{STAR} {self.pattern}"
        return f"{','.join(one for one in Action if one in self.actions)} {self.pattern}"


def parse_action(text: str, *, place: str = "") -> Action:
    """Return the action of this name.

    Raises:
        InvalidRequest: It does not exist.
    """
    action = _ACTIONS.get(text)
    if action is None:
        raise InvalidRequest(
            f"unknown action {quoted(text)}: use one of {', '.join(Action)}, or * for all"
            f"{nearest(text, _ACTIONS)}",
            place=place,
        )
    return action


def _split(text: str, place: str) -> tuple[str, str]:
    kind, colon, name = text.partition(":")
    if not colon or not kind or not name:
        raise InvalidRequest(
            f"{quoted(text)} does not name a resource: write KIND:NAME, such as topic:clicks",
            place=place,
        )
    if len(name) > NAME_CHARACTERS_MAX:
        raise InvalidRequest(
            f"the name in {quoted(text)} has {len(name):,} characters: use up to"
            f" {NAME_CHARACTERS_MAX:,}",
            place=place,
        )
    if not name.isprintable():
        raise InvalidRequest(
            f"{quoted(text)} has a control character: no name has one, so remove it", place=place
        )
    return kind, name


def _known_kind(kind: str, text: str, place: str) -> ResourceKind:
    found = _KINDS.get(kind)
    if found is None:
        raise InvalidRequest(
            f"unknown kind {quoted(kind)} of the resource {quoted(text)}: use one of"
            f" {', '.join(ResourceKind)}{nearest(kind, _KINDS)}",
            place=place,
        )
    name = text.partition(":")[2]
    if found is ResourceKind.SYSTEM and STAR not in name and name not in SYSTEM_PARTS:
        raise InvalidRequest(
            f"unknown resource {quoted(text)}: the names of kind system are"
            f" {', '.join(SYSTEM_PARTS)}{nearest(name, SYSTEM_PARTS)}",
            place=place,
        )
    return found
