"""Tolerant reading of JSON answers: values that are missing or of another type count as empty.

For displaying and counting answers of processes that may run another release.
"""

from __future__ import annotations

from collections.abc import Mapping


def part(answer: object, *names: str) -> object:
    """Return a nested value of an answer, None if it is missing."""
    for name in names:
        answer = answer.get(name) if isinstance(answer, Mapping) else None
    return answer


def objects(answer: object, *names: str) -> list[dict[str, object]]:
    """Return the objects of a list in an answer, or of an answer that is a list."""
    found = part(answer, *names)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def whole(answer: object, *names: str) -> int:
    """Return a whole number of an answer; 0 if it is missing."""
    found = part(answer, *names)
    return found if isinstance(found, int) else 0
