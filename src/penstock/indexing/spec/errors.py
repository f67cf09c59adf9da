"""All mistakes of a spec at once, each with its place and, where one is near, the name meant.

Owns the translation of pydantic's errors; the words of our own checks stand beside the checks.
"""

from __future__ import annotations

import difflib
import types
from dataclasses import dataclass
from typing import Annotated, Final, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from penstock.core.errors import InvalidRequest
from penstock.indexing.spec.model import SpecModel

_MAX_SHOWN: Final = 60

_WORDS: Final = {
    "missing": "is required",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "float_type": "must be a number",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
    "union_tag_not_found": "needs a type",
}


@dataclass(frozen=True, slots=True)
class Mistake:
    """One place of a spec and what is wrong there."""

    place: str
    message: str


class SpecError(InvalidRequest):
    """A spec with mistakes: `mistakes` holds all of them, the text lists them."""

    def __init__(self, mistakes: tuple[Mistake, ...]) -> None:
        lines = [f"{m.place}: {m.message}" if m.place else m.message for m in mistakes]
        head = "" if len(lines) == 1 else f"{len(lines)} mistakes in the spec:\n  "
        super().__init__(head + "\n  ".join(lines))
        self.place = mistakes[0].place
        self.mistakes = mistakes


def spec_error(error: ValidationError, model: type[SpecModel]) -> SpecError:
    """Translate what pydantic found in an instance of `model`."""
    found: dict[Mistake, None] = {}
    for details in error.errors(include_url=False):
        if details["type"] == "too_short" and details["input"]:
            continue  # Its items are mistaken, and are reported themselves.
        parent, place = _walk(model, details["loc"])
        found.setdefault(Mistake(place, _message(details, parent)))
    return SpecError(tuple(found))


def _walk(model: type[SpecModel], loc: tuple[int | str, ...]) -> tuple[type[SpecModel] | None, str]:
    """Return the model that holds the last step of `loc`, and the place as a user writes it."""
    place = ""
    candidates: tuple[type[SpecModel], ...] = (model,)
    parent: type[SpecModel] | None = model
    for step in loc:
        if isinstance(step, int):
            place += f"[{step}]"
            continue
        if len(candidates) > 1 and (chosen := _by_tag(candidates, step)) is not None:
            # The tag of a union is in pydantic's path, but not in the user's.
            candidates, parent = (chosen,), chosen
            continue
        place += f".{step}" if place else step
        parent = candidates[0] if len(candidates) == 1 else None
        field = (
            next((f for f in parent.model_fields.values() if step == f.alias), None)
            if parent
            else None
        )
        candidates = _models_in(field.annotation) if field is not None else ()
    return parent, place


def _models_in(annotation: object) -> tuple[type[SpecModel], ...]:
    if isinstance(annotation, type) and issubclass(annotation, SpecModel):
        return (annotation,)
    if get_origin(annotation) in {tuple, list, Union, types.UnionType, Annotated}:
        found: list[type[SpecModel]] = []
        for argument in get_args(annotation):
            found.extend(_models_in(argument))
        return tuple(dict.fromkeys(found))
    return ()


def _by_tag(candidates: tuple[type[SpecModel], ...], tag: str) -> type[SpecModel] | None:
    for candidate in candidates:
        field = candidate.model_fields.get("type")
        if field is not None and tag in get_args(field.annotation):
            return candidate
    return None


def _message(details: ErrorDetails, parent: type[SpecModel] | None) -> str:
    kind, value = details["type"], details["input"]
    if kind == "spec":
        return details["msg"]
    if kind == "extra_forbidden" and parent is not None:
        return _unknown_field(str(details["loc"][-1]), parent)
    context = details.get("ctx", {})
    if kind in {"literal_error", "union_tag_invalid"}:
        expected = str(context.get("expected") or context.get("expected_tags", ""))
        return _not_one_of(value, context.get("tag"), expected)
    if kind in _WORDS:
        word = _WORDS[kind]
        return word if kind == "missing" else f"{word}, not {_shown(value)}"
    return f"{details['msg']}, not {_shown(value)}"


def _unknown_field(name: str, parent: type[SpecModel]) -> str:
    if name in parent.unsupported:
        return f"not supported here: {parent.unsupported[name]}"
    known = sorted(f.alias or n for n, f in parent.model_fields.items())
    return f"unknown field{did_you_mean(name, known)}"


def _not_one_of(value: object, tag: object, expected: str) -> str:
    given = tag if tag is not None else value
    if expected in {"True", "False", "1"}:
        return f"only {expected.lower()} is supported yet, not {_shown(given)}"
    names = [name.strip(" '") for name in expected.replace(" or ", ", ").split(",")]
    hint = did_you_mean(given, names) if isinstance(given, str) else ""
    return f"{_shown(given)} is not one of {', '.join(names)}{hint}"


def did_you_mean(given: str, names: list[str]) -> str:
    """Return a hint at the nearest name, or the names there are."""
    folded = {name.lower(): name for name in names}
    near = difflib.get_close_matches(given.lower(), list(folded), n=1, cutoff=0.6)
    if near:
        return f': did you mean "{folded[near[0]]}"?'
    return f"; there are {', '.join(names)}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"
