"""All mistakes of a spec at once, each with its place and a similar valid name, if there is one.

Owns the translation of pydantic's errors; the texts of other checks are in the modules of the
checks.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from penstock.core.errors import InvalidRequest
from penstock.core.similar_names import most_similar
from penstock.indexing.secrets import shown_in_error
from penstock.indexing.specs.spec_base import SpecModel

_MAX_SHOWN: Final = 60
_MISTAKES_MAX: Final = 100
_TEXT_LENGTH_MAX: Final = 600
_TEXT_CHECKED_MAX: Final = 10_000

_WORDS: Final = {
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}
_PLAIN: Final = {
    "missing": "is required",
}
# A value that may be of several kinds: pydantic reports each of them, one text replaces them.
_SCALAR: Final = "must be text, a number, true or false"
_KIND_OF_VALUE: Final = re.compile(
    r"(?:str|int|float|bool|none|date)$|(?:list|dict|tuple|literal|nullable|constrained|function)[\[-]"
)
_QUOTED: Final = re.compile(r"'([^']+)'")
_KINDS: Final[Mapping[type, str]] = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
}
_BOUNDS: Final = {
    "greater_than_equal": ("ge", "at least"),
    "less_than_equal": ("le", "at most"),
    "greater_than": ("gt", "more than"),
    "less_than": ("lt", "less than"),
}


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake of a spec and its place."""

    place: str
    message: str


class SpecError(InvalidRequest):
    """A spec with mistakes: `mistakes` holds them, the text lists them.

    If there are very many, the text lists the first ones and the number of the others; `rest` of
    these are not in `mistakes`. Long names and values are cut.
    """

    def __init__(self, mistakes: tuple[Mistake, ...], rest: int = 0) -> None:
        rest += max(0, len(mistakes) - _MISTAKES_MAX)
        if rest:
            mistakes = (*mistakes[:_MISTAKES_MAX], Mistake("", f"and {rest} more"))
        mistakes = tuple(Mistake(_cut(m.place), _cut(m.message)) for m in mistakes)
        lines = [f"{m.place}: {m.message}" if m.place else m.message for m in mistakes]
        head = "" if len(lines) == 1 else f"{len(lines)} mistakes in the spec:\n  "
        super().__init__(head + "\n  ".join(lines))
        self.place = mistakes[0].place
        self.mistakes = mistakes


def spec_error(error: ValidationError, model: type[SpecModel]) -> SpecError:
    """Translate the errors of pydantic in an instance of `model`."""
    found: dict[Mistake, None] = {}
    rest = 0
    for details in error.errors(include_url=False):
        if details["type"] == "too_short" and _is_long_enough(details):
            continue  # Its items are invalid, and are reported themselves.
        if len(found) == _MISTAKES_MAX:
            rest += 1  # Finding similar names is slow.
            continue
        at = _walk(model, details["loc"])
        found.setdefault(Mistake(_place(details, at), _message(details, at)))
    return SpecError(tuple(found), rest)


def _place(details: ErrorDetails, at: _At) -> str:
    """Return the place of a mistake: for a wrong kind its field, where pydantic has the object."""
    if details["type"] not in {"union_tag_invalid", "union_tag_not_found"}:
        return at.place
    return f"{at.place}.{at.kind}" if at.place else at.kind


def _is_long_enough(details: ErrorDetails) -> bool:
    given: object = details["input"]
    return isinstance(given, list | dict) and len(given) >= details["ctx"]["min_length"]


@dataclass(frozen=True, slots=True)
class _At:
    """The place of an error, as a user writes it, and the model that holds its last step."""

    place: str
    parent: type[SpecModel] | None
    types: tuple[str, ...] = ()  # the possible kinds, if the kind selects the model
    kind: str = "type"  # the field that selects it
    is_scalar: bool = False


def _walk(model: type[SpecModel], loc: tuple[int | str, ...]) -> _At:
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
        if place and not candidates and _KIND_OF_VALUE.match(step):
            return _At(place, parent, is_scalar=True)  # The step is a kind of value.
        place += f".{step}" if place else step
        parent = candidates[0] if len(candidates) == 1 else None
        field = (
            next((f for f in parent.model_fields.values() if step == f.alias), None)
            if parent
            else None
        )
        candidates = _models_in(field.annotation) if field is not None else ()
    types = tuple(name for one in candidates for name in _tags(one))
    kind = candidates[0].kind_field if candidates else SpecModel.kind_field
    return _At(place, parent, types, to_camel(kind))


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
        if tag in _tags(candidate):
            return candidate
    return None


