"""A spec's JSON, written as YAML: the part of YAML that has one meaning in JSON.

Owns what is refused of YAML: anchors and aliases (a short text could become endless), tags, several
documents, names that stand twice or are no text. Values are read as YAML 1.2 reads them: `yes` and
`2013-01-01` are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import yaml
from pydantic import JsonValue
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from penstock.indexing.spec.errors import Mistake, SpecError

try:  # libyaml, where it is there: it reads the largest text in a second, not in half a minute.
    from yaml import CSafeLoader as _Loader
except ImportError:
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]  # has the same events

_BYTES_MAX: Final = 1024 * 1024
_DEPTH_MAX: Final = 100
_NULL: Final = re.compile(r"~|null|Null|NULL|")
_BOOL: Final = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT: Final = re.compile(r"[-+]?[0-9]{1,30}")
_HALF_CHARACTER: Final = re.compile("[\ud800-\udfff]")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]{1,30}(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,3})?")


def read_yaml(raw: bytes | str) -> JsonValue:
    """Return the value that a text is.

    Raises:
        SpecError: It is no YAML, or holds what has no one meaning in JSON.
    """
    if len(raw) > _BYTES_MAX:
        raise _mistake(f"has {len(raw)} bytes of YAML, more than {_BYTES_MAX}: write JSON")
    try:
        reader = _Reader(yaml.parse(raw, Loader=_Loader))
        return reader.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise _mistake(f"neither JSON nor YAML: {error.problem}{place}") from None
    except (yaml.YAMLError, UnicodeError):
        raise _mistake("neither JSON nor YAML: it holds what is no text") from None


class _Reader:
    """Builds a value from the events of one document."""

    def __init__(self, events: Iterator[Event]) -> None:
        self._events = events

    def document(self) -> JsonValue:
        """Read the one document."""
        for event in self._events:
            if isinstance(event, DocumentStartEvent):
                break
        else:
            return None
        found = self._value(next(self._events), 0)
        for event in self._events:
            if isinstance(event, DocumentStartEvent):
                raise _mistake(f"holds more than one document{_at(event)}: write one")
        return found

    def _value(self, event: Event, depth: int) -> JsonValue:
        if depth > _DEPTH_MAX:
            raise _mistake(f"nested deeper than {_DEPTH_MAX} objects and lists: make it flatter")
        if isinstance(event, AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _mistake(f"holds an anchor or an alias{_at(event)}: write the value out")
        if getattr(event, "tag", None) is not None:
            raise _mistake(f"holds a tag{_at(event)}: leave it out")
        if isinstance(event, ScalarEvent):
            plain: bool = event.implicit[0]
            text: str = event.value
            if not text.isascii() and _HALF_CHARACTER.search(text):
                # Only an escape can write one; no store and no answer could.
                raise _mistake(f"holds half of a character{_at(event)}: write the whole one")
            return _scalar(text) if plain else text
        if isinstance(event, SequenceStartEvent):
            items: list[JsonValue] = []
            while not isinstance(inner := next(self._events), SequenceEndEvent):
                items.append(self._value(inner, depth + 1))
            return items
        return self._mapping(depth)

    def _mapping(self, depth: int) -> dict[str, JsonValue]:
        found: dict[str, JsonValue] = {}
        while not isinstance(event := next(self._events), MappingEndEvent):
            name = self._value(event, depth + 1)
            if not isinstance(name, str):
                raise _mistake(f"a name must be text{_at(event)}: put it in quotes")
            if name in found:
                raise _mistake(
                    f"{name!r} stands there more than once{_at(event)}: keep one of them"
                )
            found[name] = self._value(next(self._events), depth + 1)
        return found


def _scalar(text: str) -> JsonValue:
    """Return what a text without quotes is."""
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        number = int(text)
        # A larger one is read as JSON's readers read it: no answer could hold it as it is.
        return number if -(1 << 63) <= number < 1 << 64 else float(number)
    return float(text) if _FLOAT.fullmatch(text) else text


def _at(event: Event) -> str:
    mark = event.start_mark
    return "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"


def _mistake(text: str) -> SpecError:
    return SpecError((Mistake("", text),))
