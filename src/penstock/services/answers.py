"""Reading the JSON of answers: what is not there, or is something else, counts as nothing.

For whoever shows an answer, or counts by it: the other process may be of another release.
"""

from __future__ import annotations

from collections.abc import Mapping


def part(answer: object, *names: str) -> object:
    """Return what is deep in an answer, None if it is not there."""
    for name in names:
        answer = answer.get(name) if isinstance(answer, Mapping) else None
    return answer


def objects(answer: object, *names: str) -> list[dict[str, object]]:
    """Return the objects of a list in an answer, or of one that is the list itself."""
    found = part(answer, *names)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def whole(answer: object, *names: str) -> int:
    """Return a whole number of an answer; 0 if it is not there."""
    found = part(answer, *names)
    return found if isinstance(found, int) else 0
