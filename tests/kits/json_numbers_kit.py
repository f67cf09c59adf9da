"""Numbers in JSON: the places where they stand, and other numbers put there."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator

Place = tuple[str | int, ...]


def places(value: object, place: Place = ()) -> Iterator[Place]:
    """Yield where numbers stand, and keys that are numbers."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name.isdecimal():
                yield (*place, name)
            yield from places(inner, (*place, name))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from places(inner, (*place, number))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place


def with_number(value: object, place: Place, number: str, form: str) -> bytes:
    """Return JSON in which another number stands at a place: as a number, a text or a key."""
    changed = copy.deepcopy(value)
    inside: object = changed
    for step in place[:-1]:
        inside = inside[step]  # type: ignore[index]
    if form == "key" and isinstance(inside, dict):
        inside[number] = inside.pop(str(place[-1]))
        return json.dumps(changed).encode()
    inside[place[-1]] = "?number?"  # type: ignore[index]
    written = json.dumps(number) if form == "text" else number
    return json.dumps(changed).replace('"?number?"', written).encode()
