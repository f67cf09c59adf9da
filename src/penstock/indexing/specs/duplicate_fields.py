"""Parts of a spec that occur twice, as Druid writes them: inside ``spec``, and next to it.

Owns the comparison. An equal copy is dropped; a different one is a mistake, because one of the two
would be ignored silently. The mistake's place is the first difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.indexing.specs.spec_base import mistakes

_Steps = tuple[str | int, ...]

_PARTS: Final = ("dataSchema", "ioConfig", "tuningConfig")
_ABSENT: Final = object()
# It may be left out wherever it may occur.
_TYPE: Final = "type"


def without_duplicates(title: str, data: object, *, beside: str, inside: tuple[str, str]) -> object:
    """Return the data of a model without the copies of its parts.

    Args:
        title: The name of the model, for its errors.
        data: The data; without ``spec`` it is returned unchanged.
        beside: A field that occurs next to ``spec``, in addition to its three parts.
        inside: The part of ``spec``, and the field of it, that this field is a copy of.

    Raises:
        ValidationError: A field differs from its copy.
    """
    spec = data.get("spec") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(spec, dict):
        return data
    duplicates = {name: (f"spec.{name}", spec.get(name)) for name in _PARTS}
    part, field = inside
    holder = spec.get(part)
    duplicate = holder.get(field) if isinstance(holder, dict) else None
    return _without(title, data, duplicates | {beside: (f"spec.{part}.{field}", duplicate)})


def _without(
    title: str, data: dict[str, object], duplicates: Mapping[str, tuple[str, object]]
) -> dict[str, object]:
    """Return an object without the fields that are copies.

    Args:
        title: The name of the model.
        data: The object.
        duplicates: The place and the value of the other copy, None if there is none.
    """
    found: list[tuple[_Steps, object, str]] = []
    kept = dict(data)
    for name, (place, duplicate) in duplicates.items():
        value = data.get(name)
        # An empty field, or one without a copy, is kept: the model reports where it belongs.
        if duplicate is None or value in (None, {}, []):
            continue
        steps = _difference(_typed(value, duplicate), duplicate)
        if steps is None:
            del kept[name]
        else:
            at = ".".join((place, *map(str, steps)))
            text = f"differs from {at}: make both equal, or leave out {name}"
            found.append(((name, *steps), None, text))
    if found:
        raise mistakes(title, found)
    return kept


def _typed(value: object, duplicate: object) -> object:
    """Return the value with the type of its copy; without one if the copy has no type."""
    if not isinstance(value, dict) or not isinstance(duplicate, dict):
        return value
    if value.get(_TYPE) is None or duplicate.get(_TYPE) is None:
        return value | {_TYPE: duplicate.get(_TYPE)}
    return value


def _difference(one: object, other: object) -> _Steps | None:
    """Return the steps to the first difference, or None; null is the same as a missing field."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in dict.fromkeys((*one, *other)):
            steps = _difference(one.get(name), other.get(name))
            if steps is not None:
                return (str(name), *steps)
        return None
    if isinstance(one, list) and isinstance(other, list):
        for number in range(max(len(one), len(other))):
            steps = _difference(_item(one, number), _item(other, number))
            if steps is not None:
                return (number, *steps)
        return None
    # Otherwise True would equal 1.
    return None if isinstance(one, bool) == isinstance(other, bool) and one == other else ()


def _item(values: list[object], number: int) -> object:
    return values[number] if number < len(values) else _ABSENT
