"""Parts of a spec that stand in it twice, as Druid writes them: inside of ``spec``, and beside it.

Owns the comparison. What says the same is dropped; what does not is a mistake, for one of the two
would be passed over in silence, and its place is the first where they differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.indexing.spec.model import mistakes

_Steps = tuple[str | int, ...]

_PARTS: Final = ("dataSchema", "ioConfig", "tuningConfig")
_ABSENT: Final = object()
# It may be left out in each of the places where it stands.
_TYPE: Final = "type"


def without_twins(title: str, data: object, *, beside: str, inside: tuple[str, str]) -> object:
    """Return what a model is made of without what it says twice.

    Args:
        title: The name of the model, for its errors.
        data: What it is made of; if that has no ``spec``, it is returned as it is.
        beside: A field that stands beside ``spec``, besides its three parts.
        inside: The part of ``spec``, and the field of that, which says it.

    Raises:
        ValidationError: A field differs from its twin.
    """
    spec = data.get("spec") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(spec, dict):
        return data
    twins = {name: (f"spec.{name}", spec.get(name)) for name in _PARTS}
    part, field = inside
    holder = spec.get(part)
    twin = holder.get(field) if isinstance(holder, dict) else None
    return _without(title, data, twins | {beside: (f"spec.{part}.{field}", twin)})


def _without(
    title: str, data: dict[str, object], twins: Mapping[str, tuple[str, object]]
) -> dict[str, object]:
    """Return an object without the fields that are there once more.

    Args:
        title: The name of the model.
        data: The object.
        twins: Where the other one of a field stands, and what it says, None if nothing.
    """
    found: list[tuple[_Steps, object, str]] = []
    kept = dict(data)
    for name, (place, twin) in twins.items():
        value = data.get(name)
        # What is empty, or has no twin, is no repetition: the model says where it goes.
        if twin is None or value in (None, {}, []):
            continue
        steps = _difference(_typed(value, twin), twin)
        if steps is None:
            del kept[name]
        else:
            at = ".".join((place, *map(str, steps)))
            text = f"is not what {at} says: change both, or leave out {name}"
            found.append(((name, *steps), None, text))
    if found:
        raise mistakes(title, found)
    return kept


def _typed(value: object, twin: object) -> object:
    """Return the value with the type of its twin, if it names none, or if the twin does not."""
    if not isinstance(value, dict) or not isinstance(twin, dict):
        return value
    if value.get(_TYPE) is None or twin.get(_TYPE) is None:
        return value | {_TYPE: twin.get(_TYPE)}
    return value


def _difference(one: object, other: object) -> _Steps | None:
    """Return the steps to the first difference, or None; a null is what is left out."""
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
    # True would be 1, otherwise.
    return None if isinstance(one, bool) == isinstance(other, bool) and one == other else ()


def _item(values: list[object], number: int) -> object:
    return values[number] if number < len(values) else _ABSENT
