"""The JSON text of a spec: read as it is meant, or not at all.

Owns what is stricter than JSON itself: a name that stands twice in an object is a mistake, for one
of its two values would be passed over in silence.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Final

import orjson

from penstock.indexing.spec.errors import Mistake, SpecError

_DEPTH_MAX: Final = 100
_TOO_DEEP: Final = Mistake(
    "", f"nested deeper than {_DEPTH_MAX} objects and lists: make it flatter"
)


class _Object(dict[str, object]):
    """An object, and the names that stood in it more than once."""

    twice: tuple[str, ...]


def read_object(raw: bytes | str) -> dict[str, object]:
    """Return the JSON object that a text is.

    Raises:
        SpecError: It is none, or names stand twice in it; all of them are listed.
    """
    try:
        value: object = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        text = f"not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        raise SpecError((Mistake("", text),)) from error
    if not isinstance(value, dict):
        raise SpecError((Mistake("", "the spec must be a JSON object"),))
    try:
        found = tuple(_twice(json.loads(raw, object_pairs_hook=_object), "", 0))
    except RecursionError:
        raise SpecError((_TOO_DEEP,)) from None
    if found:
        raise SpecError(found)
    return value


def _object(pairs: list[tuple[str, object]]) -> _Object:
    made = _Object(pairs)
    made.twice = ()
    if len(made) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        made.twice = tuple(name for name, count in counts.items() if count > 1)
    return made


def _twice(value: object, place: str, depth: int) -> Iterator[Mistake]:
    if depth > _DEPTH_MAX:
        raise SpecError((_TOO_DEEP,))
    if isinstance(value, _Object):
        prefix = f"{place}." if place else ""
        for name in value.twice:
            yield Mistake(f"{prefix}{name}", "stands there more than once: keep one of them")
        for name, inner in value.items():
            yield from _twice(inner, f"{prefix}{name}", depth + 1)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _twice(inner, f"{place}[{index}]", depth + 1)