def _tags(model: type[SpecModel]) -> tuple[str, ...]:
    field = model.model_fields.get(model.kind_field)
    return get_args(field.annotation) if field is not None else ()


def _message(details: ErrorDetails, at: _At) -> str:
    kind = details["type"]
    context = details.get("ctx", {})
    if kind == "spec":
        return details["msg"]
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind in {"string_too_short", "too_short"}:
        least = context["min_length"]
        return "must not be empty" if least == 1 else f"must have at least {least} of them"
    if kind in {"string_too_long", "too_long"}:
        what = "characters" if kind == "string_too_long" else "of them"
        return f"must have at most {context['max_length']} {what}"
    if kind == "extra_forbidden" and at.parent is not None:
        return _unknown_field(str(details["loc"][-1]), at.parent)
    given = shown(details["input"], details["loc"])
    if at.is_scalar:
        return f"{_SCALAR}, not {given}"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"must be {words} {context[name]}, not {given}"
    if kind == "literal_error":
        return _not_one_of(details["input"], given, str(context["expected"]))
    if kind == "union_tag_invalid":
        # pydantic's own `tag` is text, even if the value is an object.
        names = _QUOTED.findall(context["discriminator"])
        tag = next((details["input"][name] for name in names if name in details["input"]), None)
        return _not_one_of(tag, shown(tag, ()), str(context["expected_tags"]))
    if kind == "union_tag_not_found":
        return f"is required, one of {', '.join(at.types)}"
    return f"{_WORDS.get(kind, 'must have another value')}, not {given}"


def _unknown_field(name: str, parent: type[SpecModel]) -> str:
    if name in parent.unsupported:
        return f"not supported here: {parent.unsupported[name]}"
    known = sorted(f.alias or n for n, f in parent.model_fields.items())
    # Names without effect, or refused with a remedy, may also be the intended ones.
    others = (*parent.without_effect, *parent.repeated, *parent.unsupported)
    return f"unknown field{did_you_mean(name, known, others)}"


def _not_one_of(given: object, text: str, expected: str) -> str:
    if expected in {"True", "False", "1"}:
        return f"only {expected.lower()} is supported yet, not {text}"
    names = [name.strip(" '") for name in expected.replace(" or ", ", ").split(",")]
    near = most_similar(given, names) if isinstance(given, str) else None
    hint = f': did you mean "{near}"?' if near else ""
    if len(names) == 1:
        return f'only "{names[0]}" is supported yet, not {text}{hint}'
    return f"{text} is not one of {', '.join(names)}{hint}"


def did_you_mean(
    given: str, names: list[str], others: Iterable[str] = (), *, or_all: bool = True
) -> str:
    """Return a hint with the nearest name, or all names (nothing, if not `or_all`).

    Args:
        given: The invalid name.
        names: The valid names.
        others: Further names to compare with, which are not listed.
        or_all: List the names if none is near.
    """
    near = most_similar(given, [*names, *others])
    if near is None and not or_all:
        return ""
    return f': did you mean "{near}"?' if near else f"; there are {', '.join(names)}"


def _cut(text: str) -> str:
    """Return a text that is short enough for an answer, and valid in every encoding."""
    short = text if len(text) <= _TEXT_LENGTH_MAX else f"{text[: _TEXT_LENGTH_MAX - 1]}…"
    return short.encode("utf-8", "backslashreplace").decode()


def shown(value: object, way: Iterable[str | int] = ()) -> str:
    """Return a value as JSON, or only its kind if it may be a secret.

    Args:
        value: The value.
        way: The names on the path to it.
    """
    known = shown_in_error(value[:_TEXT_CHECKED_MAX] if isinstance(value, str) else value, way)
    if known is None and value is not None:
        return _KINDS.get(type(value), "a value of another type")
    text = json.dumps(known, ensure_ascii=False, default=repr)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"
